/*
 * pair.h - two sides of the path under test in one loop, and a count of how each op ended.
 *
 * No callback may come inside a call: calls go through here, and the callbacks check it.
 */
#pragma once

#include "tests/conformance/bulk/bulk_path.h"

enum { PAIR_OPS = 1024 };

/* The path under test: BULK_PATH comes from the build. */
extern const struct bulk_path_ops *const path;

/* An op's outcome; ended counts calls of done. */
struct outcome {
        int ended, status;
};

extern struct pair {
        uv_loop_t loop;
        uv_timer_t deadline;
        struct bulk_path *path;
        struct bulk_peer *peer[2];
        int broken[2], closed[2];
        struct outcome send[PAIR_OPS], land[PAIR_OPS];
        int ended;  /* of all ops */
        int inside; /* a call of the path is running */
} pair;

void pair_open(void);
void pair_open_tokens(uint64_t a, uint64_t b);
/* The loop with its deadline alone; the side in pair.peer[side] is then told of breaks. */
void loop_open(void);
void adopt(int side);
void close_side(int side);
/* Closes what is open; both peers are gone and the loop is clean. */
void pair_close(void);

int send_from(int side, uint64_t transfer, const void *p, size_t n, struct outcome *outcome);
int expect_at(int side, uint64_t transfer, void *p, size_t n, struct outcome *outcome);
void forget_at(int side, uint64_t transfer);
/* As bulk_done: arg is a struct outcome. */
void on_done(void *arg, int status);

void run_until(const int *counter, int value);
/* Everything that can still happen by itself has happened. */
void settle(void);

/*
 * A daemon for one client: a thread that follows a script of what it expects and
 * answers.  It speaks the real protocol, with real windows.  A client that leaves the script ends
 * the test's process with the reason; nothing waits longer than ten seconds.
 */
#pragma once

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/frame.h"
#include "proto/layout.h"
#include "zero.h"

enum {
        FAKE_TRANSFER = 4096,
        FAKE_GATHER = 65536,
        FAKE_SERVE = 32768,
        FAKE_GROUPS = 4,
        /* the model of fake_layout() */
        FAKE_BF16 = 0,   /* two tensors; the second is frozen */
        FAKE_FP32 = 1,   /* one tensor */
        FAKE_FROZEN = 2, /* nothing to train */
        FAKE_OTHERS = 3, /* pushed by rank 1 only */
};

/* For scripts: Criterion's assertions work only in the test's own thread. */
#define MUST(condition)                                                                          \
        do {                                                                                     \
                if (!(condition)) {                                                              \
                        fprintf(stderr, "%s, line %d: %s: %s\n", __FILE__, __LINE__, #condition, \
                                strerror(errno));                                                \
                        abort();                                                                 \
                }                                                                                \
        } while (0)

/* The job as fake_attach() tells it; fake_start() sets version 7, attempt 20. */
struct fake_job {
        uint64_t version, attempt;
        uint64_t last_attempt;       /* 0: nothing was decided yet */
        const Zero__StepReply *last; /* NULL: nothing was decided yet */
        uint32_t accepted[FAKE_GROUPS + 1];
        size_t n_accepted;
        const void *blob;
        size_t blob_bytes;
        size_t gather_bytes; /* 0: none */
        bool no_events;
};

struct fake {
        struct fake_job job;
        char directory[88], path[96];
        int listener, fd;
        pthread_t thread;
        void (*script)(struct fake *fake);
        const void *data; /* for the script */
        struct frame_reader reader;
        uint8_t in[4096];
        size_t in_begin, in_end;
        Zero__Request *request;            /* the last one */
        uint8_t *session, *gather, *serve; /* as the daemon maps them */
        uint8_t *slots;                    /* of gradients: in the session window, or on a GPU */
        size_t session_bytes, gather_bytes, push_bytes;
};

void fake_start(struct fake *fake, void (*script)(struct fake *fake));
/* Waits for the script's end. */
void fake_stop(struct fake *fake);

/* ---- for scripts ---- */

void fake_accept(struct fake *fake);
/* Waits for the next request, which must be of this kind; valid until the next call. */
Zero__Request *fake_expect(struct fake *fake, Zero__Request__BodyCase what);
/* Waits for the next request of any kind; NULL: the client has ended the connection. */
Zero__Request *fake_next(struct fake *fake);
/* Checks that the client ends the connection now, without another request. */
void fake_expect_end(struct fake *fake);
/* Takes all requests until the client ends the connection; returns their number. */
unsigned fake_drain(struct fake *fake);
void fake_hang_up(struct fake *fake);
/* Stops listening until fake_come_back(). */
void fake_go_away(struct fake *fake);
void fake_come_back(struct fake *fake);
void fake_send(struct fake *fake, const void *bytes, size_t n);
void fake_send_fds(struct fake *fake, const void *bytes, size_t n, const int *fds, size_t n_fds);
void fake_reply(struct fake *fake, const Zero__Reply *reply);
void fake_ok(struct fake *fake, uint64_t seq);
void fake_refuse(struct fake *fake, uint64_t seq, int status, const char *text);
void fake_fetched(struct fake *fake, uint64_t seq, bool serve, uint64_t offset);
void fake_stepped(struct fake *fake, uint64_t seq, int status, uint64_t version, uint64_t attempt);
void fake_json(struct fake *fake, uint64_t seq, const char *json);
/* Accepts, and answers the greeting. */
void fake_hello(struct fake *fake);
/* Answers an attach with windows of the sizes above, as fake->job says. */
void fake_attach(struct fake *fake);
/* fake_hello() and fake_attach(). */
void fake_begin(struct fake *fake);
/* fake_hang_up() and fake_begin(); the client attaches anew. */
void fake_restart(struct fake *fake);
/* fake_begin(), and no request after it. */
void fake_only_begin(struct fake *fake);
/* Makes a memfd of that many bytes; *ret_map (may be NULL) is mapped and belongs to the test. */
int fake_memfd(size_t bytes, uint8_t **ret_map);

/* ---- for tests ---- */

/* Whether a byte can be read, without a signal if not. */
bool fake_readable(const void *at);

struct zero_layout *fake_layout(void);
struct zero_options fake_options(const struct fake *fake);
struct zero_client *fake_connect(const struct fake *fake);
/* The needs that fake_client() attaches with. */
struct zero_needs fake_needs(uint32_t push_groups);
/* Makes a client that is connected, and attached with fake_layout(); push_groups slots of fp32. */
struct zero_client *fake_client(const struct fake *fake, uint32_t push_groups);
/* The same with private views. */
struct zero_client *fake_open_private(struct fake *fake, void (*script)(struct fake *fake));
/* The same with windows on "cuda:0" and two slots. */
struct zero_client *fake_open_gpu(struct fake *fake, void (*script)(struct fake *fake),
                                  uint32_t timeout_ms);
/* fake_start() and fake_client(); zero_close() and fake_stop(). */
struct zero_client *fake_open(struct fake *fake, void (*script)(struct fake *fake),
                              uint32_t push_groups);
void fake_close(struct fake *fake, struct zero_client *client);

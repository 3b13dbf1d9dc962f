/*
 * fabric_world.h - several nodes in one loop for the fabric's tests: real nodes on loopback, or
 * nodes in process, and a record of what each was told.
 */
#pragma once

#include "daemon/fabric/fabric.h"
#include "tests/support/fabric_inproc.h"

enum { WORLD_MAX = 4, WORLD_MESSAGES = 4096 };

struct world;
struct world_node {
        struct world *world;
        uint32_t self;
        struct cluster cluster;
        struct fabric *fabric;
        int ups[WORLD_MAX], downs[WORLD_MAX];
        bool up[WORLD_MAX];
        uint64_t heard[WORLD_MAX][WORLD_MESSAGES]; /* `call` of each message, in order */
        int n_heard[WORLD_MAX];
        bool closed;
};

struct world {
        uv_loop_t loop;
        uint32_t n;
        struct inproc_net *net; /* NULL: real nodes */
        int inside;             /* a call of the fabric is running */
        bool staged[WORLD_MAX]; /* [node]: as in struct fabric_options */
        struct world_node nodes[WORLD_MAX];
};

/* bulk of each node by its letter: 'a'uto, 'u'cx, 't'cp, 'i'nproc (all or none). */
void world_open(struct world *world, const char *bulk, uint32_t delay_ms);
void world_start(struct world *world, uint32_t i, char bulk, uint32_t delay_ms, const char *tls);
/* The world without nodes, for world_start(). */
void world_open_empty(struct world *world, uint32_t n, bool inproc);
/* Waits until every node sees every other one. */
void world_all_up(struct world *world);
void world_stop(struct world *world, uint32_t i);
void world_close(struct world *world);

int world_send(struct world *world, uint32_t from, uint32_t to, uint64_t call);
/* Sends n bytes from out to in, in host or GPU memory, and waits until they have landed. */
void world_pass(struct world *world, uint32_t from, uint32_t to, const void *out, void *in,
                size_t n, enum traffic kind);
/* Sends n bytes, waits until they have landed, and checks that they are equal. */
void world_payload(struct world *world, uint32_t from, uint32_t to, size_t n, enum traffic kind);
void world_wait(struct world *world, bool (*done)(void *arg), void *arg);

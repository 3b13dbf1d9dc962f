/*
 * snapshot.h - what the loop publishes for HTTP.
 *
 * The thread of HTTP wants a kind of snapshot; the loop fills one and hands it over; from then on
 * the snapshot is immutable and belongs to that thread.  Nothing else passes between the two but
 * downloads (download.h).
 */
#pragma once

#include "daemon/face/http/download.h"
#include "daemon/face/status/status.h"

enum { SNAPSHOT_FRESH_MS = 500 };

enum snapshot_kind {
        SNAPSHOT_NODE,
        SNAPSHOT_MEMBERS,
        SNAPSHOT_CONFIG,
        SNAPSHOT_MAP,
        SNAPSHOT_HEALTH, /* no more than serving and ready */
        SNAPSHOT_KINDS,
        SNAPSHOT_NONE = SNAPSHOT_KINDS,
};

struct snapshot {
        uint64_t made_ms; /* snapshot_now() */
        bool serving;     /* else the record is empty: the engine stops or starts */
        bool ready;       /* clients may come */
        struct arena arena;
        const struct record_type *type; /* NULL: no record */
        union {
                struct status_node node;
                struct status_membership members;
                struct status_config config;
                struct status_map map;
        } record;
};
void snapshot_free(struct snapshot *s); /* NULL is fine */
uint64_t snapshot_now(void);            /* milliseconds; any thread */

struct exchange;

/* ---- loop thread ---- */

int exchange_new(struct engine *x, struct exchange **ret);
void exchange_serve(struct exchange *e, bool serving);
/* Of this exchange; for the other thread. */
struct downloads *exchange_downloads(const struct exchange *e);
/* Waits for work in flight, then calls closed().  The other thread has ended. */
void exchange_close(struct exchange *e, void (*closed)(void *arg), void *arg);

/* ---- the other thread ---- */

/* Readable when a snapshot came. */
int exchange_fd(const struct exchange *e);
void exchange_want(struct exchange *e, enum snapshot_kind kind);
/* NULL: none came since the last call. */
struct snapshot *exchange_take(struct exchange *e, enum snapshot_kind kind);

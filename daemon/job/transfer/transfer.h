/*
 * transfer.h - how the engine talks to other nodes: payloads that it asks for (ask.c) or sends
 * (staging.c), and messages that expect an answer (call.c).
 */
#pragma once

#include "daemon/job/core/job.h"

/* ---- payloads that this node asks for -------------------------------------------- */

/* Embedded in what waits for the payload; valid until `done` is called. */
struct ask {
        struct list link; /* transfer.asks */
        struct copy copy;
        struct engine *x;
        const struct job *job;
        uint32_t node;
        uint64_t transfer, begun_ns;
        enum traffic kind;
        uint32_t group;    /* of the pull; NO_GROUP: announced */
        void *p, *transit; /* transit: NULL, or where the payload lands on its way to p */
        size_t n;
        bool forgotten;
        int status;                                /* why the owner refused; 0: it has not */
        void (*done)(struct ask *ask, int status); /* -ECANCELED: refused, or the link is down */
        /* NULL after ask_send(): hears why, before done() */
        void (*refused)(struct ask *ask, const Zero__Refuse *why);
};
/*
 * Expects n bytes at p, in any place, then sends the pull with its transfer number.  -ENOMEM,
 * -ENOTCONN: then done is never called.
 */
int ask_send(struct ask *ask, struct job *job, uint32_t node, enum traffic kind, Zero__Pull *pull,
             void *p, size_t n);
/* The same for a payload that the node has announced: nothing is asked. */
int ask_announced(struct ask *ask, struct job *job, uint32_t node, enum traffic kind,
                  uint64_t transfer, void *p, size_t n);
/* done gets -ECANCELED, unless the payload has already come. */
void ask_forget(struct ask *ask);
void ask_refused_message(struct engine *x, uint32_t node, const Zero__Refuse *m);
void ask_refuse(struct job *job, uint32_t node, uint64_t transfer, int status, const char *text);
/* Refuses a slice: n deltas of those bytes lead to it. */
void ask_offer_deltas(struct job *job, uint32_t node, uint64_t transfer, uint64_t *bytes,
                      uint32_t n);

/* ---- payloads that this node sends ---------------------------------------------- */

/*
 * As fabric_payload(), for n bytes in any place.  `pushed`: a client can write to them until
 * done(); otherwise they do not change.  The caller holds a reference to the job until done().
 */
int staged_payload(struct job *job, uint32_t node, uint64_t transfer, enum traffic kind,
                   const void *p, size_t n, bool pushed, bulk_done *done, void *arg);

/* ---- calls --------------------------------------------------------------------- */

typedef void call_done(void *arg, int status, const char *text, const Zero__LinkMessage *answer);
/* Sends m as a call. done is called exactly once, never before this returns. */
void call_send(struct engine *x, uint32_t node, Zero__LinkMessage *m, uint64_t timeout_ms,
               call_done *done, void *arg);
void calls_answer(struct engine *x, uint32_t node, const Zero__LinkMessage *m);
void calls_down(struct engine *x, uint32_t node, const char *why);
/* Answers m if it is a call. */
void answer(struct engine *x, uint32_t node, const Zero__LinkMessage *m, int status,
            const char *text);
void send_some(struct engine *x, node_set nodes, const Zero__LinkMessage *m);
/* To every node, this one too. */
void send_all(struct engine *x, const Zero__LinkMessage *m);

extern const struct module transfer_module;

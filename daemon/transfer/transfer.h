/*
 * transfer.h - what goes between this node and others for the engine: payloads that are asked for
 * (ask.c) or sent (staging.c), and messages that want an answer (call.c).
 */
#pragma once

#include "daemon/core/job.h"

/* ---- payloads that this node asks for -------------------------------------------- */

/* Embedded in whatever waits for the payload; valid until `done` was called. */
struct ask {
        struct list link; /* engine.asks */
        struct engine *x;
        const struct job *job;
        uint32_t node;
        uint64_t transfer;
        bool forgotten;
        int status;                                /* why the owner refused; 0: it did not */
        void (*done)(struct ask *ask, int status); /* -ECANCELED: refused, or the link ended */
};
/*
 * Makes room for n bytes at p, then sends the pull (its transfer number is set here).
 * Not 0: nothing was started and done will not be called.
 */
int ask_send(struct ask *ask, struct job *job, uint32_t node, enum traffic kind, Zero__Pull *pull,
             void *p, size_t n);
/* The same for a payload that the node has announced: there is nothing to ask. */
int ask_announced(struct ask *ask, struct job *job, uint32_t node, enum traffic kind,
                  uint64_t transfer, void *p, size_t n);
/* done gets -ECANCELED, unless the payload has landed. */
void ask_forget(struct ask *ask);
void ask_refused_message(struct engine *x, uint32_t node, const Zero__Refuse *m);
void ask_refuse(struct job *job, uint32_t node, uint64_t transfer, int status, const char *text);

/* ---- payloads that this node sends ---------------------------------------------- */

/*
 * fabric_payload() of n bytes that stay as they are until done(); on_gpu: they are not for the CPU.
 * The job is referred to by the caller until then.
 */
int staged_payload(struct job *job, bool on_gpu, uint32_t node, uint64_t transfer,
                   enum traffic kind, const void *p, size_t n, bulk_done *done, void *arg);

/* ---- calls --------------------------------------------------------------------- */

typedef void call_done(void *arg, int status, const char *text, const Zero__LinkMessage *answer);
/* Sends m as a call; done is called exactly once, never before this returns. */
void call_send(struct engine *x, uint32_t node, Zero__LinkMessage *m, uint64_t timeout_ms,
               call_done *done, void *arg);
void calls_answer(struct engine *x, uint32_t node, const Zero__LinkMessage *m);
void calls_down(struct engine *x, uint32_t node, const char *why);
/* Answers m; a message that was no call is not answered. */
void answer(struct engine *x, uint32_t node, const Zero__LinkMessage *m, int status,
            const char *text);
/* A message of a job, ready to get its body. */
Zero__LinkMessage job_message(const struct job *job);
/* To every node, this one included. */
void send_all(struct engine *x, const Zero__LinkMessage *m);

extern const struct module transfer_module;

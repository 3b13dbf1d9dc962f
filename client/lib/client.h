/*
 * A client: one conversation with the node's daemon, and, once attached, one rank's
 * view of a job.  Private to libzero.
 *
 * Requests are numbered; what is under way stands in a ring indexed by number, so that
 * replies may come in any order.  One call at a time is waited for (call.c); pushes,
 * releases and prefetches are answered while other calls wait.
 *
 * Every public call begins by reporting what went wrong since the last one: a closed
 * connection, or a refusal of something that was not waited for (client_begin()).
 *
 * A connection is lost or closed.  Lost: the daemon went away from a client that is a rank;
 * calls that do not wait note it and do only what is to be done on this side, the next
 * one that waits resumes (resume.c).  Closed is final: everything else.
 */
#pragma once

#include <errno.h>
#include <sys/un.h>

#include "arena.h"
#include "gpu.h"
#include "mapping.h"
#include "push.h"
#include "views.h"
#include "wire.h"
#include "zero.h"
#include "proto/layout.h"

enum {
        CLIENT_PENDING = 4096,     /* requests under way; a power of two */
        CLIENT_TIMEOUT_MS = 60000, /* where neither the caller nor the daemon names one */
        CLIENT_GRACE_MS = 2000,    /* for the daemon to say itself what is waited for */
        CLIENT_LOST = -EPIPE,      /* no status: the connection is lost, and can be resumed */
};

struct pending {
        uint64_t seq; /* 0: free */
        uint64_t attempt;
        Zero__Request__BodyCase what;
        uint32_t slot, group; /* of a push */
        uint32_t event;       /* which it names; 0: none */
};

/* What this rank has done with a group in the current attempt. */
struct group_use {
        uint32_t held;          /* fetches not yet released */
        uint32_t micro_batches; /* pushed */
        uint32_t accepted;      /* ... and taken by the service, from this rank whoever it was */
        bool ended;             /* by a push with `last` */
        const void *view;       /* while held */
};

struct zero_client {
        struct wire wire;
        struct sockaddr_un address;
        int interrupt_fd; /* an eventfd; can be read once zero_interrupt() was called */
        bool closed, lost;
        struct fault cause;    /* why, if closed or lost */
        struct fault error;    /* of the last call */
        struct fault deferred; /* the first refusal of a request that was not waited for */
        int64_t began_ms;      /* the last call, on wire_now()'s clock */
        int64_t granted_ms;    /* by when the daemon will answer, or say that it waits still */

        uint64_t last_seq;
        struct pending pending[CLIENT_PENDING];
        uint64_t call_seq; /* the request waited for; 0: none */
        struct arena arena;
        Zero__Reply *reply; /* to it, until the next pump */

        char job[ZERO_NAME_MAX + 1]; /* empty: none */
        int32_t rank;
        uint32_t world_size, local_world_size;
        uint32_t timeout_ms;
        bool patient; /* the caller named no timeout: the daemon's counts, and may grow */
        uint32_t incarnation;
        bool entering; /* a job, for the first time or again */
        Zero__Finish finish; /* how the rank leaves the job */

        layout *layout; /* NULL: not attached */
        struct zero_needs needs;
        uint64_t version, attempt;
        double loss_scale;
        uint64_t transfer_bytes;
        struct gpu *gpu; /* where the windows are; NULL: in host memory */
        struct mapping session, gather, serve;
        struct mapping slots; /* of gradients, on a GPU; in host memory they are in the session */
        struct views views;   /* private ones */
        struct push push;
        struct group_use *groups;
        uint8_t *present;  /* room for the flags of any one group */
        uint32_t skips;    /* steps in a row that were not finite */
        bool void_attempt; /* the connection was lost before an abort was told */

        uint64_t last_attempt;       /* decided, when the client attached last; 0: none */
        struct zero_result last;     /* its result */
        uint8_t blob[ZERO_BLOB_MAX]; /* what this rank keeps with the last decided attempt */
        size_t blob_bytes;
};

/* Records the error of this call; returns its status. */
#define client_fail(c, code, ...) fault_set(&(c)->error, code, __VA_ARGS__)
/* Ends the conversation, for good; the first cause stays. */
#define client_shut(c, ...)                                                \
        ({                                                                 \
                if (!(c)->closed)                                          \
                        fault_set(&(c)->cause, ZERO_ECLOSED, __VA_ARGS__); \
                client_gone(c);                                            \
        })
/* The error of every call after the end; returns ZERO_ECLOSED. */
int client_gone(struct zero_client *c);
/* The daemon is gone: returns CLIENT_LOST, or as client_shut() where nothing is to be resumed. */
#define client_lose(c, ...)                                                \
        ({                                                                 \
                if (!(c)->closed)                                          \
                        fault_set(&(c)->cause, ZERO_ECLOSED, __VA_ARGS__); \
                client_drop(c);                                            \
        })
int client_drop(struct zero_client *c);
/* What ZERO_EABORTED says after a loss; of a version, as unsigned long long. */
#define CLIENT_RESUMED                                                                          \
        "the connection to zerod was lost and is there again: the step begins anew at version " \
        "%llu"

/*
 * What a public call starts with.  client_open() fails only if the connection is closed;
 * client_begin_aborted() reports an abort too, client_begin_unwaited() whatever was
 * refused.  These do not wait; the connection may be lost.  client_begin() is for calls
 * that wait: it resumes, and reports whatever was refused.
 */
int client_open(struct zero_client *c);
int client_begin_aborted(struct zero_client *c);
int client_begin_unwaited(struct zero_client *c);
int client_begin(struct zero_client *c);
/* After client_pump() or client_poll() said r: resumes, and reports as client_begin(). */
int client_go_on(struct zero_client *c, int r);
/* The client is attached as a rank, and the group exists. */
int client_check_group(struct zero_client *c, uint32_t group);
/* Takes in the replies that have already come.  CLIENT_LOST, or a status. */
int client_poll(struct zero_client *c);
/* Waits for some reply, and takes in all that have come.  CLIENT_LOST, or a status. */
int client_pump(struct zero_client *c, int64_t deadline_ms);
int64_t client_deadline(const struct zero_client *c);

/*
 * Records an event for a request, which is what is for people; *ret_event is how the request names
 * it, 0 if there is nothing to be ordered.  Waits while all events are named by requests that were
 * not answered; and, where the daemon cannot open events, until this one is done: 0 then too.
 * CLIENT_LOST, or a status: an abort that came meanwhile too.
 */
int client_record(struct zero_client *c, const struct zero_sync *sync, const char *what,
                  uint32_t *ret_event);
/* Sends a request whose body is set; does not wait for the reply.  slot: of a push. */
int client_send(struct zero_client *c, Zero__Request *request, uint32_t slot);
/* Sends and waits.  The reply is the client's, valid until its next call.  CLIENT_LOST, or a
 * status. */
int client_ask(struct zero_client *c, Zero__Request *request, const Zero__Reply **ret_reply);
/*
 * client_ask() for calls: resumes a lost connection, and then asks again if the answer is no
 * part of what was lost, else ZERO_EABORTED.
 */
int client_call(struct zero_client *c, Zero__Request *request, const Zero__Reply **ret_reply);
/* Ends the validity of the reply that client_call() gave out. */
void client_forget_reply(struct zero_client *c);

/* Connects and greets.  While the client is lost still: nobody answered there. */
int client_dial(struct zero_client *c, int64_t until_ms);
/*
 * Asks to be let in, as a rank or an observer (no layout).  resume: anew, with what the client
 * is attached with.  CLIENT_LOST, or a status.
 */
int client_join(struct zero_client *c, const layout *l, const struct zero_needs *needs,
                bool resume);
/* client_join() for zero_attach(): again and again if the connection is lost meanwhile. */
int client_enter(struct zero_client *c, const layout *l, const struct zero_needs *needs);
/*
 * Connects and attaches again, until the timeout of the call that is under way.  An abort is
 * deferred if anything of the attempt was lost with the connection.
 */
int client_resume(struct zero_client *c);

/* The group's view is none any more: a private one is not to be touched. */
int client_drop_view(struct zero_client *c, uint32_t group);
/* A new attempt has begun: what was held, pushed or about to be pushed is gone. */
void client_new_attempt(struct zero_client *c, const Zero__StepReply *step);
struct zero_result client_result(const Zero__StepReply *step);
/* Undoes zero_attach(). */
void client_detach(struct zero_client *c);

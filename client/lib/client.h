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
 */
#pragma once

#include "arena.h"
#include "push.h"
#include "views.h"
#include "wire.h"
#include "zero.h"
#include "proto/layout.h"

enum {
        CLIENT_PROTOCOL = 1,
        CLIENT_PENDING = 4096,     /* requests under way; a power of two */
        CLIENT_TIMEOUT_MS = 60000, /* where the caller names none */
        CLIENT_GRACE_MS = 2000,    /* for the daemon to say itself what is waited for */
};

struct pending {
        uint64_t seq; /* 0: free */
        uint64_t attempt;
        Zero__Request__BodyCase what;
        uint32_t slot; /* of a push */
};

struct mapping {
        void *base; /* NULL: not mapped as a whole */
        uint64_t bytes;
        bool kept; /* the descriptor is, for private views */
        int fd;
};

/* What this rank has done with a group in the current attempt. */
struct group_use {
        uint32_t held;          /* fetches not yet released */
        uint32_t micro_batches; /* pushed */
        bool ended;             /* by a push with `last` */
        const void *view;       /* while held */
};

struct zero_client {
        struct wire wire;
        bool closed;
        struct fault cause;    /* why, if closed */
        struct fault error;    /* of the last call */
        struct fault deferred; /* the first refusal of a request that was not waited for */

        uint64_t last_seq;
        struct pending pending[CLIENT_PENDING];
        uint64_t call_seq; /* the request waited for; 0: none */
        struct arena arena;
        Zero__Reply *reply; /* to it, until the next pump */

        int32_t rank;
        uint32_t world_size;
        uint32_t timeout_ms;
        bool has_job;

        layout *layout; /* NULL: not attached */
        uint64_t version, attempt;
        double loss_scale;
        uint64_t transfer_bytes;
        struct mapping session, gather, serve;
        struct views views; /* private ones */
        struct push push;
        struct group_use *groups;
        uint8_t *present; /* room for the flags of any one group */
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

/*
 * What a public call starts with.  client_open() fails only if the connection is
 * closed; client_begin_aborted() reports an abort too, client_begin() whatever was refused.
 */
int client_open(struct zero_client *c);
int client_begin_aborted(struct zero_client *c);
int client_begin(struct zero_client *c);
/* The client is attached as a rank, and the group exists. */
int client_check_group(struct zero_client *c, uint32_t group);
/* Takes in the replies that have already come. */
int client_poll(struct zero_client *c);
/* Waits for some reply, and takes in all that have come. */
int client_pump(struct zero_client *c, int64_t deadline_ms);
int64_t client_deadline(const struct zero_client *c);

/* Sends a request whose body is set; does not wait for the reply.  slot: of a push. */
int client_send(struct zero_client *c, Zero__Request *request, uint32_t slot);
/* Sends and waits.  The reply is the client's, valid until its next call. */
int client_call(struct zero_client *c, Zero__Request *request, const Zero__Reply **ret_reply);

/* Ends the validity of the reply that client_call() gave out. */
void client_forget_reply(struct zero_client *c);

/* The group's view is none any more: a private one is not to be touched. */
int client_drop_view(struct zero_client *c, uint32_t group);
/* A new attempt has begun: what was held, pushed or about to be pushed is gone. */
void client_new_attempt(struct zero_client *c, const Zero__StepReply *step);
/* Undoes zero_attach(). */
void client_detach(struct zero_client *c);

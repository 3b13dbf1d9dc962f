/* One connection of a client: decodes, checks, passes on and answers its messages. */
#pragma once

#include "daemon/face/rpc/conn.h"
#include "daemon/face/rpc/rpc.h"
#include "daemon/face/rpc/user.h"
#include "daemon/step/bases/bases.h"
#include "daemon/step/follow/follow.h"

enum { KEEPS_SLOTS = 7 }; /* the first protocol that has Noted, Reclaim and Waits */
enum { SESSION_PENDING_MAX = 4096, SESSION_TIMEOUT_MAX_MS = 24 * 3600 * 1000 };
enum { HELLO_BYTES = 1024, HELLO_MS = 10000 }; /* limits of the first frame: size, and time */

struct rpc {
        struct engine *x;
        uv_poll_t listener;
        int fd;
        int spare;             /* closed to accept a client when no descriptor is left */
        struct budget accepts; /* of all users together: whose connection comes is not known yet */
        uv_timer_t pause;      /* runs while nobody is accepted */
        uv_timer_t tick;
        uint32_t ticks;
        uint32_t handles; /* not closed yet */
        uint64_t trimmed; /* sessions ended, and engine.freed, when the heap was last trimmed */
        struct conns conns;
        struct users users;
        struct list sessions;
        uint64_t started_ms;
        char *status; /* the last answer to "status", and its loop time */
        uint64_t status_ms;
        char *told; /* the same, to a node */
        uint64_t told_ms;
        void (*closed)(void *arg);
        void *closed_arg;
};

struct session {
        struct list link; /* rpc.sessions */
        struct rpc *rpc;
        struct conn *conn;
        struct user *user;
        uint64_t began_ms;
        uid_t uid;
        pid_t pid;
        uint64_t process_start; /* of the pid (base/process.h) */
        int process;            /* readable once all its threads have ended; -1: unseen */
        bool greeted, ending;
        bool orderly;      /* the client has said bye */
        uint32_t protocol; /* of the messages */
        char job_name[ZERO_NAME_MAX + 1];
        int32_t rank_number; /* ZERO_OBSERVER or the rank it may attach as */
        uint32_t world_size, local_world_size;
        uint64_t timeout_ms;
        bool patient;      /* the client named no timeout: its calls wait longer for live ranks */
        struct rank *rank; /* while attached (or attaching) as a rank */
        struct job *job;   /* observers: the job they look at */
        struct push_window *window; /* observers */
        struct reader reader;       /* observers */
        struct base_use base;
        uint64_t told_ms; /* loop time at which the client last heard whom it waits for */
        uint32_t n_pending;
        struct list pending; /* struct pending_call.link */
        uint8_t *scratch;    /* packed replies, reused */
        size_t scratch_size;
};

/* What a request's work costs others beside its handler's time, and who bounds it. */
enum call_cost {
        CALL_UNKNOWN, /* refused */
        CALL_LOOP,    /* nothing */
        CALL_LAYOUT,  /* more time of the loop for each group, charged before */
        CALL_DISK,    /* another thread's time; its folder bounds it */
        CALL_STEP,    /* the threads of steps: a rank's windows and its step bound it */
        CALL_PLANES,  /* the threads that read, charged; TURNS of a user are in progress */
        CALL_QUERY,   /* what its row says (query.c) */
};
struct pending_call;
/* Begins a call, and ends its request now or later.  Not 0: it is refused, and the caller ends it.
 */
typedef int call_handler(struct pending_call *call, const Zero__Request *m, struct fault *fault);
/* A row of requests.c. */
struct call_kind {
        const char *name; /* as ranks call it */
        enum call_cost cost;
        uint32_t traced; /* enum wait_for + 1; 0: traces leave it out */
        /* Who takes the call: one of these.  The last two are for attached ranks; ordered_run()
         * calls the last. */
        call_handler *handle;
        rank_call *rank, *ordered;
        bool guests; /* who follows another user's job may call it too */
        /* What an answer has if it is OK: request.result as this body; 0: nothing. */
        Zero__Reply__BodyCase reply;
        void (*write)(struct pending_call *call, Zero__Reply *reply); /* in its place, or NULL */
};
/* body: of a request. */
const struct call_kind *call_kind(uint32_t body);

/* A request on its way to its reply. */
struct pending_call {
        struct request request;
        struct list link; /* session.pending */
        struct session *session;
        uint64_t seq;
        const struct call_kind *kind;
        char *json; /* the answer of a query */
        /* NULL: it counts as no survey, or what asks the nodes counts by itself */
        struct user *survey;
        bool large;
};

/* Frees the server and calls closed(), once it neither listens nor has sessions. */
void rpc_gone(struct rpc *rpc);

/* Tells users whether the loop serves other users' jobs.  Called when a job has begun. */
void rpc_share(struct rpc *rpc);

/* Ends a session that keeps others waiting: it sends no hello, or makes no progress (conn_check()).
 */
void session_check(struct session *session, uint64_t now_ms);
/* Ends a session whose process has ended: a forked one may keep the connection open. */
void session_check_process(const struct session *session);
/* Ends a session at once and forgets its calls.  Must not be called inside a request's handler. */
void session_end(struct session *session);
/* Of struct conn_events: logs why the daemon closes the connection, and ends the session. */
void session_ended(void *session, const char *why);
/* Whether the client may do what concerns the node and not one job: "change the owners". */
int session_allowed(const struct session *session, const char *what, struct fault *fault);
void session_reply(struct session *session, const Zero__Reply *reply, const int *fds, size_t n_fds);

/* ---- call.c ---- */

/* On success the session owns fd.  Errors are those of user_enter() and of the kernel. */
int session_new(struct rpc *rpc, int fd);

/* ---- attach.c ---- */

call_handler handle_attach;
/* The place of the GPU with that UUID; ZERO_EINVAL, ZERO_EGPU. */
int place_of_uuid(const ProtobufCBinaryData *uuid, uint32_t *ret_place, struct fault *fault);
/* ZERO_EBUSY where the node takes no new ranks. */
int refuse_drained(const struct engine *x, struct fault *fault);
/* Ends the sessions of users who may no more follow the job. */
void readers_regranted(struct job *job);
/* The reply has descriptors. */
void reply_attach(struct pending_call *call, Zero__Reply *reply);

/* ---- query.c ---- */

/* Answers the call with JSON, now or later. */
int query_start(struct pending_call *call, const char *what, const char *argument,
                struct fault *fault);
/* Questions of other nodes. */
void query_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);

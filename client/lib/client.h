/*
 * A client: one conversation with the node's daemon, and, once attached, one rank's
 * view of a job.  Private to libzero.
 *
 * Layers, each of which calls only those before it:
 *   client.c   how a connection ends, what a call reports
 *   attempt.c  what the rank holds and has pushed in the current attempt
 *   call.c     the conversation: numbered requests, replies in any order
 *   base.c     frozen weights that the node's jobs share
 *   attach.c   the request to attach, and what its reply brings
 *   connect.c  connecting, greeting, closing
 *   session.c  the rank's stay in its job: a lost connection is resumed, a request repeated
 *   stream_order.c, step.c, stash_calls.c, state.c, follow_calls.c: the public calls
 *
 * Every public call first reports what went wrong since the last one (client_begin()): a closed
 * connection, or the refusal of a request that nobody waited for.
 *
 * A connection ends in one of two ways.  Lost: the daemon went away from a client that is a
 * rank.  The conversation returns CLIENT_LOST; a call that does not wait does only its local
 * part, and the next call that waits resumes the connection (session.c).  Closed: anything
 * else, and final.
 */
#pragma once

#include <errno.h>
#include <sys/un.h>
#include <unistd.h>

#include "arena.h"
#include "follow.h"
#include "gpu.h"
#include "mapping.h"
#include "push.h"
#include "stash.h"
#include "views.h"
#include "wire.h"
#include "zero.h"
#include "proto/layout.h"

enum {
        CLIENT_PENDING = 4096,     /* requests under way; a power of two */
        CLIENT_TIMEOUT_MS = 60000, /* if neither the caller nor the daemon names one */
        CLIENT_GRACE_MS = 2000,    /* more, for the daemon to say what the call waited for */
        CLIENT_TELL_MS = 9000, /* of a call until its wait is told; the daemon says it each 10 s */
        CLIENT_TELL_AGAIN_MS = 55000,
        CLIENT_SLOTS =
                4, /* of the transfer area, for puts under way; PUTS_MAX of the daemon is more */
        CLIENT_FOLLOWS = 7,     /* the first protocol that has Follow */
        CLIENT_ACCUMULATES = 7, /* the first one that has Attach.accumulate */
        CLIENT_LOST = -EPIPE,   /* not a status: the connection is lost, and can be resumed */
};

struct pending {
        uint64_t seq; /* 0: free */
        uint64_t attempt;
        Zero__Request__BodyCase what;
        uint32_t slot, group; /* of a push */
        uint32_t tensor;      /* of a put */
        uint32_t event;       /* that the request names; 0: none */
};

/* What this rank has done with a group in the current attempt. */
struct group_use {
        uint32_t held;          /* fetches not yet released */
        uint32_t micro_batches; /* pushed */
        uint32_t accepted;      /* by the service, from this rank or its predecessor */
        bool ended;             /* by a push with `last` */
        bool served;            /* its last fetch had nothing to gather: nor has a prefetch */
        const void *view;       /* while held */
};

struct zero_client {
        pid_t pid; /* that connected: a process forked from it has no part in the conversation */
        _Atomic bool waits; /* a thread does, in client_waiting() */
        struct wire wire;
        struct sockaddr_un address;
        int interrupt_fd; /* an eventfd; readable after zero_interrupt() */
        bool closed, lost;
        struct fault cause;    /* of the end, if closed or lost */
        struct fault error;    /* of the last call */
        struct fault deferred; /* the first refusal of a request that nobody waited for */
        int64_t began_ms;      /* the last call, on wire_now()'s clock */
        zero_tell tell;        /* of waits; NULL: nobody */
        void *tell_arg;
        int64_t tell_ms;    /* when a wait is told again at the earliest */
        int64_t granted_ms; /* by when the daemon will answer, or ask for more time */

        uint64_t last_seq;
        struct pending pending[CLIENT_PENDING];
        uint64_t call_seq; /* the request that the call waits for; 0: none */
        struct arena arena;
        Zero__Reply *reply; /* to call_seq, until the next pump */

        char job[ZERO_NAME_MAX + 1]; /* empty: none */
        int32_t rank;
        uint32_t world_size, local_world_size;
        uint32_t protocol; /* of the messages */
        uint32_t timeout_ms;
        bool patient; /* the caller named no timeout: the daemon's applies, and the daemon may
                         extend it */
        uint32_t incarnation;
        bool entering;       /* attaching, for the first time or again */
        Zero__Finish finish; /* how the rank leaves the job */

        layout *layout; /* NULL: not attached */
        struct zero_needs needs;
        uint64_t version, attempt;
        double loss_scale;
        uint64_t transfer_bytes;
        struct gpu *gpu; /* the GPU with the windows; NULL: they are in host memory */
        struct mapping session, gather, serve;
        struct mapping base; /* bytes 0: none */
        uint8_t base_hash[LAYOUT_HASH];
        struct {
                struct gpu *gpu;
                void *memory; /* NULL: none */
                uint64_t bytes;
        } copy;                        /* of the base, on a GPU */
        struct zero_stash stash_needs; /* where needs.stash is a copy */
        struct stash *stash;           /* NULL: none */
        struct follow *follow;         /* of an observer; NULL: it has followed no job */
        struct mapping slots; /* of gradients, on a GPU; in host memory they are in session */
        struct views views;   /* private views */
        struct push push;
        struct group_use *groups;
        uint8_t *present; /* room for the flags of one group, any */
        uint32_t skips;   /* steps skipped in a row, as a gradient was not finite */
        struct {
                uint64_t attempt;
                uint32_t done;
        } reductions;      /* that this rank has made in the attempt */
        bool void_attempt; /* the connection was lost before an abort was reported */

        uint64_t last_attempt;       /* decided when the client attached; 0: none */
        struct zero_result last;     /* its result */
        uint8_t blob[ZERO_BLOB_MAX]; /* what this rank keeps with the last decided attempt */
        size_t blob_bytes;
};

/* ---- client.c: the end of a connection, the error of a call ---- */

/* Of the thread's last call that failed without a client: zero_connect(), zero_layout_*(), a client
 * of NULL. */
extern _Thread_local struct fault client_thread_fault;
/* The status of a call without the client that it needs. */
int client_missing(void);
/* r, or ZERO_EINVAL where a public call lacks the object. */
#define client_given(c, r, object)                                                            \
        ({                                                                                    \
                int given = (r);                                                              \
                                                                                              \
                given || (object)                                                             \
                        ? given                                                               \
                        : client_fail(c, ZERO_EINVAL, "%s(): " #object " is NULL", __func__); \
        })
/* Whether this process was forked from the client's. */
bool client_forked(const struct zero_client *c);
/* The value of what may take time: meanwhile the calls of other threads are refused. */
#define client_waiting(c, value)    \
        ({                          \
                int value_;         \
                                    \
                (c)->waits = true;  \
                value_ = (value);   \
                (c)->waits = false; \
                value_;             \
        })
/* Records the error of this call; returns its status. */
#define client_fail(c, code, ...) fault_set(&(c)->error, code, __VA_ARGS__)
/* Closes the connection; keeps the first cause.  ZERO_ECLOSED. */
#define client_shut(c, ...)                                                \
        ({                                                                 \
                if (!(c)->closed)                                          \
                        fault_set(&(c)->cause, ZERO_ECLOSED, __VA_ARGS__); \
                client_gone(c);                                            \
        })
/* The error of every call on a closed connection: ZERO_ECLOSED. */
int client_gone(struct zero_client *c);
/* The daemon is gone.  CLIENT_LOST, or as client_shut() where there is nothing to resume. */
#define client_lose(c, ...)                                                \
        ({                                                                 \
                if (!(c)->closed)                                          \
                        fault_set(&(c)->cause, ZERO_ECLOSED, __VA_ARGS__); \
                client_drop(c);                                            \
        })
int client_drop(struct zero_client *c);
/* The text of ZERO_EABORTED after a loss; takes the version as unsigned long long. */
#define CLIENT_RESUMED \
        "the connection to zerod was lost and is back: repeat the step from version %llu"
/* Tells whom a rank waits for, if its call has taken long enough. */
void client_tell(struct zero_client *c, const char *who, const char *what);
int64_t client_deadline(const struct zero_client *c);
/* Releases the reply that client_ask() gave out. */
void client_forget_reply(struct zero_client *c);
/* Reports the deferred refusal, once. */
int client_report_deferred(struct zero_client *c);
/* The client is attached as a rank, and the group exists. */
int client_check_group(struct zero_client *c, uint32_t group);

/* ---- attempt.c ---- */

/* Unmaps the group's private view, if it has one. */
int client_drop_view(struct zero_client *c, uint32_t group);
/* Begins a new attempt: what was held, pushed or about to be pushed is gone. */
void client_new_attempt(struct zero_client *c, const Zero__StepReply *step);
struct zero_result client_result(const Zero__StepReply *step);

/* ---- call.c: the conversation; CLIENT_LOST, or a status ---- */

/* ZERO_ECLOSED, ZERO_EBUSY: the conversation is another process's, or another thread waits in it.
 * Changes nothing of it. */
int client_check_caller(struct zero_client *c);
/* Begins a public call, and takes in the replies that are in the buffer.  Fails only if the
 * connection is closed or somebody else's; does not report a loss. */
int client_open(struct zero_client *c);
/* Takes in the replies that have already come. */
int client_poll(struct zero_client *c);
/* Waits for some reply, and takes in all that have come. */
int client_pump(struct zero_client *c, int64_t deadline_ms);
/* A request with the message of its kind, which stands under `member`. */
#define REQUEST(kind, member, message)                                                  \
        (&(Zero__Request){ .base = PROTOBUF_C_MESSAGE_INIT(&zero__request__descriptor), \
                           .body_case = ZERO__REQUEST__BODY_##kind,                     \
                           .member = (message) })
/* Sends a request.  Does not wait for the reply and does not report a loss.  slot: of a push,
 * otherwise PUSH_NONE. */
int client_send(struct zero_client *c, Zero__Request *request, uint32_t slot);
/* Waits until a request of client_send() is answered, or was; 0: none.  A refusal is deferred. */
int client_await(struct zero_client *c, uint64_t seq);
/* Sends and waits.  The reply is the client's, valid until its next call. */
int client_ask(struct zero_client *c, Zero__Request *request, const Zero__Reply **ret_reply);

/* ---- base.c ---- */

struct base_files;
/* Opens files, and reads all of them for their hash. */
int base_files_open(struct zero_client *c, const char *const *paths, uint32_t n,
                    struct base_files **ret);
void base_files_close(struct base_files *files);
/* Maps the base of these files.  CLIENT_LOST, or a status. */
int client_take_base(struct zero_client *c, const struct base_files *files,
                     struct zero_file *ret_files);
/* On a new connection: names the base that the client has, if it has one, and its copy. */
int client_take_base_again(struct zero_client *c);
/* Maps the copy of the base on c->copy.gpu, where it was if it was mapped.  As client_take_base().
 */
int client_take_copy(struct zero_client *c);
/* Names the client's base in a layout's message.  -ENOMEM. */
int client_name_base(const struct zero_client *c, Zero__Layout *m);

/* ---- attach.c ---- */

/*
 * Asks to join the job, as a rank or an observer (no layout).  resume: again, with what the
 * client is attached with; an abort is deferred if anything of the attempt was lost with the
 * connection.  CLIENT_LOST, or a status.
 */
int client_join(struct zero_client *c, const layout *l, const struct zero_needs *needs,
                bool resume);
/* Undoes zero_attach(). */
void client_detach(struct zero_client *c);

/* ---- connect.c ---- */

/* Connects and greets.  If the client is still lost afterwards, nobody answered there. */
int client_dial(struct zero_client *c, int64_t until_ms);

/* ---- session.c: calls that outlive a connection ---- */

/*
 * What a public call begins with.  client_begin_aborted() reports an abort, client_begin_unwaited()
 * any refusal.  Neither waits, and the connection may be lost.  client_begin() is for calls that
 * wait: it resumes, and reports any refusal.
 */
int client_begin_aborted(struct zero_client *c);
int client_begin_unwaited(struct zero_client *c);
int client_begin(struct zero_client *c);
/* After the conversation returned r: resumes, and reports as client_begin(). */
int client_go_on(struct zero_client *c, int r);
/* Connects and attaches again, until the timeout of the current call. */
int client_resume(struct zero_client *c);
/*
 * client_ask() that resumes a lost connection.  It then asks again if the request does not
 * depend on what was lost; otherwise it fails with ZERO_EABORTED.
 */
int client_call(struct zero_client *c, Zero__Request *request, const Zero__Reply **ret_reply);

/* ---- stream_order.c ---- */

/*
 * Records an event behind what is on the stream, for a request; what: the request, for people.
 * *ret_event is the name the request gives the event, 0 if there is nothing to order behind.
 * Waits while unanswered requests name all events.  If the daemon cannot open events it waits until
 * this event is done, and *ret_event is 0.
 * CLIENT_LOST, or a status, which may be that of an abort that came meanwhile.
 */
int client_record(struct zero_client *c, const struct zero_sync *sync, const char *what,
                  uint32_t *ret_event);
/* Waits until the GPU has come to what is on the stream; as client_record(). */
int client_wait_for_stream(struct zero_client *c, const struct zero_sync *sync, const char *what);

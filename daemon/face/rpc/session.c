/* A session, from its first call to its end; call.c opens one and serves its calls. */
#include "daemon/face/rpc/session.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

void session_reply(struct session *s, const Zero__Reply *reply, const int *fds, size_t n_fds)
{
        size_t n = zero__reply__get_packed_size(reply);
        int r;

        if (s->ending)
                return;
        if (n + FRAME_HEADER > s->scratch_size) {
                uint8_t *p = realloc(s->scratch, n + FRAME_HEADER);

                if (!p) { /* a client would wait for the reply */
                        conn_shutdown(s->conn, -ENOMEM);
                        return;
                }
                s->scratch = p;
                s->scratch_size = n + FRAME_HEADER;
        }
        zero__reply__pack(reply, s->scratch + FRAME_HEADER);
        r = conn_send(s->conn, s->scratch, n, fds, n_fds);
        if (r)
                conn_shutdown(s->conn, r);
}

int session_allowed(const struct session *s, const char *what, struct fault *fault)
{
        if (s->uid == 0 || s->uid == geteuid())
                return 0;
        return fault_set(fault, ZERO_EPERM, "only root and the user zerod runs as, %u, may %s",
                         (unsigned)geteuid(), what);
}

/* ---- the end ---- */

void rpc_gone(struct rpc *rpc)
{
        void (*closed)(void *arg) = rpc->closed;
        void *arg = rpc->closed_arg;

        if (rpc->handles || rpc->users.n_sessions)
                return;
        offload_watch(rpc->x->offload, NULL, NULL);
        users_deinit(&rpc->users);
        free(rpc->status);
        free(rpc->told);
        rpc->x->rpc = NULL;
        free(rpc);
        closed(arg);
}

static void session_closed(void *arg)
{
        struct session *s = arg;
        struct rpc *rpc = s->rpc;

        list_remove(&s->link);
        user_leave(&rpc->users, s->user);
        cleanup_close(&s->process);
        free(s->scratch);
        free(s);
        rpc_gone(rpc);
}

void session_end(struct session *s)
{
        struct rank *rank;

        if (s->ending)
                return;
        s->ending = true;
        while (!list_empty(&s->pending))
                request_cancel(&CONTAINER_OF(s->pending.next, struct pending_call, link)->request);
        rank = s->rank;
        s->rank = NULL;
        rank_leave(rank, s->orderly);
        base_leave(&s->base);
        push_window_unref(s->window);
        follow_leave(&s->reader);
        if (s->job)
                job_let_go(s->job);
        conn_close(s->conn, session_closed, s);
}

void session_ended(void *arg, const char *why)
{
        struct session *s = arg;

        if (why)
                log_warning_for(s->uid, "the connection of pid %d was closed: %s", (int)s->pid,
                                why);
        session_end(s);
}

void session_check(struct session *s, uint64_t now_ms)
{
        /* a hello may have come, and wait for the end of the user's debt */
        if (!s->greeted && now_ms - s->began_ms > HELLO_MS && !conn_held(s->conn))
                session_ended(s, "it sent no hello in 10 s");
        else
                conn_check(s->conn, now_ms);
}

void session_check_process(const struct session *s)
{
        struct pollfd end = { .fd = s->process, .events = POLLIN };

        if (poll(&end, 1, 0) == 1 && end.revents & POLLIN)
                conn_read_out(s->conn);
}

/* ---- what sessions share ---- */

void rpc_share(struct rpc *rpc)
{
        bool some = false, several = false;
        uid_t uid = 0;

        list_for_each (&rpc->x->jobs, item) {
                const struct job *job = CONTAINER_OF(item, struct job, link);

                if (!job->n_attached && !job_is_stepping(job))
                        continue;
                several = several || (some && job->uid != uid);
                some = true;
                uid = job->uid;
        }
        users_share(&rpc->users, some, several ? (uid_t)-1 : uid);
}

/*
 * The answer to "status", with the memory of GPUs.  Another thread asks the GPUs, because a call of
 * CUDA may wait for a lock of the driver.
 *
 * A user who asks more than STATUS_FRESH times in STATUS_MS, and any other node, gets an answer
 * that may be STATUS_MS old.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/compute/device/gpu/gpu.h"
#include "daemon/face/rpc/query.h"
#include "proto/cleanup.h"

/* LOOKS_MAX: of a user; a question that waits for a driver outlives its deadline and its session.
 */
enum { STATUS_MS = 100, STATUS_FRESH = 4, LOOKS_MAX = 64 };

struct look {
        struct blocking_work job;
        struct rpc *rpc;
        struct pending_call *call; /* NULL once it has ended */
        struct gpu_use_now gpus[];
};

static void status_answer(struct rpc *rpc, struct pending_call *call,
                          const struct gpu_use_now *gpus)
{
        struct arena arena = { NULL };
        struct status_node status;

        report_node(&arena, rpc->x, rpc->started_ms, gpus, &status);
        free(rpc->status);
        rpc->status = query_text(record_take_json(status_node_type(), &status, &arena));
        rpc->status_ms = uv_now(rpc->x->loop);
        query_end_text(call, rpc->status ? strdup(rpc->status) : NULL);
}

/* True: answered the call with the latest answer. */
static bool status_again(struct rpc *rpc, struct pending_call *call)
{
        struct user *user = call->session->user;
        uint64_t now = uv_now(rpc->x->loop);

        if (now - user->asked_ms >= STATUS_MS) {
                user->asked_ms = now;
                user->asked = 0;
        }
        if (user->privileged || user->asked++ < STATUS_FRESH || !rpc->status ||
            now - rpc->status_ms >= STATUS_MS)
                return false;
        query_end_text(call, strdup(rpc->status));
        return true;
}

static void look_run(struct blocking_work *job)
{
        gpus_use_now(CONTAINER_OF(job, struct look, job)->gpus);
}

static void look_done(struct blocking_work *job)
{
        struct look *l = CONTAINER_OF(job, struct look, job);

        if (l->call)
                status_answer(l->rpc, l->call, l->gpus);
        free(l);
}

static void look_forget(struct request *r)
{
        struct look *l = r->subject;

        l->call = NULL;
}

static int look_describe(const struct request *r, struct wait_line *ret)
{
        snprintf(ret->who, sizeof ret->who, "the GPUs");
        snprintf(ret->what, sizeof ret->what, "how much of their memory is free");
        return ZERO_EDEADLINE;
}

int status_query(struct pending_call *call, const char *what, const char *argument,
                 struct fault *fault)
{
        struct rpc *rpc = call->session->rpc;
        uint32_t n = gpus_count(), uid = call->session->user->uid;
        struct look *l;

        if (status_again(rpc, call))
                return 0;
        if (n == 0) {
                status_answer(rpc, call, NULL);
                return 0;
        }
        if (blocking_waits(rpc->x->blocking, LANE_LOOKS, uid) >= LOOKS_MAX)
                return fault_set(fault, ZERO_EBUSY,
                                 "%d questions of user %u wait for the GPUs to say how much of "
                                 "their memory is "
                                 "free: ask again; if that lasts, the driver hangs: zeroctl doctor "
                                 "tells for how long",
                                 LOOKS_MAX, uid);
        l = calloc(1, sizeof *l + n * sizeof l->gpus[0]);
        if (!l)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        l->job = (struct blocking_work){ .run = look_run,
                                         .done = look_done,
                                         .what = "to see the GPUs' free memory",
                                         .uid = uid };
        l->rpc = rpc;
        l->call = call;
        call->request.subject = l;
        call->request.describe = look_describe;
        call->request.forget = look_forget;
        blocking_submit(rpc->x->blocking, LANE_LOOKS, &l->job);
        return 0;
}

/* For another node: without what only a driver, or a session, knows.  NULL: out of memory. */
static char *told_make(struct engine *x)
{
        CLEANUP(cleanup_free)
        struct gpu_use_now *gpus = calloc(gpus_count() + 1, sizeof *gpus);
        struct arena arena = { NULL };
        struct status_node status;

        if (!gpus)
                return NULL;
        report_node(&arena, x, 0, gpus, &status);
        status.uptime_s = NAN;
        status.gpus.n = 0;
        return query_text(record_take_json(status_node_type(), &status, &arena));
}

void status_question(struct engine *x, struct job *job, uint32_t node, const Zero__LinkMessage *m)
{
        struct rpc *rpc = x->rpc;
        uint64_t now = uv_now(x->loop);

        if (!rpc) {
                answer(x, node, m, ZERO_EPEER, "the node stops");
                return;
        }
        if (!rpc->told || now - rpc->told_ms >= STATUS_MS) {
                free(rpc->told);
                rpc->told = told_make(x);
                rpc->told_ms = now;
        }
        query_answer_text(x, node, m->call, rpc->told);
}

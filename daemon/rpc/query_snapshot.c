/*
 * Checkpoints and restores as clients ask for them: the question goes to the node that coordinates
 * the job, which answers at once; how it goes on is asked with "progress".
 *
 * What a client says is taken apart here and put together anew with the user that it is: nodes
 * believe each other, not clients.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/checkpoint/checkpoint.h"
#include "daemon/rpc/report.h"
#include "daemon/rpc/session.h"
#include "proto/cleanup.h"

enum { ARGUMENT_MAX = 16384, EVERY_MAX = 1000000000 };

DEFINE_CLEANUP(json_t *, json_decref)

/* What is asked for; strings lie in `json`. */
struct wish {
        json_t *json;
        struct order order;
        bool periodic;
        uint64_t every;
};

static bool take_number(const json_t *j, const char *key, uint64_t most, uint64_t *ret)
{
        const json_t *n = json_object_get(j, key);

        if (!n)
                return true;
        if (!json_is_integer(n) || json_integer_value(n) < 0 ||
            (uint64_t)json_integer_value(n) > most)
                return false;
        *ret = (uint64_t)json_integer_value(n);
        return true;
}

static int wish_parse(const char *argument, struct wish *ret, struct fault *fault)
{
        uint64_t keep = 0, uid = UINT32_MAX;

        *ret = (struct wish){ .json = NULL };
        if (strlen(argument) < ARGUMENT_MAX)
                ret->json = json_loads(argument, JSON_REJECT_DUPLICATES, NULL);
        ret->order.job = json_string_value(json_object_get(ret->json, "job"));
        ret->order.directory = json_string_value(json_object_get(ret->json, "directory"));
        ret->periodic = json_object_get(ret->json, "every") != NULL;
        if (!ret->order.job || !ret->order.directory || !job_name_valid(ret->order.job) ||
            !take_number(ret->json, "keep", UINT32_MAX, &keep) ||
            !take_number(ret->json, "uid", UINT32_MAX, &uid) ||
            !take_number(ret->json, "every", EVERY_MAX, &ret->every)) {
                json_decref(STEAL(ret->json));
                return fault_set(fault, ZERO_EINVAL,
                                 "the question names \"job\" and \"directory\" as JSON");
        }
        ret->order.keep = (uint32_t)keep;
        ret->order.uid = (uint32_t)uid;
        return 0;
}

/* ---- a client's question ---------------------------------------------------------------- */

struct forward {
        struct pending_call *call; /* NULL once it has ended */
        uint32_t uid;
};

static void forward_forget(struct request *r)
{
        struct forward *f = r->subject;

        f->call = NULL;
}

static int forward_describe(const struct request *r, struct wait_line *ret)
{
        snprintf(ret->who, sizeof ret->who, "the job's coordinator");
        snprintf(ret->what, sizeof ret->what, "its answer");
        return ZERO_EDEADLINE;
}

static void forward_answered(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        struct forward *f = arg;
        struct pending_call *call = f->call;
        json_t *j = NULL;

        if (status == ZERO_OK && m && m->body_case == ZERO__LINK_MESSAGE__BODY_QUERY_REPLY)
                j = json_loads(m->query_reply->json, 0, NULL);
        if (!call)
                json_decref(j);
        else if (status)
                request_end(&call->request, status, "%s", text);
        else if (!j)
                request_end(&call->request, ZERO_EPROTO, "the coordinator's answer is no JSON");
        else
                query_end(call, j);
        free(f);
}

static int forward(struct pending_call *call, const char *what, const char *job, json_t *question,
                   struct fault *fault)
{
        struct exchange *x = call->session->rpc->x;
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        Zero__Query query = ZERO__QUERY__INIT;
        struct forward *f = calloc(1, sizeof *f);
        CLEANUP(cleanup_free) char *argument = NULL;

        json_object_set_new(question, "uid", json_integer((json_int_t)call->session->uid));
        argument = json_dumps(question, JSON_COMPACT);
        if (!f || !argument) {
                free(f);
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        f->call = call;
        call->request.subject = f;
        call->request.describe = forward_describe;
        call->request.forget = forward_forget;
        query.what = (char *)what;
        query.argument = argument;
        m.job = (char *)job;
        m.body_case = ZERO__LINK_MESSAGE__BODY_QUERY;
        m.query = &query;
        call_send(x, coordinator_of(x, job), &m, call->session->timeout_ms, forward_answered, f);
        return 0;
}

int snapshot_query(struct pending_call *call, const char *what, const char *argument,
                   struct fault *fault)
{
        CLEANUP(cleanup_json_decref) json_t *question = NULL;
        struct wish wish;
        int r;

        if (strcmp(what, "progress") == 0) {
                question = json_object();
                return job_name_valid(argument) ? forward(call, what, argument, question, fault)
                                                : fault_set(fault, ZERO_EINVAL, "name a job");
        }
        r = wish_parse(argument, &wish, fault);
        question = wish.json;
        return r ? r : forward(call, what, wish.order.job, question, fault);
}

bool snapshot_is_query(const char *what)
{
        return strcmp(what, "checkpoint") == 0 || strcmp(what, "restore") == 0 ||
               strcmp(what, "progress") == 0;
}

/* ---- a node's question --------------------------------------------------------------------- */

static void schedule_report(const struct schedule *s, json_t *j)
{
        json_object_set_new(j, "every", json_integer((json_int_t)s->every));
        json_object_set_new(j, "next_version", json_integer((json_int_t)s->next_version));
        json_object_set_new(j, "periodic_directory", json_string(s->directory));
}

static void operation_times(const struct operation *op, json_t *j)
{
        uint64_t stall_us = 0, copy_us = 0, buffer = 0, until = op->ended_ms;

        for (uint32_t i = 0; i < ZERO_NODE_MAX; i++) {
                const struct part *part = &op->parts[i];

                stall_us = part->stall_us > stall_us ? part->stall_us : stall_us;
                copy_us = part->copy_us > copy_us ? part->copy_us : copy_us;
                buffer += part->buffer;
        }
        if (!until)
                until = exchange_now(op->x);
        json_object_set_new(j, "buffer_bytes", json_integer((json_int_t)buffer));
        json_object_set_new(j, "predicted_stall_s",
                            stall_us ? json_real((double)stall_us / 1e6) : json_null());
        json_object_set_new(j, "copy_s", copy_us ? json_real((double)copy_us / 1e6) : json_null());
        json_object_set_new(j, "elapsed_s", json_real((double)(until - op->begun_ms) / 1000));
}

static void operation_report(const struct operation *op, json_t *j)
{
        char path[4096];

        snprintf(path, sizeof path, "%s/%s-%llu", op->directory, op->job,
                 (unsigned long long)op->manifest.version);
        json_object_set_new(j, "operation", json_string(op->restore ? "restore" : "checkpoint"));
        json_object_set_new(j, "id", json_integer((json_int_t)op->id));
        json_object_set_new(j, "phase", json_string(operation_phase_name(op->phase)));
        json_object_set_new(
                j, "over",
                json_boolean(op->phase == OPERATION_DONE || op->phase == OPERATION_FAILED));
        json_object_set_new(j, "path", json_string(op->restore ? op->directory : path));
        json_object_set_new(j, "version", json_integer((json_int_t)op->manifest.version));
        json_object_set_new(j, "bytes", json_integer((json_int_t)operation_bytes(op)));
        json_object_set_new(j, "done_bytes", json_integer((json_int_t)operation_done_bytes(op)));
        operation_times(op, j);
        json_object_set_new(j, "status", json_string(zero_status_name(op->fault.status)));
        json_object_set_new(j, "error", json_string(op->fault.status ? op->fault.text : ""));
}

static int progress_report(const struct exchange *x, const char *job, uint32_t uid, json_t **ret,
                           struct fault *fault)
{
        const struct operation *op = operation_find(x, job);
        const struct schedule *s = schedule_find(x, job);
        json_t *j;

        if (!op && !s)
                return fault_set(fault, ZERO_ENOJOB,
                                 "no checkpoint or restore of job '%.100s' was begun", job);
        if (uid != 0 && uid != (op ? op->uid : s->uid))
                return fault_set(fault, ZERO_EPERM, "another user began it");
        j = json_object();
        json_object_set_new(j, "job", json_string(job));
        if (op)
                operation_report(op, j);
        if (s)
                schedule_report(s, j);
        *ret = j;
        return 0;
}

static int order_carry_out(struct exchange *x, const char *what, const struct wish *wish,
                           json_t **ret, struct fault *fault)
{
        const struct order *order = &wish->order;
        uint64_t id = 0;
        int r;

        if (strcmp(what, "restore") == 0)
                r = restore_order(x, order, &id, fault);
        else if (wish->periodic)
                r = checkpoint_schedule(x, order, wish->every, fault);
        else
                r = checkpoint_order(x, order, &id, fault);
        if (r)
                return r;
        *ret = json_object();
        json_object_set_new(*ret, "job", json_string(order->job));
        json_object_set_new(*ret, "directory", json_string(order->directory));
        json_object_set_new(*ret, "id", json_integer((json_int_t)id));
        if (wish->periodic && schedule_find(x, order->job))
                schedule_report(schedule_find(x, order->job), *ret);
        return 0;
}

void snapshot_question(struct exchange *x, uint32_t node, const Zero__LinkMessage *m)
{
        const char *what = m->query->what;
        CLEANUP(cleanup_json_decref) json_t *argument = NULL;
        json_t *reply = NULL;
        struct fault fault;
        struct wish wish;
        uint64_t uid = UINT32_MAX;
        int r;

        if (!job_name_valid(m->job) || coordinator_of(x, m->job) != x->cluster->self) {
                answer(x, node, m, ZERO_EPROTO, "this node does not coordinate that job");
                return;
        }
        if (strcmp(what, "progress") == 0) {
                argument = json_loads(m->query->argument, 0, NULL);
                r = take_number(argument, "uid", UINT32_MAX, &uid)
                            ? progress_report(x, m->job, (uint32_t)uid, &reply, &fault)
                            : fault_set(&fault, ZERO_EPROTO, "malformed question");
        } else {
                r = wish_parse(m->query->argument, &wish, &fault);
                argument = wish.json;
                if (!r)
                        r = order_carry_out(x, what, &wish, &reply, &fault);
        }
        if (r)
                answer(x, node, m, r, fault.text);
        else
                query_answer(x, node, m->call, reply);
}

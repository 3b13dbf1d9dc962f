/*
 * Ends a question with JSON, for a client or for another node.  Where that may take megabytes a
 * compute thread makes the text.
 */
#include "daemon/face/rpc/query.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

char *query_text(json_t *json)
{
        char *text = json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(17));

        json_decref(json);
        return text;
}

void query_end_text(struct pending_call *call, char *text)
{
        call->json = call->request.result.query.json = text;
        if (text)
                request_end(&call->request, ZERO_OK, NULL);
        else
                request_end(&call->request, ZERO_ENOMEM, "out of memory");
}

void query_end(struct pending_call *call, json_t *json)
{
        query_end_text(call, query_text(json));
}

void query_end_record(struct pending_call *call, const struct record_type *type, const void *record,
                      struct arena *arena)
{
        query_end(call, record_take_json(type, record, arena));
}

void query_answer_text(struct engine *x, uint32_t node, uint64_t call, char *text)
{
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        Zero__QueryReply reply = ZERO__QUERY_REPLY__INIT;

        reply.json = text;
        m.answer = call;
        if (!reply.json) {
                m.status = ZERO_ENOMEM;
        } else {
                m.body_case = ZERO__LINK_MESSAGE__BODY_QUERY_REPLY;
                m.query_reply = &reply;
        }
        fabric_send(x->fabric, node, &m);
}

void query_answer(struct engine *x, uint32_t node, uint64_t call, json_t *json)
{
        char *text = query_text(json);

        query_answer_text(x, node, call, text);
        free(text);
}

void query_answer_record(struct engine *x, uint32_t node, uint64_t call,
                         const struct record_type *type, const void *record, struct arena *arena)
{
        query_answer(x, node, call, record_take_json(type, record, arena));
}

/* ---- on a compute thread ----------------------------------------------------------------- */

/* A record on its way to text; it points to nothing of a job. */
struct writing {
        struct offload_task task;
        struct engine *x;
        const struct record_type *type;
        void *record; /* in the arena */
        struct arena arena;
        char *text;
        struct pending_call *call; /* NULL once it has ended, or of a node's question */
        struct user *user;         /* whose survey ends with the text; NULL: a node's question */
        uint32_t node;
        uint64_t node_call;
};

static void write_run(struct offload_task *task, uint32_t worker)
{
        struct writing *w = CONTAINER_OF(task, struct writing, task);

        w->text = query_text(record_take_json(w->type, w->record, &w->arena));
}

static void write_done(struct offload_task *task)
{
        struct writing *w = CONTAINER_OF(task, struct writing, task);

        if (w->call)
                query_end_text(w->call, STEAL(w->text));
        else if (!w->user)
                query_answer_text(w->x, w->node, w->node_call, w->text);
        if (w->user)
                user_answered(w->user, true);
        free(w->text);
        free(w);
}

static void write_forget(struct request *r)
{
        struct writing *w = r->subject;

        w->call = NULL;
}

static int write_describe(const struct request *r, struct wait_line *ret)
{
        snprintf(ret->who, sizeof ret->who, "the compute threads");
        snprintf(ret->what, sizeof ret->what, "this user's turn to have an answer written");
        return ZERO_EDEADLINE;
}

/* Takes the arena over.  NULL: out of memory. */
static struct writing *writing_new(struct engine *x, const struct record_type *type,
                                   const void *record, struct arena *arena)
{
        void *copy = arena_new(arena, type->size);
        struct writing *w = copy ? calloc(1, sizeof *w) : NULL;

        if (!w) {
                arena_deinit(arena);
                return NULL;
        }
        memcpy(copy, record, type->size);
        w->task.run = write_run;
        w->task.done = write_done;
        w->x = x;
        w->type = type;
        w->record = copy;
        w->arena = *arena;
        return w;
}

void query_write(struct pending_call *call, struct user *user, const struct record_type *type,
                 const void *record, struct arena *arena)
{
        struct engine *x = call->session->rpc->x;
        struct writing *w = writing_new(x, type, record, arena);

        if (!w) {
                query_end_text(call, NULL);
                user_answered(user, true);
                return;
        }
        w->user = user;
        w->call = call;
        call->request.subject = w;
        call->request.describe = write_describe;
        call->request.forget = write_forget;
        offload_submit(x->offload, OFFLOAD_READ, user->uid, &w->task);
}

void query_answer_write(struct job *job, uint32_t node, uint64_t call,
                        const struct record_type *type, const void *record, struct arena *arena)
{
        struct writing *w = writing_new(job->x, type, record, arena);

        if (!w) {
                query_answer_text(job->x, node, call, NULL);
                return;
        }
        w->node = node;
        w->node_call = call;
        job_compute(job, OFFLOAD_READ, &w->task);
}

/* ---- answers of nodes --------------------------------------------------------------------- */

static const char *reply_text(int status, const Zero__LinkMessage *m)
{
        bool told = status == ZERO_OK && m && m->body_case == ZERO__LINK_MESSAGE__BODY_QUERY_REPLY;

        return told ? m->query_reply->json : "";
}

json_t *query_reply(int status, const Zero__LinkMessage *m)
{
        return json_loads(reply_text(status, m), 0, NULL);
}

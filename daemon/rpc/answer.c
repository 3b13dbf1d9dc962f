/* Ends a question with JSON, for a client or for another node. */
#include "daemon/rpc/query.h"

#include <stdlib.h>
#include <string.h>

char *query_text(json_t *json)
{
        char *text = json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(17));

        json_decref(json);
        return text;
}

void query_end_text(struct pending_call *call, char *text)
{
        call->json = text;
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

static const char *reply_text(int status, const Zero__LinkMessage *m)
{
        bool told = status == ZERO_OK && m && m->body_case == ZERO__LINK_MESSAGE__BODY_QUERY_REPLY;

        return told ? m->query_reply->json : "";
}

json_t *query_reply(int status, const Zero__LinkMessage *m)
{
        return json_loads(reply_text(status, m), 0, NULL);
}

size_t query_bytes(int status, const Zero__LinkMessage *m)
{
        return strlen(reply_text(status, m));
}

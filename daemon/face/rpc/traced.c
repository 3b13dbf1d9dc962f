/*
 * What took time lately on all nodes of a job, and what still waits.
 *
 * The events of a node are one text: this node passes those of others on as they came, since
 * its loop must not parse a million of them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/face/rpc/query.h"
#include "daemon/job/core/progress.h"
#include "proto/cleanup.h"

enum { LINE_MAX_BYTES = 128 };

/* ---- of all nodes ---- */

json_t *traces_together(const struct engine *x, const struct traced_answer *answers)
{
        struct arena arena = { NULL };
        struct status_trace all = { .nodes = { 0 } };

        for (uint32_t n = 0; n < x->cluster->n_nodes; n++) {
                struct status_traced_here here;
                struct status_traced_node *node;

                if (!answers[n].told ||
                    !record_from_json(status_traced_here_type(), answers[n].told, &arena, &here) ||
                    !(node = LIST_ADD(&arena, &all.nodes)))
                        continue;
                node->node = node_name(x, n);
                /* the node's clock, less this one's when the question came there */
                if (n != x->cluster->self)
                        node->ahead_s = ((double)here.now_ns - (double)answers[n].asked_ns -
                                         (double)answers[n].took_ns / 2) /
                                        1e9;
                node->within_s = (double)answers[n].took_ns / 2e9;
                node->events = here.events;
                node->waits.n = here.waits.n;
                node->waits.items = here.waits.items;
        }
        return record_take_json(status_trace_type(), &all, &arena);
}

/* ---- of this node ---- */

/* "fetch 0 3 17 123456 789": what, who, group (or -), version, begin and duration in microseconds.
 * NULL: out of memory. */
static char *trace_text(const struct progress *p)
{
        uint64_t n = p->n_traced < TRACE_MAX ? p->n_traced : TRACE_MAX;
        char *text = malloc(n * LINE_MAX_BYTES + 1), *end = text;

        if (!text)
                return NULL;
        *end = 0;
        for (uint64_t i = p->n_traced - n; i < p->n_traced; i++) {
                const struct traced *t = &p->trace[i % TRACE_MAX];
                char group[16] = "-";

                if (t->group != NO_GROUP)
                        snprintf(group, sizeof group, "%u", t->group);
                end += snprintf(end, LINE_MAX_BYTES, "%s %u %s %llu %llu %llu;",
                                wait_names[t->what], t->who, group, (unsigned long long)t->version,
                                (unsigned long long)(t->begun_ns / 1000),
                                (unsigned long long)(t->took_ns / 1000));
        }
        return text;
}

static void trace_wait(struct arena *arena, const struct request *r, struct status_traced_here *ret)
{
        struct status_traced_wait *wait = LIST_ADD(arena, &ret->waits);
        struct wait_line line = { "" };

        if (!wait)
                return;
        r->describe(r, &line);
        wait->call = wait_names[r->traced.what];
        wait->rank = r->traced.rank;
        wait->group = r->traced.group == NO_GROUP ? RECORD_NULL : r->traced.group;
        wait->who = arena_copy(arena, line.who);
        wait->what = arena_copy(arena, line.what);
        wait->begun_ns = r->traced.begun_ns;
}

void trace_question(struct engine *x, struct job *job, uint32_t node, const Zero__LinkMessage *m)
{
        CLEANUP(cleanup_free) char *events = trace_text(job->progress);
        struct arena arena = { NULL };
        struct status_traced_here here = { .now_ns = uv_hrtime(), .events = events };

        list_for_each (&x->requests.all, item) {
                const struct request *r = CONTAINER_OF(item, struct request, deadline);

                if (r->traced.job == job && r->describe)
                        trace_wait(&arena, r, &here);
        }
        query_answer_record(x, node, m->call, status_traced_here_type(), &here, &arena);
}

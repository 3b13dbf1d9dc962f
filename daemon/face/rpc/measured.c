/* What the nodes measure of themselves: the answer of this node, and all answers combined. */
#include <math.h>
#include <stdlib.h>

#include "daemon/cluster/measure/measure.h"
#include "daemon/face/rpc/query.h"

struct question {
        struct engine *x;
        uint32_t node;
        uint64_t call;
};

/* ---- of all nodes ---- */

json_t *measured_together(const struct engine *x, json_t *const *told)
{
        struct arena arena = { NULL };
        struct status_measured all = { .nodes = { 0 } };

        for (uint32_t n = 0; n < x->cluster->n_nodes; n++) {
                struct status_measured_node *node = LIST_ADD(&arena, &all.nodes);

                if (!node)
                        break;
                node->node = node_name(x, n);
                node->here = arena_new(&arena, sizeof *node->here);
                if (node->here && told[n])
                        record_from_json(status_measured_here_type(), told[n], &arena, node->here);
        }
        return record_take_json(status_measured_type(), &all, &arena);
}

/* ---- of this node ---- */

static void refuse(const struct question *q, int status, const char *text)
{
        Zero__LinkMessage m = job_message("");

        m.call = q->call;
        answer(q->x, q->node, &m, status, text);
}

static void measured(void *arg, int status, const char *text, const struct measured *measured)
{
        struct arena arena = { NULL };
        struct question *q = arg;
        struct status_measured_here here = { .bytes_per_s = NAN };

        if (status) {
                refuse(q, status, text);
                free(q);
                return;
        }
        here.bytes_per_s = measured->bytes_per_s;
        for (uint32_t n = 0; n < q->x->cluster->n_nodes; n++) {
                struct status_measured_link *link =
                        measured->from[n] > 0 ? LIST_ADD(&arena, &here.links) : NULL;

                if (!link)
                        continue;
                link->from = node_name(q->x, n);
                link->bytes_per_s = measured->from[n];
        }
        query_answer_record(q->x, q->node, q->call, status_measured_here_type(), &here, &arena);
        free(q);
}

void measure_question(struct engine *x, struct job *job, uint32_t node, const Zero__LinkMessage *m)
{
        struct question *q = malloc(sizeof *q);
        struct fault fault;

        if (!q) {
                answer(x, node, m, ZERO_ENOMEM, "out of memory");
                return;
        }
        *q = (struct question){ x, node, m->call };
        if (measure_start(x, m->query->argument, measured, q, &fault)) {
                refuse(q, fault.status, fault.text);
                free(q);
        }
}

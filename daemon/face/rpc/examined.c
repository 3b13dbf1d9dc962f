/* What each node finds wrong with itself; the nodes' versions and clocks compared. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/cluster/doctor/doctor.h"
#include "daemon/face/rpc/query.h"

enum { CLOCKS_DIFFER_S = 1 };

/* ---- of all nodes ---- */

static void add(struct arena *arena, struct status_examined_node *node, const char *check,
                enum finding_state state, const char *found, const char *advice)
{
        struct status_finding *finding = LIST_ADD(arena, &node->findings);

        if (finding)
                *finding = (struct status_finding){ check, finding_states[state], found, advice };
}

/* A list out of JSON has no room to grow, so its items are copied. */
static void add_told(struct arena *arena, struct status_examined_node *node,
                     const struct status_examined_here *here)
{
        for (uint32_t i = 0; i < here->findings.n; i++) {
                struct status_finding *finding = LIST_ADD(arena, &node->findings);

                if (finding)
                        *finding = here->findings.items[i];
        }
}

static void compare(struct arena *arena, const struct examined_answer *answer,
                    const struct status_examined_here *here, struct status_examined_node *node)
{
        double ahead = here->clock_s - answer->clock_s;

        if (fabs(ahead) > CLOCKS_DIFFER_S + answer->within_s)
                add(arena, node, "clock", FINDING_WARNING,
                    arena_text(arena, "%.1f s %s the clock of the node that was asked", fabs(ahead),
                               ahead > 0 ? "ahead of" : "behind"),
                    "let chrony or systemd-timesyncd set the clocks: times in logs cannot be "
                    "compared");
        else
                add(arena, node, "clock", FINDING_FINE, "", "");
        if (!here->version || strcmp(here->version, ZEROD_VERSION) != 0)
                add(arena, node, "version", FINDING_WARNING,
                    arena_text(arena, "%s, but %s on the node that was asked", here->version,
                               ZEROD_VERSION),
                    "finish the upgrade: what is new waits until all nodes have it");
        else
                add(arena, node, "version", FINDING_FINE, here->version, "");
}

json_t *examined_together(const struct engine *x, const struct examined_answer *answers)
{
        struct arena arena = { NULL };
        struct status_examined all = { .nodes = { 0 } };

        for (uint32_t n = 0; n < x->cluster->n_nodes; n++) {
                struct status_examined_node *node = LIST_ADD(&arena, &all.nodes);
                struct status_examined_here here = { NULL };

                if (!node)
                        break;
                node->node = node_name(x, n);
                if (answers[n].told &&
                    record_from_json(status_examined_here_type(), answers[n].told, &arena, &here)) {
                        add_told(&arena, node, &here);
                        compare(&arena, &answers[n], &here, node);
                } else {
                        add(&arena, node, "answer", FINDING_ERROR, "the node did not answer",
                            "see that zerod runs there, and what its log says");
                }
        }
        return record_take_json(status_examined_type(), &all, &arena);
}

/* ---- of this node ---- */

struct question {
        struct engine *x;
        uint32_t node;
        uint64_t call;
        double clock_s;
};

static void examined(void *arg, const struct findings *findings)
{
        struct question *q = arg;
        struct arena arena = { NULL };
        struct status_examined_here here = { .version = ZEROD_VERSION, .clock_s = q->clock_s };

        for (unsigned i = 0; i < findings->n; i++) {
                const struct finding *found = &findings->items[i];
                struct status_finding *finding = LIST_ADD(&arena, &here.findings);

                if (finding)
                        *finding =
                                (struct status_finding){ found->check, finding_states[found->state],
                                                         found->found, found->advice };
        }
        query_answer_record(q->x, q->node, q->call, status_examined_here_type(), &here, &arena);
        free(q);
}

void examine_question(struct engine *x, struct job *job, uint32_t node, const Zero__LinkMessage *m)
{
        struct question *q = malloc(sizeof *q);
        struct timespec now;

        clock_gettime(CLOCK_REALTIME, &now);
        if (q)
                *q = (struct question){ x, node, m->call,
                                        (double)now.tv_sec + (double)now.tv_nsec / 1e9 };
        if (!q || doctor_start(x, examined, q)) {
                free(q);
                answer(x, node, m, ZERO_ENOMEM, "out of memory");
        }
}

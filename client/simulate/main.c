/*
 * zerod-simulate: reads a description from standard input, simulates, and writes what it has
 * counted to standard output, as JSON.  zeroctl simulate starts it.
 *
 * Exit status: 0; 1, and a sentence on standard error; 2: it takes no arguments.
 */
#include <assert.h>
#include <jansson.h>
#include <stdlib.h>

#include "client/simulate/simulate.h"

enum { IN_FULL = 4 }; /* nodes whose incoming messages are simulated */

static json_t *number(uint64_t n)
{
        return json_integer((json_int_t)n);
}

static json_t *seconds(uint64_t from, uint64_t to)
{
        return json_real((double)(to - from) / 1e9);
}

static uint64_t sum(const uint64_t counts[KINDS])
{
        uint64_t n = 0;

        for (uint32_t k = 0; k < KINDS; k++)
                n += counts[k];
        return n;
}

static json_t *counts_json(const uint64_t counts[KINDS])
{
        json_t *j = json_object();

        for (uint32_t k = 0; k < KINDS; k++)
                if (counts[k])
                        json_object_set_new(j, kind_names[k], number(counts[k]));
        return j;
}

/* ---- counts ------------------------------------------------------------------------------ */

static struct tally total(const struct tally *tallies, uint32_t nodes)
{
        struct tally all = { 0 };

        for (uint32_t n = 0; n < nodes; n++)
                for (uint32_t k = 0; k < KINDS; k++) {
                        all.sent[k] += tallies[n].sent[k];
                        all.received[k] += tallies[n].received[k];
                }
        for (uint32_t k = 0; k < KINDS; k++)
                assert(all.sent[k] == all.received[k]);
        return all;
}

/* The node whose loop has most to do. */
static uint32_t busiest(const struct tally *tallies, uint32_t nodes)
{
        uint32_t most = 0;

        for (uint32_t n = 0; n < nodes; n++)
                if (sum(tallies[n].sent) + sum(tallies[n].received) >
                    sum(tallies[most].sent) + sum(tallies[most].received))
                        most = n;
        return most;
}

static json_t *messages_json(const struct description *d, const struct tally *tallies)
{
        const struct tally all = total(tallies, d->nodes), *most;
        uint32_t node = busiest(tallies, d->nodes);
        json_t *nodes = json_array();

        most = &tallies[node];
        for (uint32_t n = 0; n < d->nodes && d->nodes <= ZERO_NODE_MAX; n++)
                json_array_append_new(nodes,
                                      json_pack("{s:o, s:o}", "sent", counts_json(tallies[n].sent),
                                                "received", counts_json(tallies[n].received)));
        return json_pack("{s:o, s:f, s:o, s:{s:I, s:o, s:o}, s:o}", "total", number(sum(all.sent)),
                         "per_node", (double)sum(all.sent) / d->nodes, "kinds",
                         counts_json(all.sent), "most", "node", (json_int_t)node, "sent",
                         counts_json(most->sent), "received", counts_json(most->received), "nodes",
                         nodes);
}

/* ---- nodes in full ----------------------------------------------------------------------- */

static json_t *incast_json(const struct incast *i)
{
        return json_pack("{s:I, s:I, s:s}", "senders", (json_int_t)i->senders, "node",
                         (json_int_t)i->node, "kind", i->senders ? kind_names[i->kind] : "");
}

/* The node with most messages, the first owner, which every group's order of offers may begin with,
 * and some that the seed chooses. */
static json_t *in_full(struct world *w, const struct tally *tallies, struct incast *most)
{
        uint32_t nodes[IN_FULL] = { busiest(tallies, w->d->nodes), 0 };
        json_t *list = json_array();

        for (uint32_t i = 2; i < IN_FULL; i++)
                nodes[i] = (uint32_t)world_random(w, w->d->nodes);
        for (uint32_t i = 0; i < IN_FULL; i++) {
                struct burst b;

                if (burst_run(w, nodes[i], &b)) {
                        json_decref(list);
                        return NULL;
                }
                if (b.incast.senders > most->senders)
                        *most = b.incast;
                json_array_append_new(
                        list, json_pack("{s:I, s:I, s:I, s:o}", "node", (json_int_t)nodes[i],
                                        "offers", (json_int_t)b.offers, "pulls",
                                        (json_int_t)b.pulls, "incast", incast_json(&b.incast)));
        }
        return list;
}

/* ---- all of it --------------------------------------------------------------------------- */

/* The steps differ in nothing but their times. */
static bool steps_agree(const struct world *w)
{
        for (uint32_t p = 2; p < PHASES; p++)
                for (uint32_t n = 0; n < w->d->nodes; n++)
                        for (uint32_t k = 0; k < KINDS; k++)
                                if (w->tallies[p][n].sent[k] != w->tallies[1][n].sent[k] ||
                                    w->tallies[p][n].received[k] != w->tallies[1][n].received[k])
                                        return false;
        return true;
}

static json_t *answer(struct world *w)
{
        const struct description *d = w->d;
        struct tally *step = w->tallies[STEPS];
        struct incast incast = w->incast;
        json_t *full;
        uint32_t most;

        assert(steps_agree(w));
        traffic_count(d, step);
        most = busiest(step, d->nodes);
        full = in_full(w, step, &incast);
        if (!full)
                return NULL;
        return json_pack("{s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:f}", "nodes",
                         (json_int_t)d->nodes, "ranks", (json_int_t)d->nodes * d->ranks,
                         "coordinator", (json_int_t)w->coordinator, "version",
                         (json_int_t)w->nodes[0].version, "opening",
                         messages_json(d, w->tallies[0]), "step", messages_json(d, step), "incast",
                         incast_json(&incast), "in_full", full, "opening_s",
                         seconds(w->began[0], w->told[0]), "decision_s",
                         seconds(w->began[STEPS], w->told[STEPS]), "done_s",
                         seconds(w->began[STEPS], w->ended[STEPS]), "loop_s",
                         (double)(sum(step[most].sent) + sum(step[most].received)) *
                                 (double)d->message / 1e9);
}

static int run(const struct description *d)
{
        struct world w;
        json_t *said = NULL;
        int r = world_init(&w, d);

        if (r)
                fault_errno(&w.fault, r, "the simulation");
        else if (!world_run(&w) && !(said = answer(&w)))
                fault_set(&w.fault, ZERO_ENOMEM, "out of memory");
        if (said)
                r = json_dumpf(said, stdout, JSON_INDENT(1)) || putchar('\n') == EOF ||
                    fflush(stdout);
        else
                fprintf(stderr, "zerod-simulate: %s\n", w.fault.text);
        if (said && r)
                perror("zerod-simulate: standard output");
        r = r || !said;
        json_decref(said);
        world_deinit(&w);
        return r;
}

int main(int argc, char **argv)
{
        struct description d;
        struct fault fault;
        int r;

        if (argc > 1) {
                fprintf(stderr,
                        "%s takes no arguments: it reads a description from standard "
                        "input; see zeroctl simulate --help\n",
                        argv[0]);
                return 2;
        }
        if (description_read(stdin, &d, &fault)) {
                fprintf(stderr, "zerod-simulate: %s\n", fault.text);
                return 1;
        }
        r = run(&d);
        description_free(&d);
        return r;
}

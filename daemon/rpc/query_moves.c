/*
 * How far jobs are on their way to where the owner list has them.
 *
 * Each node tells of the jobs that it coordinates, and names those of which it has states of an
 * earlier list.  It is over when every node of the list has come with it, and nothing of an earlier
 * one is left on a node that is there.
 */
#include <string.h>

#include "daemon/reshard/move.h"
#include "daemon/membership/view.h"
#include "daemon/rpc/report.h"
#include "daemon/rpc/session.h"
#include "proto/cleanup.h"

/* ---- one node ------------------------------------------------------------------------------ */

static json_t *wait_of(const char *who, const char *what)
{
        return json_pack("{s:s%,s:s%}", "for", who, strlen(who), "what", what, strlen(what));
}

static void add_move(void *arg, const char *job, const struct move *m, const struct wait_line *wait,
                     const char *trouble)
{
        json_t *j = report_move(m);

        json_object_set_new(j, "job", json_string(job));
        json_object_set_new(j, "waiting",
                            wait->who[0] ? wait_of(wait->who, wait->what) : json_null());
        json_object_set_new(j, "trouble", trouble[0] ? json_string(trouble) : json_null());
        json_array_append_new(arg, j);
}

json_t *moves_here(struct exchange *x)
{
        json_t *j = json_object(), *moves = json_array(), *former = json_array();

        moves_each(x, add_move, moves);
        list_for_each (&x->jobs, item) {
                const struct job *job = CONTAINER_OF(item, struct job, link);

                if (!list_empty(&job->former))
                        json_array_append_new(former, json_string(job->name));
        }
        json_object_set_new(j, "moves", moves);
        json_object_set_new(j, "former", former);
        if (x->taken_back.epoch)
                json_object_set_new(j, "taken_back",
                                    json_pack("{s:I,s:s%}", "epoch",
                                              (json_int_t)x->taken_back.epoch, "why",
                                              x->taken_back.why, strlen(x->taken_back.why)));
        return j;
}

/* ---- all nodes ------------------------------------------------------------------------------- */

static bool is_told(const json_t *jobs, const char *name)
{
        json_t *job;
        size_t i;

        json_array_foreach(jobs, i, job)
        {
                if (strcmp(json_string_value(json_object_get(job, "job")), name) == 0)
                        return true;
        }
        return false;
}

static bool is_move(const json_t *move)
{
        return json_is_string(json_object_get(move, "job"));
}

/* Their coordinators first. */
static json_t *all_jobs(const struct exchange *x, json_t *const *answers)
{
        json_t *jobs = json_array(), *job;
        size_t i;

        for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                json_array_foreach(json_object_get(answers[n], "moves"), i, job)
                {
                        if (is_move(job))
                                json_array_append(jobs, job);
                }
        for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                json_array_foreach(json_object_get(answers[n], "former"), i, job)
                {
                        if (!json_is_string(job) || is_told(jobs, json_string_value(job)))
                                continue;
                        json_array_append_new(
                                jobs, json_pack("{s:O,s:n,s:I,s:i,s:i,s:o}", "job", job,
                                                "from_epoch", "to_epoch", (json_int_t)x->view.epoch,
                                                "bytes", 0, "total", 0, "waiting",
                                                wait_of("its coordinator", "to take it up")));
                }
        return jobs;
}

/* An owner, or a node that may have states left; it has not answered. */
static const char *node_waits(const struct exchange *x, uint32_t node)
{
        bool owner = placement_nodes(&x->views->durable.chosen) >> node & 1;

        if (x->up >> node & 1)
                return "its answer";
        if (x->linked >> node & 1)
                return "to start anew, with the owners that were chosen";
        return owner ? "to come up" : NULL;
}

static json_t *waiting_nodes(const struct exchange *x, json_t *const *answers)
{
        const uint64_t chosen = x->views->durable.chosen.epoch;
        json_t *waiting = json_array();
        char who[100];

        for (uint32_t n = 0; n < x->cluster->n_nodes; n++) {
                const char *what = answers[n] ? NULL : node_waits(x, n);

                if (n == x->cluster->self && x->view.epoch != chosen)
                        what = "to start anew, with the owners that were chosen";
                snprintf(who, sizeof who, "node %.60s", node_name(x, n));
                if (what)
                        json_array_append_new(waiting, wait_of(who, what));
        }
        return waiting;
}

static json_t *taken_back(const struct exchange *x, json_t *const *answers)
{
        json_t *all = json_array();

        for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                if (json_is_object(json_object_get(answers[n], "taken_back")))
                        json_array_append(all, json_object_get(answers[n], "taken_back"));
        return all;
}

/* Nodes that did not answer, whether or not they are waited for. */
static json_t *unheard(const struct exchange *x, json_t *const *answers)
{
        json_t *nodes = json_array();

        for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                if (!answers[n])
                        json_array_append_new(nodes, json_string(node_name(x, n)));
        return nodes;
}

json_t *moves_together(const struct exchange *x, json_t *const *answers)
{
        json_t *j = json_object(), *jobs = all_jobs(x, answers);
        json_t *nodes = waiting_nodes(x, answers);
        bool over = json_array_size(jobs) == 0 && json_array_size(nodes) == 0;

        json_object_set_new(j, "epoch", json_integer((json_int_t)x->views->durable.chosen.epoch));
        json_object_set_new(j, "over", json_boolean(over));
        json_object_set_new(j, "jobs", jobs);
        json_object_set_new(j, "waiting", nodes);
        json_object_set_new(j, "unheard", unheard(x, answers));
        json_object_set_new(j, "taken_back", taken_back(x, answers));
        return j;
}

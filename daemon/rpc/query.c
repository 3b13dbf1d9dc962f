/* Which question goes where. */
#include "daemon/rpc/query.h"

#include <stdio.h>
#include <string.h>

/* ---- of clients ---- */

static int jobs_query(struct pending_call *call, const char *what, const char *argument,
                      struct fault *fault)
{
        struct arena arena = { NULL };
        struct status_jobs jobs;

        report_jobs(&arena, call->session->rpc->x, &jobs);
        query_end_record(call, status_jobs_type(), &jobs, &arena);
        return 0;
}

static int config_query(struct pending_call *call, const char *what, const char *argument,
                        struct fault *fault)
{
        struct arena arena = { NULL };
        struct status_config config;

        report_config(&arena, call->session->rpc->x, &config);
        query_end_record(call, status_config_type(), &config, &arena);
        return 0;
}

/* argument: NAME=VALUE. */
static int set_query(struct pending_call *call, const char *what, const char *argument,
                     struct fault *fault)
{
        struct engine *x = call->session->rpc->x;
        const char *equals = strchr(argument, '=');
        struct arena arena = { NULL };
        struct status_config config;
        uint32_t i = 0;
        char name[64];
        int r = session_allowed(call->session, "set options", fault);

        if (r)
                return r;
        if (!equals || (size_t)(equals - argument) >= sizeof name)
                return fault_set(fault, ZERO_EINVAL, "which option? NAME=VALUE is expected");
        snprintf(name, sizeof name, "%.*s", (int)(equals - argument), argument);
        r = x->node->configure(x->node_arg, name, equals + 1, fault);
        if (r)
                return r;
        report_config(&arena, x, &config);
        while (i < config.options.n && strcmp(config.options.items[i].name, name) != 0)
                i++;
        if (i < config.options.n)
                query_end_record(call, status_option_type(), &config.options.items[i], &arena);
        else
                query_end(call, NULL); /* the arena is out of memory */
        arena_deinit(&arena);
        return 0;
}

static const struct {
        const char *what;
        query_starter *start;
} queries[] = {
        { "status", status_query },         { "jobs", jobs_query },
        { "config", config_query },         { "shards", shards_query },
        { "ping", survey_query },           { "checksum", survey_query },
        { "drop", survey_query },           { "moves", survey_query },
        { "checkpoint", checkpoint_query }, { "restore", checkpoint_query },
        { "progress", checkpoint_query },   { "members", membership_query },
        { "add-node", membership_query },   { "remove-node", membership_query },
        { "takeover", membership_query },   { "measure", survey_query },
        { "examine", survey_query },        { "set", set_query },
        { "drain", survey_query },          { "undrain", survey_query },
        { "nodes", survey_query },          { "trace", survey_query },
        { "drained", survey_query },
};

int query_start(struct pending_call *call, const char *what, const char *argument,
                struct fault *fault)
{
        for (size_t i = 0; i < sizeof queries / sizeof queries[0]; i++)
                if (strcmp(queries[i].what, what) == 0)
                        return queries[i].start(call, what, argument, fault);
        return fault_set(fault, ZERO_EINVAL, "this daemon does not know the query '%.60s'", what);
}

/* ---- of nodes ---- */

static void ping_question(struct engine *x, struct job *job, uint32_t node,
                          const Zero__LinkMessage *m)
{
        answer(x, node, m, ZERO_OK, "");
}

static void held_question(struct engine *x, struct job *job, uint32_t node,
                          const Zero__LinkMessage *m)
{
        struct arena arena = { NULL };
        struct status_replicas held;

        report_replicas(&arena, job, &held);
        query_answer_write(job, node, m->call, status_replicas_type(), &held, &arena);
}

static void map_question(struct engine *x, struct job *job, uint32_t node,
                         const Zero__LinkMessage *m)
{
        struct arena arena = { NULL };
        struct status_map map;

        report_map(&arena, x, NULL, &map);
        query_answer_record(x, node, m->call, status_map_type(), &map, &arena);
}

static void moves_question(struct engine *x, struct job *job, uint32_t node,
                           const Zero__LinkMessage *m)
{
        struct arena arena = { NULL };
        struct status_moves_here moves;

        report_moves_here(&arena, x, &moves);
        query_answer_record(x, node, m->call, status_moves_here_type(), &moves, &arena);
}

static void drop_told_all(struct engine *x, uint32_t node, uint64_t call, bool keeps,
                          uint64_t untold)
{
        struct arena arena = { NULL };
        struct status_drop_here drop = { .keeps = keeps };

        for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                if (untold >> n & 1)
                        texts_add(&arena, &drop.untold, node_name(x, n));
        query_answer_record(x, node, call, status_drop_here_type(), &drop, &arena);
}

static void drop_question(struct engine *x, struct job *job, uint32_t node,
                          const Zero__LinkMessage *m)
{
        struct fault fault;

        if (drop_admit(x, m->job, &fault))
                answer(x, node, m, fault.status, fault.text);
        else
                drop_order(x, m->job, node, m->call, drop_told_all);
}

static const struct {
        const char *what;
        bool of_job; /* which has to be there */
        question_answer *answer;
} questions[] = {
        { "ping", false, ping_question },          { "drop", false, drop_question },
        { "moves", false, moves_question },        { "checkpoint", false, checkpoint_question },
        { "restore", false, checkpoint_question }, { "progress", false, checkpoint_question },
        { "held", true, held_question },           { "checksum", true, checksum_question },
        { "measure", false, measure_question },    { "examine", false, examine_question },
        { "trace", true, trace_question },         { "map", false, map_question },
        { "drain", false, drain_question },        { "undrain", false, drain_question },
        { "status", false, status_question },      { "drained", false, drain_question },
};

void query_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        for (size_t i = 0; i < sizeof questions / sizeof questions[0]; i++) {
                struct job *job = questions[i].of_job ? job_made(x, m->job) : NULL;

                if (strcmp(questions[i].what, m->query->what) != 0)
                        continue;
                if (questions[i].of_job && !job)
                        answer(x, node, m, ZERO_ENOJOB, "no such job on this node");
                else
                        questions[i].answer(x, job, node, m);
                return;
        }
        answer(x, node, m, ZERO_EINVAL, "unknown query");
}

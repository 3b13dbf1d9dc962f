/* Which question goes where. */
#include "daemon/face/rpc/query.h"

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

static const struct query_kind queries[] = {
        { "status", status_query, QUERY_LOOP },
        { "jobs", jobs_query, QUERY_LOOP },
        { "config", config_query, QUERY_LOOP },
        { "set", set_query, QUERY_LOOP },
        { "shards", shards_query, QUERY_LARGE },
        { "ping", survey_query, QUERY_SURVEY },
        { "checksum", survey_query, QUERY_SURVEY },
        { "drop", survey_query, QUERY_SURVEY },
        { "moves", survey_query, QUERY_SURVEY },
        { "measure", survey_query, QUERY_SURVEY },
        { "examine", survey_query, QUERY_SURVEY },
        { "trace", survey_query, QUERY_SURVEY },
        { "versions", survey_query, QUERY_SURVEY },
        { "nodes", survey_query, QUERY_SURVEY },
        { "drain", survey_query, QUERY_SURVEY },
        { "undrain", survey_query, QUERY_SURVEY },
        { "drained", survey_query, QUERY_SURVEY },
        { "checkpoint", checkpoint_query, QUERY_NODE },
        { "restore", checkpoint_query, QUERY_NODE },
        { "progress", checkpoint_query, QUERY_NODE },
        { "grant", checkpoint_query, QUERY_NODE },
        { "revoke", checkpoint_query, QUERY_NODE },
        { "grants", checkpoint_query, QUERY_NODE },
        { "checkpoints", visit_query, QUERY_NODE },
        { "verify", visit_query, QUERY_NODE },
        { "members", membership_query, QUERY_LOOP },
        { "add-node", membership_query, QUERY_NODE },
        { "remove-node", membership_query, QUERY_NODE },
        { "takeover", membership_query, QUERY_NODE },
};

const struct query_kind *query_kind(size_t i)
{
        return i < sizeof queries / sizeof queries[0] ? &queries[i] : NULL;
}

static int query_admit(struct pending_call *call, const struct query_kind *kind,
                       struct fault *fault)
{
        struct user *user = call->session->user;
        bool large = kind->bound == QUERY_LARGE;
        uint32_t most;

        if (kind->bound == QUERY_LOOP || kind->bound == QUERY_NODE)
                return 0;
        if (!user_asks(user, large, &most))
                return fault_set(fault, ZERO_EBUSY,
                                 "user %u has %u %squestions to all nodes in progress, as many as "
                                 "a user may have: ask again when one is answered",
                                 (unsigned)user->uid, most, large ? "large " : "");
        call->survey = user;
        call->large = large;
        return 0;
}

int query_start(struct pending_call *call, const char *what, const char *argument,
                struct fault *fault)
{
        const struct query_kind *kind;

        for (size_t i = 0; (kind = query_kind(i)); i++) {
                int r = strcmp(kind->what, what) == 0 ? query_admit(call, kind, fault) : -1;

                if (r >= 0)
                        return r ? r : kind->start(call, what, argument, fault);
        }
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

static void versions_question(struct engine *x, struct job *job, uint32_t node,
                              const Zero__LinkMessage *m)
{
        struct arena arena = { NULL };
        struct status_versions_here here;

        report_versions_here(&arena, job, &here);
        query_answer_record(x, node, m->call, status_versions_here_type(), &here, &arena);
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
                          node_set untold)
{
        struct arena arena = { NULL };
        struct status_drop_here drop = { .keeps = keeps };

        for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                if (node_set_has(untold, n))
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
        { "grant", false, checkpoint_question },   { "revoke", false, checkpoint_question },
        { "grants", false, checkpoint_question },  { "versions", true, versions_question },
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

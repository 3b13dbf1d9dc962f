/*
 * Questions to all nodes.  The answers are combined when the last node has answered, or at the
 * client's deadline.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/face/rpc/query.h"
#include "daemon/job/core/progress.h"
#include "daemon/job/core/shut.h"
#include "proto/cleanup.h"

enum { CHECKSUM_ROUNDS = 20 };
enum { MOVES_MS = 5000 }; /* zeroctl asks again and again */
enum {
        MEASURES_MS = 20000,
        EXAMINE_MS = 10000,
        TRACE_MS = 10000,
        DRAIN_MS = 10000,
        VERSIONS_MS = 10000,
        NODES_MS = 10000
};
/* Charged to a user before a node is asked: for the work there, and here for what an answer holds.
 * An event of a trace is text there, goes into JSON, out of it and into JSON again: measured, 3.4
 * us on loops; a group of a job likewise.  What is not charged ahead is charged as it takes time.
 */
enum { ASKING_NS = 100000, EVENT_NS = 3400, GROUP_NS = 1000 };

struct survey {
        struct engine *x;          /* not the rpc, which may end before the last answer */
        struct pending_call *call; /* NULL once it has ended */
        struct user *user;         /* who has asked; NULL: the answer is being written */
        bool large;
        char name[ZERO_NAME_MAX + 1];     /* of the job asked about, or empty */
        char argument[NODE_NAME_MAX + 1]; /* to the nodes: what is measured, who is drained */
        struct job *job;                  /* NULL: no job, or its state here waits for memory */
        const struct survey_kind *kind;
        uint32_t pending, rounds;
        struct fault fault, refusal; /* refusal: of a drop, by the first node that refused it */
        json_t *told[ZERO_NODE_MAX]; /* NULL: no answer, or an answer without JSON */
        struct {
                uint64_t asked_ns, took_ns;
                bool came;
        } answers[ZERO_NODE_MAX];
};

struct question {
        struct survey *survey;
        uint32_t node;
};

/* ---- putting the answers together -------------------------------------------- */

/* A node's answer as a record in the arena; NULL: no answer, or not such a record. */
static void *told_by(const struct survey *s, uint32_t node, const struct record_type *type,
                     struct arena *arena)
{
        void *record = s->told[node] ? arena_new(arena, type->size) : NULL;

        return record && record_from_json(type, s->told[node], arena, record) ? record : NULL;
}

static json_t *ping_together(struct survey *s)
{
        const struct engine *x = s->x;
        struct arena arena = { NULL };
        struct status_ping ping = { .peers = { 0 } };

        for (uint32_t n = 0; n < x->cluster->n_nodes; n++) {
                struct status_reached *peer =
                        n == x->cluster->self ? NULL : LIST_ADD(&arena, &ping.peers);

                if (!peer)
                        continue;
                peer->node = node_name(x, n);
                peer->up = s->answers[n].came;
                peer->round_trip_s = peer->up ? (double)s->answers[n].took_ns / 1e9 : NAN;
        }
        return record_take_json(status_ping_type(), &ping, &arena);
}

/* For each owner takes the answer of the owner's node.  Hands the call over. */
static json_t *shards_together(struct survey *s)
{
        const struct placement *placement = &s->job->placement;
        const struct status_replica *told[ZERO_NODE_MAX] = { NULL };
        struct arena arena = { NULL };
        struct status_shards shards = { .jobs = { 0 } };
        struct status_job_shards *job = LIST_ADD(&arena, &shards.jobs);

        for (uint32_t n = 0; n < s->x->cluster->n_nodes; n++) {
                const struct status_replicas *h = told_by(s, n, status_replicas_type(), &arena);

                for (uint32_t i = 0; h && i < h->replicas.n; i++) {
                        uint64_t owner = h->replicas.items[i].owner;

                        if (owner < placement->n_owners && placement->node[owner] == n)
                                told[owner] = &h->replicas.items[i];
                }
        }
        if (job)
                report_job_shards(&arena, s->job, told, job);
        query_write(STEAL(s->call), STEAL(s->user), status_shards_type(), &shards, &arena);
        return NULL;
}

static json_t *checksum_together(struct survey *s)
{
        json_int_t version;

        if (checksums_agree(s->job, s->told, &version))
                return checksums_together(s->job, s->told);
        fault_set(&s->fault, ZERO_EBUSY,
                  "the job keeps stepping while its nodes are asked: %d times they answered with "
                  "different versions; ask again",
                  CHECKSUM_ROUNDS);
        return NULL;
}

static bool has_text(const struct record_texts *texts, const char *text)
{
        for (uint32_t i = 0; i < texts->n; i++)
                if (strcmp(texts->items[i], text) == 0)
                        return true;
        return false;
}

/* Nodes that hold shards tell the others, so a node that one of them has not told may know from
 * another. */
static json_t *drop_together(struct survey *s)
{
        const struct engine *x = s->x;
        const struct status_drop_here *told[ZERO_NODE_MAX];
        struct arena arena = { NULL };
        struct status_drop drop = { .job = s->name, .dropped = true };
        bool kept = false;

        for (uint32_t n = 0; n < x->cluster->n_nodes; n++) {
                told[n] = told_by(s, n, status_drop_here_type(), &arena);
                kept = kept || (told[n] && told[n]->keeps);
        }
        for (uint32_t n = 0; n < x->cluster->n_nodes; n++) {
                bool knows = s->answers[n].came;

                for (uint32_t i = 0; i < x->cluster->n_nodes && !knows; i++)
                        knows = told[i] && told[i]->keeps &&
                                !has_text(&told[i]->untold, node_name(x, n));
                if (!knows)
                        texts_add(&arena, &drop.untold, node_name(x, n));
        }
        if (!kept && s->refusal.status)
                s->fault = s->refusal;
        else if (!kept)
                fault_set(&s->fault, ZERO_EPEER,
                          "no node that holds shards is reachable, so the job is not dropped: ask "
                          "again when one is");
        return record_take_json(status_drop_type(), &drop, &arena);
}

static json_t *moves_together(struct survey *s)
{
        const struct status_moves_here *told[ZERO_NODE_MAX];
        struct arena arena = { NULL };
        struct status_moves moves;

        for (uint32_t n = 0; n < s->x->cluster->n_nodes; n++)
                told[n] = told_by(s, n, status_moves_here_type(), &arena);
        report_moves(&arena, s->x, told, &moves);
        return record_take_json(status_moves_type(), &moves, &arena);
}

static json_t *measures_together(struct survey *s)
{
        return measured_together(s->x, s->told);
}

static double wall_clock(void)
{
        struct timespec now;

        clock_gettime(CLOCK_REALTIME, &now);
        return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static json_t *examinations_together(struct survey *s)
{
        struct examined_answer answers[ZERO_NODE_MAX];
        double now = wall_clock();

        for (uint32_t n = 0; n < s->x->cluster->n_nodes; n++) {
                double half = (double)s->answers[n].took_ns / 2e9;
                double asked = (double)(uv_hrtime() - s->answers[n].asked_ns) / 1e9;

                answers[n] = (struct examined_answer){ s->told[n], s->answers[n].came,
                                                       now - asked + half, half };
        }
        return examined_together(s->x, answers);
}

static json_t *trace_together(struct survey *s)
{
        struct traced_answer answers[ZERO_NODE_MAX];

        for (uint32_t n = 0; n < s->x->cluster->n_nodes; n++)
                answers[n] = (struct traced_answer){ s->told[n], s->answers[n].asked_ns,
                                                     s->answers[n].took_ns };
        return traces_together(s->x, answers);
}

static json_t *versions_together(struct survey *s)
{
        struct arena arena = { NULL };
        struct status_versions versions = { .job = s->name, .version = s->job->version };

        report_grants(&arena, s->job, &versions.users);
        for (uint32_t n = 0; n < s->x->cluster->n_nodes; n++) {
                const struct status_versions_here *here =
                        told_by(s, n, status_versions_here_type(), &arena);
                struct status_versions_here *to = here ? LIST_ADD(&arena, &versions.nodes) : NULL;

                if (to)
                        *to = *here;
                if (n != s->x->cluster->self && !node_set_has(s->x->up, n))
                        texts_add(&arena, &versions.away, node_name(s->x, n));
        }
        return record_take_json(status_versions_type(), &versions, &arena);
}

/* The nodes' answers as they came, and who gave none. */
static json_t *nodes_together(struct survey *s)
{
        json_t *nodes = json_array(), *unheard = json_array();

        for (uint32_t n = 0; n < s->x->cluster->n_nodes; n++)
                if (s->told[n])
                        json_array_append(nodes, s->told[n]);
                else
                        json_array_append_new(unheard, json_string(node_name(s->x, n)));
        return json_pack("{s:o,s:o}", "nodes", nodes, "unheard", unheard);
}

static json_t *drained_together(struct survey *s)
{
        for (uint32_t n = 0; n < s->x->cluster->n_nodes; n++)
                if (s->told[n])
                        return json_incref(s->told[n]);
        return NULL;
}

static bool is_named(const struct survey *s, uint32_t node)
{
        return strcmp(node_name(s->x, node), s->argument) == 0;
}

static bool holds_job(const struct survey *s, uint32_t node)
{
        return node_set_has(placement_nodes(&s->job->placement), node);
}

static bool holds_in_force(const struct survey *s, uint32_t node)
{
        return node_set_has(placement_nodes(&s->x->placement), node);
}

/* Other nodes have about as many events of the job as this one. */
static uint64_t events_ns(const struct survey *s)
{
        uint64_t n = s->job->progress->n_traced;

        return EVENT_NS * (n < TRACE_MAX ? n : TRACE_MAX);
}

static uint64_t groups_ns(const struct survey *s)
{
        return (uint64_t)GROUP_NS * s->job->layout->n_groups;
}

static const struct survey_kind {
        const char *what;     /* the clients' question */
        const char *question; /* the question to nodes */
        bool of_job;
        bool (*asks)(const struct survey *s, uint32_t node); /* NULL: all */
        bool all_must;                                       /* answer, or there is no answer */
        json_t *(*finish)(struct survey *s);
        uint64_t most_ms;                             /* 0: as long as the client waits */
        bool privileged;                              /* only for root and the user zerod runs as */
        uint64_t (*ahead_ns)(const struct survey *s); /* for each node asked; NULL: as it takes */
} kinds[] = {
        { "ping", "ping", false, NULL, false, ping_together, 0 },
        { "shards", "held", true, holds_job, false, shards_together, 0, false, groups_ns },
        { "checksum", "checksum", true, holds_job, true, checksum_together, 0 },
        { "drop", "drop", true, holds_in_force, false, drop_together, 0 },
        { "moves", "moves", false, NULL, false, moves_together, MOVES_MS },
        { "measure", "measure", false, NULL, true, measures_together, MEASURES_MS, true },
        { "examine", "examine", false, NULL, false, examinations_together, EXAMINE_MS, true },
        { "trace", "trace", true, NULL, false, trace_together, TRACE_MS, false, events_ns },
        { "versions", "versions", true, NULL, false, versions_together, VERSIONS_MS },
        { "nodes", "status", false, NULL, false, nodes_together, NODES_MS },
        { "drain", "drain", false, is_named, true, drained_together, DRAIN_MS, true },
        { "undrain", "undrain", false, is_named, true, drained_together, DRAIN_MS, true },
        { "drained", "drained", false, is_named, true, drained_together, DRAIN_MS, true },
};

/* ---- asking ---------------------------------------------------------------------- */

static void survey_forget_answers(struct survey *s)
{
        for (uint32_t n = 0; n < ZERO_NODE_MAX; n++) {
                json_decref(STEAL(s->told[n]));
                s->answers[n].came = false;
        }
}

/* Charges loop time since then, unless it was charged ahead. */
static void survey_worked(const struct survey *s, uint64_t begun_ns)
{
        if (s->user && !s->kind->ahead_ns)
                budget_worked(&s->user->budget, PRICE_OTHERS * (uv_hrtime() - begun_ns));
}

static void survey_free(struct survey *s)
{
        survey_forget_answers(s);
        if (s->job)
                job_let_go(s->job);
        if (s->user)
                user_answered(s->user, s->large);
        free(s);
}

static void survey_end(struct survey *s)
{
        uint64_t begin = uv_hrtime();
        json_t *json = s->fault.status || !s->call ? NULL : s->kind->finish(s);

        if (s->call && !s->fault.status)
                query_end(s->call, STEAL(json));
        else if (s->call)
                request_end(&s->call->request, s->fault.status, "%s", s->fault.text);
        json_decref(json);
        survey_worked(s, begin);
        survey_free(s);
}

static void survey_ask_all(struct survey *s);

/* The job has stepped between the answers: asks again, up to CHECKSUM_ROUNDS times. */
static bool survey_again(struct survey *s)
{
        json_int_t version;

        if (!s->call || s->fault.status || s->kind->finish != checksum_together ||
            checksums_agree(s->job, s->told, &version) || ++s->rounds >= CHECKSUM_ROUNDS)
                return false;
        survey_forget_answers(s);
        survey_ask_all(s);
        return s->pending > 0;
}

static void question_answered(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        struct question *q = arg;
        struct survey *s = q->survey;
        uint64_t begin = uv_hrtime();

        if (status == ZERO_OK) {
                s->answers[q->node].came = true;
                s->answers[q->node].took_ns = uv_hrtime() - s->answers[q->node].asked_ns;
                s->told[q->node] = query_reply(status, m);
        } else if (s->kind->all_must && !s->fault.status) {
                fault_set(&s->fault, status, "%s", text);
        } else if (status == ZERO_EQUOTA) {
                fault_set(&s->refusal, status, "%s", text);
        }
        free(q);
        survey_worked(s, begin);
        if (--s->pending == 0 && !survey_again(s))
                survey_end(s);
}

static void survey_ask(struct survey *s, uint32_t node, uint64_t timeout_ms)
{
        struct question *q = malloc(sizeof *q);
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        Zero__Query query = ZERO__QUERY__INIT;

        if (!q)
                return;
        *q = (struct question){ s, node };
        s->pending++;
        s->answers[node].asked_ns = uv_hrtime();
        query.what = (char *)s->kind->question;
        query.argument = s->argument;
        if (s->name[0])
                m.job = s->name;
        if (s->job)
                query.version = s->job->version;
        m.body_case = ZERO__LINK_MESSAGE__BODY_QUERY;
        m.query = &query;
        budget_worked(&s->user->budget, ASKING_NS);
        budget_read(&s->user->budget, s->kind->ahead_ns ? s->kind->ahead_ns(s) : 0);
        call_send(s->x, node, &m, timeout_ms, question_answered, q);
}

/* Answers come from the loop, never before this returns; at least this node's own comes. */
static void survey_ask_all(struct survey *s)
{
        const struct survey_kind *kind = s->kind;
        uint64_t timeout_ms = s->call->session->timeout_ms;

        if (kind->most_ms && kind->most_ms < timeout_ms)
                timeout_ms = kind->most_ms;
        for (uint32_t n = 0; n < s->x->cluster->n_nodes; n++)
                if (!kind->asks || kind->asks(s, n))
                        survey_ask(s, n, timeout_ms);
}

static void survey_forget(struct request *r)
{
        struct survey *s = r->subject;

        s->call = NULL;
}

/* Whether some node is asked at all. */
static int survey_names(const struct engine *x, const struct survey_kind *kind,
                        const char *argument, struct fault *fault)
{
        uint32_t n = 0;

        if (kind->asks != is_named)
                return 0;
        while (n < x->cluster->n_nodes && strcmp(node_name(x, n), argument) != 0)
                n++;
        if (n < x->cluster->n_nodes)
                return 0;
        return fault_set(fault, ZERO_EINVAL, "there is no node '%.63s': see zeroctl members",
                         argument);
}

static int survey_describe(const struct request *r, struct wait_line *ret)
{
        const struct survey *s = r->subject;

        snprintf(ret->who, sizeof ret->who, "the other nodes");
        snprintf(ret->what, sizeof ret->what, "their answer to '%s'", s->kind->what);
        return ZERO_EDEADLINE;
}

/* Whether there is nothing of the job here but a state that waits for memory, or is refused. */
static bool is_shut(struct engine *x, const char *job)
{
        return shut_has(x, job) || (!job_find(x, job) && shut_why(x, job));
}

/* Whether the user may ask about such a job. */
static int shut_for_user(const struct engine *x, const char *job, uint32_t uid, struct fault *fault)
{
        uint32_t owner;
        int r = uid == 0 ? 0 : shut_uid(x, job, &owner, fault);

        if (r || uid == 0 || uid == owner)
                return r;
        return fault_set(fault, ZERO_EPERM, "job '%s' belongs to user %u", job, owner);
}

int survey_query(struct pending_call *call, const char *what, const char *argument,
                 struct fault *fault)
{
        const struct survey_kind *kind = kinds;
        struct engine *x = call->session->rpc->x;
        struct job *job = NULL;
        struct survey *s;
        int r = 0;

        while (strcmp(kind->what, what) != 0)
                kind++;
        if (kind->finish == drop_together && is_shut(x, argument))
                r = shut_for_user(x, argument, call->session->uid, fault);
        else if (kind->privileged)
                r = session_allowed(call->session, what, fault);
        else if (kind->of_job)
                r = job_for_user(x, argument, call->session->uid, &job, fault);
        if (!r)
                r = survey_names(x, kind, argument, fault);
        if (r)
                return r;
        s = calloc(1, sizeof *s);
        if (!s)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        s->x = x;
        s->call = call;
        s->user = STEAL(call->survey);
        s->large = call->large;
        s->job = job;
        s->kind = kind;
        if (kind->of_job)
                snprintf(s->name, sizeof s->name, "%s", argument);
        else
                snprintf(s->argument, sizeof s->argument, "%s", argument);
        if (job)
                job_hold(job); /* not job_ref(): a drop waits for such references */
        survey_ask_all(s);
        if (s->pending == 0) { /* no memory for any question */
                survey_free(s);
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        call->request.subject = s;
        call->request.describe = survey_describe;
        call->request.forget = survey_forget;
        return 0;
}

/* Without a job's name: what this node knows of the jobs that the client may read. */
int shards_query(struct pending_call *call, const char *what, const char *argument,
                 struct fault *fault)
{
        struct arena arena = { NULL };
        struct status_shards shards;

        if (argument[0])
                return survey_query(call, what, argument, fault);
        report_shards(&arena, call->session->rpc->x, call->session->uid, &shards);
        query_write(call, STEAL(call->survey), status_shards_type(), &shards, &arena);
        return 0;
}

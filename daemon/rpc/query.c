/*
 * Queries: what this node knows is answered at once; what all nodes must tell is asked for,
 * with the session's deadline, and put together when the last has answered.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/rpc/report.h"
#include "daemon/rpc/session.h"
#include "proto/cleanup.h"

enum { CHECKSUM_ROUNDS = 20 };

/* A question to all nodes. */
struct survey {
        struct exchange *x;        /* not its server, which may go before the last answer */
        struct pending_call *call; /* NULL once it has ended */
        struct job *job;           /* the job asked about, or NULL */
        const char *what;
        uint32_t pending, rounds;
        int status;
        char text[300];
        struct answer {
                json_t *json;
                uint64_t asked_ns, took_ns;
                bool came;
        } answers[ZERO_NODE_MAX];
};

struct question {
        struct survey *survey;
        uint32_t node;
};

char *query_text(json_t *json)
{
        char *text = json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(17));

        json_decref(json);
        return text;
}

void query_end(struct pending_call *call, json_t *json)
{
        query_end_text(call, query_text(json));
}

void query_end_text(struct pending_call *call, char *text)
{
        call->json = text;
        if (text)
                request_end(&call->request, ZERO_OK, NULL);
        else
                request_end(&call->request, ZERO_ENOMEM, "out of memory");
}

/* ---- putting the answers together -------------------------------------------- */

static json_t *survey_ping(struct survey *s)
{
        const struct exchange *x = s->x;
        json_t *j = json_object(), *peers = json_array();

        for (uint32_t n = 0; n < x->cluster->n_nodes; n++) {
                json_t *peer = json_object();

                if (n != x->cluster->self) {
                        json_object_set_new(peer, "node", json_string(node_name(x, n)));
                        json_object_set_new(peer, "up", json_boolean(s->answers[n].came));
                        json_object_set_new(peer, "round_trip_s",
                                            s->answers[n].came
                                                    ? json_real((double)s->answers[n].took_ns / 1e9)
                                                    : json_null());
                        json_array_append(peers, peer);
                }
                json_decref(peer);
        }
        json_object_set_new(j, "peers", peers);
        return j;
}

static json_t *survey_shards(struct survey *s)
{
        const struct placement *place = &s->job->place;
        json_t *held[ZERO_NODE_MAX] = { NULL }, *j = json_object(), *jobs = json_array();

        for (uint32_t o = 0; o < place->n_owners; o++)
                held[o] = report_held_by(s->answers[place->node[o]].json, o);
        json_array_append_new(jobs, report_shards(s->job, held));
        json_object_set_new(j, "jobs", jobs);
        return j;
}

static const char *const checksum_planes[CHECKSUM_PLANES] = { "master", "exp_avg", "exp_avg_sq",
                                                              "step", "set" };
static const char *const checksum_copies[PLACEMENT_COPIES] = { "own", "mirror" };

static json_t *hex_of(const uint64_t sum[2])
{
        char hex[33];

        snprintf(hex, sizeof hex, "%016llx%016llx", (unsigned long long)sum[0],
                 (unsigned long long)sum[1]);
        return json_string(hex);
}

/* Planes of all owners, each of one copy, and their sum. */
static json_t *survey_sums(const struct survey *s, uint32_t copy, json_t **ret_all)
{
        json_t *planes = json_object();
        uint64_t all[2] = { 0, 0 };

        for (size_t p = 0; p < CHECKSUM_PLANES; p++) {
                uint64_t sum[2] = { 0, 0 };

                for (uint32_t n = 0; n < s->job->x->cluster->n_nodes; n++) {
                        json_t *part = json_object_get(
                                json_object_get(s->answers[n].json, checksum_copies[copy]),
                                checksum_planes[p]);

                        for (size_t i = 0; i < 2; i++)
                                sum[i] += (uint64_t)json_integer_value(json_array_get(part, i));
                }
                all[0] += sum[0];
                all[1] += sum[1];
                json_object_set_new(planes, checksum_planes[p], hex_of(sum));
        }
        *ret_all = hex_of(all);
        return planes;
}

/* Of all holders one version; else the job has stepped between their answers. */
static bool is_of_one_version(const struct survey *s, json_int_t *ret)
{
        json_int_t least = INT64_MAX, most = -1;

        for (uint32_t n = 0; n < s->x->cluster->n_nodes; n++) {
                json_t *versions = json_object_get(s->answers[n].json, "versions");

                for (size_t i = 0; i < json_array_size(versions); i++) {
                        json_int_t version = json_integer_value(json_array_get(versions, i));

                        least = version < least ? version : least;
                        most = version > most ? version : most;
                }
        }
        *ret = most;
        return least >= most;
}

static json_t *survey_checksum(struct survey *s)
{
        json_t *all, *j, *planes = survey_sums(s, 0, &all);
        json_int_t version;

        if (!is_of_one_version(s, &version)) {
                json_decref(planes);
                json_decref(all);
                s->status = ZERO_EBUSY;
                snprintf(s->text, sizeof s->text,
                         "the nodes told of more than one version in %d tries, as the job steps "
                         "meanwhile: "
                         "ask again",
                         CHECKSUM_ROUNDS);
                return NULL;
        }
        j = json_object();
        json_object_set_new(j, "job", json_string(s->job->name));
        json_object_set_new(j, "version", json_integer(version));
        json_object_set_new(j, "checksum", all);
        json_object_set_new(j, "planes", planes);
        if (s->job->place.copies > 1) {
                json_t *mirrors = survey_sums(s, 1, &all);

                json_object_set_new(j, "mirrors_agree", json_boolean(json_equal(planes, mirrors)));
                json_object_set_new(j, "mirrors", mirrors);
                json_decref(all);
        }
        return j;
}

/* A node that some other one has not told may have been told by a third. */
static bool is_told(const struct survey *s, uint32_t node)
{
        for (uint32_t n = 0; n < s->x->cluster->n_nodes; n++) {
                const json_t *untold = json_object_get(s->answers[n].json, "untold");

                if (untold && !json_object_get(untold, node_name(s->x, node)))
                        return true;
        }
        return s->answers[node].came;
}

static json_t *survey_drop(struct survey *s)
{
        json_t *j = json_object(), *untold = json_array();
        bool kept = false;

        for (uint32_t n = 0; n < s->x->cluster->n_nodes; n++) {
                kept = kept || json_object_get(s->answers[n].json, "untold");
                if (!is_told(s, n))
                        json_array_append_new(untold, json_string(node_name(s->x, n)));
        }
        if (!kept) {
                s->status = ZERO_EPEER;
                snprintf(s->text, sizeof s->text,
                         "no node that holds shards is reachable: nothing of the job is dropped "
                         "but what is here");
        }
        json_object_set_new(j, "job", json_string(s->job->name));
        json_object_set_new(j, "dropped", json_true());
        json_object_set_new(j, "untold", untold);
        return j;
}

static json_t *survey_moves(struct survey *s)
{
        json_t *answers[ZERO_NODE_MAX];

        for (uint32_t n = 0; n < ZERO_NODE_MAX; n++)
                answers[n] = s->answers[n].json;
        return moves_together(s->x, answers);
}

enum { MOVES_MS = 5000 };    /* it is asked again and again */
enum { ASKING_NS = 100000 }; /* charged to a user for the work of each node that is asked */

static const struct survey_kind {
        const char *what;     /* asked by clients */
        const char *question; /* put to the nodes */
        bool of_job, owners_only, all_must;
        json_t *(*finish)(struct survey *s);
        uint64_t most_ms; /* 0: as long as the client waits */
} survey_kinds[] = {
        { "ping", "ping", false, false, false, survey_ping, 0 },
        { "shards", "held", true, true, false, survey_shards, 0 },
        { "checksum", "checksum", true, true, true, survey_checksum, 0 },
        { "drop", "drop", true, false, false, survey_drop, 0 },
        { "moves", "moves", false, false, false, survey_moves, MOVES_MS },
};

static const struct survey_kind *survey_kind(const char *what)
{
        for (size_t i = 0; i < sizeof survey_kinds / sizeof survey_kinds[0]; i++)
                if (strcmp(survey_kinds[i].what, what) == 0)
                        return &survey_kinds[i];
        return NULL;
}

/* ---- asking ---------------------------------------------------------------------- */

static void survey_end(struct survey *s)
{
        json_t *json = s->status || !s->call ? NULL : survey_kind(s->what)->finish(s);

        if (s->call && !s->status)
                query_end(s->call, STEAL(json));
        else if (s->call)
                request_end(&s->call->request, s->status, "%s", s->text);
        json_decref(json);
        for (uint32_t n = 0; n < ZERO_NODE_MAX; n++)
                json_decref(s->answers[n].json);
        if (s->job)
                job_let_go(s->job);
        free(s);
}

static void survey_ask_all(struct survey *s);

/* A checksum of several versions is none: it is asked for again, some times. */
static bool survey_again(struct survey *s)
{
        json_int_t version;

        if (!s->call || s->status || strcmp(s->what, "checksum") != 0 ||
            is_of_one_version(s, &version) || ++s->rounds >= CHECKSUM_ROUNDS)
                return false;
        for (uint32_t n = 0; n < ZERO_NODE_MAX; n++) {
                json_decref(s->answers[n].json);
                s->answers[n] = (struct answer){ .json = NULL };
        }
        survey_ask_all(s);
        return s->pending > 0;
}

static void question_answered(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        struct question *q = arg;
        struct survey *s = q->survey;
        struct answer *a = &s->answers[q->node];

        if (status == ZERO_OK) {
                a->came = true;
                a->took_ns = uv_hrtime() - a->asked_ns;
                if (m && m->body_case == ZERO__LINK_MESSAGE__BODY_QUERY_REPLY)
                        a->json = json_loads(m->query_reply->json, 0, NULL);
        } else if (survey_kind(s->what)->all_must && !s->status) {
                s->status = status;
                snprintf(s->text, sizeof s->text, "%s", text);
        }
        free(q);
        if (--s->pending == 0 && !survey_again(s))
                survey_end(s);
}

static void survey_ask(struct survey *s, uint32_t node, const char *question, uint64_t timeout_ms)
{
        struct question *q = malloc(sizeof *q);
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        Zero__Query query = ZERO__QUERY__INIT;

        if (!q)
                return;
        *q = (struct question){ s, node };
        s->pending++;
        s->answers[node].asked_ns = uv_hrtime();
        query.what = (char *)question;
        if (s->job) {
                m.job = s->job->name;
                query.version = s->job->version;
        }
        m.body_case = ZERO__LINK_MESSAGE__BODY_QUERY;
        m.query = &query;
        if (s->call)
                budget_worked(&s->call->session->user->budget, ASKING_NS);
        call_send(s->x, node, &m, timeout_ms, question_answered, q);
}

static void survey_forget(struct request *r)
{
        struct survey *s = r->subject;

        s->call = NULL;
}

static int survey_describe(const struct request *r, struct wait_line *ret)
{
        const struct survey *s = r->subject;

        snprintf(ret->who, sizeof ret->who, "the other nodes");
        snprintf(ret->what, sizeof ret->what, "their answer to '%s'", s->what);
        return ZERO_EDEADLINE;
}

/* Reading a job's state is its owner's and root's. */
static bool job_is_for(const struct session *session, const struct job *job)
{
        return session->uid == 0 || session->uid == job->uid;
}

static int job_for(struct pending_call *call, const char *name, struct job **ret,
                   struct fault *fault)
{
        struct session *session = call->session;
        struct job *job;

        if (!name[0])
                return fault_set(fault, ZERO_EINVAL, "name a job");
        job = job_find(session->rpc->x, name);
        if (shut_has(session->rpc->x, name))
                return fault_set(fault, ZERO_EBUSY,
                                 "the state of job '%.100s' on this node is whole and waits for "
                                 "memory: see the daemon's log",
                                 name);
        if (!job || job->opening)
                return fault_set(fault, ZERO_ENOJOB, "there is no job '%.100s' on this node", name);
        if (!job_is_for(session, job))
                return fault_set(fault, ZERO_EPERM, "job '%s' belongs to user %u", job->name,
                                 job->uid);
        *ret = job;
        return 0;
}

static uint64_t survey_patience(const struct pending_call *call, const struct survey_kind *kind)
{
        uint64_t timeout_ms = call->session->timeout_ms;

        return kind->most_ms && kind->most_ms < timeout_ms ? kind->most_ms : timeout_ms;
}

/* Answers come from the loop, never before: at least this node's own is due. */
static void survey_ask_all(struct survey *s)
{
        const struct survey_kind *kind = survey_kind(s->what);
        uint64_t patience = survey_patience(s->call, kind);

        for (uint32_t n = 0; n < s->x->cluster->n_nodes; n++)
                if (!kind->owners_only || placement_owner_on(&s->job->place, n) != NO_OWNER)
                        survey_ask(s, n, kind->question, patience);
}

static int survey_start(struct pending_call *call, const struct survey_kind *kind,
                        const char *argument, struct fault *fault)
{
        struct job *job = NULL;
        struct survey *s;
        int r = 0;

        if (kind->of_job)
                r = job_for(call, argument, &job, fault);
        if (r)
                return r;
        s = calloc(1, sizeof *s);
        if (!s)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        s->x = call->session->rpc->x;
        s->call = call;
        s->job = job;
        s->what = kind->what;
        if (job)
                job_hold(job); /* its state is none of the survey's: a drop waits for its end */
        call->request.subject = s;
        call->request.describe = survey_describe;
        call->request.forget = survey_forget;
        survey_ask_all(s);
        return 0;
}

/* Where no job is named: of each job that the client may name, what this node knows. */
static json_t *all_shards(const struct session *session)
{
        json_t *held[ZERO_NODE_MAX] = { NULL }, *j = json_object(), *jobs = json_array();

        list_for_each (&session->rpc->x->jobs, item) {
                struct job *job = CONTAINER_OF(item, struct job, link);
                json_t *own;

                if (job->opening || !job_is_for(session, job))
                        continue;
                own = report_held(job);
                for (uint32_t o = 0; o < ZERO_NODE_MAX; o++)
                        held[o] = report_held_by(own, o);
                json_array_append_new(jobs, report_shards(job, held));
                json_decref(own);
        }
        json_object_set_new(j, "jobs", jobs);
        return j;
}

int query_start(struct pending_call *call, const char *what, const char *argument,
                struct fault *fault)
{
        struct rpc *rpc = call->session->rpc;
        const struct survey_kind *kind = survey_kind(what);
        json_t *j;

        if (strcmp(what, "status") == 0) {
                return status_query(call, fault);
        } else if (strcmp(what, "jobs") == 0) {
                j = json_object();
                json_object_set_new(j, "jobs", report_jobs(rpc));
                query_end(call, j);
        } else if (strcmp(what, "config") == 0) {
                query_end(call, report_config(rpc));
        } else if (strcmp(what, "shards") == 0 && !argument[0]) {
                query_end(call, all_shards(call->session));
        } else if (snapshot_is_query(what)) {
                return snapshot_query(call, what, argument, fault);
        } else if (view_is_query(what)) {
                return view_query(call, what, argument, fault);
        } else if (kind) {
                return survey_start(call, kind, argument, fault);
        } else {
                return fault_set(fault, ZERO_EINVAL, "this daemon does not know the query '%.60s'",
                                 what);
        }
        return 0;
}

/* ---- questions of nodes --------------------------------------------------------------- */

void query_answer(struct exchange *x, uint32_t node, uint64_t call, json_t *json)
{
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        Zero__QueryReply reply = ZERO__QUERY_REPLY__INIT;

        reply.json = json ? json_dumps(json, JSON_COMPACT) : NULL;
        json_decref(json);
        m.answer = call;
        if (!reply.json) {
                m.status = ZERO_ENOMEM;
        } else {
                m.body_case = ZERO__LINK_MESSAGE__BODY_QUERY_REPLY;
                m.query_reply = &reply;
        }
        fabric_send(x->fabric, node, &m);
        free(reply.json);
}

/* What this node holds of a job, copy by copy: sums over its devices. */
struct checksum_question {
        struct exchange *x;
        uint32_t node, pending;
        uint64_t call;
        bool told[PLACEMENT_COPIES];
        uint64_t total[PLACEMENT_COPIES][CHECKSUM_PLANES][2];
        json_t *versions;
        uint32_t n_parts;
        struct checksum_part {
                struct checksum_question *question;
                uint32_t copy;
        } parts[HOLDINGS_MAX];
};

static json_t *checksum_totals(uint64_t (*total)[2])
{
        json_t *j = json_object();

        for (size_t p = 0; p < CHECKSUM_PLANES; p++)
                json_object_set_new(
                        j, checksum_planes[p],
                        json_pack("[I,I]", (json_int_t)total[p][0], (json_int_t)total[p][1]));
        return j;
}

static void checksum_answer(struct checksum_question *q)
{
        json_t *sums;

        if (--q->pending)
                return;
        sums = json_object();
        json_object_set_new(sums, "versions", q->versions);
        for (uint32_t copy = 0; copy < PLACEMENT_COPIES; copy++)
                if (q->told[copy])
                        json_object_set_new(sums, checksum_copies[copy],
                                            checksum_totals(q->total[copy]));
        query_answer(q->x, q->node, q->call, sums);
        free(q);
}

static void checksum_done(void *arg, const struct checksum *sum)
{
        struct checksum_part *part = arg;
        struct checksum_question *q = part->question;
        uint64_t(*total)[2] = q->total[part->copy];

        q->told[part->copy] = true;
        json_array_append_new(q->versions, json_integer((json_int_t)sum->version));
        for (size_t p = 0; p < CHECKSUM_PLANES; p++)
                for (size_t i = 0; i < 2; i++)
                        total[p][i] += sum->sum[p][i];
        checksum_answer(q);
}

static void query_checksum(struct job *job, uint32_t node, const Zero__LinkMessage *m)
{
        struct checksum_question *q;

        if (!holdings_whole(job)) {
                answer(job->x, node, m, ZERO_EBUSY, "the job's shards are being moved: try again");
                return;
        }
        q = calloc(1, sizeof *q);
        if (!q) {
                answer(job->x, node, m, ZERO_ENOMEM, "out of memory");
                return;
        }
        *q = (struct checksum_question){
                .x = job->x, .node = node, .pending = 1, .call = m->call, .versions = json_array()
        };
        for_holdings (job, h) {
                struct checksum_part *part = &q->parts[q->n_parts++];

                *part = (struct checksum_part){ q, h->copy };
                q->pending++;
                checksum_start(h, m->query->version, checksum_done, part);
        }
        checksum_answer(q);
}

/* Of a node that does not keep the drop, nothing is said of others. */
static void drop_answer(struct exchange *x, uint32_t node, uint64_t call, bool keeps,
                        uint64_t untold)
{
        json_t *j = json_object(), *names = json_object();

        for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                if (untold >> n & 1)
                        json_object_set_new(names, node_name(x, n), json_true());
        if (keeps)
                json_object_set(j, "untold", names);
        json_decref(names);
        query_answer(x, node, call, j);
}

void query_message(struct exchange *x, uint32_t node, const Zero__LinkMessage *m)
{
        const char *what = m->query->what;
        struct job *job = job_find(x, m->job);

        if (strcmp(what, "ping") == 0)
                answer(x, node, m, ZERO_OK, "");
        else if (strcmp(what, "drop") == 0)
                drop_order(x, m->job, node, m->call, drop_answer);
        else if (strcmp(what, "moves") == 0)
                query_answer(x, node, m->call, moves_here(x));
        else if (snapshot_is_query(what))
                snapshot_question(x, node, m);
        else if (!job || job->opening)
                answer(x, node, m, ZERO_ENOJOB, "no such job on this node");
        else if (strcmp(what, "held") == 0)
                query_answer(x, node, m->call, report_held(job));
        else if (strcmp(what, "checksum") == 0)
                query_checksum(job, node, m);
        else
                answer(x, node, m, ZERO_EINVAL, "unknown query");
}

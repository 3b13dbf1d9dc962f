/*
 * Clients ask for checkpoints, restores and grants.  The question goes to the job's coordinator,
 * which answers at once; of checkpoints and restores clients then ask for "progress".
 *
 * A client's question is parsed here and rebuilt with the client's user, because nodes trust each
 * other, not clients.  If it says what the client sees of its directory, this node compares before
 * it passes the question on.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/cluster/checkpoint/checkpoint.h"
#include "daemon/face/rpc/query.h"
#include "daemon/step/follow/follow.h"
#include "proto/cleanup.h"

enum { ARGUMENT_MAX = 16384 };

static bool is(const char *what, const char *one, const char *other)
{
        return strcmp(what, one) == 0 || strcmp(what, other) == 0;
}

/* Whether the question names a user for a grant; or nothing but a job. */
static bool of_user(const char *what)
{
        return is(what, "grant", "revoke");
}

static bool of_job_alone(const char *what)
{
        return is(what, "progress", "grants");
}

/* Parses what the client asks for. */
static int wish_parse(const char *what, const char *argument, struct arena *arena,
                      struct status_wish *ret, struct fault *fault)
{
        json_t *j = strlen(argument) < ARGUMENT_MAX
                            ? json_loads(argument, JSON_REJECT_DUPLICATES, NULL)
                            : NULL;
        bool sane = j && record_from_json(status_wish_type(), j, arena, ret);

        json_decref(j);
        sane = sane && ret->job && job_name_valid(ret->job) &&
               (ret->directory || of_user(what) || of_job_alone(what)) &&
               (ret->user != RECORD_NULL || !of_user(what)) &&
               (ret->user == RECORD_NULL || ret->user < UINT32_MAX) &&
               (ret->keep == RECORD_NULL || ret->keep <= UINT32_MAX) &&
               (ret->uid == RECORD_NULL || ret->uid <= UINT32_MAX) &&
               (ret->every == RECORD_NULL || ret->every <= SCHEDULE_EVERY_MAX);
        return sane ? 0
                    : fault_set(fault, ZERO_EINVAL,
                                "the question must be JSON with \"job\" and \"%s\"",
                                of_user(what) ? "user" : "directory");
}

/* ---- a client's question ---------------------------------------------------------------- */

struct forward {
        struct pending_call *call; /* NULL once it has ended */
        struct blocking_work look;
        struct snapshot_place place;
        bool looks, writes;
        char what[16], job[ZERO_NAME_MAX + 1];
        char *argument, *directory, *seen;
        struct fault fault;
};

static void forward_free(struct forward *f)
{
        free(f->argument);
        free(f->directory);
        free(f->seen);
        free(f);
}

DEFINE_CLEANUP(struct forward *, forward_free)

static void forward_forget(struct request *r)
{
        struct forward *f = r->subject;

        f->call = NULL;
}

static int forward_describe(const struct request *r, struct wait_line *ret)
{
        const struct forward *f = r->subject;

        snprintf(ret->who, sizeof ret->who, "%s", f->looks ? "a disk" : "the job's coordinator");
        snprintf(ret->what, sizeof ret->what, "%s",
                 f->looks ? "a look at the checkpoint's directory" : "its answer");
        return ZERO_EDEADLINE;
}

static void forward_answered(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        struct forward *f = arg;
        struct pending_call *call = f->call;
        json_t *j = call ? query_reply(status, m) : NULL;

        forward_free(f);
        if (!call)
                return;
        if (status)
                request_end(&call->request, status, "%s", text);
        else if (!j)
                request_end(&call->request, ZERO_EPROTO, "the coordinator's answer is not JSON");
        else
                query_end(call, j);
}

static void forward_send(struct forward *f)
{
        struct engine *x = f->call->session->rpc->x;
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        Zero__Query query = ZERO__QUERY__INIT;

        query.what = f->what;
        query.argument = f->argument;
        m.job = f->job;
        m.body_case = ZERO__LINK_MESSAGE__BODY_QUERY;
        m.query = &query;
        call_send(x, coordinator_of(x, f->job), &m, f->call->session->timeout_ms, forward_answered,
                  f);
}

static void look_run(struct blocking_work *work)
{
        struct forward *f = CONTAINER_OF(work, struct forward, look);

        snapshot_place_look(&f->place, f->seen, f->writes, &f->fault);
}

static void look_done(struct blocking_work *work)
{
        struct forward *f = CONTAINER_OF(work, struct forward, look);
        struct pending_call *call = f->call;

        f->looks = false;
        if (call && !f->fault.status) {
                forward_send(f);
                return;
        }
        if (call)
                request_end(&call->request, f->fault.status, "%s", f->fault.text);
        forward_free(f);
}

static void look_begin(struct forward *f)
{
        const struct engine *x = f->call->session->rpc->x;

        f->looks = true;
        f->writes = strcmp(f->what, "checkpoint") == 0;
        f->place = (struct snapshot_place){ x->conf->checkpoint_dir, f->directory,
                                            f->call->session->uid, x->conf->state_dir };
        f->look = (struct blocking_work){ .run = look_run,
                                          .done = look_done,
                                          .what = "to look at the directory for checkpoints of job",
                                          .of = f->job,
                                          .uid = f->call->session->uid };
        blocking_submit(x->blocking, LANE_PLACES, &f->look);
}

/* Frees the arena that holds the wish. */
static int forward(struct pending_call *call, const char *what, struct status_wish *wish,
                   struct arena *arena, struct fault *fault)
{
        CLEANUP(cleanup_forward_free) struct forward *f = calloc(1, sizeof *f);
        bool looks = wish->seen && wish->directory;

        if (!f) {
                arena_deinit(arena);
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        snprintf(f->what, sizeof f->what, "%s", what);
        snprintf(f->job, sizeof f->job, "%s", wish->job);
        f->seen = looks ? strdup(wish->seen) : NULL;
        f->directory = looks ? strdup(wish->directory) : NULL;
        wish->seen = NULL;
        wish->uid = call->session->uid;
        f->argument = query_text(record_take_json(status_wish_type(), wish, arena));
        if (!f->argument || (looks && !(f->seen && f->directory)))
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        f->call = call;
        call->request.subject = f;
        call->request.describe = forward_describe;
        call->request.forget = forward_forget;
        if (looks)
                look_begin(STEAL(f));
        else
                forward_send(STEAL(f));
        return 0;
}

/* A node of the release before would keep a grant's note when it drops the job. */
static int grants_known(const struct engine *x, struct fault *fault)
{
        for (uint32_t n = 0; n < x->cluster->n_nodes; n++) {
                struct fabric_info info;

                fabric_info(x->fabric, n, &info);
                if (n != x->cluster->self && info.link.speaks < MESSAGES_GRANTS)
                        return fault_set(fault, ZERO_EVERSION,
                                         "node %s was not up yet, or is of a release that knows no "
                                         "grants: start this release there, and ask again",
                                         node_name(x, n));
        }
        return 0;
}

int checkpoint_query(struct pending_call *call, const char *what, const char *argument,
                     struct fault *fault)
{
        struct arena arena = { NULL };
        struct status_wish wish = { .job = argument,
                                    .keep = RECORD_NULL,
                                    .every = RECORD_NULL,
                                    .uid = RECORD_NULL,
                                    .user = RECORD_NULL };
        int r = 0;

        if (!of_job_alone(what))
                r = wish_parse(what, argument, &arena, &wish, fault);
        else if (!job_name_valid(argument))
                r = fault_set(fault, ZERO_EINVAL, "name a job");
        if (!r && wish.convert &&
            !fabric_all_speak(call->session->rpc->x->fabric, MESSAGES_CONVERT))
                r = fault_set(fault, ZERO_EVERSION,
                              "a node was not up yet, or is of a release that converts nothing: "
                              "start this release there, and ask again");
        if (!r && strcmp(what, "grant") == 0)
                r = grants_known(call->session->rpc->x, fault);
        if (!r)
                return forward(call, what, &wish, &arena, fault);
        arena_deinit(&arena);
        return r;
}

/* ---- a node's question --------------------------------------------------------------------- */

static int carry_out(struct engine *x, const char *what, const struct status_wish *wish,
                     struct arena *arena, struct status_ordered *ret, struct fault *fault)
{
        const struct order order = {
                .job = wish->job,
                .directory = wish->directory,
                .uid = (uint32_t)wish->uid,
                .keep = wish->keep == RECORD_NULL ? 0 : (uint32_t)wish->keep,
                .convert = wish->convert,
        };
        bool restore = strcmp(what, "restore") == 0;
        bool periodic = !restore && wish->every != RECORD_NULL;
        int r;

        *ret = (struct status_ordered){ .job = wish->job, .directory = wish->directory };
        if (restore)
                r = restore_order(x, &order, &ret->id, fault);
        else if (periodic)
                r = checkpoint_schedule(x, &order, wish->every, fault);
        else
                r = checkpoint_order(x, &order, &ret->id, fault);
        if (!r && periodic)
                ret->schedule = report_schedule(arena, x, wish->job);
        return r;
}

static int carry_out_grant(struct engine *x, const char *what, const struct status_wish *wish,
                           struct arena *arena, struct status_grants *ret, struct fault *fault)
{
        struct job *job;
        int r = job_for_user(x, wish->job, (uint32_t)wish->uid, &job, fault);

        if (!r && of_user(what))
                r = grant_order(job, (uint32_t)wish->user, strcmp(what, "grant") == 0, fault);
        if (r)
                return r;
        *ret = (struct status_grants){ .job = wish->job };
        report_grants(arena, job, &ret->users);
        return 0;
}

void checkpoint_question(struct engine *x, struct job *job, uint32_t node,
                         const Zero__LinkMessage *m)
{
        const char *what = m->query->what;
        bool progress = strcmp(what, "progress") == 0;
        bool grants = of_user(what) || strcmp(what, "grants") == 0;
        struct arena arena = { NULL };
        struct status_progress told;
        struct status_ordered ordered;
        struct status_grants granted_now;
        struct status_wish wish;
        struct fault fault;
        int r;

        if (!job_name_valid(m->job) || coordinator_of(x, m->job) != x->cluster->self) {
                answer(x, node, m, ZERO_EPROTO, "this node does not coordinate that job");
                return;
        }
        r = wish_parse(what, m->query->argument, &arena, &wish, &fault);
        if (!r && grants)
                r = carry_out_grant(x, what, &wish, &arena, &granted_now, &fault);
        else if (!r && progress)
                r = report_progress(&arena, x, m->job, (uint32_t)wish.uid, &told, &fault);
        else if (!r)
                r = carry_out(x, what, &wish, &arena, &ordered, &fault);
        if (r)
                answer(x, node, m, r, fault.text);
        else if (grants)
                query_answer_record(x, node, m->call, status_grants_type(), &granted_now, &arena);
        else if (progress)
                query_answer_record(x, node, m->call, status_progress_type(), &told, &arena);
        else
                query_answer_record(x, node, m->call, status_ordered_type(), &ordered, &arena);
        arena_deinit(&arena);
}

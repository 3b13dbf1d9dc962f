/*
 * Clients ask which checkpoints a directory has, and whether the bytes of one are those that were
 * written.  The node that is asked looks by itself.  A check goes on question by question, so that
 * each piece of it is short, and the check ends with its client.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/cluster/checkpoint/checkpoint.h"
#include "daemon/face/rpc/query.h"
#include "proto/cleanup.h"

enum { ARGUMENT_MAX = 16384, TOLD_MAX = 512 };

struct visit {
        struct pending_call *call; /* NULL once it has ended */
        struct blocking_work work;
        bool verify;
        struct snapshot_place place;
        char *directory, *seen;
        struct snapshot_check check;
        char *text; /* the answer to "checkpoints" */
        struct fault fault;
};

static void visit_free(struct visit *v)
{
        free(v->directory);
        free(v->seen);
        free(v->text);
        free(v);
}

DEFINE_CLEANUP(struct visit *, visit_free)

static void visit_forget(struct request *r)
{
        struct visit *v = r->subject;

        v->call = NULL;
}

static int visit_describe(const struct request *r, struct wait_line *ret)
{
        snprintf(ret->who, sizeof ret->who, "a disk");
        snprintf(ret->what, sizeof ret->what, "what is in the directory of checkpoints");
        return ZERO_EDEADLINE;
}

/* The text may be long: the lane's thread makes it. */
static char *list_text(const struct visit *v, const struct snapshot_listed *listed, uint32_t n)
{
        struct status_kept_all all = { .directory = v->directory,
                                       .left_out = n > TOLD_MAX ? n - TOLD_MAX : 0 };
        struct arena arena = { NULL };
        struct timespec now;
        double age_s;

        clock_gettime(CLOCK_REALTIME, &now);
        for (uint32_t i = 0; i < n && i < TOLD_MAX; i++) {
                const struct snapshot_listed *from = &listed[i];
                struct status_kept *to = LIST_ADD(&arena, &all.checkpoints);

                if (!to)
                        break;
                age_s = (double)now.tv_sec + (double)now.tv_nsec / 1e9 -
                        (double)from->created_ms / 1000;
                *to = (struct status_kept){
                        .name = from->name,
                        .job = from->job[0] ? from->job : NULL,
                        .version = from->version,
                        .age_s = age_s > 0 ? age_s : 0, /* another node's clock may be ahead */
                        .bytes = from->bytes,
                        .shards = from->n_shards,
                        .shards_here = from->n_here,
                        .flaw = from->flaw[0] ? from->flaw : NULL,
                };
        }
        return query_text(record_take_json(status_kept_all_type(), &all, &arena));
}

static void list_run(struct visit *v, int dir)
{
        CLEANUP(cleanup_free) struct snapshot_listed *listed = NULL;
        uint32_t n;

        if (snapshot_list(dir, v->place.uid, &listed, &n, &v->fault) == 0)
                v->text = list_text(v, listed, n);
}

static void visit_run(struct blocking_work *work)
{
        struct visit *v = CONTAINER_OF(work, struct visit, work);
        CLEANUP(cleanup_close) int dir = -1;
        struct fault *fault = &v->fault;

        if (v->seen && snapshot_place_look(&v->place, v->seen, false, fault))
                return;
        if (snapshot_place_open(&v->place, PLACE_READ, &dir, fault))
                return;
        if (v->verify)
                snapshot_check_next(dir, v->place.uid, &v->check, fault);
        else
                list_run(v, dir);
}

static void visit_done(struct blocking_work *work)
{
        struct visit *v = CONTAINER_OF(work, struct visit, work);
        struct status_verified verified = { v->check.shard, v->check.block, v->check.bytes,
                                            v->check.over };
        struct arena arena = { NULL };

        if (v->call && v->fault.status)
                request_end(&v->call->request, v->fault.status, "%s", v->fault.text);
        else if (v->call && v->verify)
                query_end_record(v->call, status_verified_type(), &verified, &arena);
        else if (v->call)
                query_end_text(v->call, STEAL(v->text));
        visit_free(v);
}

static int visit_parse(const char *argument, struct visit *v, struct fault *fault)
{
        json_t *j = strlen(argument) < ARGUMENT_MAX
                            ? json_loads(argument, JSON_REJECT_DUPLICATES, NULL)
                            : NULL;
        struct arena arena = { NULL };
        struct status_visit ask;
        bool sane = j && record_from_json(status_visit_type(), j, &arena, &ask) && ask.directory;

        json_decref(j);
        if (sane) {
                v->directory = strdup(ask.directory);
                v->seen = ask.seen ? strdup(ask.seen) : NULL;
                v->check.shard = ask.shard < ZERO_NODE_MAX ? (uint32_t)ask.shard : 0;
                v->check.block = ask.block == RECORD_NULL ? 0 : ask.block;
                sane = v->directory && (v->seen || !ask.seen);
        }
        arena_deinit(&arena);
        return sane ? 0
                    : fault_set(fault, ZERO_EINVAL, "the question must be JSON with \"directory\"");
}

int visit_query(struct pending_call *call, const char *what, const char *argument,
                struct fault *fault)
{
        CLEANUP(cleanup_visit_free) struct visit *v = calloc(1, sizeof *v);
        const struct engine *x = call->session->rpc->x;
        int r = v ? visit_parse(argument, v, fault)
                  : fault_set(fault, ZERO_ENOMEM, "out of memory");

        if (r)
                return r;
        v->verify = strcmp(what, "verify") == 0;
        v->place = (struct snapshot_place){ x->conf->checkpoint_dir, v->directory,
                                            call->session->uid, NULL };
        v->work = (struct blocking_work){ .run = visit_run,
                                          .done = visit_done,
                                          .what = "to look at the checkpoints in",
                                          .of = v->directory,
                                          .uid = call->session->uid };
        v->call = call;
        call->request.subject = v;
        call->request.describe = visit_describe;
        call->request.forget = visit_forget;
        blocking_submit(x->blocking, v->verify ? LANE_CHECKPOINTS : LANE_PLACES, &v->work);
        STEAL(v);
        return 0;
}

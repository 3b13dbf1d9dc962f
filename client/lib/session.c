/*
 * The rank's stay in its job, which outlives a connection: attaching, and connecting and
 * attaching again when the daemon was lost.
 *
 * Rules: the first try follows the loss at once, each later one a pause that doubles.  Tries end
 * with the timeout of the call that makes them; the next call tries again.  To attach again takes
 * the time of a request of its own, so that the daemon can say whom it waits for.
 * The connection is closed for good where no further try could help: a fenced rank, a dropped
 * job, another protocol.
 */
#include "client.h"

#include "proto/dtype.h"

enum { PAUSE_FIRST_MS = 10, PAUSE_MOST_MS = 500 };

struct tries {
        int64_t until_ms; /* on wire_now()'s clock */
        int64_t pause_ms;
        int64_t rank_until_ms; /* how long the rank may be taken; 0: it was not taken yet */
};

enum verdict { AGAIN, LATER, NEVER };

/* Whether to try again after the daemon refused the rank. */
static enum verdict judge(struct tries *t, int status)
{
        switch (status) {
        case ZERO_ERANK:
                /* the daemon may not have seen yet that the last session ended */
                if (t->rank_until_ms == 0)
                        t->rank_until_ms = wire_now() + CLIENT_GRACE_MS;
                return wire_now() < t->rank_until_ms ? AGAIN : NEVER;
        case ZERO_EBUSY:
        case ZERO_EQUOTA:
        case ZERO_ENOMEM:
        case ZERO_ESHM:
        case ZERO_EIO:
        case ZERO_EPEER:
        case ZERO_EABORTED:
                return AGAIN;
        case ZERO_EDEADLINE:
        case ZERO_ELOSTRANK:
        case ZERO_EINTERNAL:
                return LATER;
        default:
                return NEVER;
        }
}

/* Sleeps until the next try.  ZERO_OK, or the time is up. */
static int wait_for_try(struct zero_client *c, struct tries *t)
{
        int64_t now = wire_now(), end = now + t->pause_ms;

        if (now >= t->until_ms)
                return client_fail(c, ZERO_EDEADLINE,
                                   "zerod did not let rank %d into job '%s' within %u ms: %s",
                                   (int)c->rank, c->job, (unsigned)c->timeout_ms, c->cause.text);
        client_tell(c, "zerod", c->cause.text);
        t->pause_ms = 2 * t->pause_ms < PAUSE_MOST_MS ? 2 * t->pause_ms : PAUSE_MOST_MS;
        if (client_waiting(c, wire_sleep(c->interrupt_fd, end < t->until_ms ? end : t->until_ms)))
                return client_shut(c, "a call was interrupted");
        return ZERO_OK;
}

/* Connects if the connection is lost.  CLIENT_LOST: nobody answered. */
static int reach(struct zero_client *c, struct tries *t)
{
        int r;

        if (!c->lost)
                return 0;
        r = client_dial(c, t->until_ms);
        if (r > 0 && c->lost)
                return client_lose(c, "%s", c->error.text);
        return r ? r : client_take_base_again(c);
}

/* After a failed try.  ZERO_OK: try again. */
static int consider(struct zero_client *c, struct tries *t, int r)
{
        struct fault refusal = c->error;

        if (c->closed)
                return r;
        if (!c->lost) {
                enum verdict verdict = judge(t, r);

                if (verdict == NEVER)
                        client_shut(c, "%s", refusal.text);
                else
                        client_lose(c, "%s", refusal.text);
                c->error = refusal;
                if (verdict != AGAIN)
                        return r;
        }
        return wait_for_try(c, t);
}

int client_resume(struct zero_client *c)
{
        struct tries t = { .until_ms = c->began_ms + c->timeout_ms, .pause_ms = PAUSE_FIRST_MS };
        int r;

        c->entering = true;
        do {
                r = reach(c, &t);
                if (r == 0 && c->layout)
                        r = client_join(c, c->layout, &c->needs, true);
                if (r == 0)
                        break;
                r = consider(c, &t, r);
        } while (r == 0);
        c->entering = false;
        return r;
}

/* ---- attaching for the first time -------------------------------------- */

/* One try of a call before the rank is attached. */
typedef int try(struct zero_client *c, void *call);

/* Tries again while the connection is lost; a refusal is the caller's. */
static int enter(struct zero_client *c, try *one, void *call)
{
        struct tries t = { .until_ms = c->began_ms + c->timeout_ms, .pause_ms = PAUSE_FIRST_MS };
        int r;

        c->entering = true;
        for (;;) {
                r = reach(c, &t);
                if (r == 0)
                        r = one(c, call);
                if (r == 0 || !c->lost || c->closed)
                        break;
                r = wait_for_try(c, &t);
                if (r)
                        break;
        }
        c->entering = false;
        return r;
}

struct joining {
        const layout *layout;
        const struct zero_needs *needs;
};

static int join(struct zero_client *c, void *call)
{
        const struct joining *j = call;

        return client_join(c, j->layout, j->needs, false);
}

static int check_rank(struct zero_client *c, const struct zero_layout *l,
                      const struct zero_needs *needs)
{
        int r;

        if (!l)
                return client_fail(c, ZERO_EINVAL, "a rank attaches with a layout");
        if (!dtype_valid(needs->grad_dtype))
                return client_fail(c, ZERO_EINVAL, "grad_dtype is %s (%d), not " ZERO_DTYPES,
                                   dtype_name(needs->grad_dtype), (int)needs->grad_dtype);
        if (!dtype_valid(needs->reduce_dtype))
                return client_fail(c, ZERO_EINVAL, "reduce_dtype is %s (%d), not " ZERO_DTYPES,
                                   dtype_name(needs->reduce_dtype), (int)needs->reduce_dtype);
        if (needs->accumulate != ZERO_ACCUMULATE_FP32 && needs->accumulate != ZERO_ACCUMULATE_WIRE)
                return client_fail(c, ZERO_EINVAL,
                                   "accumulate is ZERO_ACCUMULATE_FP32 or ZERO_ACCUMULATE_WIRE");
        if (needs->on_lost_rank != ZERO_LOST_WAIT && needs->on_lost_rank != ZERO_LOST_FAIL)
                return client_fail(c, ZERO_EINVAL,
                                   "on_lost_rank is ZERO_LOST_WAIT or ZERO_LOST_FAIL");
        if (needs->device && needs->private_views)
                return client_fail(c, ZERO_EINVAL,
                                   "private_views need host memory: leave them out with a "
                                   "device, and copy what you want to write to");
        if (needs->stash && needs->stash->n_ranks && !needs->stash->ranks)
                return client_fail(c, ZERO_EINVAL, "stash.ranks is NULL, and stash.n_ranks is %u",
                                   (unsigned)needs->stash->n_ranks);
        if (needs->stash && needs->stash->where != ZERO_STASH_WINDOWS &&
            needs->stash->where != ZERO_STASH_HOST)
                return client_fail(c, ZERO_EINVAL,
                                   "stash.where is ZERO_STASH_WINDOWS or ZERO_STASH_HOST");
        if (needs->stash && needs->stash->n_ranks > ZERO_RANK_MAX)
                return client_fail(c, ZERO_ERANK, "the set of a stash has at most %d ranks, not %u",
                                   ZERO_RANK_MAX, (unsigned)needs->stash->n_ranks);
        r = layout_check(l, &c->error);
        return r < 0 ? client_fail(c, ZERO_ENOMEM, "out of memory") : r;
}

/* needs: the caller's; chosen: what they come to. */
static int check(struct zero_client *c, const struct zero_layout *l, const struct zero_needs *needs,
                 const struct zero_needs *chosen)
{
        if (c->layout)
                return client_fail(c, ZERO_EORDER, "the client is already attached");
        if (!c->job[0])
                return client_fail(c, ZERO_ENOJOB,
                                   "no job was named to zero_connect(), nor by $ZEROD_JOB");
        if (c->rank != ZERO_OBSERVER)
                return check_rank(c, l, chosen);
        if (l || needs)
                return client_fail(c, ZERO_EINVAL,
                                   "an observer gets the layout from the job: attach with NULL");
        return 0;
}

int zero_attach(struct zero_client *client, const struct zero_layout *layout_in,
                const struct zero_needs *needs)
{
        struct zero_needs chosen = needs ? *needs : (struct zero_needs){ 0 };
        struct joining joining = { layout_in, layout_in ? &chosen : NULL };
        int r = client_open(client);

        chosen.grad_dtype = chosen.grad_dtype ? chosen.grad_dtype : ZERO_FP32;
        chosen.reduce_dtype = chosen.reduce_dtype ? chosen.reduce_dtype : ZERO_FP32;
        if (r == 0)
                r = check(client, layout_in, needs, &chosen);
        if (r == 0 && needs && needs->device)
                r = gpu_open(needs->device, true, &client->gpu, &client->error);
        if (r)
                return r;
        r = enter(client, join, &joining);
        if (!client->layout) {
                gpu_close(client->gpu);
                client->gpu = NULL;
        }
        return r;
}

/* ---- frozen weights ------------------------------------------------------ */

struct taking {
        const struct base_files *files;
        struct zero_file *ret_files;
};

static int take_base(struct zero_client *c, void *call)
{
        const struct taking *t = call;

        return client_take_base(c, t->files, t->ret_files);
}

static int check_base(struct zero_client *c, uint32_t n)
{
        if (c->layout || c->base.bytes)
                return client_fail(c, ZERO_EORDER, "%s",
                                   c->layout ? "zero_base() comes before zero_attach()"
                                             : "a client has one base: name all files at once");
        if (n == 0 || n > ZERO_FILE_MAX)
                return client_fail(c, ZERO_EINVAL, "a base has 1 to %d files, not %u",
                                   ZERO_FILE_MAX, (unsigned)n);
        return 0;
}

int zero_base(struct zero_client *client, const char *const *paths, uint32_t n,
              struct zero_file *ret_files)
{
        struct base_files *files = NULL;
        struct taking taking = { .ret_files = ret_files };
        int r = client_open(client);

        r = client_given(client, r, paths);
        r = client_given(client, r, ret_files);
        for (uint32_t i = 0; r == 0 && i < n && i < ZERO_FILE_MAX; i++)
                r = client_given(client, r, paths[i]);
        if (r == 0)
                r = check_base(client, n);
        if (r == 0)
                r = base_files_open(client, paths, n, &files);
        if (r == 0)
                r = client_open(client); /* reading took time that is not the daemon's */
        taking.files = files;
        if (r == 0)
                r = enter(client, take_base, &taking);
        base_files_close(files);
        return r;
}

static int take_copy(struct zero_client *c, void *call)
{
        return client_take_copy(c);
}

static int check_copy(struct zero_client *c)
{
        if (c->base.bytes == 0)
                return client_fail(c, ZERO_EORDER, "zero_base() comes before zero_base_copy()");
        if (c->layout || c->copy.memory)
                return client_fail(c, ZERO_EORDER, "%s",
                                   c->layout ? "zero_base_copy() comes before zero_attach()"
                                             : "a client has its base on one GPU, and once");
        return 0;
}

int zero_base_copy(struct zero_client *client, const char *device, struct zero_gpu_base *ret_copy)
{
        int r = client_open(client);

        r = client_given(client, r, device);
        r = client_given(client, r, ret_copy);
        if (r == 0)
                r = check_copy(client);
        if (r == 0)
                r = gpu_open(device, false, &client->copy.gpu, &client->error);
        if (r)
                return r;
        r = enter(client, take_copy, NULL);
        if (r == 0) {
                *ret_copy = (struct zero_gpu_base){ client->copy.memory, client->base.bytes,
                                                    client->copy.gpu->plugin->unmap };
        } else {
                gpu_close(client->copy.gpu);
                client->copy.gpu = NULL;
        }
        return r;
}

/* ---- a layout of parts --------------------------------------------------- */

struct composing {
        Zero__Layout *part;
        uint32_t stage;
        layout *whole;
};

static int compose(struct zero_client *c, void *call)
{
        struct composing *k = call;
        Zero__Compose compose = ZERO__COMPOSE__INIT;
        struct fault fault = { 0 };
        const Zero__Reply *reply;
        int r;

        compose.part = k->part;
        compose.stage = k->stage;
        r = client_ask(c, REQUEST(COMPOSE, compose, &compose), &reply);
        if (r)
                return r;
        if (!reply->composed->layout)
                return client_shut(c, "zerod did not pass the layout of all ranks");
        r = layout_from_message(reply->composed->layout, &k->whole, &fault);
        if (r < 0)
                return client_fail(c, ZERO_ENOMEM, "out of memory");
        return r ? client_shut(c, "zerod passed a bad layout: %s", fault.text) : 0;
}

static int check_part(struct zero_client *c, const struct zero_layout *part)
{
        int r;

        if (c->layout)
                return client_fail(c, ZERO_EORDER, "the client is already attached");
        if (!c->job[0])
                return client_fail(c, ZERO_ENOJOB,
                                   "no job was named to zero_connect(), nor by $ZEROD_JOB");
        if (c->rank == ZERO_OBSERVER)
                return client_fail(c, ZERO_EINVAL, "a rank brings a part of the layout");
        r = layout_check(part, &c->error);
        return r < 0 ? client_fail(c, ZERO_ENOMEM, "out of memory") : r;
}

int zero_compose(struct zero_client *client, const struct zero_layout *part, uint32_t stage,
                 struct zero_layout **ret_layout)
{
        struct composing composing = { .stage = stage };
        int r = client_open(client);

        r = client_given(client, r, part);
        r = client_given(client, r, ret_layout);
        if (r == 0)
                r = check_part(client, part);
        if (r == 0 && (layout_to_message(part, &composing.part) < 0 ||
                       client_name_base(client, composing.part) < 0))
                r = client_fail(client, ZERO_ENOMEM, "out of memory");
        if (r == 0)
                r = enter(client, compose, &composing);
        if (composing.part)
                zero__layout__free_unpacked(composing.part, NULL);
        if (r == 0)
                *ret_layout = composing.whole;
        return r;
}

/* ---- calls --------------------------------------------------------------- */

/*
 * Whether the same request may go out again on a resumed connection.  A put may not: its values
 * lay in the window that is gone.  A norm of gradients or a step belongs to its attempt.
 */
static bool repeats(const struct zero_client *c, const Zero__Request *request)
{
        switch (request->body_case) {
        case ZERO__REQUEST__BODY_QUERY:
                return true;
        case ZERO__REQUEST__BODY_FETCH:
        case ZERO__REQUEST__BODY_GET:
                return c->deferred.status == ZERO_OK;
        case ZERO__REQUEST__BODY_NORMS:
                return c->deferred.status == ZERO_OK && request->norms->plane != ZERO_PLANE_GRAD;
        default:
                return false;
        }
}

int client_call(struct zero_client *c, Zero__Request *request, const Zero__Reply **ret_reply)
{
        for (bool again = true;; again = false) {
                int r = client_ask(c, request, ret_reply);

                if (r != CLIENT_LOST)
                        return r;
                r = client_resume(c);
                if (r)
                        return r;
                if (!again || !repeats(c, request))
                        break;
                if (request->body_case == ZERO__REQUEST__BODY_FETCH)
                        request->fetch->attempt = c->attempt;
        }
        c->deferred.status = ZERO_OK;
        return client_fail(c, ZERO_EABORTED, CLIENT_RESUMED, (unsigned long long)c->version);
}

/* ---- the beginning of a call ------------------------------------------- */

int client_go_on(struct zero_client *c, int r)
{
        if (r == CLIENT_LOST || (r == 0 && c->lost))
                r = client_resume(c);
        return r || c->deferred.status == ZERO_OK ? r : client_report_deferred(c);
}

int client_begin(struct zero_client *c)
{
        return client_go_on(c, client_open(c));
}

int client_begin_unwaited(struct zero_client *c)
{
        int r = client_open(c);

        return r || c->deferred.status == ZERO_OK ? r : client_report_deferred(c);
}

int client_begin_aborted(struct zero_client *c)
{
        int r = client_open(c);

        return r || c->deferred.status != ZERO_EABORTED ? r : client_report_deferred(c);
}

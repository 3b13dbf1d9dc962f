/*
 * Norms of tensors, computed by the tensors' owners.
 *
 * The asking node asks every node with shards.  Each node answers with the sums of squares over the
 * elements that its owners have (norms_told.c); mirrors are left out.  Sums are exact, and no
 * partition cuts their blocks, so a norm has the same bits however the tensor lies.  Owners may
 * have different versions of a plane: then the node asks again for the newest.
 */
#include "daemon/step/tensors/access.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/dtype.h"

void norm_sums_init(struct norm_sum *sums, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++) {
                exact_sum_init(&sums[i].squares);
                sums[i].finite = true;
        }
}

bool norm_counts(const struct job *job, uint32_t tensor, struct plane plane)
{
        const struct layout_tensor *t = &job->layout->tensors[tensor];

        if (dtype_is_bytes(job->layout->groups[t->group].dtype))
                return false;
        return plane.kind == PLANE_GRAD ? !t->frozen : tensor_has(job, tensor, plane);
}

int norms_check(const struct job *job, const Zero__Norms *m, struct fault *fault)
{
        const struct plane plane = plane_from(m->plane);
        uint32_t n = job->layout->n_tensors;

        if (plane.kind != PLANE_GRAD && plane.kind != PLANE_MASTER &&
            (plane.kind != PLANE_MOMENT || !optimizer_plane_name(job->layout, plane)))
                return fault_set(fault, ZERO_EINVAL,
                                 "plane %s (%u) has no norms: only gradients, master weights and "
                                 "the moments of the job's optimizers have norms",
                                 plane_name(m->plane) ? plane_name(m->plane) : "unknown", m->plane);
        if (m->count == 0 || m->count > LAYOUT_NORMS || m->first >= n || m->count > n - m->first)
                return fault_set(fault, ZERO_ERANGE,
                                 "tensors %u+%u: the layout has %u tensors, and a call is for 1 to "
                                 "%d of them",
                                 m->first, m->count, n, LAYOUT_NORMS);
        return 0;
}

/* Gradients may be long in coming: the client's own wait has a deadline. */
enum { GRAD_CALL_MS = 24 * 3600 * 1000 };

static void norms_ask(struct norms *n, uint64_t version);

static void norms_free(struct norms *n)
{
        list_remove(&n->link);
        turn_end(n->job->x->tensors, &n->turn);
        n->window->gets--;
        push_window_unref(n->window);
        job_unref(n->job);
        free(n->sums);
        free(n->values);
        free(n);
}

void norms_result(const struct norms *n, struct request *r)
{
        r->result.norms.norms = n->values;
        r->result.norms.n_norms = n->count;
        r->result.norms.version = n->newest;
}

static void norms_end(struct norms *n)
{
        struct request *r = STEAL(n->request);

        if (n->done)
                n->done(n);
        if (r) {
                norms_result(n, r);
                request_end(r, n->status, "%s", n->text);
        }
        norms_free(n);
}

static void norms_fault(struct norms *n, int status, const char *text)
{
        if (n->status)
                return;
        n->status = status;
        snprintf(n->text, sizeof n->text, "%s", text);
}

/* How many elements of the tensors the norms count. */
static uint64_t norms_elements(const struct norms *n)
{
        uint64_t elements = 0;

        for (uint32_t i = n->first; i < n->first + n->count; i++) {
                uint64_t own = n->job->layout->tensors[i].elements;

                elements += norm_counts(n->job, i, n->plane) ? own : 0;
        }
        return elements;
}

static void norms_told_all(struct norms *n)
{
        if (!n->status && n->request && n->oldest < n->newest) {
                norms_ask(n, n->newest);
                return;
        }
        if (!n->status && n->elements != norms_elements(n)) /* nodes differ on who owns what */
                norms_fault(n, ZERO_EBUSY, being_moved);
        for (uint32_t i = 0; i < n->count; i++)
                n->values[i] = n->sums[i].finite ? sqrt(exact_sum_value(&n->sums[i].squares)) : NAN;
        norms_end(n);
}

static void norms_add(struct norms *n, const Zero__NormsTold *told)
{
        for (uint32_t i = 0; i < n->count; i++) {
                struct exact_sum sum;

                exact_sum_init(&sum);
                for (size_t k = 0; k < EXACT_SUM_BINS; k++)
                        sum.bin[k] = told->bins[i * EXACT_SUM_BINS + k];
                exact_sum_merge(&n->sums[i].squares, &sum);
                n->sums[i].finite = n->sums[i].finite && told->finite.data[i];
        }
        n->elements += told->elements;
        n->oldest = told->oldest < n->oldest ? told->oldest : n->oldest;
        n->newest = told->newest > n->newest ? told->newest : n->newest;
}

static void norms_answered(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        struct norms *n = arg;
        const Zero__NormsTold *told =
                m && m->body_case == ZERO__LINK_MESSAGE__BODY_NORMS_TOLD ? m->norms_told : NULL;

        if (status == ZERO_ECLOSED ||
            status == ZERO_ENOJOB) /* it is not this node that stops: the client would leave */
                norms_fault(n, ZERO_EPEER, "an owner's node stops or starts anew: try again");
        else if (status)
                norms_fault(n, status, text);
        else if (!told || told->n_bins != n->count * EXACT_SUM_BINS || told->finite.len != n->count)
                norms_fault(n, ZERO_EPROTO, "a node's answer has no norms");
        else
                norms_add(n, told);
        if (--n->pending == 0)
                norms_told_all(n);
}

/* Asks all nodes with shards, from scratch. */
static void norms_ask(struct norms *n, uint64_t version)
{
        struct engine *x = n->job->x;
        node_set nodes = placement_nodes(&n->job->placement);
        Zero__LinkMessage m = job_message(n->job->name);
        Zero__NormsAsk ask = ZERO__NORMS_ASK__INIT;
        Zero__Norms of = ZERO__NORMS__INIT;

        norm_sums_init(n->sums, n->count);
        n->elements = n->newest = 0;
        n->oldest = UINT64_MAX;
        of.plane = plane_number(n->plane);
        of.first = n->first;
        of.count = n->count;
        of.attempt = n->attempt;
        ask.of = &of;
        ask.version = version;
        m.body_case = ZERO__LINK_MESSAGE__BODY_NORMS_ASK;
        m.norms_ask = &ask;
        for (uint32_t i = 0; i < x->cluster->n_nodes; i++) {
                if (!node_set_has(nodes, i))
                        continue;
                n->pending++;
                call_send(x, i, &m, n->timeout_ms, norms_answered, n);
        }
}

static int norms_new(struct job *job, struct push_window *window, const Zero__Norms *m,
                     uint64_t timeout_ms, struct norms **ret, struct fault *fault)
{
        struct norms *n;
        int status = norms_check(job, m, fault);

        if (!status)
                status = gets_check(window, fault);
        if (status)
                return status;
        n = calloc(1, sizeof *n);
        if (n)
                *n = (struct norms){ .job = job,
                                     .window = window,
                                     .plane = plane_from(m->plane),
                                     .first = m->first,
                                     .count = m->count,
                                     .attempt = m->attempt,
                                     .timeout_ms = timeout_ms,
                                     .sums = calloc(m->count, sizeof *n->sums),
                                     .values = calloc(m->count, sizeof *n->values) };
        if (!n || !n->sums || !n->values) {
                if (n) {
                        free(n->sums);
                        free(n->values);
                }
                free(n);
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        window->references++;
        window->gets++;
        job_ref(job);
        list_init(&n->turn.link);
        list_insert(&job->x->tensors->norms, &n->link);
        *ret = n;
        return 0;
}

static void norms_begin(struct turn *turn)
{
        struct norms *n = CONTAINER_OF(turn, struct norms, turn);

        norms_ask(n, n->job->version);
}

static void norms_forget(struct request *r)
{
        struct norms *n = r->subject;

        n->request = NULL;
        if (turn_waits(&n->turn))
                norms_free(n);
}

static int norms_describe(const struct request *r, struct wait_line *ret)
{
        const struct norms *n = r->subject;

        if (turn_waits(&n->turn)) {
                turn_describe(ret);
                return ZERO_EDEADLINE;
        }
        snprintf(ret->who, sizeof ret->who, "the owners");
        snprintf(ret->what, sizeof ret->what, "the norms of tensors '%.80s' to '%.80s'",
                 n->job->layout->tensors[n->first].name,
                 n->job->layout->tensors[n->first + n->count - 1].name);
        return ZERO_EDEADLINE;
}

int norms_start(struct job *job, struct push_window *window, const Zero__Norms *m,
                uint64_t timeout_ms, struct request *r, struct fault *fault)
{
        struct norms *n;
        int status = norms_new(job, window, m, timeout_ms, &n, fault);

        if (status)
                return status;
        n->request = r;
        r->subject = n;
        r->describe = norms_describe;
        r->forget = norms_forget;
        n->turn.uid = job->uid;
        n->turn.begin = norms_begin;
        turn_take(job->x->tensors, &n->turn);
        return 0;
}

/* Norms that the rank has asked for in this attempt and not received; NULL: none. */
static struct norms *norms_asked(const struct job *job, uint32_t rank, const Zero__Norms *m)
{
        list_for_each (&job->x->tensors->norms, item) {
                struct norms *n = CONTAINER_OF(item, struct norms, link);

                if (n->job == job && n->done && n->rank == rank && n->attempt == m->attempt &&
                    n->first == m->first && n->count == m->count)
                        return n;
        }
        return NULL;
}

int norms_start_grad(struct job *job, struct push_window *window, const Zero__Norms *m,
                     uint32_t rank, void (*done)(struct norms *n), struct norms **ret,
                     struct fault *fault)
{
        struct norms *n = norms_asked(job, rank, m);
        int status = n ? 0 : norms_new(job, window, m, GRAD_CALL_MS, &n, fault);

        if (status)
                return status;
        if (!n->done)
                norms_ask(n, job->version);
        n->rank = rank;
        n->done = done;
        *ret = n;
        return 0;
}

void norms_fail(struct job *job, int status, const char *text)
{
        list_for_each (&job->x->tensors->norms, item) {
                struct norms *n = CONTAINER_OF(item, struct norms, link);

                if (n->job != job || !n->request)
                        continue;
                request_end(STEAL(n->request), status, "%s", text);
                if (turn_waits(&n->turn))
                        norms_free(n);
        }
}

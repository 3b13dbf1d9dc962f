/*
 * The jobs that this node coordinates: they come and go, and what happens to jobs, nodes and ranks
 * becomes events of their coordinators (coordinator.h).
 */
#include "daemon/coordinator/coordinator.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "proto/cleanup.h"

struct coordinated *coordinated_find(const struct exchange *x, const char *name)
{
        list_for_each (&x->coordinators, item) {
                struct coordinated *c = CONTAINER_OF(item, struct coordinated, link);

                if (strcmp(c->name, name) == 0)
                        return c;
        }
        return NULL;
}

const struct step *coordinated_step(const struct exchange *x, const char *job)
{
        const struct coordinated *c = coordinated_find(x, job);

        return c ? &c->state.step : NULL;
}

Zero__LinkMessage coordinated_message(const struct coordinated *c)
{
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;

        m.job = (char *)c->name;
        m.epoch = c->state.step.epoch;
        return m;
}

/* ---- coming and going -------------------------------------------------------------------- */

static void coordinated_free(struct coordinated *c)
{
        for (uint32_t r = 0; r < c->n_handed; r++)
                kept_clear(&c->handed[r]);
        free(c->handed);
        free(c->kept);
        free(c->kept_pointers);
        free(c->shares);
        free(c->actions.items);
        coordinator_deinit(&c->state);
        layout_free(c->layout);
        if (c->message)
                zero__layout__free_unpacked(c->message, NULL);
        free(c);
}

void coordinated_ref(struct coordinated *c)
{
        c->references++;
}

void coordinated_unref(struct coordinated *c)
{
        if (--c->references == 0)
                coordinated_free(c);
}

int coordinated_reserve(struct coordinated *c, uint32_t world_size)
{
        Zero__Kept *kept, **pointers;
        struct kept *handed;

        if (world_size <= c->n_handed)
                return 0;
        kept = realloc(c->kept, world_size * sizeof *kept);
        c->kept = kept ? kept : c->kept;
        pointers = realloc(c->kept_pointers, world_size * sizeof *pointers);
        c->kept_pointers = pointers ? pointers : c->kept_pointers;
        handed = realloc(c->handed, world_size * sizeof *handed);
        c->handed = handed ? handed : c->handed;
        if (!kept || !pointers || !handed)
                return -ENOMEM;
        memset(&handed[c->n_handed], 0, (world_size - c->n_handed) * sizeof *handed);
        c->n_handed = world_size;
        return 0;
}

/* What the rules need to know of the layout. */
static void layout_describe(const layout *l, struct coordinator_job *ret)
{
        ret->loss_scale = 1;
        for (uint32_t g = 0; g < l->n_groups; g++) {
                if (l->groups[g].dtype == ZERO_FP16)
                        ret->loss_scale = 65536;
                for (uint32_t i = 0; i < l->groups[g].n_ranks; i++) {
                        uint32_t rank = l->groups[g].ranks[i];

                        if (ret->named_group && rank <= ret->named_rank)
                                continue;
                        ret->named_group = l->groups[g].name;
                        ret->named_rank = rank;
                }
        }
}

static bool coordinated_init(struct coordinated *c, uint32_t world_size, uint64_t return_until_ms)
{
        struct coordinator_job job = { .name = c->name,
                                       .nodes = c->names,
                                       .n_nodes = c->x->cluster->n_nodes,
                                       .world_size = world_size,
                                       .return_until_ms = return_until_ms };

        for (uint32_t n = 0; n < job.n_nodes; n++)
                c->names[n] = node_name(c->x, n);
        layout_describe(c->layout, &job);
        return coordinator_init(&c->state, &job, &c->x->view) == 0 &&
               coordinated_reserve(c, world_size) == 0 &&
               layout_to_message(c->layout, &c->message) == 0;
}

struct coordinated *coordinated_new(struct exchange *x, const char *name, uint32_t uid,
                                    uint32_t world_size, uint32_t reduce_dtype, layout *l,
                                    uint64_t return_until_ms)
{
        struct coordinated *c = calloc(1, sizeof *c);

        if (!c) {
                layout_free(l);
                return NULL;
        }
        c->x = x;
        c->references = 1;
        c->layout = l;
        c->uid = uid;
        c->reduce_dtype = reduce_dtype;
        snprintf(c->name, sizeof c->name, "%s", name);
        if (!coordinated_init(c, world_size, return_until_ms)) {
                coordinated_free(c);
                return NULL;
        }
        list_insert(&x->coordinators, &c->link);
        for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                coordinated_event(c, (struct coordinator_event){ .kind = COORDINATOR_LINKS,
                                                                 .node = n,
                                                                 .cut = x->cut[n] });
        for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                coordinated_event(
                        c, (struct coordinator_event){ .kind = COORDINATOR_NODE_UP, .node = n });
        return c;
}

/* Of a job that an earlier process left: asks all nodes where they stand. */
static void coordinator_resume(struct job *job)
{
        layout *l = NULL;

        if (job->coordinator != job->x->cluster->self || coordinated_find(job->x, job->name))
                return;
        if (layout_copy(job->layout, &l) ||
            !coordinated_new(job->x, job->name, job->uid, job->world_size, job->reduce_dtype, l,
                             exchange_now(job->x) + RETURN_MS))
                log_error("job %s: out of memory: it is taken up when a rank attaches", job->name);
}

/* An action may bring another event about: what that gives comes after what is left. */
void coordinated_event(struct coordinated *c, struct coordinator_event e)
{
        e.now_ms = exchange_now(c->x);
        e.linked = c->x->linked;
        e.up = c->x->up;
        coordinated_ref(c);
        coordinator_step(&c->state, &e, &c->actions);
        while (c->acted < c->actions.n) {
                const struct coordinator_action a = c->actions.items[c->acted++];

                action_run(c, &a);
        }
        c->acted = c->actions.n = 0;
        coordinated_unref(c);
}

/* ---- events ---------------------------------------------------------------------------------- */

static void coordinator_tick(struct exchange *x)
{
        list_for_each (&x->coordinators, item) {
                struct coordinated *c = CONTAINER_OF(item, struct coordinated, link);

                coordinated_ref(c); /* it may be closed here */
                coordinated_event(
                        c, (struct coordinator_event){ .kind = COORDINATOR_TICK,
                                                       .known = job_find(x, c->name) != NULL });
                if (!c->state.dead)
                        coordinated_tell(c);
                coordinated_unref(c);
        }
}

static void coordinator_up(struct exchange *x, uint32_t node)
{
        list_for_each (&x->coordinators, item) {
                coordinated_event(
                        CONTAINER_OF(item, struct coordinated, link),
                        (struct coordinator_event){ .kind = COORDINATOR_NODE_UP, .node = node });
        }
}

static void coordinator_down(struct exchange *x, uint32_t node, const char *why)
{
        list_for_each (&x->coordinators, item) {
                struct coordinated *c = CONTAINER_OF(item, struct coordinated, link);

                c->reports[node] = (struct report){ 0 };
                coordinated_event(c, (struct coordinator_event){ .kind = COORDINATOR_NODE_DOWN,
                                                                 .node = node });
        }
}

void coordinators_cut(struct exchange *x, uint32_t node, uint64_t cut)
{
        list_for_each (&x->coordinators, item) {
                coordinated_event(CONTAINER_OF(item, struct coordinated, link),
                                  (struct coordinator_event){
                                          .kind = COORDINATOR_LINKS, .node = node, .cut = cut });
        }
}

static void coordinated_close(struct coordinated *c, int status, const char *text)
{
        coordinated_event(c, (struct coordinator_event){
                                     .kind = COORDINATOR_CLOSE, .status = status, .text = text });
}

static void coordinator_drop(struct exchange *x, const char *job)
{
        struct coordinated *c = coordinated_find(x, job);

        if (c)
                coordinated_close(c, ZERO_ENOJOB, "the job was dropped");
}

void coordinators_free(struct exchange *x)
{
        list_for_each (&x->coordinators, item) {
                coordinated_close(CONTAINER_OF(item, struct coordinated, link), ZERO_ECLOSED,
                                  "the daemon stops");
        }
}

/* ---- messages -------------------------------------------------------------------------------- */

static enum coordinator_finish finish_of(const Zero__Part *part)
{
        if (!part->finish)
                return FINISH_NOT;
        return part->finish == ZERO__FINISH__UNWANTED ? FINISH_UNWANTED : FINISH_COMPLETE;
}

static void part_message(struct coordinated *c, uint32_t node, const Zero__Part *part)
{
        coordinated_event(c, (struct coordinator_event){ .kind = COORDINATOR_LEAVE,
                                                         .node = node,
                                                         .rank = part->rank,
                                                         .session = part->session,
                                                         .orderly = part->orderly,
                                                         .finish = finish_of(part) });
}

/* What the ranks of a node keep with the step; of this attempt alone. */
static int handed_take(struct coordinated *c, uint32_t node, const Zero__Ready *ready,
                       struct fault *fault)
{
        const struct step *s = &c->state.step;

        for (uint32_t r = 0; r < s->world_size; r++)
                if (s->node_of_rank[r] == node)
                        kept_clear(&c->handed[r]);
        for (size_t i = 0; i < ready->n_kept; i++) {
                const Zero__Kept *k = ready->kept[i];

                if (k->rank >= s->world_size || k->blob.len > ZERO_BLOB_MAX ||
                    s->node_of_rank[k->rank] != node)
                        return fault_set(fault, ZERO_EPROTO, "what a rank keeps is malformed");
                if (kept_set(&c->handed[k->rank], k->blob.data, k->blob.len))
                        return fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        return 0;
}

static void ready_message(struct coordinated *c, uint32_t node, const Zero__LinkMessage *m)
{
        const Zero__Ready *ready = m->ready;
        const struct step *s = &c->state.step;
        struct step_params params;
        struct fault fault;
        int r = 0;

        if (ready->params)
                r = step_params_from_message(ready->params, &params, &fault);
        if (!r && ready->params && s->phase != STEP_FORMING && ready->attempt == s->attempt)
                r = handed_take(c, node, ready, &fault);
        if (r) {
                answer(c->x, node, m, r, fault.text);
                return;
        }
        coordinated_event(c, (struct coordinator_event){ .kind = COORDINATOR_READY,
                                                         .node = node,
                                                         .rank = ready->rank,
                                                         .attempt = ready->attempt,
                                                         .params = ready->params ? &params : NULL,
                                                         .call = m->call });
}

static void prepared_message(struct coordinated *c, uint32_t node, const Zero__Prepared *p)
{
        struct votes vote = { .finite = p->finite };

        if (p->n_norm != EXACT_SUM_BINS)
                return;
        exact_sum_init(&vote.norm);
        memcpy(vote.norm.bin, p->norm, sizeof vote.norm.bin);
        if (p->status)
                fault_set(&vote.refused, (int)p->status, "%s", p->text);
        coordinated_event(c, (struct coordinator_event){ .kind = COORDINATOR_VOTE,
                                                         .node = node,
                                                         .owner = p->owner,
                                                         .copy = p->copy,
                                                         .attempt = p->attempt,
                                                         .norm_only = !p->closing,
                                                         .vote = &vote });
}

void coordinator_message(struct exchange *x, uint32_t node, const Zero__LinkMessage *m)
{
        struct coordinated *c;

        if (m->body_case == ZERO__LINK_MESSAGE__BODY_JOIN) {
                joining_message(x, node, m);
                return;
        }
        c = coordinated_find(x, m->job);
        if (!c) {
                answer(x, node, m, ZERO_ENOJOB, "the job's coordinator does not know it");
                return;
        }
        switch (m->body_case) {
        case ZERO__LINK_MESSAGE__BODY_PART:
                part_message(c, node, m->part);
                break;
        case ZERO__LINK_MESSAGE__BODY_READY:
                ready_message(c, node, m);
                break;
        case ZERO__LINK_MESSAGE__BODY_PREPARED:
                prepared_message(c, node, m->prepared);
                break;
        case ZERO__LINK_MESSAGE__BODY_DONE:
                coordinated_event(c, (struct coordinator_event){ .kind = COORDINATOR_DONE,
                                                                 .node = node,
                                                                 .owner = m->done->owner,
                                                                 .copy = m->done->copy,
                                                                 .attempt = m->done->attempt });
                break;
        case ZERO__LINK_MESSAGE__BODY_PROGRESS:
                coordinated_report(c, node, m->progress);
                break;
        default:
                break;
        }
}

const struct module coordinator_module = { .progress = coordinator_tick,
                                           .node_up = coordinator_up,
                                           .node_down = coordinator_down,
                                           .job_stands = coordinator_resume,
                                           .name_dropped = coordinator_drop };

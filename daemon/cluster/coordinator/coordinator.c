/*
 * Turns what happens to jobs, nodes and ranks into events of the coordinators on this node
 * (coordinator.h).
 */
#include "daemon/cluster/coordinator/coordinator.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

/* ---- events ---------------------------------------------------------------------------------- */

static void coordinator_tick(struct engine *x)
{
        composings_tell(x);
        list_for_each (&x->coordinators, item) {
                struct coordinated *c = CONTAINER_OF(item, struct coordinated, link);

                coordinated_ref(c); /* the event may close it */
                coordinated_event(
                        c, (struct coordinator_event){ .kind = COORDINATOR_TICK,
                                                       .known = job_find(x, c->name) != NULL });
                if (!c->state.dead)
                        coordinated_tell(c);
                coordinated_unref(c);
        }
}

static void coordinator_up(struct engine *x, uint32_t node)
{
        list_for_each (&x->coordinators, item) {
                coordinated_event(
                        CONTAINER_OF(item, struct coordinated, link),
                        (struct coordinator_event){ .kind = COORDINATOR_NODE_UP, .node = node });
        }
}

static void coordinator_down(struct engine *x, uint32_t node, const char *why)
{
        composings_down(x, node);
        list_for_each (&x->coordinators, item) {
                struct coordinated *c = CONTAINER_OF(item, struct coordinated, link);

                free(STEAL(c->reports[node]));
                coordinated_event(c, (struct coordinator_event){ .kind = COORDINATOR_NODE_DOWN,
                                                                 .node = node });
        }
}

void coordinators_cut(struct engine *x, uint32_t node, node_set cut)
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

static void coordinator_drop(struct engine *x, const char *job, bool replaced)
{
        struct coordinated *c = coordinated_find(x, job);

        if (c)
                coordinated_close(c, ZERO_ENOJOB, "the job was dropped");
}

void coordinators_free(struct engine *x)
{
        composings_free(x);
        list_for_each (&x->coordinators, item) {
                coordinated_close(CONTAINER_OF(item, struct coordinated, link), ZERO_ECLOSED,
                                  "the daemon stops");
        }
}

/* An earlier process left the job: asks all nodes where it stands. */
static void coordinator_resume(struct job *job)
{
        struct job_spec spec = job->spec;

        if (job->coordinator != job->x->cluster->self || coordinated_find(job->x, job->name))
                return;
        if (layout_copy(job->layout, &spec.layout) ||
            !coordinated_new(job->x, &spec, engine_now(job->x) + RETURN_MS))
                log_error("job %s: out of memory: the job is taken up when a rank attaches",
                          job->name);
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
                                                         .gave_up = part->gave_up,
                                                         .finish = finish_of(part) });
}

/* Takes the blobs that a node's ranks hand in with the step, in this attempt only. */
static int handed_take(struct coordinated *c, uint32_t node, const Zero__Ready *ready,
                       struct fault *fault)
{
        const struct step *s = &c->state.step;

        for (uint32_t r = 0; r < s->world_size; r++)
                if (s->node_of_rank[r] == node)
                        blob_clear(&c->handed[r]);
        for (size_t i = 0; i < ready->n_kept; i++) {
                const Zero__RankBlob *k = ready->kept[i];

                if (k->rank >= s->world_size || k->blob.len > ZERO_BLOB_MAX ||
                    s->node_of_rank[k->rank] != node)
                        return fault_set(fault, ZERO_EPROTO,
                                         "a rank's blob is too large or not from the rank's node");
                if (blob_set(&c->handed[k->rank], k->blob.data, k->blob.len))
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
        if (ready->ahead && !ready->params)
                r = fault_set(&fault, ZERO_EPROTO, "nothing is said of the step's end");
        if (!r && ready->params && !ready->ahead && s->phase != STEP_FORMING &&
            ready->attempt == s->attempt)
                r = handed_take(c, node, ready, &fault);
        if (r) {
                answer(c->x, node, m, r, fault.text);
                return;
        }
        coordinated_event(c, (struct coordinator_event){ .kind = ready->ahead ? COORDINATOR_AHEAD
                                                                              : COORDINATOR_READY,
                                                         .node = node,
                                                         .rank = ready->rank,
                                                         .attempt = ready->attempt,
                                                         .params = ready->params ? &params : NULL,
                                                         .call = m->call });
}

static void numbers_message(struct coordinated *c, uint32_t node, const Zero__LinkMessage *m)
{
        const Zero__AllReduce *of = m->numbers->of;
        struct numbers given;
        struct fault fault;
        int r = ZERO_EPROTO;

        if (of) {
                given = numbers_of(of);
                r = numbers_check(&given, &fault);
        }
        if (r) {
                answer(c->x, node, m, r, of ? fault.text : "no numbers");
                return;
        }
        coordinated_event(c, (struct coordinator_event){ .kind = COORDINATOR_REDUCE,
                                                         .node = node,
                                                         .rank = m->numbers->rank,
                                                         .attempt = of->attempt,
                                                         .numbers = &given,
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

void coordinator_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        struct coordinated *c;

        if (m->body_case == ZERO__LINK_MESSAGE__BODY_JOIN) {
                joining_message(x, node, m);
                return;
        }
        if (m->body_case == ZERO__LINK_MESSAGE__BODY_COMPOSE_PART) {
                composing_message(x, node, m);
                return;
        }
        c = coordinated_find(x, m->job);
        if (!c) {
                answer(x, node, m, ZERO_ENOJOB, "the job's coordinator does not know the job");
                return;
        }
        switch (m->body_case) {
        case ZERO__LINK_MESSAGE__BODY_PART:
                part_message(c, node, m->part);
                break;
        case ZERO__LINK_MESSAGE__BODY_READY:
                ready_message(c, node, m);
                break;
        case ZERO__LINK_MESSAGE__BODY_NUMBERS:
                numbers_message(c, node, m);
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

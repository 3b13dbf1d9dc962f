/*
 * Ranks of this node bring their parts of a layout to the job's coordinator, and wait for the
 * whole.
 *
 * A part goes out again whenever the coordinator comes up: the coordinator forgets the parts of a
 * node with the link.
 */
#include "daemon/cluster/coordinator/coordinator.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/compute/optimizer/optimizer.h"
#include "proto/cleanup.h"

/* Ends with its request or its link. */
enum { CALL_UNTIL_GONE_MS = 24 * 3600 * 1000 };

struct compose {
        struct list link; /* engine.composes */
        struct engine *x;
        struct request *request; /* NULL: nobody waits, and the call in progress frees this */
        char job[ZERO_NAME_MAX + 1];
        struct compose_needs needs;
        struct shared_layout *part;
        bool calling;
        struct wait_line waits; /* who is late, as the coordinator says */
};

static void compose_free(struct compose *c)
{
        list_remove(&c->link);
        layouts_unref(c->part);
        free(c);
}

static Zero__LinkMessage part_message(const struct compose *c, Zero__ComposePart *part)
{
        Zero__LinkMessage m = job_message(c->job);

        zero__compose_part__init(part);
        part->uid = c->needs.uid;
        part->rank = c->needs.rank;
        part->world_size = c->needs.world_size;
        part->stage = c->needs.stage;
        m.body_case = ZERO__LINK_MESSAGE__BODY_COMPOSE_PART;
        m.compose_part = part;
        return m;
}

/* Nobody waits for the layout any more. */
static void compose_forget(struct request *r)
{
        struct compose *c = r->subject;
        Zero__ComposePart part;
        Zero__LinkMessage m = part_message(c, &part);

        c->request = NULL;
        if (!c->calling)
                compose_free(c);
        else
                fabric_send(c->x->fabric, coordinator_of(c->x, c->job), &m);
}

static int compose_describe(const struct request *r, struct wait_line *ret)
{
        const struct compose *c = r->subject;

        if (c->calling) {
                *ret = c->waits;
                ret->until_ms = r->since_ms + (uint64_t)c->x->conf->rank_wait_ms;
        } else {
                wait_for_node(c->x, coordinator_of(c->x, c->job), ret);
        }
        return ZERO_EDEADLINE;
}

static void compose_answered(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        struct compose *c = arg;
        struct request *r = c->request;

        c->calling = false;
        if (r && status == ZERO_EPEER)
                return; /* again when the coordinator is up, until the deadline */
        if (!status &&
            (!m || m->body_case != ZERO__LINK_MESSAGE__BODY_COMPOSED || !m->composed->layout))
                status = ZERO_EPROTO;
        if (r && !status)
                r->result.composed.layout = m->composed->layout;
        compose_free(c);
        if (r)
                request_end(r, status, "%s", text);
}

static void compose_send(struct compose *c)
{
        Zero__ComposePart part;
        Zero__LinkMessage m = part_message(c, &part);

        part.layout = c->part->message;
        snprintf(c->waits.who, sizeof c->waits.who, "the other ranks");
        snprintf(c->waits.what, sizeof c->waits.what, "to bring their parts of the layout");
        c->calling = true;
        call_send(c->x, coordinator_of(c->x, c->job), &m, CALL_UNTIL_GONE_MS, compose_answered, c);
}

int compose_start(struct engine *x, const char *job, const struct compose_needs *needs,
                  const Zero__Layout *part, struct request *r, struct fault *fault)
{
        struct shared_layout *shared = NULL;
        struct compose *c;
        layout *l = NULL;
        int status = 0;

        if (needs->world_size < 1 || needs->world_size > ZERO_RANK_MAX ||
            needs->rank >= needs->world_size)
                status = fault_set(fault, ZERO_ERANK, "there is no rank %u of %u", needs->rank,
                                   needs->world_size);
        if (!status)
                status = optimizer_layout(part, &l, fault);
        if (!status)
                status = layouts_add(x, needs->uid, l, &shared, fault);
        if (status)
                return status;
        c = calloc(1, sizeof *c);
        if (!c) {
                layouts_unref(shared);
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        c->x = x;
        c->part = shared;
        c->request = r;
        snprintf(c->job, sizeof c->job, "%s", job);
        c->needs = *needs;
        r->subject = c;
        r->describe = compose_describe;
        r->forget = compose_forget;
        list_insert(&x->composes, &c->link);
        compose_send(c);
        return 0;
}

void compose_waits_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        list_for_each (&x->composes, item) {
                struct compose *c = CONTAINER_OF(item, struct compose, link);

                if (strcmp(c->job, m->job) != 0 || coordinator_of(x, c->job) != node)
                        continue;
                snprintf(c->waits.who, sizeof c->waits.who, "%s", m->compose_waits->who);
                snprintf(c->waits.what, sizeof c->waits.what, "%s", m->compose_waits->what);
        }
}

static void composes_up(struct engine *x, uint32_t node)
{
        list_for_each (&x->composes, item) {
                struct compose *c = CONTAINER_OF(item, struct compose, link);

                if (c->request && !c->calling && coordinator_of(x, c->job) == node)
                        compose_send(c);
        }
}

void composes_stop(struct engine *x)
{
        list_for_each (&x->composes, item) {
                struct compose *c = CONTAINER_OF(item, struct compose, link);
                struct request *r = STEAL(c->request);

                if (!c->calling)
                        compose_free(c);
                if (r)
                        request_end(r, ZERO_ECLOSED, "the daemon stops");
        }
}

const struct module bringing_module = { .node_up = composes_up };

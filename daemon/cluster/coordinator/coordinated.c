/* The record of a job that this node coordinates (coordinator.h). */
#include "daemon/cluster/coordinator/coordinator.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

struct coordinated *coordinated_find(const struct engine *x, const char *name)
{
        list_for_each (&x->coordinators, item) {
                struct coordinated *c = CONTAINER_OF(item, struct coordinated, link);

                if (strcmp(c->name, name) == 0)
                        return c;
        }
        return NULL;
}

/* ---- coming and going -------------------------------------------------------------------- */

static void coordinated_free(struct coordinated *c)
{
        c->x->freed++;
        for (uint32_t r = 0; r < c->n_handed; r++)
                blob_clear(&c->handed[r]);
        for (uint32_t n = 0; n < ZERO_NODE_MAX; n++)
                free(c->reports[n]);
        free(c->handed);
        free(c->kept);
        free(c->kept_pointers);
        free(c->shares);
        free(c->actions.items);
        coordinator_deinit(&c->state);
        layouts_unref(c->shared);
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
        Zero__RankBlob *kept, **pointers;
        struct blob *handed;

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

/* Tells the rules what they need to know of the layout. */
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

bool coordinated_init(struct coordinated *c, uint64_t return_until_ms)
{
        struct coordinator_job job = { .name = c->name,
                                       .nodes = c->names,
                                       .n_nodes = c->x->cluster->n_nodes,
                                       .world_size = c->world_size,
                                       .return_until_ms = return_until_ms };

        for (uint32_t n = 0; n < job.n_nodes; n++)
                c->names[n] = node_name(c->x, n);
        layout_describe(c->layout, &job);
        return coordinator_init(&c->state, &job, &c->x->placement) == 0 &&
               coordinated_reserve(c, c->world_size) == 0;
}

const char *coordinated_untold(const struct coordinated *c)
{
        return c->state.may_be_there
                       ? "to come up: the job may be there; else take another name, or see "
                         "takeover in zeroctl(1)"
                       : "to come up: the node may have steps that no other has; else drop the job "
                         "and restore it from a checkpoint";
}

/* ---- the last decision, in messages --------------------------------------------------------- */

void decision_fill(const struct coordinated *c, Zero__Decision *ret)
{
        const struct step *s = &c->state.step;

        ret->attempt = s->decided_attempt;
        ret->commit = s->decision.commit;
        ret->finite = s->decision.finite;
        ret->overflow = s->decision.overflow;
        ret->grad_norm = s->decision.grad_norm;
        ret->grad_scale = s->decision.grad_scale;
        ret->good_steps = s->decision.good_steps;
        ret->skipped = s->skipped;
        ret->version = s->version;
        ret->loss_scale = s->loss_scale;
}

Zero__Decision *decision_last(const struct coordinated *c, Zero__Decision *ret)
{
        zero__decision__init(ret);
        decision_fill(c, ret);
        return c->state.step.decided_attempt ? ret : NULL;
}

/*
 * The attempt at a step: what this rank holds and has pushed, until the next attempt begins.
 */
#include "client.h"

#include <assert.h>
#include <string.h>

int client_drop_view(struct zero_client *c, uint32_t group)
{
        int r = views_unmap(&c->views, group);

        if (r == 0)
                return 0;
        return client_shut(c, "cannot unmap group '%s': %s", c->layout->groups[group].name,
                           strerror(-r));
}

void client_new_attempt(struct zero_client *c, const Zero__StepReply *step)
{
        assert(c->groups);
        if (step) {
                c->version = step->version;
                c->attempt = step->attempt;
                c->loss_scale = step->loss_scale > 0 ? step->loss_scale : c->loss_scale;
        }
        for (uint32_t g = 0; g < c->layout->n_groups; g++)
                (void)client_drop_view(c, g); /* a failure has closed the connection */
        memset(c->groups, 0, c->layout->n_groups * sizeof(*c->groups));
        push_reset(&c->push);
        stash_new_attempt(c->stash);
}

struct zero_result client_result(const Zero__StepReply *step)
{
        return (struct zero_result){
                .version = step->version,
                .skipped = step->skipped,
                .grad_norm = step->grad_norm,
                .loss_scale = step->loss_scale,
        };
}

/* Finds, acknowledges and frees contributions of this node's ranks. */
#include "daemon/step/reduce/node_gradient.h"

#include <assert.h>
#include <stdlib.h>

#include "daemon/step/reduce/buffer.h"
#include "proto/cleanup.h"

struct contributor *contributor_of(struct reduce *r, uint32_t group, uint32_t rank)
{
        return &r->contributors[(size_t)group * r->job->world_size + rank];
}

bool is_local(const struct job *job, uint32_t group, uint32_t rank)
{
        return job->node_of_rank[rank] == job->x->cluster->self &&
               layout_group_has_rank(&job->layout->groups[group], rank);
}

void spill_end(struct contribution *c)
{
        if (!c->copy)
                return;
        assert(!c->copying);
        buffer_free(STEAL(c->copy));
        if (c->rank < c->job->world_size) /* the number of ranks may have shrunk */
                c->job->reduce->spilled[c->rank] = false;
}

void contribution_answer(struct contribution *c, int status, const char *text)
{
        struct request *r = STEAL(c->request);

        if (!r)
                return;
        r->subject = NULL;
        request_end(r, status, "%s", text);
}

void contribution_free(struct contribution *c, int status, const char *text)
{
        contribution_answer(c, status, text);
        if (c->copying) {
                c->freed = true;
                return;
        }
        spill_end(c);
        push_window_unref(c->window);
        free(c->present);
        free(c);
}

void contribution_take(struct contribution *c)
{
        list_remove(&c->link);
        c->queued = false;
        if (c->counted)
                c->job->reduce->waiting[c->rank]--;
}

void contribution_abort(struct contribution *c, const struct job *job)
{
        if (job->dead)
                contribution_free(c, ZERO_ENOJOB, "the job was dropped or the daemon stops");
        else
                contribution_free(c, ZERO_EABORTED, "the attempt is over");
}

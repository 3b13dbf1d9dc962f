/*
 * Counts the messages of gathers and gradients in a step, from the partition: who asks whom for
 * which slice, as gather/gather.c, reduce/offering.c, reduce/pulling.c and reduce/vote.c do.
 *
 * A payload that is asked for takes one Pull; its bytes take the bulk path and are no messages.
 * Every node has ranks of the job, and a node that holds a copy of a slice reads that.
 */
#include "client/simulate/simulate.h"

#include "proto/dtype.h"

enum { ANNOUNCED_BYTES = 4 << 20 }; /* as in reduce/offering.c */

/* A slice's messages: `each` of a kind from every other node to the owner's, or back. */
struct flow {
        enum kind kind;
        uint32_t owner, mirror; /* nodes; a mirror that holds the slice does not take part */
        bool back;
        uint64_t each;
};

static bool takes_part(const struct flow *f, uint32_t node)
{
        return node != f->owner && node != f->mirror;
}

static void flow_add(const struct description *d, const struct flow *f, struct tally *tallies,
                     struct tally *all)
{
        uint64_t others = d->nodes - 1 - (f->mirror != RANK_ABSENT);
        struct tally *owner = &tallies[f->owner];

        /* what all other nodes do is added once, to `all`, and taken from those that do not */
        if (f->back) {
                owner->sent[f->kind] += f->each * others;
                all->received[f->kind] += f->each;
        } else {
                owner->received[f->kind] += f->each * others;
                all->sent[f->kind] += f->each;
        }
        for (uint32_t i = 0; i < 2; i++) {
                uint32_t node = i ? f->mirror : f->owner;

                if (node == RANK_ABSENT || takes_part(f, node))
                        continue;
                if (f->back)
                        tallies[node].received[f->kind] -= f->each;
                else
                        tallies[node].sent[f->kind] -= f->each;
        }
}

/* Elements of the range whose tensors are trained, with the gaps behind them. */
static uint64_t trained(const layout *l, uint32_t group, struct range range)
{
        const struct layout_group *g = &l->groups[group];
        uint64_t sum = 0, end = range.first + range.count;

        for (uint32_t i = g->first_tensor; i < g->first_tensor + g->n_tensors; i++) {
                const struct layout_tensor *t = &l->tensors[i];
                uint64_t from = t->offset, to = from + layout_tensor_room(t);

                from = from < range.first ? range.first : from;
                to = to > end ? end : to;
                if (to > from && !t->frozen)
                        sum += to - from;
        }
        return sum;
}

uint32_t traffic_grad_parts(const struct description *d, struct range slice)
{
        if (d->announces && slice.count * d->reduce_size <= ANNOUNCED_BYTES)
                return 0;
        return range_parts(slice.count, PART_BYTES / d->reduce_size);
}

/* An owner's whole sum goes to its mirror. */
static void mirror_count(struct tally *owner, struct tally *mirror, uint64_t elements)
{
        owner->sent[KIND_offer]++;
        mirror->received[KIND_offer]++;
        if (!elements)
                return;
        mirror->sent[KIND_pull] += range_parts(elements, PART_BYTES / sizeof(float));
        owner->received[KIND_pull] += range_parts(elements, PART_BYTES / sizeof(float));
}

static void slice_count(const struct description *d, uint32_t group, uint32_t owner,
                        struct tally *tallies, struct tally *all)
{
        const struct placement *p = &d->placement;
        const struct range slice = partition_range(d->partition, group, owner);
        uint64_t parts = partition_slice_parts(d->partition, d->layout, group, slice, PART_BYTES);
        struct flow f = { .kind = KIND_pull,
                          .owner = p->node[owner],
                          .mirror = p->copies > 1 ? p->mirror[owner] : (uint32_t)RANK_ABSENT,
                          .each = parts * d->gathers[group] };

        flow_add(d, &f, tallies, all);
        if (!layout_group_trainable(d->layout, group))
                return;
        if (p->copies > 1)
                mirror_count(&tallies[f.owner], &tallies[f.mirror],
                             trained(d->layout, group, slice));
        f.mirror = RANK_ABSENT; /* the mirror's node offers its gradient as any other */
        f.kind = KIND_offer;
        f.each = d->pushes;
        flow_add(d, &f, tallies, all);
        f.kind = KIND_pull;
        f.back = true;
        f.each = (uint64_t)d->pushes * traffic_grad_parts(d, slice);
        flow_add(d, &f, tallies, all);
}

void traffic_count(const struct description *d, struct tally *tallies)
{
        struct tally all = { 0 };

        for (uint32_t g = 0; g < d->layout->n_groups; g++)
                for (uint32_t i = 0; i < d->partition->slices[g]; i++)
                        slice_count(d, g, partition_owner(d->partition, g, i), tallies, &all);
        for (uint32_t n = 0; n < d->nodes; n++)
                for (uint32_t k = 0; k < KINDS; k++) {
                        tallies[n].sent[k] += all.sent[k];
                        tallies[n].received[k] += all.received[k];
                }
}

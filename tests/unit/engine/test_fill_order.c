/* Orders to fill a holder: a correct order is read, and an order with any wrong field is refused.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "daemon/cluster/reshard/fill_target.h"

enum { NODES = 3, SELF = 1 };

static struct cluster cluster = { .n_nodes = NODES, .self = SELF };
static struct engine x = { .cluster = &cluster };

/* A correct order, whose fields tests change: node 1 mirrors node 0. */
struct order {
        Zero__Fill fill;
        Zero__Layout layout, *l;
        Zero__Placement from, to;
        Zero__FillSource sources[2], *pointers[2];
        Zero__Decision last;
        uint32_t before[NODES], after[NODES];
        Zero__Tensor tensor, *tensors[1];
        Zero__Group group, *groups[1];
        uint64_t shape[1];
};

static void layout_fill(struct order *o)
{
        zero__layout__init(&o->layout);
        zero__group__init(&o->group);
        zero__tensor__init(&o->tensor);
        o->shape[0] = 300;
        o->tensor.name = (char *)"t";
        o->tensor.shape = o->shape;
        o->tensor.n_shape = 1;
        o->tensors[0] = &o->tensor;
        o->group.name = (char *)"g";
        o->group.dtype = ZERO_FP32;
        o->group.tensors = o->tensors;
        o->group.n_tensors = 1;
        o->groups[0] = &o->group;
        o->layout.groups = o->groups;
        o->layout.n_groups = 1;
}

static void placement_of(Zero__Placement *p, uint32_t *owners, uint32_t n, uint64_t epoch)
{
        zero__placement__init(p);
        p->epoch = epoch;
        p->owners = owners;
        p->n_owners = n;
        p->mirror = true;
}

static void order_init(struct order *o)
{
        *o = (struct order){ .before = { 2, 0 }, .after = { 0, 1, 2 } };
        layout_fill(o);
        placement_of(&o->from, o->before, 2, 3);
        placement_of(&o->to, o->after, 3, 4);
        zero__decision__init(&o->last);
        o->last.attempt = 8;
        o->last.commit = true;
        o->last.loss_scale = 2;
        for (uint32_t i = 0; i < 2; i++) {
                zero__fill_source__init(&o->sources[i]);
                o->sources[i].owner = i;
                o->sources[i].copy = 1;
                o->sources[i].puts = 50 + i;
                o->pointers[i] = &o->sources[i];
        }
        zero__fill__init(&o->fill);
        o->fill.world_size = 4;
        o->fill.reduce_dtype = ZERO_BF16;
        o->fill.layout = &o->layout;
        o->fill.from = &o->from;
        o->fill.to = &o->to;
        o->fill.owner = 0;
        o->fill.copy = 1;
        o->fill.version = 6;
        o->fill.attempt = 9;
        o->fill.last = &o->last;
        o->fill.puts = STATE_PUTS_MAX;
        o->fill.sources = o->pointers;
        o->fill.n_sources = 2;
}

static int read_order(const struct order *o, struct fill_target *ret, struct fault *fault)
{
        struct job_spec spec = { .layout = NULL };
        int r;

        *ret = (struct fill_target){ .x = &x };
        r = fill_target_read_order(ret, &o->fill, &spec, fault);
        cr_assert_eq(r == 0, spec.layout != NULL);
        layout_free(spec.layout);
        return r;
}

Test(fill_target_order, that_is_whole_is_read)
{
        struct order o;
        struct fill_target f;
        struct fault fault;

        order_init(&o);
        cr_assert_eq(read_order(&o, &f, &fault), 0, "%s", fault.text);
        cr_assert(f.from.epoch == 3 && f.from.n_owners == 2 && f.from.node[0] == 2);
        cr_assert(f.to.epoch == 4 && f.to.n_owners == 3 && fill_target_holder(&f) == 3);
        cr_assert(f.record.version == 6 && f.record.attempt == 9 && f.record.decided_attempt == 8 &&
                  f.record.commit == 1 && f.record.loss_scale == 2 &&
                  f.record.phase == ATTEMPT_OPEN);
        cr_assert(!f.readable[0] && f.readable[2] && f.readable[3]);
        cr_assert(f.source_puts[2] == 50 && f.source_puts[3] == 51);
}

Test(fill_target_order, before_any_decision_is_read)
{
        struct order o;
        struct fill_target f;
        struct fault fault;

        order_init(&o);
        o.fill.last = NULL;
        o.fill.attempt = 1;
        cr_assert_eq(read_order(&o, &f, &fault), 0, "%s", fault.text);
        cr_assert_eq(f.record.decided_attempt, 0);
}

Test(fill_target_order, from_owners_of_whom_some_are_gone_is_read)
{
        struct order o;
        struct fill_target f;
        struct fault fault;

        order_init(&o);
        o.before[1] = NO_NODE;
        o.sources[0] = o.sources[1]; /* the mirror of owner 1, on node 2 */
        cr_assert_eq(read_order(&o, &f, &fault), 0, "%s", fault.text);
        cr_assert(f.readable[3] && !f.readable[2] && f.from.node[1] == NO_NODE);
}

/* Each function spoils one field. */
static void no_from(struct order *o)
{
        o->fill.from = NULL;
}
static void no_to(struct order *o)
{
        o->fill.to = NULL;
}
static void no_layout(struct order *o)
{
        o->fill.layout = NULL;
}
static void no_owners(struct order *o)
{
        o->to.n_owners = 0;
}
static void too_many_owners(struct order *o)
{
        o->from.n_owners = SIZE_MAX;
}
static void owner_twice(struct order *o)
{
        o->after[2] = 0;
}
static void owner_unknown(struct order *o)
{
        o->before[1] = NODES;
}
static void source_nowhere(struct order *o)
{
        o->before[0] = NO_NODE;
}
static void new_owner_nowhere(struct order *o)
{
        o->after[2] = NO_NODE;
}
static void owner_huge(struct order *o)
{
        o->before[1] = UINT32_MAX;
}
static void holder_unknown(struct order *o)
{
        o->fill.owner = 3;
}
static void holder_huge(struct order *o)
{
        o->fill.owner = UINT32_MAX;
}
static void copy_unknown(struct order *o)
{
        o->fill.copy = 2;
}
static void copy_without_mirrors(struct order *o)
{
        o->to.mirror = false;
}
static void holder_elsewhere(struct order *o)
{
        o->fill.owner = 1;
}
static void source_unknown(struct order *o)
{
        o->sources[1].owner = 2;
}
static void source_huge(struct order *o)
{
        o->sources[0].owner = UINT32_MAX;
}
static void source_copy_unknown(struct order *o)
{
        o->sources[0].copy = UINT32_MAX;
}
static void version_too_high(struct order *o)
{
        o->fill.version = STATE_STEP_MAX + 1;
}
static void attempt_decided(struct order *o)
{
        o->fill.attempt = 8;
}
static void attempt_none(struct order *o)
{
        o->fill.attempt = 0;
}
static void puts_too_high(struct order *o)
{
        o->fill.puts = STATE_PUTS_MAX + 1;
}
static void world_empty(struct order *o)
{
        o->fill.world_size = 0;
}
static void world_too_large(struct order *o)
{
        o->fill.world_size = ZERO_RANK_MAX + 1;
}
static void dtype_unknown(struct order *o)
{
        o->fill.reduce_dtype = 77;
}
static void layout_bad(struct order *o)
{
        o->group.dtype = 77;
}

Test(fill_target_order, that_makes_no_sense_is_refused)
{
        static void (*const spoil[])(struct order *) = {
                no_from,          no_to,
                no_layout,        no_owners,
                too_many_owners,  owner_twice,
                owner_unknown,    owner_huge,
                holder_unknown,   holder_huge,
                copy_unknown,     copy_without_mirrors,
                holder_elsewhere, source_unknown,
                source_huge,      source_copy_unknown,
                version_too_high, attempt_decided,
                attempt_none,     puts_too_high,
                world_empty,      world_too_large,
                dtype_unknown,    layout_bad,
                source_nowhere,   new_owner_nowhere,
        };

        for (size_t i = 0; i < sizeof spoil / sizeof spoil[0]; i++) {
                struct order o;
                struct fill_target f;
                struct fault fault = { 0 };

                order_init(&o);
                spoil[i](&o);
                cr_assert_gt(read_order(&o, &f, &fault), 0, "case %zu", i);
                cr_assert_gt(strlen(fault.text), 0, "case %zu", i);
        }
}

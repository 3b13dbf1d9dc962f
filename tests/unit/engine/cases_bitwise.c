/*
 * The parameters after some steps are the same to the bit whatever the number of
 * owners, the timing, the size of chunks, the instruction set, the windows.
 */
#include <math.h>
#include <string.h>

#include "cases.h"
#include "check.h"
#include "training.h"

/* Runs the training with 1, 2, 3 and 5 owners on five nodes, with another timing each time. */
static struct outcome same_for_owners(struct training t, const char *what)
{
        static const uint32_t owners[] = { 1, 2, 3, 5 };
        struct outcome first = { 0 };

        t.net.nodes = 5;
        for (size_t i = 0; i < sizeof owners / sizeof owners[0]; i++) {
                struct outcome o;

                t.net.owners = owners[i];
                t.net.delay_ms = i % 2 ? 3 : 0;
                t.seed = 100 + i;
                o = training_run(&t);
                if (i == 0)
                        first = o;
                outcome_same(&first, &o, what);
        }
        return first;
}

static void one_node_one_rank(void)
{
        struct training t = training_default();
        struct outcome o, again;

        t.net = (struct net_options){ .nodes = 1, .owners = 1 };
        t.ranks = 1;
        o = training_run(&t);
        CHECK(o.version == t.steps && !o.skipped[0]);
        CHECK(o.grad_norm[0] > 0.5);
        t.seed = 2;
        again = training_run(&t);
        outcome_same(&o, &again, "again");
        t.steps--;
        again = training_run(&t);
        CHECK(memcmp(&o.sum, &again.sum, sizeof o.sum), "a step changes something");
}

static void accumulation_and_clipping(void)
{
        same_for_owners(training_default(), "default");
}

static void low_precision(void)
{
        struct training t = training_default();

        t.grad_dtype = t.reduce_dtype = ZERO_BF16;
        same_for_owners(t, "bf16");
        t.grad_dtype = ZERO_FP16;
        t.reduce_dtype = ZERO_FP32;
        same_for_owners(t, "fp16 gradients, fp32 between nodes");
        t.reduce_dtype = ZERO_FP16;
        same_for_owners(t, "fp16 gradients, fp16 between nodes");
}

/* An owner that is alone with all ranks adds their contributions up itself; others take a sum. */
static void ranks_of_one_node(void)
{
        static const enum zero_dtype dtypes[][2] = { { ZERO_FP32, ZERO_BF16 },
                                                     { ZERO_BF16, ZERO_BF16 },
                                                     { ZERO_FP16, ZERO_FP32 },
                                                     { ZERO_FP32, ZERO_FP16 } };
        struct training t = training_default();

        memset(t.node_of_rank, 0, sizeof t.node_of_rank);
        t.uneven = true;
        for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
                t.grad_dtype = dtypes[i][0];
                t.reduce_dtype = dtypes[i][1];
                t.masks = i % 2;
                same_for_owners(t, "all on one node");
        }
}

static void many_micro_batches(void)
{
        struct training t = training_default();
        struct outcome first, deep;

        t.micro_batches = 9;
        t.push_groups = 6;
        t.net.threads = 4;
        t.grad_dtype = ZERO_FP16;
        first = same_for_owners(t, "many micro-batches");
        t.deep = t.uneven = true;
        first = same_for_owners(t, "other numbers of micro-batches");
        t.grad_dtype = ZERO_FP32;
        first = same_for_owners(t, "some of them in place");
        t.net.nodes = 5;
        for (t.seed = 1; t.seed < 4; t.seed++) {
                deep = training_run(&t);
                outcome_same(&first, &deep, "in a row");
        }
}

static void masks_and_norms(void)
{
        struct training t = training_default();

        t.masks = t.norm = true;
        same_for_owners(t, "masks");
}

static void windows_and_orders(void)
{
        struct training t = training_default();
        struct outcome first, o;

        t.net.nodes = 3;
        t.net.owners = 3;
        first = training_run(&t);
        t.opposite = t.prefetch = true;
        t.net.delay_ms = 2;
        o = training_run(&t);
        outcome_same(&first, &o, "opposite orders, prefetch");
        t.hold_groups = t.push_groups = ZOO_GROUPS;
        o = training_run(&t);
        outcome_same(&first, &o, "everything held");
        t.hold_groups = 2;
        t.push_groups = 1;
        t.net.reduce_buffers = 1;
        o = training_run(&t);
        outcome_same(&first, &o, "no more buffers than must be");
}

static void chunks_threads_and_instructions(void)
{
        static const char *const isas[] = { "scalar", "avx2", "avx512" };
        struct training t = training_default();
        struct outcome first = training_run(&t), o;

        t.net.chunk = 128;
        t.net.threads = 1;
        o = training_run(&t);
        outcome_same(&first, &o, "small chunks, one thread");
        t.net.chunk = 100 * 128;
        t.net.threads = 4;
        o = training_run(&t);
        outcome_same(&first, &o, "large chunks, four threads");
        for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
                if (!device_host(isas[i]))
                        continue;
                t.net.isa = isas[i];
                o = training_run(&t);
                outcome_same(&first, &o, isas[i]);
        }
}

static void a_silent_rank(void)
{
        struct training t = training_default();
        struct outcome o, with = training_run(&t);

        t.silent_rank = 3;
        o = same_for_owners(t, "silent");
        CHECK(memcmp(&o.sum, &with.sum, sizeof o.sum), "its gradient counted before");
}

/* There are fewer slots than the ranks' orders differ by. */
static void ranks_that_push_in_other_orders(void)
{
        struct training t = training_default();
        struct outcome first = training_run(&t), o;

        t.crossed = true;
        t.push_groups = 1;
        for (t.seed = 1; t.seed < 6; t.seed++) {
                t.net.delay_ms = t.seed % 3;
                o = training_run(&t);
                outcome_same(&first, &o, "one slot each");
        }
}

/* A push without data gives the same bits as no push, and needs no slot. */
static void ranks_that_lack_something(void)
{
        struct training t = training_default();
        struct outcome silent, first, o;

        t.silent_rank = 1;
        silent = training_run(&t);
        t.silent_rank = -1;
        t.lacking_rank = 1;
        t.push_groups = 1;
        o = same_for_owners(t, "one has nothing");
        outcome_same(&silent, &o, "nothing, and said so");
        t.lacking_rank = -1;
        t.micro_batches = 1;
        first = training_run(&t);
        t.micro_batches = 2;
        t.last_lacks = true;
        for (t.seed = 1; t.seed < 4; t.seed++) {
                t.deep = t.seed % 2;
                o = same_for_owners(t, "nobody has anything");
                outcome_same(&first, &o, "a micro-batch of nothing");
        }
}

static void not_finite_skips_everywhere(void)
{
        struct training t = training_default();
        struct outcome o, good;

        t.poisoned_step = 2;
        t.growth_interval = 100;
        t.loss_scale = 4;
        o = same_for_owners(t, "poisoned");
        CHECK(o.version == t.steps - 1);
        CHECK(!o.skipped[0] && o.skipped[1] && !o.skipped[2]);
        CHECK(isnan(o.grad_norm[1]));
        CHECK(o.loss_scale[0] == 4 && o.loss_scale[1] == 2);
        t.poisoned_step = 0;
        good = training_run(&t);
        CHECK(good.version == t.steps);
        CHECK(memcmp(&o.sum, &good.sum, sizeof o.sum));
}

/* One step is skipped: what was updated ahead of it goes back. */
static void updates_ahead_of_decisions(void)
{
        struct training t = training_default();
        struct outcome plain, eager;

        t.clip_norm = 0;
        t.masks = true;
        t.poisoned_step = 2;
        for (t.restart_after = 0; t.restart_after < 2; t.restart_after++) {
                t.eager = false;
                plain = same_for_owners(t, "decided first");
                t.eager = true;
                eager = same_for_owners(t, "updated ahead");
                outcome_same(&plain, &eager, "ahead and after the decision");
                CHECK(eager.version == t.steps - 1);
        }
}

static void daemons_that_restart(void)
{
        struct training t = training_default();
        struct outcome first = training_run(&t), o;

        t.restart_after = 2;
        o = training_run(&t);
        outcome_same(&first, &o, "restarted");
}

const struct test_case bitwise_cases[] = {
        { "one-node-one-rank", one_node_one_rank },
        { "accumulation-and-clipping", accumulation_and_clipping },
        { "low-precision", low_precision },
        { "ranks-of-one-node", ranks_of_one_node },
        { "many-micro-batches", many_micro_batches },
        { "masks-and-norms", masks_and_norms },
        { "windows-and-orders", windows_and_orders },
        { "chunks-threads-and-instructions", chunks_threads_and_instructions },
        { "a-silent-rank", a_silent_rank },
        { "ranks-that-push-in-other-orders", ranks_that_push_in_other_orders },
        { "ranks-that-lack-something", ranks_that_lack_something },
        { "not-finite-skips-everywhere", not_finite_skips_everywhere },
        { "updates-ahead-of-decisions", updates_ahead_of_decisions },
        { "daemons-that-restart", daemons_that_restart },
        { 0 },
};

/* Restores in progress: how many there are, and what becomes of one whose disk does not answer. */
#include <stdio.h>
#include <unistd.h>

#include "cases.h"
#include "check.h"
#include "daemon/cluster/checkpoint/operation.h"
#include "net.h"
#include "proto/cleanup.h"

static bool all_over(void *arg)
{
        const struct engine *x = arg;

        list_for_each (&x->checkpoints->operations, item) {
                if (CONTAINER_OF(item, struct operation, link)->phase != OPERATION_FAILED)
                        return false;
        }
        return true;
}

/* Begins restores until one is refused; returns the refusal's status. */
static int restore_many(struct engine *x, uint32_t *ret_begun)
{
        struct order order = { .directory = "/nowhere/at/all", .uid = geteuid() };
        struct fault fault;
        char name[16];
        uint64_t id;
        int r;

        for (*ret_begun = 0; *ret_begun < 1000; ++*ret_begun) {
                snprintf(name, sizeof name, "job%u", *ret_begun);
                order.job = name;
                r = restore_order(x, &order, &id, &fault);
                if (r)
                        return r;
        }
        return 0;
}

static void restores_in_progress_are_bounded(void)
{
        struct net_options options = { .nodes = 1, .owners = 1 };
        uint32_t begun, again;
        struct net net;

        net_open(&net, &options);
        net.nodes[0].conf.checkpoint_dir = "";
        CHECK(restore_many(&net.nodes[0].x, &begun) == ZERO_EBUSY && begun >= 100);
        net_wait(&net, all_over, &net.nodes[0].x, "the restores to fail");
        CHECK(restore_many(&net.nodes[0].x, &again) == ZERO_EBUSY && again == begun);
        net_wait(&net, all_over, &net.nodes[0].x, "the restores to fail");
        net_close(&net);
}

/* The disk answers, which frees what was read, after the operation has ended by its deadline. */
static void manifest_that_is_never_read_ends_the_restore(void)
{
        struct net_options options = { .nodes = 1, .owners = 1 };
        struct order order = { .job = "job", .directory = "/nowhere/at/all", .uid = geteuid() };
        struct net net;
        struct engine *x = &net.nodes[0].x;
        struct operation *op;
        struct fault fault;
        uint64_t id;

        net_open(&net, &options);
        net.nodes[0].conf.checkpoint_dir = "";
        CHECK(restore_order(x, &order, &id, &fault) == 0);
        op = (struct operation *)operation_find(x, "job");
        op->moved_ms -= OPERATION_SILENCE_MS + 1;
        checkpoint_module.progress(x);
        CHECK(op->phase == OPERATION_FAILED && op->fault.status == ZERO_EDEADLINE && op->pending);
        CHECK(!restore_runs(x, "job"));
        CHECK(restore_order(x, &order, &id, &fault) == 0, "%s", fault.text);
        net_wait(&net, all_over, x, "the second restore to fail");
        CHECK(operation_find(x, "job")->fault.status != ZERO_EDEADLINE);
        CHECK(restore_order(x, &order, &id, &fault) == 0, "%s", fault.text);
        net_close(&net); /* while the disk reads */
}

const struct test_case restore_cases[] = {
        { "manifest-that-is-never-read-ends-the-restore",
          manifest_that_is_never_read_ends_the_restore },
        { "restores-in-progress-are-bounded", restores_in_progress_are_bounded },
        { 0 },
};

/* A checkpoint holds one step, even if updates come before the copy; a restore takes all its
 * places, or none. */
#include <limits.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "cases.h"
#include "check.h"
#include "daemon/store/directory.h"
#include "daemon/store/file.h"
#include "daemon/cluster/checkpoint/capture.h"
#include "training.h"

/* ---- copies that are held -------------------------------------------------------------- */

/* The first exp_avg of each node: only the checkpoint copies that plane. */
static struct {
        struct device_ops ops;
        const struct device_ops *host;
        const struct state *states[NET_NODES_MAX];
        uint32_t n;
        atomic_bool on;
        uv_sem_t go;
} held;

static bool is_held(const char *from)
{
        for (uint32_t i = 0; i < held.n; i++) {
                const struct state *s = held.states[i];
                const char *plane = (const char *)s->in->moments[0];

                if (from >= plane && from < plane + s->plan->moment_elements * sizeof(float))
                        return atomic_load(&held.on);
        }
        return false;
}

static void copy_held(void *dst, const void *src, size_t n)
{
        if (is_held(src))
                uv_sem_wait(&held.go);
        held.host->copy(dst, src, n);
}

static void hold(struct session *s)
{
        held.host = device_host(NULL);
        held.ops = *held.host;
        held.ops.copy = copy_held;
        held.n = s->net.options.owners;
        for (uint32_t i = 0; i < held.n; i++) {
                held.states[i] = net_own(net_job(&s->net, i, "zoo"))->state;
                s->net.nodes[i].x.ops = &held.ops;
        }
        CHECK(uv_sem_init(&held.go, 0) == 0);
        atomic_store(&held.on, true);
}

static void let_go(void)
{
        atomic_store(&held.on, false);
        for (uint32_t i = 0; i < held.n; i++)
                uv_sem_post(&held.go);
}

/* ---- orders ------------------------------------------------------------------------------ */

struct ordered {
        struct net *net;
        struct engine *x;
        const char *job;
};

static bool over(void *arg)
{
        const struct ordered *o = arg;
        const struct operation *op = operation_find(o->x, o->job);

        CHECK(op->phase != OPERATION_FAILED, "%s", op->fault.text);
        return op->phase == OPERATION_DONE;
}

static struct ordered give(struct net *net, const char *job, const char *directory,
                           int (*order)(struct engine *, const struct order *, uint64_t *,
                                        struct fault *))
{
        struct engine *x = &net->nodes[coordinator_of(&net->nodes[0].x, job)].x;
        struct order what = { .job = job, .directory = directory };
        struct fault fault = { 0 };
        uint64_t id;

        CHECK(order(x, &what, &id, &fault) == 0, "%s", fault.text);
        return (struct ordered){ net, x, job };
}

static const struct capture *capture_of(struct net *net, uint32_t node)
{
        return net_own(net_job(net, node, "zoo"))->capture;
}

/* Every node has begun to copy, and waits. */
static bool all_copy(void *arg)
{
        struct net *net = arg;

        for (uint32_t i = 0; i < net->options.owners; i++) {
                const struct capture *t = capture_of(net, i);

                if (!t || t->phase != CAPTURE_WRITING || !t->order.copying)
                        return false;
        }
        return true;
}

/* ---- the cases --------------------------------------------------------------------------- */

static bool all_update(struct net *net)
{
        for (uint32_t i = 0; i < net->options.owners; i++)
                if (!net_own(net_job(net, i, "zoo"))->updating)
                        return false;
        return true;
}

static uint32_t groups_begun(const struct capture *t)
{
        uint32_t n = 0;

        for (uint32_t g = 0; g < t->map.n_groups; g++)
                n += t->order.begun[g];
        return n;
}

/* A step runs while copies are held, and saves what is not copied yet. */
static void step_first(struct session *s)
{
        uint64_t seed = 1, begun = uv_hrtime();

        session_program(s, 2);
        while (!all_update(&s->net)) {
                trainers_turn(s->trainers, s->training->ranks, &seed);
                CHECK(uv_hrtime() - begun < 60000000000u, "no update begins");
        }
        for (uint32_t i = 0; i < held.n; i++)
                CHECK(groups_begun(capture_of(&s->net, i)) > 1, "node %u saves nothing", i);
        let_go();
        session_run(s);
}

static void check_restored(struct net *net, const char *directory, struct checksum expected)
{
        struct ordered other = give(net, "other", directory, restore_order);
        struct checksum sum;

        net_wait(net, over, &other, "the restore");
        sum = net_checksum(net, "other");
        CHECK(memcmp(&sum, &expected, sizeof sum) == 0, "it is of another step");
}

static void update_before_the_copy(bool masks)
{
        struct training t = training_default();
        char directory[PATH_MAX];
        struct checksum before;
        struct ordered taken;
        struct session s;

        t.masks = masks;
        session_open(&s, &t);
        session_attach(&s);
        session_program(&s, 1);
        session_run(&s);
        before = net_checksum(&s.net, "zoo");
        hold(&s);
        snprintf(directory, sizeof directory, "%s/checkpoints", s.net.root);
        taken = give(&s.net, "zoo", directory, checkpoint_order);
        net_wait(&s.net, all_copy, &s.net, "copies");
        step_first(&s);
        net_wait(&s.net, over, &taken, "the checkpoint");
        snprintf(directory, sizeof directory, "%s/checkpoints/zoo-1", s.net.root);
        check_restored(&s.net, directory, before);
        session_close(&s);
        uv_sem_destroy(&held.go);
}

static void an_update_that_comes_before_the_copy_saves(void)
{
        update_before_the_copy(false);
}

static void an_update_saves_tensors_without_a_gradient(void)
{
        update_before_the_copy(true);
}

/* The first node has read its part, and has not been told yet to put it in its place. */
static bool has_read(void *arg)
{
        const struct engine *x = arg;
        struct lane_load load = blocking_load(x->blocking, LANE_CHECKPOINTS);

        return loadings_any(x) && !load.working && !load.waiting;
}

static bool failed(void *arg)
{
        const struct ordered *o = arg;

        return operation_find(o->x, o->job)->phase == OPERATION_FAILED;
}

/* A file that comes after a node has loaded is in the way of one of its two replicas. */
static void a_restore_that_cannot_place_all_leaves_none(void)
{
        struct training t = training_default();
        struct state_identity id = { .job.name = "other" };
        char directory[PATH_MAX], path[PATH_MAX], name[STORE_FILE_NAME];
        struct checksum before;
        struct ordered order;
        struct session s;
        FILE *f;

        t.net.owners_a_node = 2;
        session_open(&s, &t);
        session_attach(&s);
        session_program(&s, 1);
        session_run(&s);
        before = net_checksum(&s.net, "zoo");
        snprintf(directory, sizeof directory, "%s/checkpoints", s.net.root);
        order = give(&s.net, "zoo", directory, checkpoint_order);
        net_wait(&s.net, over, &order, "the checkpoint");
        snprintf(directory, sizeof directory, "%s/checkpoints/zoo-1", s.net.root);
        order = give(&s.net, "other", directory, restore_order);
        net_wait(&s.net, has_read, &s.net.nodes[0].x, "the first node to load");
        id.epoch = s.net.nodes[0].x.placement.epoch;
        store_file_name(&id, 1, name);
        snprintf(path, sizeof path, "%s/%s", s.net.nodes[0].directory, name);
        f = fopen(path, "wx");
        CHECK(f && fclose(f) == 0, "%s", path);
        net_wait(&s.net, failed, &order, "the restore to fail");
        CHECK(unlink(path) == 0);
        store_file_name(&id, 0, name);
        snprintf(path, sizeof path, "%s/%s", s.net.nodes[0].directory, name);
        CHECK(access(path, F_OK) < 0, "the other replica has stayed");
        check_restored(&s.net, directory, before);
        session_close(&s);
}

const struct test_case checkpoint_cases[] = {
        { "a-restore-that-cannot-place-all-leaves-none",
          a_restore_that_cannot_place_all_leaves_none },
        { "an-update-that-comes-before-the-copy-saves",
          an_update_that_comes_before_the_copy_saves },
        { "an-update-saves-tensors-without-a-gradient",
          an_update_saves_tensors_without_a_gradient },
        { 0 },
};

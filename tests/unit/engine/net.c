/* Several nodes in one process. */
#include "net.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

#include "check.h"
#include "daemon/compute/device/gpu/gpu.h"
#include "daemon/floor/base/chunk.h"
#include "daemon/floor/base/log.h"
#include "daemon/step/rank/event_wait.h"
#include "proto/cleanup.h"

char net_home[NET_HOME];

/* ---- start ---- */

/* Engines end one by one, and a link may end or a message come between them. */
static void node_up(void *arg, uint32_t peer)
{
        struct net_node *node = arg;

        node->up++;
        if (node->x.lifetime)
                engine_up(&node->x, peer);
}

static void node_down(void *arg, uint32_t peer, const char *why)
{
        struct net_node *node = arg;

        node->up--;
        if (node->x.lifetime)
                engine_down(&node->x, peer, why);
}

static void node_message(void *arg, uint32_t peer, const Zero__LinkMessage *m)
{
        struct net_node *node = arg;

        if (node->x.lifetime)
                engine_message(&node->x, peer, m);
}

static void node_describe(struct net_node *node, uint32_t self)
{
        const struct net_options *o = &node->net->options;

        node->conf = (struct conf){ .window = o->window,
                                    .chunk = o->chunk ? o->chunk : chunk_default(),
                                    .reduce_buffers = o->reduce_buffers,
                                    .job_limit = 8,
                                    .checkpoint_dir = node->net->root };
        node->cluster = (struct cluster){ .n_nodes = o->nodes, .self = self, .mirror = o->mirror };
        for (uint32_t i = 0; i < o->nodes; i++) {
                snprintf(node->cluster.nodes[i].name, sizeof node->cluster.nodes[i].name, "n%u", i);
                node->cluster.nodes[i].owners =
                        i < o->owners ? (o->owners_a_node ? o->owners_a_node : 1) : 0;
        }
}

static void node_start(struct net_node *node, uint32_t self)
{
        const struct net_options *o = &node->net->options;
        struct fabric_events events = { node_up, node_down, node_message, node };
        struct engine *x = &node->x;
        struct fault fault = { 0 };

        node_describe(node, self);
        node->up = 0;
        node->closed = false;
        *x = (struct engine){ .loop = &node->net->loop,
                              .conf = &node->conf,
                              .cluster = &node->cluster,
                              .ops = place_ops() ? place_ops() : device_host(o->isa),
                              .part_bytes = o->part_bytes ? o->part_bytes : TRANSIT_BYTES };
        CHECK(x->ops, "instruction set %s", o->isa);
        CHECK(store_open(node->directory, 0, &x->store, &fault) == 0, "%s", fault.text);
        CHECK(offload_new(x->loop, o->threads ? o->threads : 2, &x->offload) == 0);
        CHECK(blocking_new(x->loop, &x->blocking) == 0);
        if (gpus_count())
                CHECK(event_waits_new(x->loop, &x->event_waits) == 0);
        x->states_away = o->gpu_states && gpus_count();
        CHECK(engine_start(x) == 0);
        CHECK(fabric_new_inproc(node->net->inproc, self, o->delay_ms, &events, &x->fabric) == 0);
        jobs_resume(x);
}

static bool all_up(void *arg)
{
        struct net *net = arg;

        for (uint32_t i = 0; i < net->options.nodes; i++)
                if (net->nodes[i].up < net->options.nodes)
                        return false;
        return true;
}

void net_up(struct net *net)
{
        net_wait(net, all_up, net, "the nodes to see each other");
}

void net_restart(struct net *net)
{
        CHECK(uv_loop_init(&net->loop) == 0);
        uv_timer_init(&net->loop, &net->alarm);
        CHECK(inproc_net_new(&net->loop, net->options.nodes, &net->inproc) == 0);
        for (uint32_t i = 0; i < net->options.nodes; i++)
                node_start(&net->nodes[i], i);
        net_up(net);
}

void net_open(struct net *net, const struct net_options *options)
{
        *net = (struct net){ .options = *options };
        log_set_level(getenv("NET_LOG") ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
        snprintf(net->root, sizeof net->root, "%s/XXXXXX", net_home);
        CHECK(mkdtemp(net->root));
        for (uint32_t i = 0; i < options->nodes; i++) {
                net->nodes[i].net = net;
                snprintf(net->nodes[i].directory, sizeof net->nodes[i].directory, "%s/n%u",
                         net->root, i);
        }
        net_restart(net);
}

/* ---- waiting ---- */

static void alarm_fired(uv_timer_t *timer)
{
        struct net *net = CONTAINER_OF(timer, struct net, alarm);

        net->late = true;
}

void net_wait(struct net *net, bool (*condition)(void *arg), void *arg, const char *what)
{
        net->late = false;
        uv_update_time(&net->loop);
        uv_timer_start(&net->alarm, alarm_fired, NET_WAIT_MS, 0);
        while (!condition(arg) && !net->late)
                uv_run(&net->loop, UV_RUN_ONCE);
        CHECK(!net->late, "waited too long for %s", what);
        uv_timer_stop(&net->alarm);
}

void net_turn(struct net *net)
{
        uv_timer_start(&net->alarm, alarm_fired, 10, 0);
        uv_run(&net->loop, UV_RUN_ONCE);
        uv_timer_stop(&net->alarm);
}

/* ---- stop ---- */

static void node_closed(void *arg)
{
        struct net_node *node = arg;

        node->closed = true;
}

static bool all_closed(void *arg)
{
        struct net *net = arg;

        for (uint32_t i = 0; i < net->options.nodes; i++)
                if (!net->nodes[i].closed)
                        return false;
        return true;
}

/* One stage of the stop on every node at once. */
static void stop_stage(struct net *net, void (*stop)(struct net_node *node), const char *what)
{
        for (uint32_t i = 0; i < net->options.nodes; i++)
                net->nodes[i].closed = false;
        for (uint32_t i = 0; i < net->options.nodes; i++)
                stop(&net->nodes[i]);
        net_wait(net, all_closed, net, what);
}

static void stop_engine(struct net_node *node)
{
        engine_stop(&node->x, node_closed, node);
}

static void stop_waits(struct net_node *node)
{
        if (node->x.event_waits)
                event_waits_close(node->x.event_waits, node_closed, node);
        else
                node_closed(node);
}

static void stop_fabric(struct net_node *node)
{
        fabric_close(node->x.fabric, node_closed, node);
}

static void stop_blocking(struct net_node *node)
{
        blocking_close(node->x.blocking, node_closed, node);
}

static void stop_offload(struct net_node *node)
{
        offload_close(node->x.offload, node_closed, node);
}

void net_stop(struct net *net)
{
        int r;

        stop_stage(net, stop_engine, "the engines to stop");
        for (uint32_t i = 0; i < net->options.nodes; i++) {
                struct engine *x = &net->nodes[i].x;

                CHECK(list_empty(&x->jobs) && list_empty(&x->dead_jobs) &&
                              list_empty(&x->coordinators) && list_empty(&x->requests.all),
                      "node %u", i);
        }
        stop_stage(net, stop_waits, "the watch of GPUs to end");
        stop_stage(net, stop_fabric, "the fabrics to close");
        stop_stage(net, stop_offload, "the compute threads to end");
        stop_stage(net, stop_blocking, "the lanes to end");
        for (uint32_t i = 0; i < net->options.nodes; i++)
                store_close(net->nodes[i].x.store);
        uv_close((uv_handle_t *)&net->alarm, NULL);
        uv_run(&net->loop, UV_RUN_DEFAULT);
        r = uv_loop_close(&net->loop);
        CHECK(r == 0, "%s", uv_strerror(r));
        inproc_net_free(net->inproc);
}

void directory_delete(const char *path)
{
        DIR *dir = opendir(path);
        const struct dirent *e;

        CHECK(dir, "%s", path);
        while ((e = readdir(dir))) {
                char name[512];

                snprintf(name, sizeof name, "%s/%s", path, e->d_name);
                if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && unlink(name))
                        directory_delete(name);
        }
        closedir(dir);
        CHECK(rmdir(path) == 0, "%s", path);
}

void net_close(struct net *net)
{
        net_stop(net);
        directory_delete(net->root);
}

/* ---- jobs ---- */

struct job *net_job(struct net *net, uint32_t node, const char *name)
{
        return job_find(&net->nodes[node].x, name);
}

struct replica *net_own(const struct job *job)
{
        for_replicas (job, h)
                if (h->copy == 0)
                        return h;
        return NULL;
}

static bool nothing_left(void *arg)
{
        struct net *net = arg;

        for (uint32_t i = 0; i < net->options.nodes; i++) {
                const struct engine *x = &net->nodes[i].x;

                if (!list_empty(&x->jobs) || !list_empty(&x->dead_jobs) || !transfer_module.idle(x))
                        return false;
                if (store_used(x->store))
                        return false;
        }
        return true;
}

void net_drop(struct net *net, const char *name)
{
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        Zero__Drop drop = ZERO__DROP__INIT;

        m.job = (char *)name;
        m.body_case = ZERO__LINK_MESSAGE__BODY_DROP;
        m.drop = &drop;
        send_all(&net->nodes[0].x, &m);
}

void net_gone(struct net *net)
{
        net_wait(net, nothing_left, net, "everything of the job to be gone");
}

struct sum {
        struct checksum total;
        uint32_t pending;
};

struct sum_part {
        struct checksum_asker asker;
        struct sum *sum;
};

static void sum_done(struct checksum_asker *a, int status, const struct checksum *sum)
{
        struct sum_part *part = CONTAINER_OF(a, struct sum_part, asker);

        CHECK(status == ZERO_OK);
        for (int p = 0; p < CHECKSUM_PLANES; p++)
                for (int k = 0; k < 2; k++)
                        part->sum->total.sum[p][k] += sum->sum[p][k];
        part->sum->pending--;
        free(part);
}

static void sum_ask(struct replica *h, struct sum *sum)
{
        struct sum_part *part = calloc(1, sizeof *part);

        part->asker.done = sum_done;
        part->sum = sum;
        sum->pending++;
        CHECK(checksum_ask(h, 0, &part->asker) == 0 || checksum_ask(h, 0, &part->asker) == 0);
}

static bool sum_ready(void *arg)
{
        return ((struct sum *)arg)->pending == 0;
}

struct checksum net_checksum(struct net *net, const char *name)
{
        struct sum s = { 0 };

        for (uint32_t i = 0; i < net->options.owners; i++) {
                struct job *job = net_job(net, i, name);

                CHECK(job && net_own(job));
                for_replicas (job, h)
                        if (h->copy == 0)
                                sum_ask(h, &s);
        }
        net_wait(net, sum_ready, &s, "the checksum");
        return s.total;
}

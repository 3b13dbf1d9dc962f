/*
 * The composition root.
 *
 * Start: GPUs, offload, store, engine, fabric, rpc, http, then readiness.  Stop: in the opposite
 * order, each only when the one before is over: steps in flight, sessions, jobs, links, compute
 * threads, GPUs, work that blocks.  State files stay.
 *
 * STOP_MS after the last step in flight a stop asks the lanes (loop/blocking.h) what it waits for.
 * It saves states and leaves work that a disk holds up.  It goes on waiting for work that the
 * kernel ends.  In any other case the process ends; that loses no state in host memory.
 *
 * Restart, when another owner list is chosen: everything except links, store and threads stops in
 * that order and starts again, in the same process.  A restart waits for all work that blocks.
 */
#include "daemon/node.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/floor/base/log.h"
#include "daemon/floor/base/privilege.h"
#include "daemon/step/rank/rank.h"
#include "daemon/compute/device/gpu/gpu.h"
#include "daemon/face/http/http.h"
#include "daemon/floor/loop/service.h"
#include "daemon/floor/loop/signals.h"
#include "daemon/cluster/membership/membership.h"
#include "daemon/face/rpc/rpc.h"
#include "proto/cleanup.h"
#include "proto/sure.h"

enum { STOP_MS = 10000, THREADS_DEFAULT_MAX = 8 };
enum { TELL_MS = 3000, TELL_AGAIN_MS = 20 }; /* a node starts within TELL_MS */
/* Bytes a second: writing states from GPUs is allowed to be as slow as this. */
enum { SAVE_RATE = 64 << 20 };

struct node {
        uv_loop_t loop;
        struct conf *conf;
        struct cluster cluster;
        struct engine x;
        struct rpc *rpc;
        struct http *http; /* NULL: off */
        struct signals *signals;
        struct service *service;
        uv_timer_t stop_timer;
        int socket; /* that clients come through */
        bool stopping, again;
        bool drained; /* as it stops */
        uint64_t tell_until_ms;
        bool left; /* work that a disk holds up stays behind */
};

/* ---- stop, step by step ---------------------------------------------------- */

static void blocking_gone(void *arg)
{
        struct node *node = arg;

        uv_close((uv_handle_t *)&node->stop_timer, NULL);
        signals_close(node->signals);
        service_close(node->service);
}

static void http_gone(void *arg)
{
        struct node *node = arg;

        blocking_close(node->x.blocking, blocking_gone, node);
}

static void event_waits_gone(void *arg)
{
        struct node *node = arg;

        http_close(node->http, http_gone, node);
}

static void offload_gone(void *arg)
{
        struct node *node = arg;

        node->x.offload = NULL; /* it is freed now */
        if (node->x.event_waits)
                event_waits_close(node->x.event_waits, event_waits_gone, node);
        else
                event_waits_gone(node);
}

static void fabric_gone(void *arg)
{
        struct node *node = arg;

        offload_close(node->x.offload, offload_gone, node);
}

static void node_anew(struct node *node);

/* Whether a node whose link has just ended may start again: it forgets a goodbye, and would take
 * this stop for a failure. */
static bool node_awaits_a_peer(const struct node *node)
{
        uint64_t now = uv_now(&node->loop);

        if (now >= node->tell_until_ms)
                return false;
        for (uint32_t n = 0; n < node->cluster.n_nodes; n++) {
                struct fabric_info info;

                fabric_info(node->x.fabric, n, &info);
                if (n != node->cluster.self && !info.up && info.link.speaks &&
                    info.link.goodbye == GOODBYE_NONE && now - info.link.since_ms < TELL_MS)
                        return true;
        }
        return false;
}

static void stop_late(uv_timer_t *timer);

/* Nothing but links is left.  A peer may have ended its link while sessions and engine stopped. */
static void node_leaves(uv_timer_t *timer)
{
        struct node *node = CONTAINER_OF(timer, struct node, stop_timer);

        if (node_awaits_a_peer(node)) {
                uv_timer_start(timer, node_leaves, TELL_AGAIN_MS, 0);
                return;
        }
        uv_timer_start(timer, stop_late, STOP_MS, 0);
        fabric_close(node->x.fabric, fabric_gone, node);
}

static void engine_gone(void *arg)
{
        struct node *node = arg;

        if (node->again) {
                node_anew(node);
                return;
        }
        node->tell_until_ms = uv_now(&node->loop) + TELL_MS;
        node_leaves(&node->stop_timer);
}

static void sessions_gone(void *arg)
{
        struct node *node = arg;

        engine_stop(&node->x, engine_gone, node);
}

/* Names the work that a stop or restart waits for.  Bit r of the result: a lane of rule r has any.
 */
static uint32_t node_tell_waits(const struct node *node)
{
        uint32_t rules = 0;

        for (enum lane lane = 0; lane < LANES; lane++) {
                struct lane_load load = blocking_load(node->x.blocking, lane);

                if (!load.working && !load.waiting)
                        continue;
                rules |= 1u << load.stop;
                log_warning("the %s waits for blocking work (lane %s): %s, for %.1f s; %u others "
                            "work, and %u wait for their turn",
                            node->again ? "restart with other owners" : "stop", load.lane,
                            load.working ? load.oldest : "no thread", (double)load.oldest_ms / 1e3,
                            load.working ? load.working - 1 : 0, load.waiting);
        }
        return rules;
}

/* Holders keep a dead job, and none of its states (core/job.h). */
static bool states_closed(const struct engine *x)
{
        list_for_each ((struct list *)&x->dead_jobs, item) {
                const struct job *job = CONTAINER_OF(item, struct job, link);

                if (job->references > job->holders)
                        return false;
        }
        return x->stopping && list_empty(&x->jobs);
}

/* Whether a disk or a resolver alone holds the stop up, and states of GPUs are whole: they are
 * saved once the loop ends. */
static bool node_may_leave(const struct node *node, uint32_t waits)
{
        bool engine_gone = !node->x.lifetime; /* links look names up */
        bool computes = node->x.offload && offload_pending(node->x.offload);

        return (waits == 1u << LANE_LEFT || (!waits && engine_gone)) &&
               (engine_gone || states_closed(&node->x)) && !computes;
}

static void stop_late(uv_timer_t *timer)
{
        struct node *node = CONTAINER_OF(timer, struct node, stop_timer);
        uint32_t waits = node_tell_waits(node);
        uint32_t making = node->x.offload ? offload_making(node->x.offload) : 0;

        if (making)
                log_warning("the %s waits for %u states that are being made",
                            node->again ? "restart with other owners" : "stop", making);
        if ((waits && (node->again || waits & 1u << LANE_AWAITED)) ||
            (making && !(waits & 1u << LANE_FATAL))) {
                service_stop_takes(30);
                uv_timer_start(timer, stop_late, STOP_MS, 0);
        } else if (node_may_leave(node, waits)) {
                log_warning("the stop leaves %s as it is",
                            waits ? "that work" : "the look-up of a peer's name");
                node->left = true;
                uv_stop(&node->loop);
        } else {
                log_error("the stop took longer than %d s: the process ends now; states in files "
                          "are whole, states on GPUs are lost",
                          STOP_MS / 1000);
                _exit(1);
        }
}

/* No step is in flight any more. */
static void node_drained(void *arg)
{
        struct node *node = arg;

        node->x.leaving = true;
        http_serve(node->http, false);
        uv_timer_start(&node->stop_timer, stop_late, STOP_MS, 0);
        rpc_close(node->rpc, sessions_gone, node);
}

static void node_wind_down(struct node *node)
{
        node->stopping = true;
        engine_drain(&node->x, node->conf->drain_ms, node_drained, node);
}

static void node_placement_chosen(void *arg)
{
        struct node *node = arg;

        if (node->stopping)
                return;
        log_info("restarting with the owners of the new epoch");
        node->again = true;
        service_reloading(node->service);
        node_wind_down(node);
}

/* A second signal does not wait for steps in flight. */
static void node_stop(void *arg)
{
        struct node *node = arg;

        if (node->stopping && !node->again) {
                log_info("a stop is already in progress");
                if (node->x.draining)
                        engine_drain(&node->x, 0, node_drained, node);
                return;
        }
        log_info("stopping");
        service_stopping(node->service);
        node->drained = membership_drained(&node->x);
        for (uint32_t n = 0; n < node->cluster.n_nodes; n++)
                fabric_goodbye(node->x.fabric, n, node->drained);
        if (node->again)
                node->again = false; /* it winds down already, and does not start again */
        else
                node_wind_down(node);
}

/* ---- options that change ------------------------------------------------------ */

static enum log_level node_log_level(const struct conf *conf)
{
        static const struct {
                const char *name;
                enum log_level level;
        } levels[] = { { "error", LOG_LEVEL_ERROR },
                       { "warning", LOG_LEVEL_WARNING },
                       { "info", LOG_LEVEL_INFO },
                       { "debug", LOG_LEVEL_DEBUG } };

        for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
                if (strcmp(conf->log_level, levels[i].name) == 0)
                        return levels[i].level;
        return LOG_LEVEL_INFO;
}

/* Everybody else reads the options anew. */
static void node_configured(struct node *node)
{
        log_set_level(node_log_level(node->conf));
        store_set_quota(node->x.store, node->conf->memory_limit);
}

static int node_configure(void *arg, const char *name, const char *value, struct fault *fault)
{
        struct node *node = arg;
        int r = conf_set(node->conf, name, value, fault);

        if (r)
                return r;
        node_configured(node);
        log_info("zeroctl has set %s = %s, until zerod reloads its configuration or starts", name,
                 value);
        return 0;
}

static void option_changed(void *arg, const char *name, const char *was, const char *is, bool live)
{
        if (live)
                log_info("reload: %s was %s and is %s", name, was, is);
        else
                log_warning("reload: %s stays %s: restart zerod to make it %s", name, was, is);
}

/* SIGHUP: reads the configuration, and the files of keys and token for rotation.  Links that stand
 * keep their keys. */
static void node_reload(void *arg)
{
        struct node *node = arg;
        struct cluster fresh;
        struct fault fault;

        service_reloading(node->service);
        if (conf_load_again(node->conf, option_changed, NULL, &fault))
                log_error("reload: %s; zerod keeps the options that it has", fault.text);
        else
                log_info("reload: read the configuration again");
        node_configured(node);
        if (conf_cluster(node->conf, &fresh, &fault)) {
                log_error("reload: %s; zerod keeps the keys it has", fault.text);
        } else {
                memcpy(node->cluster.key, fresh.key, sizeof fresh.key);
                memcpy(node->cluster.key_next, fresh.key_next, sizeof fresh.key_next);
                node->cluster.has_key = fresh.has_key;
                node->cluster.has_key_next = fresh.has_key_next;
                log_info("reload: read the key files again");
        }
        explicit_bzero(&fresh, sizeof fresh);
        if (http_reload(node->http, &fault))
                log_error("reload: %s; zerod keeps the token it has", fault.text);
        service_ready(node->service);
}

/* ---- start ------------------------------------------------------------------- */

static void node_up(void *arg, uint32_t peer)
{
        struct node *node = arg;

        if (node->x.lifetime)
                engine_up(&node->x, peer);
        if (node->stopping && !node->again) /* the peer has not heard it, or has forgotten it */
                fabric_goodbye(node->x.fabric, peer, node->drained);
}

static void node_down(void *arg, uint32_t peer, const char *why)
{
        struct node *node = arg;

        if (node->x.lifetime)
                engine_down(&node->x, peer, why);
}

static void node_message(void *arg, uint32_t peer, const Zero__LinkMessage *m)
{
        struct node *node = arg;

        if (node->x.lifetime)
                engine_message(&node->x, peer, m);
}

static int node_device(struct node *node, struct fault *fault)
{
        const char *device = node->conf->device;
        const char *isa = strchr(device, ':');

        node->x.ops = device_host(isa ? isa + 1 : NULL);
        if (node->x.ops)
                return 0;
        return fault_set(fault, ZERO_EINVAL, "device = %s: this CPU cannot run it", device);
}

static int node_collectives(const struct conf *conf, struct fault *fault)
{
        enum gpu_collectives_by by = GPU_BY_AUTO;

        if (strcmp(conf->gpu_collectives, "nccl") == 0)
                by = GPU_BY_NCCL;
        else if (strcmp(conf->gpu_collectives, "copies") == 0)
                by = GPU_BY_COPIES;
        return gpu_collectives_open(by, GPU_COLLECTIVE_MS, fault);
}

/* From here on x->ops works on memory of either kind. */
static int node_use_gpus(struct node *node, struct fault *fault)
{
        int r = node_collectives(node->conf, fault);

        if (r)
                return r;
        r = event_waits_new(&node->loop, &node->x.event_waits);
        if (r < 0)
                return fault_errno(fault, -r, "the thread that watches GPUs");
        node->x.ops = gpu_ops();
        for (uint32_t i = 0; i < gpus_count(); i++)
                log_info("GPU %u: %s, %.1f GiB", i, gpu_info(i)->name,
                         (double)gpu_info(i)->memory_bytes / 0x1p30);
        return 0;
}

static int node_gpus(struct node *node, struct fault *fault)
{
        const struct conf *conf = node->conf;
        int r;

        if (strncmp(conf->device, "host", strlen("host")) == 0)
                return 0;
        if (strcmp(conf->device, "auto") == 0 && !conf->cuda_plugin[0] && gpus_absent())
                return 0;
        r = gpus_open(conf->cuda_plugin[0] ? conf->cuda_plugin : NULL, node->x.ops, fault);
        if (r == 0)
                return node_use_gpus(node, fault);
        if (strcmp(conf->device, "auto") != 0)
                return r;
        log_info("no GPU is used: %s", fault->text);
        return 0;
}

static int node_optimizer(struct node *node, struct fault *fault)
{
        if (strcmp(node->conf->optimizer, "device") != 0)
                return 0;
        if (gpus_count() == 0)
                return fault_set(
                        fault, ZERO_EGPU,
                        "optimizer = device, but this node uses no GPU: see the option device");
        node->x.states_away = true;
        return 0;
}

static int node_offload(struct node *node, struct fault *fault)
{
        uint32_t threads = (uint32_t)node->conf->threads;

        if (threads == 0)
                threads = uv_available_parallelism() < THREADS_DEFAULT_MAX
                                  ? uv_available_parallelism()
                                  : THREADS_DEFAULT_MAX;
        store_set_threads(node->x.store, threads);
        if (offload_new(&node->loop, threads, &node->x.offload))
                return fault_set(fault, ZERO_ENOMEM, "cannot start %u compute threads", threads);
        return blocking_new(&node->loop, &node->x.blocking)
                       ? fault_set(fault, ZERO_ENOMEM, "cannot make lanes for blocking work")
                       : 0;
}

static int node_fabric(struct node *node, struct fault *fault)
{
        const struct conf *conf = node->conf;
        struct fabric_options options = { .cluster = &node->cluster,
                                          .bulk = conf->bulk,
                                          .tcp_payloads = conf->tcp_payloads,
                                          .ucx_tls = conf->ucx_tls[0] ? conf->ucx_tls : NULL,
                                          .staged = strcmp(conf->bulk_gpu, "staged") == 0,
                                          .delay_ms = (uint32_t)conf->delay_ms };
        struct fabric_events events = { node_up, node_down, node_message, node };

        return fabric_new(&node->loop, &options, &events, &node->x.fabric, fault);
}

static int node_manager(struct node *node, struct fault *fault)
{
        struct signals_events events = { node_stop, node_reload, node };

        if (signals_new(&node->loop, &events, &node->signals) ||
            service_new(&node->loop, &node->service))
                return fault_set(fault, ZERO_EIO, "cannot watch for signals");
        return 0;
}

/* The socket stays open while the node restarts: clients wait in its queue. */
static int node_socket(struct node *node, struct fault *fault)
{
        int fd = fcntl(node->socket, F_DUPFD_CLOEXEC, 0);

        if (fd < 0)
                return fault_errno(fault, errno, "the socket of clients");
        return rpc_open(&node->x, fd, &node->rpc, fault);
}

static int node_engine(struct node *node, struct fault *fault)
{
        node->x.part_bytes = TRANSIT_BYTES;
        if (engine_start(&node->x))
                return fault_set(fault, ZERO_EIO, "cannot start the event loop");
        return membership_start(&node->x, fault);
}

/*
 * Another owner list is in force.  A job has one way to reach it: a daemon starts and finds the
 * job's states of an earlier epoch.  So sessions, jobs and engine have stopped, and start again
 * here.  Links are cut so that other nodes see what they would see if the daemon restarted.
 */
static void node_anew(struct node *node)
{
        struct engine *x = &node->x;
        struct fault fault;

        for (uint32_t n = 0; n < node->cluster.n_nodes; n++)
                fabric_cut(x->fabric, n, "it restarts with other owners");
        *x = (struct engine){ .loop = x->loop,
                              .conf = x->conf,
                              .cluster = x->cluster,
                              .fabric = x->fabric,
                              .store = x->store,
                              .offload = x->offload,
                              .blocking = x->blocking,
                              .ops = x->ops,
                              .event_waits = x->event_waits,
                              .taken_back = x->taken_back,
                              .states_away = x->states_away,
                              .node = x->node,
                              .node_arg = x->node_arg };
        node->stopping = node->again = false;
        uv_timer_stop(&node->stop_timer);
        if (node_engine(node, &fault) || node_socket(node, &fault)) {
                log_error("the node cannot restart with the new owners: %s", fault.text);
                exit(1);
        }
        engine_up(x, node->cluster.self);
        jobs_resume(x);
        http_serve(node->http, true);
        service_ready(node->service);
}

static int node_start(struct node *node, struct fault *fault)
{
        const struct conf *conf = node->conf;
        int r = conf_cluster(conf, &node->cluster, fault);

        if (!r)
                r = node_device(node, fault);
        if (!r)
                r = node_gpus(node, fault);
        if (!r)
                r = node_optimizer(node, fault);
        if (!r)
                r = store_open(conf->state_dir, conf->memory_limit, &node->x.store, fault);
        if (!r)
                r = node_offload(node, fault);
        if (!r)
                r = node_engine(node, fault);
        if (!r)
                r = node_fabric(node, fault);
        if (!r)
                r = node_manager(node, fault); /* after UCX, which takes signals of its own */
        if (!r)
                r = node_socket(node, fault);
        if (r)
                return r;
        r = http_open(&node->x, &node->http, fault);
        if (r)
                return r;
        jobs_resume(&node->x);
        log_info("zerod " ZEROD_VERSION ": node %s of %u, %s, socket %s, state in %s",
                 node_name(&node->x, node->cluster.self), node->cluster.n_nodes, node->x.ops->name,
                 conf->socket, conf->state_dir);
        service_ready(node->service);
        return 0;
}

/* A state's planes on a GPU were written to its file, or lost. */
static void node_saved(const char *file, uint64_t bytes, const struct fault *fault)
{
        if (fault)
                log_error("state file %s: cannot write its planes: %s; they are lost: a mirror "
                          "refills them if there is one, otherwise restore a checkpoint",
                          file, fault->text);
        else
                log_info("state file %s: wrote %llu bytes from GPU memory", file,
                         (unsigned long long)bytes);
}

static void node_saves(const char *file, uint64_t done, uint64_t bytes)
{
        log_info("state file %s: wrote %llu of %llu bytes from GPU memory", file,
                 (unsigned long long)done, (unsigned long long)bytes);
}

/* No loop runs any more, so this may block. */
static void node_save(struct node *node)
{
        static const struct store_saving saving = { node_saved, node_saves };
        uint64_t bytes = store_parked(node->x.store), begin = uv_hrtime();

        if (bytes == 0)
                return;
        log_info("writing %llu bytes of states from GPU memory", (unsigned long long)bytes);
        service_stop_takes(30 + bytes / SAVE_RATE);
        store_save(node->x.store, &saving);
        log_info("writing states took %.1f s", (double)(uv_hrtime() - begin) / 1e9);
}

/* Raises the limit to what the process may have: most open files belong to clients. */
static void node_open_files(void)
{
        struct rlimit files;

        if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
                files.rlim_cur = files.rlim_max;
                setrlimit(RLIMIT_NOFILE, &files);
        }
}

static int node_user(const struct conf *conf, struct fault *fault)
{
        CLEANUP(cleanup_free) char *place = strdup(conf->socket);
        struct privilege_folder folders[4] = { { NULL, place ? dirname(place) : "." },
                                               { "state_dir", conf->state_dir } };
        bool root = geteuid() == 0;
        size_t n = 2;
        int r;

        if (conf->peers[0])
                folders[n++] = (struct privilege_folder){ "membership_dir", conf->membership_dir };
        if (conf->log_dir[0])
                folders[n++] = (struct privilege_folder){ "log_dir", conf->log_dir };
        r = privilege_drop(conf->user, folders, n, fault);

        if (!r && root && geteuid() && conf->checkpoint_dir[0] &&
            eaccess(conf->checkpoint_dir, W_OK | X_OK) && errno == EACCES)
                log_warning(
                        "checkpoint_dir %s: user %u may not write there, so no checkpoint can be "
                        "made: 'chown -R' it, with its checkpoints, to that user",
                        conf->checkpoint_dir, (unsigned)geteuid());
        return r;
}

static const struct node_ops node_ops = { node_placement_chosen, node_configure };

int node_run(struct conf *conf, struct fault *fault)
{
        static struct node node; /* one a process */
        int socket = service_socket(), r = 0;
        bool passed = socket >= 0;

        log_set_level(node_log_level(conf));
        node_open_files();
        r = node_user(conf, fault);
        if (!r && !passed)
                r = rpc_listen(conf->socket, conf->socket_mode, &socket, fault);
        if (r)
                return r;
        node.x.conf = node.conf = conf;
        node.x.loop = &node.loop;
        node.x.cluster = &node.cluster;
        node.x.node = &node_ops;
        node.x.node_arg = &node;
        node.socket = socket;
        uv_replace_allocator(malloc, sure_realloc, calloc,
                             free); /* libuv ends the process otherwise */
        uv_loop_init(&node.loop);
        uv_timer_init(&node.loop, &node.stop_timer);
        r = node_start(&node, fault);
        if (!r) { /* on failure the process ends, and with it all that was started */
                uv_run(&node.loop, UV_RUN_DEFAULT);
                node_save(&node);
        }
        if (!r && !node.left) {
                store_close(node.x.store);
                r = uv_loop_close(&node.loop);
                assert(r == 0); /* every handle was closed */
                gpus_close();
        }
        close(socket);
        if (!passed)
                unlink(conf->socket);
        if (!r)
                log_info("stopped");
        if (node.left)
                _exit(0); /* threads still use what exit() would take down */
        return r;
}

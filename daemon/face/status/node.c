/* The node, its peers and its options. */
#include "daemon/cluster/membership/membership.h"
#include "daemon/face/status/status.h"

#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "daemon/floor/base/process.h"
#include "daemon/step/bases/bases.h"
#include "proto/cleanup.h"

static const char *const traffic_names[TRAFFIC_KINDS] = { "gather", "reduce", "stash", "state",
                                                          "control" };

static void report_traffic(struct arena *arena, const uint64_t bytes[TRAFFIC_KINDS],
                           struct record_counts *ret)
{
        for (size_t i = 0; i < TRAFFIC_KINDS; i++)
                counts_add(arena, ret, traffic_names[i], bytes[i]);
}

static void report_messages(struct arena *arena, const uint64_t messages[FABRIC_BODIES],
                            struct record_counts *ret)
{
        for (unsigned i = 0; i < FABRIC_BODIES; i++) {
                const ProtobufCFieldDescriptor *body =
                        protobuf_c_message_descriptor_get_field(&zero__link_message__descriptor, i);

                if (messages[i])
                        counts_add(arena, ret, body ? body->name : "answer", messages[i]);
        }
}

static const char *const goodbyes[] = {
        [GOODBYE_STOPPED] = "stopped", [GOODBYE_DRAINED] = "drained"
};

/* What nodes that are away said last does not count. */
static bool others_reach(const struct engine *x, uint32_t node)
{
        for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                if (n != node && n != x->cluster->self && node_set_has(x->linked, n) &&
                    !node_set_has(x->cut[n], node))
                        return true;
        return false;
}

static void report_peer(struct arena *arena, const struct engine *x, uint32_t node,
                        struct status_peer *ret)
{
        const struct cluster_node *n = &x->cluster->nodes[node];
        struct fabric_info info;
        uint64_t now = engine_now(x);

        fabric_info(x->fabric, node, &info);
        ret->node = n->name;
        ret->address = n->host[0] ? arena_text(arena, "%s:%u", n->host, n->port) : "";
        ret->owner = node_set_has(placement_nodes(&x->placement), node);
        ret->self = node == x->cluster->self;
        ret->up = info.up;
        ret->reached = others_reach(x, node);
        ret->why = arena_copy(arena, info.link.why);
        ret->goodbye = info.up ? NULL : goodbyes[info.link.goodbye];
        ret->bulk = arena_copy(arena, info.bulk);
        ret->bulk_detail = arena_copy(arena, info.bulk_detail);
        ret->bulk_gpu = arena_copy(arena, info.gpu);
        ret->since_s = (double)(now - info.link.since_ms) / 1000;
        ret->heard_s = (double)(now - info.link.last_heard_ms) / 1000;
        ret->round_trip_s = (double)info.link.round_trip_ns / 1e9;
        ret->speaks = ret->self ? MESSAGES_NEWEST : info.link.speaks;
        report_traffic(arena, info.sent, &ret->sent);
        report_traffic(arena, info.received, &ret->received);
        report_messages(arena, fabric_messages(x->fabric, node), &ret->messages);
}

/* Ranks in zero_attach(), whose job may not be open yet. */
static void report_attaching(struct arena *arena, const struct engine *x, struct status_node *ret)
{
        list_for_each (&x->ranks->joining, item) {
                const struct rank *rank = CONTAINER_OF(item, struct rank, link);
                struct status_attaching *a;
                struct wait_line line;

                if (!rank_attaching(rank, &line) || !(a = LIST_ADD(arena, &ret->attaching)))
                        continue;
                a->job = arena_copy(arena, rank->needs.job.name);
                a->rank = rank->rank;
                a->pid = rank->pid;
                a->who = arena_copy(arena, line.who);
                a->what = arena_copy(arena, line.what);
                a->since_s = (double)(engine_now(x) - line.since_ms) / 1000;
        }
}

struct bases_report {
        struct arena *arena;
        struct status_node *node;
};

static void report_base(void *arg, const struct base_info *info)
{
        struct bases_report *report = arg;
        struct status_base *b = LIST_ADD(report->arena, &report->node->bases);
        char hash[2 * BASE_HASH + 1];

        if (!b)
                return;
        for (size_t i = 0; i < BASE_HASH; i++)
                sprintf(hash + 2 * i, "%02x", info->hash[i]);
        b->hash = arena_copy(report->arena, hash);
        b->uid = info->uid;
        b->bytes = info->bytes;
        b->uses = info->uses;
        b->gpus = info->copies;
        b->whole = info->whole;
        b->filler = info->filler;
}

static double clock_s(clockid_t clock)
{
        struct timespec t = { 0 };

        clock_gettime(clock, &t);
        return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* As at the first answer: a series that moves with the clock would look like restarts. */
static double started_unix_s(void)
{
        static double started;
        uint64_t ticks = process_start((uint32_t)getpid());

        if (started == 0 && ticks)
                started = clock_s(CLOCK_REALTIME) - clock_s(CLOCK_BOOTTIME) +
                          (double)ticks / (double)sysconf(_SC_CLK_TCK);
        return started != 0 ? started : NAN;
}

static uint64_t open_files(void)
{
        DIR *all = opendir("/proc/self/fd");
        uint64_t n = 0;

        if (!all)
                return RECORD_NULL;
        while (readdir(all))
                n++;
        closedir(all);
        return n - 3; /* ".", ".." and the directory itself */
}

static void report_process(struct status_node *ret)
{
        uint64_t size = 0, resident = 0, page = (uint64_t)sysconf(_SC_PAGESIZE);
        struct rlimit files = { .rlim_cur = RLIM_INFINITY };
        FILE *f = fopen("/proc/self/statm", "re");

        if (f && fscanf(f, "%" SCNu64 " %" SCNu64, &size, &resident) != 2)
                size = resident = 0;
        if (f)
                fclose(f);
        getrlimit(RLIMIT_NOFILE, &files);
        ret->memory.resident = resident * page;
        ret->memory.address_space = size * page;
        ret->loop_cpu_s = clock_s(CLOCK_THREAD_CPUTIME_ID);
        ret->cpu_s = clock_s(CLOCK_PROCESS_CPUTIME_ID);
        ret->started_unix_s = started_unix_s();
        ret->open_files = open_files();
        ret->max_files = files.rlim_cur == RLIM_INFINITY ? RECORD_NULL : files.rlim_cur;
}

static void report_memory(const struct engine *x, struct status_memory *ret)
{
        struct statvfs fs;
        bool known = statvfs(x->conf->state_dir, &fs) == 0;

        *ret = (struct status_memory){
                .state_used = store_used(x->store),
                .state_quota = store_quota(x->store),
                .file_system = known ? fs.f_blocks * fs.f_frsize : RECORD_NULL,
                .file_system_free = known ? fs.f_bavail * fs.f_frsize : RECORD_NULL,
        };
}

void report_node(struct arena *arena, struct engine *x, uint64_t started_ms,
                 const struct gpu_use_now *gpus, struct status_node *ret)
{
        struct status_jobs jobs;

        *ret = (struct status_node){
                .node = node_name(x, x->cluster->self),
                .version = ZEROD_VERSION,
                .protocol = ZERO__HELLO__PROTOCOL__VERSION,
                .uptime_s = (double)(engine_now(x) - started_ms) / 1000,
                .socket = arena_copy(arena, x->conf->socket),
                .state_dir = arena_copy(arena, x->conf->state_dir),
                .device = x->ops->name,
        };
        for (uint32_t n = 0; n < x->cluster->n_nodes; n++) {
                struct status_peer *peer = LIST_ADD(arena, &ret->peers);

                if (peer)
                        report_peer(arena, x, n, peer);
        }
        report_jobs(arena, x, &jobs);
        ret->jobs.n = jobs.jobs.n;
        ret->jobs.items = jobs.jobs.items;
        ret->drained = membership_drained(x);
        report_attaching(arena, x, ret);
        bases_each(x, report_base, &(struct bases_report){ arena, ret });
        report_memory(x, &ret->memory);
        report_process(ret);
        report_gpus(arena, gpus, ret);
        report_verdict(arena, ret);
}

struct options {
        struct arena *arena;
        struct status_config *config;
};

static void report_option(void *arg, const char *name, const char *value, const char *source,
                          const char *doc)
{
        struct options *o = arg;
        struct status_option *option = LIST_ADD(o->arena, &o->config->options);

        if (!option)
                return;
        option->name = name;
        option->value = arena_copy(o->arena, value);
        option->source = arena_copy(o->arena, source);
        option->doc = doc;
}

void report_config(struct arena *arena, const struct engine *x, struct status_config *ret)
{
        struct options options = { arena, ret };

        *ret = (struct status_config){ .options = { 0 } };
        conf_each(x->conf, report_option, &options);
}

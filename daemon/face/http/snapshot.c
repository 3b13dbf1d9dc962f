/*
 * What the loop publishes for HTTP.  Another thread asks the GPUs for their memory, because a call
 * of CUDA may wait for a lock of the driver.
 *
 * The map of shards has what the other nodes told when an earlier map was made.  A map asks each of
 * them again that was not asked for ASK_MS, and waits for none.
 */
#include "daemon/face/http/snapshot.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include "daemon/compute/device/gpu/gpu.h"
#include "proto/cleanup.h"

enum { TOLD_MS = 10000, ASK_MS = 1800 };

/* What another node told of its shards. */
struct told {
        struct exchange *exchange;
        bool asking;
        uint64_t asked_ms;
        uint64_t until_ms; /* 0: nothing */
        struct arena arena;
        struct status_map map;
};

struct exchange {
        struct engine *x;
        uv_async_t wanted_now;
        uint64_t started_ms; /* loop time */
        bool serving, closing;
        void (*closed)(void *arg);
        void *closed_arg;
        struct blocking_work look;
        bool looking;
        struct gpu_use_now *gpus;
        struct told told[ZERO_NODE_MAX];
        uint32_t asking;
        struct downloads *downloads;
        int fd;
        uv_mutex_t lock; /* what follows */
        bool wanted[SNAPSHOT_KINDS];
        struct snapshot *published[SNAPSHOT_KINDS];
};

void snapshot_free(struct snapshot *s)
{
        if (s)
                arena_deinit(&s->arena);
        free(s);
}

uint64_t snapshot_now(void)
{
        return uv_hrtime() / 1000000;
}

/* ---- what the other nodes tell ---- */

static void close_when_idle(struct exchange *e);

static void told_forget(struct told *t)
{
        arena_deinit(&t->arena);
        t->arena = (struct arena){ NULL };
        t->until_ms = 0;
}

static void told_came(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        struct told *t = arg;
        bool told = status == ZERO_OK && m && m->body_case == ZERO__LINK_MESSAGE__BODY_QUERY_REPLY;
        json_t *json = told ? json_loads(m->query_reply->json, 0, NULL) : NULL;

        told_forget(t);
        if (json && record_from_json(status_map_type(), json, &t->arena, &t->map))
                t->until_ms = snapshot_now() + TOLD_MS;
        json_decref(json);
        t->asking = false;
        t->exchange->asking--;
        close_when_idle(t->exchange);
}

static void told_ask(struct exchange *e, uint32_t node)
{
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        Zero__Query query = ZERO__QUERY__INIT;

        if (e->told[node].asking || node == e->x->cluster->self || !node_set_has(e->x->up, node) ||
            snapshot_now() - e->told[node].asked_ms < ASK_MS)
                return;
        query.what = (char *)"map";
        query.argument = (char *)"";
        m.body_case = ZERO__LINK_MESSAGE__BODY_QUERY;
        m.query = &query;
        e->told[node].asking = true;
        e->told[node].asked_ms = snapshot_now();
        e->asking++;
        call_send(e->x, node, &m, TOLD_MS, told_came, &e->told[node]);
}

static void fill_map(struct exchange *e, struct snapshot *s)
{
        const struct status_map *told[ZERO_NODE_MAX] = { NULL };

        for (uint32_t n = 0; n < e->x->cluster->n_nodes; n++) {
                if (snapshot_now() < e->told[n].until_ms)
                        told[n] = &e->told[n].map;
                told_ask(e, n);
        }
        report_map(&s->arena, e->x, told, &s->record.map);
}

/* ---- the loop fills ---- */

static void fill(struct exchange *e, enum snapshot_kind kind, struct snapshot *s)
{
        struct engine *x = e->x;

        switch (kind) {
        case SNAPSHOT_NODE:
                s->type = status_node_type();
                report_node(&s->arena, x, e->started_ms, e->gpus, &s->record.node);
                break;
        case SNAPSHOT_MEMBERS:
                s->type = status_membership_type();
                report_membership(&s->arena, x, &s->record.members);
                break;
        case SNAPSHOT_CONFIG:
                s->type = status_config_type();
                report_config(&s->arena, x, &s->record.config);
                break;
        case SNAPSHOT_MAP:
                s->type = status_map_type();
                fill_map(e, s);
                break;
        default:
                break;
        }
}

/* Out of memory: nothing is published, and whoever waits hears that the loop is late. */
static void publish(struct exchange *e, enum snapshot_kind kind)
{
        struct snapshot *s = calloc(1, sizeof *s);

        if (!s)
                return;
        s->made_ms = snapshot_now();
        s->serving = e->serving;
        s->ready = e->serving && !e->x->draining && !e->x->stopping;
        if (s->serving)
                fill(e, kind, s);
        if (!s->arena.failed) {
                uv_mutex_lock(&e->lock);
                struct snapshot *old = e->published[kind];
                e->published[kind] = s;
                uv_mutex_unlock(&e->lock);
                s = old;
                eventfd_write(e->fd, 1);
        }
        snapshot_free(s);
}

static void exchange_gone(uv_handle_t *handle)
{
        struct exchange *e = CONTAINER_OF((uv_async_t *)handle, struct exchange, wanted_now);

        e->closed(e->closed_arg);
        for (size_t kind = 0; kind < SNAPSHOT_KINDS; kind++)
                snapshot_free(e->published[kind]);
        for (size_t n = 0; n < ZERO_NODE_MAX; n++)
                told_forget(&e->told[n]);
        downloads_free(e->downloads);
        uv_mutex_destroy(&e->lock);
        close(e->fd);
        free(e->gpus);
        free(e);
}

static void close_when_idle(struct exchange *e)
{
        if (e->closing && !e->looking && !e->asking)
                uv_close((uv_handle_t *)&e->wanted_now, exchange_gone);
}

static void look_run(struct blocking_work *work)
{
        gpus_use_now(CONTAINER_OF(work, struct exchange, look)->gpus);
}

static void look_done(struct blocking_work *work)
{
        struct exchange *e = CONTAINER_OF(work, struct exchange, look);

        e->looking = false;
        if (!e->closing)
                publish(e, SNAPSHOT_NODE);
        close_when_idle(e);
}

static void publish_node(struct exchange *e)
{
        if (e->looking)
                return;
        if (!e->gpus) {
                publish(e, SNAPSHOT_NODE);
                return;
        }
        e->looking = true;
        blocking_submit(e->x->blocking, LANE_LOOKS, &e->look);
}

static void on_wanted(uv_async_t *async)
{
        struct exchange *e = CONTAINER_OF(async, struct exchange, wanted_now);

        for (enum snapshot_kind kind = 0; kind < SNAPSHOT_KINDS; kind++) {
                bool wanted;

                uv_mutex_lock(&e->lock);
                wanted = e->wanted[kind];
                e->wanted[kind] = false;
                uv_mutex_unlock(&e->lock);
                if (wanted && kind == SNAPSHOT_NODE)
                        publish_node(e);
                else if (wanted)
                        publish(e, kind);
        }
        downloads_run(e->downloads, e->serving);
}

/* ---- start and stop ---- */

static void exchange_free(struct exchange *e)
{
        free(e->gpus);
        free(e);
}
DEFINE_CLEANUP(struct exchange *, exchange_free)

int exchange_new(struct engine *x, struct exchange **ret)
{
        CLEANUP(cleanup_exchange_free) struct exchange *e = calloc(1, sizeof *e);
        uint32_t n = gpus_count();

        if (e && n)
                e->gpus = calloc(n, sizeof e->gpus[0]);
        if (!e || (n && !e->gpus))
                return -ENOMEM;
        e->x = x;
        e->serving = true;
        e->started_ms = engine_now(x);
        for (size_t i = 0; i < ZERO_NODE_MAX; i++)
                e->told[i].exchange = e;
        e->look = (struct blocking_work){ .run = look_run,
                                          .done = look_done,
                                          .what = "to see the GPUs' free memory" };
        e->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (e->fd < 0)
                return -errno;
        if (uv_mutex_init(&e->lock) || downloads_new(x, &e->wanted_now, e->fd, &e->downloads)) {
                close(e->fd);
                return -ENOMEM;
        }
        uv_async_init(x->loop, &e->wanted_now, on_wanted);
        *ret = STEAL(e);
        return 0;
}

void exchange_serve(struct exchange *e, bool serving)
{
        e->serving = serving;
        downloads_run(e->downloads, serving);
}

struct downloads *exchange_downloads(const struct exchange *e)
{
        return e->downloads;
}

void exchange_close(struct exchange *e, void (*closed)(void *arg), void *arg)
{
        e->closing = true;
        e->closed = closed;
        e->closed_arg = arg;
        close_when_idle(e);
}

/* ---- the other thread ---- */

int exchange_fd(const struct exchange *e)
{
        return e->fd;
}

void exchange_want(struct exchange *e, enum snapshot_kind kind)
{
        uv_mutex_lock(&e->lock);
        e->wanted[kind] = true;
        uv_mutex_unlock(&e->lock);
        uv_async_send(&e->wanted_now);
}

struct snapshot *exchange_take(struct exchange *e, enum snapshot_kind kind)
{
        struct snapshot *s;

        uv_mutex_lock(&e->lock);
        s = e->published[kind];
        e->published[kind] = NULL;
        uv_mutex_unlock(&e->lock);
        return s;
}

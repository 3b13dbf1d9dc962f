/* See fake_zero.h. */
#include "fake_zero.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/include/zero.h"
#include "proto/dtype.h"

struct fake_group {
        uint64_t n;
        enum zero_dtype dtype;
        float *master, *sum;
        void *view, *grad;
        bool pushed, complete;
};

enum { STASHED = 16 };
struct fake_entry {
        void *values; /* NULL: free */
        size_t bytes;
        bool read;
};

struct zero_client {
        const struct zero_layout *layout;
        struct fake_group *groups;
        uint32_t n_groups, held, open, pushes;
        uint64_t version;
        double loss_scale;
        uint8_t blob[ZERO_BLOB_MAX];
        size_t blob_bytes;
        enum zero_dtype grad_dtype;
        struct fake_entry stash[STASHED];
        uint64_t stash_bytes, stashed;
};

static struct zero_client *left; /* the client of a trainer that has ended before the job */

struct fake_zero fake_zero;

static void end_view(struct zero_client *c, struct fake_group *g)
{
        if (!g->view)
                return;
        memset(g->view, 0xff, dtype_bytes(g->dtype, g->n)); /* NaN in every dtype */
        free(g->view);
        g->view = NULL;
        c->held--;
}

static void end_grad(struct zero_client *c, struct fake_group *g)
{
        if (!g->grad)
                return;
        free(g->grad);
        g->grad = NULL;
        c->open--;
}

static void end_entry(struct zero_client *c, struct fake_entry *e)
{
        if (!e->values)
                return;
        memset(e->values, 0xff, e->bytes);
        free(e->values);
        c->stashed -= e->bytes;
        *e = (struct fake_entry){ 0 };
}

static void end_step(struct zero_client *c)
{
        for (uint32_t i = 0; i < STASHED; i++)
                end_entry(c, &c->stash[i]);
        for (uint32_t i = 0; i < c->n_groups; i++) {
                end_view(c, &c->groups[i]);
                end_grad(c, &c->groups[i]);
                memset(c->groups[i].sum, 0, c->groups[i].n * sizeof(float));
                c->groups[i].complete = c->groups[i].pushed = false;
        }
        c->pushes = 0;
}

static bool aborts(struct zero_client *c)
{
        if (++fake_zero.calls != fake_zero.abort_at)
                return false;
        end_step(c);
        return true;
}

int zero_connect(const struct zero_options *options, struct zero_client **ret_client)
{
        *ret_client = left ? left : calloc(1, sizeof(**ret_client));
        left = NULL;
        return *ret_client ? ZERO_OK : ZERO_ENOMEM;
}

void zero_close(struct zero_client *c)
{
        if (!c)
                return;
        end_step(c);
        if (fake_zero.outlives) {
                left = c;
                return;
        }
        for (uint32_t i = 0; i < c->n_groups; i++) {
                free(c->groups[i].master);
                free(c->groups[i].sum);
        }
        free(c->groups);
        free(c);
}

const char *zero_error(const struct zero_client *c)
{
        return "a sentence";
}

int zero_attach(struct zero_client *c, const struct zero_layout *layout,
                const struct zero_needs *needs)
{
        c->layout = layout;
        c->grad_dtype = needs->grad_dtype;
        c->stash_bytes = needs->stash ? needs->stash->bytes : 0;
        fake_zero.hold_groups = needs->hold_groups;
        fake_zero.push_groups = needs->push_groups;
        if (c->groups)
                return ZERO_OK;
        c->loss_scale = 1;
        c->n_groups = zero_layout_groups(layout);
        c->groups = calloc(c->n_groups, sizeof(*c->groups));
        for (uint32_t i = 0; i < c->n_groups; i++) {
                struct fake_group *g = &c->groups[i];
                g->n = zero_layout_group_elements(layout, i);
                g->dtype = zero_layout_group_dtype(layout, i);
                g->master = calloc(g->n, sizeof(float));
                g->sum = calloc(g->n, sizeof(float));
        }
        return ZERO_OK;
}

uint64_t zero_steps(const struct zero_client *c)
{
        return c->version;
}

double zero_loss_scale(const struct zero_client *c)
{
        return c->loss_scale;
}

const void *zero_blob(const struct zero_client *c, size_t *ret_bytes)
{
        *ret_bytes = c->blob_bytes;
        return c->blob;
}

int zero_put(struct zero_client *c, uint32_t tensor, enum zero_plane plane, uint64_t first,
             uint64_t count, const void *src)
{
        assert(plane == ZERO_PLANE_MASTER && c->pushes == 0);
        assert(first + count <= zero_layout_tensor_elements(c->layout, tensor));
        memcpy(c->groups[zero_layout_tensor_group(c->layout, tensor)].master +
                       zero_layout_offset(c->layout, tensor) + first,
               src, count * sizeof(float));
        fake_zero.puts++;
        return ZERO_OK;
}

int zero_prefetch(struct zero_client *c, uint32_t group)
{
        assert(group < c->n_groups);
        fake_zero.prefetches++;
        return ZERO_OK;
}

int zero_fetch(struct zero_client *c, uint32_t group, const void **ret_view)
{
        if (aborts(c))
                return ZERO_EABORTED;
        struct fake_group *g = &c->groups[group];
        assert(!g->view); /* this trainer has no reason to fetch twice */
        g->view = malloc(dtype_bytes(g->dtype, g->n));
        for (uint64_t i = 0; i < g->n; i++)
                dtype_store(g->dtype, g->view, i, g->master[i]);
        c->held++;
        assert(fake_zero.hold_groups == ZERO_ALL || c->held <= fake_zero.hold_groups);
        fake_zero.most_held = c->held > fake_zero.most_held ? c->held : fake_zero.most_held;
        fake_zero.fetches++;
        if (c->pushes > fake_zero.pushes_before_fetch)
                fake_zero.pushes_before_fetch = c->pushes;
        *ret_view = g->view;
        return ZERO_OK;
}

int zero_release(struct zero_client *c, uint32_t group, struct zero_sync *sync)
{
        assert(c->groups[group].view);
        end_view(c, &c->groups[group]);
        return ZERO_OK;
}

int zero_grad(struct zero_client *c, uint32_t group, void **ret_grad)
{
        struct fake_group *g = &c->groups[group];
        assert(!g->complete);
        if (!g->grad) {
                size_t size = dtype_bytes(c->grad_dtype, g->n);
                g->grad = malloc(size);
                memset(g->grad, 0xff, size);
                c->open++;
        }
        assert(fake_zero.push_groups == ZERO_ALL || c->open <= fake_zero.push_groups);
        fake_zero.most_open = c->open > fake_zero.most_open ? c->open : fake_zero.most_open;
        *ret_grad = g->grad;
        return ZERO_OK;
}

int zero_push(struct zero_client *c, uint32_t group, const uint8_t *present, bool last,
              struct zero_sync *sync)
{
        struct fake_group *g = &c->groups[group];
        assert(g->grad && !g->complete && !present);
        for (uint64_t i = 0; i < g->n; i++)
                g->sum[i] += dtype_load(c->grad_dtype, g->grad, i);
        end_grad(c, g);
        g->complete = last;
        c->pushes++;
        fake_zero.pushes++;
        return ZERO_OK;
}

int zero_stash_write(struct zero_client *c, uint64_t key, const void *src, uint64_t bytes,
                     struct zero_sync *sync)
{
        struct fake_entry *e = &c->stash[key];
        if (aborts(c))
                return ZERO_EABORTED;
        assert(key < STASHED && !e->values);
        c->stashed += bytes;
        assert(c->stashed <= c->stash_bytes);
        *e = (struct fake_entry){ .values = malloc(bytes), .bytes = bytes };
        memcpy(e->values, src, bytes);
        return ZERO_OK;
}

int zero_stash_read(struct zero_client *c, uint64_t key, const void **ret_view, uint64_t *ret_bytes)
{
        struct fake_entry *e = &c->stash[key];
        if (aborts(c))
                return ZERO_EABORTED;
        assert(key < STASHED && e->values && !e->read);
        e->read = true;
        *ret_view = e->values;
        *ret_bytes = e->bytes;
        return ZERO_OK;
}

int zero_stash_release(struct zero_client *c, uint64_t key, bool last, struct zero_sync *sync)
{
        assert(key < STASHED && c->stash[key].read && last);
        end_entry(c, &c->stash[key]);
        return ZERO_OK;
}

static bool all_finite(const struct zero_client *c)
{
        for (uint32_t k = 0; k < c->n_groups; k++)
                for (uint64_t i = 0; i < c->groups[k].n; i++)
                        if (!isfinite(c->groups[k].sum[i]))
                                return false;
        return true;
}

static void descend(struct zero_client *c, double lr)
{
        for (uint32_t k = 0; k < c->n_groups; k++) {
                assert(c->groups[k].complete);
                for (uint64_t i = 0; i < c->groups[k].n; i++)
                        c->groups[k].master[i] -= (float)(lr * (double)c->groups[k].sum[i]);
        }
        c->version++;
}

int zero_step(struct zero_client *c, const struct zero_step_options *step,
              struct zero_result *ret_result)
{
        if (step->n_sets && aborts(c))
                return ZERO_EABORTED;
        double scale = step->loss_scale > 0 ? step->loss_scale : 1;
        bool skipped = step->n_sets == 0 || !all_finite(c);
        if (!skipped)
                descend(c, step->sets[0].adamw.lr / scale);
        end_step(c);
        assert(step->blob && step->blob_bytes <= sizeof(c->blob));
        memcpy(c->blob, step->blob, step->blob_bytes);
        c->blob_bytes = step->blob_bytes;
        c->loss_scale = skipped && step->growth_interval ? scale / 2 : scale;
        fake_zero.skipped += skipped && step->n_sets;
        *ret_result = (struct zero_result){
                .version = c->version,
                .skipped = skipped,
                .loss_scale = c->loss_scale,
        };
        return ZERO_OK;
}

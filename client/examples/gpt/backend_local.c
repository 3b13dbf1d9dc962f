/*
 * The whole model in one process, updated by AdamW in the daemon's arithmetic: the yardstick for
 * parity and for what the service costs.
 *
 * Formula and order of operations are those of daemon/compute/device/device.h; all tensors have a
 * gradient in every step, so one step count serves them all.
 */
#include "backend.h"

#include <errno.h>
#include <stdlib.h>

#include "proto/cleanup.h"

struct plane {
        float *params, *grads, *exp_avg, *exp_avg_sq;
};

struct local {
        struct backend backend;
        const struct gpt_spec *spec;
        struct plane *groups;
        uint64_t version, decided;
};

static struct local *local_of(const struct seam *seam)
{
        return (struct local *)(void *)seam;
}

static int local_acquire(struct seam *seam, uint32_t group, uint32_t next, const real **ret_params)
{
        *ret_params = local_of(seam)->groups[group].params;
        return 0;
}

static int local_release(struct seam *seam, uint32_t group)
{
        return 0;
}

static int local_grad(struct seam *seam, uint32_t group, real **ret_grad)
{
        *ret_grad = local_of(seam)->groups[group].grads;
        return 0;
}

static int local_push(struct seam *seam, uint32_t group, bool last)
{
        return 0;
}

static uint64_t elements(const struct local *local, uint32_t group)
{
        return zero_layout_group_elements(local->spec->layout, group);
}

static double gradient_norm(const struct local *local)
{
        double sum = 0;
        for (uint32_t group = 0; group < local->spec->n_groups; group++) {
                const float *g = local->groups[group].grads;
                uint64_t n = elements(local, group);
#pragma omp simd reduction(+ : sum)
                for (uint64_t i = 0; i < n; i++)
                        sum += (double)g[i] * (double)g[i];
        }
        return sqrt(sum);
}

struct scalars {
        float grad_scale, decay, one_minus_beta1, beta2, one_minus_beta2, step_size, sqrt_bias2,
                eps;
};

static struct scalars scalars_of(const struct zero_adamw *h, uint64_t t, double grad_scale)
{
        return (struct scalars){
                .grad_scale = (float)grad_scale,
                .decay = (float)(1 - h->lr * h->weight_decay),
                .one_minus_beta1 = (float)(1 - h->beta1),
                .beta2 = (float)h->beta2,
                .one_minus_beta2 = (float)(1 - h->beta2),
                .step_size = (float)(h->lr / (1 - pow(h->beta1, (double)t))),
                .sqrt_bias2 = (float)sqrt(1 - pow(h->beta2, (double)t)),
                .eps = (float)h->eps,
        };
}

static void adamw(const struct scalars *s, uint64_t n, const struct plane *plane, uint64_t offset)
{
        float *restrict params = plane->params + offset, *restrict grads = plane->grads + offset;
        float *restrict exp_avg = plane->exp_avg + offset;
        float *restrict exp_avg_sq = plane->exp_avg_sq + offset;
        for (uint64_t i = 0; i < n; i++) {
                float g = grads[i] * s->grad_scale;
                float m = exp_avg[i] + (g - exp_avg[i]) * s->one_minus_beta1;
                float v = exp_avg_sq[i] * s->beta2 + (g * g) * s->one_minus_beta2;
                float p = params[i] * s->decay;
                params[i] = p - s->step_size * (m / (sqrtf(v) / s->sqrt_bias2 + s->eps));
                exp_avg[i] = m;
                exp_avg_sq[i] = v;
        }
}

static void update(struct local *local, const struct zero_step_options *step, double grad_scale)
{
        struct scalars scalars[GPT_SETS];
        for (uint32_t i = 0; i < GPT_SETS; i++)
                scalars[i] = scalars_of(&step->sets[i].adamw, local->version + 1, grad_scale);
        const struct zero_layout *layout = local->spec->layout;
        for (uint32_t tensor = 0; tensor < local->spec->n_tensors; tensor++)
                adamw(&scalars[gpt_spec_set(local->spec, tensor)],
                      zero_layout_tensor_elements(layout, tensor),
                      &local->groups[zero_layout_tensor_group(layout, tensor)],
                      zero_layout_offset(layout, tensor));
        local->version++;
}

static int local_step(struct backend *backend, const struct zero_step_options *step,
                      struct zero_result *ret_result)
{
        struct local *local = local_of(&backend->seam);
        double norm = gradient_norm(local);
        bool skipped = !isfinite(norm);
        if (!skipped) {
                /* as the daemon and torch.nn.utils.clip_grad_norm_ have it */
                double clip = step->clip_norm > 0 ? step->clip_norm / (norm + 1e-6) : 1;
                update(local, step, fmin(1, clip));
        }
        local->decided++;
        for (uint32_t group = 0; group < local->spec->n_groups; group++)
                memset(local->groups[group].grads, 0, elements(local, group) * sizeof(float));
        *ret_result = (struct zero_result){
                .version = local->version,
                .skipped = skipped,
                .grad_norm = norm,
                .loss_scale = 1,
        };
        return 0;
}

static uint64_t local_version(const struct backend *backend)
{
        return local_of(&backend->seam)->version;
}

static uint64_t local_decided(const struct backend *backend)
{
        return local_of(&backend->seam)->decided;
}

static double local_loss_scale(const struct backend *backend)
{
        return 1;
}

static void local_free(struct backend *backend)
{
        struct local *local = local_of(&backend->seam);
        for (uint32_t group = 0; local->groups && group < local->spec->n_groups; group++) {
                free(local->groups[group].params);
                free(local->groups[group].grads);
                free(local->groups[group].exp_avg);
                free(local->groups[group].exp_avg_sq);
        }
        free(local->groups);
        free(local);
}

static bool plane_init(struct plane *plane, uint64_t n)
{
        plane->params = calloc(n, sizeof(float));
        plane->grads = calloc(n, sizeof(float));
        plane->exp_avg = calloc(n, sizeof(float));
        plane->exp_avg_sq = calloc(n, sizeof(float));
        return plane->params && plane->grads && plane->exp_avg && plane->exp_avg_sq;
}

static void set_values(struct local *local, uint64_t seed)
{
        const struct zero_layout *layout = local->spec->layout;
        for (uint32_t tensor = 0; tensor < local->spec->n_tensors; tensor++)
                gpt_spec_values(local->spec, tensor, seed,
                                local->groups[zero_layout_tensor_group(layout, tensor)].params +
                                        zero_layout_offset(layout, tensor));
}

static const struct seam_ops seam_ops = {
        .acquire = local_acquire,
        .release = local_release,
        .grad = local_grad,
        .push = local_push,
};

static const struct backend_ops backend_ops = {
        .step = local_step,
        .version = local_version,
        .decided = local_decided,
        .loss_scale = local_loss_scale,
        .free = local_free,
};

DEFINE_CLEANUP(struct backend *, backend_free)

int backend_local_new(const struct gpt_spec *spec, uint64_t seed, struct fault *fault,
                      struct backend **ret_backend)
{
        struct local *local = calloc(1, sizeof(*local));
        if (!local)
                return fault_errno(fault, -ENOMEM, "model states");
        local->backend = (struct backend){ .seam.ops = &seam_ops, .ops = &backend_ops };
        local->spec = spec;
        CLEANUP(cleanup_backend_free) struct backend *backend = &local->backend;
        local->groups = calloc(spec->n_groups, sizeof(*local->groups));
        if (!local->groups)
                return fault_errno(fault, -ENOMEM, "model states");
        for (uint32_t group = 0; group < spec->n_groups; group++)
                if (!plane_init(&local->groups[group], elements(local, group)))
                        return fault_errno(fault, -ENOMEM, "model states");
        set_values(local, seed);
        *ret_backend = STEAL(backend);
        return 0;
}

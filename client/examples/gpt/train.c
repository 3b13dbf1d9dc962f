/*
 * Batches, learning rate, loss scale, validation; the same for both backends and all ranks.
 *
 * Rules: everything that goes into zero_step() depends only on the options and on results that all
 * ranks share, so that all ranks pass the same values. Which batch a step sees depends on the
 * version alone: whoever computes it again, after an abort or in a dead trainer's place, computes
 * the same. Only rank 0 validates; the others go on to the next step and wait there.
 */
#include "train.h"

#include <errno.h>
#include <stdlib.h>

#include "model.h"
#include "proto/cleanup.h"
#include "report.h"

struct trainer {
        const struct options *options;
        const struct corpus *text;
        struct gpt_spec spec;
        struct gpt *gpt;
        struct backend *backend;
        struct report report;
        uint32_t sequences; /* of a micro-batch */
        uint8_t *inputs, *targets;
        struct gpt_batch *batches;
        double loss_scale;
};

static double learning_rate(const struct options *o, uint32_t step)
{
        if (step < o->warmup)
                return o->lr * (step + 1) / o->warmup;
        double progress = (double)(step - o->warmup) / (o->steps - o->warmup);
        return o->min_lr + (o->lr - o->min_lr) * (1 + cos(M_PI * progress)) / 2;
}

static struct gpt_batch fill(struct trainer *t, uint32_t step, uint32_t micro)
{
        const struct options *o = t->options;
        size_t at = (size_t)micro * t->sequences * o->context;
        for (uint32_t i = 0; i < t->sequences; i++) {
                struct corpus_sequence which = {
                        .seed = o->seed,
                        .step = step,
                        .index = (uint64_t)o->rank * o->batch + micro * t->sequences + i,
                };
                corpus_sample(t->text, which, o->context, t->inputs + at + (size_t)i * o->context,
                              t->targets + at + (size_t)i * o->context);
        }
        return (struct gpt_batch){ t->sequences, t->inputs + at, t->targets + at };
}

/* How many micro-batches go layer by layer together. */
static uint32_t parts_of(const struct options *o)
{
        return o->schedule == GPT_SCHEDULE_LAYERWISE ? o->micro_batches : 0;
}

/* Forward and backward of all micro-batches. */
static int compute(struct trainer *t, uint32_t step, double *ret_loss)
{
        uint32_t n = t->options->micro_batches, some = parts_of(t->options) ? n : 1;
        double sum = 0;
        for (uint32_t micro = 0; micro < n; micro++)
                t->batches[micro] = fill(t, step, micro);
        for (uint32_t micro = 0; micro < n; micro += some) {
                double loss;
                int r = gpt_train(t->gpt, &t->backend->seam, &t->batches[micro], t->loss_scale / n,
                                  micro + some == n, &loss);
                if (r)
                        return r;
                sum += loss;
        }
        *ret_loss = sum / n;
        return 0;
}

static int update(struct trainer *t, double lr, struct zero_result *ret_result)
{
        const struct options *o = t->options;
        struct zero_set sets[GPT_SETS] = { { .optimizer = NULL } };
        for (int i = 0; i < GPT_SETS; i++)
                sets[i].adamw = (struct zero_adamw){
                        .lr = lr,
                        .beta1 = o->beta1,
                        .beta2 = o->beta2,
                        .eps = o->eps,
                        .weight_decay = i == GPT_SET_DECAY ? o->weight_decay : 0,
                };
        struct zero_step_options step = {
                .sets = sets,
                .n_sets = GPT_SETS,
                .clip_norm = o->clip,
                .loss_scale = t->loss_scale,
                .growth_interval = o->dtype == ZERO_FP16 ? 1000 : 0,
        };
        return t->backend->ops->step(t->backend, &step, ret_result);
}

static uint32_t version(const struct trainer *t)
{
        return (uint32_t)t->backend->ops->version(t->backend);
}

/* The service's, once a step has set it. */
static double loss_scale(const struct trainer *t)
{
        if (t->options->dtype != ZERO_FP16)
                return 1;
        double scale = t->backend->ops->loss_scale(t->backend);
        bool set = t->backend->ops->decided(t->backend) > 0 || scale != 1;
        return set ? scale : t->options->loss_scale;
}

static int train_step(struct trainer *t, uint32_t step)
{
        double loss, lr = learning_rate(t->options, step);
        struct zero_result result;
        t->loss_scale = loss_scale(t);
        double begin = report_cpu_seconds();
        int r = compute(t, step, &loss);
        t->report.computing += report_cpu_seconds() - begin;
        if (!r)
                r = update(t, lr, &result);
        if (r)
                return r;
        if (result.skipped && result.loss_scale == t->loss_scale)
                return fault_set(&t->backend->fault, ZERO_ERANGE,
                                 "the gradient of step %u is not finite, and would not be if it "
                                 "was computed again",
                                 step + 1);
        report_step(&t->report, step + 1, loss, lr, &result);
        return 0;
}

static int validate(struct trainer *t, double *ret_loss)
{
        const struct options *o = t->options;
        double sum = 0;
        for (uint32_t first = 0; first < o->eval_windows; first += t->sequences) {
                uint32_t left = o->eval_windows - first;
                uint32_t n = left < t->sequences ? left : t->sequences;
                for (uint32_t i = 0; i < n; i++) {
                        const uint8_t *at =
                                t->text->bytes +
                                corpus_window(t->text, o->context, first + i, o->eval_windows);
                        memcpy(t->inputs + (size_t)i * o->context, at, o->context);
                        memcpy(t->targets + (size_t)i * o->context, at + 1, o->context);
                }
                struct gpt_batch batch = { n, t->inputs, t->targets };
                double loss;
                int r = gpt_evaluate(t->gpt, &t->backend->seam, &batch, &loss);
                if (r)
                        return r;
                sum += loss * n;
        }
        *ret_loss = sum / o->eval_windows;
        return 0;
}

static int report_loss(struct trainer *t, double *ret_loss)
{
        int r;
        do {
                r = validate(t, ret_loss);
        } while (r == ZERO_EABORTED);
        if (!r)
                report_validation(&t->report, version(t), *ret_loss);
        return r;
}

static bool evaluates(const struct options *o, uint32_t step)
{
        return o->rank == 0 && o->eval_every && step % o->eval_every == 0 && step < o->steps;
}

static int loop(struct trainer *t)
{
        const struct options *o = t->options;
        uint32_t step;
        double loss;
        int r = o->rank == 0 ? report_loss(t, &loss) : 0;
        report_begin(&t->report, version(t), t->backend->ops->decided(t->backend));
        while (!r && (step = version(t)) < o->steps) {
                r = train_step(t, step);
                if (r == ZERO_EABORTED)
                        r = 0; /* again, where the version says */
                else if (!r && version(t) > step && evaluates(o, version(t)))
                        r = report_loss(t, &loss);
        }
        if (r || o->rank > 0)
                return r;
        r = report_loss(t, &loss);
        if (!r)
                report_end(&t->report, version(t), loss,
                           corpus_bigram_loss(t->text, o->context, o->eval_windows));
        return r;
}

static int connect_backend(struct trainer *t, struct fault *fault)
{
        const struct options *o = t->options;
        if (o->local)
                return backend_local_new(&t->spec, o->seed, fault, &t->backend);
        struct backend_zero_options options = {
                .connection = { .socket = o->socket,
                                .job = o->job,
                                .rank = (int32_t)o->rank,
                                .world_size = o->world_size,
                                .local_world_size = o->local_world_size,
                                .timeout_ms = o->timeout * 1000,
                                .incarnation = o->incarnation },
                .dtype = (enum zero_dtype)o->dtype,
                .on_lost_rank = (enum zero_on_lost)o->on_lost_rank,
                .device = o->device,
                .stage = o->stage,
                .accumulate = o->micro_batches > 1 && !parts_of(o) &&
                              o->accumulate == GPT_ACCUMULATE_TRAINER,
                .sums = (enum zero_accumulate)o->sums,
                .kept = (uint64_t)o->layers * parts_of(o),
                .kept_bytes = (uint64_t)t->sequences * o->context * o->width * sizeof(real),
                .put = o->init == GPT_INIT_PUT,
                .seed = o->seed,
        };
        return backend_zero_new(&t->spec, &options, fault, &t->backend);
}

static int trainer_init(struct trainer *t, struct fault *fault)
{
        const struct options *o = t->options;
        struct gpt_config config = { o->context, o->layers, o->heads, o->width };
        int r = gpt_spec_init(&config, (enum zero_dtype)o->dtype, o->init == GPT_INIT_PUT, o->seed,
                              &t->spec);
        if (r)
                return fault_set(fault, r, "layout: %s", zero_status_text(r));
        t->sequences = o->batch / o->micro_batches;
        t->inputs = malloc((size_t)o->batch * o->context);
        t->targets = malloc((size_t)o->batch * o->context);
        t->batches = calloc(o->micro_batches, sizeof(*t->batches));
        if (!t->inputs || !t->targets || !t->batches ||
            gpt_new(&t->spec, t->sequences, parts_of(o), &t->gpt))
                return fault_errno(fault, -ENOMEM, "activations");
        r = report_init(o, fault, &t->report);
        if (r)
                return r;
        report_model(&t->report, gpt_spec_parameters(&t->spec), t->spec.n_groups);
        return connect_backend(t, fault);
}

static void trainer_deinit(struct trainer *t)
{
        backend_free(t->backend);
        report_deinit(&t->report);
        gpt_free(t->gpt);
        free(t->batches);
        free(t->targets);
        free(t->inputs);
        gpt_spec_deinit(&t->spec);
}

int train(const struct options *options, const struct corpus *text, struct fault *fault)
{
        CLEANUP(trainer_deinit) struct trainer trainer = { .options = options, .text = text };
        int r = trainer_init(&trainer, fault);
        if (r)
                return r;
        r = loop(&trainer);
        if (r)
                *fault = trainer.backend->fault;
        return r;
}

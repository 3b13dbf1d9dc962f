/*
 * Rank 0 reports for all ranks; each rank may write its own loss to a file.
 */
#include "report.h"

#include <errno.h>
#include <inttypes.h>
#include <time.h>

static double seconds_of(clockid_t clock)
{
        struct timespec t;
        clock_gettime(clock, &t);
        return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(void)
{
        return seconds_of(CLOCK_MONOTONIC);
}

double report_cpu_seconds(void)
{
        return seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}

int report_init(const struct options *options, struct fault *fault, struct report *ret_report)
{
        struct report report = { .options = options };
        if (options->loss_file) {
                report.loss_file = fopen(options->loss_file, "we");
                if (!report.loss_file)
                        return fault_errno(fault, -errno, options->loss_file);
        }
        setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
        *ret_report = report;
        return 0;
}

void report_deinit(struct report *report)
{
        if (report->loss_file)
                fclose(report->loss_file);
        report->loss_file = NULL;
}

static bool speaks(const struct report *report)
{
        return report->options->rank == 0;
}

static bool json(const struct report *report)
{
        return report->options->log == GPT_LOG_JSON;
}

void report_model(const struct report *report, uint64_t parameters, uint64_t groups)
{
        const struct options *o = report->options;
        if (!speaks(report))
                return;
        if (json(report))
                printf("{\"event\":\"model\",\"parameters\":%" PRIu64 ",\"groups\":%" PRIu64 "}\n",
                       parameters, groups);
        else
                printf("zerod-gpt: %" PRIu64 " parameters in %" PRIu64
                       " groups; %u sequences of %u "
                       "bytes a step\n",
                       parameters, groups, o->batch * o->world_size, o->context);
}

void report_begin(struct report *report, uint32_t step, uint64_t decided)
{
        report->skipped = (uint32_t)(decided - step);
        report->begin = report->window = now();
        report->first = report->window_first = step;
}

static void progress(struct report *report, uint32_t step, double loss, double lr,
                     const struct zero_result *result)
{
        const struct options *o = report->options;
        double time = now(), steps = step - report->window_first;
        double rate = steps * o->batch * o->world_size * o->context / (time - report->window);
        double left = (time - report->begin) / (step - report->first) * (o->steps - step);
        if (json(report))
                printf("{\"event\":\"step\",\"step\":%u,\"steps\":%u,\"loss\":%.6f,\"lr\":%g,"
                       "\"grad_norm\":%.6f,\"tokens_per_second\":%.0f,\"skipped\":%u,"
                       "\"loss_scale\":%g,\"eta\":%.1f,\"compute_cpu_s\":%.6f}\n",
                       step, o->steps, loss, lr, result->grad_norm, rate, report->skipped,
                       result->loss_scale, left, report->computing / steps);
        else
                printf("step %u/%u  loss %.4f  norm %.3f  lr %.2e  %.0f tokens/s  skipped %u  "
                       "eta %.0f s\n",
                       step, o->steps, loss, result->grad_norm, lr, rate, report->skipped, left);
        report->window = now();
        report->window_first = step;
        report->computing = 0;
}

void report_step(struct report *report, uint32_t step, double loss, double lr,
                 const struct zero_result *result)
{
        const struct options *o = report->options;
        report->skipped += result->skipped;
        if (result->skipped)
                return;
        if (report->loss_file)
                fprintf(report->loss_file, "%u %.17g\n", step, loss);
        if (speaks(report) && (step % o->log_every == 0 || step == o->steps))
                progress(report, step, loss, lr, result);
}

void report_validation(const struct report *report, uint32_t step, double loss)
{
        if (!speaks(report))
                return;
        if (json(report))
                printf("{\"event\":\"validation\",\"step\":%u,\"loss\":%.6f}\n", step, loss);
        else
                printf("step %u/%u  validation loss %.4f nats/byte\n", step, report->options->steps,
                       loss);
}

void report_end(const struct report *report, uint32_t steps, double loss, double bigram)
{
        double seconds = now() - report->begin;
        if (!speaks(report))
                return;
        if (json(report))
                printf("{\"event\":\"end\",\"validation_loss\":%.6f,\"bigram\":%.6f,\"steps\":%u,"
                       "\"seconds\":%.1f}\n",
                       loss, bigram, steps, seconds);
        else
                printf("zerod-gpt: validation loss %.4f nats/byte, bigram %.4f, %u steps, %.1f s\n",
                       loss, bigram, steps, seconds);
}

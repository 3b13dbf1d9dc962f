/* See runs.h. */
#include "runs.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "train.h"

struct options run_options(void)
{
        char *argv[] = { "gpt",  "--data",         "-",       "--local",  "--context",
                         "32",   "--width",        "32",      "--layers", "2",
                         "--lr", "1e-2",           "--steps", "50",       "--warmup",
                         "5",    "--eval-windows", "2",       NULL };
        struct options options;
        struct fault fault;
        cr_assert_eq(options_parse(sizeof(argv) / sizeof(argv[0]) - 1, argv, &fault, &options), 0,
                     "%s", fault.text);
        return options;
}

static struct corpus phrase(void)
{
        static const char words[] = "the quick brown fox jumps over the lazy dog. ";
        struct corpus text = { malloc(4000), 4000, 3600 };
        for (size_t i = 0; i < text.size; i++)
                text.bytes[i] = (uint8_t)words[i % (sizeof(words) - 1)];
        return text;
}

static void read_losses(const char *path, unsigned first, unsigned end, double *ret_losses)
{
        FILE *file = fopen(path, "r");
        unsigned step;
        cr_assert_not_null(file);
        for (unsigned i = first; i < end; i++)
                cr_assert(fscanf(file, "%u %lf", &step, &ret_losses[i]) == 2 && step == i + 1);
        fclose(file);
}

void run_from(const struct options *options, uint32_t first, double ret_losses[static RUN_STEPS])
{
        char path[] = "/tmp/gpt-loss-XXXXXX";
        struct options o = *options;
        struct fault fault;
        struct corpus text = phrase();
        close(mkstemp(path));
        o.loss_file = path;
        cr_assert_not_null(freopen("/dev/null", "w", stdout));
        cr_assert_eq(train(&o, &text, &fault), 0, "%s", fault.text);
        read_losses(path, first, o.steps, ret_losses);
        unlink(path);
        corpus_deinit(&text);
}

void run(const struct options *options, double ret_losses[static RUN_STEPS])
{
        run_from(options, 0, ret_losses);
}

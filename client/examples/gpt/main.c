/*
 * gpt - trains a byte-level GPT-2 with its model states in zerod.
 *
 * Exit status: 0, 1 for an error, 2 for a wrong command line.
 */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "options.h"
#include "proto/cleanup.h"
#include "corpus.h"
#include "train.h"

static int complain(const struct fault *fault, int exit_status)
{
        fprintf(stderr, "zerod-gpt: %s\n", fault->text);
        return exit_status;
}

static int run(const struct options *options)
{
        struct fault fault;
        CLEANUP(corpus_deinit) struct corpus text = { 0 };
        int r = corpus_load(options->data, options->context, &fault, &text);
        if (r)
                return complain(&fault, 1);
        if (options->bigram) {
                printf("zerod-gpt: bigram %.4f nats/byte\n",
                       corpus_bigram_loss(&text, options->context, options->eval_windows));
                return 0;
        }
        r = train(options, &text, &fault);
        return r ? complain(&fault, 1) : 0;
}

/* OpenBLAS chooses its kernels before main(), and takes those of 2004, a quarter as fast, for a CPU
 * that is newer than OpenBLAS. */
static void choose_kernels(char **argv)
{
#ifdef __x86_64__
        if (strcmp(openblas_get_corename(), "Prescott") != 0 || getenv("OPENBLAS_CORETYPE") ||
            !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
                return;
        setenv("OPENBLAS_CORETYPE", __builtin_cpu_supports("avx512vl") ? "SkylakeX" : "Haswell", 0);
        execv("/proc/self/exe", argv);
#else
        (void)argv;
#endif
}

int main(int argc, char **argv)
{
        struct options options;
        struct fault fault;
        choose_kernels(argv);
        if (options_parse(argc, argv, &fault, &options))
                return complain(&fault, 2);
        if (options.help) {
                options_help();
                return 0;
        }
        openblas_set_num_threads((int)options.threads);
        return run(&options);
}

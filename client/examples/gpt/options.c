/*
 * Order of precedence: command line, environment, default.
 */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { TEXT, COUNT, SEED, NUMBER, CHOICE, FLAG };

struct choice {
        const char *name;
        uint32_t value;
};

static const struct choice accumulates[] = { { "trainer", GPT_ACCUMULATE_TRAINER },
                                             { "owner", GPT_ACCUMULATE_OWNER },
                                             { 0 } };
static const struct choice sums[] = { { "fp32", ZERO_ACCUMULATE_FP32 },
                                      { "wire", ZERO_ACCUMULATE_WIRE },
                                      { 0 } };
static const struct choice dtypes[] = {
        { "fp32", ZERO_FP32 }, { "bf16", ZERO_BF16 }, { "fp16", ZERO_FP16 }, { 0 }
};
static const struct choice inits[] = { { "layout", GPT_INIT_LAYOUT },
                                       { "put", GPT_INIT_PUT },
                                       { 0 } };
static const struct choice losses[] = { { "wait", ZERO_LOST_WAIT },
                                        { "fail", ZERO_LOST_FAIL },
                                        { 0 } };
static const struct choice schedules[] = { { "plain", GPT_SCHEDULE_PLAIN },
                                           { "layerwise", GPT_SCHEDULE_LAYERWISE },
                                           { 0 } };
static const struct choice logs[] = { { "text", GPT_LOG_TEXT }, { "json", GPT_LOG_JSON }, { 0 } };

struct entry {
        const char *name;
        enum kind kind;
        size_t offset;
        double min, max; /* of COUNT and NUMBER */
        const char *doc;
        const struct choice *choices;
        const char *environment;
        const char *standard; /* parsed like an argument; NULL: zero */
};

#define AT(field) offsetof(struct options, field)

static const struct entry entries[] = {
        { "data", TEXT, AT(data), .doc = "text file; its last tenth is for validation" },
        { "job", TEXT, AT(job), .doc = "name of the job", .standard = "gpt" },
        { "socket", TEXT, AT(socket), .doc = "zerod's socket (default: libzero's)" },
        { "rank", COUNT, AT(rank), 0, ZERO_RANK_MAX - 1, "this trainer's rank",
          .environment = "RANK", .standard = "0" },
        { "world-size", COUNT, AT(world_size), 1, ZERO_RANK_MAX, "trainers of the job",
          .environment = "WORLD_SIZE", .standard = "1" },
        { "local-world-size", COUNT, AT(local_world_size), 0, ZERO_RANK_MAX,
          "trainers on this node (0: all)", .environment = "LOCAL_WORLD_SIZE", .standard = "0" },
        { "incarnation", COUNT, AT(incarnation), 0, UINT32_MAX,
          "how often this trainer was started before", .environment = "TORCHELASTIC_RESTART_COUNT",
          .standard = "0" },
        { "on-lost-rank", CHOICE, AT(on_lost_rank),
          .doc = "what the job does when a trainer dies: waits for the next, or fails",
          .choices = losses, .standard = "wait" },
        { "timeout", COUNT, AT(timeout), 0, 86400,
          "seconds to wait for zerod or other ranks (0: longer for trainers that are alive)",
          .standard = "0" },
        { "stage", COUNT, AT(stage), 1, 3, "ZeRO stage", .standard = "3" },
        { "dtype", CHOICE, AT(dtype), .doc = "of parameters and gradients", .choices = dtypes,
          .standard = "fp32" },
        { "device", TEXT, AT(device),
          .doc = "cuda:N: parameters and gradients lie on that GPU (default: in host memory)" },
        { "init", CHOICE, AT(init), .doc = "first values: zerod's generator, or rank 0's",
          .choices = inits, .standard = "layout" },
        { "local", FLAG, AT(local), .doc = "all in this process, without zerod" },

        { "context", COUNT, AT(context), 1, 65536, "bytes a sequence", .standard = "128" },
        { "layers", COUNT, AT(layers), 1, 1024, "transformer blocks", .standard = "4" },
        { "heads", COUNT, AT(heads), 1, 1024, "attention heads", .standard = "4" },
        { "width", COUNT, AT(width), 1, 65536, "width of the residual stream", .standard = "128" },

        { "steps", COUNT, AT(steps), 0, 1e9, "steps of the whole job", .standard = "1000" },
        { "batch", COUNT, AT(batch), 1, 65536, "sequences per rank and step", .standard = "8" },
        { "micro-batches", COUNT, AT(micro_batches), 1, 65536,
          "parts in which the batch is computed", .standard = "1" },
        { "accumulate", CHOICE, AT(accumulate), .doc = "who adds up micro-batches",
          .choices = accumulates, .standard = "trainer" },
        { "sums", CHOICE, AT(sums), .doc = "dtype of the owners' sums: fp32, or the gradients'",
          .choices = sums, .standard = "fp32" },
        { "schedule", CHOICE, AT(schedule),
          .doc = "micro-batches pass the model one by one, or each block together, whose inputs "
                 "zerod keeps",
          .choices = schedules, .standard = "plain" },
        { "lr", NUMBER, AT(lr), 0, 10, "learning rate", .standard = "1e-3" },
        { "min-lr", NUMBER, AT(min_lr), 0, 10, "its value at the end of the cosine",
          .standard = "1e-4" },
        { "warmup", COUNT, AT(warmup), 0, 1e9, "steps of linear warm-up", .standard = "50" },
        { "weight-decay", NUMBER, AT(weight_decay), 0, 10, "of matrices", .standard = "0.1" },
        { "beta1", NUMBER, AT(beta1), 0, 0.999999, "AdamW", .standard = "0.9" },
        { "beta2", NUMBER, AT(beta2), 0, 0.999999, "AdamW", .standard = "0.95" },
        { "eps", NUMBER, AT(eps), 1e-30, 1, "AdamW", .standard = "1e-8" },
        { "clip", NUMBER, AT(clip), 0, 1e9, "largest gradient norm (0: any)", .standard = "1" },
        { "loss-scale", NUMBER, AT(loss_scale), 1, 1e9, "first loss scale of fp16",
          .standard = "65536" },
        { "seed", SEED, AT(seed), .doc = "of batches and first values", .standard = "1" },

        { "threads", COUNT, AT(threads), 1, 1024, "OpenBLAS threads", .standard = "1" },
        { "eval-every", COUNT, AT(eval_every), 0, 1e9,
          "steps between validations (0: only first and last)", .standard = "0" },
        { "eval-windows", COUNT, AT(eval_windows), 1, 1e6, "sequences of a validation",
          .standard = "64" },
        { "log", CHOICE, AT(log), .doc = "form of the progress lines", .choices = logs,
          .standard = "text" },
        { "log-every", COUNT, AT(log_every), 1, 1e9, "steps between progress lines",
          .standard = "10" },
        { "loss-file", TEXT, AT(loss_file), .doc = "gets a line 'step loss' for each step" },
        { "bigram", FLAG, AT(bigram),
          .doc = "print the validation loss of a byte-bigram model and end" },
        { "help", FLAG, AT(help), .doc = "print this" },
};

enum { ENTRIES = sizeof(entries) / sizeof(entries[0]) };

static void *field_of(const struct entry *entry, struct options *options)
{
        return (char *)options + entry->offset;
}

static int parse_number(const struct entry *entry, const char *from, const char *argument,
                        struct fault *fault, double *ret)
{
        char *end;
        double x = strtod(argument, &end);
        if (end == argument || *end || !isfinite(x))
                return fault_set(fault, ZERO_EINVAL, "%s: '%s' is not a number", from, argument);
        if (x < entry->min || x > entry->max)
                return fault_set(fault, ZERO_EINVAL, "%s: %s is not in the range %g to %g", from,
                                 argument, entry->min, entry->max);
        if (entry->kind == COUNT && x != floor(x))
                return fault_set(fault, ZERO_EINVAL, "%s: %s is not a whole number", from,
                                 argument);
        *ret = x;
        return 0;
}

static int parse_seed(const char *from, const char *argument, struct fault *fault, uint64_t *ret)
{
        char *end;
        errno = 0;
        uint64_t x = strtoull(argument, &end, 10);
        if (errno || end == argument || *end || *argument == '-')
                return fault_set(fault, ZERO_EINVAL, "%s: '%s' is not a number from 0 to 2^64 - 1",
                                 from, argument);
        *ret = x;
        return 0;
}

static int parse_choice(const struct entry *entry, const char *from, const char *argument,
                        struct fault *fault, uint32_t *ret)
{
        char names[128] = "";
        for (const struct choice *c = entry->choices; c->name; c++) {
                if (!strcmp(c->name, argument)) {
                        *ret = c->value;
                        return 0;
                }
                size_t used = strlen(names);
                snprintf(names + used, sizeof(names) - used, "%s%s", used ? ", " : "", c->name);
        }
        return fault_set(fault, ZERO_EINVAL, "%s: '%s' is none of %s", from, argument, names);
}

/* from: the option or variable of the argument, for the error. */
static int set(const struct entry *entry, const char *from, const char *argument,
               struct fault *fault, struct options *options)
{
        void *field = field_of(entry, options);
        double x;
        int r;
        switch (entry->kind) {
        case TEXT:
                *(const char **)field = argument;
                return 0;
        case FLAG:
                *(bool *)field = true;
                return 0;
        case SEED:
                return parse_seed(from, argument, fault, field);
        case CHOICE:
                return parse_choice(entry, from, argument, fault, field);
        case COUNT:
                r = parse_number(entry, from, argument, fault, &x);
                if (!r)
                        *(uint32_t *)field = (uint32_t)x;
                return r;
        case NUMBER:
                return parse_number(entry, from, argument, fault, field);
        }
        return 0;
}

static int set_defaults(struct fault *fault, struct options *options)
{
        int r = 0;
        for (const struct entry *e = entries; !r && e < entries + ENTRIES; e++) {
                const char *value = e->environment ? getenv(e->environment) : NULL;
                if (value)
                        r = set(e, e->environment, value, fault, options);
                else if (e->standard)
                        r = set(e, e->name, e->standard, fault, options);
        }
        return r;
}

static int set_arguments(int argc, char **argv, struct fault *fault, struct options *options)
{
        struct option table[ENTRIES + 1] = { 0 };
        for (int i = 0; i < ENTRIES; i++)
                table[i] = (struct option){ entries[i].name, entries[i].kind != FLAG, NULL, i };
        opterr = 0;
        optind = 0; /* restart getopt */
        int index, r = 0;
        while (!r && (index = getopt_long(argc, argv, "+:", table, NULL)) != -1) {
                char from[64];
                if (index == '?')
                        return fault_set(fault, ZERO_EINVAL, "%s: no such option; see --help",
                                         argv[optind - 1]);
                if (index == ':')
                        return fault_set(fault, ZERO_EINVAL, "%s needs an argument",
                                         argv[optind - 1]);
                snprintf(from, sizeof(from), "--%s", entries[index].name);
                r = set(&entries[index], from, optarg, fault, options);
        }
        if (!r && optind < argc)
                return fault_set(fault, ZERO_EINVAL, "%s: options begin with --", argv[optind]);
        return r;
}

static int check(const struct options *o, struct fault *fault)
{
        if (!o->data)
                return fault_set(fault, ZERO_EINVAL, "--data: which text?");
        if (o->width % o->heads)
                return fault_set(fault, ZERO_EINVAL, "--width: %u is no multiple of --heads %u",
                                 o->width, o->heads);
        if (o->batch % o->micro_batches)
                return fault_set(fault, ZERO_EINVAL,
                                 "--batch: %u is no multiple of --micro-batches %u", o->batch,
                                 o->micro_batches);
        if (o->local && o->schedule == GPT_SCHEDULE_LAYERWISE)
                return fault_set(fault, ZERO_EINVAL,
                                 "--schedule layerwise: zerod keeps the inputs of blocks; leave "
                                 "out --local");
        if (o->local && o->dtype != ZERO_FP32)
                return fault_set(fault, ZERO_EINVAL, "--dtype: --local is fp32 only");
        if (!o->local && o->rank >= o->world_size)
                return fault_set(fault, ZERO_EINVAL, "--rank: %u is not below --world-size %u",
                                 o->rank, o->world_size);
        return 0;
}

int options_parse(int argc, char **argv, struct fault *fault, struct options *ret_options)
{
        struct options options = { 0 };
        int r = set_defaults(fault, &options);
        if (!r)
                r = set_arguments(argc, argv, fault, &options);
        if (!r && !options.help)
                r = check(&options, fault);
        if (!r && options.local)
                options.rank = 0, options.world_size = 1, options.local_world_size = 1;
        if (!r)
                *ret_options = options;
        return r;
}

static void help_argument(const struct entry *entry, char *ret, size_t size)
{
        static const char *const kinds[] = { "TEXT", "N", "N", "X", "", "" };
        snprintf(ret, size, "%s", kinds[entry->kind]);
        for (const struct choice *c = entry->choices; c && c->name; c++) {
                size_t used = strlen(ret);
                snprintf(ret + used, size - used, "%s%s", used ? "|" : "", c->name);
        }
}

void options_help(void)
{
        puts("usage: zerod-gpt --data FILE [OPTION...]\n"
             "Trains a byte-level GPT-2 whose model states are held by zerod.\n");
        for (const struct entry *e = entries; e < entries + ENTRIES; e++) {
                char argument[64], left[96];
                help_argument(e, argument, sizeof(argument));
                snprintf(left, sizeof(left), "--%s %s", e->name, argument);
                printf("  %-32s %s", left, e->doc);
                if (e->environment)
                        printf(" [$%s, else %s]", e->environment, e->standard);
                else if (e->standard)
                        printf(" [%s]", e->standard);
                putchar('\n');
        }
}

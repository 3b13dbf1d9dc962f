/* The command line: defaults, environment, and refusals. */
#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "options.h"

static struct options options;
static struct fault fault;

/* At most eight arguments, NULL ends them. */
static int parse(const char *const *arguments)
{
        char *argv[10] = { "gpt" };
        int argc = 1;
        for (; *arguments; arguments++)
                argv[argc++] = (char *)*arguments;
        return options_parse(argc, argv, &fault, &options);
}
#define PARSE(...) parse((const char *const[]){ __VA_ARGS__, NULL })

static void setup(void)
{
        unsetenv("RANK");
        unsetenv("WORLD_SIZE");
        unsetenv("LOCAL_WORLD_SIZE");
        unsetenv("TORCHELASTIC_RESTART_COUNT");
}

TestSuite(gpt_options, .init = setup);

Test(gpt_options, defaults_are_usable)
{
        cr_assert_eq(PARSE("--data", "x"), 0, "%s", fault.text);
        cr_assert_eq(options.world_size, 1);
        cr_assert_eq(options.stage, 3);
        cr_assert_eq(options.dtype, ZERO_FP32);
}

Test(gpt_options, the_environment_gives_the_rank_and_the_command_line_wins)
{
        setenv("RANK", "2", 1);
        setenv("WORLD_SIZE", "4", 1);
        setenv("TORCHELASTIC_RESTART_COUNT", "3", 1);
        cr_assert_eq(PARSE("--data", "x"), 0, "%s", fault.text);
        cr_assert_eq(options.rank, 2);
        cr_assert_eq(options.incarnation, 3);
        cr_assert_eq(PARSE("--data", "x", "--rank", "1"), 0, "%s", fault.text);
        cr_assert_eq(options.rank, 1);
}

Test(gpt_options, a_bad_environment_is_named)
{
        setenv("RANK", "two", 1);
        cr_assert_eq(PARSE("--data", "x"), ZERO_EINVAL);
        cr_assert(strstr(fault.text, "RANK"));
}

Test(gpt_options, local_is_one_rank_whatever_the_environment_says)
{
        setenv("RANK", "2", 1);
        setenv("WORLD_SIZE", "4", 1);
        cr_assert_eq(PARSE("--data", "x", "--local"), 0, "%s", fault.text);
        cr_assert(options.rank == 0 && options.world_size == 1);
}

struct mistake {
        const char *arguments[6];
        const char *named; /* in the refusal */
};

static const struct mistake mistakes[] = {
        { { "--bogus", "1" }, "--bogus" },
        { { "--steps" }, "--steps" },
        { { "--steps", "ten" }, "'ten' is not a number" },
        { { "--steps", "1.5" }, "whole number" },
        { { "--stage", "4" }, "range 1 to 3" },
        { { "--lr", "nan" }, "not a number" },
        { { "--seed", "-1" }, "--seed" },
        { { "--dtype", "int8" }, "fp32, bf16, fp16" },
        { { "--local", "--data", "x", "--dtype", "bf16" }, "fp32 only" },
        { { "--data", "x", "--heads", "3" }, "--heads 3" },
        { { "--data", "x", "--micro-batches", "3" }, "--micro-batches 3" },
        { { "--data", "x", "--rank", "1" }, "--world-size 1" },
        { { "--steps", "1" }, "--data" },
        { { "stray" }, "stray" },
};

Test(gpt_options, mistakes_are_refused_by_name)
{
        for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
                cr_assert_eq(parse(mistakes[i].arguments), ZERO_EINVAL, "mistake %zu", i);
                cr_assert(strstr(fault.text, mistakes[i].named), "'%s' does not name '%s'",
                          fault.text, mistakes[i].named);
        }
}

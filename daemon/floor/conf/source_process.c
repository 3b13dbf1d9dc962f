/*
 * source_process.c - options from the environment and from the command line.
 *
 * ZEROD_KEY_FILE=value;  --key-file=value, --key_file value.
 */
#include "daemon/floor/conf/source.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { KEY_TEXT = 64 };

struct word {
        char text[KEY_TEXT];
};

/* The first n bytes of p with underscores for dashes; cut if longer than any option. */
static struct word key_of_argument(const char *p, size_t n)
{
        struct word key = { "" };

        for (size_t i = 0; i < n && i < sizeof(key.text) - 1; i++)
                key.text[i] = p[i] == '-' ? '_' : p[i];
        return key;
}

static bool key_is(struct word key, const char *name)
{
        return strcmp(key.text, name) == 0;
}

static int argument_unknown(const char *argument, struct word key, struct fault *fault)
{
        if (strncmp(argument, "--", 2) != 0)
                return fault_set(fault, ZERO_EINVAL,
                                 "unexpected argument %s; zerod takes --option=value, see "
                                 "zerod --help",
                                 option_quote(argument).text);
        return fault_set(fault, ZERO_EINVAL,
                         "unknown option %s; the nearest is --%s, and zerod --help shows all",
                         option_quote(argument).text, option_nearest(key.text));
}

static bool *argument_flag(struct arguments *a, struct word key)
{
        if (key_is(key, "help"))
                return &a->help;
        if (key_is(key, "version"))
                return &a->version;
        return key_is(key, "check") ? &a->check : NULL;
}

/* Takes argv[*i], and argv[*i + 1] if that is its value. */
static int argument_read(int argc, char **argv, int *i, struct arguments *a, struct fault *fault)
{
        const char *argument = argv[*i];
        bool dashes = strncmp(argument, "--", 2) == 0;
        size_t n = dashes ? strcspn(argument + 2, "=") : 0;
        struct word key = key_of_argument(argument + 2, n);
        const char *value = dashes && argument[2 + n] ? argument + 2 + n + 1 : NULL;
        const struct option *o = dashes ? option_find(key.text, n) : NULL;
        bool *flag = dashes ? argument_flag(a, key) : NULL;

        if (flag) {
                *flag = true;
                return value ? fault_set(fault, ZERO_EINVAL, "--%s takes no value", key.text) : 0;
        }
        if (!o && !(dashes && key_is(key, "config")))
                return argument_unknown(argument, key, fault);
        if (!value && *i + 1 == argc)
                return fault_set(fault, ZERO_EINVAL, "--%s needs a value", key.text);
        if (!value)
                value = argv[++*i];
        if (o)
                a->value[o - options] = value;
        else
                a->config = value;
        return 0;
}

int arguments_read(int argc, char **argv, struct arguments *ret, struct fault *fault)
{
        struct arguments a = { 0 };
        int r = 0;

        for (int i = 1; i < argc && r == 0; i++)
                r = argument_read(argc, argv, &i, &a, fault);
        if (r == 0)
                *ret = a;
        return r;
}

int source_arguments(struct loaded *l, const struct arguments *a, struct fault *fault)
{
        int r = 0;

        for (uint32_t i = 0; i < N_OPTIONS && r == 0; i++) {
                if (a->value[i])
                        r = loaded_set(l, &options[i], a->value[i],
                                       (struct origin){ CONF_ARGUMENT, 0 }, "command line", fault);
        }
        return r;
}

/* zerod's variables that are not options of the daemon: one shell may start clients too. */
static bool is_of_others(const struct word *key)
{
        static const char *const others[] = { "config", "job", "library" };

        for (size_t i = 0; i < sizeof others / sizeof *others; i++)
                if (key_is(*key, others[i]))
                        return true;
        return false;
}

/* One "ZEROD_KEY=value". */
static int variable_read(struct loaded *l, const char *variable, struct fault *fault)
{
        const char *name = variable + strlen("ZEROD_");
        size_t n = strcspn(name, "=");
        struct word key = { "" };
        const struct option *o;

        for (size_t i = 0; i < n && i < sizeof(key.text) - 1; i++)
                key.text[i] = isupper((unsigned char)name[i]) ? (char)(name[i] + 32)
                              : name[i] == '_'                ? '_'
                                                              : '?';
        o = option_find(key.text, n);
        if (!o && n < sizeof(key.text) && is_of_others(&key))
                return 0;
        if (!o)
                return fault_set(fault, ZERO_EINVAL,
                                 "environment: unknown variable ZEROD_%.*s; the nearest key is %s",
                                 (int)n, name, option_nearest(key.text));
        return loaded_set(l, o, name + n + 1, (struct origin){ CONF_ENVIRONMENT, 0 }, "environment",
                          fault);
}

int source_environment(struct loaded *l, char **environment, struct fault *fault)
{
        int r = 0;

        for (; environment && *environment && r == 0; environment++) {
                if (strncmp(*environment, "ZEROD_", strlen("ZEROD_")) == 0)
                        r = variable_read(l, *environment, fault);
        }
        return r;
}

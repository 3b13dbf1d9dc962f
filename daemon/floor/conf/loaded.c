/* All options with the source of each value: made, set, listed and freed. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/floor/conf/source.h"

static struct loaded *loaded_of(const struct conf *conf)
{
        return CONTAINER_OF(conf, struct loaded, conf);
}

void conf_free(struct conf *conf)
{
        struct loaded *l;

        if (!conf)
                return;
        l = loaded_of(conf);
        for (uint32_t i = 0; i < N_OPTIONS; i++) {
                if (option_is_string(&options[i]))
                        free(*(char **)(void *)((char *)conf + options[i].offset));
        }
        free(l->file);
        free(l);
}

int loaded_set(struct loaded *l, const struct option *o, const char *value, struct origin origin,
               const char *where, struct fault *fault)
{
        struct fault inner = { 0 };
        int r = option_set(o, &l->conf, value, &inner);

        if (r)
                return fault_set(fault, r, "%s: %s", where, inner.text);
        l->origin[o - options] = origin;
        return 0;
}

int loaded_new(struct loaded **ret, struct fault *fault)
{
        CLEANUP(cleanup_loaded_free)
        struct loaded *l = calloc(1, sizeof(*l));
        int r = 0;

        if (!l)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        for (uint32_t i = 0; i < N_OPTIONS && r == 0; i++)
                r = loaded_set(l, &options[i], options[i].preset, (struct origin){ CONF_DEFAULT },
                               "default", fault);
        if (r == 0)
                *ret = STEAL(l);
        return r;
}

bool loaded_is_default(const struct conf *conf, const char *name)
{
        const struct option *o = option_find(name, strlen(name));

        return loaded_of(conf)->origin[o - options].source == CONF_DEFAULT;
}

static void source_name(const struct loaded *l, const struct option *o, char *ret_text, size_t size)
{
        struct origin origin = l->origin[o - options];
        int n = 0;

        switch (origin.source) {
        case CONF_DEFAULT:
                snprintf(ret_text, size, "default");
                break;
        case CONF_FILE:
                snprintf(ret_text, size, "file %s:%u", l->file, origin.line);
                break;
        case CONF_ENVIRONMENT:
                n = snprintf(ret_text, size, "environment ZEROD_%s", o->name);
                for (int i = (int)strlen("environment "); i < n; i++)
                        if (ret_text[i] >= 'a' && ret_text[i] <= 'z')
                                ret_text[i] -= 'a' - 'A';
                break;
        case CONF_ARGUMENT:
                snprintf(ret_text, size, "command line");
                break;
        case CONF_SET:
                snprintf(ret_text, size, "zeroctl set");
                break;
        }
}

int conf_set(struct conf *conf, const char *name, const char *value, struct fault *fault)
{
        const struct option *o = option_find(name, strlen(name));

        if (!o)
                return fault_set(fault, ZERO_EINVAL, "no option %s; did you mean %s?",
                                 option_quote(name).text, option_nearest(name));
        if (!option_is_live(o))
                return fault_set(fault, ZERO_EINVAL,
                                 "%s takes effect when zerod starts: change the configuration and "
                                 "restart zerod",
                                 o->name);
        return loaded_set(loaded_of(conf), o, value, (struct origin){ CONF_SET }, "set", fault);
}

void conf_each(const struct conf *conf,
               void (*each)(void *arg, const char *name, const char *value, const char *source,
                            const char *doc),
               void *arg)
{
        const struct loaded *l = loaded_of(conf);
        char source[PATH_MAX + 32], scratch[OPTION_NUMBER];

        for (uint32_t i = 0; i < N_OPTIONS; i++) {
                const struct option *o = &options[i];

                source_name(l, o, source, sizeof(source));
                each(arg, o->name, option_get(o, conf, scratch), source, o->doc);
        }
}

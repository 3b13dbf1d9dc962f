/*
 * source.h - options with their values and origins, and the sources: file, environment, command
 * line. Each source overrides the sources before it.
 */
#pragma once

#include <stdio.h>

#include "daemon/floor/conf/option.h"
#include "proto/cleanup.h"

struct origin {
        enum conf_source source;
        uint32_t line; /* in the file */
};

struct loaded {
        struct conf conf;
        struct origin origin[N_OPTIONS];
        char *file; /* the file that was read, or NULL */
        int argc;   /* the command line, of main() */
        char **argv;
};

/* The command line; strings belong to argv. */
struct arguments {
        const char *config; /* NULL: not given */
        bool check, help, version;
        const char *value[N_OPTIONS]; /* NULL: not given; the last one counts */
};

/* All options at their defaults. */
int loaded_new(struct loaded **ret, struct fault *fault);
static inline void loaded_free(struct loaded *l)
{
        conf_free(&l->conf);
}
DEFINE_CLEANUP(struct loaded *, loaded_free)
/* Sets one option and its origin; the fault begins with `where`. */
int loaded_set(struct loaded *l, const struct option *o, const char *value, struct origin origin,
               const char *where, struct fault *fault);

/* Whether nobody has set the option. */
bool loaded_is_default(const struct conf *conf, const char *name);

int source_text(struct loaded *l, const char *name, const char *text, size_t size,
                struct fault *fault);
/* A missing file is a fault only if it is needed. */
int source_file(struct loaded *l, const char *path, bool needed, struct fault *fault);

int arguments_read(int argc, char **argv, struct arguments *ret, struct fault *fault);
int source_arguments(struct loaded *l, const struct arguments *a, struct fault *fault);
/* *ret_config: the value of ZEROD_CONFIG, or NULL. */
int source_environment(struct loaded *l, char **environment, struct fault *fault);

/* "(number, 1 to 4096 jobs; default 16)", for help and man page. */
void option_facts(const struct option *o, char ret_text[static OPTION_FACTS]);
/*
 * Prints words in lines of at most 80 columns that begin with `begin`.  *column is the column
 * reached so far, 0 for a new line; the next call goes on from it.
 */
void conf_print_words(FILE *out, const char *begin, const char *text, uint32_t *column);
/* What --help prints. */
void conf_help(FILE *out);

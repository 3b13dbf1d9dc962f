/*
 * What the subcommands of zeroctl share.  zeroctl knows the service only through zero.h: it asks,
 * gets JSON, and shows the JSON as it came (--json) or for people.
 *
 * A subcommand is one file, COMMAND.c, with one row in meson.build.  Its struct command holds
 * everything that is its own: arguments, options, and the text of --help and of zeroctl(1).
 *
 * Strings in JSON that is shown to people hold no control characters (ctl_ask()).
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "zero.h"

/* Exit codes, part of the interface. */
enum { CTL_OK = 0, CTL_FAILED = 1, CTL_USAGE = 2, CTL_NO_CONNECTION = 3 };

struct ctl {
        struct zero_client *client;
        struct zero_options options; /* of the connection */
        const char *command;         /* the subcommand's name, with which errors begin */
        const char *argument;        /* the subcommand's first: a job, a node, or NULL */
        const char *file;            /* its second: a directory or a file, or NULL */
        char **more;                 /* those that follow, up to NULL */
        bool json;
        bool colour; /* standard output is a terminal */
};

/*
 * An option of one subcommand.  Exactly one of flag, count and text is set: where the value goes.
 * Options of the same name are of the same kind in all subcommands.
 */
struct command_option {
        const char *name;     /* without "--" */
        const char *argument; /* what --help calls its value; NULL: a flag */
        const char *help;
        bool *flag;
        long *count; /* 0 to COUNT_MAX */
        const char **text;
};

enum { COUNT_MAX = 1000000000 };

/*
 * A subcommand either shows what the daemon answers to `name` (show), or runs by itself (run).
 *
 * Texts are for terminals and for zeroctl(1): *bold*, <PLACEHOLDER>; a newline ends a paragraph.
 */
struct command {
        const char *name;
        const char *arguments; /* "JOB", "[JOB]", "JOB DIR [FILE]..." or NULL */
        const char *summary;
        const char *description;
        const struct command_option *options;      /* the last has no name; NULL: none */
        const struct command_option *more_options; /* the same, shared with other subcommands */
        int (*check)(const struct ctl *ctl);       /* before it connects; or NULL */
        int (*run)(struct ctl *ctl);
        void (*show)(const struct ctl *ctl, FILE *out, const json_t *answer);
        bool of_job;   /* the connection observes the job that is named */
        bool or_path;  /* or a path, with a slash, and of no job then */
        bool alone;    /* without a job it needs no connection */
        bool connects; /* by itself, if it can */
};

/* Asks the daemon; says on standard error what went wrong.  CTL_OK or CTL_FAILED. */
int ctl_ask(struct ctl *ctl, const char *what, json_t **ret_answer);
/* The same question with another argument than the subcommand's. */
int ctl_ask_about(struct ctl *ctl, const char *what, const char *argument, json_t **ret_answer);
/* The same, silently: a zero_status.  zero_error() says why. */
int ctl_query(struct ctl *ctl, const char *what, const char *argument, json_t **ret_answer);
/* Replaces a connection that was lost; a zero_status. */
int ctl_connect_again(struct ctl *ctl);
/* Seconds that the subcommand waits: --timeout, or its default. */
double ctl_patience(const struct ctl *ctl);
/* Observes the job that is named. */
int ctl_attach(struct ctl *ctl);
/* Shows an answer as it came, or by show(); releases the answer. */
int ctl_show(struct ctl *ctl, json_t *answer,
             void (*show)(const struct ctl *ctl, FILE *out, const json_t *answer));
void ctl_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* What is wrong, and what to do. */
void show_verdict(const struct ctl *ctl, FILE *out, const json_t *status);
/* A cell: up, down, or how the peer said goodbye. */
struct table;
void add_peer_state(struct table *t, const json_t *peer);
/* The tables of jobs, alike in status, jobs and top. */
void show_jobs(const struct ctl *ctl, FILE *out, const json_t *jobs);
/* Who and what each job waits for, a line a cause. */
void show_waiting(const struct ctl *ctl, FILE *out, const json_t *jobs);
/* "version 12: a b c" lines of one job: windows, memory. */
void show_job_details(const struct ctl *ctl, FILE *out, const json_t *job);
void show_memory(FILE *out, const json_t *memory);
/* Writes the answers to "status" (or NULL) and "trace" of the job into a file.  0 or -errno. */
int trace_write(struct ctl *ctl, const char *job, const json_t *status, const json_t *answer,
                FILE *out, unsigned *ret_lines);
/* CUDA and the GPUs, from status; nothing where there is none. */
void show_gpus(const struct ctl *ctl, FILE *out, const json_t *status);

/* Fields of an object: "", 0 and false where there is none. */
const char *field_text(const json_t *object, const char *key);
double field_number(const json_t *object, const char *key);
bool field_true(const json_t *object, const char *key);
/* The object of a list whose `key` is the text; NULL: none is. */
json_t *find_named(const json_t *list, const char *key, const char *text);

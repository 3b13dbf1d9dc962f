/*
 * What the subcommands of zeroctl share.  zeroctl knows the service through zero.h
 * alone: it asks, is given JSON, and shows it, as it came (--json) or for people.
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
        struct zero_options options; /* that it was connected with */
        const char *argument;        /* of the subcommand: a job, or NULL */
        const char *file;            /* its second one: a directory or a file, or NULL */
        bool json;
        bool once;         /* top: one picture */
        bool no_wait;      /* add-node, ...: not until jobs have moved */
        bool colour;       /* standard output is a terminal */
        long keep, every;  /* checkpoint; -1: not given */
        const char *dead;  /* takeover: nodes, with commas between; NULL: not given */
        const char *dtype; /* export: "fp32" or "serve"; NULL: not given */
};

/*
 * A subcommand either shows what the daemon says to `name` (show), or runs by itself
 * (run).
 */
struct command {
        const char *name;
        const char *argument; /* "JOB", "[JOB]", "JOB DIR" or NULL */
        const char *summary;
        void (*show)(const struct ctl *ctl, FILE *out, const json_t *answer);
        int (*run)(struct ctl *ctl);
        const char *options; /* of its own: " --keep --every " */
        bool of_job;         /* the connection observes the job that is named */
};

extern const struct command command_status, command_jobs, command_shards, command_top, command_ping,
        command_checksum, command_config, command_drop, command_checkpoint, command_restore,
        command_export, command_import, command_view, command_add_node, command_remove_node,
        command_takeover;

/* Asks the daemon; says on standard error what went wrong.  CTL_OK or CTL_FAILED. */
int ctl_ask(struct ctl *ctl, const char *what, json_t **ret_answer);
/* The same, silently: a zero_status.  zero_error() says why. */
int ctl_query(struct ctl *ctl, const char *what, const char *argument, json_t **ret_answer);
/* A new connection in the place of one that was lost; a zero_status. */
int ctl_connect_again(struct ctl *ctl);
/* Asks and shows. */
int ctl_run(struct ctl *ctl, const struct command *command);
/* Observes the job that is named. */
int ctl_attach(struct ctl *ctl);
/* Shows an answer, as it came or by the function; releases it. */
int ctl_show(struct ctl *ctl, json_t *answer,
             void (*show)(const struct ctl *ctl, FILE *out, const json_t *answer));
/* The same question with another argument than the subcommand's. */
int ctl_ask_about(struct ctl *ctl, const char *what, const char *argument, json_t **ret_answer);
void ctl_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The tables of jobs, alike in status, jobs and top. */
void show_jobs(const struct ctl *ctl, FILE *out, const json_t *jobs);
/* What is waited for. */
void show_waiting(const struct ctl *ctl, FILE *out, const json_t *jobs);
/* "version 12: a b c" lines of one job: windows, memory. */
void show_job_details(const struct ctl *ctl, FILE *out, const json_t *job);
void show_memory(FILE *out, const json_t *memory);
/* CUDA and the GPUs, as status tells them; nothing where there is none. */
void show_gpus(const struct ctl *ctl, FILE *out, const json_t *status);

/* Fields of an object: "", 0 and false where there is none. */
const char *field_text(const json_t *object, const char *key);
double field_number(const json_t *object, const char *key);
bool field_true(const json_t *object, const char *key);

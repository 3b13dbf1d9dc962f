/*
 * progress.h - how a job gets on: whom it waits for, and how fast it steps.
 *
 * Each node reports to the job's coordinator who is late there; the coordinator tells all nodes.
 */
#pragma once

#include "daemon/job/core/job.h"

enum { WAIT_LINES = 32, STEP_TIMES = 16 };

/* What a node has to do that is up while another is not: its name follows. */
#define WAIT_TO_REACH "to reach node "

struct wait_lines {
        uint32_t n;
        struct wait_line lines[WAIT_LINES];
};

/*
 * What takes time: a rank's call, an owner's vote once it is asked for, an owner's update, and a
 * payload from another node (gather: of parameters; reduce: of gradients).
 */
/* clang-format off */
#define WAITS(X)                                                                                   \
        X(fetch) X(push) X(vote) X(update) X(step) X(norm) X(all_reduce) X(stash) X(gather)        \
        X(reduce) X(stash_parts) X(state)
/* clang-format on */
#define WAIT_ENUM(name) WAIT_##name,
enum wait_for { WAITS(WAIT_ENUM) WAIT_FORS };
extern const char *const wait_names[WAIT_FORS];
enum { WAIT_BOUNDS = 10 };
extern const double wait_bounds_s[WAIT_BOUNDS];

/* n[i]: waits that took at most wait_bounds_s[i] and more than the bound before; the last: longer.
 */
struct wait_times {
        uint64_t n[WAIT_BOUNDS + 1], sum_ns;
};

/* One thing that took time.  Times are those of uv_hrtime(). */
struct traced {
        uint64_t begun_ns, took_ns, version;
        uint32_t who;   /* the rank, the owner, or the node that sent the payload */
        uint32_t group; /* NO_GROUP: the step */
        uint32_t what;  /* enum wait_for */
};
enum { TRACE_MAX = 8192, NO_GROUP = UINT32_MAX };

/* What this node knows of a job's progress. */
struct progress {
        struct wait_lines waits; /* as the coordinator last told */
        bool reported;           /* this node's last report said something */
        uint64_t finished_ms; /* loop time at which all ranks had completed the job; 0: not yet */
        uint32_t lost;        /* the rank that this attempt cannot end without; RANK_ABSENT: none */
        bool left;            /* it has left in order */
        uint64_t step_times_ms[STEP_TIMES]; /* ring of the loop times of the last decisions */
        uint32_t n_steps;                   /* decided since this node has the job */
        uint32_t overflows;                 /* steps in a row that an overflow skipped */
        bool begun;                         /* an attempt has begun here */
        uint64_t aborts;                    /* attempts that ended without a decision */
        struct wait_times times[WAIT_FORS];
        struct traced trace[TRACE_MAX]; /* ring of what took time last */
        uint64_t n_traced;
        uint64_t recorded_ms; /* loop time at which the trace was last written down; 0: never */
};

/* Something that took time has ended on this node. */
void job_waited(const struct job *job, enum wait_for what, uint32_t who, uint32_t group,
                uint64_t begun_ns);
/* Seconds since the last decision; not finite: there was none. */
double job_step_age(const struct job *job);
/* A step is decided. */
void job_stepped(struct job *job);
/* Over the last decisions; 0: unknown. */
double job_steps_per_second(const struct job *job);
/* Whether a step was decided within the last minute. */
bool job_is_stepping(const struct job *job);
/* Describes a node that the job needs and that is away; else, as the coordinator last said, the
 * late rank or node whose wait ends first.  Returns ZERO_EDEADLINE. */
int job_describe(const struct job *job, struct wait_line *ret);
/* Describes a wait for the node; false: the node is up. */
bool wait_for_node(const struct engine *x, uint32_t node, struct wait_line *ret);
/* Whether a node that the job needs is away, and which. */
bool job_away(const struct job *job, struct wait_line *ret);

struct progress_message {
        Zero__Progress progress;
        Zero__Wait waits[WAIT_LINES], *pointers[WAIT_LINES];
};
/* The message points to itself and to the lines. */
void progress_write(const struct engine *x, struct wait_lines *lines, struct progress_message *ret);
void progress_read(const struct engine *x, const Zero__Progress *p, struct wait_lines *ret);

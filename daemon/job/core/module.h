/*
 * module.h - what the engine's folders do when the node, another node or a job changes.
 *
 * A folder that has something to do then defines one struct module.  engine/engine.c lists them:
 * drops first, then bottom to top.  A NULL hook does nothing.  Hooks run on the loop thread and
 * must not destroy the job that they are told of.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine;
struct fault;
struct job;

struct module {
        /*
         * The folder's state of the node.  The engine sets the pointer at node_at in struct engine
         * to node_bytes of zeros, calls node_init(), which may be NULL, and frees them when nothing
         * is in flight.
         */
        size_t node_at, node_bytes;
        void (*node_init)(struct engine *x);
        /*
         * Its state of a job, likewise at job_at in struct job: there before job_init(), which may
         * be NULL, and until job_free() returns.  job_free() finds NULL where memory ran out.
         */
        size_t job_at, job_bytes;
        int (*job_init)(struct job *job); /* -ENOMEM */

        void (*tick)(struct engine *x);     /* every TICK_MS */
        void (*progress)(struct engine *x); /* every PROGRESS_MS */
        /* Both nodes see the link and agree on the owner list. */
        void (*node_up)(struct engine *x, uint32_t node);
        void (*node_down)(struct engine *x, uint32_t node, const char *why);
        /* Whether nothing of the folder is in flight any more, while the engine stops. */
        bool (*idle)(const struct engine *x);

        /*
         * Whether one more job may be created.  The folder adds the user's jobs that it is creating
         * to *n_jobs.
         */
        int (*job_admit)(struct engine *x, const char *name, uint32_t uid, uint64_t *n_jobs,
                         struct fault *fault);
        /* Whether a restored job may replace the job of that name, which this node may not have. */
        int (*job_replace)(struct engine *x, const char *name, struct fault *fault);
        /* The job has its states and is where their records say. */
        void (*job_stands)(struct job *job);
        /* A job of that name, on this node or not, goes; or a restored job of the same user takes
         * its place. */
        void (*name_dropped)(struct engine *x, const char *name, bool replaced);
        /* The job is dead: its requests end, and whatever is in flight ends soon. */
        void (*job_dropped)(struct job *job, int status, const char *text);
        /* Nothing in flight needs the dead job's states any more. */
        void (*job_released)(struct job *job);
        /* A dead job has lost a reference. */
        void (*job_left)(struct engine *x);
        void (*job_free)(struct job *job);
};

/* The pointer at node_at in a struct engine, or at job_at in a struct job. */
static inline void **module_state(void *of, size_t at)
{
        return (void **)((char *)of + at);
}

/* In the order of the list; for job_dropped and job_free in the opposite one. */
#define for_modules(x, module)                                                       \
        for (const struct module *const *module##_at = (x)->modules, *module = NULL; \
             module##_at < (x)->modules + (x)->n_modules && (module = *module##_at); \
             module##_at++)
#define for_modules_down(x, module)                                                   \
        for (const struct module *const *module##_at = (x)->modules + (x)->n_modules, \
                                        *module = NULL;                               \
             module##_at > (x)->modules && (module = *--module##_at);)

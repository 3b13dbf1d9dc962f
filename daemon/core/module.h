/*
 * module.h - what the engine's folders do when the node, another node or a job goes through a
 * change.
 *
 * Each folder that has something to do defines one struct module; engine/engine.c lists them,
 * drops first, then bottom to top.  A NULL hook does nothing.  Hooks run on the loop thread
 * and must not destroy the job that they are told of.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct engine;
struct fault;
struct job;

struct module {
        void (*tick)(struct engine *x);     /* every TICK_MS */
        void (*progress)(struct engine *x); /* every PROGRESS_MS */
        /* Both nodes see the link, and agree on the owner list. */
        void (*node_up)(struct engine *x, uint32_t node);
        void (*node_down)(struct engine *x, uint32_t node, const char *why);
        /* While the engine stops: nothing of the folder is in flight any more. */
        bool (*idle)(const struct engine *x);

        /*
         * Whether another job may be made; *n_jobs: the user's, to which the folder adds those that
         * it is making.
         */
        int (*job_admit)(struct engine *x, const char *name, uint32_t uid, uint64_t *n_jobs,
                         struct fault *fault);
        /* Whether the job, which may not be here, may be replaced by one that is restored. */
        int (*job_replace)(struct engine *x, const char *name, struct fault *fault);
        int (*job_new)(struct job *job); /* -ENOMEM */
        /* The job has its states, and stands where their records say. */
        void (*job_stands)(struct job *job);
        /* A job of that name goes, or is replaced, whether it is on this node or not. */
        void (*name_dropped)(struct engine *x, const char *name);
        /* The job is dead: requests end, and what is in flight ends as soon as it can. */
        void (*job_dropped)(struct job *job, int status, const char *text);
        /* Nothing in flight needs the dead job's states any more. */
        void (*job_released)(struct job *job);
        /* A reference to a job that died has gone. */
        void (*job_left)(struct engine *x);
        void (*job_free)(struct job *job);
};

/* In the order of the list; job_dropped and job_free from its end. */
#define for_modules(x, module)                                                       \
        for (const struct module *const *module##_at = (x)->modules, *module = NULL; \
             module##_at < (x)->modules + (x)->n_modules && (module = *module##_at); \
             module##_at++)
#define for_modules_down(x, module)                                                   \
        for (const struct module *const *module##_at = (x)->modules + (x)->n_modules, \
                                        *module = NULL;                               \
             module##_at > (x)->modules && (module = *--module##_at);)

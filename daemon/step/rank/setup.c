/*
 * Sets up a rank's GPU: opens the rank's events before it joins, and makes its windows after it has
 * joined.  The driver may wait for the GPU then, so threads that may block call it (blocking.h),
 * not the compute threads.  Host memory of a stash is taken so, too: the kernel zeroes it first.
 * Meanwhile the session may have ended, its deadline passed or the job been dropped: then
 * everything is given back.
 *
 * Windows on a GPU are made for one rank after the other, in the order of joining.  So a job has
 * one gather window there even if two ranks come at once, and a user's memory is counted correctly.
 *
 * A rank that leaves the number of push slots to the daemon gets one for each group where that
 * saves work: where the job has one rank, and the states lie on the same GPU (reduce/vote.c).
 * The states take nine times as much there.  All slots together take at most an eighth of what the
 * other windows leave free, and no more than gpu_windows allows, else the rank gets the number that
 * it asks for: the rest is the trainer's.
 */
#include "daemon/step/rank/local.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/log.h"
#include "daemon/job/core/window.h"
#include "proto/cleanup.h"

enum { PUSH_SHARE = 8 };
enum window_kind { GATHER, STASH, PUSH, N_WINDOWS }; /* the last one takes what is left */

struct rank_setup {
        struct list link; /* ranks.setups */
        struct blocking_work work;
        struct rank *rank;
        uint32_t place, uid;
        rank_made *made;
        bool begun;
        uint64_t since_ms; /* loop time */
        int status;
        struct fault fault;
        /* for windows */
        struct job *job; /* NULL: opens events; holds the job */
        struct rank_window windows[N_WINDOWS];
        struct slots *all;           /* a push slot for each group; NULL: not wanted */
        uint64_t all_bytes;          /* 0: never wanted */
        const struct segment *stash; /* for the memory of a stash */
        /* for events */
        struct place_events *events;
        uint32_t n_handles;
        uint8_t handles[][ZERO_GPU_HANDLE];
};

static struct rank_setup *rank_setup_new(struct rank *rank, uint32_t n_handles, rank_made *made)
{
        struct rank_setup *m = calloc(1, sizeof *m + n_handles * sizeof m->handles[0]);

        if (!m)
                return NULL;
        list_insert(&rank->x->ranks->setups, &m->link);
        m->rank = rank;
        m->since_ms = engine_now(rank->x);
        m->place = rank->needs.windows;
        m->made = made;
        m->n_handles = n_handles;
        rank->setup = m;
        return m;
}

uint32_t setups_left(const struct engine *x, uint32_t uid, uint32_t place)
{
        uint32_t n = 0;

        list_for_each (&x->ranks->setups, item) {
                const struct rank_setup *m = CONTAINER_OF(item, struct rank_setup, link);

                n += m->rank->left && m->rank->needs.job.uid == uid && m->place == place;
        }
        return n;
}

/* Perhaps nobody needs the result any more. */
static void rank_setup_end(struct rank_setup *m)
{
        struct rank *rank = m->rank;
        struct job *job = m->job;

        rank->setup = NULL;
        list_remove(&m->link);
        m->made(rank, m->status, m->fault.text);
        if (job)
                job_let_go(job);
        slots_free(m->all);
        free(m);
}

/* ---- events ---------------------------------------------------------------------- */

static void events_run(struct blocking_work *work)
{
        struct rank_setup *m = CONTAINER_OF(work, struct rank_setup, work);

        m->status = place_events_open(m->place, (const uint8_t(*)[ZERO_GPU_HANDLE])m->handles,
                                      m->n_handles, &m->events, &m->fault);
}

static void tell_no_events(const struct rank *rank, bool named)
{
        const char *why =
                named ? "CUDA does not let this process open its events; run zerod and trainers as "
                        "one user, with one /dev/shm (in containers: one IPC namespace)"
                      : "the driver there passes no event to another process, as in some sandboxes "
                        "and virtual machines; run the trainer outside of them, or see what the "
                        "driver supports (cudaDevAttrIpcEventSupport)";

        log_warning_for(rank->needs.job.uid,
                        "job %s: rank %u (process %u of user %u) waits for its GPU itself at each "
                        "release and push, which costs it time: %s",
                        rank->needs.job.name, rank->rank, rank->pid, rank->needs.job.uid, why);
}

static void events_done(struct blocking_work *work)
{
        struct rank_setup *m = CONTAINER_OF(work, struct rank_setup, work);

        m->rank->stream_events = m->events;
        m->rank->no_events = m->status == 0 && (!m->events || m->n_handles == 0);
        if (m->rank->no_events)
                tell_no_events(m->rank, m->n_handles > 0);
        rank_setup_end(m);
}

int rank_make_events(struct rank *rank, const uint8_t (*handles)[ZERO_GPU_HANDLE], uint32_t n,
                     rank_made *made)
{
        struct rank_setup *m = rank_setup_new(rank, n, made);

        if (!m)
                return -ENOMEM;
        memcpy(m->handles, handles, n * sizeof m->handles[0]);
        m->work = (struct blocking_work){ .run = events_run,
                                          .done = events_done,
                                          .what = "to open the events of a rank of job",
                                          .of = rank->needs.job.name,
                                          .uid = rank->needs.job.uid };
        m->begun = true;
        blocking_submit(rank->x->blocking, LANE_DRIVERS, &m->work);
        return 0;
}

/* ---- windows --------------------------------------------------------------------- */

/* The push slots: of all groups if they are wanted and fit, else as many as the rank asks for. */
static int make_push(struct rank_setup *m)
{
        struct rank_window *push = &m->windows[PUSH];
        uint64_t least = push->bytes;

        if (m->all &&
            (m->all_bytes <= least || m->all_bytes <= place_left(m->place) / PUSH_SHARE)) {
                push->bytes = m->all_bytes;
                if (window_make(m->place, m->uid, push, &m->fault) == 0)
                        return 0;
        }
        slots_free(STEAL(m->all));
        push->bytes = least;
        return window_make(m->place, m->uid, push, &m->fault);
}

static void windows_run(struct blocking_work *work)
{
        struct rank_setup *m = CONTAINER_OF(work, struct rank_setup, work);

        for (int i = 0; i < PUSH && !m->status; i++)
                m->status = window_make(m->place, m->uid, &m->windows[i], &m->fault);
        if (!m->status)
                m->status = make_push(m);
}

static void tell_slots(const struct rank_setup *m)
{
        const struct rank *rank = m->rank;

        if (m->all)
                log_info_for(m->uid,
                             "job %s: rank %u has a push slot for each group, %.1f MiB on %s: the "
                             "update adds its gradients up",
                             m->job->name, rank->rank, (double)m->all_bytes / 0x1p20,
                             place_name(m->place).text);
        else if (m->all_bytes)
                log_info_for(m->uid,
                             "job %s: rank %u has %u push slots: a slot for each group takes %.1f "
                             "MiB, which is more than 1/%d of what is free on %s, or than "
                             "gpu_windows allows; push_groups of zero_attach() has the last word",
                             m->job->name, rank->rank, rank->window->slots->n,
                             (double)m->all_bytes / 0x1p20, PUSH_SHARE, place_name(m->place).text);
}

static void take_push(struct rank_setup *m)
{
        struct push_window *w = m->rank->window;

        w->apart = m->windows[PUSH].segment;
        tell_slots(m);
        if (!m->all)
                return;
        slots_free(w->slots);
        w->slots = STEAL(m->all);
}

/* Gives the windows to the rank, or frees them. */
static void windows_end(struct rank_setup *m)
{
        struct rank *rank = m->rank;

        if (m->status == 0) {
                if (m->windows[GATHER].bytes)
                        gather_provide(rank->holds.gather, &m->windows[GATHER].segment);
                take_push(m);
                if (m->windows[STASH].bytes)
                        stash_provide(rank->stash, &m->windows[STASH].segment);
                rank->stash_reserved = rank->stash;
        } else {
                for (int i = 0; i < N_WINDOWS; i++)
                        segment_free(&m->windows[i].segment);
        }
        rank_setup_end(m);
}

static void setups_advance(struct engine *x);

static void windows_done(struct blocking_work *work)
{
        struct rank_setup *m = CONTAINER_OF(work, struct rank_setup, work);
        struct engine *x = m->rank->x;

        windows_end(m);
        setups_advance(x);
}

/* Once the other windows are planned. */
static void plan_all_slots(struct rank_setup *m)
{
        const struct rank_needs *needs = &m->rank->needs;
        struct rank_window *push = &m->windows[PUSH];
        uint64_t least = push->bytes;
        struct fault fault;

        if (!needs->push_auto || m->rank->window->slots->whole ||
            !reduce_could_defer(m->job, m->place) ||
            push_window_slots(m->job->layout, UINT32_MAX, needs->grad_dtype, true, &m->all))
                return;
        m->all_bytes = push->bytes = m->all->bytes;
        if (windows_check(m->job->x, m->uid, m->place, m->windows, N_WINDOWS, &fault))
                slots_free(STEAL(m->all));
        push->bytes = least;
}

/* The rank's turn has come: plans its windows. */
static int windows_plan(struct rank_setup *m)
{
        const struct rank_needs *needs = &m->rank->needs;
        struct job *job = m->job;
        int status;

        if (m->rank->left || !m->rank->attaching || job->dead)
                return fault_set(&m->fault, ZERO_EABORTED, "the job ended while the rank attached");
        status = push_window_new_rank(job->layout, needs->push_groups, needs->grad_dtype, true,
                                      needs->keeps_slots, &m->rank->window, &m->fault);
        if (!status)
                status = holds_admit(&m->rank->holds, job, needs->windows, needs->hold_groups,
                                     needs->local_world_size, &m->fault);
        if (status)
                return status;
        m->windows[PUSH].bytes = m->rank->window->slots->bytes;
        if (m->rank->needs.stash.n_ranks && !place_is_host(needs->stash.place)) {
                status = stash_admit(job, m->rank->rank, &needs->stash, &m->rank->stash, &m->fault);
                if (status)
                        return status;
        }
        m->windows[GATHER].bytes = gather_lacks(m->rank->holds.gather);
        m->windows[STASH].bytes = stash_lacks(m->rank->stash);
        plan_all_slots(m);
        return windows_check(job->x, job->uid, m->place, m->windows, N_WINDOWS, &m->fault);
}

static void windows_begin(struct rank_setup *m)
{
        m->begun = true;
        m->status = windows_plan(m);
        if (m->status)
                windows_end(m);
        else
                blocking_submit(m->rank->x->blocking, LANE_DRIVERS, &m->work);
}

static bool place_is_busy(const struct engine *x, uint32_t place)
{
        list_for_each (&x->ranks->setups, item) {
                const struct rank_setup *m = CONTAINER_OF(item, struct rank_setup, link);

                if (m->begun && m->job && m->place == place)
                        return true;
        }
        return false;
}

static struct rank_setup *rank_setup_next(const struct engine *x)
{
        list_for_each (&x->ranks->setups, item) {
                struct rank_setup *m = CONTAINER_OF(item, struct rank_setup, link);

                if (!m->begun && !place_is_busy(x, m->place))
                        return m;
        }
        return NULL;
}

static void setups_advance(struct engine *x)
{
        struct rank_setup *m;

        while ((m = rank_setup_next(x)))
                windows_begin(m);
}

int rank_make_windows(struct rank *rank, struct job *job, rank_made *made)
{
        struct rank_setup *m = rank_setup_new(rank, 0, made);

        if (!m)
                return -ENOMEM;
        m->job = job;
        m->uid = job->uid;
        job_hold(job);
        for (int i = 0; i < N_WINDOWS; i++)
                m->windows[i].segment.fd = -1;
        snprintf(m->windows[PUSH].what, sizeof m->windows[PUSH].what,
                 "the push slots of rank %u of job %s", rank->rank, job->name);
        snprintf(m->windows[GATHER].what, sizeof m->windows[GATHER].what,
                 "the gather window of job %s", job->name);
        snprintf(m->windows[STASH].what, sizeof m->windows[STASH].what,
                 "the stash of rank %u of job %s", rank->rank, job->name);
        m->work = (struct blocking_work){ .run = windows_run,
                                          .done = windows_done,
                                          .what = "to make windows of job",
                                          .of = job->name,
                                          .uid = job->uid };
        setups_advance(rank->x);
        return 0;
}

/* ---- a stash in host memory ---------------------------------------------------- */

static void stash_run(struct blocking_work *work)
{
        struct rank_setup *m = CONTAINER_OF(work, struct rank_setup, work);
        int r = segment_reserve(m->stash->fd, m->stash->bytes);

        if (r)
                m->status =
                        fault_set(&m->fault, ZERO_ESHM,
                                  "the stash of rank %u needs %llu bytes of shared memory: %s",
                                  m->rank->rank, (unsigned long long)m->stash->bytes, strerror(-r));
}

static void stash_done(struct blocking_work *work)
{
        struct rank_setup *m = CONTAINER_OF(work, struct rank_setup, work);

        m->rank->stash_reserved = m->status == 0;
        rank_setup_end(m);
}

int rank_reserve_stash(struct rank *rank, struct job *job, rank_made *made)
{
        struct rank_setup *m = rank_setup_new(rank, 0, made);

        if (!m)
                return -ENOMEM;
        m->job = job;
        m->place = 0;
        m->stash = stash_segment(rank->stash);
        m->work = (struct blocking_work){ .run = stash_run,
                                          .done = stash_done,
                                          .what = "to reserve a stash of job",
                                          .of = job->name,
                                          .uid = job->uid };
        m->begun = true;
        job_hold(job);
        blocking_submit(rank->x->blocking, LANE_MEMORY, &m->work);
        return 0;
}

/* ---- names ------------------------------------------------------------------------- */

struct job *rank_setup_job(const struct rank_setup *m)
{
        return m->job;
}

void rank_setup_describe(const struct rank_setup *m, struct wait_line *ret)
{
        snprintf(ret->who, sizeof ret->who, "%s%s", m->job ? "memory of " : "",
                 place_name(m->place).text);
        snprintf(ret->what, sizeof ret->what,
                 m->stash ? "the stash of rank %u"
                 : m->job ? "the windows of rank %u"
                          : "to open the events of rank %u",
                 m->rank->rank);
}

uint32_t setups_waits(const struct job *job, struct wait_line *lines, uint32_t n)
{
        uint32_t used = 0;

        list_for_each (&job->x->ranks->setups, item) {
                const struct rank_setup *m = CONTAINER_OF(item, struct rank_setup, link);
                struct wait_line *line = &lines[used];

                if (m->job != job || m->rank->left || used == n)
                        continue;
                *line = (struct wait_line){ .since_ms = m->since_ms };
                snprintf(line->who, sizeof line->who, "rank %u on %.60s", m->rank->rank,
                         node_name(job->x, job->x->cluster->self));
                snprintf(line->what, sizeof line->what, "memory of %s", place_name(m->place).text);
                used++;
        }
        return used;
}

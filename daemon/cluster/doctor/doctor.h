/*
 * doctor.h - what a person would check on a node before trusting it: files, limits, memory, the
 * kernel's settings, the links, the states of jobs.  Nothing is changed.
 *
 *   checks.c   this machine, from its files; may block on a disk
 *   states.c   state files that no job in order uses, and formats of states
 *   doctor.c   the links, and a thread for the checks
 */
#pragma once

#include "daemon/job/core/core.h"

enum { FINDINGS_MAX = 128, FOUND_MAX = 480 };

enum finding_state { FINDING_FINE, FINDING_WARNING, FINDING_ERROR, FINDING_STATES };
extern const char *const finding_states[FINDING_STATES];

struct finding {
        char check[NODE_NAME_MAX + 8];
        enum finding_state state;
        char found[FOUND_MAX];
        const char *advice; /* a constant; "": nothing to do */
};

struct findings {
        unsigned n;
        struct finding items[FINDINGS_MAX];
};

/* Findings beyond FINDINGS_MAX are dropped. */
void finding_add(struct findings *f, const char *check, enum finding_state state,
                 const char *advice, const char *format, ...) __attribute__((format(printf, 5, 6)));

/* What the checks look at.  root stands before /proc and /sys: "", or a test's directory. */
struct site {
        const char *root;
        const struct conf *conf;
        bool alone;           /* a cluster of one node */
        uint64_t state_bytes; /* of all jobs */
};
/* State files that are not taken up, and what is left of jobs. */
void states_examine(struct engine *x, struct findings *ret);
void site_examine(const struct site *site, struct findings *ret);
/* How many sessions the limit of open files leaves room for, beside what states, other nodes and
 * root need. */
uint64_t sessions_that_fit(void);
/* Whether the kernel has an RDMA device. */
bool site_has_rdma(const struct site *site);

typedef void doctor_done(void *arg, const struct findings *findings);

/* done() is called once, never before this returns.  -ENOMEM, also if disks hold up too many. */
int doctor_start(struct engine *x, doctor_done *done, void *arg);

extern const struct module doctor_module;

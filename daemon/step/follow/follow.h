/*
 * follow.h - whole versions of a job's parameters, for clients that are no ranks (readers).
 *
 * A reader wants the groups and dtypes of its form (slots_new_form()).  A node has one copy of a
 * version for all readers of a form.  A copy that somebody holds stays as it is, however many steps
 * the job goes on.  A copy is brought by a gather (gather.h) while a reader
 * waits for it, so each owner is asked once a version.  Nothing is kept at the owners: an update
 * waits for the parts of a group that are being read, as it does for a rank, and for no reader.
 *
 * Other users follow a job with the grant of its owner (grants.c).
 */
#pragma once

#include "daemon/step/gather/gather.h"

enum { FOLLOW_COPIES_MAX = 16 }; /* of a job on a node; the option follow_copies is less or equal */
enum { GRANTS_MAX = 64 };        /* users of a job */

/* A client's place among a job's readers. */
struct reader {
        struct list link; /* follow.readers */
        struct job *job;  /* NULL: it follows none */
        uint32_t uid, pid;
        const char *address; /* of a client over HTTP; NULL: it is a process of this node */
        struct request *waiting;            /* NULL: it waits for no version */
        uint64_t least, most;               /* that it waits for */
        uint8_t *form;                      /* of that; NULL: it has waited for none */
        uint32_t held[FOLLOW_COPIES_MAX];   /* how often it holds each copy */
        uint64_t passed[FOLLOW_COPIES_MAX]; /* serial of the memory that it was given; 0: none */
};

/* Of a job, on this node. */
struct follow_copy {
        bool whole;
        uint64_t version; /* that it has, or that comes */
        uint64_t bytes;
        uint32_t readers; /* that hold it */
        const uint8_t *form;
};
struct follow_info {
        uint32_t readers, copies, held; /* copies that have memory, and those that somebody holds */
        uint64_t bytes;                 /* of all copies */
        uint64_t version;               /* the newest whole one; valid if `whole` */
        bool whole;
};

/*
 * Waits for a whole version as m says; r ends with a copy, its descriptor and its version, and the
 * reader holds the copy.  The first call makes the reader one of the job's.
 * ZERO_EINVAL, ZERO_EBUSY: it waits already, ZERO_EPERM: follow_copies is 0.  ZERO_ENOMEM.  r may
 * end with ZERO_EGONE, or with ZERO_EQUOTA, ZERO_ESHM or ZERO_ENOMEM where a copy finds no memory.
 */
int follow_wait(struct reader *reader, struct job *job, const Zero__Follow *m, struct request *r,
                struct fault *fault);
/* Ends one hold of a copy: ZERO_ENOTHELD. */
int follow_release(struct reader *reader, uint32_t copy, struct fault *fault);
/* The client leaves, and waits no more. */
void follow_leave(struct reader *reader);
/* Later versions come into other memory: somebody who maps this one may follow the job no more. */
void follow_renew(struct job *job);
/* The job has reached a version. */
void follow_advance(struct job *job);
void follow_info(const struct job *job, struct follow_info *ret);
/* The next of the job's readers; NULL: there are no more, or at first. */
const struct reader *follow_reader(const struct job *job, const struct reader *before);
/* False: there is no memory for a copy of that number. */
bool follow_copy(const struct job *job, uint32_t number, struct follow_copy *ret);

/* ---- grants.c: other users who may follow the job ---- */

bool granted(const struct job *job, uint32_t uid);
/* All of them, until the list changes. */
const uint32_t *grants_of(const struct job *job, uint32_t *ret_n);
/*
 * Adds a user, or takes one off the list, on all nodes of the job; call on its coordinator's.  A
 * second grant changes nothing.  ZERO_EINVAL: the user has none to lose.  ZERO_EQUOTA.
 */
int grant_order(struct job *job, uint32_t uid, bool grant, struct fault *fault);
void grants_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);
/* Call before jobs are taken up.  A node that was declared dead keeps no lists: the others may have
 * made a new job of that name. */
void grants_resume(struct engine *x);

extern const struct module follow_module, grants_module;

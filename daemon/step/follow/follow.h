/*
 * follow.h - whole versions of a job's parameters, for clients that are no ranks (readers).
 *
 * A node has one copy of a version for all readers.  A copy that somebody holds stays as it is,
 * however many steps the job goes on.  A copy is brought by a gather (gather.h) while a reader
 * waits for it, so each owner is asked once a version.  Nothing is kept at the owners: an update
 * waits for the parts of a group that are being read, as it does for a rank, and for no reader.
 */
#pragma once

#include "daemon/step/gather/gather.h"

enum { FOLLOW_COPIES_MAX = 16 }; /* of a job on a node; the option follow_copies is less or equal */

/* A client's place among a job's readers. */
struct reader {
        struct list link; /* follow.readers */
        struct job *job;  /* NULL: it follows none */
        uint32_t pid;
        struct request *waiting;          /* NULL: it waits for no version */
        uint64_t least, most;             /* that it waits for */
        uint32_t held[FOLLOW_COPIES_MAX]; /* how often it holds each copy */
};

/* On this node. */
struct follow_info {
        uint32_t readers, copies, held; /* copies that have memory, and those that somebody holds */
        uint64_t bytes;                 /* of all copies */
        uint64_t version;               /* the newest whole one; valid if `whole` */
        bool whole;
};

/*
 * Waits for a whole version from `least` to `most`; r ends with a copy, its descriptor and its
 * version, and the reader holds the copy.  The first call makes the reader one of the job's.
 * ZERO_EINVAL, ZERO_EBUSY: it waits already, ZERO_EPERM: follow_copies is 0.  r may end with
 * ZERO_EGONE, or with ZERO_ESHM or ZERO_ENOMEM where a copy finds no memory.
 */
int follow_wait(struct reader *reader, struct job *job, uint64_t least, uint64_t most,
                struct request *r, struct fault *fault);
/* Ends one hold of a copy: ZERO_ENOTHELD. */
int follow_release(struct reader *reader, uint32_t copy, struct fault *fault);
/* The client leaves, and waits no more. */
void follow_leave(struct reader *reader);
/* The job has reached a version. */
void follow_advance(struct job *job);
void follow_info(const struct job *job, struct follow_info *ret);

extern const struct module follow_module;

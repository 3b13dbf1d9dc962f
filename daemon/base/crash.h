/*
 * Points at which a test can have the daemon killed.
 *
 * In builds with -Dcrash_points=true, ZEROD_CRASH=NAME:N in the environment has the process
 * killed by SIGKILL when it passes the point NAME for the N-th time (NAME alone: for the first
 * time), whatever its other threads are doing; ZEROD_CRASH=list prints all names.  In other builds
 * points are nothing, and the variable is refused like any that zerod does not know.
 */
#pragma once

#include <stdbool.h>

#include "proto/fault.h"

/* clang-format off */
/* X(point, name): the name's first word says who passes it; coordinator: the job's one only. */
#define CRASH_POINT_MAP(X)                                                                         \
        X(RECORD_TORN, "record.torn")               /* a record is written, its checksum is not */ \
        X(RECORD_BOTH, "record.both")               /* the record is published, the older copy counts too */ \
        X(RECORD_STEPS, "record.steps")             /* tensor steps are raised, the record is not */ \
        X(RECORD_FINISHED, "record.finished")       /* the step is over, its marks are not cleared */ \
        X(BLOB_TORN, "blob.torn")                   /* a rank's bytes are written, their checksum is not */ \
        X(UPDATE_BEGIN, "update.begin")             /* the decision is recorded, no chunk touched */ \
        X(UPDATE_VALID, "update.valid")             /* a redo slot is valid, nothing copied home */ \
        X(UPDATE_TORN, "update.torn")               /* some of a slot is copied home */            \
        X(UPDATE_COPIED, "update.copied")           /* copied home, the slot not yet free */       \
        X(UPDATE_CHUNK, "update.chunk")             /* a chunk is through, its serve bytes are not */ \
        X(UPDATE_FINISH, "update.finish")           /* all chunks are through, the record is not */ \
        X(UPDATE_DONE, "update.done")               /* the record is, the coordinator not told */  \
        X(RESUME_REPLAYED, "resume.replayed")       /* redo slots are copied home again */
/* clang-format on */

enum crash_point {
#define X(point, name) CRASH_##point,
        CRASH_POINT_MAP(X)
#undef X
                CRASH_POINT_COUNT
};

#ifdef ZEROD_CRASH_POINTS
enum { CRASH_POINTS = 1 };
#else
enum { CRASH_POINTS = 0 };
#endif

/*
 * Reads $ZEROD_CRASH and takes it out of the environment; to be called before any thread is
 * started.  *ret_done: the names were printed, there is nothing more to do.
 */
int crash_setup(bool *ret_done, struct fault *fault);
/* NAME or NAME:N */
int crash_arm(const char *text, struct fault *fault);
void crash_pass(enum crash_point point);

/* Any thread. */
static inline void crash_point(enum crash_point point)
{
        if (CRASH_POINTS)
                crash_pass(point);
}

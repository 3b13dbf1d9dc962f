/*
 * What one user may take of the daemon over all connections: loop time, memory for frames that are
 * being read, and memory for replies that wait to be read.
 *
 * Loop time is a credit: each millisecond adds one quantum, up to one quantum in total.  Work that
 * takes longer than the credit leaves a debt, and the user waits until the debt is paid.  What
 * reads take on other threads is a credit of its own, which ranks do not wait for: others than the
 * user may have asked for it, and steps come first.
 *
 * Pure: the caller passes the time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
        QUANTUM_ALONE_NS = 1000000, /* all of the loop, but no more than this in one turn */
        QUANTUM_SHARED_NS = 300000, /* while the loop also serves jobs of other users */
        QUANTUM_ACCEPT_NS = 100000, /* to accept connections, whose users are not known yet */
        FRAME_SMALL = 64 << 10,     /* a larger frame needs a grant */
        FRAMES_MAX = 64 << 20,      /* bytes granted at the same time; the largest frame */
        REPLIES_MAX = 64 << 20,     /* bytes that wait to be read */
};

struct budget {
        int64_t quantum_ns, credit_ns, reads_ns; /* reads_ns: the credit for reads */
        uint64_t filled_ms;                      /* when credit was last added */
        uint32_t n_owing; /* connections that are held until a debt is paid, first come, first
                             served */
        size_t frames;    /* bytes granted to large frames */
        size_t replies;   /* bytes of replies in queues */
};

void budget_init(struct budget *budget, uint64_t now_ms);
/* Whether the user may go on. */
bool budget_may_work(struct budget *budget, uint64_t now_ms);
void budget_worked(struct budget *budget, uint64_t ns);
/* Whether the user's connections that are no ranks may go on; after budget_may_work(). */
bool budget_may_read(const struct budget *budget);
void budget_read(struct budget *budget, uint64_t ns);
/* Whether a frame of this size may be read now.  True for any frame if the user has no other. */
bool budget_grant(struct budget *budget, size_t bytes);

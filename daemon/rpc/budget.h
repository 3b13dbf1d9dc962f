/*
 * What one user may take of the daemon, over all connections of that user: loop time, and memory
 * for frames that are being read and for replies that wait to be read.
 *
 * Loop time is a credit: each millisecond adds one quantum, and no more than one quantum is saved
 * up.  Work that took longer than the credit is a debt, and the user waits until the debt is paid.
 * Pure: the caller tells the time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
        QUANTUM_ALONE_NS = 1000000, /* all of the loop, but no more than this in one turn */
        QUANTUM_SHARED_NS = 300000, /* while the loop also serves jobs of other users */
        QUANTUM_ACCEPT_NS = 100000, /* to accept connections, whose users are not known before */
        FRAME_SMALL = 64 << 10,     /* a larger frame needs a grant */
        FRAMES_MAX = 64 << 20,      /* bytes granted at once, and of the largest frame */
        REPLIES_MAX = 64 << 20,     /* bytes that wait to be read */
};

struct budget {
        int64_t quantum_ns, credit_ns;
        uint64_t filled_ms; /* the last time that credit was added */
        uint32_t n_owing;   /* connections that are held until a debt is paid, first come, first
                               served */
        size_t frames;      /* bytes granted to large frames */
        size_t replies;     /* bytes of replies in queues */
};

void budget_init(struct budget *budget, uint64_t now_ms);
/* Whether the user may go on. */
bool budget_may_work(struct budget *budget, uint64_t now_ms);
void budget_worked(struct budget *budget, uint64_t ns);
/* Grants a frame of so many bytes; without another frame in reading, any frame is granted. */
bool budget_grant(struct budget *budget, size_t bytes);

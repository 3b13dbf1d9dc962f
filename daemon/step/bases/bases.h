/*
 * bases.h - frozen weights that many jobs read.  A node has one copy of each base, for all
 * processes of one user that name the base's hash.
 *
 * The first client that names a hash reads the files and writes them into memory of the daemon, an
 * anonymous file.  Other clients wait for it.  The daemon seals the memory against every change,
 * then hashes it, and only then passes it on.
 *
 * So the daemon neither opens, reads nor maps a user's file, whose file system may never answer,
 * and takes no descriptor from a client.  It does not map the memory either, so a client that
 * leaves holes in it harms nobody.
 *
 * A base lives as long as a session uses it.  If the client that writes leaves, the next client
 * that waits writes.  A session that has a whole base may also have a copy on a GPU (copy.h).
 *
 * Loop thread; sealing, hashing and freeing run as blocking work, a piece at a time.
 */
#pragma once

#include "daemon/job/core/core.h"

enum { BASE_HASH = 32 };

struct base;

/* A session's use of a base; zeros: none. */
struct base_use {
        struct list link; /* base.uses */
        struct base *base;
        uint32_t pid;
        struct request *waiting; /* the request that waits for the base; NULL: none */
        struct list copy_link;
        struct base_copy *copy;  /* on a GPU; NULL: none */
        struct request *copying; /* the request that waits for the copy; NULL: none */
};

struct base_info {
        uint32_t uid, uses, copies;
        uint64_t bytes;
        const uint8_t *hash;
        bool whole;
        uint32_t filler; /* the process that writes; 0: none */
};

/*
 * Asks for a base.  The request ends when the base is whole, or when the session has to fill it
 * (result.base).  In a place other than the host it ends when the copy there is whole.
 */
int base_ask(struct engine *x, uint32_t uid, uint32_t pid, const Zero__Base *m, uint32_t place,
             struct base_use *use, struct request *r, struct fault *fault);
/* True if the session may read the base with this hash. */
bool base_held(const struct base_use *use, const uint8_t hash[static BASE_HASH]);
/* The session no longer needs the base. */
void base_leave(struct base_use *use);
/* Calls tell() for each base. */
void bases_each(const struct engine *x, void (*tell)(void *arg, const struct base_info *info),
                void *arg);

extern const struct module bases_module;

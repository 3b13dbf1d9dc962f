/*
 * bases.h - frozen weights that many jobs read: one copy a node of each base, for all processes of
 * one user that name its hash.
 *
 * The first client that names a hash reads the files and writes them into memory of the daemon's,
 * an anonymous file; others wait for that client.  The daemon seals the memory against every
 * change, then hashes what it sealed, and only then passes the memory on.  So the daemon neither
 * opens, reads nor maps a file of a user's, whose file system may answer never, and takes no
 * descriptor from a client. The daemon does not map the memory either, so a client that leaves
 * holes in it harms nobody.
 *
 * A base lives as long as a session uses it.  If the client that writes leaves, the next one that
 * waits writes.  Who has a whole base may have a copy on a GPU, too (copy.h).
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
        struct request *waiting; /* NULL: none */
        struct list copy_link;
        struct base_copy *copy;  /* on a GPU; NULL: none */
        struct request *copying; /* waits for the copy; NULL: none */
};

struct base_info {
        uint32_t uid, uses, copies;
        uint64_t bytes;
        const uint8_t *hash;
        bool whole;
        uint32_t filler; /* the process that writes; 0: none */
};

/*
 * The request ends when the base is whole, or when the session has to fill it (result.base); in a
 * place other than the host's, when the copy there is whole.
 */
int base_ask(struct engine *x, uint32_t uid, uint32_t pid, const Zero__Base *m, uint32_t place,
             struct base_use *use, struct request *r, struct fault *fault);
/* Whether the session may read the base with this hash. */
bool base_held(const struct base_use *use, const uint8_t hash[static BASE_HASH]);
/* The session needs the base no more. */
void base_leave(struct base_use *use);
/* Tells about all bases. */
void bases_each(const struct engine *x, void (*tell)(void *arg, const struct base_info *info),
                void *arg);

extern const struct module bases_module;

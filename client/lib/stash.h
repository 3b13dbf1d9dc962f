/*
 * stash.h - what the client knows of its stash: the memory, in host memory or on the rank's GPU,
 * and the entries that it reads.
 *
 * A rank with a GPU has the GPU copy to either kind; host memory is pinned for that.  Where the
 * driver refuses to pin it, each copy waits until the GPU has come to it.
 */
#pragma once

#include "gpu.h"
#include "mapping.h"
#include "proto/extents.h"

/* An entry that the caller reads. */
struct stash_view {
        uint64_t key;
        void *base; /* of the extents */
        struct extent *extents;
        uint32_t n;
};

struct stash {
        struct mapping memory; /* for reading, unless a GPU writes; else parts are written through
                                * fd */
        int fd;                /* -1: the memory is on the GPU */
        const struct gpu *gpu; /* that writes; NULL: the rank has none */
        bool pinned;           /* host memory, for the GPU */
        bool used;             /* in this attempt */
        bool compares;         /* bytes with those of other ranks */
        bool compared;         /* the ranks of the set stash the same: a step has shown that */
        struct stash_view *views;
        uint32_t n_views, room;
};

/* Host memory; takes the descriptor over in any case.  gpu may be NULL; -errno. */
int stash_open(int fd, uint64_t bytes, const struct gpu *gpu, struct stash **ret);
/* Memory on the GPU, which is taken over in any case; -ENOMEM. */
int stash_take(struct mapping *memory, const struct gpu *gpu, struct stash **ret);
void stash_free(struct stash *s);
/* Whether copies wait for the GPU, because the driver does not pin the memory. */
bool stash_waits(const struct stash *s);
/* Puts next in the place of *s, which may be NULL, as mapping_replace(), and empties *next. */
int stash_replace(struct stash **s, struct stash **next);
/* What was read goes: the attempt is over. */
void stash_new_attempt(struct stash *s);
/* Writes the extents' bytes from src on; with a GPU, when the stream comes to it.  -errno. */
int stash_put(const struct stash *s, const struct extent *extents, uint32_t n, const void *src,
              void *stream);
/* Takes the extents over in any case; -errno. */
int stash_view(struct stash *s, uint64_t key, struct extent *extents, uint32_t n, void **ret);
/* False: the entry is not read. */
bool stash_unview(struct stash *s, uint64_t key);
/* Of some bytes, never 0.  It finds a difference that nobody has planned. */
uint64_t stash_hash(const void *p, uint64_t bytes);

/* See stash.h. */
#include "stash.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void pin(struct stash *s)
{
        s->pinned = s->gpu && gpu_pin(s->gpu, s->memory.base, s->memory.reserved) == 0;
}

static void unpin(struct stash *s)
{
        if (s->pinned)
                gpu_unpin(s->gpu, s->memory.base);
        s->pinned = false;
}

int stash_open(int fd, uint64_t bytes, const struct gpu *gpu, struct stash **ret)
{
        struct stash *s = calloc(1, sizeof(*s));
        int protection = gpu ? PROT_READ | PROT_WRITE : PROT_READ;
        int r = s ? mapping_open(fd, bytes, protection, false, &s->memory) : -ENOMEM;

        if (r) {
                if (s)
                        mapping_deinit(&s->memory);
                close(fd);
                free(s);
                return r;
        }
        s->fd = fd;
        s->gpu = gpu;
        pin(s);
        *ret = s;
        return 0;
}

bool stash_waits(const struct stash *s)
{
        return s->gpu && s->fd >= 0 && !s->pinned;
}

int stash_take(struct mapping *memory, const struct gpu *gpu, struct stash **ret)
{
        struct stash *s = calloc(1, sizeof(*s));

        if (!s) {
                mapping_deinit(memory);
                return -ENOMEM;
        }
        s->memory = *memory;
        *memory = (struct mapping){ 0 };
        s->fd = -1;
        s->gpu = gpu;
        *ret = s;
        return 0;
}

static void close_fd(const struct stash *s)
{
        if (s->fd >= 0)
                close(s->fd);
}

static void views_end(struct stash *s)
{
        while (s->n_views)
                stash_unview(s, s->views[0].key);
}

void stash_free(struct stash *s)
{
        if (!s)
                return;
        views_end(s);
        unpin(s);
        mapping_deinit(&s->memory);
        close_fd(s);
        free(s->views);
        free(s);
}

int stash_replace(struct stash **s, struct stash **next)
{
        int r;

        if (!*s || !*next) {
                struct stash *old = *s;

                *s = *next;
                *next = NULL;
                stash_free(old);
                return 0;
        }
        views_end(*s);
        unpin(*s);
        unpin(*next); /* its address changes */
        r = mapping_replace(&(*s)->memory, &(*next)->memory);
        if (r)
                return r;
        close_fd(*s);
        (*s)->fd = (*next)->fd;
        if ((*s)->fd >= 0)
                pin(*s);
        free((*next)->views);
        free(*next);
        *next = NULL;
        return 0;
}

void stash_new_attempt(struct stash *s)
{
        if (!s)
                return;
        views_end(s);
        s->used = false;
}

static int write_all(int fd, const uint8_t *p, uint64_t bytes, uint64_t offset)
{
        while (bytes) {
                ssize_t n = pwrite(fd, p, bytes, (off_t)offset);

                if (n < 0 && errno != EINTR)
                        return -errno;
                if (n <= 0)
                        continue;
                p += n;
                bytes -= (uint64_t)n;
                offset += (uint64_t)n;
        }
        return 0;
}

int stash_put(const struct stash *s, const struct extent *extents, uint32_t n, const void *src,
              void *stream)
{
        const uint8_t *p = src;
        int r = 0;

        for (uint32_t i = 0; i < n && r == 0; i++) {
                if (extents[i].offset > s->memory.bytes ||
                    extents[i].bytes > s->memory.bytes - extents[i].offset)
                        return -ERANGE;
                r = s->gpu ? gpu_copy(s->gpu, s->memory.base + extents[i].offset, p,
                                      extents[i].bytes, stream)
                           : write_all(s->fd, p, extents[i].bytes, extents[i].offset);
                p += extents[i].bytes;
        }
        return r;
}

static int room_for_view(struct stash *s)
{
        uint32_t room = s->room ? 2 * s->room : 8;
        struct stash_view *views;

        if (s->n_views < s->room)
                return 0;
        views = realloc(s->views, room * sizeof(*views));
        if (!views)
                return -ENOMEM;
        s->views = views;
        s->room = room;
        return 0;
}

int stash_view(struct stash *s, uint64_t key, struct extent *extents, uint32_t n, void **ret)
{
        struct stash_view view = { .key = key, .extents = extents, .n = n };
        int r = room_for_view(s);

        for (uint32_t i = 0; i < n; i++)
                if (extents[i].offset > s->memory.bytes ||
                    extents[i].bytes > s->memory.bytes - extents[i].offset)
                        r = -ERANGE;
        if (r == 0)
                r = extents_map(s->fd, s->memory.base, extents, n, PROT_READ, &view.base);
        if (r) {
                free(extents);
                return r;
        }
        s->views[s->n_views++] = view;
        *ret = view.base;
        return 0;
}

bool stash_unview(struct stash *s, uint64_t key)
{
        for (uint32_t i = 0; i < s->n_views; i++) {
                struct stash_view *v = &s->views[i];

                if (v->key != key)
                        continue;
                extents_unmap(v->base, v->extents, v->n);
                free(v->extents);
                *v = s->views[--s->n_views];
                return true;
        }
        return false;
}

uint64_t stash_hash(const void *p, uint64_t bytes)
{
        uint64_t sum[4] = { 1, 2, 3, 4 }, word[4];
        const uint8_t *at = p;

        for (; bytes >= sizeof(word); bytes -= sizeof(word), at += sizeof(word)) {
                memcpy(word, at, sizeof(word));
                for (int i = 0; i < 4; i++)
                        sum[i] = (sum[i] ^ word[i]) * 0x9e3779b97f4a7c15 + (sum[i] >> 29);
        }
        for (; bytes; bytes--, at++)
                sum[0] = (sum[0] ^ *at) * 0x9e3779b97f4a7c15 + (sum[0] >> 29);
        for (int i = 1; i < 4; i++)
                sum[0] = (sum[0] ^ sum[i]) * 0x9e3779b97f4a7c15 + (sum[0] >> 29);
        return sum[0] ? sum[0] : 1;
}

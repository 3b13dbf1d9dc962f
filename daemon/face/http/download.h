/*
 * download.h - whole versions of a job's parameters, each as a safetensors file.
 *
 * A download is a reader of the job (follow.h).  The thread of HTTP asks for one; the loop waits
 * for the version and holds it; the thread then reads the copy by a descriptor of its own.  The
 * hold ends when the thread has left.  The loop ends it sooner if the job is dropped or the engine
 * stops, and from then on the thread reads nothing.
 */
#pragma once

#include <sys/types.h>

#include "daemon/cluster/engine/engine.h"

enum { DOWNLOADS = 4, DOWNLOAD_WAIT_MS = 30000 }; /* at once; until a version is there */

struct downloads;
struct download;

/* ---- loop thread ---- */

/* wake: calls downloads_run() on the loop.  fd: an eventfd, written when download_told() turns
 * true.  -ENOMEM. */
int downloads_new(struct engine *x, uv_async_t *wake, int fd, struct downloads **ret);
/* Goes on with all; not serving: the engine may not be read, and all holds end. */
void downloads_run(struct downloads *all, bool serving);
/* Every download was left. */
void downloads_free(struct downloads *all);

/* ---- the other thread ---- */

/* Asks for a version from `least` to `most`.  address: the client's.  -EBUSY: there are
 * DOWNLOADS.  -ENOMEM. */
int download_ask(struct downloads *all, const char *job, const char *address, uint64_t least,
                 uint64_t most, struct download **ret);
bool download_told(const struct download *d);
/* Once it was told: 200 and what the file is, or another HTTP status and why. */
unsigned download_open(struct download *d, uint64_t *ret_version, uint64_t *ret_bytes,
                       const char **ret_text);
/* Reads the next bytes of the file, from `at` on.  -1: the hold has ended. */
ssize_t download_read(struct download *d, uint64_t at, char *buffer, size_t n);
void download_leave(struct download *d);
/* Lets the loop see, now and then, whether jobs of downloads are still there. */
void downloads_look(struct downloads *all);

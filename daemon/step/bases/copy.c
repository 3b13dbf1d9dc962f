/* Memory of a GPU that is filled piece by piece.  Nobody frees a copy while its work runs. */
#include "daemon/step/bases/copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/floor/base/memory.h"
#include "daemon/job/core/window.h"
#include "proto/cleanup.h"

enum { PIECE_BYTES = 32 << 20 }; /* copied in one go, for which other blocking work waits */

struct base_copy {
        struct list link; /* base_source.copies, while a session uses the copy */
        struct engine *x;
        uint32_t *n_working;
        uint32_t uid, place;
        int fd;           /* the base's memory; -1: nothing is left to copy */
        struct list uses; /* struct base_use.copy_link */
        struct rank_window window;
        uint64_t copied, began_ms;
        bool working, unwanted; /* unwanted: no session uses the copy, or it was refused */
        int status;
        struct fault fault;
        struct blocking_work work;
};

/* ---- on another thread ------------------------------------------------------- */

static int make(struct base_copy *c)
{
        int r = window_make(c->place, c->uid, &c->window, &c->fault);

        if (r == 0 && c->window.segment.fd < 0)
                r = fault_set(&c->fault, ZERO_EGPU,
                              "the driver of %s exports no descriptors of its memory, so "
                              "processes cannot share %s: each process has to keep its own",
                              place_name(c->place).text, c->window.what);
        return r;
}

static int copy_some(struct base_copy *c)
{
        uint64_t left = c->window.bytes - c->copied,
                 end = c->copied + (left < PIECE_BYTES ? left : PIECE_BYTES);
        void *buffer = transit_new(TRANSIT_BYTES);
        int r = buffer ? 0 : fault_set(&c->fault, ZERO_ENOMEM, "out of memory");

        while (r == 0 && c->copied < end) {
                size_t most = end - c->copied < TRANSIT_BYTES ? end - c->copied : TRANSIT_BYTES;
                ssize_t n = pread(c->fd, buffer, most, (off_t)c->copied);

                if (n <= 0) {
                        r = fault_errno(&c->fault, n < 0 ? -errno : -EIO, "reading a base");
                } else {
                        place_ops()->copy((uint8_t *)c->window.segment.data + c->copied, buffer,
                                          (size_t)n);
                        c->copied += (uint64_t)n;
                }
        }
        transit_free(buffer);
        return r;
}

/* Makes the memory, or copies a piece.  Closing may free all of the base, which takes time. */
static void copy_run(struct blocking_work *work)
{
        struct base_copy *c = CONTAINER_OF(work, struct base_copy, work);

        if (!c->unwanted)
                c->status = c->window.segment.data ? copy_some(c) : make(c);
        if (c->unwanted || c->status || c->copied == c->window.bytes)
                close(STEAL_FD(c->fd));
}

/* ---- whom it serves ------------------------------------------------------------ */

static void copy_free(struct base_copy *c)
{
        segment_free(&c->window.segment);
        free(c);
}

void base_copy_leave(struct base_use *use)
{
        struct base_copy *c = STEAL(use->copy);

        if (!c)
                return;
        list_remove(&use->copy_link);
        if (!list_empty(&c->uses))
                return;
        list_remove(&c->link);
        if (!c->working)
                copy_free(c);
}

static void use_answer(const struct base_copy *c, struct base_use *use)
{
        struct request *r = STEAL(use->copying);

        if (!r)
                return;
        r->passes = true;
        r->fd = c->window.segment.fd;
        r->result.base.gpu_bytes = c->window.segment.bytes;
        request_end(r, ZERO_OK, "%s", "");
}

static void copy_refuse(struct base_copy *c)
{
        c->working = true; /* so the last use that leaves does not free the copy */
        list_for_each (&c->uses, item) {
                struct base_use *use = CONTAINER_OF(item, struct base_use, copy_link);
                struct request *r = STEAL(use->copying);

                base_copy_leave(use);
                if (r)
                        request_end(r, c->status, "%s", c->fault.text);
        }
        copy_free(c);
}

static void copy_serve(const struct base_copy *c)
{
        list_for_each (&c->uses, item) {
                use_answer(c, CONTAINER_OF(item, struct base_use, copy_link));
        }
}

static void copy_submit(struct base_copy *c)
{
        c->working = true;
        ++*c->n_working;
        blocking_submit(c->x->blocking, LANE_DRIVERS, &c->work);
}

static void copy_done(struct blocking_work *work)
{
        struct base_copy *c = CONTAINER_OF(work, struct base_copy, work);

        --*c->n_working;
        c->working = false;
        c->unwanted = list_empty(&c->uses);
        /* another window of the user may have been made meanwhile */
        if (!c->status && !c->unwanted)
                c->status = windows_check(c->x, c->uid, c->place, &c->window, 1, &c->fault);
        c->unwanted = c->unwanted || c->status;
        if (c->fd >= 0)
                copy_submit(c);
        else if (c->unwanted)
                copy_refuse(c);
        else
                copy_serve(c);
}

/* ---- asking -------------------------------------------------------------------- */

static int copy_describe(const struct request *r, struct wait_line *ret)
{
        const struct base_use *use = r->subject;
        const struct base_copy *c = use->copy;

        ret->since_ms = c->began_ms;
        ret->until_ms = c->began_ms + c->x->conf->rank_wait_ms;
        snprintf(ret->who, sizeof ret->who, "memory of %s", place_name(c->place).text);
        snprintf(ret->what, sizeof ret->what, "a copy of a base of %.1f MiB, %.1f are there",
                 (double)c->window.bytes / 0x1p20, (double)c->copied / 0x1p20);
        return ZERO_EDEADLINE;
}

static void copy_forget(struct request *r)
{
        struct base_use *use = r->subject;

        use->copying = NULL;
        base_copy_leave(use);
}

static struct base_copy *copy_find(const struct base_source *of, uint32_t place)
{
        list_for_each (of->copies, item) {
                struct base_copy *c = CONTAINER_OF(item, struct base_copy, link);

                if (c->place == place && !c->unwanted)
                        return c;
        }
        return NULL;
}

static void copy_name(const struct base_source *of, struct rank_window *w)
{
        int n = snprintf(w->what, sizeof w->what, "a copy of base ");

        for (int i = 0; i < 8; i++)
                n += snprintf(w->what + n, sizeof w->what - (size_t)n, "%02x", of->hash[i]);
}

static int copy_new(const struct base_source *of, uint32_t place, struct base_copy **ret,
                    struct fault *fault)
{
        CLEANUP(cleanup_free) struct base_copy *c = calloc(1, sizeof *c);
        int r;

        if (!c)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        c->x = of->x;
        c->n_working = of->n_working;
        c->uid = of->uid;
        c->place = place;
        c->began_ms = engine_now(of->x);
        c->window.bytes = of->bytes;
        c->window.segment.fd = -1;
        c->work = (struct blocking_work){ .run = copy_run,
                                          .done = copy_done,
                                          .what = "to copy a base to a GPU",
                                          .uid = of->uid };
        list_init(&c->uses);
        copy_name(of, &c->window);
        r = windows_check(of->x, of->uid, place, &c->window, 1, fault);
        if (r)
                return r;
        c->fd = fcntl(of->fd, F_DUPFD_CLOEXEC, 0);
        if (c->fd < 0)
                return fault_errno(fault, -errno, "a descriptor of a base");
        list_insert(of->copies, &c->link);
        copy_submit(c);
        *ret = STEAL(c);
        return 0;
}

int base_copy_ask(const struct base_source *of, uint32_t place, struct base_use *use,
                  struct request *r, struct fault *fault)
{
        struct base_copy *c = use->copy;
        int error = 0;

        if (c && c->place != place)
                return fault_set(fault, ZERO_EORDER,
                                 "a client has its base on one GPU, and this client's is on %s",
                                 place_name(c->place).text);
        if (!c) {
                c = copy_find(of, place);
                error = c ? 0 : copy_new(of, place, &c, fault);
                if (error)
                        return error;
                list_insert(&c->uses, &use->copy_link);
                use->copy = c;
        }
        use->copying = r;
        r->subject = use;
        r->describe = copy_describe;
        r->forget = copy_forget;
        if (!c->working)
                use_answer(c, use);
        return 0;
}

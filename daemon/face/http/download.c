/* Whole versions of a job's parameters as files; see download.h for the threads. */
#include "daemon/face/http/download.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "daemon/step/follow/follow.h"
#include "proto/cleanup.h"
#include "proto/dtype.h"
#include "proto/safetensors_header.h"
#include "proto/slots.h"
#include "proto/text.h"

enum { LOOK_MS = 100 };

/* A tensor's bytes in the file and in the copy. */
struct piece {
        uint64_t begin, bytes, at;
};

struct download {
        struct list link; /* downloads.asked, then downloads.begun */
        struct downloads *all;
        atomic_bool told; /* what was asked for is there, or refused */
        atomic_bool left; /* the other thread needs it no more */
        atomic_bool gone; /* the hold has ended */
        char job_name[ZERO_NAME_MAX + 1], address[64];
        uint64_t least, most;
        /* The loop's own. */
        struct job *job; /* NULL: nothing is held */
        struct reader reader;
        struct request request;
        struct offload_task task; /* makes the header */
        bool making;
        /* The loop's until it is told, then the other thread's. */
        int status; /* enum zero_status, and its text */
        char text[512];
        uint64_t version;
        int fd;         /* of the copy; -1: none */
        uint64_t bytes; /* of the file */
        char *header;
        size_t header_bytes;
        struct piece *pieces;
        uint32_t n, next; /* of the pieces */
};

struct downloads {
        struct engine *x;
        uv_async_t *wake;
        int fd;
        uv_mutex_t lock; /* of `asked` */
        struct list asked;
        struct list begun; /* the loop's own */
        /* The other thread's own. */
        unsigned live; /* not left */
        uint64_t looked_ms;
};

/* ---- loop thread ---- */

static const char stops[] = "zerod stops, or starts again with other owners";

static void tell(struct download *d, int status, const char *text)
{
        d->status = status;
        snprintf(d->text, sizeof d->text, "%.510s\n", text ? text : "");
        d->told = true;
        eventfd_write(d->all->fd, 1);
}

/* The file's bytes behind its header. */
static uint64_t lay(const layout *l, const struct slots *slots, struct safetensor *tensors,
                    struct piece *pieces)
{
        uint64_t at = 0;

        for (uint32_t i = 0; i < l->n_tensors; i++) {
                const struct layout_tensor *from = &l->tensors[i];
                const struct layout_group *g = &l->groups[from->group];
                struct safetensor *t = &tensors[i];

                t->name = from->name;
                t->dtype = safetensors_word(g->dtype);
                t->ndim = from->ndim;
                t->at = at;
                t->bytes = dtype_is_bytes(g->dtype) ? 1 : dtype_bytes(g->dtype, 1);
                for (uint32_t k = 0; k < t->ndim; k++)
                        t->bytes *= t->shape[k] = from->shape[k];
                pieces[i] = (struct piece){ at, t->bytes,
                                            slots_offset(slots, from->group) +
                                                    layout_group_bytes(g, from->offset) };
                at += t->bytes;
        }
        return at;
}

static int make_header(struct download *d)
{
        const layout *l = d->job->layout;
        CLEANUP(cleanup_free)
        struct safetensor *tensors = calloc(l->n_tensors + 1, sizeof *tensors);
        struct slots *slots = NULL;
        int r = -1;

        d->n = l->n_tensors;
        d->pieces = calloc(d->n + 1, sizeof *d->pieces);
        if (tensors && d->pieces && slots_new(l, l->n_groups, 0, NULL, &slots) == 0) {
                d->bytes = lay(l, slots, tensors, d->pieces);
                r = safetensors_header(tensors, d->n, safetensors_metadata(d->job_name, d->version),
                                       &d->header, &d->header_bytes);
                d->bytes += d->header_bytes;
        }
        slots_free(slots);
        return r;
}

/* A job of many tensors has a header of megabytes: neither the loop nor HTTP's thread waits. */
static void header_run(struct offload_task *task, uint32_t worker)
{
        struct download *d = CONTAINER_OF(task, struct download, task);
        const layout *l = d->job->layout;

        d->status = ZERO_OK;
        for (uint32_t i = 0; i < l->n_tensors; i++)
                if (strcmp(l->tensors[i].name, SAFETENSORS_METADATA) == 0)
                        d->status = ZERO_EINVAL;
        if (d->status == ZERO_OK && make_header(d))
                d->status = ZERO_ENOMEM;
}

static void header_done(struct offload_task *task)
{
        struct download *d = CONTAINER_OF(task, struct download, task);

        d->making = false;
        tell(d, d->status,
             d->status == ZERO_EINVAL
                     ? "a safetensors file cannot have a tensor named " SAFETENSORS_METADATA
                     : "out of memory");
        uv_async_send(d->all->wake); /* the hold may have to end meanwhile */
}

static void request_finished(struct request *r, int status, const char *text)
{
        struct download *d = CONTAINER_OF(r, struct download, request);

        if (status == ZERO_OK) {
                d->version = r->result.follow.version;
                d->fd = r->fd < 0 ? -1 : fcntl(r->fd, F_DUPFD_CLOEXEC, 0);
                if (r->fd < 0 || d->fd >= 0) {
                        d->making = true;
                        d->task.run = header_run;
                        d->task.done = header_done;
                        offload_submit(d->all->x->offload, OFFLOAD_READ, OFFLOAD_NODE, &d->task);
                        return;
                }
                status = ZERO_ENOMEM;
                text = "out of descriptors";
        }
        tell(d, status, text);
}

static void begin(struct download *d)
{
        struct engine *x = d->all->x;
        struct job *job = job_find(x, d->job_name);
        Zero__Follow follow = ZERO__FOLLOW__INIT;
        struct fault fault;

        if (!job || job->opening) {
                fault_set(&fault, ZERO_ENOJOB, "there is no job %s on this node",
                          text_quote(d->job_name).text);
                tell(d, fault.status, fault.text);
                return;
        }
        job_hold(job);
        d->job = job;
        d->reader = (struct reader){ .uid = geteuid(),
                                     .pid = (uint32_t)getpid(),
                                     .address = d->address };
        d->request = (struct request){ .finish = request_finished };
        request_begin(&x->requests, &d->request, engine_now(x), DOWNLOAD_WAIT_MS);
        follow.least = d->least;
        follow.most = d->most;
        if (follow_wait(&d->reader, job, &follow, &d->request, &fault))
                request_end(&d->request, fault.status, "%s", fault.text);
}

static void give_back(struct download *d)
{
        struct job *job;

        d->gone = true; /* before anybody may write into the copy */
        if (!d->job || d->making)
                return;
        job = STEAL(d->job);
        if (!d->told)
                request_end(&d->request, ZERO_ECLOSED, "%s", stops);
        follow_leave(&d->reader);
        job_let_go(job);
}

static void download_free(struct download *d)
{
        list_remove(&d->link);
        cleanup_close(&d->fd);
        free(d->header);
        free(d->pieces);
        free(d);
}

static struct download *next_asked(struct downloads *all)
{
        struct list *item;

        uv_mutex_lock(&all->lock);
        item = all->asked.next;
        list_remove(item);
        uv_mutex_unlock(&all->lock);
        return item == &all->asked ? NULL : CONTAINER_OF(item, struct download, link);
}

void downloads_run(struct downloads *all, bool serving)
{
        struct download *d;

        while ((d = next_asked(all))) {
                list_insert(&all->begun, &d->link);
                if (serving)
                        begin(d);
                else
                        tell(d, ZERO_ECLOSED, stops);
        }
        list_for_each (&all->begun, item) {
                bool left;

                d = CONTAINER_OF(item, struct download, link);
                left = d->left;
                if (left || !serving || (d->job && d->job->dead))
                        give_back(d);
                if (left && !d->making)
                        download_free(d);
        }
}

int downloads_new(struct engine *x, uv_async_t *wake, int fd, struct downloads **ret)
{
        CLEANUP(cleanup_free) struct downloads *all = calloc(1, sizeof *all);

        if (!all || uv_mutex_init(&all->lock))
                return -ENOMEM;
        all->x = x;
        all->wake = wake;
        all->fd = fd;
        list_init(&all->asked);
        list_init(&all->begun);
        *ret = STEAL(all);
        return 0;
}

void downloads_free(struct downloads *all)
{
        downloads_run(all, false);
        uv_mutex_destroy(&all->lock);
        free(all);
}

/* ---- the other thread ---- */

int download_ask(struct downloads *all, const char *job, const char *address, uint64_t least,
                 uint64_t most, struct download **ret)
{
        struct download *d;

        if (all->live == DOWNLOADS)
                return -EBUSY;
        d = calloc(1, sizeof *d);
        if (!d)
                return -ENOMEM;
        d->all = all;
        d->fd = -1;
        snprintf(d->job_name, sizeof d->job_name, "%s", job);
        snprintf(d->address, sizeof d->address, "%s", address);
        d->least = least;
        d->most = most;
        all->live++;
        *ret = d;
        uv_mutex_lock(&all->lock);
        list_insert(&all->asked, &d->link);
        uv_mutex_unlock(&all->lock);
        uv_async_send(all->wake);
        return 0;
}

bool download_told(const struct download *d)
{
        return d->told;
}

static unsigned http_status(int status)
{
        switch (status) {
        case ZERO_EINVAL:
                return 409;
        case ZERO_EPERM:
                return 403;
        case ZERO_ENOJOB:
                return 404;
        case ZERO_EGONE:
                return 410;
        case ZERO_EDEADLINE:
                return 504;
        default: /* memory, or a stop: later it may be different */
                return 503;
        }
}

unsigned download_open(struct download *d, uint64_t *ret_version, uint64_t *ret_bytes,
                       const char **ret_text)
{
        *ret_text = d->text;
        if (d->status)
                return http_status(d->status);
        *ret_bytes = d->bytes;
        *ret_version = d->version;
        return 200;
}

static size_t smaller(uint64_t a, uint64_t b)
{
        return a < b ? a : b;
}

ssize_t download_read(struct download *d, uint64_t at, char *buffer, size_t n)
{
        size_t done = 0;

        if (at < d->header_bytes) {
                done = smaller(n, d->header_bytes - at);
                memcpy(buffer, d->header + at, done);
        }
        while (done < n && d->next < d->n) {
                const struct piece *p = &d->pieces[d->next];
                uint64_t in = at + done - d->header_bytes - p->begin;
                ssize_t r;

                if (in == p->bytes) {
                        d->next++;
                        continue;
                }
                r = pread(d->fd, buffer + done, smaller(n - done, p->bytes - in),
                          (off_t)(p->at + in));
                if (r <= 0)
                        return -1;
                done += (size_t)r;
        }
        return d->gone ? -1 : (ssize_t)done; /* what was read before the hold's end is whole */
}

/* The last descriptor of a large copy takes time to close, which the loop has not. */
void download_leave(struct download *d)
{
        struct downloads *all = d->all;

        if (d->told) {
                cleanup_close(&d->fd);
                d->fd = -1;
        }
        all->live--;
        d->left = true; /* the loop may free it now */
        uv_async_send(all->wake);
}

void downloads_look(struct downloads *all)
{
        uint64_t now = uv_hrtime() / 1000000;

        if (all->live == 0 || now - all->looked_ms < LOOK_MS)
                return;
        all->looked_ms = now;
        uv_async_send(all->wake);
}

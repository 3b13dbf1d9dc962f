/*
 * Reading and writing planes through the session's transfer area, piece by piece, and
 * queries of the daemon.
 *
 * The transfer area is cut into slots for what is written.  While the daemon takes some pieces in,
 * the next one is copied or read into its slot.  So a whole file takes no more memory than the
 * slots and what its reader reads ahead.
 */
#include "client.h"
#include "file_reader.h"
#include "optimizers.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/dtype.h"

struct access {
        uint32_t tensor;
        enum zero_plane plane;
        uint32_t dtype; /* of what is put; 0: the plane's */
        size_t element; /* bytes of a value on its way */
        uint64_t first, count;
};

/* Where values come from. */
struct source {
        const uint8_t *memory;
        struct file_reader *file; /* NULL: memory */
        uint64_t at, bytes;       /* in the file, and how many are left; zeros follow them */
};

/* Pieces that the daemon may still take in. */
struct slots_in_use {
        uint64_t seq[CLIENT_SLOTS]; /* of the request; 0: none */
        uint32_t next;
};

static int plane_shape(struct zero_client *c, struct access *a, bool write, uint64_t *ret_elements)
{
        const struct layout_tensor *t = &c->layout->tensors[a->tensor];

        *ret_elements = t->elements;
        switch (a->plane) {
        case ZERO_PLANE_MASTER:
                a->element = sizeof(float);
                return 0;
        case ZERO_PLANE_MOMENT1:
        case ZERO_PLANE_MOMENT2:
        case ZERO_PLANE_MOMENT3:
                a->element = sizeof(float);
                return t->frozen ? client_fail(c, ZERO_EINVAL,
                                               "tensor '%s' is frozen: it has no "
                                               "moments",
                                               t->name)
                                 : 0;
        case ZERO_PLANE_SERVE:
                a->element = dtype_bytes(c->layout->groups[t->group].dtype, 1);
                return write ? client_fail(c, ZERO_EINVAL,
                                           "write master, not serve: serve is "
                                           "made from it")
                             : 0;
        case ZERO_PLANE_STEP:
        case ZERO_PLANE_SET:
                a->element = sizeof(uint64_t);
                *ret_elements = 1;
                return 0;
        case ZERO_PLANE_EMA:
                return client_fail(c, ZERO_EINVAL,
                                   "group '%s' keeps no average: see zero_layout_ema()",
                                   c->layout->groups[t->group].name);
        default:
                return client_fail(c, ZERO_EINVAL, "plane %s (%d) cannot be read or written",
                                   a->plane == ZERO_PLANE_GRAD ? "grad" : "unknown", (int)a->plane);
        }
}

static int check_access(struct zero_client *c, struct access *a, bool write)
{
        uint64_t elements;
        int r;

        if (!c->layout)
                return client_fail(c, ZERO_ENOTATTACHED, "zero_attach() was not called yet");
        if (a->tensor >= c->layout->n_tensors)
                return client_fail(c, ZERO_ENOGROUP, "no tensor %u: the layout has %u",
                                   (unsigned)a->tensor, (unsigned)c->layout->n_tensors);
        a->plane =
                optimizer_plane(c->layout, a->tensor, a->plane);
        r = plane_shape(c, a, write, &elements);
        if (r)
                return r;
        if (a->first > elements || a->count > elements - a->first)
                return client_fail(c, ZERO_ERANGE,
                                   "elements %llu+%llu of tensor '%s', which has "
                                   "%llu",
                                   (unsigned long long)a->first, (unsigned long long)a->count,
                                   c->layout->tensors[a->tensor].name,
                                   (unsigned long long)elements);
        return 0;
}

static Zero__Access message_of(const struct access *a)
{
        Zero__Access m = ZERO__ACCESS__INIT;

        m.tensor = a->tensor;
        m.plane = a->plane;
        m.first = a->first;
        m.count = a->count;
        m.dtype = a->dtype;
        return m;
}

/* Cuts the next piece, of so many bytes at most, off the rest. */
static struct access next_piece(struct access *left, uint64_t bytes)
{
        struct access piece = *left;
        uint64_t most = bytes / left->element;

        piece.count = left->count < most ? left->count : most;
        left->first += piece.count;
        left->count -= piece.count;
        return piece;
}

/* A step can only have sets below ZERO_SET_MAX. */
static int check_set(struct zero_client *c, const struct access *a, const uint64_t *set)
{
        if (a->plane != ZERO_PLANE_SET || a->count == 0 || *set < ZERO_SET_MAX)
                return 0;
        return client_fail(c, ZERO_ERANGE, "tensor '%s': hyperparameter set %llu is not below %d",
                           c->layout->tensors[a->tensor].name, (unsigned long long)*set,
                           ZERO_SET_MAX);
}

/* ---- writing --------------------------------------------------------------- */

static int too_short(struct zero_client *c, const char *name)
{
        return client_fail(c, ZERO_ECONFLICT,
                           "tensor '%.200s': the file is shorter than its values need", name);
}

static int read_failed(struct zero_client *c, const char *tensor, int error)
{
        if (error == ECANCELED)
                return client_shut(c, "a call was interrupted");
        return client_fail(c, error == ETIMEDOUT ? ZERO_EDEADLINE : ZERO_EIO,
                           "tensor '%.200s': reading the file: %s", tensor,
                           error == ETIMEDOUT ? "the disk does not answer" : strerror(error));
}

static int read_piece(struct zero_client *c, const struct access *piece, struct source *from,
                      uint8_t *slot)
{
        size_t size = piece->count * piece->element,
               there = size < from->bytes ? size : from->bytes;
        const char *name = c->layout->tensors[piece->tensor].name;
        int64_t deadline_ms = client_deadline(c);
        int r = wire_sleep(c->interrupt_fd, wire_now());

        memset(slot + there, 0, size - there);
        while (r == 0 && there > 0) {
                ssize_t n = file_reader_read(from->file, slot, there, from->at);

                if (n == 0)
                        return too_short(c, name);
                if (n < 0) {
                        r = errno == EAGAIN
                                    ? client_waiting(c, wire_wait_for(from->file->arrived,
                                                                      c->interrupt_fd, deadline_ms))
                                    : -errno;
                        continue;
                }
                slot += n;
                there -= (size_t)n;
                from->at += (uint64_t)n;
                from->bytes -= (uint64_t)n;
        }
        return r ? read_failed(c, name, -r) : 0;
}

/* Waits for the slot, fills it and hands it to the daemon. */
static int put_piece(struct zero_client *c, struct slots_in_use *use, const struct access *piece,
                     struct source *from)
{
        Zero__Access put = message_of(piece);
        uint32_t slot = use->next++ % CLIENT_SLOTS;
        int r = client_await(c, use->seq[slot]);

        if (r || c->deferred.status)
                return r;
        put.at = slot * (c->transfer_bytes / CLIENT_SLOTS);
        if (!from->file) {
                memcpy(c->session.base + put.at, from->memory, piece->count * piece->element);
                from->memory += piece->count * piece->element;
        } else {
                r = read_piece(c, piece, from, c->session.base + put.at);
        }
        if (r)
                return r;
        r = client_send(c, REQUEST(PUT, put, &put), PUSH_NONE);
        use->seq[slot] = c->last_seq;
        return r;
}

static int put_pieces(struct zero_client *c, struct slots_in_use *use, struct access left,
                      struct source from)
{
        int r = 0;

        while (r == 0 && !c->lost && !c->deferred.status && left.count > 0) {
                struct access piece = next_piece(&left, c->transfer_bytes / CLIENT_SLOTS);

                c->began_ms = wire_now(); /* the timeout is that of a piece */
                r = put_piece(c, use, &piece, &from);
        }
        return r;
}

static int await_all(struct zero_client *c, const struct slots_in_use *use)
{
        int r = 0;

        for (uint32_t i = 0; i < CLIENT_SLOTS && r == 0 && !c->lost; i++)
                r = client_await(c, use->seq[i]);
        return r;
}

/* The end of a call that got as far as this status: all slots are free again. */
static int put_end(struct zero_client *c, const struct slots_in_use *use, int status)
{
        struct fault own = c->error;

        if (status == 0) {
                status = await_all(c, use);
        } else if (status > 0 && !c->lost && !c->closed) {
                await_all(c, use);
                if (c->deferred.status != ZERO_EABORTED)
                        c->deferred.status = ZERO_OK;
                c->error = own;
        }
        if (status == CLIENT_LOST || (status == 0 && c->lost)) {
                status = client_resume(c);
                c->deferred.status = ZERO_OK;
                if (status == 0)
                        status = client_fail(c, ZERO_EABORTED, CLIENT_RESUMED,
                                             (unsigned long long)c->version);
        }
        return status || !c->deferred.status ? status : client_report_deferred(c);
}

int zero_put(struct zero_client *client, uint32_t tensor, enum zero_plane plane, uint64_t first,
             uint64_t count, const void *src)
{
        struct access access = { .tensor = tensor, .plane = plane, .first = first, .count = count };
        struct slots_in_use use = { .next = 0 };
        int r = client_begin(client);

        if (count > 0)
                r = client_given(client, r, src);
        if (r == 0)
                r = check_access(client, &access, true);
        if (r == 0)
                r = check_set(client, &access, src);
        if (r)
                return r;
        r = put_pieces(client, &use, access, (struct source){ .memory = src });
        return put_end(client, &use, r);
}

/* All ranks meet in a step without an update.  Whether one was decided is the same for every rank,
 * also after a restart. */
int zero_first_values(struct zero_client *client, const void *const *values)
{
        int r = client_begin(client);

        if (r == 0)
                r = client_check_group(client, 0);
        if (r == 0 && client->rank == 0)
                r = client_given(client, r, values);
        while (r == 0 && client->version == 0 && client->last_attempt == 0) {
                const struct zero_step_options meet = { .loss_scale = client->loss_scale };

                for (uint32_t t = 0; r == 0 && client->rank == 0 && t < client->layout->n_tensors;
                     t++)
                        if (values[t])
                                r = zero_put(client, t, ZERO_PLANE_MASTER, 0,
                                             client->layout->tensors[t].elements, values[t]);
                if (r == 0)
                        r = zero_step(client, &meet, NULL);
                if (r == 0)
                        return 0;
                r = r == ZERO_EABORTED ? 0 : r;
        }
        return r;
}

/* ---- writing from a file --------------------------------------------------- */

/* Of a tensor of bytes the last word may have fewer in the file. */
static uint64_t bytes_left(const struct layout_tensor *t, uint64_t first, uint64_t count)
{
        uint64_t bytes = 1;

        for (uint32_t i = 0; i < t->ndim; i++)
                bytes *= t->shape[i];
        bytes -= first * sizeof(float) < bytes ? first * sizeof(float) : bytes;
        return bytes < count * sizeof(float) ? bytes : count * sizeof(float);
}

/* end: of the file, for all that is known. */
static int check_values(struct zero_client *c, const struct zero_values *v, uint64_t end,
                        struct access *ret_access, struct source *ret_from)
{
        struct access a = {
                .tensor = v->tensor, .plane = v->plane, .first = v->first, .count = v->count
        };
        int r = check_access(c, &a, true);
        const struct layout_tensor *t;
        enum zero_dtype kept;

        if (r)
                return r;
        t = &c->layout->tensors[v->tensor];
        kept = c->layout->groups[t->group].dtype;
        if (v->plane == ZERO_PLANE_STEP || v->plane == ZERO_PLANE_SET)
                return client_fail(c, ZERO_EINVAL, "tensor '%s': step and set come by zero_put()",
                                   t->name);
        if (dtype_is_bytes(kept) ? v->dtype != kept : !dtype_valid(v->dtype))
                return client_fail(c, ZERO_EINVAL,
                                   "tensor '%s': values of dtype %s (%d) in the file do not become "
                                   "its %s",
                                   t->name, dtype_name(v->dtype), (int)v->dtype,
                                   dtype_is_bytes(kept) ? dtype_name(kept) : "fp32");
        if (dtype_valid(v->dtype) && v->dtype != ZERO_FP32) {
                a.dtype = v->dtype;
                a.element = dtype_bytes(v->dtype, 1);
        }
        ret_from->at = v->at;
        ret_from->bytes =
                dtype_is_bytes(kept) ? bytes_left(t, v->first, v->count) : v->count * a.element;
        if (v->at > INT64_MAX - ret_from->bytes)
                return client_fail(c, ZERO_ERANGE, "tensor '%s': byte %llu lies in no file",
                                   t->name, (unsigned long long)v->at);
        if (v->at + ret_from->bytes > end)
                return too_short(c, t->name);
        *ret_access = a;
        return 0;
}

static int put_runs(struct zero_client *c, struct slots_in_use *use, struct file_reader *file,
                    const struct zero_values *values, uint32_t n)
{
        struct access access = { .count = 0 };
        struct source from = { .file = file };
        int r = 0;

        for (uint32_t i = 0; r == 0 && i < n; i++) {
                r = check_values(c, &values[i], INT64_MAX, &access, &from);
                if (r == 0)
                        r = put_pieces(c, use, access, from);
        }
        return r;
}

int zero_put_file(struct zero_client *client, int fd, const struct zero_values *values, uint32_t n)
{
        struct slots_in_use use = { .next = 0 };
        struct source from = { .at = 0 };
        struct access access = { .count = 0 };
        uint64_t end = INT64_MAX, used = 0;
        int r = client_begin(client);
        struct file_reader *file = NULL;
        struct stat st;

        if (n > 0)
                r = client_given(client, r, values);
        if (r == 0 && fd < 0)
                r = client_fail(client, ZERO_EINVAL, "zero_put_file() takes an open file");
        if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
                end = (uint64_t)st.st_size;
        for (uint32_t i = 0; r == 0 && i < n; i++) {
                r = check_values(client, &values[i], end, &access, &from);
                if (from.at + from.bytes > used)
                        used = from.at + from.bytes;
        }
        if (r || n == 0)
                return r;
        r = file_reader_open(fd, used, &file);
        if (r)
                return client_fail(client, ZERO_EIO, "reading the file: %s",
                                   r == -EAGAIN ? "no thread for it: this user has as many "
                                                  "processes as RLIMIT_NPROC allows"
                                                : strerror(-r));
        r = put_runs(client, &use, file, values, n);
        file_reader_close(file);
        return put_end(client, &use, r);
}

/* ---- reading --------------------------------------------------------------- */

int zero_get(struct zero_client *client, uint32_t tensor, enum zero_plane plane, uint64_t first,
             uint64_t count, void *dst)
{
        struct access left = { .tensor = tensor, .plane = plane, .first = first, .count = count };
        uint8_t *to = dst;
        int r = client_begin(client);

        if (count > 0)
                r = client_given(client, r, dst);
        if (r == 0)
                r = check_access(client, &left, false);
        while (r == 0 && left.count > 0) {
                struct access piece = next_piece(&left, client->transfer_bytes);
                Zero__Access get = message_of(&piece);
                const Zero__Reply *reply;

                r = client_call(client, REQUEST(GET, get, &get), &reply);
                if (r)
                        return r;
                memcpy(to, client->session.base, piece.count * piece.element);
                to += piece.count * piece.element;
        }
        return r;
}

/* ---- the service ----------------------------------------------------------- */

int zero_query(struct zero_client *client, const char *what, const char *argument, char **ret_json)
{
        Zero__Query query = ZERO__QUERY__INIT;
        const Zero__Reply *reply;
        char *json;
        int r = client_open(client);

        if (r == 0 && client->lost)
                r = client_resume(client);
        r = client_given(client, r, what);
        r = client_given(client, r, ret_json);
        if (r)
                return r;
        query.what = (char *)what;
        query.argument = (char *)(argument ? argument : "");
        r = client_call(client, REQUEST(QUERY, query, &query), &reply);
        if (r)
                return r;
        json = strdup(reply->query->json);
        if (!json)
                return client_fail(client, ZERO_ENOMEM, "out of memory");
        *ret_json = json;
        return 0;
}

void zero_free(void *memory)
{
        free(memory);
}

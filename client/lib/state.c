/*
 * Reading and writing planes through the session's transfer area, piece by piece, and
 * queries of the daemon.
 */
#include "client.h"

#include <string.h>

#include "proto/dtype.h"

struct access {
        uint32_t tensor;
        enum zero_plane plane;
        size_t element; /* bytes */
        uint64_t first, count;
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
                a->element = dtype_size(c->layout->groups[t->group].dtype);
                return write ? client_fail(c, ZERO_EINVAL,
                                           "write master, not serve: serve is "
                                           "made from it")
                             : 0;
        case ZERO_PLANE_STEP:
        case ZERO_PLANE_SET:
                a->element = sizeof(uint64_t);
                *ret_elements = 1;
                return 0;
        default:
                return client_fail(c, ZERO_EINVAL, "plane %d cannot be read or written",
                                   (int)a->plane);
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

/* Moves one piece between the plane and the start of the transfer area. */
static int access_piece(struct zero_client *c, const struct access *a, bool write)
{
        Zero__Access access = ZERO__ACCESS__INIT;
        Zero__Request request = ZERO__REQUEST__INIT;
        const Zero__Reply *reply;

        access.tensor = a->tensor;
        access.plane = a->plane;
        access.first = a->first;
        access.count = a->count;
        request.body_case = write ? ZERO__REQUEST__BODY_PUT : ZERO__REQUEST__BODY_GET;
        if (write)
                request.put = &access;
        else
                request.get = &access;
        return client_call(c, &request, &reply);
}

/* Cuts the next piece off the rest. */
static struct access next_piece(const struct zero_client *c, struct access *left)
{
        struct access piece = *left;
        uint64_t most = c->transfer_bytes / left->element;

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

int zero_put(struct zero_client *client, uint32_t tensor, enum zero_plane plane, uint64_t first,
             uint64_t count, const void *src)
{
        struct access left = { .tensor = tensor, .plane = plane, .first = first, .count = count };
        const uint8_t *from = src;
        int r = client_begin(client);

        if (r == 0)
                r = check_access(client, &left, true);
        if (r == 0)
                r = check_set(client, &left, src);
        while (r == 0 && left.count > 0) {
                struct access piece = next_piece(client, &left);

                memcpy(client->session.base, from, piece.count * piece.element);
                from += piece.count * piece.element;
                r = access_piece(client, &piece, true);
        }
        return r;
}

int zero_get(struct zero_client *client, uint32_t tensor, enum zero_plane plane, uint64_t first,
             uint64_t count, void *dst)
{
        struct access left = { .tensor = tensor, .plane = plane, .first = first, .count = count };
        uint8_t *to = dst;
        int r = client_begin(client);

        if (r == 0)
                r = check_access(client, &left, false);
        while (r == 0 && left.count > 0) {
                struct access piece = next_piece(client, &left);

                r = access_piece(client, &piece, false);
                if (r)
                        return r;
                memcpy(to, client->session.base, piece.count * piece.element);
                to += piece.count * piece.element;
        }
        return r;
}

int zero_query(struct zero_client *client, const char *what, const char *argument, char **ret_json)
{
        Zero__Query query = ZERO__QUERY__INIT;
        Zero__Request request = ZERO__REQUEST__INIT;
        const Zero__Reply *reply;
        char *json;
        int r = client_open(client);

        if (r == 0 && client->lost)
                r = client_resume(client);
        if (r)
                return r;
        if (!what)
                return client_fail(client, ZERO_EINVAL, "zero_query() needs a question");
        query.what = (char *)what;
        query.argument = (char *)(argument ? argument : "");
        request.body_case = ZERO__REQUEST__BODY_QUERY;
        request.query = &query;
        r = client_call(client, &request, &reply);
        if (r)
                return r;
        json = strdup(reply->query->json);
        if (!json)
                return client_fail(client, ZERO_ENOMEM, "out of memory");
        *ret_json = json;
        return 0;
}

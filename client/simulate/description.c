/*
 * Reads what is to be simulated: one JSON object, from a program that may be wrong or hostile.  All
 * numbers are bounded here, and so are the memory and the time that follow from them.
 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "client/simulate/simulate.h"
#include "proto/cleanup.h"
#include "proto/dtype.h"

enum {
        TEXT_MAX = 64 << 20,    /* bytes of the description */
        RANKS_MAX = 65536,      /* of the job */
        SLICES_MAX = 1 << 26,   /* groups times owners */
        REQUESTS_MAX = 1 << 26, /* that come in at an owner of all groups, for one pass */
        PASSES_MAX = 1000000,   /* gathers or pushes of a group in a step */
};
#define NS_MAX ((json_int_t)3600 * 1000000000)

static int bad(struct fault *fault, const char *what)
{
        return fault_set(fault, ZERO_EINVAL, "the description of the cluster %s", what);
}

/* ---- the model --------------------------------------------------------------------------- */

static int add_tensor(layout *l, uint32_t group, const json_t *tensor, struct fault *fault)
{
        struct layout_tensor t = { .group = group, .ndim = 1 };
        json_t *j = (json_t *)tensor;
        char name[32];
        json_int_t elements;
        uint32_t number;
        int frozen;

        if (json_unpack(j, "[Ib!]", &elements, &frozen) || elements < 0)
                return bad(fault, "has a tensor that is not [ELEMENTS, FROZEN]");
        snprintf(name, sizeof name, "t%u", l->n_tensors);
        t.name = name;
        t.shape[0] = (uint64_t)elements;
        t.frozen = frozen;
        return layout_add_tensor(l, &t, &number, fault);
}

static int add_group(struct description *d, const json_t *group, struct fault *fault)
{
        json_t *tensors, *tensor;
        json_int_t dtype, gathers;
        uint32_t number;
        char name[32];
        size_t i;
        int r;

        if (json_unpack((json_t *)group, "{s:I, s:I, s:o!}", "dtype", &dtype, "gathers", &gathers,
                        "tensors", &tensors) ||
            dtype < 0 || !dtype_valid((uint32_t)dtype) || gathers < 0 || gathers > PASSES_MAX)
                return bad(fault, "has a group whose dtype, gathers or tensors cannot be used");
        snprintf(name, sizeof name, "g%u", d->layout->n_groups);
        r = layout_add_group(d->layout, name, (enum zero_dtype)dtype, NULL, 0, 0, &number, fault);
        if (r)
                return r;
        d->gathers[number] = (uint32_t)gathers;
        json_array_foreach(tensors, i, tensor)
        {
                r = r ? r : add_tensor(d->layout, number, tensor, fault);
        }
        return r;
}

static int take_model(struct description *d, const json_t *groups, struct fault *fault)
{
        size_t n = json_array_size(groups), i;
        json_t *group;
        int r = layout_new(&d->layout);

        if (n < 1 || n > ZERO_GROUP_MAX)
                return bad(fault, "has no groups, or too many");
        d->gathers = calloc(n, sizeof *d->gathers);
        if (r || !d->gathers)
                return fault_errno(fault, ENOMEM, "the model");
        json_array_foreach(groups, i, group)
        {
                r = r ? r : add_group(d, group, fault);
        }
        return r ? r : layout_check(d->layout, fault);
}

/* ---- the cluster ------------------------------------------------------------------------- */

static bool take(const json_t *from, const char *name, json_int_t least, json_int_t most,
                 json_int_t *ret)
{
        const json_t *j = json_object_get(from, name);

        if (!json_is_integer(j) || json_integer_value(j) < least || json_integer_value(j) > most)
                return false;
        *ret = json_integer_value(j);
        return true;
}

static int take_numbers(struct description *d, const json_t *from, struct fault *fault)
{
        json_int_t n[11];
        const struct {
                const char *name;
                json_int_t least, most;
        } numbers[] = {
                { "nodes", 1, NODE_SET_MAX },      { "owners", 1, NODE_SET_MAX },
                { "devices", 1, NODE_OWNERS_MAX }, { "ranks", 1, RANKS_MAX },
                { "seed", 0, INT64_MAX },          { "latency_ns", 0, NS_MAX },
                { "message_ns", 0, NS_MAX },       { "step_ns", 0, NS_MAX },
                { "update_ns", 0, NS_MAX },        { "reduce_size", 2, 4 },
                { "pushes", 1, PASSES_MAX },
        };
        char text[128];

        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
                snprintf(text, sizeof text, "has no %s from %lld to %lld", numbers[i].name,
                         (long long)numbers[i].least, (long long)numbers[i].most);
                if (!take(from, numbers[i].name, numbers[i].least, numbers[i].most, &n[i]))
                        return bad(fault, text);
        }
        d->nodes = (uint32_t)n[0];
        d->owners = (uint32_t)n[1];
        d->devices = (uint32_t)n[2];
        d->ranks = (uint32_t)n[3];
        d->seed = (uint64_t)n[4];
        d->latency = (uint64_t)n[5];
        d->message = (uint64_t)n[6];
        d->step = (uint64_t)n[7];
        d->update = (uint64_t)n[8];
        d->reduce_size = (uint32_t)n[9];
        d->pushes = (uint32_t)n[10];
        if (d->owners > d->nodes || d->owners * d->devices > NODE_SET_MAX ||
            (uint64_t)d->nodes * d->ranks > RANKS_MAX || d->reduce_size == 3)
                return bad(fault, "has more owners than nodes, too many owners or ranks, or no "
                                  "reduce_size of a dtype");
        return 0;
}

static int take_rest(struct description *d, const json_t *from, struct fault *fault)
{
        const char *job = json_string_value(json_object_get(from, "job"));

        d->link = json_number_value(json_object_get(from, "link"));
        d->mirror = json_is_true(json_object_get(from, "mirror"));
        d->announces = json_is_true(json_object_get(from, "announces"));
        if (!job || strlen(job) > ZERO_NAME_MAX)
                return bad(fault, "has no job's name");
        if (!(d->link > 0 && d->link <= 1e18))
                return bad(fault, "has no link's rate from above 0 to 10^18");
        snprintf(d->job, sizeof d->job, "%s", job);
        return 0;
}

/* ---- what follows from both -------------------------------------------------------------- */

static int place(struct description *d, struct fault *fault)
{
        const layout *l = d->layout;
        uint32_t n = d->owners * d->devices, nodes[NODE_SET_MAX];
        uint64_t requests = 0;

        if ((uint64_t)l->n_groups * n > SLICES_MAX)
                return bad(fault, "has too many groups for so many owners");
        for (uint32_t o = 0; o < n; o++)
                nodes[o] = o / d->devices;
        placement_init(&d->placement, 0, nodes, n, d->mirror);
        if (partition_new(l, n, &d->partition))
                return fault_errno(fault, ENOMEM, "the partition");
        for (uint32_t g = 0; g < l->n_groups; g++) {
                if (l->groups[g].elements)
                        requests += (uint64_t)d->nodes *
                                    partition_most_parts(d->partition, l, g, PART_BYTES);
        }
        return requests > REQUESTS_MAX ? bad(fault, "has too large a model for so few owners") : 0;
}

static int read_text(FILE *in, json_t **ret, struct fault *fault)
{
        CLEANUP(cleanup_free) char *text = malloc(TEXT_MAX);
        json_error_t error;
        size_t n;

        if (!text)
                return fault_errno(fault, ENOMEM, "the description");
        n = fread(text, 1, TEXT_MAX, in);
        if (n == TEXT_MAX || ferror(in))
                return bad(fault, "is too long, or cannot be read");
        *ret = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
        return json_is_object(*ret) ? 0 : bad(fault, "is not a JSON object");
}

int description_read(FILE *in, struct description *ret, struct fault *fault)
{
        json_t *from = NULL;
        int r;

        *ret = (struct description){ 0 };
        r = read_text(in, &from, fault);
        if (!r)
                r = take_numbers(ret, from, fault);
        if (!r)
                r = take_rest(ret, from, fault);
        if (!r)
                r = take_model(ret, json_object_get(from, "groups"), fault);
        if (!r)
                r = place(ret, fault);
        json_decref(from);
        if (r)
                description_free(ret);
        return r;
}

void description_free(struct description *d)
{
        partition_free(d->partition);
        layout_free(d->layout);
        free(d->gathers);
        *d = (struct description){ 0 };
}

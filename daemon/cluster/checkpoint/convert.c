/*
 * The layout of a restored job: that of the checkpoint, with the whole tensors of the job that is
 * there, and with other formats of moments and master weights if the order names them.
 *
 * Rule: formats change by name alone.  A job that has others than the checkpoint is not replaced
 * without that.
 */
#include <string.h>

#include "daemon/cluster/checkpoint/operation.h"
#include "proto/cleanup.h"
#include "proto/dtype.h"
#include "proto/text.h"

DEFINE_CLEANUP(layout *, layout_free)

static const char *format_of(const char *name)
{
        return *name ? name : "fp32";
}

static bool same_formats(const struct layout_group *a, const struct layout_group *b)
{
        return strcmp(a->state, b->state) == 0 && strcmp(a->master, b->master) == 0;
}

/* The job's group of this name and number; NULL: it has none. */
static const struct layout_group *group_of(const struct job *job, const layout *l, uint32_t group)
{
        const layout *has = job->layout;

        return group < has->n_groups && strcmp(has->groups[group].name, l->groups[group].name) == 0
                       ? &has->groups[group]
                       : NULL;
}

static int refuse_other_formats(const struct job *job, const layout *l, struct fault *fault)
{
        for (uint32_t g = 0; g < l->n_groups; g++) {
                const struct layout_group *from = &l->groups[g], *to = group_of(job, l, g);
                bool moments = to && strcmp(from->state, to->state) != 0;

                if (!to || same_formats(from, to))
                        continue;
                return fault_set(fault, ZERO_ELAYOUT,
                                 "group %s has its %s in %s in the checkpoint, and in %s in job "
                                 "'%s': 'zeroctl restore --convert job' converts them; 'zeroctl "
                                 "drop %s' first, and the restored job has those of the "
                                 "checkpoint",
                                 text_quote(from->name).text,
                                 moments ? "moments" : "master weights",
                                 format_of(moments ? from->state : from->master),
                                 format_of(moments ? to->state : to->master), job->name, job->name);
        }
        return 0;
}

static int take_formats(const struct job *job, layout *l, const char *name, struct fault *fault)
{
        for (uint32_t g = 0; g < l->n_groups; g++) {
                const struct layout_group *of = job ? group_of(job, l, g) : NULL;

                if (!job)
                        return fault_set(fault, ZERO_ENOJOB,
                                         "there is no job '%s' whose formats the checkpoint could "
                                         "take: name them, as in --convert 8bit,bf16+8",
                                         name);
                if (!of)
                        return fault_set(fault, ZERO_ELAYOUT,
                                         "job '%s' does not have group %u, %s, of the checkpoint: "
                                         "name formats, as in --convert 8bit,bf16+8",
                                         name, g, text_quote(l->groups[g].name).text);
                memcpy(l->groups[g].state, of->state, sizeof of->state);
                memcpy(l->groups[g].master, of->master, sizeof of->master);
        }
        return 0;
}

static bool trains(const layout *l, const struct layout_group *g)
{
        for (uint32_t t = g->first_tensor; t < g->first_tensor + g->n_tensors; t++)
                if (!l->tensors[t].frozen)
                        return true;
        return false;
}

/* Groups that are trained take the formats; master weights only where they can. */
static int name_formats(const char *convert, layout *l, struct fault *fault)
{
        char state[LAYOUT_FORMAT_MAX + 2];
        size_t n = strcspn(convert, ",");
        const char *master = convert[n] ? convert + n + 1 : NULL;
        bool taken = !master || strcmp(master, "fp32") == 0;
        int r = 0;

        if (n == 0 || (master && !*master))
                return fault_set(fault, ZERO_EINVAL,
                                 "%s is no name of a format: give 'job', or names as in "
                                 "8bit,bf16+8",
                                 text_quote(convert).text);
        snprintf(state, sizeof state, "%.*s", (int)(n < sizeof state ? n : sizeof state), convert);
        for (uint32_t g = 0; r == 0 && g < l->n_groups; g++) {
                struct layout_group *group = &l->groups[g];
                bool can = group->dtype == ZERO_BF16 && !group->eager;

                if (!trains(l, group))
                        continue;
                taken |= can;
                r = layout_set_state(l, g, state, master && can ? master : format_of(group->master),
                                     fault);
        }
        if (r == 0 && !taken)
                r = fault_set(fault, ZERO_EINVAL,
                              "no group of the checkpoint can have master weights in %s: that "
                              "takes a group that is served in bf16 and is not eager",
                              text_quote(master).text);
        return r;
}

/* A job whose layout is otherwise the same keeps its choice of whole tensors. */
static void keep_whole(const struct job *job, const layout *saved, layout *l)
{
        if (!job || job->layout->n_tensors != l->n_tensors)
                return;
        for (uint32_t t = 0; t < l->n_tensors; t++)
                l->tensors[t].whole = job->layout->tensors[t].whole;
        for (uint32_t t = 0; !layout_equal(l, job->layout, NULL, 0) && t < l->n_tensors; t++)
                l->tensors[t].whole = saved->tensors[t].whole;
}

/* Checks and packs it. */
static int pack(const layout *l, ProtobufCBinaryData *ret, struct fault *fault)
{
        CLEANUP(cleanup_layout_free) layout *checked = NULL;
        Zero__Layout *m = NULL;
        int r = layout_to_message(l, &m) ? ZERO_ENOMEM : optimizer_layout(m, &checked, fault);

        if (r == 0) {
                ret->len = zero__layout__get_packed_size(m);
                ret->data = malloc(ret->len);
        }
        if (r == 0 && ret->data)
                zero__layout__pack(m, ret->data);
        else if (r <= 0 || r == ZERO_ENOMEM)
                r = fault_set(fault, ZERO_ENOMEM, "out of memory");
        zero__layout__free_unpacked(m, NULL);
        return r;
}

int convert_layout(const struct operation *op, ProtobufCBinaryData *ret, struct fault *fault)
{
        const struct job *job = job_find(op->x, op->job);
        CLEANUP(cleanup_layout_free) layout *saved = NULL, *l = NULL;
        int r = snapshot_layout(op->layout, op->manifest.layout_bytes, &saved, fault);

        if (r)
                return r;
        if (layout_copy(saved, &l))
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        if (op->convert && strcmp(op->convert, "job") == 0)
                r = take_formats(job, l, op->job, fault);
        else if (op->convert)
                r = name_formats(op->convert, l, fault);
        else if (job)
                r = refuse_other_formats(job, l, fault);
        if (r)
                return r;
        keep_whole(job, saved, l);
        return layout_equal(l, saved, NULL, 0) ? 0 : pack(l, ret, fault);
}

int converted_layout(const ProtobufCBinaryData *packed, const layout *saved, layout **ret,
                     struct fault *fault)
{
        CLEANUP(cleanup_layout_free) layout *to = NULL, *l = NULL;
        int r = packed->len ? snapshot_layout(packed->data, packed->len, &to, fault) : 0;

        if (r)
                return r;
        if (layout_copy(saved, &l))
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        if (to && (to->n_groups != l->n_groups || to->n_tensors != l->n_tensors))
                return fault_set(fault, ZERO_EPROTO, "the job's layout is not the checkpoint's");
        for (uint32_t g = 0; to && g < l->n_groups; g++) {
                memcpy(l->groups[g].state, to->groups[g].state, sizeof to->groups[g].state);
                memcpy(l->groups[g].master, to->groups[g].master, sizeof to->groups[g].master);
        }
        for (uint32_t t = 0; to && t < l->n_tensors; t++)
                l->tensors[t].whole = to->tensors[t].whole;
        *ret = STEAL(l);
        return 0;
}

/* Who follows a job on this node, who may, and which versions are in memory for them. */
#include "daemon/face/status/status.h"
#include "daemon/step/follow/follow.h"

enum { READERS_TOLD = 256 };

static void report_reader(struct arena *arena, const struct job *job, const struct reader *reader,
                          struct status_reader *ret)
{
        struct follow_copy copy;

        ret->uid = reader->uid;
        ret->pid = reader->address ? RECORD_NULL : reader->pid;
        ret->address = arena_copy(arena, reader->address);
        ret->waits = reader->waiting != NULL;
        for (uint32_t i = 0; i < FOLLOW_COPIES_MAX; i++)
                if (reader->held[i] && follow_copy(job, i, &copy))
                        numbers_add(arena, &ret->versions, copy.version);
}

/* NULL: all groups, as the ranks fetch them. */
static const char *form_text(struct arena *arena, const layout *l, const uint8_t *form)
{
        uint32_t groups = 0, to = 0;

        for (uint32_t i = 0; i < l->n_groups; i++) {
                groups += form[i] != 0;
                to |= form[i] && form[i] != l->groups[i].dtype ? 1u << form[i] : 0;
        }
        if (groups == l->n_groups && !to)
                return NULL;
        return arena_text(arena, "%u of %u groups%s%s%s", groups, l->n_groups,
                          to & 1u << ZERO_FP32 ? ", as fp32" : "",
                          to & 1u << ZERO_BF16 ? ", as bf16" : "",
                          to & 1u << ZERO_FP16 ? ", as fp16" : "");
}

void report_versions_here(struct arena *arena, const struct job *job,
                          struct status_versions_here *ret)
{
        const struct reader *reader = NULL;
        struct follow_copy copy;
        struct follow_info info;

        follow_info(job, &info);
        *ret = (struct status_versions_here){ .node = node_name(job->x, job->x->cluster->self),
                                              .newest = info.whole ? info.version : RECORD_NULL };
        while ((reader = follow_reader(job, reader))) {
                struct status_reader *to =
                        ret->readers.n < READERS_TOLD ? LIST_ADD(arena, &ret->readers) : NULL;

                ret->left_out += !to;
                if (to)
                        report_reader(arena, job, reader, to);
        }
        for (uint32_t i = 0; i < FOLLOW_COPIES_MAX; i++) {
                struct status_copy *to =
                        follow_copy(job, i, &copy) ? LIST_ADD(arena, &ret->copies) : NULL;

                if (to)
                        *to = (struct status_copy){ copy.whole ? copy.version : RECORD_NULL,
                                                    copy.bytes, copy.readers,
                                                    form_text(arena, job->layout, copy.form) };
        }
}

void report_grants(struct arena *arena, const struct job *job, struct record_numbers *ret)
{
        uint32_t n;
        const uint32_t *uids = grants_of(job, &n);

        for (uint32_t i = 0; i < n; i++)
                numbers_add(arena, ret, uids[i]);
}

/* Shared layouts; see layouts.h. */
#include "daemon/job/core/layouts.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/job/core/job.h"
#include "proto/cleanup.h"

/* Measured with 262,144 empty tensors: 500 bytes a tensor for three copies, without names. */
enum { TENSOR_BYTES = 171, GROUP_BYTES = 342, COPIES = 2 };
enum { LAYOUT_SMALL = 1 << 20 };
/* For one user: the largest layout, or many of the usual size. */
enum { LAYOUTS_MAX = 256 << 20 };

static uint64_t layout_memory(const layout *l, uint32_t copies)
{
        uint64_t bytes =
                (uint64_t)l->n_tensors * TENSOR_BYTES + (uint64_t)l->n_groups * GROUP_BYTES;

        for (uint32_t t = 0; t < l->n_tensors; t++)
                bytes += strlen(l->tensors[t].name);
        return copies * bytes;
}

/* What counts against memory_limit. */
static uint64_t counted(uint64_t bytes)
{
        return bytes < LAYOUT_SMALL ? 0 : bytes;
}

uint64_t job_layout_bytes(const layout *l)
{
        return counted(layout_memory(l, 1));
}

static struct shared_layout *layouts_find(const struct engine *x, uint32_t uid,
                                          const uint8_t hash[static LAYOUT_HASH])
{
        list_for_each (&x->layouts, item) {
                struct shared_layout *s = CONTAINER_OF(item, struct shared_layout, link);

                if (s->uid == uid && memcmp(s->hash, hash, LAYOUT_HASH) == 0)
                        return s;
        }
        return NULL;
}

int layouts_admit(const struct engine *x, uint32_t uid, const layout *l, struct fault *fault)
{
        uint64_t bytes = layout_memory(l, COPIES), taken = 0;
        uint8_t hash[LAYOUT_HASH];

        layout_hash(l, hash);
        if (layouts_find(x, uid, hash))
                return 0;
        list_for_each (&x->layouts, item) {
                const struct shared_layout *s = CONTAINER_OF(item, struct shared_layout, link);

                taken += s->uid == uid ? s->bytes : 0;
        }
        if (taken && taken + bytes > LAYOUTS_MAX)
                return fault_set(fault, ZERO_EQUOTA,
                                 "the layout takes %llu bytes; other layouts of user %u take %llu "
                                 "of %d bytes for jobs that this node coordinates and ranks that "
                                 "attach: attach later, or drop a job",
                                 (unsigned long long)bytes, uid, (unsigned long long)taken,
                                 LAYOUTS_MAX);
        bytes = counted(bytes);
        return bytes ? store_admit(x->store, bytes, bytes, "the layout of a rank", fault) : 0;
}

struct shared_layout *layouts_take(struct engine *x, uint32_t uid, layout *l)
{
        uint8_t hash[LAYOUT_HASH];
        struct shared_layout *s;

        layout_hash(l, hash);
        s = layouts_find(x, uid, hash);
        if (s) {
                layout_free(l);
                s->references++;
                return s;
        }
        s = calloc(1, sizeof *s);
        if (!s || layout_to_message(l, &s->message)) {
                free(s);
                layout_free(l);
                return NULL;
        }
        s->x = x;
        s->references = 1;
        s->uid = uid;
        memcpy(s->hash, hash, LAYOUT_HASH);
        s->layout = l;
        s->bytes = layout_memory(l, COPIES);
        store_count(x->store, counted(s->bytes));
        list_insert(&x->layouts, &s->link);
        return s;
}

int layouts_add(struct engine *x, uint32_t uid, layout *l, struct shared_layout **ret,
                struct fault *fault)
{
        int r = layouts_admit(x, uid, l, fault);

        if (r) {
                layout_free(l);
                return r;
        }
        *ret = layouts_take(x, uid, l);
        return *ret ? 0 : fault_set(fault, ZERO_ENOMEM, "out of memory");
}

void layouts_unref(struct shared_layout *s)
{
        if (!s || --s->references)
                return;
        store_uncount(s->x->store, counted(s->bytes));
        list_remove(&s->link);
        zero__layout__free_unpacked(s->message, NULL);
        layout_free(s->layout);
        free(s);
}

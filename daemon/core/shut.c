/* Files of whole states that wait until there is memory to take them up. */
#include "daemon/core/shut.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "proto/cleanup.h"

struct shut {
        struct list link; /* engine.shut */
        char *file;
};

static void shut_free(struct shut *s)
{
        list_remove(&s->link);
        free(s->file);
        free(s);
}

void shut_add(struct engine *x, const char *file)
{
        struct shut *s = calloc(1, sizeof *s);

        if (!s || !(s->file = strdup(file))) {
                log_error("state file %s is not used: out of memory", file);
                free(s);
                return;
        }
        list_insert(&x->shut, &s->link);
}

bool shut_any(const struct engine *x)
{
        return !list_empty(&x->shut);
}

static const struct shut *shut_find(const struct engine *x, const char *job)
{
        list_for_each ((struct list *)&x->shut, item) {
                const struct shut *s = CONTAINER_OF(item, struct shut, link);

                if (state_is_of(s->file, job))
                        return s;
        }
        return NULL;
}

bool shut_has(const struct engine *x, const char *job)
{
        return shut_find(x, job);
}

int shut_uid(const struct engine *x, const char *job, uint32_t *ret, struct fault *fault)
{
        return state_file_uid(x->store, shut_find(x, job)->file, ret, fault);
}

void shut_retry(struct engine *x, bool (*opens)(struct engine *x, const char *file))
{
        list_for_each (&x->shut, item) {
                struct shut *s = CONTAINER_OF(item, struct shut, link);

                if (opens(x, s->file))
                        shut_free(s);
        }
}

void shut_drop(struct engine *x, const char *job)
{
        list_for_each (&x->shut, item) {
                struct shut *s = CONTAINER_OF(item, struct shut, link);

                if (!state_is_of(s->file, job))
                        continue;
                store_discard(x->store, s->file);
                shut_free(s);
        }
}

void shut_forget(struct engine *x)
{
        list_for_each (&x->shut, item) {
                shut_free(CONTAINER_OF(item, struct shut, link));
        }
}

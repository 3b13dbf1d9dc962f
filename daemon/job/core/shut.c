/* State files that are not taken up; see shut.h. */
#include "daemon/job/core/shut.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

struct shut {
        struct list link; /* engine.shut */
        char *file, *why;
};

static void shut_free(struct shut *s)
{
        list_remove(&s->link);
        free(s->file);
        free(s->why);
        free(s);
}

void shut_add(struct engine *x, const char *file, const char *why)
{
        struct shut *s = calloc(1, sizeof *s);

        if (s)
                list_insert(&x->shut, &s->link);
        if (s && (s->file = strdup(file)) && (!why || (s->why = strdup(why))))
                return;
        log_error("state file %s is not used: out of memory", file);
        if (s)
                shut_free(s);
}

/* job NULL: of any. */
static const struct shut *shut_find(const struct engine *x, const char *job, bool refused)
{
        list_for_each ((struct list *)&x->shut, item) {
                const struct shut *s = CONTAINER_OF(item, struct shut, link);

                if (!s->why == !refused && (!job || state_is_of(s->file, job)))
                        return s;
        }
        return NULL;
}

/* A person may have moved refused files away. */
static void shut_look(struct engine *x)
{
        list_for_each (&x->shut, item) {
                struct shut *s = CONTAINER_OF(item, struct shut, link);

                if (s->why && !store_has(x->store, s->file))
                        shut_free(s);
        }
}

bool shut_any(const struct engine *x)
{
        return shut_find(x, NULL, false);
}

bool shut_has(const struct engine *x, const char *job)
{
        return shut_find(x, job, false);
}

const char *shut_why(struct engine *x, const char *job)
{
        const struct shut *s;

        shut_look(x);
        s = shut_find(x, job, true);
        return s ? s->why : NULL;
}

void shut_each(struct engine *x, void (*each)(const char *file, const char *why, void *arg),
               void *arg)
{
        shut_look(x);
        list_for_each (&x->shut, item) {
                const struct shut *s = CONTAINER_OF(item, struct shut, link);

                each(s->file, s->why, arg);
        }
}

int shut_uid(const struct engine *x, const char *job, uint32_t *ret, struct fault *fault)
{
        const struct shut *s = shut_find(x, job, false);

        struct state_identity id;
        int r = state_file_look(x->store, (s ? s : shut_find(x, job, true))->file, &id, fault);

        if (!r)
                *ret = id.job.uid;
        return r;
}

void shut_retry(struct engine *x, bool (*opens)(struct engine *x, const char *file))
{
        list_for_each (&x->shut, item) {
                struct shut *s = CONTAINER_OF(item, struct shut, link);

                if (!s->why && opens(x, s->file))
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

void shut_replaced(struct engine *x, const char *file)
{
        list_for_each (&x->shut, item) {
                struct shut *s = CONTAINER_OF(item, struct shut, link);

                if (strcmp(s->file, file) == 0)
                        shut_free(s);
        }
}

void shut_forget(struct engine *x)
{
        list_for_each (&x->shut, item) {
                shut_free(CONTAINER_OF(item, struct shut, link));
        }
}

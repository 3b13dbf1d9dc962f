/* Files of whole states that wait until there is memory to take them up. */
#pragma once

#include "daemon/core/core.h"

void shut_add(struct engine *x, const char *file);
bool shut_any(const struct engine *x);
/* Whether the node has such a state of the job. */
bool shut_has(const struct engine *x, const char *job);
/* The user of a job that has such a state. */
int shut_uid(const struct engine *x, const char *job, uint32_t *ret, struct fault *fault);
/* Takes the states off the list that opens() takes up. */
void shut_retry(struct engine *x, bool (*opens)(struct engine *x, const char *file));
/* Deletes such states of the job. */
void shut_drop(struct engine *x, const char *job);
void shut_forget(struct engine *x);

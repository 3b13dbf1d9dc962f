/* State files that are not taken up: whole ones wait until there is memory, others are refused. */
#pragma once

#include "daemon/job/core/core.h"

/* why: the file is refused, for that reason; NULL: it waits for memory. */
void shut_add(struct engine *x, const char *file, const char *why);
bool shut_any(const struct engine *x);
/* Whether the node has a state of the job that waits. */
bool shut_has(const struct engine *x, const char *job);
/* Why a state of the job is refused; NULL: none is. */
const char *shut_why(struct engine *x, const char *job);
/* Calls each() with every file that is there, and why it is refused, or NULL. */
void shut_each(struct engine *x, void (*each)(const char *file, const char *why, void *arg),
               void *arg);
/* The user of a job that has a state that waits or is refused. */
int shut_uid(const struct engine *x, const char *job, uint32_t *ret, struct fault *fault);
/* Takes the states off the list that opens() takes up. */
void shut_retry(struct engine *x, bool (*opens)(struct engine *x, const char *file));
/* Deletes all of the job. */
void shut_drop(struct engine *x, const char *job);
/* The file is another one now. */
void shut_replaced(struct engine *x, const char *file);
void shut_forget(struct engine *x);

/*
 * recorder.h - writes down what took time before a deadline passed, as `zeroctl trace` would.
 *
 * A user can let deadlines pass again and again.  So there is one recording at a time, at most one
 * of a job in RECORD_EVERY_MS, and the oldest files go.
 */
#pragma once

#include "daemon/job/core/progress.h"

enum { RECORD_EVERY_MS = 60000, RECORDINGS_MAX = 32, RECORDINGS_OF_USER = 8 };

extern const struct module recorder_module;

/*
 * A call of a rank has passed its deadline; why: what its client is told.  Logs one line, when the
 * file is written or cannot be.
 */
void recorder_deadline(struct job *job, const struct request *r, const char *why);

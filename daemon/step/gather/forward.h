/* forward.h - brings a slice that the window has at an earlier version forward, by deltas. */
#pragma once

#include "daemon/job/deltas/deltas.h"

/*
 * Brings the owner's slice at `values` from version `from` to `to`.  bytes: of each delta, as the
 * owner has offered them; NULL: all are here.  done() is called once, later; not ok: the values may
 * be anything.  The caller refers to the job until then.  -EINVAL: no such deltas are kept.
 * -ENOMEM, also if the owner's node is gone.
 */
int forward_start(struct job *job, uint32_t group, uint32_t owner, uint64_t from, uint64_t to,
                  const uint64_t *bytes, void *values,
                  void (*done)(void *arg, bool ok, uint64_t received), void *arg);

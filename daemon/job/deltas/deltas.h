/*
 * deltas.h - exact differences between successive versions of an owner's slice of a group.
 *
 * An owner codes a delta once it has updated the slice (update/coding.h), as long as a node asks
 * for deltas.  That node keeps those that it has applied, for its other copies. Deltas lie in
 * memory alone: a daemon that starts has none, and its readers begin with whole slices.
 */
#pragma once

#include "daemon/job/transfer/transfer.h"

enum { DELTAS_KEPT = 16 }; /* of a slice; none is coded for a reader that is farther behind */

struct delta {
        struct list age; /* deltas.all */
        uint32_t group, owner;
        uint64_t version; /* that it leads to */
        uint32_t references;
        uint64_t bytes;
        uint8_t data[]; /* a string of blocks (compute/delta) */
};

/* With one reference.  NULL: out of memory. */
struct delta *delta_new(uint32_t group, uint32_t owner, uint64_t version, uint64_t bytes);
void delta_unref(struct delta *d);
/* Takes the reference over and keeps the delta for readers, unless follow_deltas leaves no room;
 * older ones of the user's jobs make room. */
void deltas_keep(struct job *job, struct delta *d);
/* NULL: it is not here. */
struct delta *deltas_find(const struct job *job, uint32_t group, uint32_t owner, uint64_t version);
/* The latest version, `to` at most, that the deltas here lead to from version `from`. */
uint64_t deltas_reach(const struct job *job, uint32_t group, uint32_t owner, uint64_t from,
                      uint64_t to);
/* The delta of a slice will be kept, or not: who may want it waits until that is settled.
 * -ENOMEM. */
int deltas_expect(struct job *job, uint32_t group, uint32_t owner, uint64_t version);
void deltas_settle(struct job *job, uint32_t group, uint32_t owner);
/* Whether one of those that lead from version `from` to `to` is expected. */
bool deltas_expected(const struct job *job, uint32_t group, uint32_t owner, uint64_t from,
                     uint64_t to);
/* Counts memory for what deltas are coded of; false: follow_deltas leaves no room for that and for
 * `more` bytes of deltas. */
bool deltas_take(struct job *job, uint64_t bytes, uint64_t more);
void deltas_give(struct job *job, uint64_t bytes);
/* Whether this node's readers should get to that version by deltas (follow_by). */
bool deltas_pay(const struct job *job, uint64_t version);
/* How long readers waited for `bytes` of parameters, whole or by deltas; also in vain. */
void deltas_took(struct job *job, bool by_deltas, uint64_t bytes, uint64_t ns);
/* A node reads the job along by deltas, at that version. */
void deltas_want(struct job *job, uint64_t version);
/* Whether somebody may want the delta that leads there. */
bool deltas_wanted(const struct job *job, uint64_t version);
uint64_t deltas_bytes(const struct job *job);
/* Another node asks for a part of a delta. */
void deltas_pull_message(struct job *job, uint32_t node, const Zero__Pull *pull);

extern const struct module deltas_module;

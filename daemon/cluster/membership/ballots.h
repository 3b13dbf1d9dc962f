/*
 * A node's vote on which nodes hold shards, in a file on a disk.  What the node has promised and
 * accepted must outlive the machine; states on tmpfs do not.
 *
 * Rule: the file that has the name is whole.  ballots_write() writes a new file beside it, syncs
 * the new file, renames it over the old one, and syncs the directory before it returns.  A file
 * that is damaged, or belongs to another cluster, is refused and left alone.
 */
#pragma once

#include "proto/fault.h"

enum { BALLOTS_CLUSTER = 32, BALLOTS_BEFORE = 32 };

struct ballots;

/* Mirrors struct placement (rules/placement.h); struct ballots_record mirrors paxos_record. */
struct ballots_placement {
        uint64_t epoch;
        uint32_t n_owners;
        uint32_t node[ZERO_NODE_MAX];
        uint64_t before[BALLOTS_BEFORE], older, dead;
};
struct ballots_record {
        bool voter;
        uint64_t promised, accepted;
        struct ballots_placement chosen, value;
};

/* Where a record lies, and the clusters that it may belong to. */
struct ballots_place {
        const char *directory, *node;
        /* Hashes of what all nodes must agree on: of this cluster, and of the smaller clusters from
         * which it grew. */
        const uint8_t (*clusters)[BALLOTS_CLUSTER];
        uint32_t n_clusters;
        bool states; /* the node has states, which are cut for the recorded owners */
};
/*
 * Opens the directory, or makes it, and reads the node's file in it.  *ret_found: there is a file.
 * A file of another cluster is ignored if the file has no vote and the node has no states.
 * ZERO_EIO or ZERO_EPERM; the fault says what to do.
 */
int ballots_open(const struct ballots_place *place, struct ballots **ret,
                 struct ballots_record *ret_record, bool *ret_found, struct fault *fault);
void ballots_close(struct ballots *b);
/* Writes the record, durably when it returns 0.  -errno: either the old or the new record is on the
 * disk.  Blocks; one thread at a time. */
int ballots_write(struct ballots *b, const struct ballots_record *record);

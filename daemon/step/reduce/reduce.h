/*
 * reduce.h - turns the ranks' gradients into the owners' sums.
 *
 * A node gradient is what this node's ranks contribute to a group and micro-batch.  An owner's
 * accumulator is the sum of all nodes' node gradients, which the update reads.
 */
#pragma once

#include "daemon/job/core/push_window.h"
#include "daemon/job/shard/shard.h"

/* ---- this node's contributions ------------------------------------------------- */

enum { MICRO_BATCHES_MAX = 4096 }; /* per group and attempt */

/* A rank that pushes. */
struct pusher {
        struct job *job;
        uint32_t rank;
        struct push_window *window; /* of its session */
};
int reduce_push(const struct pusher *from, const Zero__Push *push, struct request *r,
                struct fault *fault);
/* A rank waits for its slot of the group, to push another micro-batch. */
void reduce_reclaim(struct job *job, uint32_t group);
/* The rank pushes nothing more in this attempt. */
void reduce_close(struct job *job, uint32_t rank);
/*
 * The attempt cannot end: pushes wait no longer.  Their memory counts for nothing, though somebody
 * may still read it.
 */
void reduce_fail(struct job *job, int status, const char *text);
/* A new attempt begins and voids what is left of the old one. */
void reduce_reset(struct job *job, bool decided);
/* Changes the number of ranks, after reduce_reset().  -ENOMEM: nothing has changed. */
int reduce_resize(struct job *job, uint32_t world_size);
/* The ranks' nodes are known, or have changed. */
void reduce_placed(struct job *job);
uint32_t reduce_pushed(const struct job *job, uint32_t group, uint32_t rank);
/* Whether a local rank's push waits unusually long for others. */
bool reduce_push_waits(const struct job *job);
/* Whether a local rank has pushed in this attempt. */
bool reduce_any(const struct job *job);
/* The last local rank has left: frees what was kept for gradients. */
void reduce_vacate(struct job *job);
/* The rank has a new session.  All local ranks push one dtype while one is here or has pushed. */
void reduce_rejoin(struct job *job, uint32_t rank, enum zero_dtype grad_dtype);
enum zero_dtype reduce_grad_dtype(const struct job *job);
void reduce_pull_message(struct job *job, uint32_t node, const Zero__Pull *request);
struct node_gradient;
/*
 * The sources of a tensor, from an element of the group on: their number, at most
 * node_gradient_sources_max(), and their dtype.  They may lie in any place.
 */
size_t node_gradient_sources(const struct node_gradient *p, uint32_t tensor, uint64_t first,
                             const void **ret_src);
size_t node_gradient_sources_max(const struct node_gradient *p);
enum zero_dtype node_gradient_dtype(const struct node_gradient *p);
uint64_t reduce_elements_sent(const struct reduce *r);
/* How many groups' sums this node has left to the update. */
uint64_t reduce_deferred(const struct reduce *r);

/* ---- an owner's sum --------------------------------------------------------------- */

/* A mirror pulls its owner's sum. */
void mirror_pull_message(struct job *job, uint32_t node, const Zero__Pull *request);
/* A node offers to a group; node_gradient: this node's own, else NULL. */
int accumulator_offer(struct job *job, uint32_t node, const Zero__Offer *offer,
                      struct node_gradient *node_gradient);
/* Nobody takes the offer: forgets its payload if it is announced. */
void offer_drop(struct engine *x, uint32_t node, const Zero__Offer *offer);
/* Finishes the reduction and votes; params NULL: for the norm. */
void accumulator_prepare(struct replica *h, const Zero__Prepare *m,
                         const struct step_params *params);
void accumulator_reset(struct replica *h);
/* A rank of this node has left: its pushes are not kept. */
void accumulator_left(struct replica *h);
/* Moves a group on as far as possible.  Its update may have ended, and its gradient be overwritten.
 */
void accumulator_advance(struct replica *h, uint32_t group);
/* The whole update has ended. */
void accumulator_updated(struct replica *h);
/* Whether the group's sum is complete and finite; ret_present [tensor of the job] gets which of the
 * group's tensors have a gradient. */
bool accumulator_summed(const struct replica *h, uint32_t group, uint8_t *ret_present);
/* Whether the group's sum is complete and in its plane.  Begins to write a sum that was left to the
 * update, unless this owner has voted: that one never comes to its plane. */
bool accumulator_settle(struct replica *h, uint32_t group);
/* Somebody reads the group's sum, which nobody overwrites meanwhile.  On the loop thread. */
void accumulator_read_begin(struct replica *h, uint32_t group);
void accumulator_read_end(struct replica *h, uint32_t group);
/* Whether the tensor has a gradient. */
bool accumulator_present(const struct replica *h, uint32_t tensor);
/* What every square of the group's sum is multiplied by: owners keep sums, norms are of means. */
double reduce_norm_scale(const struct job *job, uint32_t group);
/* Whether this owner has voted and awaits the decision. */
bool accumulator_voted(const struct replica *h);
/* Continues after a vote that an earlier process recorded. */
void accumulator_take_up(struct replica *h);
/* The step was refused: no decision will come. */
void accumulator_refused(struct replica *h);
uint32_t accumulator_waits(struct replica *h, struct wait_line *lines, uint32_t n);

/* Whether the update could add up what the job's only rank pushes in that place, if the rank had a
 * slot for each group. */
bool reduce_could_defer(const struct job *job, uint32_t place);
/* Takes the offer whose sum a group left to the update; NULL: the sum is written. */
struct offer;
struct offer *deferred_take(struct replica *h, uint32_t group);
/* What its ranks contributed. */
const struct node_gradient *deferred_node_gradient(const struct offer *o);
void deferred_release(struct offer *o);
/* Whether tasks or payloads in progress use the state. */
bool accumulator_in_use(const struct replica *h);
/* Whether any node has offered a gradient in this attempt. */
bool accumulator_begun(const struct replica *h);

extern const struct module reduce_module;
extern const struct shard_observer reduce_observer;

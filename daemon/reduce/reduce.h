/*
 * reduce.h - the ranks' gradients to the owners' sums.
 *
 * A node gradient is what this node's ranks contribute to a group and micro-batch; the accumulator
 * is an owner's sum of all nodes' node gradients, which the update reads.
 */
#pragma once

#include "daemon/core/push_window.h"
#include "daemon/shard/shard.h"

/* ---- this node's contributions ------------------------------------------------- */

enum { MICRO_BATCHES_MAX = 4096 }; /* of one group in one attempt */

/* Who pushes. */
struct pusher {
        struct job *job;
        uint32_t rank;
        struct push_window *window; /* of its session */
};
int reduce_push(const struct pusher *from, const Zero__Push *push, struct request *r,
                struct fault *fault);
/* The rank pushes nothing more in this attempt. */
void reduce_close(struct job *job, uint32_t rank);
/*
 * The attempt cannot end: nobody waits any longer for pushed memory.  What lies in it counts for
 * nothing, though it may still be read.
 */
void reduce_fail(struct job *job, int status, const char *text);
/* A new attempt begins; what is left of the old one is void. */
void reduce_reset(struct job *job, bool decided);
/* Another number of ranks, after reduce_reset().  -ENOMEM: nothing has changed. */
int reduce_resize(struct job *job, uint32_t world_size);
uint32_t reduce_pushed(const struct job *job, uint32_t group, uint32_t rank);
/* Does a push of a local rank wait for others, for longer than usual? */
bool reduce_push_waits(const struct job *job);
/* Has any local rank pushed in this attempt? */
bool reduce_any(const struct job *job);
/* The last local rank has left: memory that was kept for its gradients goes. */
void reduce_vacate(struct reduce *r);
/* A new session of the rank. */
void reduce_rejoin(struct job *job, uint32_t rank);
void reduce_pull_message(struct job *job, uint32_t node, const Zero__Pull *request);
struct node_gradient;
/*
 * What is added of a tensor, from an element of the group on: their number, at most
 * node_gradient_sources_max(), their dtype.  Not for the CPU if it is on a GPU.
 */
size_t node_gradient_sources(const struct node_gradient *p, uint32_t tensor, uint64_t first,
                             const void **ret_src);
size_t node_gradient_sources_max(const struct node_gradient *p);
enum zero_dtype node_gradient_dtype(const struct node_gradient *p);
uint64_t reduce_elements_sent(const struct reduce *r);
/* Sums of groups that were left to the update here. */
uint64_t reduce_deferred(const struct reduce *r);

/* ---- an owner's sum --------------------------------------------------------------- */

/* The last local rank has left: memory that was kept for gradients goes. */
void accumulator_vacate(struct accumulator *l);
/* A mirror takes its owner's sum. */
void mirror_pull_message(struct job *job, uint32_t node, const Zero__Pull *request);
/* An offer of a node; node gradient is NULL for other nodes'. */
int accumulator_offer(struct job *job, uint32_t node, const Zero__Offer *offer,
                      struct node_gradient *node_gradient);
/* Nobody takes the offer: its payload, if it is announced, is forgotten. */
void offer_drop(struct engine *x, uint32_t node, const Zero__Offer *offer);
/* Finish the reduction and vote; params NULL: for the norm. */
void accumulator_prepare(struct replica *h, const Zero__Prepare *m,
                         const struct step_params *params);
void accumulator_reset(struct replica *h);
/* A rank of this node has left: what it pushed is not kept. */
void accumulator_left(struct replica *h);
/* The group's update is over: its gradient may be overwritten. */
void accumulator_group_free(struct replica *h, uint32_t group);
/* The whole update is over. */
void accumulator_updated(struct replica *h);
/* This owner has voted for a step and awaits the decision. */
bool accumulator_voted(const struct replica *h);
/* The same of a vote that an earlier process recorded. */
void accumulator_take_up(struct replica *h);
/* The step was refused: there is no decision to await. */
void accumulator_refused(struct replica *h);
uint32_t accumulator_waits(struct replica *h, struct wait_line *lines, uint32_t n);

/* A group whose sum was left to the update, on GPUs; NULL: the sum is written. */
struct offer;
struct offer *deferred_take(struct replica *h, uint32_t group);
/* What its ranks contributed. */
const struct node_gradient *deferred_node_gradient(const struct offer *o);
void deferred_release(struct offer *o);
/* Tasks or payloads under way that use the state. */
bool accumulator_in_use(const struct replica *h);
/* Has any node offered a gradient in this attempt? */
bool accumulator_begun(const struct replica *h);

extern const struct module reduce_module;
extern const struct shard_observer reduce_observer;

/* What the parts of the actor share: a client, its layout, and the numbers it makes. */
#pragma once

#include <jansson.h>
#include <zero.h>

struct actor {
        struct zero_client *client;
        struct zero_layout *layout; /* as described; the client's own for observers */
        json_t *groups;             /* the description, for rank sets */
        uint32_t rank, n_groups;
        enum zero_dtype grad_dtype;
        const void **views;    /* [group], NULL: not held */
        void **grads;          /* [group], memory of a gradient not pushed yet */
        struct actor_gpu *gpu; /* NULL: the windows are in host memory */
};

/* ---- actor_gpu.c: calls of a client whose windows may be on a GPU ---- */

/* device: of the client that has just attached; NULL: host memory. */
void actor_gpu_open(struct actor *actor, const char *device);
void actor_gpu_close(struct actor *actor);
/* What release and step are ordered against. */
struct zero_sync *actor_sync(const struct actor *actor, const json_t *command);
/* As zero_fetch(), zero_grad() and zero_push(), of memory that the actor can read and write. */
int actor_fetch(struct actor *actor, uint32_t group, const void **ret_view);
int actor_grad(struct actor *actor, uint32_t group, void **ret_grad);
int actor_push(struct actor *actor, uint32_t group, const uint8_t *present, bool last,
               const json_t *command);

/* n bytes for the CPU: at p, or, if that is on the actor's GPU, a copy of them in *ret_copy, which
 * the caller frees. */
const void *actor_bring_down(const struct actor *actor, const void *p, size_t n, void **ret_copy);

/* ---- actor_stash.c ---- */

/* What an attach declares to stash, into ret->ranks too; false: nothing. */
bool actor_stash_needs(const json_t *command, struct zero_stash *ret);
int do_stash_write(struct actor *actor, const json_t *command, json_t *ret);
int do_stash_read(struct actor *actor, const json_t *command, json_t *ret);
int do_stash_release(struct actor *actor, const json_t *command, json_t *ret);

/* ---- actor_follow.c ---- */

/* "train" folds the hashes of the groups that a forward pass has fetched so. */
#define TRAIN_HASH_BEGIN UINT64_C(0xcbf29ce484222325)
#define TRAIN_HASH_PRIME UINT64_C(0x100000001b3)
int do_form(struct actor *actor, const json_t *command, json_t *ret);
int do_follow(struct actor *actor, const json_t *command, json_t *ret);
int do_rehash(struct actor *actor, const json_t *command, json_t *ret);
int do_unfollow(struct actor *actor, const json_t *command, json_t *ret);
int do_read(struct actor *actor, const json_t *command, json_t *ret);

/* ---- the rest ---- */

/* A number of a command, or what stands in for it. */
double field_number(const json_t *command, const char *name, double otherwise);
uint64_t field_count(const json_t *command, const char *name, uint64_t otherwise);
const char *field_text(const json_t *command, const char *name);
enum zero_dtype field_dtype(const json_t *command, const char *name);

/* Makes actor->layout out of {"groups": [...]}; a status, its sentence in *ret_text. */
int actor_layout(struct actor *actor, const json_t *command, const char **ret_text);
/* Whether this rank pushes gradients of the group. */
bool actor_in_group(const struct actor *actor, uint32_t group);
/* The first layout the client knows: the job's, else the one described. */
const struct zero_layout *actor_known_layout(const struct actor *actor);

/* A gradient that is a function of (seed, step, rank, micro_batch, group, element) alone. */
struct noise {
        uint64_t seed, step, rank, micro_batch;
        double scale;
};
/* In [-scale, scale), plus pull times the parameter where view is given. */
void gradient_fill(const struct actor *actor, const struct noise *noise, uint32_t group,
                   const void *view, float pull, void *grad);

/* Of the tensors' elements, gaps left out (FNV-1a). */
uint64_t view_hash(const struct actor *actor, uint32_t group, const void *view);
/* The same of values in another dtype than the group's. */
uint64_t values_hash(const struct actor *actor, uint32_t group, enum zero_dtype dtype,
                     const void *view);

/* "step": the hyperparameters of a command; sets has room for ZERO_SET_MAX. */
void step_params(const json_t *command, struct zero_set *sets, struct zero_step_options *ret);
/* Whole steps in one go. */
int actor_train(struct actor *actor, const json_t *command, json_t *ret);

/* Checkpoints in a directory of their own, and the states that they are made of. */
#pragma once

#include <criterion/criterion.h>

#include "daemon/store/snapshot/snapshot.h"
#include "daemon/cluster/checkpoint/directory.h"
#include "fixture.h"

enum { OWNERS_MAX = 5, VERSION = 7, ATTEMPT = 9 };

/* A state directory for each owner, and a directory for checkpoints. */
struct scene {
        layout *l;
        char *checkpoints;
        int dir;
        char *homes[OWNERS_MAX];
        struct store *stores[OWNERS_MAX];
        struct state *states[OWNERS_MAX];
        uint32_t n_owners;
        struct manifest manifest;
        uint8_t *packed;
};

/* The fixture's, with a tensor of several blocks. */
layout *large_layout(void);
/* The values that fill() writes: each is a function of the element's place in the job. */
void fill(struct state *s);
void check_values(struct state *s);
/* Makes states of that many owners, each in a directory of its own; drops them. */
void open_states(struct scene *s, uint32_t n_owners);
void close_states(struct scene *s);
/* A checkpoint "job-7" of filled states; takes the layout over. */
void scene_init(struct scene *s, layout *l, uint32_t n_owners);
void scene_deinit(struct scene *s);
/* Writes the shards of the open states under the manifest's version. */
void write_partial(struct scene *s);
int publish(struct scene *s, struct fault *fault);
void take_version(struct scene *s, uint64_t version, uint64_t created_ms);
int open_checkpoint(const struct scene *s, const char *name);
bool exists(const struct scene *s, const char *name);
/* Reads "job-7" into states of n owners as a restore does. */
int load(struct scene *s, uint32_t n_owners, bool check, struct fault *fault);
void remove_tree(const char *path);
/* The same numbers in every run. */
uint64_t random_below(uint64_t n);

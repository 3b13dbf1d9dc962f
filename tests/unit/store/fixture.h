/* A state directory for one test, and states in that directory.  They abort on failure. */
#pragma once

#include "daemon/store/store.h"

/* A new empty directory, mode 0700; fixture_remove() deletes it with its files. */
char *fixture_directory(void);
void fixture_remove(char *directory);

struct store *fixture_store(const char *directory);
/* Of the jobs that fixture_state() makes. */
extern enum zero_accumulate fixture_accumulate;
extern bool fixture_old_format;
struct plan *fixture_plan(const layout *l, uint32_t n_owners, uint32_t owner, uint32_t chunk);
struct state *fixture_state(struct store *store, const char *job, const layout *l,
                            uint32_t n_owners, uint32_t owner, uint32_t n_undo);
/* The same on the first GPU. */
struct state *fixture_state_on_gpu(struct store *store, const char *job, const layout *l,
                                   uint32_t n_owners, uint32_t owner, uint32_t n_undo);
/* Opens the only state. */
struct state *fixture_reopen(struct store *store, layout **ret_layout);
/* Its file name; static memory. */
const char *fixture_only_file(struct store *store);

/* A small layout: several chunks at LAYOUT_ALIGN elements each, gaps, a frozen tensor between
 * trainable ones, an empty tensor, two groups of different dtypes. */
layout *fixture_layout(void);
/* The same with a quarter of the elements. */
layout *fixture_small_layout(void);

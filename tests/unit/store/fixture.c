#include "fixture.h"

#include <assert.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "tests/support/temporary.h"
#include "toy.h"

char *fixture_directory(void)
{
        char path[256];
        bool made = temporary_directory(path, sizeof(path));

        assert(made);
        return strdup(path);
}

void fixture_remove(char *directory)
{
        DIR *d = opendir(directory);

        assert(d);
        for (struct dirent *e; (e = readdir(d));)
                if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
                        assert(unlinkat(dirfd(d), e->d_name, 0) == 0);
        closedir(d);
        assert(rmdir(directory) == 0);
        free(directory);
}

struct store *fixture_store(const char *directory)
{
        struct fault fault = { 0 };
        struct store *store = NULL;

        if (store_open(directory, 0, &store, &fault))
                fprintf(stderr, "%s\n", fault.text);
        assert(store);
        return store;
}

enum zero_accumulate fixture_accumulate;
bool fixture_old_format;

struct plan *fixture_plan(const layout *l, uint32_t n_owners, uint32_t owner, uint32_t chunk)
{
        struct partition *partition = NULL;
        struct plan *plan = NULL;

        assert(partition_new(l, n_owners, &partition) == 0);
        assert(plan_new(l, partition, owner, chunk, &plan) == 0);
        plan->staggered = !fixture_old_format;
        partition_free(partition);
        return plan;
}

static struct state *make(struct store *store, const char *job, const layout *l, uint32_t n_owners,
                          uint32_t owner, uint32_t n_undo, uint32_t place)
{
        struct state_identity id = { .job = { .uid = 1234,
                                              .world_size = 6,
                                              .reduce_dtype = ZERO_BF16,
                                              .accumulate = fixture_accumulate },
                                     .n_owners = n_owners,
                                     .place = place };
        struct plan *plan = fixture_plan(l, n_owners, owner, LAYOUT_ALIGN);
        struct state *state = NULL;
        struct fault fault = { 0 };

        snprintf(id.job.name, sizeof id.job.name, "%s", job);
        plan->grad_dtype = job_spec_sum_dtype(&id.job);
        if (state_create(store, &id, l, plan, n_undo, &state, &fault))
                fprintf(stderr, "%s\n", fault.text);
        assert(state);
        return state;
}

struct state *fixture_state(struct store *store, const char *job, const layout *l,
                            uint32_t n_owners, uint32_t owner, uint32_t n_undo)
{
        return make(store, job, l, n_owners, owner, n_undo, 0);
}

struct state *fixture_state_on_gpu(struct store *store, const char *job, const layout *l,
                                   uint32_t n_owners, uint32_t owner, uint32_t n_undo)
{
        return make(store, job, l, n_owners, owner, n_undo, 1);
}

static char only_file[256];

static int remember(const char *file, void *arg)
{
        assert(!only_file[0] && strlen(file) < sizeof(only_file));
        strcpy(only_file, file);
        return 0;
}

const char *fixture_only_file(struct store *store)
{
        only_file[0] = 0;
        assert(store_each(store, remember, NULL) == 0);
        return only_file;
}

struct state *fixture_reopen(struct store *store, layout **ret_layout)
{
        struct fault fault = { 0 };
        struct state *state = NULL;

        if (state_open(store, fixture_only_file(store), &state, ret_layout, &fault))
                fprintf(stderr, "%s\n", fault.text);
        assert(state);
        return state;
}

/* The first of toy_sets for that group; the last one has an average's decay. */
static uint32_t set_of(const struct layout_group *g)
{
        uint32_t set = g->ema ? TOY_SETS - 1 : 0;

        while (!hyper_fits(&toy_sets[set], optimizer_find(g->optimizer)))
                set++;
        return set;
}

static void add(layout *l, uint64_t part, const char *name, uint64_t elements, bool frozen)
{
        char text[32];
        uint32_t index;
        struct layout_tensor t = { .name = strcpy(text, name),
                                   .group = l->n_groups - 1,
                                   .ndim = 1,
                                   .shape = { (elements + part - 1) / part },
                                   .frozen = frozen,
                                   .set = set_of(&l->groups[l->n_groups - 1]),
                                   .init = ZERO_INIT_NORMAL,
                                   .init_value = 0.5,
                                   .init_seed = l->n_tensors };
        assert(layout_add_tensor(l, &t, &index, NULL) == 0);
}

/* Tensors have a `part`-th of their elements, rounded up. */
static layout *make_layout(uint64_t part)
{
        layout *l = NULL;
        uint32_t group;

        assert(layout_new(&l) == 0);
        assert(layout_add_group(l, "a", ZERO_BF16, NULL, 0, 0, &group, NULL) == 0);
        assert(layout_set_optimizer(l, group, "adamw", NULL) == 0);
        add(l, part, "a.0", 300, false);
        add(l, part, "a.1", 1, false);
        add(l, part, "a.2", 200, true);
        add(l, part, "a.3", 130, false);
        assert(layout_add_group(l, "b", ZERO_FP32, NULL, 0, 0, &group, NULL) == 0);
        assert(layout_set_optimizer(l, group, "adamw", NULL) == 0);
        add(l, part, "b.0", 0, false);
        add(l, part, "b.1", 257, false);
        assert(layout_add_group(l, "c", ZERO_BF16, NULL, 0, 0, &group, NULL) == 0);
        assert(layout_set_optimizer(l, group, "lion", NULL) == 0);
        add(l, part, "c.0", 150, false);
        assert(layout_add_group(l, "d", ZERO_BF16, NULL, 0, 0, &group, NULL) == 0);
        assert(layout_set_optimizer(l, group, "sgd", NULL) == 0);
        add(l, part, "d.0", 150, false);
        assert(layout_add_group(l, "e", ZERO_FP32, NULL, 0, 0, &group, NULL) == 0);
        assert(layout_set_optimizer(l, group, "sgd-momentum", NULL) == 0);
        add(l, part, "e.0", 150, false);
        assert(layout_add_group(l, "f", ZERO_BF16, NULL, 0, 0, &group, NULL) == 0);
        assert(layout_set_optimizer(l, group, "adam", NULL) == 0);
        add(l, part, "f.0", 150, false);
        assert(layout_add_group(l, "g", ZERO_BF16, NULL, 0, 0, &group, NULL) == 0);
        assert(layout_set_optimizer(l, group, "adamw-ema", NULL) == 0);
        add(l, part, "g.0", 150, false);
        assert(layout_check(l, NULL) == 0);
        return l;
}

layout *fixture_layout(void)
{
        return make_layout(1);
}

layout *fixture_small_layout(void)
{
        return make_layout(4);
}

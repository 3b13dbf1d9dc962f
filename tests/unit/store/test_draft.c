/* Drafts: states that do not count yet. */
#include <stdio.h>
#include <string.h>

#include "daemon/store/directory.h"
#include "scene.h"

Test(draft, takes_the_place_of_a_state_and_is_found_again)
{
        char *directory = fixture_directory();
        struct store *store = fixture_store(directory);
        layout *l = fixture_layout(), *again;
        struct state *old = fixture_state(store, "job", l, 1, 0, 1), *draft, *found;
        struct state_identity id = old->id;
        struct plan *plan = fixture_plan(l, 1, 0, LAYOUT_ALIGN);
        struct fault fault;
        size_t n;

        cr_assert_eq(state_blob_stage(old, 1, 1, "old", 3), 0);
        cr_assert_eq(state_draft(store, &id, l, plan, 1, &draft, &fault), 0, "%s", fault.text);
        fill(draft);
        cr_assert_eq(state_replace(draft, old, &fault), 0, "%s", fault.text);
        state_drop(old);
        cr_assert_eq(store_used(store), state_bytes(draft));
        state_close(draft);
        found = fixture_reopen(store, &again);
        check_values(found);
        cr_assert_eq(found->record->version, VERSION);
        cr_assert_eq(memcmp(state_blob(found, 4, &n), "fourth", 6), 0);
        cr_assert_null(state_blob(found, 1, &n));
        state_drop(found);
        cr_assert_eq(store_used(store), 0);
        store_close(store);
        layout_free(l);
        layout_free(again);
        fixture_remove(directory);
}

/* Makes the job's state of that copy and epoch; a draft that is named. */
static struct state *named(struct store *store, const layout *l, uint32_t copy, uint64_t epoch)
{
        struct state_identity id = { .job.name = "job", .n_owners = 2, .copy = copy, .epoch = epoch };
        struct state *s = NULL;
        struct fault fault;

        cr_assert_eq(state_vacant(store, &id, 1, &fault), 0);
        cr_assert_eq(state_draft(store, &id, l, fixture_plan(l, 2, 1, LAYOUT_ALIGN), 1, &s, &fault),
                     0);
        cr_assert_eq(state_replace(s, NULL, &fault), 0, "%s", fault.text);
        cr_assert_eq(state_vacant(store, &id, 1, &fault), ZERO_EBUSY);
        return s;
}

struct found {
        struct store *store;
        uint32_t seen[2];
};

static int note(const char *file, void *arg)
{
        struct found *f = arg;
        struct state *s = NULL;
        layout *l = NULL;

        cr_assert_eq(state_open(f->store, file, &s, &l, NULL), 0);
        cr_assert_eq(s->plan->owner, 1);
        f->seen[s->id.copy] |= 1u << s->id.epoch;
        state_drop(s);
        layout_free(l);
        return 0;
}

Test(draft, copies_and_epochs_stand_beside_each_other)
{
        char *directory = fixture_directory();
        struct found found = { .store = fixture_store(directory) };
        layout *l = fixture_layout();

        for (uint32_t copy = 0; copy < 2; copy++)
                for (uint64_t epoch = 0; epoch < 3; epoch++) {
                        struct state *s = named(found.store, l, copy, epoch);

                        cr_assert_eq(state_blob_stage(s, 0, 1, "x", 1), 0);
                        state_close(s);
                }
        cr_assert_eq(store_each(found.store, note, &found), 0);
        cr_assert_eq(found.seen[0], 7);
        cr_assert_eq(found.seen[1], 7);
        cr_assert_eq(store_used(found.store), 0);
        store_close(found.store);
        layout_free(l);
        fixture_remove(directory);
}

Test(draft, that_is_dropped_leaves_the_state_as_it_is)
{
        char *directory = fixture_directory();
        struct store *store = fixture_store(directory);
        layout *l = fixture_layout();
        struct state *old = fixture_state(store, "job", l, 1, 0, 1), *draft;
        uint64_t used = store_used(store);
        struct state_identity id = old->id;
        struct fault fault;

        cr_assert_eq(
                state_draft(store, &id, l, fixture_plan(l, 1, 0, LAYOUT_ALIGN), 1, &draft, &fault),
                0);
        fill(draft);
        state_drop(draft);
        cr_assert_eq(store_used(store), used);
        cr_assert_eq(old->record->version, 0);
        cr_assert(strlen(fixture_only_file(store)) > 0);
        state_drop(old);
        store_close(store);
        layout_free(l);
        fixture_remove(directory);
}

/* A process dies with a state and a draft that both have blobs; `named`: after the draft's file has
 * got the state's name, before its blobs have. */
static struct state *after_a_death(const char *directory, struct store **ret_store, bool named)
{
        struct store *store = fixture_store(directory);
        layout *l = fixture_layout(), *again;
        struct state *old = fixture_state(store, "job", l, 1, 0, 1), *draft, *found;
        struct state_identity id = old->id;
        char file[STORE_FILE_NAME], temporary[STORE_FILE_NAME];
        struct fault fault;

        state_abort(old, 1);
        cr_assert_eq(state_blob_stage(old, 1, 1, "old", 3), 0);
        state_prepare(old, old->record);
        state_decide(old, old->record, 0);
        cr_assert_eq(
                state_draft(store, &id, l, fixture_plan(l, 1, 0, LAYOUT_ALIGN), 1, &draft, &fault),
                0);
        fill(draft);
        store_file_name(&id, 0, file);
        store_temporary_name(file, temporary);
        if (named)
                cr_assert_eq(renameat(store->dir, temporary, store->dir, file), 0);
        state_close(draft);
        state_close(old);
        store_close(store);
        *ret_store = fixture_store(directory);
        found = fixture_reopen(*ret_store, &again);
        layout_free(l);
        layout_free(again);
        return found;
}

Test(draft, that_has_the_name_when_its_process_dies_gets_its_blobs)
{
        char *directory = fixture_directory();
        struct store *store;
        struct state *s = after_a_death(directory, &store, true);
        size_t n;

        check_values(s);
        cr_assert_not_null(state_blob(s, 4, &n));
        cr_assert_eq(memcmp(state_blob(s, 4, &n), "fourth", 6), 0);
        cr_assert_null(state_blob(s, 1, &n));
        state_drop(s);
        cr_assert_eq(store_used(store), 0);
        store_close(store);
        fixture_remove(directory);
}

Test(draft, that_has_no_name_when_its_process_dies_leaves_nothing)
{
        char *directory = fixture_directory();
        struct store *store;
        struct state *s = after_a_death(directory, &store, false);
        size_t n;

        cr_assert_not_null(state_blob(s, 1, &n));
        cr_assert_eq(memcmp(state_blob(s, 1, &n), "old", 3), 0);
        cr_assert_null(state_blob(s, 4, &n));
        state_drop(s);
        cr_assert_eq(store_used(store), 0);
        store_close(store);
        fixture_remove(directory);
}

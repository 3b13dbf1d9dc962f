/* Maps of planes: their addresses, and that each is unmapped. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/store/file.h"
#include "fixture.h"
#include "toy.h"

static char *directory;
static struct store *store;
static struct state *state;
static layout *l;

static void begin(void)
{
        directory = fixture_directory();
        store = fixture_store(directory);
        l = fixture_layout();
        state = fixture_state(store, "job", l, 1, 0, 3);
        toy_init(state);
}

static void end(void)
{
        state_close(state);
        store_close(store);
        layout_free(l);
        fixture_remove(directory);
}

TestSuite(map, .init = begin, .fini = end);

Test(map, a_part_of_a_plane_is_the_same_memory_as_in_a_map_of_all_of_it)
{
        const struct plane planes[] = { plane_master, plane_updated(1), plane_updated(2),
                                        plane_grad };

        for (unsigned i = 0; i < sizeof(planes) / sizeof(*planes); i++) {
                struct range whole = state->plan->shards[0].range;
                struct mapping all = state_map(state, planes[i], 0, whole);
                struct mapping last = state_map(state, planes[i], 0,
                                                (struct range){ whole.first + whole.count - 1, 1 });

                cr_assert_eq(last.bytes, sizeof(float));
                *(float *)last.at = 17;
                cr_assert_eq(((float *)all.at)[all.bytes / sizeof(float) - 1], 17);
                state_unmap(&last);
                state_unmap(&all);
                cr_assert(!all.state && !all.at);
        }
}

Test(map, a_shard_is_what_trainers_get)
{
        const struct plan_shard *bf16 = &state->plan->shards[0], *fp32 = &state->plan->shards[1];
        struct range part = { bf16->range.first + LAYOUT_ALIGN, LAYOUT_ALIGN };
        struct mapping served = state_map(state, plane_serve, 0, part);
        struct mapping master = state_map(state, plane_serve, 1, fp32->range);
        uint16_t expected[LAYOUT_ALIGN];

        device_host(NULL)->cast(ZERO_BF16, expected, ZERO_FP32,
                                state->in->master + bf16->master + LAYOUT_ALIGN, LAYOUT_ALIGN);
        state_serve_group(state, l, 0, device_host(NULL));
        cr_assert_arr_eq(served.at, expected, sizeof(expected));
        cr_assert_eq(master.at, state->in->master + fp32->master);
        state_unmap(&served);
        state_unmap(&master);
}

Test(map, what_is_not_mapped_is_unmapped_without_effect)
{
        struct mapping nothing = { NULL },
                       some = state_map(state, plane_grad, 0, (struct range){ 0, 0 });

        state_unmap(&nothing);
        state_unmap(&some);
        state_unmap(&some);
}

static void *map_often(void *arg)
{
        for (int i = 0; i < 10000; i++) {
                struct mapping m = state_map(state, plane_master, 0, (struct range){ 0, 1 });

                state_unmap(&m);
        }
        return NULL;
}

Test(map, maps_of_several_threads_are_all_counted)
{
        pthread_t threads[4];

        for (int i = 0; i < 4; i++)
                cr_assert_eq(pthread_create(&threads[i], NULL, map_often, NULL), 0);
        for (int i = 0; i < 4; i++)
                pthread_join(threads[i], NULL);
}

/* In a child, because the parent still has to remove the fixture's files. */
static bool aborts(void (*call)(void))
{
        pid_t pid = fork();
        int status = 0;

        if (pid == 0) {
                close(STDERR_FILENO);
                call();
                _exit(0);
        }
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void close_mapped(void)
{
        state_map(state, plane_master, 0, (struct range){ 0, 1 });
        state_close(state);
}

Test(map, a_state_is_not_closed_while_some_of_it_is_mapped)
{
        cr_assert(aborts(close_mapped));
}

static void map_behind(void)
{
        state_map(state, plane_master, 0, (struct range){ l->groups[0].elements, 1 });
}

Test(map, nothing_behind_the_end_of_a_shard_is_mapped)
{
        cr_assert(aborts(map_behind));
}

Test(map, values_of_a_chunk_are_a_copy)
{
        const struct plan_chunk c = plan_chunk(state->plan, 0);
        float *moment = (float *)(state->in->moments[0] + plan_moment_at(c.run, 0, c.moment));
        float first = *moment;
        struct undo_values values = undo_values(state, 1, 0);

        cr_assert_arr_eq(values.planes[0], state->in->master + c.master, c.n * sizeof(float));
        cr_assert_arr_eq(values.planes[1], moment, c.n * sizeof(float));
        *moment += 1;
        cr_assert_eq(*(const float *)values.planes[1], first);
}

/* Random use of buffers, also by several threads, keeps the promises of buffer.h and buffer.c. */
#include "daemon/floor/base/buffer.c"

#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

enum { LIVE = 40, STEPS = 4000 };

static uint64_t seed;

static uint32_t below(uint32_t n)
{
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        return (uint32_t)(seed >> 33) % n;
}

static struct live {
        uint8_t *p;
        size_t n;
} live[LIVE];

/* Bytes of a buffer that takes one of the slots; 0: it takes none. */
static size_t slot_bytes(const struct live *b)
{
        for (uint32_t i = 0; i < SLOTS; i++)
                if (b->p && slots[i].memory == b->p)
                        return slots[i].bytes;
        return 0;
}

static void mark(const struct live *b, uint8_t with)
{
        if (b->n) {
                b->p[0] = b->p[b->n / 2] = b->p[b->n - 1] = with;
        }
}

static bool is_marked(const struct live *b, uint8_t with)
{
        return b->n == 0 || (b->p[0] == with && b->p[b->n / 2] == with && b->p[b->n - 1] == with);
}

static void toggle(uint32_t i)
{
        static const size_t sizes[] = { 0,        1,         UNIT - 1, UNIT,      UNIT + 1,
                                        5 * UNIT, LARGE - 1, LARGE,    LARGE + 1, 3 * HUGE };
        struct live *b = &live[i];

        if (b->p) {
                cr_assert(is_marked(b, (uint8_t)i), "buffers overlap");
                buffer_free(STEAL(b->p));
                return;
        }
        b->n = sizes[below(sizeof sizes / sizeof *sizes)];
        b->p = buffer_new(b->n);
        cr_assert(b->p);
        cr_assert(b->n < UNIT || (uintptr_t)b->p % PAGE == 0);
        mark(b, (uint8_t)i);
}

static void check_sums(size_t *peak)
{
        size_t in_use = 0, all = 0;

        for (uint32_t i = 0; i < LIVE; i++)
                in_use += slot_bytes(&live[i]);
        for (uint32_t i = 0; i < SLOTS; i++)
                all += slots[i].memory ? slots[i].bytes : 0;
        *peak = in_use > *peak ? in_use : *peak;
        cr_assert_eq(used, in_use);
        cr_assert_eq(held, all);
        cr_assert(held <= *peak, "%zu kept and in use, %zu once in use", held, *peak);
}

Test(buffer, any_life_keeps_the_promises)
{
        for (seed = 1; seed <= 20; seed++) {
                uint64_t at = seed;
                size_t peak = 0;

                for (int step = 0; step < STEPS / 20; step++) {
                        toggle(below(LIVE));
                        if (below(10) == 0)
                                buffers_rest(1 + below(3));
                        check_sums(&peak);
                }
                for (uint32_t i = 0; i < LIVE; i++)
                        if (live[i].p)
                                toggle(i);
                buffers_vacate();
                cr_assert_eq(held, 0);
                cr_assert_eq(used, 0);
                seed = at;
        }
}

Test(buffer, a_freed_buffer_is_the_next_of_its_size)
{
        void *a = buffer_new(5 * UNIT), *b = buffer_new(7 * UNIT);

        buffer_free(a);
        buffer_free(b);
        cr_assert_eq(buffer_new(7 * UNIT - 1), b);
        cr_assert_eq(buffer_new(5 * UNIT), a);
        buffer_free(a);
        buffer_free(b);
}

Test(buffer, a_kept_buffer_goes_after_a_rest)
{
        buffer_free(buffer_new(UNIT));
        buffers_rest(RESTS - 1);
        cr_assert_eq(held, UNIT);
        buffers_rest(1);
        cr_assert_eq(held, 0);
}

enum { THREADS = 4, TURNS = 500000 };

static pthread_barrier_t start;

/* A buffer that two threads have at once loses its mark. */
static void *use(void *lost)
{
        pthread_barrier_wait(&start);
        for (int i = 0; i < TURNS; i++) {
                uint8_t *p = buffer_new(UNIT);

                if (!p)
                        return lost;
                memcpy(p, &lost, sizeof lost);
                __atomic_signal_fence(__ATOMIC_SEQ_CST);
                if (memcmp(p, &lost, sizeof lost))
                        return lost;
                buffer_free(p);
        }
        return NULL;
}

Test(buffer, threads_have_buffers_of_their_own)
{
        pthread_t threads[THREADS];
        int marks[THREADS];
        void *lost;

        cr_assert_eq(pthread_barrier_init(&start, NULL, THREADS), 0);
        for (int i = 0; i < THREADS; i++)
                cr_assert_eq(pthread_create(&threads[i], NULL, use, &marks[i]), 0);
        for (int i = 0; i < THREADS; i++) {
                cr_assert_eq(pthread_join(threads[i], &lost), 0);
                cr_assert_null(lost, "thread %d shared a buffer", i);
        }
        buffers_vacate();
        cr_assert_eq(used, 0);
        cr_assert_eq(held, 0);
}

/* The same bytes to several GPUs, more than once to one of them, and to the host. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_fixture.h"

enum { GPUS = 6, PLACES = GPUS + 3, N = 300001 };

static void *places[PLACES];
static uint8_t wanted[N];

/* One on each GPU, a second one on the first and the last, and one in host memory. */
static void open_gpus(void)
{
        struct fault fault;

        setenv("FAKE_GPUS", "6", 1);
        gpu_fixture_open();
        for (uint32_t i = 0; i < PLACES - 1; i++)
                cr_assert_eq(gpu_alloc(i < GPUS ? i : (i - GPUS) * (GPUS - 1), N, "a place",
                                       &places[i], &fault),
                             0);
        places[PLACES - 1] = malloc(N);
        cr_assert_not_null(places[PLACES - 1]);
}

static void close_gpus(void)
{
        for (uint32_t i = 0; i < PLACES - 1; i++)
                gpu_free(places[i]);
        free(places[PLACES - 1]);
        gpus_close();
}

static void fill(void *place, uint32_t seed)
{
        for (uint32_t i = 0; i < N; i++)
                wanted[i] = (uint8_t)((i * 2654435761u >> 20) + seed);
        gpu_ops()->copy(place, wanted, N);
}

static bool has_it(const void *place)
{
        static uint8_t bytes[N];

        gpu_ops()->copy(bytes, place, N);
        return memcmp(bytes, wanted, N) == 0;
}

/* From one of the places to n others. */
static void spread(uint32_t from, uint32_t n, uint32_t seed)
{
        void *dst[PLACES];

        for (uint32_t i = 0; i < n; i++)
                dst[i] = places[(from + 1 + i) % PLACES];
        for (uint32_t i = 0; i < PLACES; i++)
                fill(places[i], seed + 1);
        fill(places[from], seed);
        gpu_spread(dst, n, places[from], N);
        for (uint32_t i = 0; i < PLACES; i++)
                cr_assert_eq(has_it(places[(from + i) % PLACES]), i <= n, "%u to %u: place %u",
                             from, n, i);
}

Test(gpu_spread, brings_the_bytes_to_each_place, .init = open_gpus, .fini = close_gpus)
{
        for (uint32_t from = 0; from < PLACES; from++)
                for (uint32_t n = 0; n < PLACES; n++)
                        spread(from, n, 100 * from + 10 * n);
}

/* Each place of the path that allocates fails, in the first and in the last of its calls. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "tests/conformance/bulk/pair.h"
#include "tests/support/refusing.h"

enum { N = 12, LARGEST = 1 << 20 };

static const size_t sizes[N] = { 0,      1,       4096, 100000, 300000, LARGEST,
                                 300000, LARGEST, 100,  300001, 5000,   LARGEST };
static uint8_t out[2][LARGEST], in[2][N][LARGEST];

static bool cut; /* an op has heard so */

/* Sends and expects what it can.  Returns how many ops have begun. */
static int begin(void)
{
        int begun = 0;

        cut = false;
        for (int i = 0; i < 2 * N; i++) {
                int from = i % 2, k = i / 2, r;

                r = expect_at(!from, (uint64_t)k, in[from][k], sizes[k], &pair.land[i]);
                if (r == 0) {
                        begun++;
                        r = send_from(from, (uint64_t)k, out[from], sizes[k], &pair.send[i]);
                        begun += r == 0;
                        if (r)
                                forget_at(!from, (uint64_t)k);
                }
                cut = cut || r == -ENOTCONN;
                cr_assert(r == 0 || r == -ENOMEM || r == -ENOTCONN, "op %d: %d", i, r);
                if (i % 4 == 0)
                        uv_run(&pair.loop, UV_RUN_NOWAIT);
        }
        return begun;
}

/* What has begun ends once, and what has landed is whole, or a side breaks. */
static void exchange(const void *refused_at, unsigned nth)
{
        int begun, ended = 0;

        memset(&pair, 0, sizeof pair);
        memset(in, 0, sizeof in);
        pair_open();
        if (refused_at)
                allocations_refuse(refused_at, nth);
        else
                allocations_count();
        begun = begin();
        while ((pair.ended < begun || cut) && pair.broken[0] + pair.broken[1] == 0)
                uv_run(&pair.loop, UV_RUN_ONCE);
        pair_close();
        allocations_refuse(NULL, 0);
        for (int i = 0; i < 2 * N; i++) {
                cr_assert_leq(pair.send[i].ended, 1);
                cr_assert_leq(pair.land[i].ended, 1);
                ended += pair.send[i].ended + pair.land[i].ended;
                if (pair.land[i].ended && pair.land[i].status == 0)
                        cr_assert_eq(memcmp(in[i % 2][i / 2], out[i % 2], sizes[i / 2]), 0,
                                     "payload %d differs", i);
        }
        cr_assert_eq(ended, begun);
}

Test(bulk, any_allocation_may_fail)
{
        static struct sites sites;

        for (int from = 0; from < 2; from++)
                for (size_t i = 0; i < LARGEST; i++)
                        out[from][i] = (uint8_t)(i * 7 + i / 251 + (size_t)from);
        exchange(NULL, 0);
        allocations_counted(&sites);
        cr_assert_gt(sites.n, 0);
        for (unsigned i = 0; i < sites.n; i++) {
                allocations_name(sites.site[i].at); /* for whoever reads why it has failed */
                exchange(sites.site[i].at, 1);
                exchange(sites.site[i].at, sites.site[i].n);
        }
}

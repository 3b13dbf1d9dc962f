/* What comes next is what the attempts before read, until a read differs. */
#include <criterion/criterion.h>

#include "daemon/step/stash/order.h"

static struct order o;
static uint32_t n_reads[2];

static void begin(void)
{
        o.at = n_reads[0] = n_reads[1] = 0;
}

static void reads(uint32_t member, uint32_t n, const uint64_t *keys)
{
        for (uint32_t i = 0; i < n; i++)
                order_read(&o, &n_reads[member], keys[i]);
}

Test(order, follows_the_attempt_before)
{
        reads(0, 5, (uint64_t[]){ 1, 0, 3, 3, 2 });
        cr_assert_eq(o.at, 5);
        cr_assert_eq(o.n, 5, "nothing is known of what comes next");
        begin();
        reads(0, 3, (uint64_t[]){ 1, 0, 3 });
        cr_assert_eq(o.n, 5);
        cr_assert_eq(o.keys[o.at], 3);
        cr_assert_eq(o.keys[o.at + 1], 2);
        begin(); /* an attempt that was aborted takes nothing away */
        cr_assert_eq(o.n, 5);
}

Test(order, ends_where_a_read_differs)
{
        begin();
        o.n = 0;
        reads(0, 4, (uint64_t[]){ 4, 3, 2, 1 });
        begin();
        reads(0, 2, (uint64_t[]){ 4, 2 });
        cr_assert_eq(o.n, 2);
        reads(0, 1, (uint64_t[]){ 9 });
        begin();
        reads(0, 1, (uint64_t[]){ 4 });
        cr_assert_eq(o.n, 3);
        cr_assert_eq(o.keys[1], 2);
        cr_assert_eq(o.keys[2], 9);
}

/* A member that reads later, or begins again, moves nothing. */
Test(order, the_furthest_member_leads)
{
        begin();
        o.n = 0;
        reads(0, 2, (uint64_t[]){ 7, 6 });
        reads(1, 3, (uint64_t[]){ 6, 7, 5 });
        cr_assert_eq(o.at, 3);
        cr_assert_eq(o.keys[0], 7);
        cr_assert_eq(o.keys[1], 6);
        cr_assert_eq(o.keys[2], 5);
        reads(0, 1, (uint64_t[]){ 8 });
        cr_assert_eq(o.at, 3);
        cr_assert_eq(o.keys[2], 5);
}

Test(order, is_bounded)
{
        begin();
        o.n = 0;
        for (uint64_t i = 0; i < ORDER_MOST + 10; i++)
                reads(0, 1, &i);
        cr_assert_eq(o.at, ORDER_MOST);
        cr_assert_eq(o.n, ORDER_MOST);
}

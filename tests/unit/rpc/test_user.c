/* Limits of users: loop time, by a clock of the test's own, and connections. */
#include <criterion/criterion.h>
#include <errno.h>
#include <unistd.h>

#include "daemon/face/rpc/user.h"
#include "proto/cleanup.h"

enum { GREEDY = 50001, SECOND, THIRD };

/* ---- loop time ---- */

/* A loop whose turns serve the user until the credit is gone, then do other work.  Returns the
 * user's part in a thousand. */
static uint64_t part_of(struct budget *b, uint64_t request_ns, uint64_t others_ns)
{
        uint64_t now_ns = 0, user_ns = 0;

        while (now_ns < 10 * (uint64_t)1000000000) {
                uint64_t turn_ms = now_ns / 1000000;

                while (budget_may_work(b, turn_ms)) {
                        budget_worked(b, request_ns);
                        now_ns += request_ns;
                        user_ns += request_ns;
                }
                now_ns += others_ns;
        }
        return user_ns * 1000 / now_ns;
}

Test(budget, one_user_of_several_has_less_than_a_third_of_the_loop_however_long_its_requests_take)
{
        static const uint64_t requests_ns[] = { 1000, 80000, 5000000, 130000000 };

        for (size_t i = 0; i < sizeof requests_ns / sizeof requests_ns[0]; i++) {
                struct budget b;

                budget_init(&b, 0);
                b.quantum_ns = QUANTUM_SHARED_NS;
                cr_assert_lt(part_of(&b, requests_ns[i], 10000), 334, "%llu ns",
                             (unsigned long long)requests_ns[i]);
        }
}

Test(budget, a_single_user_has_the_loop)
{
        struct budget b;

        budget_init(&b, 0);
        cr_assert_gt(part_of(&b, 80000, 10000), 900);
}

Test(budget, loop_time_that_was_not_used_is_not_saved_up)
{
        struct budget b;

        budget_init(&b, 0);
        cr_assert(budget_may_work(&b, UINT64_MAX / 2));
        budget_worked(&b, QUANTUM_ALONE_NS);
        cr_assert(!budget_may_work(&b, UINT64_MAX / 2));
        cr_assert(budget_may_work(&b, UINT64_MAX / 2 + 1));
}

Test(budget, one_frame_of_any_size_is_granted_and_more_while_memory_lasts)
{
        struct budget b;

        budget_init(&b, 0);
        cr_assert(budget_grant(&b, FRAMES_MAX));
        cr_assert(!budget_grant(&b, 1));
        b.frames = FRAMES_MAX / 2;
        cr_assert(budget_grant(&b, FRAMES_MAX / 2));
        cr_assert_eq(b.frames, FRAMES_MAX);
}

/* ---- connections ---- */

static uint32_t enter_all(struct users *users, uid_t uid)
{
        struct user *user;
        uint32_t n = 0;
        int r;

        while ((r = user_enter(users, uid, 0, &user)) == 0)
                n++;
        cr_assert(r == -EDQUOT || r == -EUSERS, "%d", r);
        return n;
}

static void leave_all(struct users *users)
{
        list_for_each (&users->all, item) {
                struct user *user = CONTAINER_OF(item, struct user, link);

                while (user->n_sessions)
                        user_leave(users, user);
        }
        users_sweep(users, 1);
        cr_assert(list_empty(&users->all));
        users_deinit(users);
}

Test(user, nobody_takes_the_places_of_others)
{
        struct users users;

        users_init(&users, 1024);
        cr_assert_eq(enter_all(&users, GREEDY), 480);
        cr_assert_eq(enter_all(&users, SECOND), 240);
        cr_assert_eq(enter_all(&users, THIRD), 120);
        cr_assert_eq(enter_all(&users, geteuid()), 1024 - 480 - 240 - 120);
        leave_all(&users);
}

Test(user, places_are_kept_for_root)
{
        struct users users;

        users_init(&users, 1024);
        for (uid_t uid = GREEDY; uid < GREEDY + 2000; uid++)
                enter_all(&users, uid);
        cr_assert_eq(enter_all(&users, 0), 64);
        leave_all(&users);
}

Test(user, a_limit_of_one_serves_who_comes)
{
        struct users users;

        users_init(&users, 1);
        cr_assert_eq(enter_all(&users, GREEDY), 1);
        cr_assert_eq(enter_all(&users, 0), 0);
        leave_all(&users);
}

Test(user, a_debt_outlasts_the_connections)
{
        struct users users;
        struct user *user;

        users_init(&users, 16);
        cr_assert_eq(user_enter(&users, GREEDY, 0, &user), 0);
        budget_worked(&user->budget, 10 * QUANTUM_ALONE_NS);
        user_leave(&users, user);
        users_sweep(&users, 1);
        cr_assert(!list_empty(&users.all));
        users_sweep(&users, 100);
        cr_assert(list_empty(&users.all));
        users_deinit(&users);
}

Test(user, the_loop_is_shared_with_users_whose_jobs_run)
{
        struct users users;
        struct user *user, *self;

        users_init(&users, 16);
        cr_assert_eq(user_enter(&users, GREEDY, 0, &user), 0);
        cr_assert_eq(user_enter(&users, geteuid(), 0, &self), 0);
        users_share(&users, true, SECOND);
        cr_assert_eq(user->budget.quantum_ns, QUANTUM_SHARED_NS);
        cr_assert_eq(self->budget.quantum_ns, QUANTUM_ALONE_NS);
        users_share(&users, true, GREEDY);
        cr_assert_eq(user->budget.quantum_ns, QUANTUM_ALONE_NS);
        users_share(&users, false, 0);
        cr_assert_eq(user->budget.quantum_ns, QUANTUM_ALONE_NS);
        leave_all(&users);
}

/* ---- surveys ---- */

static uint32_t ask_all(struct user *user, bool large)
{
        uint32_t n = 0, most;

        while (user_asks(user, large, &most))
                n++;
        return n;
}

Test(user, asks_all_nodes_a_few_questions_at_once)
{
        struct users users;
        struct user *user, *root;

        users_init(&users, 1024);
        cr_assert_eq(user_enter(&users, GREEDY, 0, &user), 0);
        cr_assert_eq(user_enter(&users, 0, 0, &root), 0);
        cr_assert_eq(ask_all(user, true), SURVEYS_LARGE);
        cr_assert_eq(ask_all(user, false), SURVEYS_MAX - SURVEYS_LARGE);
        cr_assert_eq(ask_all(root, false), SURVEYS_FACTOR * SURVEYS_MAX);
        user_answered(user, true);
        cr_assert_eq(ask_all(user, true), 1);
        while (user->surveys)
                user_answered(user, user->large > 0);
        while (root->surveys)
                user_answered(root, false);
        leave_all(&users);
}

/* Nodes still work on a question whose client has left, and on one that outlasts the server. */
Test(user, stays_while_a_question_is_in_flight)
{
        struct users users;
        struct user *user;
        uint32_t most;

        users_init(&users, 1024);
        cr_assert_eq(user_enter(&users, GREEDY, 0, &user), 0);
        cr_assert(user_asks(user, false, &most));
        user_leave(&users, user);
        users_sweep(&users, 1000);
        cr_assert_eq(user_find(&users, GREEDY), user);
        users_deinit(&users);
        user_answered(user, false);
}

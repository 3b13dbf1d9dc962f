/* Whose a client is: a forked process, and a second thread, keep out of the conversation. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "client/lib/client.h"
#include "fake.h"

/* What the child returns; 0 is good. */
static int child_ends(int (*child)(struct zero_client *c), struct zero_client *c)
{
        pid_t pid = fork();
        int status = -1;

        if (pid == 0)
                _exit(child(c));
        cr_assert_gt(pid, 0);
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        return status;
}

static unsigned open_descriptors(void)
{
        unsigned n = 0;

        for (int fd = 0; fd < 256; fd++)
                n += fcntl(fd, F_GETFD) >= 0;
        return n;
}

/* In the child, Criterion's assertions would end the wrong process. */
static bool refused(struct zero_client *c, int status)
{
        return status == ZERO_ECLOSED && strstr(zero_error(c), "forked") != NULL;
}

static int call_all(struct zero_client *c)
{
        struct zero_step_options step = { 0 };
        struct zero_result result;
        const void *view;
        double norm, values[1] = { 0 };
        void *grad;
        char *json;
        bool finite;

        MUST(refused(c, zero_fetch(c, FAKE_FP32, &view)));
        MUST(refused(c, zero_prefetch(c, FAKE_FP32)));
        MUST(refused(c, zero_release(c, FAKE_FP32, NULL)));
        MUST(refused(c, zero_grad(c, FAKE_FP32, &grad)));
        MUST(refused(c, zero_push(c, FAKE_FP32, NULL, true, NULL)));
        MUST(refused(c, zero_norm(c, &norm, &finite)));
        MUST(refused(c, zero_tensor_norms(c, ZERO_PLANE_MASTER, 0, 1, values)));
        MUST(refused(c, zero_all_reduce(c, "loss", ZERO_REDUCE_SUM, 1, values, values)));
        MUST(refused(c, zero_ahead(c, &step)));
        MUST(refused(c, zero_step(c, &step, &result)));
        MUST(refused(c, zero_put(c, 0, ZERO_PLANE_MASTER, 0, 0, values)));
        MUST(refused(c, zero_get(c, 0, ZERO_PLANE_MASTER, 0, 0, values)));
        MUST(refused(c, zero_attach(c, NULL, NULL)));
        MUST(refused(c, zero_finish(c, false)));
        MUST(refused(c, zero_query(c, "status", NULL, &json)));
        zero_interrupt(c);
        return 0;
}

static int close_it(struct zero_client *c)
{
        unsigned before = open_descriptors();

        zero_close(c);
        MUST(open_descriptors() < before);
        return 0;
}

static int interrupt_and_close(struct zero_client *c)
{
        zero_interrupt(c);
        zero_close(c);
        return 0;
}

static void end_now(int status, void *arg)
{
        _exit(status);
}

static int end_by_exit(struct zero_client *c)
{
        on_exit(end_now,
                NULL); /* runs last, before the leak checker: that finds no thread of the parent */
        zero_close_at_exit(c);
        exit(0);
}

static void answer_a_query(struct fake *f)
{
        fake_begin(f);
        fake_json(f, fake_expect(f, ZERO__REQUEST__BODY_QUERY)->seq, "{}");
        fake_expect(f, ZERO__REQUEST__BODY_BYE);
        MUST(fake_next(f) == NULL);
}

static void child_leaves_the_conversation_alone(int (*child)(struct zero_client *c))
{
        struct fake f = { 0 };
        struct zero_client *c = fake_open(&f, answer_a_query, 1);
        char *json = NULL;

        cr_assert_eq(child_ends(child, c), 0);
        cr_assert_eq(zero_query(c, "status", NULL, &json), ZERO_OK, "%s", zero_error(c));
        free(json);
        fake_close(&f, c);
}

Test(fork, every_call_is_refused_by_name)
{
        child_leaves_the_conversation_alone(call_all);
}

Test(fork, a_childs_close_says_nothing_for_its_parent)
{
        child_leaves_the_conversation_alone(close_it);
        child_leaves_the_conversation_alone(interrupt_and_close);
        child_leaves_the_conversation_alone(end_by_exit);
}

Test(fork, a_child_that_lives_on_does_not_keep_a_closed_connection_open)
{
        struct fake f = { 0 };
        struct zero_client *c = fake_open(&f, fake_only_begin, 1);
        pid_t child = fork();

        if (child == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                poll(NULL, 0, -1);
                _exit(0);
        }
        fake_close(&f, c); /* the script waits for the end of the connection */
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
}

/* ---- threads -------------------------------------------------------------------------- */

static atomic_int asked;

static void keep_a_query_waiting(struct fake *f)
{
        uint64_t seq;

        fake_begin(f);
        seq = fake_expect(f, ZERO__REQUEST__BODY_QUERY)->seq;
        asked = 1;
        while (asked == 1)
                poll(NULL, 0, 1);
        fake_json(f, seq, "{}");
        fake_expect(f, ZERO__REQUEST__BODY_BYE);
}

static void *ask(void *client)
{
        char *json = NULL;
        int r = zero_query(client, "status", NULL, &json);

        free(json);
        return r == ZERO_OK ? client : NULL;
}

Test(threads, a_second_one_is_named_and_the_first_goes_on)
{
        struct fake f = { 0 };
        struct zero_client *c = fake_open(&f, keep_a_query_waiting, 1);
        pthread_t first;
        double norm;
        bool finite;
        void *done;

        cr_assert_eq(pthread_create(&first, NULL, ask, c), 0);
        while (!asked || !c->waits) /* until then both would change the client */
                poll(NULL, 0, 1);
        cr_assert_eq(zero_release(c, FAKE_FP32, NULL), ZERO_EBUSY);
        cr_assert(strstr(zero_error(NULL), "another thread"), "%s", zero_error(NULL));
        cr_assert_eq(zero_norm(c, &norm, &finite), ZERO_EBUSY);
        asked = 2;
        pthread_join(first, &done);
        cr_assert(done != NULL);
        fake_close(&f, c);
}

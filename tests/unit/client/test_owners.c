/* zeroctl add-node, remove-node, takeover and wait, against a daemon that answers by a script. */
#include <criterion/criterion.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake.h"

/* One question and its answer.  status: a refusal with `text`, else `text` is JSON; NULL: the
 * daemon starts anew. */
struct line {
        const char *what, *argument;
        int status;
        const char *text;
};

static char output[65536];

#define SHOWS(text) cr_assert(strstr(output, text), "no '%s' in:\n%s", text, output)
#define HIDES(text) cr_assert(!strstr(output, text), "'%s' in:\n%s", text, output)

static void follow_script(struct fake *f)
{
        fake_hello(f);
        for (const struct line *l = f->data; l->what; l++) {
                const Zero__Query *q = fake_expect(f, ZERO__REQUEST__BODY_QUERY)->query;

                MUST(strcmp(q->what, l->what) == 0);
                MUST(strcmp(q->argument, l->argument ? l->argument : "") == 0);
                if (l->status) {
                        fake_refuse(f, f->request->seq, l->status, l->text);
                } else if (l->text) {
                        fake_json(f, f->request->seq, l->text);
                } else {
                        fake_hang_up(f);
                        fake_hello(f);
                }
        }
        fake_expect_end(f);
}

/* Both outputs go to `output`.  Returns the status of waitpid(). */
static int finish(FILE *p)
{
        size_t n = fread(output, 1, sizeof(output) - 1, p);

        output[n] = '\0';
        return pclose(p);
}

static int run(const char *arguments, const struct line *script)
{
        struct fake f = { .data = script };
        char command[512];
        int status;
        FILE *p;

        fake_start(&f, follow_script);
        snprintf(command, sizeof(command), "%s --socket %s %s 2>&1 </dev/null", ZEROCTL, f.path,
                 arguments);
        p = popen(command, "r");
        cr_assert(p);
        status = finish(p);
        fake_stop(&f);
        cr_assert(WIFEXITED(status), "%s", output);
        return WEXITSTATUS(status);
}

#define VIEW(epoch, owners)                                                         \
        "{\"epoch\":" #epoch ",\"owners\":[" owners "],\"nodes\":["                 \
        "{\"node\":\"a\",\"self\":true,\"up\":true},{\"node\":\"b\",\"up\":true}]," \
        "\"majority\":true,\"voter\":true}"
#define OVER(epoch) "{\"epoch\":" #epoch ",\"over\":true,\"jobs\":[],\"waiting\":[]}"
#define MOVING(bytes)                                                                             \
        "{\"epoch\":1,\"over\":false,\"waiting\":[],\"jobs\":[{\"job\":\"gpt\",\"bytes\":" #bytes \
        ",\"total\":100,\"waiting\":{\"for\":\"node b\",\"what\":\"to get its shards\"}}]}"
#define A "\"a\""
#define AB "\"a\",\"b\""

Test(owners, votes_that_are_waited_for_are_named)
{
        static const char alone[] =
                "{\"epoch\":1,\"owners\":[\"a\"],\"nodes\":["
                "{\"node\":\"a\",\"self\":true,\"up\":true},{\"node\":\"b\",\"up\":false},"
                "{\"node\":\"c\",\"up\":false}],\"majority\":false,\"voter\":true}";
        const struct line gone[] = { { "members", NULL, 0, alone },
                                     { "remove-node", "b", 0, alone },
                                     { 0 } };
        const struct line dead[] = { { "members", NULL, 0, alone },
                                     { "takeover", "b,c", 0, alone },
                                     { 0 } };
        const struct line one[] = { { "members", NULL, 0, alone },
                                    { "takeover", "c", 0, alone },
                                    { 0 } };

        cr_assert_eq(run("--no-wait remove-node b", gone), 0, "%s", output);
        SHOWS("waiting for the votes of b, c;");
        SHOWS("epoch 1, owners a\n");
        cr_assert_eq(run("--no-wait takeover --node-is-dead c", one), 0, "%s", output);
        SHOWS("waiting for the votes of b;");
        cr_assert_eq(run("--no-wait takeover --node-is-dead b,c", dead), 0, "%s", output);
        HIDES("waiting");
}

Test(owners, change_is_followed_until_jobs_have_moved)
{
        const struct line script[] = {
                { "members", NULL, 0, VIEW(0, A) },  { "add-node", "b", 0, VIEW(1, AB) },
                { "moves", NULL, 0, NULL },          { "moves", NULL, 0, OVER(0) },
                { "moves", NULL, 0, MOVING(10) },    { "moves", NULL, ZERO_EDEADLINE, "no answer" },
                { "moves", NULL, 0, MOVING(90) },    { "moves", NULL, 0, OVER(1) },
                { "members", NULL, 0, VIEW(1, AB) }, { 0 }
        };

        cr_assert_eq(run("add-node b", script), 0, "%s", output);
        SHOWS("epoch 1, owners a b\n");
        HIDES("zeroctl:");
}

Test(owners, busy_cluster_is_asked_again)
{
        const struct line script[] = { { "members", NULL, 0, VIEW(0, A) },
                                       { "add-node", "b", ZERO_EBUSY, "about to restart" },
                                       { "members", NULL, 0, VIEW(0, A) },
                                       { "add-node", "b", ZERO_ECONFLICT, "another came first" },
                                       { "members", NULL, 0, VIEW(1, A) },
                                       { "add-node", "b", 0, VIEW(2, AB) },
                                       { 0 } };

        cr_assert_eq(run("--no-wait add-node b", script), 0, "%s", output);
        SHOWS("about to restart; asking again");
        SHOWS("another came first; asking again");
        SHOWS("epoch 2, owners a b\n");
}

Test(owners, change_whose_answer_was_lost_is_found_made)
{
        const struct line script[] = { { "members", NULL, 0, VIEW(0, AB) },
                                       { "remove-node", "b", 0, NULL },
                                       { "members", NULL, 0, VIEW(1, A) },
                                       { 0 } };

        cr_assert_eq(run("--no-wait remove-node b", script), 0, "%s", output);
        SHOWS("epoch 1, owners a\n");
}

Test(owners, refusal_that_will_not_pass_is_not_asked_again)
{
        const struct line refused[] = { { "members", NULL, 0, VIEW(0, A) },
                                        { "add-node", "b", ZERO_EINVAL, "an owner already" },
                                        { 0 } };
        const struct line lives[] = { { "members", NULL, 0, VIEW(0, AB) },
                                      { "takeover", "b", ZERO_ECONFLICT, "it is not dead" },
                                      { 0 } };

        cr_assert_eq(run("add-node b", refused), 1);
        SHOWS("an owner already");
        cr_assert_eq(run("takeover --node-is-dead b", lives), 1);
        SHOWS("it is not dead");
}

Test(owners, other_owners_than_asked_for_are_a_failure)
{
        const struct line script[] = { { "members", NULL, 0, VIEW(0, A) },
                                       { "add-node", "b", 0, VIEW(1, AB) },
                                       { "moves", NULL, 0, OVER(2) },
                                       { "members", NULL, 0, VIEW(2, A) },
                                       { 0 } };

        cr_assert_eq(run("add-node b", script), 1, "%s", output);
        SHOWS("not as asked");
}

Test(owners, move_that_was_taken_back_says_why)
{
        static const char back[] =
                "{\"epoch\":2,\"over\":true,\"jobs\":[],\"waiting\":[],\"taken_back\":["
                "{\"epoch\":0,\"why\":\"long ago\"},{\"epoch\":1,\"why\":\"node b has no room\"}]}";
        const struct line script[] = { { "members", NULL, 0, VIEW(0, A) },
                                       { "add-node", "b", 0, VIEW(1, AB) },
                                       { "moves", NULL, 0, back },
                                       { "members", NULL, 0, VIEW(2, A) },
                                       { 0 } };

        cr_assert_eq(run("add-node b", script), 1, "%s", output);
        SHOWS("zeroctl: add-node: the move was taken back: node b has no room\n");
        HIDES("long ago");
}

/* Gives the same answer until zeroctl asks no more. */
static void move_for_ever(struct fake *f)
{
        fake_hello(f);
        fake_expect(f, ZERO__REQUEST__BODY_QUERY);
        fake_json(f, f->request->seq, VIEW(0, A));
        fake_expect(f, ZERO__REQUEST__BODY_QUERY);
        fake_json(f, f->request->seq, VIEW(1, AB));
        for (unsigned i = 0; fake_next(f) && f->request->body_case == ZERO__REQUEST__BODY_QUERY;
             i++) {
                fake_json(f, f->request->seq, MOVING(10));
                if (i == 3 && f->data)
                        MUST(kill(*(const pid_t *)f->data, SIGINT) == 0);
        }
}

Test(owners, move_that_stands_still_is_named_and_left)
{
        struct fake f = { 0 };
        char command[512];

        fake_start(&f, move_for_ever);
        snprintf(command, sizeof(command), "%s -s %s -t 1 add-node b 2>&1 </dev/null", ZEROCTL,
                 f.path);
        cr_assert_eq(WEXITSTATUS(finish(popen(command, "r"))), 1);
        fake_stop(&f);
        SHOWS("nothing has moved for 1 s: job gpt waits for node b, to get its shards");
}

Test(owners, interrupt_leaves_the_move_and_says_so)
{
        pid_t pid = 0;
        struct fake f = { .data = &pid };
        int ends[2], status;

        fake_start(&f, move_for_ever);
        cr_assert_eq(pipe(ends), 0);
        pid = fork();
        if (pid == 0) {
                dup2(ends[1], STDERR_FILENO);
                execl(ZEROCTL, "zeroctl", "-s", f.path, "add-node", "b", NULL);
                _exit(127);
        }
        close(ends[1]);
        output[fread(output, 1, sizeof(output) - 1, fdopen(ends[0], "r"))] = '\0';
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        fake_stop(&f);
        cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT, "%d: %s", status, output);
        SHOWS("jobs go on moving");
}

#define GPT(state, version)                                                                     \
        "{\"jobs\":[{\"job\":\"other\",\"state\":\"running\",\"version\":99},{\"job\":\"gpt\"," \
        "\"state\":\"" state "\",\"version\":" version                                          \
        ",\"waiting\":[{\"for\":\"rank 1\",\"what\":"                                           \
        "\"to attach\"}]}]}"
#define NO_JOB "{\"jobs\":[]}"

Test(wait, ends_when_all_ranks_are_attached)
{
        static const struct line script[] = { { "jobs", NULL, 0, NO_JOB },
                                              { "jobs", NULL, 0, GPT("incomplete", "0") },
                                              { "jobs", NULL, 0, GPT("running", "0") },
                                              { NULL } };

        cr_assert_eq(run("wait gpt", script), 0, "%s", output);
        SHOWS("gpt  running");
        HIDES("other");
}

Test(wait, goes_on_when_the_daemon_restarts)
{
        static const struct line script[] = { { "jobs", NULL, 0, GPT("running", "7") },
                                              { "jobs", NULL, 0, NULL },
                                              { "jobs", NULL, 0, GPT("incomplete", "8") },
                                              { NULL } };

        cr_assert_eq(run("wait gpt --step 8", script), 0, "%s", output);
        SHOWS("gpt  incomplete");
}

/* Answers until zeroctl leaves. */
static void jobs_for_ever(struct fake *f)
{
        fake_hello(f);
        while (fake_next(f) && f->request->body_case == ZERO__REQUEST__BODY_QUERY)
                fake_json(f, f->request->seq, f->data);
}

Test(wait, deadline_says_where_the_job_stands_and_for_what)
{
        static const struct {
                const char *jobs, *says;
        } cases[] = {
                { GPT("incomplete", "5"),
                  "after 1 s job 'gpt' is incomplete at step 5, and waits for rank 1: to attach" },
                { NO_JOB, "for 1 s there was no job 'gpt'" },
        };

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct fake f = { .data = cases[i].jobs };
                char command[512];

                fake_start(&f, jobs_for_ever);
                snprintf(command, sizeof(command), "%s -s %s -t 1 wait gpt 2>&1 </dev/null",
                         ZEROCTL, f.path);
                cr_assert_eq(WEXITSTATUS(finish(popen(command, "r"))), 1);
                fake_stop(&f);
                SHOWS(cases[i].says);
        }
}

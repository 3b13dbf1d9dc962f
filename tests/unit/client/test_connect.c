/* Connecting and greeting, and a daemon that does not behave. */
#include <criterion/criterion.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "fake.h"

static int try_connect(const struct fake *f)
{
        struct zero_options options = fake_options(f);
        struct zero_client *c = NULL;
        int r = zero_connect(&options, &c);

        cr_assert_eq(c != NULL, r == ZERO_OK);
        zero_close(c);
        return r;
}

static int run_script(void (*script)(struct fake *fake))
{
        struct fake f = { 0 };
        int r;

        fake_start(&f, script);
        r = try_connect(&f);
        fake_stop(&f);
        return r;
}

Test(connect, no_daemon_says_what_to_do)
{
        struct zero_options options = { .socket = "/nowhere/zerod.sock", .rank = ZERO_OBSERVER };
        struct zero_client *c;

        cr_assert_eq(zero_connect(&options, &c), ZERO_ECLOSED);
        cr_assert(strstr(zero_error(NULL), "/nowhere/zerod.sock"));
        cr_assert(strstr(zero_error(NULL), "is zerod running?"));
}

Test(connect, socket_comes_from_the_environment)
{
        struct zero_options options = { .rank = ZERO_OBSERVER };
        struct zero_client *c;

        setenv("ZEROD_SOCKET", "/elsewhere/sock", 1);
        cr_assert_neq(zero_connect(&options, &c), ZERO_OK);
        cr_assert(strstr(zero_error(NULL), "/elsewhere/sock"));
}

Test(connect, own_daemon_comes_before_the_systems)
{
        struct fake f = { 0 };
        struct zero_options options = { .rank = ZERO_OBSERVER, .timeout_ms = 5000 };
        struct zero_client *c = NULL;
        char link[128];

        unsetenv("ZEROD_SOCKET");
        fake_start(&f, fake_hello);
        setenv("XDG_RUNTIME_DIR", f.directory, 1);
        snprintf(link, sizeof(link), "%s/zerod.sock", f.directory);
        cr_assert_eq(symlink(f.path, link), 0);
        cr_assert_eq(zero_connect(&options, &c), ZERO_OK, "%s", zero_error(NULL));
        unlink(link);
        zero_close(c);
        fake_stop(&f);
}

Test(connect, without_an_own_daemon_the_systems_is_asked)
{
        struct zero_options options = { .rank = ZERO_OBSERVER };
        struct zero_client *c = NULL;

        unsetenv("ZEROD_SOCKET");
        setenv("XDG_RUNTIME_DIR", "/nowhere", 1);
        if (zero_connect(&options, &c) == ZERO_OK)
                zero_close(c); /* this machine has one */
        else
                cr_assert(strstr(zero_error(NULL), "/run/zerod/zerod.sock"));
}

Test(connect, bad_options_are_refused_before_connecting)
{
        struct fake f = { .path = "/nowhere" };
        struct zero_options options = fake_options(&f);
        struct zero_client *c;
        char path[200];

        cr_assert_eq(zero_connect(NULL, &c), ZERO_EINVAL);
        options.job = "no/slashes";
        cr_assert_eq(zero_connect(&options, &c), ZERO_EINVAL);
        options.job = "";
        cr_assert_eq(zero_connect(&options, &c), ZERO_EINVAL);
        options = fake_options(&f);
        options.rank = 2;
        cr_assert_eq(zero_connect(&options, &c), ZERO_ERANK);
        options = fake_options(&f);
        options.rank = 1;
        options.world_size = 0; /* which the environment tells for rank 0 */
        cr_assert_eq(zero_connect(&options, &c), ZERO_ERANK);
        options = fake_options(&f);
        memset(path, 'x', sizeof(path));
        path[sizeof(path) - 1] = '\0';
        options.socket = path;
        cr_assert_eq(zero_connect(&options, &c), ZERO_EINVAL);
}

static void check_hello(struct fake *f)
{
        const Zero__Hello *h;

        fake_hello(f);
        h = f->request->hello;
        MUST(f->request->seq == 1u);
        MUST(h->protocol == ZERO__HELLO__PROTOCOL__VERSION);
        MUST(strcmp(h->job, "job") == 0);
        MUST(h->world_size == 2u);
        MUST(h->local_world_size == 2u);
        MUST(h->timeout_ms == 5000u);
        fake_expect_end(f);
}

Test(connect, greets_with_what_it_was_told)
{
        cr_assert_eq(run_script(check_hello), ZERO_OK);
}

static void refuse_hello(struct fake *f)
{
        fake_accept(f);
        fake_expect(f, ZERO__REQUEST__BODY_HELLO);
        fake_refuse(f, 1, ZERO_EPERM, "job 'job' belongs to user 12");
        fake_expect_end(f);
}

Test(connect, refusal_is_passed_on)
{
        cr_assert_eq(run_script(refuse_hello), ZERO_EPERM);
        cr_assert_str_eq(zero_error(NULL), "job 'job' belongs to user 12");
}

static void other_protocol(struct fake *f)
{
        Zero__HelloReply hello = ZERO__HELLO_REPLY__INIT;
        Zero__Reply reply = ZERO__REPLY__INIT;

        fake_accept(f);
        fake_expect(f, ZERO__REQUEST__BODY_HELLO);
        hello.protocol = 1;
        reply.seq = 1;
        reply.body_case = ZERO__REPLY__BODY_HELLO;
        reply.hello = &hello;
        fake_reply(f, &reply);
        fake_expect_end(f);
}

Test(connect, other_protocol_version_is_refused)
{
        cr_assert_eq(run_script(other_protocol), ZERO_EVERSION);
}

static void last_words(struct fake *f)
{
        fake_accept(f);
        fake_refuse(f, 0, ZERO_EPROTO, "your frame was garbage");
        fake_hang_up(f);
}

Test(connect, last_words_of_the_daemon_are_the_cause)
{
        cr_assert_eq(run_script(last_words), ZERO_ECLOSED);
        cr_assert(strstr(zero_error(NULL), "your frame was garbage"));
}

static void hang_up(struct fake *f)
{
        fake_accept(f);
        fake_expect(f, ZERO__REQUEST__BODY_HELLO);
        fake_hang_up(f);
}

Test(connect, end_of_file_closes)
{
        cr_assert_eq(run_script(hang_up), ZERO_ECLOSED);
        cr_assert(strstr(zero_error(NULL), "zerod ended the connection"));
}

static void truncated(struct fake *f)
{
        fake_accept(f);
        fake_expect(f, ZERO__REQUEST__BODY_HELLO);
        fake_send(f, "\x40\0\0\0half", 8);
        fake_hang_up(f);
}

Test(connect, truncated_frame_closes)
{
        cr_assert_eq(run_script(truncated), ZERO_ECLOSED);
}

static void oversized(struct fake *f)
{
        fake_accept(f);
        fake_expect(f, ZERO__REQUEST__BODY_HELLO);
        fake_send(f, "\xff\xff\xff\xff", 4);
        fake_expect_end(f);
}

Test(connect, oversized_frame_closes)
{
        cr_assert_eq(run_script(oversized), ZERO_ECLOSED);
        cr_assert(strstr(zero_error(NULL), "size limit"));
}

static void garbage(struct fake *f)
{
        fake_accept(f);
        fake_expect(f, ZERO__REQUEST__BODY_HELLO);
        fake_send(f, "\x04\0\0\0\xff\xff\xff\xff", 8);
        fake_expect_end(f);
}

Test(connect, garbage_closes)
{
        cr_assert_eq(run_script(garbage), ZERO_ECLOSED);
        cr_assert(strstr(zero_error(NULL), "decoded"));
}

static void unasked(struct fake *f)
{
        fake_accept(f);
        fake_expect(f, ZERO__REQUEST__BODY_HELLO);
        fake_ok(f, 99);
        fake_expect_end(f);
}

Test(connect, answer_to_nothing_closes)
{
        cr_assert_eq(run_script(unasked), ZERO_ECLOSED);
        cr_assert(strstr(zero_error(NULL), "request 99"));
}

static void wrong_body(struct fake *f)
{
        fake_accept(f);
        fake_expect(f, ZERO__REQUEST__BODY_HELLO);
        fake_json(f, 1, "{}");
        fake_expect_end(f);
}

Test(connect, answer_of_another_kind_closes)
{
        cr_assert_eq(run_script(wrong_body), ZERO_ECLOSED);
}

static void unknown_status(struct fake *f)
{
        fake_accept(f);
        fake_expect(f, ZERO__REQUEST__BODY_HELLO);
        fake_refuse(f, 1, 4000000, "from the future");
        fake_expect_end(f);
}

Test(connect, unknown_status_is_an_internal_error)
{
        cr_assert_eq(run_script(unknown_status), ZERO_EINTERNAL);
        cr_assert(strstr(zero_error(NULL), "from the future"));
}

static void answer_query_in_pieces(struct fake *f)
{
        Zero__QueryReply query = ZERO__QUERY_REPLY__INIT;
        Zero__Reply reply = ZERO__REPLY__INIT;
        uint8_t frame[256];
        size_t size;

        fake_hello(f);
        reply.seq = fake_expect(f, ZERO__REQUEST__BODY_QUERY)->seq;
        query.json = "{\"a\": [1, 2, 3]}";
        reply.body_case = ZERO__REPLY__BODY_QUERY;
        reply.query = &query;
        size = zero__reply__pack(&reply, frame + FRAME_HEADER);
        frame_write_header(frame, (uint32_t)size);
        for (size_t i = 0; i < FRAME_HEADER + size; i++)
                fake_send(f, frame + i, 1);
        fake_expect_end(f);
}

Test(connect, answer_may_come_byte_by_byte)
{
        struct fake f = { 0 };
        struct zero_client *c;
        char *json = NULL;

        fake_start(&f, answer_query_in_pieces);
        c = fake_connect(&f);
        cr_assert_eq(zero_query(c, "status", NULL, &json), ZERO_OK);
        cr_assert_str_eq(json, "{\"a\": [1, 2, 3]}");
        free(json);
        zero_close(c);
        fake_stop(&f);
}

static void answer_large_query(struct fake *f)
{
        size_t n = 4 << 20;
        char *json = malloc(n + 1);

        memset(json, ' ', n);
        json[n] = '\0';
        fake_hello(f);
        fake_json(f, fake_expect(f, ZERO__REQUEST__BODY_QUERY)->seq, json);
        free(json);
        fake_expect_end(f);
}

Test(connect, large_answer_arrives_whole)
{
        struct fake f = { 0 };
        struct zero_client *c;
        char *json = NULL;

        fake_start(&f, answer_large_query);
        c = fake_connect(&f);
        cr_assert_eq(zero_query(c, "shards", "job", &json), ZERO_OK);
        cr_assert_eq(strlen(json), (size_t)4 << 20);
        free(json);
        zero_close(c);
        fake_stop(&f);
}

static void fall_silent(struct fake *f)
{
        fake_hello(f);
        fake_expect(f, ZERO__REQUEST__BODY_QUERY);
        fake_expect_end(f);
}

Test(connect, silent_daemon_is_given_up_after_the_grace)
{
        struct fake f = { 0 };
        struct zero_options options;
        struct zero_client *c = NULL;
        char *json = NULL;

        fake_start(&f, fall_silent);
        options = fake_options(&f);
        options.timeout_ms = 1;
        cr_assert_eq(zero_connect(&options, &c), ZERO_OK);
        cr_assert_eq(zero_query(c, "status", NULL, &json), ZERO_EDEADLINE);
        cr_assert(strstr(zero_error(c), "did not answer"));
        cr_assert_eq(zero_query(c, "status", NULL, &json), ZERO_ECLOSED);
        cr_assert(strstr(zero_error(c), "did not answer"));
        zero_close(c);
        fake_stop(&f);
}

/* A daemon whose calls take 1 ms by default, and that goes on waiting all the same. */
static void wait_on(struct fake *f)
{
        Zero__HelloReply hello = ZERO__HELLO_REPLY__INIT;
        Zero__Waiting waiting = ZERO__WAITING__INIT;
        Zero__Reply reply = ZERO__REPLY__INIT;
        Zero__Request *request;

        fake_accept(f);
        request = fake_expect(f, ZERO__REQUEST__BODY_HELLO);
        MUST(request->hello->timeout_ms == 0);
        hello.protocol = request->hello->protocol;
        hello.timeout_ms = 1;
        reply.seq = request->seq;
        reply.body_case = ZERO__REPLY__BODY_HELLO;
        reply.hello = &hello;
        fake_reply(f, &reply);
        waiting.ms = 600000;
        reply.seq = fake_expect(f, ZERO__REQUEST__BODY_QUERY)->seq;
        reply.body_case = ZERO__REPLY__BODY_WAITING;
        reply.waiting = &waiting;
        fake_reply(f, &reply);
        poll(NULL, 0, 2500); /* beyond 1 ms and the grace */
        fake_json(f, reply.seq, "{}");
        fake_expect(f, ZERO__REQUEST__BODY_QUERY);
        fake_expect_end(f);
}

Test(connect, daemon_that_waits_is_waited_for_without_a_timeout)
{
        struct fake f = { 0 };
        struct zero_options options;
        struct zero_client *c = NULL;
        char *json = NULL;

        fake_start(&f, wait_on);
        options = fake_options(&f);
        options.timeout_ms = 0;
        cr_assert_eq(zero_connect(&options, &c), ZERO_OK);
        cr_assert_eq(zero_query(c, "status", NULL, &json), ZERO_OK, "%s", zero_error(c));
        free(json);
        cr_assert_eq(zero_query(c, "status", NULL, &json), ZERO_EDEADLINE, "it was silent");
        zero_close(c);
        fake_stop(&f);
}

static void die_after_hello(struct fake *f)
{
        fake_hello(f);
        fake_hang_up(f);
}

Test(connect, writing_to_a_dead_daemon_is_an_error_and_stays_one)
{
        struct fake f = { 0 };
        struct zero_client *c;
        char *json = NULL;

        fake_start(&f, die_after_hello);
        c = fake_connect(&f);
        fake_stop(&f);
        for (int i = 0; i < 3; i++)
                cr_assert_eq(zero_query(c, "status", NULL, &json), ZERO_ECLOSED);
        zero_close(c);
}

Test(connect, a_status_has_a_name_and_a_text)
{
        cr_assert(strstr(zero_status_name(ZERO_ELAYOUT), "ELAYOUT"));
        cr_assert_str_eq(zero_status_text(ZERO_ELAYOUT), "layouts differ");
}

Test(connect, closing_nothing_is_allowed)
{
        zero_close(NULL);
        zero_layout_free(NULL);
}

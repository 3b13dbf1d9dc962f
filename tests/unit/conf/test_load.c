/* All sources together: their order, and what a mistake in each says. */
#include <criterion/criterion.h>
#include <criterion/redirect.h>

#include "daemon/floor/conf/conf.h"
#include "files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct conf *conf;
static struct fault fault;

static int load(int n, const char *const *arguments)
{
        char *argv[16] = { "zerod" };

        for (int i = 0; i < n; i++)
                argv[i + 1] = (char *)arguments[i];
        conf_free(conf);
        conf = NULL;
        return conf_load(n + 1, argv, &conf, &fault);
}

#define LOAD(...)                                                      \
        load(sizeof((const char *[]){ __VA_ARGS__ }) / sizeof(char *), \
             (const char *[]){ __VA_ARGS__ })
#define REFUSED(part, ...)                                                                   \
        do {                                                                                 \
                int refused_ = LOAD(__VA_ARGS__);                                            \
                cr_assert(refused_ > 0 && refused_ != CONF_DONE);                            \
                cr_assert_null(conf);                                                        \
                cr_assert(strstr(fault.text, part), "'%s' is not in: %s", part, fault.text); \
        } while (0)

static void teardown(void)
{
        conf_free(conf);
        files_teardown();
}

TestSuite(load, .init = files_setup, .fini = teardown);

struct wanted {
        const char *name;
        char value[256], source[256];
};

static void match(void *arg, const char *name, const char *value, const char *source,
                  const char *doc)
{
        struct wanted *w = arg;

        cr_assert(doc[0]);
        if (strcmp(w->name, name) != 0)
                return;
        snprintf(w->value, sizeof(w->value), "%s", value);
        snprintf(w->source, sizeof(w->source), "%s", source);
}

static struct wanted shown(const char *name)
{
        struct wanted w = { .name = name };

        conf_each(conf, match, &w);
        return w;
}

Test(load, later_sources_win)
{
        const char *file = files_text("a", "[zerod]\nthreads = 1\njob_limit = 1\nwindow = 1K\n");
        char source[256];

        setenv("ZEROD_JOB_LIMIT", "2", 1);
        setenv("ZEROD_WINDOW", "2K", 1);
        cr_assert_eq(LOAD("--config", file, "--window=3072"), 0, "%s", fault.text);
        cr_assert_eq(conf->threads, 1);
        cr_assert_eq(conf->job_limit, 2);
        cr_assert_eq(conf->window, 3072);
        snprintf(source, sizeof(source), "file %s:2", file);
        cr_assert_str_eq(shown("threads").source, source);
        cr_assert_str_eq(shown("job_limit").source, "environment ZEROD_JOB_LIMIT");
        cr_assert_str_eq(shown("window").source, "command line");
        cr_assert_str_eq(shown("window").value, "3K");
        cr_assert_str_eq(shown("chunk").source, "default");
}

Test(load, both_ways_to_write_an_argument)
{
        cr_assert_eq(LOAD("--key-file=/a=b", "--state_dir", "--x"), 0);
        cr_assert_str_eq(conf->key_file, "/a=b");
        cr_assert_str_eq(conf->state_dir, "--x");
}

Test(load, the_last_argument_counts)
{
        cr_assert_eq(LOAD("--threads=1", "--threads=2"), 0);
        cr_assert_eq(conf->threads, 2);
}

Test(load, wrong_arguments)
{
        REFUSED("--threads", "--thread=1");
        REFUSED("'--thread=1'", "--thread=1");
        REFUSED("--key_file", "--key-fill", "x");
        REFUSED("needs a value", "--threads");
        REFUSED("needs a value", "--config");
        REFUSED("unexpected argument 'start'", "start");
        REFUSED("unexpected argument '-h'", "-h");
        REFUSED("unexpected argument ''", "");
        REFUSED("takes no value", "--check=1");
        REFUSED("command line: threads = 'x'", "--threads=x");
        REFUSED("UTF-8", "--node=\xff");
        REFUSED("unknown option '?'", "--\xff");
}

Test(load, wrong_variables)
{
        setenv("ZEROD_THREADS", "x", 1);
        REFUSED("environment: threads = 'x'", "--node=a");
        unsetenv("ZEROD_THREADS");
        setenv("ZEROD_JOB", "a-client's", 1);
        setenv("ZEROD_LIBRARY", "/a/client's", 1);
        setenv("ZEROD_THREAD", "1", 1);
        REFUSED("unknown variable ZEROD_THREAD; the nearest key is threads", "--node=a");
        unsetenv("ZEROD_THREAD");
        setenv("ZEROD_threads", "1", 1);
        REFUSED("unknown variable ZEROD_threads", "--node=a");
}

Test(load, a_named_file_must_be_there)
{
        REFUSED("/nonexistent/z.conf", "--config=/nonexistent/z.conf");
        setenv("ZEROD_CONFIG", "/nonexistent/y.conf", 1);
        REFUSED("/nonexistent/y.conf", "--node=a");
        cr_assert_eq(LOAD("--config", files_text("a", "[zerod]\n")), 0);
}

Test(load, a_directory_is_no_file)
{
        REFUSED("/tmp: ", "--config=/tmp");
}

Test(load, the_file_is_named_in_its_faults)
{
        REFUSED("a.conf:2: unknown key", "--config", files_text("a.conf", "[zerod]\nx = 1\n"));
}

Test(load, places_of_a_user)
{
        setenv("XDG_RUNTIME_DIR", "/run/user/1", 1);
        if (geteuid() == 0)
                cr_assert_eq(seteuid(65534), 0);
        cr_assert_eq(LOAD("--node=a"), 0, "%s", fault.text);
        cr_assert_str_eq(conf->socket, "/run/user/1/zerod.sock");
        cr_assert_str_eq(conf->state_dir, "/run/user/1/zerod");
        cr_assert_str_eq(shown("socket").source, "default");
        if (getuid() == 0)
                cr_assert_eq(seteuid(0), 0);
}

Test(load, places_of_root)
{
        if (geteuid() != 0) {
                teardown(); /* Criterion does not, after a test that is skipped */
                cr_skip_test("needs root");
        }
        setenv("XDG_RUNTIME_DIR", "/run/user/0", 1);
        cr_assert_eq(LOAD("--node=a"), 0);
        cr_assert_str_eq(conf->socket, "/run/zerod/zerod.sock");
        cr_assert_str_eq(conf->state_dir, "/dev/shm/zerod");
}

Test(load, places_of_a_service)
{
        unsetenv("XDG_RUNTIME_DIR");
        cr_assert_eq(LOAD("--node=a"), 0);
        cr_assert_str_eq(conf->socket, "/run/zerod/zerod.sock");
        cr_assert_str_eq(conf->state_dir, "/dev/shm/zerod");
}

Test(load, a_nodes_votes_lie_where_the_service_manager_says)
{
        setenv("STATE_DIRECTORY", "/var/lib/private/z", 1);
        cr_assert_eq(LOAD("--node=a"), 0);
        cr_assert_str_eq(conf->membership_dir, "/var/lib/private/z");
        cr_assert_eq(LOAD("--node=a", "--membership-dir=/v"), 0);
        cr_assert_str_eq(conf->membership_dir, "/v");
}

Test(load, traces_lie_where_the_service_manager_says)
{
        unsetenv("LOGS_DIRECTORY");
        cr_assert_eq(LOAD("--node=a"), 0);
        cr_assert_str_eq(conf->log_dir, "");
        setenv("LOGS_DIRECTORY", "/var/log/zerod", 1);
        cr_assert_eq(LOAD("--node=a"), 0);
        cr_assert_str_eq(conf->log_dir, "/var/log/zerod");
        cr_assert_eq(LOAD("--node=a", "--log-dir=/l"), 0);
        cr_assert_str_eq(conf->log_dir, "/l");
}

Test(load, a_users_votes_lie_at_home)
{
        unsetenv("STATE_DIRECTORY");
        unsetenv("XDG_STATE_HOME");
        setenv("HOME", "/home/u", 1);
        if (geteuid() == 0) {
                cr_assert_eq(LOAD("--node=a"), 0);
                cr_assert_str_eq(conf->membership_dir, "/var/lib/zerod");
                cr_assert_eq(seteuid(65534), 0);
        }
        cr_assert_eq(LOAD("--node=a"), 0);
        cr_assert_str_eq(conf->membership_dir, "/home/u/.local/state/zerod");
        setenv("XDG_STATE_HOME", "/home/u/s", 1);
        cr_assert_eq(LOAD("--node=a"), 0);
        cr_assert_str_eq(conf->membership_dir, "/home/u/s/zerod");
        if (getuid() == 0)
                cr_assert_eq(seteuid(0), 0);
}

static const char *printed(FILE *out)
{
        static char text[32768];

        fflush(stdout);
        text[fread(text, 1, sizeof(text) - 1, out)] = '\0';
        return text;
}

Test(load, help_shows_every_option_in_80_columns)
{
        cr_redirect_stdout();
        cr_assert_eq(LOAD("--help"), CONF_DONE);
        const char *text = printed(cr_get_redirected_stdout());
        for (const char *p = text; *p; p += strcspn(p, "\n") + 1)
                cr_assert_leq(strcspn(p, "\n"), 80);
        cr_assert(strstr(text, "--key-file=FILE\n"));
        cr_assert(strstr(text, "--delay-ms=N\n"));
        cr_assert(strstr(text, "default 10000)\n"));
}

Test(load, version)
{
        cr_redirect_stdout();
        cr_assert_eq(LOAD("--version"), CONF_DONE);
        cr_assert_str_eq(printed(cr_get_redirected_stdout()), "zerod " ZEROD_VERSION "\n");
}

Test(load, check_prints_a_configuration_that_reads_the_same)
{
        static char text[40000];

        cr_redirect_stdout();
        cr_assert_eq(LOAD("--check", "--memory-limit=64M", "--node=x"), CONF_DONE);
        cr_assert_null(conf);
        snprintf(text, sizeof(text), "[zerod]\n%s", printed(cr_get_redirected_stdout()));
        cr_assert_eq(conf_parse("check", text, strlen(text), &conf, &fault), 0, "%s", fault.text);
        cr_assert_eq(conf->memory_limit, 64 << 20);
        cr_assert_str_eq(conf->node, "x");
}

Test(load, check_finds_what_a_start_would)
{
        REFUSED("key_file", "--check", "--peers=a=h:1 b=h:2", "--node=a");
        REFUSED("nobody is here", "--check", "--config",
                files_text("a", "[zerod]\nnode = nobody is here\n"));
}

/* ---- options of a running daemon ---- */

struct changes {
        char text[1024];
};

static void note(void *arg, const char *name, const char *was, const char *is, bool live)
{
        struct changes *c = arg;
        size_t n = strlen(c->text);

        snprintf(c->text + n, sizeof(c->text) - n, "%s %s>%s %s;", name, was, is,
                 live ? "live" : "start");
}

/* Loads from a file and an argument, which are there as long as conf. */
static void running(const char *text)
{
        static char *argv[] = { "zerod", NULL, "--wait-ms=70000", NULL };
        static char option[512];

        snprintf(option, sizeof(option), "--config=%s", files_text("live.conf", text));
        argv[1] = option;
        cr_assert_eq(conf_load(3, argv, &conf, &fault), 0, "%s", fault.text);
}

Test(load, a_reload_changes_live_options_and_tells_of_the_others)
{
        struct changes c = { "" };

        running("[zerod]\njob_limit = 3\nthreads = 2\n");
        files_text("live.conf",
                   "[zerod]\njob_limit = 5\nthreads = 4\nlog_level = debug\nwait_ms = 9\n");
        cr_assert_eq(conf_load_again(conf, note, &c, &fault), 0);
        cr_assert_str_eq(c.text, "job_limit 3>5 live;threads 2>4 start;log_level info>debug live;");
        cr_assert_eq(conf->job_limit, 5);
        cr_assert_eq(conf->threads, 2);
        cr_assert_eq(conf->wait_ms, 70000); /* the command line's */
        cr_assert_str_eq(conf->log_level, "debug");
}

Test(load, a_reload_of_a_bad_file_changes_nothing)
{
        struct changes c = { "" };

        running("[zerod]\njob_limit = 3\n");
        files_text("live.conf", "[zerod]\njob_limit = 5\njob_limitt = 5\n");
        cr_assert_neq(conf_load_again(conf, note, &c, &fault), 0);
        cr_assert(strstr(fault.text, "job_limitt"), "%s", fault.text);
        cr_assert_str_eq(c.text, "");
        cr_assert_eq(conf->job_limit, 3);
}

Test(load, what_was_set_lasts_until_a_reload)
{
        struct wanted w = { "job_limit", "", "" };
        struct changes c = { "" };

        running("[zerod]\njob_limit = 3\n");
        cr_assert_eq(conf_set(conf, "job_limit", "7", &fault), 0);
        cr_assert_eq(conf->job_limit, 7);
        conf_each(conf, match, &w);
        cr_assert_str_eq(w.value, "7");
        cr_assert_str_eq(w.source, "zeroctl set");
        cr_assert_eq(conf_load_again(conf, note, &c, &fault), 0);
        cr_assert_str_eq(c.text, "job_limit 7>3 live;");
        cr_assert_eq(conf->job_limit, 3);
}

Test(load, what_cannot_be_set_is_refused)
{
        static const struct {
                const char *name, *value, *part;
        } cases[] = { { "threads", "2", "threads takes effect when zerod starts" },
                      { "job_limt", "2", "did you mean job_limit?" },
                      { "job_limit", "0", "must be 1 to 4096" },
                      { "job_limit", "", "must be 1 to 4096" },
                      { "log_level", "loud", "must be one of" } };

        running("[zerod]\njob_limit = 3\n");
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                cr_assert_eq(conf_set(conf, cases[i].name, cases[i].value, &fault), ZERO_EINVAL);
                cr_assert(strstr(fault.text, cases[i].part), "'%s' is not in: %s", cases[i].part,
                          fault.text);
        }
        cr_assert_eq(conf->job_limit, 3);
}

/* zeroctl as a program: its output and exit status for given answers. */
#include <criterion/criterion.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake.h"

struct answer {
        const char *what, *argument, *json;
        int again; /* how often zeroctl asks the same once more */
};

static char output[65536];

static void answer_query(struct fake *f)
{
        const struct answer *a = f->data;
        const Zero__Query *q;

        fake_hello(f);
        for (int i = 0; i <= a->again; i++) {
                q = fake_expect(f, ZERO__REQUEST__BODY_QUERY)->query;
                MUST(strcmp(q->what, a->what) == 0);
                MUST(strcmp(q->argument, a->argument ? a->argument : "") == 0);
                if (a->json)
                        fake_json(f, f->request->seq, a->json);
                else
                        fake_refuse(f, f->request->seq, ZERO_ENOJOB, "no job \033[31m'x'");
        }
        fake_expect_end(f);
}

/* Answers one question after another; the last answer has no question.  NULL: a refusal. */
static void answer_queries(struct fake *f)
{
        const Zero__Query *q;

        fake_hello(f);
        for (const struct answer *a = f->data; a->what; a++) {
                q = fake_expect(f, ZERO__REQUEST__BODY_QUERY)->query;
                MUST(strcmp(q->what, a->what) == 0);
                if (a->json)
                        fake_json(f, f->request->seq, a->json);
                else
                        fake_refuse(f, f->request->seq, ZERO_ENOMEM, "out of memory");
        }
        fake_expect_end(f);
}

/* Runs zeroctl; both its outputs go to `output`.  The exit code. */
static int run(const char *arguments)
{
        char command[512];
        size_t n;
        FILE *p;
        int status;

        snprintf(command, sizeof(command), "%s %s 2>&1 </dev/null", ZEROCTL, arguments);
        p = popen(command, "r");
        cr_assert(p);
        n = fread(output, 1, sizeof(output) - 1, p);
        output[n] = '\0';
        status = pclose(p);
        cr_assert(WIFEXITED(status), "%s", output);
        return WEXITSTATUS(status);
}

static int ask_of(const char *arguments, const struct answer *answer,
                  void (*script)(struct fake *f))
{
        struct fake f = { .data = answer };
        char with_socket[256];
        int r;

        fake_start(&f, script);
        snprintf(with_socket, sizeof(with_socket), "--socket %s %s", f.path, arguments);
        r = run(with_socket);
        fake_stop(&f);
        return r;
}

static int ask(const char *arguments, const struct answer *answer)
{
        return ask_of(arguments, answer, answer_query);
}

#define SHOWS(text) cr_assert(strstr(output, text), "no '%s' in:\n%s", text, output)
#define HIDES(text) cr_assert(!strstr(output, text), "'%s' in:\n%s", text, output)

#define BYTES "{\"gather\":1048576,\"reduce\":2048,\"state\":0,\"control\":12}"
#define JOB                                                                                        \
        "{\"job\":\"gpt\",\"uid\":1000,\"coordinator\":\"a\",\"world_size\":2,"                    \
        "\"ranks\":[{\"rank\":0,\"node\":\"a\",\"attached\":true},"                                \
        "{\"rank\":1,\"node\":null,\"attached\":false}],\"state\":\"incomplete\",\"version\":12,"  \
        "\"attempt\":13,\"steps_per_s\":2.5,\"grad_norm\":0.75,\"loss_scale\":65536,"              \
        "\"skipped\":1,\"parameters\":124439808,\"groups\":14,\"owners\":[\"a\",\"b\"],"           \
        "\"waiting\":[{\"for\":\"rank 1 on b\",\"what\":\"push of group 'h.3' (11 of 14 pushed)\"" \
        ",\"since_s\":3.2}],\"gather\":{\"window_bytes\":67108864,\"place\":\"GPU 1\","            \
        "\"slots\":6,\"hits\":30,"                                                                 \
        "\"misses\":10,\"elements_received\":5000000},\"reduce\":{\"elements_sent\":4000},"        \
        "\"planes\":{\"master\":1073741824,\"exp_avg\":1073741824,\"exp_avg_sq\":1073741824,"      \
        "\"grad\":1073741824,\"serve\":536870912},\"zero_formula\":{\"bytes_per_parameter\":16,"   \
        "\"stage3_bytes\":4831838208},\"sessions\":[{\"rank\":0,\"pid\":77,\"held\":2,"            \
        "\"push_window\":8192}]}"
#define STATUS                                                                                     \
        "{\"verdict\":\"warn\",\"findings\":[{\"check\":\"ZerodLinkDown\",\"state\":\"warning\","  \
        "\"found\":\"others reach c, this node does not: another key\",\"advice\":\"look at the "  \
        "key files\"}],"                                                                           \
        "\"node\":\"a\",\"version\":\"0.1.0\",\"uptime_s\":133,\"socket\":\"/run/z.sock\","        \
        "\"state_dir\":\"/var/lib/zerod\",\"device\":\"host (avx512)\",\"peers\":["                \
        "{\"node\":\"a\",\"address\":\"10.0.0.1:7077\",\"owner\":true,\"self\":true,\"up\":true,"  \
        "\"why\":\"\",\"bulk\":\"\",\"bulk_detail\":\"\",\"since_s\":1,\"heard_s\":0,"             \
        "\"round_trip_s\":0,\"sent\":" BYTES ",\"received\":" BYTES "},"                           \
        "{\"node\":\"b\",\"address\":\"10.0.0.2:7077\",\"owner\":true,\"self\":false,\"up\":true," \
        "\"why\":\"\",\"bulk\":\"ucx\",\"bulk_detail\":\"posix,cma\",\"since_s\":61,"              \
        "\"heard_s\":0.02,\"round_trip_s\":0.00012,\"sent\":" BYTES ",\"received\":" BYTES "},"    \
        "{\"node\":\"c\",\"address\":\"10.0.0.3:7077\",\"owner\":false,\"self\":false,"            \
        "\"up\":false,\"why\":\"another key\",\"bulk\":\"\",\"bulk_detail\":\"\",\"since_s\":5,"   \
        "\"heard_s\":0,\"round_trip_s\":0,\"sent\":" BYTES ",\"received\":" BYTES "}],"            \
        "\"jobs\":[" JOB "],\"memory\":{\"state_used\":1024,\"state_quota\":1073741824,"           \
        "\"resident\":52428800}}"

static const struct answer status_answer = { "status", NULL, STATUS, 0 };
static const struct answer top_answer = { "status", NULL, STATUS, 1 };

Test(zeroctl, status_tells_node_peers_and_jobs)
{
        cr_assert_eq(ask("status", &status_answer), 0, "%s", output);
        SHOWS("node a: zerod 0.1.0, up 2 m 13 s, device host (avx512)");
        SHOWS("20.0 ms  120 us  ucx\n");
        SHOWS("b: payloads go by ucx posix,cma\n");
        SHOWS("c: another key\n");
        SHOWS("1.00 MiB");
        SHOWS("gpt: waiting 3.2 s for rank 1 on b: push of group 'h.3' (11 of 14 pushed)");
        SHOWS("1@?(absent)");
        SHOWS("window 64.0 MiB on GPU 1 in 6 slots");
        SHOWS("(75.0 %)");
        SHOWS("together 4.50 GiB");
        SHOWS("124.4 M");
}

Test(zeroctl, status_and_top_begin_with_the_verdict)
{
        static const char verdict[] =
                "health: warn\n"
                "  ZerodLinkDown: others reach c, this node does not: another key\n"
                "    look at the key files\n"
                "node a: ";

        cr_assert_eq(ask("status", &status_answer), 0, "%s", output);
        cr_assert_eq(strncmp(output, verdict, strlen(verdict)), 0, "%s", output);
        cr_assert_eq(ask("top --once", &top_answer), 0, "%s", output);
        cr_assert_eq(strncmp(output, verdict, strlen(verdict)), 0, "%s", output);
}

/* Of a usual cluster: lines that begin with a table's header, and those below. */
Test(zeroctl, tables_fit_80_columns)
{
#define WIDE                                                                                      \
        "{\"gather\":1099511627776,\"reduce\":1099511627776,\"state\":1099511627776,\"control\":" \
        "12}"
        static const struct answer a = {
                "status", NULL,
                "{\"node\":\"node-017\",\"peers\":[{\"node\":\"node-018\",\"address\":"
                "\"10.128.17.18:7677\",\"owner\":true,\"up\":true,\"bulk\":\"ucx\",\"since_s\":"
                "86400,\"heard_s\":0.4,\"round_trip_s\":0.0001,\"sent\":" WIDE ",\"received\":" WIDE
                "}],\"jobs\":[{\"job\":\"llama-8b-sft\",\"state\":"
                "\"incomplete\",\"world_size\":128,\"version\":123456,\"steps_per_s\":12.25,"
                "\"grad_norm\":1.23456e-5,\"skipped\":12,\"parameters\":8030261248,\"uid\":10001}]}"
        };
        char *tables, *line;

        cr_assert_eq(ask("status", &a), 0, "%s", output);
        tables = strstr(output, "NODE ");
        cr_assert(tables);
        *strstr(tables, "\njob ") = '\0';
        SHOWS("JOB ");
        for (line = strtok(tables, "\n"); line; line = strtok(NULL, "\n"))
                cr_assert_leq(strlen(line), 80, "%s", line);
}

Test(zeroctl, a_cause_has_a_line_though_it_holds_several_up)
{
        const struct answer a = {
                "status", NULL,
                "{\"jobs\":[{\"job\":\"gpt\",\"waiting\":[{\"for\":\"rank 1\",\"what\":\"to "
                "attach\","
                "\"since_s\":3},{\"for\":\"node b\",\"what\":\"to come "
                "up\",\"since_s\":1},{\"for\":"
                "\"rank 2\",\"what\":\"to attach\",\"since_s\":4}]}],\"attaching\":["
                "{\"job\":\"gpt\",\"rank\":0,\"pid\":7,\"for\":\"rank 1\",\"what\":\"to "
                "attach\",\"since_s\":5},"
                "{\"job\":\"new\",\"rank\":0,\"pid\":8,\"for\":\"rank 3\",\"what\":\"to "
                "attach\",\"since_s\":5},"
                "{\"job\":\"new\",\"rank\":1,\"pid\":9,\"for\":\"rank 3\",\"what\":\"to "
                "attach\",\"since_s\":6}]}"
        };

        cr_assert_eq(ask("status", &a), 0, "%s", output);
        SHOWS("gpt: waiting 4.0 s for rank 1, rank 2: to attach\n"
              "gpt: waiting 1.0 s for node b: to come up\n"
              "new: rank 0 (pid 8) and 1 more ranks: attaching for 5.0 s, waiting for rank 3: to "
              "attach\n");
        HIDES("pid 7");
        HIDES("pid 9");
}

#define GPU                                                                                  \
        "{\"gpu\":0,\"name\":\"NVIDIA "                                                      \
        "H100\",\"uuid\":\"GPU-01020304-0506-0708-090a-0b0c0d0e0f10\","                      \
        "\"memory\":{\"total\":8589934592,\"free\":2147483648,\"used\":6442450944,"          \
        "\"zerod\":1073741824},\"allocations\":[{\"what\":\"the gather window of job gpt\"," \
        "\"bytes\":67108864}]}"

Test(zeroctl, status_tells_what_gpus_are_used_for)
{
        const struct answer a = { "status", NULL,
                                  "{\"node\":\"a\",\"cuda\":{\"plugin_interface\":2,\"driver\":"
                                  "\"12.4\",\"runtime\":\"12.2\",\"between_gpus\":{\"by\":"
                                  "\"copies\",\"nccl\":\"2.28.9\",\"why\":\"a member is gone\"}},"
                                  "\"gpus\":[" GPU "]}" };

        cr_assert_eq(ask("status", &a), 0, "%s", output);
        SHOWS("CUDA: driver 12.4, runtime 12.2, plugin interface 2\n");
        SHOWS("Between GPUs: copies (a member is gone)\n");
        SHOWS("GPU 0: NVIDIA H100, GPU-01020304-0506-0708-090a-0b0c0d0e0f10, 6.00 GiB of 8.00 GiB "
              "used, 1.00 GiB by zerod, 2.00 GiB free\n");
        SHOWS("the gather window of job gpt  64.0 MiB");
}

Test(zeroctl, status_says_nothing_of_gpus_where_there_is_none)
{
        const struct answer a = { "status", NULL, "{\"node\":\"a\",\"cuda\":null,\"gpus\":[]}" };

        cr_assert_eq(ask("status", &a), 0, "%s", output);
        HIDES("GPU");
        HIDES("CUDA");
}

Test(zeroctl, without_a_terminal_there_is_no_colour)
{
        cr_assert_eq(ask("status", &status_answer), 0);
        HIDES("\033");
}

Test(zeroctl, json_comes_as_it_was_given)
{
        const struct answer a = { "ping", NULL,
                                  "{\"peers\":[{\"node\":\"b\",\"up\":true,\"new\":[1,2]}]}" };

        cr_assert_eq(ask("ping --json", &a), 0);
        cr_assert_str_eq(output,
                         "{\n  \"peers\": [\n    {\n      \"node\": \"b\",\n      \"up\": true,\n"
                         "      \"new\": [\n        1,\n        2\n      ]\n    }\n"
                         "  ]\n}\n");
}

Test(zeroctl, jobs_are_tabled)
{
        const struct answer a = { "jobs", NULL, "{\"jobs\":[" JOB "]}" };

        cr_assert_eq(ask("jobs", &a), 0);
        SHOWS("JOB  STATE       RANKS  STEP  STEPS/S");
        SHOWS("gpt  incomplete    1/2    12     2.50");
}

Test(zeroctl, no_jobs_are_said)
{
        const struct answer a = { "jobs", NULL, "{\"jobs\":[]}" };

        cr_assert_eq(ask("jobs", &a), 0);
        cr_assert_str_eq(output, "no jobs\n");
}

Test(zeroctl, shards_tell_range_bytes_and_version)
{
        const struct answer a = {
                "shards", "gpt",
                "{\"jobs\":[{\"job\":\"gpt\",\"groups\":[{\"group\":\"h.0\",\"index\":1,"
                "\"elements\":4096,\"dtype\":\"bf16\",\"shards\":[{\"owner\":\"a\",\"first\":0,"
                "\"count\":2048,\"bytes\":{\"master\":8192,\"exp_avg\":8192,\"exp_avg_sq\":8192,"
                "\"grad\":8192,\"serve\":4096},\"version\":12,\"place\":\"GPU "
                "3\"},{\"owner\":\"b\",\"first\":2048,"
                "\"count\":2048,\"bytes\":{},\"version\":null}]}]}]}"
        };

        cr_assert_eq(ask("shards gpt", &a), 0);
        SHOWS("a      GPU 3     0-2048");
        SHOWS("b      -  ");
        SHOWS("8.00 KiB");
        SHOWS("2048-4096");
        SHOWS("      -\n");
}

Test(zeroctl, ping_tells_round_trips_and_fails_if_a_peer_is_down)
{
        const struct answer a = {
                "ping", NULL,
                "{\"peers\":[{\"node\":\"b\",\"up\":true,\"round_trip_s\":0.0032},"
                "{\"node\":\"c\",\"up\":false,\"round_trip_s\":null}]}"
        };

        cr_assert_eq(ask("ping", &a), 1);
        cr_assert_str_eq(output, "NODE  STATE  ROUND TRIP\n"
                                 "b     up         3.2 ms\n"
                                 "c     down            -\n");
}

Test(zeroctl, checksum_is_shown_by_plane)
{
        const struct answer a = { "checksum", "gpt",
                                  "{\"job\":\"gpt\",\"version\":3,\"checksum\":\"00ff\",\"planes\":"
                                  "{\"master\":\"aa\",\"exp_avg\":\"bb\",\"exp_avg_sq\":\"cc\"}}" };

        cr_assert_eq(ask("checksum gpt", &a), 0);
        SHOWS("job gpt at version 3");
        SHOWS("all         00ff");
        SHOWS("exp_avg_sq  cc");
}

Test(zeroctl, config_tells_the_source)
{
        const struct answer a = { "config", NULL,
                                  "{\"options\":[{\"name\":\"node\",\"value\":\"a\",\"source\":"
                                  "\"/etc/zerod.conf:3\",\"doc\":\"this node's name\"}]}" };

        cr_assert_eq(ask("config", &a), 0);
        SHOWS("node    a      /etc/zerod.conf:3  this node's name");
}

Test(zeroctl, drop_confirms)
{
        const struct answer a = { "drop", "gpt", "{\"job\":\"gpt\",\"dropped\":true}" };

        cr_assert_eq(ask("drop gpt", &a), 0);
        cr_assert_str_eq(output, "job gpt: dropped\n");
}

Test(zeroctl, grant_finds_the_user)
{
        const struct answer names[] = {
                { "grant", "{\"job\":\"gpt\",\"user\":0}",
                  "{\"job\":\"gpt\",\"users\":[0,4000000000]}" },
                { "revoke", "{\"job\":\"gpt\",\"user\":4000000000}",
                  "{\"job\":\"gpt\",\"users\":[]}" },
        };

        cr_assert_eq(ask("grant gpt root", &names[0]), 0);
        cr_assert_str_eq(output, "job gpt: other users who may follow it: root, 4000000000\n");
        cr_assert_eq(ask("revoke gpt 4000000000", &names[1]), 0);
        cr_assert_str_eq(output, "job gpt: no other user may follow it\n");
}

Test(zeroctl, versions_shows_readers_and_copies)
{
        const struct answer a = {
                "versions", "gpt",
                "{\"job\":\"gpt\",\"version\":9,\"users\":[0],\"nodes\":[{\"node\":\"a\","
                "\"newest\":8,"
                "\"readers\":[{\"uid\":0,\"pid\":77,\"waits\":true,\"versions\":[7,8]},"
                "{\"uid\":0,\"pid\":78,\"waits\":false,\"versions\":[]}],\"left_out\":5,"
                "\"copies\":[{\"version\":8,\"bytes\":2048,\"readers\":1,\"form\":null},"
                "{\"version\":null,\"bytes\":2048,\"readers\":0,\"form\":\"2 of 3 groups, as "
                "bf16\"}]}],\"away\":[\"b\"]}"
        };

        cr_assert_eq(ask("versions gpt", &a), 0);
        cr_assert_str_eq(output, "job gpt at version 9\n"
                                 "job gpt: other users who may follow it: root\n"
                                 "NODE  USER  READER  HOLDS  WAITS\n"
                                 "a     root      77  7, 8   yes\n"
                                 "a     root      78  -      -\n"
                                 "NODE  VERSION     BYTES  READERS  FORM\n"
                                 "a           8  2.00 KiB        1  -\n"
                                 "a           -  2.00 KiB        0  2 of 3 groups, as bf16\n"
                                 "node a has 5 more readers\n"
                                 "node b is not up, and may have readers\n");
}

Test(zeroctl, members_tells_who_holds_what_and_whether_that_can_change)
{
        const struct answer a = {
                "members", NULL,
                "{\"epoch\":3,\"owners\":[\"a\",\"c\"],\"mirrors\":[{\"owner\":\"a\",\"node\":"
                "\"c\"},"
                "{\"owner\":\"c\",\"node\":\"a\"}],\"nodes\":["
                "{\"node\":\"a\",\"self\":true,\"up\":true,\"owner\":true},"
                "{\"node\":\"b\",\"self\":false,\"up\":false,\"owner\":false},"
                "{\"node\":\"c\",\"self\":false,\"up\":true,\"owner\":true}],\"votes_needed\":2,"
                "\"votes_reachable\":2,\"majority\":true,\"voter\":true,\"undecided\":[\"a\"]}"
        };

        cr_assert_eq(ask("members", &a), 0);
        cr_assert_str_eq(output, "epoch 3, owners a c\n"
                                 "NODE  STATE  SHARDS  MIRROR OF\n"
                                 "a     here   yes     c\n"
                                 "b     down   -       -\n"
                                 "c     up     yes     a\n"
                                 "2 of 3 nodes are reachable; 2 are enough to change the owners\n"
                                 "undecided yet: owners a\n");
}

Test(zeroctl, checkpoint_names_its_directory_from_the_root_on)
{
        char plain_wish[160], every_wish[160];
        const struct answer plain = { "checkpoint", plain_wish, NULL };
        const struct answer every = { "checkpoint", every_wish,
                                      "{\"job\":\"a\",\"directory\":\"/b\",\"every\":5,"
                                      "\"next_version\":17}" };
        struct stat st;

        cr_assert_eq(chdir("/tmp") | stat("/", &st), 0);
        snprintf(plain_wish, sizeof plain_wish,
                 "{\"directory\":\"/x/z\",\"seen\":\"%llx:%llx /\",\"job\":\"a\",\"keep\":3}",
                 (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
        snprintf(every_wish, sizeof every_wish,
                 "{\"directory\":\"/b\",\"seen\":\"%llx:%llx /\",\"job\":\"a\",\"every\":5}",
                 (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
        cr_assert_eq(ask("checkpoint a ../x//y/../z/. --keep 3", &plain), 1);
        cr_assert_eq(ask("checkpoint a /../../b/ --every 5", &every), 0);
        SHOWS("every 5 steps, the next at version 17");
}

Test(zeroctl, top_once_is_one_picture)
{
        cr_assert_eq(ask("top --once", &top_answer), 0);
        SHOWS("node a: zerod 0.1.0");
        SHOWS("GATHER OUT");
        HIDES("\033");
}

#define OWNERS(owners) "{\"epoch\":1,\"owners\":[" owners "],\"majority\":true,\"voter\":true}"
#define MOVES(unheard) \
        "{\"epoch\":1,\"over\":true,\"jobs\":[],\"rooms\":[],\"unheard\":[" unheard "]}"
#define DRAINED(is) "{\"node\":\"b\",\"drained\":" is ",\"ranks\":[]}"

Test(zeroctl, drain_wants_to_hear_of_all_owners)
{
        const struct answer answers[] = { { "members", NULL, OWNERS("\"a\",\"b\"") },
                                          { "moves", NULL, MOVES("\"a\"") },
                                          { 0 } };
        const struct answer no_owner[] = { { "members", NULL, OWNERS("\"a\",\"b\"") },
                                           { "moves", NULL, MOVES("\"c\"") },
                                           { "drain", NULL, NULL },
                                           { 0 } };

        cr_assert_eq(ask_of("drain b", answers, answer_queries), 1);
        SHOWS("node a does not answer");
        cr_assert_eq(ask_of("drain b", no_owner, answer_queries), 1);
        HIDES("does not answer");
        SHOWS("node b may take no new ranks all the same");
}

Test(zeroctl, drain_tells_that_the_node_stays_drained)
{
        const struct answer answers[] = { { "members", NULL, OWNERS("\"a\"") },
                                          { "drain", NULL, DRAINED("true") },
                                          { "members", NULL, NULL },
                                          { "members", NULL, NULL },
                                          { 0 } };

        cr_assert_eq(ask_of("drain b", answers, answer_queries), 1);
        SHOWS("node b takes no new ranks; to go on ask again, to end the drain use zeroctl undrain "
              "b");
}

Test(zeroctl, drain_that_another_person_ends)
{
        const struct answer answers[] = { { "members", NULL, OWNERS("\"a\"") },
                                          { "drain", NULL, DRAINED("true") },
                                          { "members", NULL, OWNERS("\"a\"") },
                                          { "moves", NULL, MOVES("") },
                                          { "members", NULL, OWNERS("\"a\"") },
                                          { "drained", NULL, DRAINED("false") },
                                          { 0 } };

        cr_assert_eq(ask_of("drain b", answers, answer_queries), 1);
        SHOWS("somebody has ended the drain");
        HIDES("safe to power off");
}

Test(zeroctl, names_cannot_steer_the_terminal)
{
        const struct answer a = { "drop", "x",
                                  "{\"job\":\"\\u001b[2J\\u009b1m\\u007f\",\"dropped\":true}" };

        cr_assert_eq(ask("drop x", &a), 0);
        cr_assert_str_eq(output, "job ?[2J??1m?: dropped\n");
}

Test(zeroctl, refusal_exits_with_1)
{
        const struct answer a = { "checksum", "x", NULL };

        cr_assert_eq(ask("checksum x", &a), 1);
        SHOWS("zeroctl: checksum: no job ?[31m'x'");
}

Test(zeroctl, answer_that_is_no_json_exits_with_1)
{
        const struct answer a = { "jobs", NULL, "{\"jobs\":" };

        cr_assert_eq(ask("jobs", &a), 1);
        SHOWS("not a JSON object");
}

Test(zeroctl, wrong_types_in_the_answer_are_borne)
{
        const struct answer a = { "status", NULL,
                                  "{\"node\":3,\"peers\":{\"a\":1},\"jobs\":[3,[],{\"ranks\":7}],"
                                  "\"memory\":[]}" };

        cr_assert_eq(ask("status", &a), 0, "%s", output);
}

Test(zeroctl, no_daemon_exits_with_3)
{
        cr_assert_eq(run("--socket /nowhere/sock status"), 3);
        SHOWS("is zerod running?");
}

Test(zeroctl, misspelt_command_names_the_nearest)
{
        cr_assert_eq(run("stauts"), 2);
        SHOWS("did you mean 'status'?");
        cr_assert_eq(run("frobnicate"), 2);
        HIDES("did you mean");
}

Test(zeroctl, wrong_usage_exits_with_2)
{
        static const char *const wrong[] = { "",
                                             "drop",
                                             "status now",
                                             "drop a b",
                                             "--nonsense",
                                             "-t 0 status",
                                             "-t x status",
                                             "status --once",
                                             "checkpoint",
                                             "checkpoint a",
                                             "checkpoint a b c",
                                             "checkpoint a b --keep x",
                                             "checkpoint a b --every -1",
                                             "checkpoint a b --dtype fp32",
                                             "restore a",
                                             "wait a --for ever",
                                             "wait a --step x",
                                             "restore a b --keep 1",
                                             "export a",
                                             "export a b --dtype fp64",
                                             "import a b --every 2",
                                             "members a",
                                             "add-node",
                                             "remove-node a b",
                                             "takeover",
                                             "takeover a",
                                             "members --node-is-dead a",
                                             "members --no-wait" };

        for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
                cr_assert_eq(run(wrong[i]), 2, "zeroctl %s: %s", wrong[i], output);
}

Test(zeroctl, option_may_stand_before_the_command)
{
        cr_assert_eq(ask("--once top", &top_answer), 0, "%s", output);
        SHOWS("node a: zerod 0.1.0");
        cr_assert_eq(run("--once status"), 2);
        SHOWS("status: --once is not an option of this command; see zeroctl status --help");
}

Test(zeroctl, beginning_of_an_option_is_one_of_the_command)
{
        cr_assert_eq(run("plan --node 3 --layer 2"), 2); /* other commands have --node-is-dead */
        SHOWS("--layers, --hidden and --vocab belong together");
        cr_assert_eq(run("plan --node-is-dead a"), 2);
        SHOWS("plan: --node-is-dead is not an option of this command; see zeroctl plan --help");
        cr_assert_eq(run("wait a --kep 3"), 2);
        cr_assert_eq(run("add-node a --once"), 2);
        SHOWS("add-node: --once is not an option of this command");
        cr_assert_eq(run("export a b --step 3"), 2);
        cr_assert_eq(run("wait a --steps=3"), 2);
}

Test(zeroctl, missing_words_are_named)
{
        cr_assert_eq(run("set foo"), 2);
        SHOWS("set: VALUE is missing: zeroctl set OPTION VALUE");
        cr_assert_eq(run("restore a"), 2);
        SHOWS("restore: DIR is missing: zeroctl restore JOB DIR");
}

Test(zeroctl, help_of_a_command_tells_its_options)
{
        cr_assert_eq(run("checkpoint --help"), 0);
        SHOWS("Usage: zeroctl [OPTION]... checkpoint JOB DIR\n\nWrites the job's state to "
              "DIR/JOB-VERSION, while");
        SHOWS("\n      --every N          take a checkpoint every N steps");
        HIDES("--once");
        for (const char *line = output; *line; line += strcspn(line, "\n") + 1)
                cr_assert(strcspn(line, "\n") <= 80, "%.90s", line);
        cr_assert_eq(run("--help nonsense"), 2);
}

Test(zeroctl, help_and_version)
{
        cr_assert_eq(run("--help"), 0);
        SHOWS("Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no connection to zerod.");
        cr_assert_eq(run("--version"), 0);
        SHOWS("zeroctl " ZEROD_VERSION);
}

/* The configuration file: which values it gives, and how mistakes are reported. */
#include <criterion/criterion.h>

#include "daemon/floor/base/chunk.h"
#include "daemon/floor/conf/conf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct conf *conf;
static struct fault fault;

static int parse(const char *text)
{
        return conf_parse("z.conf", text, strlen(text), &conf, &fault);
}

static void teardown(void)
{
        conf_free(conf);
}

TestSuite(file, .fini = teardown);

static void refused(const char *input, const char *const *parts)
{
        cr_assert_eq(parse(input), ZERO_EINVAL, "accepted: %s", input);
        cr_assert_null(conf);
        for (; *parts; parts++)
                cr_assert(strstr(fault.text, *parts), "'%s' is not in: %s", *parts, fault.text);
}

#define REFUSED(input, ...) refused(input, (const char *[]){ __VA_ARGS__, NULL })

Test(file, empty_gives_defaults)
{
        cr_assert_eq(parse(""), 0);
        cr_assert_str_eq(conf->bulk, "auto");
        cr_assert_eq(conf->chunk, chunk_default());
        cr_assert_neq(conf->node[0], '\0');
        cr_assert_eq(conf->socket[0], '/');
        cr_assert_eq(conf->state_dir[0], '/');
}

Test(file, strings_and_numbers)
{
        cr_assert_eq(parse("# c\n; c\n[zerod]\nnode = a\r\nthreads=3\nchunk\t=\t256 ; c\n"), 0);
        cr_assert_str_eq(conf->node, "a");
        cr_assert_eq(conf->threads, 3);
        cr_assert_eq(conf->chunk, 256);
}

Test(file, both_signs_begin_a_comment_behind_a_value)
{
        cr_assert_eq(parse("[zerod]\nmirror = 1 # both\nstate_dir = /a#b;c # d ; e\nnode=a\t#b\n"),
                     0);
        cr_assert_eq(conf->mirror, 1);
        cr_assert_str_eq(conf->state_dir, "/a#b;c");
        cr_assert_str_eq(conf->node, "a");
}

Test(file, chunk_0_asks_for_the_default)
{
        cr_assert_eq(parse("[zerod]\nchunk = 0\n"), 0);
        cr_assert_eq(conf->chunk, chunk_default());
}

Test(file, sizes_take_suffixes)
{
        cr_assert_eq(parse("[zerod]\nmemory_limit = 3G\nwindow = 5K\nreduce_buffers = 7\n"), 0);
        cr_assert_eq(conf->memory_limit, (uint64_t)3 << 30);
        cr_assert_eq(conf->window, 5 << 10);
        cr_assert_eq(conf->reduce_buffers, 7);
}

Test(file, lists_go_on_in_indented_lines)
{
        cr_assert_eq(parse("[zerod]\npeers =\n\ta=h:1 ; one\n  ; none\n  b=h:2\nnode = a\n"), 0);
        cr_assert_str_eq(conf->peers, "a=h:1 b=h:2");
        cr_assert_str_eq(conf->node, "a");
}

/* A word in a line of its own, or all in one. */
static void full_cluster(const char *between)
{
        static char text[32768], expected[32768];

        strcpy(text, "[zerod]\npeers =");
        expected[0] = '\0';
        for (int i = 0; i < 64; i++) {
                char word[128];

                snprintf(word, sizeof(word), "node%02d=some.long.host.name.example.org:%d", i,
                         7600 + i);
                sprintf(text + strlen(text), "%s%s", between, word);
                sprintf(expected + strlen(expected), "%s%s", i ? " " : "", word);
        }
        strcat(text, "\nnode = a\n");
        cr_assert_eq(parse(text), 0, "%s", fault.text);
        cr_assert_str_eq(conf->peers, expected);
        cr_assert_str_eq(conf->node, "a");
}

Test(file, a_full_cluster_fits_over_lines)
{
        full_cluster("\n  ");
}

Test(file, a_full_cluster_fits_on_one_line)
{
        full_cluster(" ");
}

/* inih cuts lines at 200 bytes on Debian: every length around that. */
Test(file, no_line_is_cut)
{
        for (size_t n = 1; n < 512; n++) {
                char text[1024] = "[zerod]\n", *value;

                strcat(text, n % 2 ? "  key_file = " : "key_file = ");
                value = text + strlen(text);
                memset(value, 'x', n);
                strcpy(value + n, "\nnode = a\n");
                cr_assert_eq(parse(text), 0, "%s", fault.text);
                cr_assert_eq(strlen(conf->key_file), n);
                cr_assert_str_eq(conf->node, "a");
                conf_free(conf);
                conf = NULL;
        }
}

Test(file, blanks_do_not_hide_what_stands_behind_them)
{
        char text[2048];

        snprintf(text, sizeof(text), "[zerod]\npeers =%500s\n%500s\n%500s; c\nnode = a\n", "a=h:1",
                 "b=h:2", "");
        cr_assert_eq(parse(text), 0, "%s", fault.text);
        cr_assert_str_eq(conf->peers, "a=h:1 b=h:2");
        cr_assert_str_eq(conf->node, "a");
        conf_free(conf);
        conf = NULL;
        snprintf(text, sizeof(text), "[zerod]\nnode%500s= a\n", "");
        REFUSED(text, "z.conf:2:");
}

Test(file, a_long_comment_is_one)
{
        char text[2048];

        snprintf(text, sizeof(text), "[zerod]\n#%0500d\nnode = a ;%0500d\n", 0, 0);
        cr_assert_eq(parse(text), 0, "%s", fault.text);
        cr_assert_str_eq(conf->node, "a");
}

Test(file, a_value_longer_than_its_option_is_refused)
{
        static char text[40000];

        sprintf(text, "[zerod]\npeers = %033000d\n", 0);
        REFUSED(text, "z.conf:2: peers", "32768");
}

Test(file, unknown_key_names_the_nearest)
{
        REFUSED("[zerod]\nnode = a\nthread = 3\n", "z.conf:3:", "'thread'", "threads");
        REFUSED("[zerod]\nkeyfile = 3\n", "z.conf:2:", "key_file");
        REFUSED("[zerod]\nkey-file = 3\n", "key_file");
        REFUSED("[zerod]\nlimit_memory_of_everything_there_is_and_then_some_more_until_it_ends=1\n",
                "z.conf:2:", "unknown key");
}

Test(file, unknown_section)
{
        REFUSED("[zerodd]\nnode = a\n", "z.conf:2:", "'zerodd'", "[zerod]");
        REFUSED("node = a\n", "z.conf:1:", "'node'", "[zerod]");
}

Test(file, lines_that_are_nothing)
{
        REFUSED("[zerod]\n\nnonsense\nnode = a\n", "z.conf:3:");
        REFUSED("[zerod\nnode = a\n", "z.conf:1:");
        REFUSED("[zerod]\nnonsense\nmore = 1\n", "z.conf:2:");
        REFUSED("[zerod]\nmore = 1\nnonsense\n", "z.conf:2:", "'more'");
}

Test(file, a_key_twice)
{
        REFUSED("[zerod]\nnode = a\n\nnode = b\n", "z.conf:4:", "node", "line 2");
        REFUSED("[zerod]\nnode = a\n  threads = 3\n", "z.conf:3:", "line 2", "blank");
}

Test(file, ranges_are_told)
{
        REFUSED("[zerod]\nthreads = 1025\n", "z.conf:2:", "threads = '1025'", "0 to 1024 threads");
        REFUSED("[zerod]\nsession_limit = 0\n", "1 to 65536 connections");
        REFUSED("[zerod]\nchunk = 1300\n", "0 to 65536", "steps of 128");
        REFUSED("[zerod]\nmemory_limit = 2000000T\n", "0 to 1048576T bytes");
}

Test(file, numbers_are_whole)
{
        static const char *wrong[] = { "-1",
                                       "+1",
                                       "1.5",
                                       "0x10",
                                       "1 2",
                                       "1K",
                                       "",
                                       "a",
                                       "18446744073709551616",
                                       "99999999999999999999999" };

        for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
                char text[128];

                snprintf(text, sizeof(text), "[zerod]\nthreads = %s\n", wrong[i]);
                REFUSED(text, "z.conf:2: threads");
        }
        REFUSED("[zerod]\nwindow = 1KB\n", "K, M, G, T");
        REFUSED("[zerod]\nwindow = K\n", "window");
        REFUSED("[zerod]\nwindow = 18014398509481985K\n", "window");
        REFUSED("[zerod]\nwindow = 1k\n", "window");
}

Test(file, choices_and_modes)
{
        REFUSED("[zerod]\nbulk = rdma\n", "'rdma'", "auto|ucx|tcp");
        REFUSED("[zerod]\nbulk = auto|ucx\n", "bulk");
        REFUSED("[zerod]\nbulk =\n", "bulk");
        REFUSED("[zerod]\ndevice = host:\n", "host:avx512");
        REFUSED("[zerod]\nsocket_mode = 0888\n", "octal");
        REFUSED("[zerod]\nsocket_mode = 7777\n", "octal");
        cr_assert_eq(parse("[zerod]\nsocket_mode = 600\ndevice = host:avx2\n"), 0);
}

Test(file, bytes_that_are_no_text)
{
        static const char zero[] = "[zerod]\nnode = a\0b\n";

        REFUSED("[zerod]\nnode = \xff\n", "z.conf:2:", "UTF-8");
        REFUSED("[zerod]\nno\x1b[31m = 1\n", "z.conf:2:");
        cr_assert_eq(conf_parse("z.conf", zero, sizeof(zero) - 1, &conf, &fault), ZERO_EINVAL);
        cr_assert(strstr(fault.text, "z.conf:2:"));
}

Test(file, a_huge_file_is_refused)
{
        size_t size = 1 << 20;
        char *text = malloc(size);

        memset(text, '\n', size);
        cr_assert_eq(conf_parse("z.conf", text, size, &conf, &fault), ZERO_EINVAL);
        cr_assert_eq(conf_parse("z.conf", text, size / 8, &conf, &fault), 0);
        free(text);
}

Test(file, socket_paths_fit_an_address)
{
        char text[256] = "[zerod]\nsocket = ", *value = text + strlen(text);

        memset(value, 'x', 107);
        cr_assert_eq(parse(text), 0);
        value[107] = 'x';
        conf_free(conf);
        conf = NULL;
        REFUSED(text, "socket", "107");
}

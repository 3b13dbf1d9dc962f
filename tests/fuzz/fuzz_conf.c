/*
 * The configuration file, and the cluster that it describes.
 *
 * What must hold: a file is refused with a sentence that can be shown, or gives values that read
 * back the same when they are written out as a file.  A cluster is refused, or has this node
 * and an owner in it.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/floor/conf/conf.h"
#include "proto/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct writer {
        char *text, *end;
        bool comments; /* a value that would read as a comment in a line of its own */
};

static void write_option(void *arg, const char *name, const char *value, const char *source,
                         const char *doc)
{
        struct writer *w = arg;

        w->comments |= strpbrk(value, ";#") != NULL;
        w->end += sprintf(w->end, "%s=%s\n", name, value);
}

struct values {
        char *of[64];
        size_t n;
};

static void keep(void *arg, const char *name, const char *value, const char *source,
                 const char *doc)
{
        struct values *v = arg;

        assert(text_printable(value) && name[0] && source[0] && doc[0]);
        v->of[v->n++] = strdup(value);
}

static void compare(void *arg, const char *name, const char *value, const char *source,
                    const char *doc)
{
        struct values *v = arg;

        /* the blanks of a list are not kept */
        const char *a = v->of[v->n++], *b = value;
        while (*a || *b) {
                if (*a == ' ' || *b == ' ') {
                        a += strspn(a, " ");
                        b += strspn(b, " ");
                        continue;
                }
                assert(*a++ == *b++);
        }
}

static void check_round_trip(const struct conf *conf)
{
        struct writer w = { .text = malloc(512 << 10) };
        struct values v = { .n = 0 };
        struct conf *again = NULL;
        struct fault fault = { 0 };

        assert(w.text);
        w.end = w.text + sprintf(w.text, "[zerod]\n");
        conf_each(conf, write_option, &w);
        conf_each(conf, keep, &v);
        if (!w.comments) {
                int r = conf_parse("again", w.text, (size_t)(w.end - w.text), &again, &fault);

                assert(r == 0);
                v.n = 0;
                conf_each(again, compare, &v);
        }
        for (size_t i = 0; i < v.n; i++)
                free(v.of[i]);
        free(w.text);
        conf_free(again);
}

/* Without key files: no file is opened here. */
static void check_cluster(struct conf *conf)
{
        static struct cluster cluster;
        struct fault fault = { 0 };
        bool owner = false;

        conf->key_file[0] = conf->key_next_file[0] = '\0';
        int r = conf_cluster(conf, &cluster, &fault);
        if (r) {
                assert(r == fault.status && fault.text[0] && text_printable(fault.text));
                return;
        }
        assert(cluster.n_nodes == 1 && cluster.self == 0);
        assert(strcmp(cluster.nodes[0].name, conf->node) == 0);
        for (uint32_t i = 0; i < cluster.n_nodes; i++)
                owner |= cluster.nodes[i].owners;
        assert(owner);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct conf *conf = NULL;
        struct fault fault = { 0 };
        int r = conf_parse("fuzz", (const char *)data, size, &conf, &fault);

        assert((r == 0) == (conf != NULL));
        if (r) {
                assert(r == fault.status && fault.text[0] && text_printable(fault.text));
                return 0;
        }
        check_round_trip(conf);
        check_cluster(conf);
        conf_free(conf);
        return 0;
}

/*
 * fetch-client --socket FILE --path mapped|copy|tcp|tcp-plain|ucx --bytes N [--job NAME]
 *
 * One rank, one group of N bytes; a round for each line of input.  A round makes a new
 * version (a step with lr 0), and times the fetch of it and, in turn, what that cannot be
 * faster than:
 *   mapped  a round trip over a unix socket
 *   copy    that, and a copy of the group
 *   tcp     that, a copy of the part of this node's owner, and the far part, of other
 *           owners, asked for and received over a plain TCP connection
 *   ucx     that, the copy, and a round trip over TCP; the caller adds what the far part takes
 * A push is timed until the daemon gives back the memory of the gradient, which is when all
 * owners have taken their part.
 *
 * Writes one line of JSON a round; times are in microseconds.  How much is far, the daemon's
 * own count of elements tells.  At the end of input the job is dropped.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>
#include <zero.h>

#include "tests/bench/fetch/peer.h"

enum {
        SAMPLES = 200, /* fetches of a mapped group in a round */
        PAUSE_US = 50, /* before each, so that both sides have gone to sleep */
        DATA = 0,      /* the group that is measured */
        MARK = 1,      /* asking for room for this one's gradient waits for the other's */
};

struct options {
        const char *socket, *job, *path;
        uint64_t bytes;
};

struct session {
        struct options o;
        struct zero_client *client;
        struct zero_layout *layout;
        struct peer unix_peer, tcp_peer;
        char *from, *to; /* for plain copies */
};

struct times {
        double fetch, fetch_limit, push, push_limit;
        uint64_t fetch_far, push_far; /* bytes */
};

static void die(const char *what, const char *why)
{
        fprintf(stderr, "fetch-client: %s: %s\n", what, why);
        exit(EXIT_FAILURE);
}

static void must(const struct session *s, int status, const char *what)
{
        if (status)
                die(what, zero_error(s->client));
}

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

static double median(double *values, size_t n)
{
        qsort(values, n, sizeof *values, compare);
        return values[n / 2];
}

static bool is_mapped(const struct session *s)
{
        return !strcmp(s->o.path, "mapped");
}

/* Beside a bf16 group one owner's fp32 group goes through the window: it is copied. */
static enum zero_dtype dtype_of(const struct session *s)
{
        return !strcmp(s->o.path, "copy") ? ZERO_FP32 : ZERO_BF16;
}

/* ---- the job -------------------------------------------------------------- */

/* SGD has no moments: large groups fit into memory. */
static void add_group(struct session *s, const char *name, enum zero_dtype dtype, uint64_t elements)
{
        struct zero_tensor tensor = {
                .name = name, .ndim = 1, .shape = &elements, .init = ZERO_INIT_ZEROS
        };
        uint32_t group, index;

        if (zero_layout_group(s->layout, name, dtype, NULL, 0, 0, &group) ||
            zero_layout_optimizer(s->layout, group, "sgd") ||
            zero_layout_tensor(s->layout, group, &tensor, &index))
                die("layout", zero_layout_error(s->layout));
}

static void attach(struct session *s)
{
        struct zero_options options = { .socket = s->o.socket, .job = s->o.job, .world_size = 1 };
        struct zero_needs needs = { .hold_groups = 1,
                                    .push_groups = 1,
                                    .grad_dtype = dtype_of(s),
                                    .reduce_dtype = dtype_of(s) };

        if (zero_layout_new(&s->layout))
                die("layout", "out of memory");
        add_group(s, "data", dtype_of(s), s->o.bytes / zero_dtype_size(dtype_of(s)));
        add_group(s, "mark", ZERO_BF16, 1);
        if (zero_connect(&options, &s->client))
                die("connect", zero_error(NULL));
        must(s, zero_attach(s->client, s->layout, &needs), "attach");
}

/* The state goes with the job; only a reader can ask for it while nobody is attached. */
static void leave(struct session *s)
{
        struct zero_options options = { .socket = s->o.socket, .rank = ZERO_OBSERVER };
        char *json;

        zero_close(s->client);
        if (zero_connect(&options, &s->client))
                die("connect", zero_error(NULL));
        must(s, zero_query(s->client, "drop", s->o.job, &json), "drop");
        free(json);
        zero_close(s->client);
        zero_layout_free(s->layout);
}

/* Bytes that the daemon has counted so far: part "gather" or "reduce" of the job's status. */
static uint64_t counted(struct session *s, const char *part, const char *name)
{
        json_t *status, *jobs, *value;
        uint64_t elements;
        char *text;

        must(s, zero_query(s->client, "status", NULL, &text), "status");
        status = json_loads(text, 0, NULL);
        jobs = json_object_get(status, "jobs");
        value = json_object_get(json_object_get(json_array_get(jobs, 0), part), name);
        if (json_array_size(jobs) != 1 || !json_is_integer(value))
                die("status", "not one job, or it lacks its counts");
        elements = (uint64_t)json_integer_value(value);
        json_decref(status);
        free(text);
        return elements * zero_dtype_size(dtype_of(s));
}

static uint64_t received(struct session *s)
{
        return counted(s, "gather", "elements_received");
}

static uint64_t sent(struct session *s)
{
        return counted(s, "reduce", "elements_sent");
}

/* ---- ours ------------------------------------------------------------------ */

static void push(struct session *s, struct times *t)
{
        uint64_t before = sent(s);
        void *grad;
        double begun;

        must(s, zero_grad(s->client, DATA, &grad), "gradient");
        memset(grad, 0, s->o.bytes);
        begun = clock_us();
        must(s, zero_push(s->client, DATA, NULL, true, NULL), "push");
        must(s, zero_grad(s->client, MARK, &grad), "gradient");
        t->push = clock_us() - begun;
        t->push_far = sent(s) - before;
        memset(grad, 0, zero_dtype_size(dtype_of(s)));
        must(s, zero_push(s->client, MARK, NULL, true, NULL), "push");
}

/* A step that changes nothing but the version, and its update over on all owners. */
static void step(struct session *s)
{
        struct zero_set set = ZERO_SGD(0);
        struct zero_step_options args = { .sets = &set, .n_sets = 1 };
        uint64_t n = zero_layout_tensor_elements(s->layout, DATA);
        struct zero_result result;
        float value;

        must(s, zero_step(s->client, &args, &result), "step");
        must(s, zero_get(s->client, DATA, ZERO_PLANE_MASTER, 0, 1, &value), "read");
        must(s, zero_get(s->client, DATA, ZERO_PLANE_MASTER, n - 1, 1, &value), "read");
}

static double fetch_once(struct session *s)
{
        const void *view;
        double begun = clock_us(), end;

        must(s, zero_fetch(s->client, DATA, &view), "fetch");
        end = clock_us();
        must(s, zero_release(s->client, DATA, NULL), "release");
        return end - begun;
}

/* ---- the limits ------------------------------------------------------------- */

static void pause_us(double us)
{
        double end = clock_us() + us;

        while (clock_us() < end)
                ;
}

static double ask(struct peer *peer, size_t n)
{
        double us = peer_ask_us(peer, n);

        if (us < 0)
                die("plain socket", "the other end is gone");
        return us;
}

/* A round trip to the daemon, the near part copied, the far part moved. */
static double limit_us(struct session *s, uint64_t far)
{
        double us = ask(&s->unix_peer, sizeof far);

        us += copy_us(s->to, s->from, s->o.bytes - far);
        if (far)
                us += ask(&s->tcp_peer, !strcmp(s->o.path, "ucx") ? sizeof far : far);
        return us;
}

/* ---- rounds -------------------------------------------------------------------- */

static void round_mapped(struct session *s, struct times *t)
{
        double ours[SAMPLES], limit[SAMPLES];

        push(s, t);
        step(s);
        for (unsigned i = 0; i < SAMPLES; i++) {
                pause_us(PAUSE_US);
                ours[i] = fetch_once(s);
                pause_us(PAUSE_US);
                limit[i] = ask(&s->unix_peer, sizeof(uint64_t));
        }
        t->fetch = median(ours, SAMPLES);
        t->fetch_limit = median(limit, SAMPLES);
}

static void round_moved(struct session *s, struct times *t)
{
        uint64_t before;

        push(s, t); /* wakes the nodes, which have slept since the last round; the limits find them
                       awake */
        step(s);
        push(s, t);
        step(s);
        before = received(s);
        t->fetch = fetch_once(s);
        t->fetch_far = received(s) - before;
        t->fetch_limit = limit_us(s, t->fetch_far);
        t->push_limit = t->push_far == t->fetch_far ? t->fetch_limit : limit_us(s, t->push_far);
}

static void print(const struct times *t)
{
        printf("{\"fetch\": %.2f, \"fetch_limit\": %.2f, \"fetch_far\": %llu, \"push\": %.2f, "
               "\"push_limit\": %.2f, \"push_far\": %llu}\n",
               t->fetch, t->fetch_limit, (unsigned long long)t->fetch_far, t->push, t->push_limit,
               (unsigned long long)t->push_far);
        fflush(stdout);
}

static bool number(const char *text, uint64_t max, uint64_t *ret)
{
        char *end;

        *ret = strtoull(text, &end, 10);
        return end != text && !*end && *ret >= 1 && *ret <= max;
}

static bool parse(int argc, char **argv, struct options *o)
{
        static const struct option known[] = { { "socket", required_argument, NULL, 's' },
                                               { "job", required_argument, NULL, 'j' },
                                               { "path", required_argument, NULL, 'p' },
                                               { "bytes", required_argument, NULL, 'b' },
                                               { 0 } };
        uint64_t value;
        int option;

        while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
                if (option == 's')
                        o->socket = optarg;
                else if (option == 'j')
                        o->job = optarg;
                else if (option == 'p')
                        o->path = optarg;
                else if (option == 'b' && number(optarg, 1ULL << 34, &value))
                        o->bytes = value;
                else
                        return false;
        }
        return optind == argc && o->socket && o->path && o->bytes >= 4;
}

int main(int argc, char **argv)
{
        struct session s = { .o = { .job = "fetch" } };
        char line[8];
        bool mapped;

        if (!parse(argc, argv, &s.o)) {
                fprintf(stderr, "usage: fetch-client --socket FILE --path "
                                "mapped|copy|tcp|tcp-plain|ucx --bytes N [--job NAME]\n");
                return 2;
        }
        mapped = is_mapped(&s);
        s.from = malloc(s.o.bytes);
        s.to = malloc(s.o.bytes);
        if (!s.from || !s.to || peer_start(false, 64, &s.unix_peer) ||
            peer_start(true, mapped ? 64 : s.o.bytes + 64, &s.tcp_peer))
                die("limits", "cannot start");
        memset(s.from, 1, s.o.bytes);
        memset(s.to, 2, s.o.bytes);
        attach(&s);
        while (fgets(line, sizeof line, stdin)) {
                struct times t = { 0 };

                (mapped ? round_mapped : round_moved)(&s, &t);
                print(&t);
        }
        leave(&s);
        peer_stop(&s.tcp_peer);
        peer_stop(&s.unix_peer);
        free(s.from);
        free(s.to);
        return EXIT_SUCCESS;
}

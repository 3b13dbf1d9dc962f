/*
 * Whatever a client writes to the daemon's socket.  Input: a byte that says how far the session
 * gets by itself (its two lowest bits: nothing, hello, observer, rank), then frames: two bytes of
 * length (little-endian) and so many bytes each; what is left goes out as it stands.  An attempt
 * or version of 0 in a request stands for the current one, which an input cannot know.
 *
 * A variant of an input (driver.c, or libFuzzer's mutation) has one number of one request at a
 * boundary.
 *
 * A node of its own runs in this process, with one job of three small groups.  What must hold:
 * no input ends it, the session goes when its client does, and the job goes on.
 */
#include <assert.h>
#include <errno.h>
#include <ftw.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/cluster/membership/membership.h"
#include "daemon/compute/device/gpu/gpu.h"
#include "daemon/face/rpc/session.h"
#include "daemon/floor/base/chunk.h"
#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"
#include "tests/fuzz/boundary.h"
#include "tests/support/fabric_inproc.h"
#include "tests/support/temporary.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

uint8_t *fuzz_variant(const uint8_t *data, size_t size, size_t number, size_t *ret_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);
/* libFuzzer's own; where inputs are replayed there is none */
__attribute__((weak)) size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);

enum { TURNS_MAX = 1000, JOBS_MAX = 3, VARIANTS = 1000 };
enum prelude { PRELUDE_NOTHING, PRELUDE_HELLO, PRELUDE_OBSERVER, PRELUDE_RANK };

/* One node, made at the first input and kept. */
static struct {
        uv_loop_t loop;
        struct conf *conf;
        struct cluster cluster;
        struct engine x;
        struct inproc_net *net;
        struct rpc *rpc;
        char directory[256];
        Zero__Layout *layout;
        bool up;
} node;

/* ---- the node ---- */

static void on_up(void *arg, uint32_t peer)
{
        node.up = true;
        engine_up(&node.x, peer);
}

static void on_down(void *arg, uint32_t peer, const char *why)
{
        engine_down(&node.x, peer, why);
}

static void on_message(void *arg, uint32_t peer, const Zero__LinkMessage *m)
{
        engine_message(&node.x, peer, m);
}

static int delete_one(const char *path, const struct stat *st, int type, struct FTW *place)
{
        return remove(path);
}

static void delete_directory(void)
{
        nftw(node.directory, delete_one, 8, FTW_DEPTH | FTW_PHYS);
}

static Zero__Layout *make_layout(void)
{
        static const uint64_t sizes[] = { 1000, 0, 3 };
        Zero__Layout *m;
        layout *l;
        int r = layout_new(&l);

        for (uint32_t g = 0; r == 0 && g < 3; g++) {
                char name[2] = { (char)('a' + g) };
                struct layout_tensor t = {
                        .name = name, .group = g, .ndim = 1, .shape = { sizes[g] }
                };
                uint32_t index;

                r = layout_add_group(l, name, g == 2 ? ZERO_FP32 : ZERO_BF16, NULL, 0, 0, &index,
                                     NULL);
                if (r == 0)
                        r = layout_add_tensor(l, &t, &index, NULL);
        }
        if (r == 0)
                r = layout_to_message(l, &m);
        assert(r == 0);
        layout_free(l);
        return m;
}

static void node_describe(void)
{
        char text[512];
        int n = snprintf(text, sizeof(text),
                         "[zerod]\nmemory_limit = 8M\njob_limit = %d\nsession_limit = 16\n"
                         "wait_ms = 1\nrank_wait_ms = 0\nstate_dir = %s\n",
                         JOBS_MAX, node.directory);
        int r = conf_parse("fuzz", text, (size_t)n, &node.conf, NULL);

        assert(r == 0);
        node.cluster = (struct cluster){ .n_nodes = 1, .nodes = { { .name = "n0", .owners = 1 } } };
        node.x = (struct engine){ .loop = &node.loop,
                                  .conf = node.conf,
                                  .cluster = &node.cluster,
                                  .ops = device_host(NULL),
                                  .part_bytes = TRANSIT_BYTES };
}

static void node_start(void)
{
        struct fabric_events events = { on_up, on_down, on_message, NULL };
        int r = sodium_init() < 0, door[2];

        log_set_level(LOG_LEVEL_ERROR - 1);
        r = r || !temporary_directory(node.directory, sizeof(node.directory));
        atexit(delete_directory);
        node_describe();
        node.layout = make_layout();
        r = r || uv_loop_init(&node.loop) || inproc_net_new(&node.loop, 1, &node.net) ||
            store_open(node.directory, node.conf->memory_limit, &node.x.store, NULL) ||
            offload_new(&node.loop, 1, &node.x.offload) ||
            blocking_new(&node.loop, &node.x.blocking) || engine_start(&node.x) ||
            membership_start(&node.x, NULL) ||
            fabric_new_inproc(node.net, 0, 0, &events, &node.x.fabric) ||
            socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, door) ||
            rpc_open(&node.x, door[0], &node.rpc, NULL);
        assert(r == 0);
        while (!node.up)
                uv_run(&node.loop, UV_RUN_ONCE);
}

/* ---- a client ---- */

/* Forgets what the daemon says; 0 bytes if it said nothing. */
static size_t hear(int fd)
{
        static uint8_t buffer[65536];
        union {
                struct cmsghdr align;
                char space[CMSG_SPACE(CONN_FDS_MAX * sizeof(int))];
        } control;
        struct iovec iov = { buffer, sizeof buffer };
        struct msghdr m = { .msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = control.space,
                            .msg_controllen = sizeof control.space };
        ssize_t n = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

        for (struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL; c; c = CMSG_NXTHDR(&m, c))
                for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
                        int passed;

                        memcpy(&passed, CMSG_DATA(c) + i * sizeof passed, sizeof passed);
                        close(passed);
                }
        return n > 0 ? (size_t)n : 0;
}

static void say(int fd, const void *p, size_t n)
{
        for (size_t at = 0; at < n;) {
                ssize_t written =
                        send(fd, (const char *)p + at, n - at, MSG_NOSIGNAL | MSG_DONTWAIT);

                if (written > 0)
                        at += (size_t)written;
                else if (errno != EAGAIN)
                        return; /* the daemon has cut it */
                uv_run(&node.loop, UV_RUN_NOWAIT);
                hear(fd);
        }
}

static void say_frame(int fd, const uint8_t *p, size_t n)
{
        uint8_t header[FRAME_HEADER];

        frame_write_header(header, (uint32_t)n);
        say(fd, header, sizeof header);
        say(fd, p, n);
}

static void say_request(int fd, const Zero__Request *m)
{
        uint8_t packed[1024];

        assert(zero__request__get_packed_size(m) <= sizeof packed);
        say_frame(fd, packed, zero__request__pack(m, packed));
}

static void say_hello(int fd, int32_t rank)
{
        Zero__Request m = ZERO__REQUEST__INIT;
        Zero__Hello hello = ZERO__HELLO__INIT;

        hello.protocol = ZERO__HELLO__PROTOCOL__VERSION;
        hello.job = (char *)"fuzz";
        hello.rank = rank;
        hello.world_size = 1;
        hello.timeout_ms = 20000;
        m.body_case = ZERO__REQUEST__BODY_HELLO;
        m.hello = &hello;
        say_request(fd, &m);
}

static void say_attach(int fd, bool observer)
{
        Zero__Request m = ZERO__REQUEST__INIT;
        Zero__Attach attach = ZERO__ATTACH__INIT;
        Zero__StashNeeds stash = ZERO__STASH_NEEDS__INIT;

        stash.bytes = 1 << 20;
        attach.stash = observer ? NULL : &stash;
        attach.layout = observer ? NULL : node.layout;
        attach.hold_groups = 2;
        attach.push_groups = 3;
        attach.grad_dtype = attach.reduce_dtype = ZERO_FP32;
        m.body_case = ZERO__REQUEST__BODY_ATTACH;
        m.attach = &attach;
        say_request(fd, &m);
}

static bool attached(void)
{
        const struct session *s = CONTAINER_OF(node.rpc->sessions.prev, struct session, link);

        return s->rank ? s->rank->job != NULL : s->job != NULL;
}

static void say_prelude(int fd, enum prelude prelude)
{
        if (prelude == PRELUDE_NOTHING)
                return;
        say_hello(fd, prelude == PRELUDE_OBSERVER ? -1 : 0);
        if (prelude == PRELUDE_HELLO)
                return;
        say_attach(fd, prelude == PRELUDE_OBSERVER);
        for (int i = 0; i < TURNS_MAX && !attached(); i++)
                uv_run(&node.loop, UV_RUN_ONCE); /* the engine's tick ends each turn */
        hear(fd);
        assert(attached());
}

static void make_current(Zero__Request *m, const struct job *job)
{
        ProtobufCMessage *body = (ProtobufCMessage *)m->hello; /* whichever it is */
        const ProtobufCFieldDescriptor *f =
                body ? protobuf_c_message_descriptor_get_field_by_name(body->descriptor, "attempt")
                     : NULL;
        uint64_t *attempt = f ? (uint64_t *)((char *)body + f->offset) : NULL;

        if (attempt && *attempt == 0)
                *attempt = job->attempt;
        if (m->body_case == ZERO__REQUEST__BODY_FETCH && m->fetch->version == 0)
                m->fetch->version = job->version;
}

/* A frame of the input; one that is no request goes out as it is. */
static void say_input_frame(int fd, const uint8_t *p, size_t n)
{
        const struct job *job = job_find(&node.x, "fuzz");
        Zero__Request *m = zero__request__unpack(NULL, n, p);
        uint8_t *packed = NULL;

        if (m && job) {
                make_current(m, job);
                packed = malloc(zero__request__get_packed_size(m) + 1);
        }
        if (packed)
                say_frame(fd, packed, zero__request__pack(m, packed));
        else
                say_frame(fd, p, n);
        free(packed);
        if (m)
                zero__request__free_unpacked(m, NULL);
}

/* The next frame of an input; false: what is left is none. */
static bool next_frame(const uint8_t **data, size_t *size, const uint8_t **ret, size_t *ret_n)
{
        size_t n = *size < 2 ? 0 : (*data)[0] + ((size_t)(*data)[1] << 8);

        if (*size < 2 || n > *size - 2)
                return false;
        *ret = *data + 2;
        *ret_n = n;
        *data += 2 + n;
        *size -= 2 + n;
        return true;
}

static void say_input(int fd, const uint8_t *data, size_t size)
{
        const uint8_t *frame;
        size_t n;

        while (next_frame(&data, &size, &frame, &n))
                say_input_frame(fd, frame, n);
        say(fd, data, size);
        for (int i = 0; i < 20; i++) {
                uv_run(&node.loop, UV_RUN_NOWAIT);
                hear(fd);
        }
}

/* ---- variants of an input ---- */

/* The input, with m in place of the frame that ends before `rest`; NULL: m is too large for a
 * frame. */
static uint8_t *replace_frame(const uint8_t *data, const uint8_t *frame, const uint8_t *rest,
                              size_t left, const Zero__Request *m, size_t *ret_size)
{
        size_t before = (size_t)(frame - 2 - data), n = zero__request__get_packed_size(m);
        uint8_t *variant = n <= UINT16_MAX ? malloc(before + 2 + n + left) : NULL;

        if (!variant)
                return NULL;
        memcpy(variant, data, before);
        variant[before] = (uint8_t)n;
        variant[before + 1] = (uint8_t)(n >> 8);
        zero__request__pack(m, variant + before + 2);
        memcpy(variant + before + 2 + n, rest, left);
        *ret_size = before + 2 + n + left;
        return variant;
}

uint8_t *fuzz_variant(const uint8_t *data, size_t size, size_t number, size_t *ret_size)
{
        const uint8_t *at = data + 1, *frame;
        size_t left = size ? size - 1 : 0, n;

        while (next_frame(&at, &left, &frame, &n)) {
                Zero__Request *m = zero__request__unpack(NULL, n, frame);
                uint8_t *variant = NULL;
                bool found = m && boundary_set(&m->base, &number);

                if (found)
                        variant = replace_frame(data, frame, at, left, m, ret_size);
                if (m)
                        zero__request__free_unpacked(m, NULL);
                if (found)
                        return variant;
        }
        return NULL;
}

/* Every fourth mutation is a variant. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
        size_t n;
        uint8_t *v = seed % 4 ? NULL : fuzz_variant(data, size, seed / 4 % VARIANTS, &n);

        if (v && n <= most) {
                memcpy(data, v, n);
                free(v);
                return n;
        }
        free(v);
        return LLVMFuzzerMutate ? LLVMFuzzerMutate(data, size, most) : size;
}

/* ---- behind an input ---- */

static void wait_for_sessions(void)
{
        for (int i = 0; node.rpc->users.n_sessions && i < TURNS_MAX; i++)
                uv_run(&node.loop, UV_RUN_ONCE);
        assert(node.rpc->users.n_sessions == 0);
}

/* Jobs that inputs have made would fill the node. */
static void drop_others(void)
{
        list_for_each (&node.x.jobs, item) {
                struct job *job = CONTAINER_OF(item, struct job, link);
                Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
                Zero__Drop drop = ZERO__DROP__INIT;

                if (strcmp(job->name, "fuzz") == 0)
                        continue;
                m.job = job->name;
                m.body_case = ZERO__LINK_MESSAGE__BODY_DROP;
                m.drop = &drop;
                send_all(&node.x, &m);
        }
        for (int i = 0; i < 20; i++)
                uv_run(&node.loop, UV_RUN_NOWAIT);
        for (int i = 0; i < TURNS_MAX && !list_empty(&node.x.dead_jobs); i++)
                uv_run(&node.loop, UV_RUN_ONCE);
        assert(list_empty(&node.x.dead_jobs));
}

static void one_session(enum prelude prelude, const uint8_t *data, size_t size)
{
        int pair[2];
        int r = socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair);

        assert(r == 0);
        r = session_new(node.rpc, pair[1]);
        assert(r == 0);
        say_prelude(pair[0], prelude);
        say_input(pair[0], data, size);
        close(pair[0]);
        wait_for_sessions();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        if (!node.rpc)
                node_start();
        if (!job_find(&node.x, "fuzz")) /* it may have been dropped: clients may do that */
                one_session(PRELUDE_RANK, NULL, 0);
        if (size == 0)
                return 0;
        one_session((enum prelude)(data[0] % 4), data + 1, size - 1);
        drop_others();
        return 0;
}

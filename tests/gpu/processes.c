/*
 * Two processes and one GPU: memory that the daemon's side shares, events that the trainer's side
 * records, and what is left when a trainer is killed or does something wrong on the GPU.
 *
 * The parent is the daemon, its child the trainer; they part before either has touched the GPU.
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/compute/device/host.h"
#include "tests/gpu/gpu.h"
#include "tests/support/adamw.h"

enum {
        ORDINARY, /* reads, writes, says when that is done, ends */
        KILLED,   /* goes on working until it is killed */
        ILLEGAL,  /* reads where no memory is */
        OTHER,    /* another user's; else ordinary */
        NOBODY = 65534,
        BYTES = 8 << 20,
        TIMES = 5,    /* that one event is recorded */
        BUSY_MS = 60, /* of copies ahead of what the event stands for */
        BUSY_BYTES = 256 << 20,
        FIRST_VALUE = 2,         /* that a trainer writes; the daemon's is 1 */
        SLACK = 16 << 20,        /* of the driver's own */
        DEADLINE_MS = 20 * 1000, /* of every wait */
};

struct offer { /* from the daemon to the trainer; the descriptor comes with it */
        uint64_t bytes;
        bool by_handle;
        uint8_t handle[ZERO_GPU_HANDLE];
};

struct hello { /* from the trainer */
        uint8_t uuid[ZERO_GPU_UUID], event[ZERO_GPU_HANDLE];
};

static int64_t now_us(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int64_t now_ms(void)
{
        return now_us() / 1000;
}

static void nap(void)
{
        const struct timespec t = { .tv_nsec = 1000000 };

        nanosleep(&t, NULL);
}

/* ---- messages -------------------------------------------------------------- */

static void say(int socket, const void *data, size_t n, int fd)
{
        union {
                struct cmsghdr header;
                char space[CMSG_SPACE(sizeof(int))];
        } control = { 0 };
        struct iovec part = { (void *)data, n };
        struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1 };

        if (fd >= 0) {
                m.msg_control = &control;
                m.msg_controllen = sizeof control;
                *CMSG_FIRSTHDR(&m) = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(int)),
                                                       .cmsg_level = SOL_SOCKET,
                                                       .cmsg_type = SCM_RIGHTS };
                memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &fd, sizeof fd);
        }
        if (sendmsg(socket, &m, MSG_NOSIGNAL) != (ssize_t)n)
                die("the other process is gone");
}

/* Returns the descriptor that came along, or -1. */
static int hear(int socket, void *data, size_t n)
{
        union {
                struct cmsghdr header;
                char space[CMSG_SPACE(sizeof(int))];
        } control = { 0 };
        struct iovec part = { data, n };
        struct msghdr m = { .msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = &control,
                            .msg_controllen = sizeof control };
        int fd = -1;

        if (recvmsg(socket, &m, MSG_WAITALL) != (ssize_t)n)
                die("the other process is gone");
        if (CMSG_FIRSTHDR(&m))
                memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
        return fd;
}

/* ---- memory ----------------------------------------------------------------- */

static void all_bytes(const struct gpu *gpu, const void *window, size_t n, uint8_t expected)
{
        uint8_t *host = malloc(n);

        gpu_move(gpu, host, window, n);
        for (size_t i = 0; i < n; i++)
                if (host[i] != expected)
                        die("byte %zu is %u instead of %u", i, host[i], expected);
        free(host);
}

/* ---- the trainer ----------------------------------------------------------- */

static void read_nowhere(const struct gpu *gpu)
{
        void *to = gpu_new(gpu, 4096);

        must(gpu->ops->cast(ZERO_FP32, to, ZERO_FP32, (void *)0x10000, 0, gpu->stream), "cast");
        (void)gpu->ops->cast(ZERO_BF16, to, ZERO_FP32, (void *)0x10000, 1024, gpu->stream);
        if (gpu->ops->stream_wait(gpu->stream) == 0)
                die("nobody noticed a read of address 0x10000");
        if (gpu->ops->stream_wait(gpu->stream) == 0)
                die("a fault was forgotten");
}

/* Copies that keep the stream busy. */
struct busy {
        void *to, *from;
        size_t bytes;
        int count; /* that take BUSY_MS */
};

static void keep_busy(const struct gpu *gpu, const struct busy *b, int count)
{
        for (int i = 0; i < count; i++)
                must(gpu->ops->copy(b->to, b->from, b->bytes, gpu->stream), "copy");
}

static struct busy busy_new(const struct gpu *gpu)
{
        enum { TRIED = 8 };
        size_t bytes = gpu->small ? BYTES : BUSY_BYTES;
        struct busy b = { .to = gpu_new(gpu, bytes), .from = gpu_new(gpu, bytes), .bytes = bytes };
        int64_t start, us;

        keep_busy(gpu, &b, 1);
        gpu_wait(gpu);
        start = now_us();
        keep_busy(gpu, &b, TRIED);
        gpu_wait(gpu);
        us = now_us() - start;
        b.count = 1 + (int)(BUSY_MS * 1000 * TRIED / (us ? us : 1));
        return b;
}

/* Makes every byte of the window `value`, behind much other work. */
static void write_window(const struct gpu *gpu, const struct busy *busy, void *window,
                         uint8_t value, void *event)
{
        uint8_t *host = malloc(BYTES);

        memset(host, value, BYTES);
        gpu_move(gpu, busy->from, host, BYTES);
        keep_busy(gpu, busy, busy->count);
        must(gpu->ops->copy(window, busy->from, BYTES, gpu->stream), "copy");
        must(gpu->client->event_record(event, gpu->stream), "record");
        free(host);
}

/* As libzero does where the daemon cannot open the event. */
static void wait_itself(const struct gpu *gpu, void *event)
{
        int64_t deadline = now_ms() + DEADLINE_MS;
        int r;

        while ((r = gpu->client->event_done(event)) == 0) {
                if (now_ms() > deadline)
                        die("the event did not come to the trainer that recorded it");
                nap();
        }
        must(r, "an event of the trainer's own");
}

/* The daemon looks at each value before the next one is written. */
static void work(const struct gpu *gpu, int socket, int kind, void *window, void *event)
{
        const struct busy busy = busy_new(gpu);
        char go;

        all_bytes(gpu, window, BYTES, FIRST_VALUE - 1);
        for (uint8_t i = 0; i < TIMES; i++) {
                write_window(gpu, &busy, window, FIRST_VALUE + i, event);
                if (kind == OTHER)
                        wait_itself(gpu, event);
                say(socket, "", 1, -1);
                while (kind == KILLED) {
                        keep_busy(gpu, &busy, 1);
                        gpu_wait(gpu);
                }
                hear(socket, &go, 1);
        }
}

_Noreturn static void trainer(struct gpu gpu, int socket, int kind)
{
        struct hello hello;
        struct offer offer;
        void *event, *window;
        int fd;

        if (kind == OTHER && (setgid(NOBODY) || setuid(NOBODY)))
                die("cannot become another user");
        gpu_start(&gpu);
        if (kind == ILLEGAL) {
                read_nowhere(&gpu);
                _exit(EXIT_SUCCESS);
        }
        must(gpu.client->uuid(0, hello.uuid), "uuid");
        must(gpu.client->event_new(0, hello.event, &event), "event");
        say(socket, &hello, sizeof hello, -1);
        fd = hear(socket, &offer, sizeof offer);
        must(gpu.client->map(0, fd, offer.handle, offer.bytes, true, &window), "map");
        if (fd >= 0)
                close(fd);
        work(&gpu, socket, kind, window, event);
        gpu.client->unmap(window);
        _exit(EXIT_SUCCESS);
}

struct child {
        pid_t pid;
        int socket;
};

static struct child start(const struct gpu *gpu, int kind)
{
        struct child c;
        int ends[2];

        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
                die("no socket");
        c.pid = fork();
        if (c.pid < 0)
                die("no process");
        if (c.pid == 0) {
                close(ends[0]);
                trainer(*gpu, ends[1], kind);
        }
        close(ends[1]);
        c.socket = ends[0];
        return c;
}

static int end(struct child *c)
{
        int status;

        if (waitpid(c->pid, &status, 0) != c->pid)
                die("no status of the trainer");
        if (c->socket >= 0)
                close(c->socket);
        return status;
}

/* ---- the daemon ------------------------------------------------------------ */

static uint64_t free_bytes(const struct gpu *gpu)
{
        uint64_t left, total;

        must(gpu->ops->memory(&left, &total), "memory");
        return left;
}

/* What a dead process had, the driver gives back soon, not at once. */
static void must_come_back(const struct gpu *gpu, uint64_t before, const char *when)
{
        int64_t deadline = now_ms() + DEADLINE_MS;

        while (free_bytes(gpu) + SLACK < before) {
                if (now_ms() > deadline)
                        die("%llu bytes of GPU memory are missing %s",
                            (unsigned long long)(before - free_bytes(gpu)), when);
                nap();
        }
}

static struct zero_cuda_share window_of_ones(const struct gpu *gpu)
{
        struct zero_cuda_share share;
        uint8_t *ones = malloc(BYTES);

        must(gpu->ops->share_new(BYTES - 1, &share), "share");
        if (share.bytes < BYTES - 1 || gpu->ops->gpu_of(share.memory) != 0)
                die("the window has %llu bytes, on GPU %d", (unsigned long long)share.bytes,
                    gpu->ops->gpu_of(share.memory));
        all_bytes(gpu, share.memory, share.bytes, 0);
        memset(ones, 1, BYTES);
        gpu_move(gpu, share.memory, ones, BYTES);
        free(ones);
        return share;
}

/* Waits as a daemon does: by looking. */
static int look(const struct gpu *gpu, void *event)
{
        int64_t deadline = now_ms() + DEADLINE_MS;
        int pending = 0, r;

        while ((r = gpu->ops->event_done(event)) == 0) {
                if (now_ms() > deadline)
                        die("the trainer's event did not come");
                pending++;
                nap();
        }
        must(r, "event");
        return pending;
}

/* From the first word to the window; NULL: the trainer's event cannot be opened. */
static void *offer_window(const struct gpu *gpu, struct child *c, const struct zero_cuda_share *s)
{
        struct offer offer = { .bytes = s->bytes, .by_handle = s->fd < 0 };
        struct zero_cuda_info info;
        struct hello hello;
        void *event;

        must(gpu->ops->device_info(0, &info), "info");
        hear(c->socket, &hello, sizeof hello);
        if (memcmp(hello.uuid, info.uuid, sizeof info.uuid))
                die("the two processes know the GPU by two UUIDs");
        if (gpu->ops->event_open(hello.event, &event) < 0)
                event = NULL;
        memcpy(offer.handle, s->handle, sizeof offer.handle);
        say(c->socket, &offer, sizeof offer, s->fd);
        return event;
}

/* Each value, as soon as its event says that it is there; how often it was not there yet. */
static int see_values(const struct gpu *gpu, const struct child *c, const void *window, void *event,
                      int times)
{
        int late = 0;
        char recorded;

        for (uint8_t i = 0; i < times; i++) {
                hear(c->socket, &recorded, 1);
                if (event)
                        late += look(gpu, event) > 0;
                all_bytes(gpu, window, BYTES, FIRST_VALUE + i);
                say(c->socket, "", 1, -1);
        }
        return late;
}

static void check_sharing(struct gpu *gpu, struct child *c)
{
        struct zero_cuda_share share = window_of_ones(gpu);
        void *event = offer_window(gpu, c, &share);
        int late;

        if (!event)
                die("the trainer's event cannot be opened");
        late = see_values(gpu, c, share.memory, event, TIMES);
        if (end(c) != 0)
                die("the trainer failed");
        all_bytes(gpu, share.memory, BYTES, FIRST_VALUE + TIMES - 1);
        printf("shared by %s; one event was recorded %d times, was pending %d times, then all was "
               "there\n",
               share.fd < 0 ? "a legacy handle" : "a descriptor", TIMES, late);
        gpu->ops->event_free(event);
        gpu->ops->share_free(&share);
}

_Noreturn static void serve_other_user(struct gpu gpu)
{
        struct child c = start(&gpu, OTHER);
        struct zero_cuda_share share;
        void *event;

        gpu_start(&gpu);
        share = window_of_ones(&gpu);
        event = offer_window(&gpu, &c, &share);
        see_values(&gpu, &c, share.memory, event, TIMES);
        if (end(&c) != 0)
                die("the trainer of another user failed");
        printf("a trainer of another user sees the window; its events %s\n",
               event ? "can be opened" : "cannot be opened: it has to wait for its GPU itself");
        if (event)
                gpu.ops->event_free(event);
        gpu.ops->share_free(&share);
        exit(EXIT_SUCCESS);
}

/*
 * A window goes to a trainer of another user by its descriptor, which has to work.  Whether an
 * event does, perhaps by a file of its user's, is for the driver to say, and told: a trainer whose
 * events cannot be opened waits itself.
 */
static bool other_user_is_served(const struct gpu *gpu)
{
        struct child daemon = { .socket = -1 };

        if (geteuid() != 0)
                return true;
        daemon.pid = fork();
        if (daemon.pid == 0)
                serve_other_user(*gpu);
        return daemon.pid > 0 && end(&daemon) == 0;
}

static void check_killed(struct gpu *gpu, struct child *c)
{
        struct zero_cuda_share share = window_of_ones(gpu);
        void *event = offer_window(gpu, c, &share);

        if (!event)
                die("the trainer's event cannot be opened");
        see_values(gpu, c, share.memory, event, 1);
        kill(c->pid, SIGKILL);
        end(c);
        all_bytes(gpu, share.memory, BYTES, FIRST_VALUE);
        (void)gpu->ops->event_done(event); /* whatever it says, it returns */
        gpu->ops->event_free(event);
        gpu->ops->share_free(&share);
}

/* An update that must be right, whatever others do to the GPU meanwhile. */
static void check_update(struct gpu *gpu)
{
        enum { N = 100003 };
        struct update_scalars s = adamw_scalars(1e-3, 0.9, 0.999, 1e-8, 0.1, 3, 0.7);
        uint64_t state = 1;
        struct update_piece u = { .scalars = s, .n = N };
        struct twin t[4];

        for (int i = 0; i < 4; i++)
                t[i] = twin_new(gpu, ZERO_FP32, N, 0, &state);
        run_adamw(&host_scalar_ops, &s, N, t[0].host, t[1].host, t[2].host, t[3].host, NULL);
        update_in_place(&u, t);
        u.grad[0] = t[3].gpu;
        u.k = 1;
        u.from = u.wire = ZERO_FP32;
        must(gpu->ops->update(&u, 1, gpu->stream), "adamw");
        for (int i = 0; i < 4; i++) {
                if (!twin_same(gpu, &t[i]))
                        die("an update differs");
                twin_free(gpu, &t[i]);
        }
}

/* The fault is the trainer's alone.  (The fake plugin ends the process that is wrong.) */
static void check_illegal(struct gpu *gpu, struct child *c)
{
        int status;

        check_update(gpu);
        status = end(c);
        if (status != 0 && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT))
                die("the trainer that read nowhere ended with status %d", status);
        check_update(gpu);
        puts("a trainer's illegal access hurt nobody else");
}

static int descriptors(void)
{
        DIR *directory = opendir("/proc/self/fd");
        int n = 0;

        while (directory && readdir(directory))
                n++;
        closedir(directory);
        return n;
}

static void check_flat(struct gpu *gpu)
{
        int rounds = gpu->quick ? 20 : 1000, fds = 0;
        uint64_t before = 0;

        for (int i = 0; i < rounds; i++) {
                struct zero_cuda_share share;
                void *memory = gpu_new(gpu, BYTES), *pinned;

                must(gpu->ops->share_new(BYTES, &share), "share");
                must(gpu->ops->pinned_new(BYTES, &pinned), "pinned memory");
                gpu_move(gpu, share.memory, pinned, BYTES);
                gpu_move(gpu, memory, share.memory, BYTES);
                gpu->ops->pinned_free(pinned);
                gpu->ops->share_free(&share);
                gpu->ops->free(memory);
                if (i == rounds / 10) {
                        before = free_bytes(gpu);
                        fds = descriptors();
                }
        }
        must_come_back(gpu, before, "after many rounds of sharing");
        if (descriptors() != fds)
                die("%d descriptors became %d", fds, descriptors());
        printf("%d rounds of memory: none is missing\n", rounds);
}

int main(int argc, char *argv[])
{
        enum { DEATHS = 3 };
        struct child ordinary, illegal, killed[DEATHS];
        struct gpu gpu;
        uint64_t before;
        bool served;

        gpu_load(argc, argv, &gpu);
        served = other_user_is_served(&gpu); /* before this process uses CUDA: it forks */
        ordinary = start(&gpu, ORDINARY);
        illegal = start(&gpu, ILLEGAL);
        for (int i = 0; i < DEATHS; i++)
                killed[i] = start(&gpu, KILLED);
        gpu_start(&gpu);
        check_illegal(&gpu, &illegal);
        check_sharing(&gpu, &ordinary);
        before = free_bytes(&gpu);
        for (int i = 0; i < DEATHS; i++)
                check_killed(&gpu, &killed[i]);
        must_come_back(&gpu, before, "after trainers were killed");
        printf("%d trainers killed: their memory came back\n", DEATHS);
        check_flat(&gpu);
        if (!served)
                die("a trainer of another user cannot be served, as said above");
        return 0;
}

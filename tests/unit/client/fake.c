/* See fake.h. */
#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "proto/slots.h"
#include "tests/support/temporary.h"

enum { FAKE_FDS = 4 };

static void *run(void *data)
{
        struct fake *f = data;

        f->script(f);
        return NULL;
}

static void listen_at(struct fake *f)
{
        struct sockaddr_un address = { .sun_family = AF_UNIX };

        memcpy(address.sun_path, f->path, sizeof(f->path));
        f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        MUST(f->listener >= 0);
        MUST(bind(f->listener, (struct sockaddr *)&address, sizeof(address)) == 0);
        MUST(listen(f->listener, 4) == 0);
}

void fake_start(struct fake *f, void (*script)(struct fake *fake))
{
        *f = (struct fake){ .fd = -1, .script = script, .data = f->data };
        f->job = (struct fake_job){ .version = 7, .attempt = 20, .gather_bytes = FAKE_GATHER };
        MUST(temporary_directory(f->directory, sizeof(f->directory)));
        snprintf(f->path, sizeof(f->path), "%s/sock", f->directory);
        frame_reader_init(&f->reader, 64 << 20);
        listen_at(f);
        MUST(pthread_create(&f->thread, NULL, run, f) == 0);
}

void fake_go_away(struct fake *f)
{
        fake_hang_up(f);
        close(f->listener);
        f->listener = -1;
        MUST(unlink(f->path) == 0);
}

void fake_come_back(struct fake *f)
{
        listen_at(f);
}

static void unmap_windows(struct fake *f)
{
        if (f->session)
                munmap(f->session, f->session_bytes);
        if (f->push_bytes > 0)
                munmap(f->slots, f->push_bytes);
        if (f->gather)
                munmap(f->gather, f->gather_bytes);
        if (f->serve)
                munmap(f->serve, FAKE_SERVE);
        f->session = f->slots = f->gather = f->serve = NULL;
        f->push_bytes = 0;
}

/* The thread is given ten seconds. */
void fake_stop(struct fake *f)
{
        struct timespec deadline;

        clock_gettime(CLOCK_REALTIME, &deadline);
        deadline.tv_sec += 10;
        MUST(pthread_timedjoin_np(f->thread, NULL, &deadline) == 0);
        if (f->request)
                zero__request__free_unpacked(f->request, NULL);
        unmap_windows(f);
        fake_hang_up(f);
        frame_reader_deinit(&f->reader);
        if (f->listener >= 0)
                fake_go_away(f);
        MUST(rmdir(f->directory) == 0);
}

bool fake_readable(const void *at)
{
        int ends[2];
        bool readable;

        MUST(pipe2(ends, O_CLOEXEC) == 0);
        readable = write(ends[1], at, 1) == 1;
        MUST(readable || errno == EFAULT);
        close(ends[0]);
        close(ends[1]);
        return readable;
}

void fake_accept(struct fake *f)
{
        struct timeval limit = { 10, 0 };

        MUST(setsockopt(f->listener, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
        f->fd = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC);
        MUST(f->fd >= 0);
        MUST(setsockopt(f->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
}

void fake_hang_up(struct fake *f)
{
        if (f->fd >= 0)
                close(f->fd);
        f->fd = -1;
        frame_reader_deinit(&f->reader);
        frame_reader_init(&f->reader, 64 << 20);
        f->in_begin = f->in_end = 0;
}

static bool next_frame(struct fake *f)
{
        for (;;) {
                size_t taken;
                ssize_t n;
                int r = frame_reader_feed(&f->reader, f->in + f->in_begin, f->in_end - f->in_begin,
                                          &taken);

                MUST(r >= 0);
                f->in_begin += taken;
                if (r == 1)
                        return true;
                n = recv(f->fd, f->in, sizeof(f->in), 0);
                if (n < 0 && errno == ECONNRESET)
                        n = 0; /* the client had something left to read */
                MUST(n >= 0);
                if (n == 0)
                        return false;
                f->in_begin = 0;
                f->in_end = (size_t)n;
        }
}

Zero__Request *fake_next(struct fake *f)
{
        const uint8_t *payload;
        size_t size;

        if (f->request)
                zero__request__free_unpacked(f->request, NULL);
        f->request = NULL;
        if (!next_frame(f))
                return NULL;
        payload = frame_reader_payload(&f->reader, &size);
        f->request = zero__request__unpack(NULL, size, payload);
        frame_reader_next(&f->reader);
        MUST(f->request);
        return f->request;
}

Zero__Request *fake_expect(struct fake *f, Zero__Request__BodyCase what)
{
        MUST(fake_next(f));
        MUST(f->request->body_case == what);
        return f->request;
}

void fake_expect_end(struct fake *f)
{
        if (next_frame(f)) {
                size_t size;
                const uint8_t *payload = frame_reader_payload(&f->reader, &size);
                Zero__Request *request = zero__request__unpack(NULL, size, payload);

                MUST(request && request->body_case == ZERO__REQUEST__BODY_BYE);
                zero__request__free_unpacked(request, NULL);
                frame_reader_next(&f->reader);
                MUST(!next_frame(f));
        }
}

unsigned fake_drain(struct fake *f)
{
        unsigned n = 0;

        for (; next_frame(f); n++)
                frame_reader_next(&f->reader);
        return n;
}

void fake_send_fds(struct fake *f, const void *bytes, size_t n, const int *fds, size_t n_fds)
{
        _Alignas(struct cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = { 0 };
        struct iovec iov = { (void *)bytes, n };
        struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

        if (n_fds > 0) {
                struct cmsghdr *c = (struct cmsghdr *)control;

                message.msg_control = control;
                message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
                memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
        }
        /* a client may close without waiting for the answer to a release */
        MUST(sendmsg(f->fd, &message, MSG_NOSIGNAL) == (ssize_t)n || errno == EPIPE);
}

void fake_send(struct fake *f, const void *bytes, size_t n)
{
        fake_send_fds(f, bytes, n, NULL, 0);
}

static void reply_fds(struct fake *f, const Zero__Reply *reply, const int *fds, size_t n_fds)
{
        size_t size = zero__reply__get_packed_size(reply);
        CLEANUP(cleanup_free) uint8_t *frame = malloc(FRAME_HEADER + size);

        MUST(frame);
        frame_write_header(frame, (uint32_t)size);
        zero__reply__pack(reply, frame + FRAME_HEADER);
        fake_send_fds(f, frame, FRAME_HEADER + size, fds, n_fds);
}

void fake_reply(struct fake *f, const Zero__Reply *reply)
{
        reply_fds(f, reply, NULL, 0);
}

void fake_ok(struct fake *f, uint64_t seq)
{
        fake_refuse(f, seq, ZERO_OK, "");
}

void fake_refuse(struct fake *f, uint64_t seq, int status, const char *text)
{
        Zero__Reply reply = ZERO__REPLY__INIT;

        reply.seq = seq;
        reply.status = (uint32_t)status;
        reply.text = (char *)text;
        fake_reply(f, &reply);
}

void fake_fetched(struct fake *f, uint64_t seq, bool serve, uint64_t offset)
{
        Zero__FetchReply fetch = ZERO__FETCH_REPLY__INIT;
        Zero__Reply reply = ZERO__REPLY__INIT;

        fetch.serve = serve;
        fetch.offset = offset;
        reply.seq = seq;
        reply.body_case = ZERO__REPLY__BODY_FETCH;
        reply.fetch = &fetch;
        fake_reply(f, &reply);
}

void fake_stepped(struct fake *f, uint64_t seq, int status, uint64_t version, uint64_t attempt)
{
        Zero__StepReply step = ZERO__STEP_REPLY__INIT;
        Zero__Reply reply = ZERO__REPLY__INIT;

        step.version = version;
        step.attempt = attempt;
        step.grad_norm = 0.5;
        step.loss_scale = 1024;
        reply.seq = seq;
        reply.status = (uint32_t)status;
        reply.body_case = ZERO__REPLY__BODY_STEP;
        reply.step = &step;
        fake_reply(f, &reply);
}

void fake_json(struct fake *f, uint64_t seq, const char *json)
{
        Zero__QueryReply query = ZERO__QUERY_REPLY__INIT;
        Zero__Reply reply = ZERO__REPLY__INIT;

        query.json = (char *)json;
        reply.seq = seq;
        reply.body_case = ZERO__REPLY__BODY_QUERY;
        reply.query = &query;
        fake_reply(f, &reply);
}

void fake_hello(struct fake *f)
{
        Zero__HelloReply hello = ZERO__HELLO_REPLY__INIT;
        Zero__Reply reply = ZERO__REPLY__INIT;

        fake_accept(f);
        hello.protocol = fake_expect(f, ZERO__REQUEST__BODY_HELLO)->hello->protocol;
        reply.seq = f->request->seq;
        reply.body_case = ZERO__REPLY__BODY_HELLO;
        reply.hello = &hello;
        fake_reply(f, &reply);
}

int fake_memfd(size_t bytes, uint8_t **ret_map)
{
        int fd = memfd_create("fake", MFD_CLOEXEC);

        MUST(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
        if (ret_map) {
                *ret_map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
                MUST(*ret_map != MAP_FAILED);
        }
        return fd;
}

static uint64_t push_bytes(const Zero__Attach *attach)
{
        bool skip[FAKE_GROUPS] = { [FAKE_FROZEN] = true };
        struct slots *slots;
        struct fault fault;
        uint64_t bytes;
        layout *l;

        MUST(layout_from_message(attach->layout, &l, &fault) == 0);
        MUST(slots_new(l, attach->push_groups, attach->grad_dtype, skip, &slots) == 0);
        bytes = slots->bytes;
        slots_free(slots);
        layout_free(l);
        return bytes;
}

static void make_slots(struct fake *f, int fds[static FAKE_FDS], size_t *n)
{
        const Zero__Attach *attach = f->request->attach;
        size_t bytes = push_bytes(attach);

        f->push_bytes = attach->gpu.len > 0 ? bytes : 0;
        f->session_bytes = FAKE_TRANSFER + (attach->gpu.len > 0 ? 0 : bytes);
        fds[(*n)++] = fake_memfd(f->session_bytes, &f->session);
        f->slots = f->session + FAKE_TRANSFER;
        if (f->push_bytes > 0)
                fds[(*n)++] = fake_memfd(f->push_bytes, &f->slots);
}

static size_t make_windows(struct fake *f, int fds[static FAKE_FDS])
{
        size_t n = 0;

        unmap_windows(f);
        make_slots(f, fds, &n);
        f->gather_bytes = f->job.gather_bytes;
        if (f->gather_bytes > 0)
                fds[n++] = fake_memfd(f->gather_bytes, &f->gather);
        fds[n++] = fake_memfd(FAKE_SERVE, &f->serve);
        return n;
}

static void tell(const struct fake *f, Zero__AttachReply *ret)
{
        const struct fake_job *job = &f->job;

        ret->version = job->version;
        ret->attempt = job->attempt;
        ret->loss_scale = 2;
        ret->session_bytes = f->session_bytes;
        ret->transfer_bytes = FAKE_TRANSFER;
        ret->push_bytes = f->push_bytes;
        ret->gather_bytes = f->gather_bytes;
        ret->serve_bytes = FAKE_SERVE;
        ret->no_events = job->no_events;
        ret->last = (Zero__StepReply *)job->last;
        ret->last_attempt = job->last_attempt;
        ret->accepted = (uint32_t *)job->accepted;
        ret->n_accepted = job->n_accepted;
        ret->blob = (ProtobufCBinaryData){ job->blob_bytes, (uint8_t *)job->blob };
}

void fake_attach(struct fake *f)
{
        Zero__AttachReply attach = ZERO__ATTACH_REPLY__INIT;
        Zero__Reply reply = ZERO__REPLY__INIT;
        int fds[FAKE_FDS];
        size_t n;

        fake_expect(f, ZERO__REQUEST__BODY_ATTACH);
        n = make_windows(f, fds);
        tell(f, &attach);
        reply.seq = f->request->seq;
        reply.body_case = ZERO__REPLY__BODY_ATTACH;
        reply.attach = &attach;
        reply_fds(f, &reply, fds, n);
        while (n > 0)
                close(fds[--n]);
}

void fake_begin(struct fake *f)
{
        fake_hello(f);
        fake_attach(f);
}

void fake_restart(struct fake *f)
{
        fake_hang_up(f);
        fake_begin(f);
        MUST(f->request->attach->resume);
}

void fake_only_begin(struct fake *f)
{
        fake_begin(f);
        fake_expect_end(f);
}

/* Connecting, greeting, closing, and what a client tells about itself. */
#include "client.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "proto/cleanup.h"

DEFINE_CLEANUP(struct zero_client *, zero_close)

#define refuse(code, ...) fault_set(&client_thread_fault, code, __VA_ARGS__)

/* ---- where the daemon listens ------------------------------------------ */

static int copy_path(struct sockaddr_un *address, const char *path)
{
        if (strlen(path) >= sizeof(address->sun_path))
                return refuse(ZERO_EINVAL, "the socket's path is longer than %zu bytes: %s",
                              sizeof(address->sun_path) - 1, path);
        snprintf(address->sun_path, sizeof(address->sun_path), "%s", path);
        return 0;
}

/* The socket of the user's own daemon if there is one, else of the system's. */
static int default_address(struct sockaddr_un *address)
{
        const char *directory = getenv("XDG_RUNTIME_DIR");
        int n;

        if (directory && directory[0]) {
                n = snprintf(address->sun_path, sizeof(address->sun_path), "%s/zerod.sock",
                             directory);
                if (n > 0 && (size_t)n < sizeof(address->sun_path) &&
                    access(address->sun_path, F_OK) == 0)
                        return 0;
        }
        return copy_path(address, "/run/zerod/zerod.sock");
}

static int resolve(const char *socket_path, struct sockaddr_un *ret_address)
{
        const char *path = socket_path ? socket_path : getenv("ZEROD_SOCKET");

        memset(ret_address, 0, sizeof(*ret_address));
        ret_address->sun_family = AF_UNIX;
        return path && path[0] ? copy_path(ret_address, path) : default_address(ret_address);
}

static int connect_failed(const char *path, int error, struct fault *fault)
{
        if (error == EACCES || error == EPERM)
                return fault_set(fault, ZERO_EPERM, "no permission for zerod's socket %s", path);
        if (error == EAGAIN)
                return fault_set(fault, ZERO_EDEADLINE, "zerod does not accept connections on %s",
                                 path);
        return fault_set(fault, ZERO_ECLOSED, "cannot connect to %s: %s; is zerod running?", path,
                         strerror(error));
}

/* The send timeout bounds connect() where the daemon's queue is full. */
static int open_socket(const struct sockaddr_un *address, int64_t until_ms, struct fault *fault,
                       int *ret_fd)
{
        int64_t left = until_ms - wire_now();
        struct timeval timeout = { left / 1000, left % 1000 * 1000 };
        CLEANUP(cleanup_close)
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        int r;

        if (fd < 0)
                return fault_set(fault, ZERO_EIO, "cannot make a socket: %s", strerror(errno));
        if (left < 1) /* a timeout of 0 would mean no limit */
                timeout = (struct timeval){ 0, 1000 };
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
        do {
                r = connect(fd, (const struct sockaddr *)address, sizeof(*address));
        } while (r < 0 && errno == EINTR);
        if (r < 0)
                return connect_failed(address->sun_path, errno, fault);
        *ret_fd = STEAL_FD(fd);
        return 0;
}

/* ---- greeting ---------------------------------------------------------- */

static bool job_name_valid(const char *name)
{
        size_t n = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                "0123456789._-");

        return n > 0 && n <= ZERO_NAME_MAX && name[n] == '\0';
}

static int check_options(const struct zero_options *o)
{
        if (o->job && !job_name_valid(o->job))
                return refuse(ZERO_EINVAL, "a job's name is 1 to %d of A-Z a-z 0-9 . _ -",
                              ZERO_NAME_MAX);
        if (!o->job || o->rank == ZERO_OBSERVER)
                return 0;
        if (o->world_size < 1 || o->world_size > ZERO_RANK_MAX)
                return refuse(ZERO_ERANK, "a world size is 1 to %d, not %u", ZERO_RANK_MAX,
                              (unsigned)o->world_size);
        if (o->rank < 0 || (uint32_t)o->rank >= o->world_size)
                return refuse(ZERO_ERANK, "rank %d is not in a world of %u", (int)o->rank,
                              (unsigned)o->world_size);
        if (o->local_world_size > o->world_size)
                return refuse(ZERO_EINVAL, "%u ranks on this node in a world of %u",
                              (unsigned)o->local_world_size, (unsigned)o->world_size);
        return 0;
}

/* ---- what the options leave to the environment ------------------------- */

/* *ret_number stays as it is where the variable is not set. */
static int take_number(const char *name, uint32_t *ret_number)
{
        const char *text = getenv(name);
        size_t digits = text ? strspn(text, "0123456789") : 0;

        if (!text || !text[0])
                return 0;
        if (text[digits] || digits > 9)
                return refuse(ZERO_EINVAL, "%s is '%.40s' in the environment, not a number", name,
                              text);
        *ret_number = (uint32_t)strtoul(text, NULL, 10);
        return 0;
}

static int take_place(struct zero_options *o)
{
        static const char *const names[] = { "RANK", "WORLD_SIZE" };
        uint32_t found[] = { UINT32_MAX, UINT32_MAX };
        int r = take_number(names[0], &found[0]);

        if (r == 0)
                r = take_number(names[1], &found[1]);
        if (r == 0 && o->local_world_size == 0)
                r = take_number("LOCAL_WORLD_SIZE", &o->local_world_size);
        if (r == 0 && o->incarnation == 0)
                r = take_number("TORCHELASTIC_RESTART_COUNT", &o->incarnation);
        if (r)
                return r;
        for (int i = 0; i < 2; i++)
                if (found[i] == UINT32_MAX && found[!i] != UINT32_MAX)
                        return refuse(ZERO_EINVAL,
                                      "%s is set in the environment and %s is not: set both, or "
                                      "pass rank and world_size",
                                      names[!i], names[i]);
        o->rank = found[0] == UINT32_MAX ? 0 : (int32_t)found[0];
        o->world_size = found[1] == UINT32_MAX ? 1 : found[1];
        return 0;
}

static int complete(struct zero_options *o)
{
        const char *job = getenv("ZEROD_JOB");

        if (o->rank == ZERO_OBSERVER)
                return 0;
        if (!o->job && job && job[0])
                o->job = job;
        return o->job && o->rank == 0 && o->world_size == 0 ? take_place(o) : 0;
}

/* ---- the conversation -------------------------------------------------- */

static int greet(struct zero_client *c)
{
        Zero__Hello hello = ZERO__HELLO__INIT;
        const Zero__Reply *reply;
        int r;

        hello.protocol = ZERO__HELLO__PROTOCOL__VERSION;
        hello.oldest = ZERO__HELLO__PROTOCOL__OLDEST;
        hello.job = c->job;
        hello.rank = c->rank;
        hello.world_size = c->world_size;
        hello.local_world_size = c->local_world_size;
        hello.timeout_ms = c->patient ? 0 : c->timeout_ms;
        r = client_ask(c, REQUEST(HELLO, hello, &hello), &reply);
        if (r)
                return r;
        if (reply->hello->protocol < ZERO__HELLO__PROTOCOL__OLDEST ||
            reply->hello->protocol > ZERO__HELLO__PROTOCOL__VERSION)
                return client_fail(c, ZERO_EVERSION,
                                   "zerod answers by protocol %u, libzero speaks "
                                   "%d to %d: they may be one release apart",
                                   (unsigned)reply->hello->protocol, ZERO__HELLO__PROTOCOL__OLDEST,
                                   ZERO__HELLO__PROTOCOL__VERSION);
        c->protocol = reply->hello->protocol;
        if (c->patient && reply->hello->timeout_ms)
                c->timeout_ms = reply->hello->timeout_ms;
        return 0;
}

int client_dial(struct zero_client *c, int64_t until_ms)
{
        int fd = -1, r = open_socket(&c->address, until_ms, &c->error, &fd);

        if (r)
                return r;
        client_forget_reply(c);
        wire_deinit(&c->wire);
        wire_init(&c->wire, fd);
        c->lost = false;
        c->last_seq = 0; /* a lost connection has no pending requests */
        return greet(c);
}

static void tell_stderr(void *arg, const char *text)
{
        fprintf(stderr, "zerod: %s\n", text);
}

static int client_new(const struct zero_options *o, struct zero_client **ret_client)
{
        struct zero_client *c = calloc(1, sizeof(*c));

        if (!c)
                return refuse(ZERO_ENOMEM, "out of memory");
        c->pid = getpid();
        wire_init(&c->wire, -1);
        arena_init(&c->arena);
        c->interrupt_fd = -1;
        snprintf(c->job, sizeof(c->job), "%s", o->job ? o->job : "");
        c->rank = o->job ? o->rank : ZERO_OBSERVER;
        c->world_size = o->world_size;
        c->local_world_size = o->local_world_size ? o->local_world_size : o->world_size;
        c->patient = o->timeout_ms == 0;
        c->timeout_ms = c->patient ? CLIENT_TIMEOUT_MS : o->timeout_ms;
        c->incarnation = o->incarnation;
        c->loss_scale = 1;
        c->tell = tell_stderr;
        *ret_client = c;
        return 0;
}

int zero_connect(const struct zero_options *options, struct zero_client **ret_client)
{
        CLEANUP(cleanup_zero_close) struct zero_client *c = NULL;
        struct zero_options complete_options;
        int r;

        if (!options || !ret_client)
                return refuse(ZERO_EINVAL, "zero_connect(): %s is NULL",
                              options ? "ret_client" : "options");
        complete_options = *options;
        r = complete(&complete_options);
        if (r == 0)
                r = check_options(&complete_options);
        if (r == 0)
                r = client_new(&complete_options, &c);
        if (r == 0)
                r = resolve(options->socket, &c->address);
        if (r)
                return r;
        c->interrupt_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (c->interrupt_fd < 0)
                return refuse(ZERO_EIO, "cannot make an eventfd: %s", strerror(errno));
        r = client_dial(c, wire_now() + c->timeout_ms);
        if (r)
                return refuse(r, "%s", c->error.text);
        *ret_client = STEAL(c);
        return 0;
}

/* Tells the daemon that the rank leaves in order.  A failure is ignored: nobody waits. */
static void say_bye(struct zero_client *c)
{
        Zero__Request request = ZERO__REQUEST__INIT;
        Zero__Bye bye = ZERO__BYE__INIT;

        request.seq = ++c->last_seq;
        request.body_case = ZERO__REQUEST__BODY_BYE;
        request.bye = &bye;
        bye.finish = c->finish;
        if (wire_queue(&c->wire, &request.base) == 0)
                wire_flush(&c->wire);
}

int zero_finish(struct zero_client *client, bool keep)
{
        int r = client_check_caller(client);

        if (r)
                return r;
        if (!client->layout)
                return client_fail(client, ZERO_ENOTATTACHED, "zero_attach() was not called yet");
        if (client->rank == ZERO_OBSERVER)
                return client_fail(client, ZERO_ENOTATTACHED,
                                   "an observer is not a rank of the job");
        client->finish = keep ? ZERO__FINISH__COMPLETE : ZERO__FINISH__UNWANTED;
        return 0;
}

static bool interrupted(const struct zero_client *c)
{
        uint64_t n;

        return c->interrupt_fd >= 0 && read(c->interrupt_fd, &n, sizeof(n)) > 0;
}

/* A forked process gives back what is its own.  A driver does not survive the fork, so what lies on
 * a GPU is left to the process's end. */
void zero_close(struct zero_client *client)
{
        bool forked;

        if (!client)
                return;
        forked = client_forked(client);
        if (!forked && client->wire.fd >= 0 && !interrupted(client))
                say_bye(client);
        client_forget_reply(client);
        if (!forked || !client->gpu)
                client_detach(client);
        if (!forked) {
                /* a forked process may keep the connection open.  Then the daemon frees windows:
                 * they must be unmapped */
                shutdown(client->wire.fd, SHUT_RDWR);
                gpu_close(client->gpu); /* its events are free for the process's next client */
                gpu_close(client->copy.gpu);
        }
        wire_deinit(&client->wire);
        if (client->interrupt_fd >= 0)
                close(client->interrupt_fd);
        free(client);
}

/* A forked process has the handler, too. */
static void close_if_good(int status, void *client)
{
        if (status == 0 && !client_forked(client))
                zero_close(client);
}

void zero_close_at_exit(struct zero_client *client)
{
        if (!client)
                return;
        on_exit(close_if_good, client); /* if that fails, the rank counts as lost */
}

void zero_on_wait(struct zero_client *client, zero_tell tell, void *arg)
{
        if (!client)
                return;
        client->tell = tell;
        client->tell_arg = arg;
}

void zero_interrupt(struct zero_client *client)
{
        uint64_t one = 1;
        int error = errno;

        if (!client || client_forked(client)) /* the eventfd is its parent's, too */
                return;
        /* fails only if the eventfd can be read already */
        while (write(client->interrupt_fd, &one, sizeof(one)) < 0 && errno == EINTR)
                ;
        errno = error;
}

/* ---- about the client -------------------------------------------------- */

uint32_t zero_library_version(void)
{
        return ZERO_LIBRARY_VERSION;
}

const char *zero_error(const struct zero_client *client)
{
        return client ? client->error.text : client_thread_fault.text;
}

int zero_fd(const struct zero_client *client)
{
        return client ? client->wire.fd : -1;
}

uint64_t zero_steps(const struct zero_client *client)
{
        return client ? client->version : 0;
}

const void *zero_blob(const struct zero_client *client, size_t *ret_bytes)
{
        if (ret_bytes)
                *ret_bytes = client ? client->blob_bytes : 0;
        return client && ret_bytes ? client->blob : NULL;
}

uint32_t zero_accepted(const struct zero_client *client, uint32_t group)
{
        if (!client || !client->groups || group >= client->layout->n_groups)
                return 0;
        return client->groups[group].accepted;
}

double zero_loss_scale(const struct zero_client *client)
{
        return client ? client->loss_scale : 0;
}

const struct zero_layout *zero_client_layout(const struct zero_client *client)
{
        return client ? client->layout : NULL;
}

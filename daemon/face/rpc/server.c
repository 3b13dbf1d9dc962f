/* The listening unix socket. */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "daemon/cluster/doctor/doctor.h"
#include "daemon/face/rpc/disposal.h"
#include "daemon/face/rpc/session.h"
#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

enum { SERVER_TICK_MS = 100, TICKS_SECOND = 10, PAUSE_MS = 1, PAUSE_FULL_MS = 100 };
enum { ACCEPTS = 8 }; /* in one turn of the loop */
enum { HEAP_KEPT = 4 << 20 };

static int spare_open(void)
{
        return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/*
 * A client that is not accepted stays in the queue and keeps the socket ready.  So one spare
 * descriptor is kept to accept such a client and close it.  The close may take long (disposal.h):
 * until it ends there is no spare, and no session may use its place.
 */
static void server_turn_away(struct rpc *rpc)
{
        int fd;

        cleanup_close(&rpc->spare);
        fd = accept4(rpc->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0)
                disposal_close(fd, (uid_t)-1);
        rpc->spare = spare_open();
}

/* Logs why a client was turned away. */
static void server_refused(const struct rpc *rpc, int r, uid_t uid)
{
        const char *limit = rpc->users.limit < rpc->x->conf->session_limit
                                    ? "the limit of open files (raise LimitNOFILE in the unit)"
                                    : "session_limit";
        char why[250];

        if (r == -EUSERS)
                snprintf(why, sizeof why, "there are %u sessions, as many as %s allows",
                         rpc->users.n_sessions, limit);
        else if (r == -EDQUOT)
                snprintf(why, sizeof why,
                         "of %u sessions, user %u has as many as %s allows one user, with %u that "
                         "wait to be closed",
                         rpc->users.n_sessions, (unsigned)uid, limit, disposal_waiting(uid));
        else
                snprintf(why, sizeof why, "%s%s", strerror(-r),
                         r == -EMFILE ? ": raise the limit of open files, LimitNOFILE in the unit"
                                      : "");
        log_warning_for(uid, "a client was turned away: %s", why);
}

/* False: no client waits any more, or none may come now. */
static bool server_accept(struct rpc *rpc)
{
        uid_t uid = (uid_t)-1;
        pid_t pid;
        int fd, r;

        if (rpc->spare < 0)
                rpc->spare = spare_open();
        fd = accept4(rpc->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
                return false;
        if (fd < 0)
                r = -errno;
        else
                r = rpc->spare < 0 ? -EMFILE : session_new(rpc, fd);
        if (!r)
                return true;
        if (fd >= 0)
                peer_credentials(fd, &uid, &pid);
        server_refused(rpc, r, uid);
        if (fd < 0)
                server_turn_away(rpc);
        else
                disposal_close(fd, uid);
        return fd >= 0;
}

static void server_listen(uv_timer_t *timer);

static void server_pause(struct rpc *rpc, uint64_t ms)
{
        uv_poll_stop(&rpc->listener);
        uv_timer_start(&rpc->pause, server_listen, ms, 0);
}

static void server_polled(uv_poll_t *poll, int status, int events)
{
        struct rpc *rpc = CONTAINER_OF(poll, struct rpc, listener);
        uint64_t begin = uv_hrtime();

        for (int i = 0; status == 0 && i < ACCEPTS && server_accept(rpc); i++)
                ;
        budget_worked(&rpc->accepts, uv_hrtime() - begin);
        if (!budget_may_work(&rpc->accepts, uv_now(rpc->x->loop)))
                server_pause(rpc, PAUSE_MS);
        else if (disposal_full())
                server_pause(rpc, PAUSE_FULL_MS);
}

static void server_listen(uv_timer_t *timer)
{
        struct rpc *rpc = CONTAINER_OF(timer, struct rpc, pause);

        if (disposal_full())
                server_pause(rpc, PAUSE_FULL_MS);
        else if (!budget_may_work(&rpc->accepts, uv_now(rpc->x->loop)))
                server_pause(rpc, PAUSE_MS);
        else
                uv_poll_start(&rpc->listener, UV_READABLE, server_polled);
}

/* ---- the tick ---------------------------------------------------------------------- */

/*
 * Trims the heap that clients have made grow.  Memory between used blocks counts as kept even after
 * its pages are returned, and a client may touch them again.  So the end of a session, of a job or
 * of a coordinator's record triggers a trim, and the size of the heap does not.
 */
static void server_trim(struct rpc *rpc)
{
        uint64_t ends = rpc->users.ended + rpc->x->freed;

        if (rpc->trimmed == ends)
                return;
        rpc->trimmed = ends;
        if (mallinfo2().fordblks >= HEAP_KEPT)
                malloc_trim(0);
}

static void server_tick(uv_timer_t *timer)
{
        struct rpc *rpc = CONTAINER_OF(timer, struct rpc, tick);
        uint64_t now = uv_now(rpc->x->loop);

        list_for_each (&rpc->sessions, item) {
                session_check(CONTAINER_OF(item, struct session, link), now);
        }
        rpc_share(rpc);
        users_sweep(&rpc->users, now);
        if (++rpc->ticks % TICKS_SECOND == 0) {
                list_for_each (&rpc->sessions, item) {
                        session_check_process(CONTAINER_OF(item, struct session, link));
                }
                server_trim(rpc);
        }
        log_tick();
}

/* ---- start and stop ---------------------------------------------------------------- */

static int socket_address(const char *path, struct sockaddr_un *ret, struct fault *fault)
{
        *ret = (struct sockaddr_un){ .sun_family = AF_UNIX };
        if (strlen(path) >= sizeof ret->sun_path)
                return fault_set(fault, ZERO_EINVAL, "socket path '%s' is longer than %zu bytes",
                                 path, sizeof ret->sun_path - 1);
        strcpy(ret->sun_path, path);
        return 0;
}

/* Removes a socket file that nobody listens on. */
static int socket_clear(const struct sockaddr_un *address, struct fault *fault)
{
        CLEANUP(cleanup_close) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        struct stat st;

        if (fd < 0)
                return fault_errno(fault, errno, "socket");
        if (lstat(address->sun_path, &st))
                return 0;
        if (!S_ISSOCK(st.st_mode))
                return fault_set(fault, ZERO_EINVAL, "%s exists and is not a socket",
                                 address->sun_path);
        if (connect(fd, (const struct sockaddr *)address, sizeof *address) == 0)
                return fault_set(fault, ZERO_EBUSY,
                                 "a daemon already listens at %s: stop it or set another socket",
                                 address->sun_path);
        if (unlink(address->sun_path) && errno != ENOENT)
                return fault_set(
                        fault, ZERO_EPERM,
                        "nobody listens on the socket %s, and user %u cannot remove it: %s; "
                        "chown its directory to that user, or remove the socket",
                        address->sun_path, (unsigned)geteuid(), strerror(errno));
        return 0;
}

/* /run is empty after a boot.  Makes the socket's own folder, but no folder above it. */
static void socket_make_folder(const char *path)
{
        CLEANUP(cleanup_free) char *folder = strdup(path);
        char *slash = folder ? strrchr(folder, '/') : NULL;

        if (!slash || slash == folder)
                return;
        *slash = '\0';
        mkdir(folder, 0755); /* if this fails bind() reports why */
}

int rpc_listen(const char *path, const char *mode, int *ret_fd, struct fault *fault)
{
        CLEANUP(cleanup_close) int fd = -1;
        struct sockaddr_un address;
        int r = socket_address(path, &address, fault);

        if (!r)
                r = socket_clear(&address, fault);
        if (r)
                return r;
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return fault_errno(fault, errno, "socket");
        socket_make_folder(path);
        if (bind(fd, (struct sockaddr *)&address, sizeof address))
                return fault_set(fault, ZERO_EIO, "user %u cannot make the socket %s: %s%s",
                                 (unsigned)geteuid(), path, strerror(errno),
                                 errno == EACCES ? "; chown its directory to that user" : "");
        if (chmod(path, (mode_t)strtoul(mode, NULL, 8)) || listen(fd, SOMAXCONN)) {
                r = fault_set(fault, ZERO_EIO, "cannot listen at %s: %s", path, strerror(errno));
                unlink(path);
                return r;
        }
        *ret_fd = STEAL_FD(fd);
        return 0;
}

/* A failure leaves no handle to close: only the first of these four calls asks the kernel and can
 * fail. */
static int handles_open(struct rpc *rpc)
{
        uv_loop_t *loop = rpc->x->loop;

        if (uv_poll_init(loop, &rpc->listener, rpc->fd))
                return -1;
        uv_timer_init(loop, &rpc->pause);
        uv_timer_init(loop, &rpc->tick);
        conns_init(&rpc->conns, loop);
        rpc->handles = 4;
        budget_init(&rpc->accepts, uv_now(loop));
        rpc->accepts.quantum_ns = QUANTUM_ACCEPT_NS;
        uv_poll_start(&rpc->listener, UV_READABLE, server_polled);
        uv_timer_start(&rpc->tick, server_tick, SERVER_TICK_MS, SERVER_TICK_MS);
        return 0;
}

/* Nobody is kept waiting for the sake of users who have no job there. */
static void server_ran(void *arg, uint32_t uid, uint64_t ns)
{
        struct rpc *rpc = arg;
        struct user *user = user_find(&rpc->users, uid);

        if (user && user->budget.quantum_ns < QUANTUM_ALONE_NS)
                budget_read(&user->budget, ns);
}

/* A daemon without descriptors would accept nobody, and lose states and links. */
static uint32_t sessions_most(const struct engine *x)
{
        uint64_t limit = x->conf->session_limit, fit = sessions_that_fit();

        if (fit >= limit)
                return (uint32_t)limit;
        log_warning(
                "open files: there is room for %llu sessions, not for the %llu of session_limit: "
                "raise LimitNOFILE in the unit",
                (unsigned long long)fit, (unsigned long long)limit);
        return fit ? (uint32_t)fit : 1;
}

int rpc_open(struct engine *x, int fd, struct rpc **ret, struct fault *fault)
{
        struct rpc *rpc = calloc(1, sizeof *rpc);

        if (!rpc) {
                close(fd);
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        rpc->x = x;
        rpc->fd = fd;
        rpc->started_ms = uv_now(x->loop);
        list_init(&rpc->sessions);
        users_init(&rpc->users, sessions_most(x));
        descriptors_refuse(fd);
        if (handles_open(rpc)) {
                close(rpc->fd);
                free(rpc);
                return fault_set(fault, ZERO_EIO, "cannot poll the socket");
        }
        rpc->spare = spare_open();
        x->query = query_message;
        x->regranted = readers_regranted;
        offload_watch(x->offload, server_ran, rpc);
        x->rpc = rpc;
        *ret = rpc;
        return 0;
}

static void handle_closed(struct rpc *rpc)
{
        rpc->handles--;
        rpc_gone(rpc);
}

static void pace_closed(uv_handle_t *handle)
{
        handle_closed(CONTAINER_OF((uv_timer_t *)handle, struct rpc, conns.pace));
}

static void pause_closed(uv_handle_t *handle)
{
        handle_closed(CONTAINER_OF((uv_timer_t *)handle, struct rpc, pause));
}

static void tick_closed(uv_handle_t *handle)
{
        handle_closed(CONTAINER_OF((uv_timer_t *)handle, struct rpc, tick));
}

static void listener_closed(uv_handle_t *handle)
{
        struct rpc *rpc = CONTAINER_OF((uv_poll_t *)handle, struct rpc, listener);

        close(rpc->fd);
        cleanup_close(&rpc->spare);
        handle_closed(rpc);
}

void rpc_close(struct rpc *rpc, void (*closed)(void *arg), void *arg)
{
        rpc->closed = closed;
        rpc->closed_arg = arg;
        list_for_each (&rpc->sessions, item) {
                session_end(CONTAINER_OF(item, struct session, link));
        }
        uv_close((uv_handle_t *)&rpc->listener, listener_closed);
        uv_close((uv_handle_t *)&rpc->pause, pause_closed);
        uv_close((uv_handle_t *)&rpc->tick, tick_closed);
        conns_close(&rpc->conns, pace_closed);
}

/* The listening unix socket. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "daemon/base/log.h"
#include "daemon/rpc/session.h"
#include "proto/cleanup.h"

enum { WARN_PAUSE_MS = 1000 };

/* At most once in WARN_PAUSE_MS: a client may come again and again. */
static void server_warn(struct rpc *rpc, const char *why)
{
        uint64_t now = uv_now(rpc->x->loop);

        if (rpc->warned_ms && now - rpc->warned_ms < WARN_PAUSE_MS) {
                rpc->not_warned++;
                return;
        }
        if (rpc->not_warned)
                log_warning("%u more clients were turned away", rpc->not_warned);
        log_warning("a client was turned away: %s", why);
        rpc->warned_ms = now;
        rpc->not_warned = 0;
}

static int spare_open(void)
{
        return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* A client that is not accepted stays in the queue, and the socket ready: one descriptor is kept to
 * take it with, and to close it. */
static void server_turn_away(struct rpc *rpc)
{
        int fd;

        cleanup_close(&rpc->spare);
        fd = accept4(rpc->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        cleanup_close(&fd);
        rpc->spare = spare_open();
}

static void server_accept(struct rpc *rpc)
{
        int fd = accept4(rpc->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        char why[120];

        if (fd < 0) {
                if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
                        return;
                snprintf(why, sizeof why, "%s%s", strerror(errno),
                         errno == EMFILE ? ": raise the limit of open files" : "");
                server_turn_away(rpc);
                server_warn(rpc, why);
                return;
        }
        if (rpc->n_sessions >= rpc->x->conf->session_limit) {
                snprintf(why, sizeof why, "%u sessions, as many as session_limit allows",
                         rpc->n_sessions);
                server_warn(rpc, why);
                close(fd);
                return;
        }
        if (session_new(rpc, fd))
                close(fd);
}

static void server_polled(uv_poll_t *poll, int status, int events)
{
        if (status == 0)
                server_accept(CONTAINER_OF(poll, struct rpc, listener));
}

static int socket_address(const char *path, struct sockaddr_un *ret, struct fault *fault)
{
        *ret = (struct sockaddr_un){ .sun_family = AF_UNIX };
        if (strlen(path) >= sizeof ret->sun_path)
                return fault_set(fault, ZERO_EINVAL, "socket path '%s' is longer than %zu bytes",
                                 path, sizeof ret->sun_path - 1);
        strcpy(ret->sun_path, path);
        return 0;
}

/* A socket file that nobody listens on is left over: it goes. */
static int socket_clear(const struct sockaddr_un *address, struct fault *fault)
{
        CLEANUP(cleanup_close) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        struct stat st;

        if (fd < 0)
                return fault_errno(fault, errno, "socket");
        if (lstat(address->sun_path, &st))
                return 0;
        if (!S_ISSOCK(st.st_mode))
                return fault_set(fault, ZERO_EINVAL, "%s is there and is no socket",
                                 address->sun_path);
        if (connect(fd, (const struct sockaddr *)address, sizeof *address) == 0)
                return fault_set(fault, ZERO_EBUSY,
                                 "a daemon listens at %s already: stop it or set another socket",
                                 address->sun_path);
        unlink(address->sun_path);
        return 0;
}

/* /run is empty after a boot: the socket's own folder is made, not those above it. */
static void socket_make_folder(const char *path)
{
        CLEANUP(cleanup_free) char *folder = strdup(path);
        char *slash = folder ? strrchr(folder, '/') : NULL;

        if (!slash || slash == folder)
                return;
        *slash = '\0';
        mkdir(folder, 0755); /* what is wrong with it, bind() will say */
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
                return fault_set(fault, ZERO_EIO, "cannot make the socket %s: %s", path,
                                 strerror(errno));
        if (chmod(path, (mode_t)strtoul(mode, NULL, 8)) || listen(fd, 128)) {
                r = fault_set(fault, ZERO_EIO, "cannot listen at %s: %s", path, strerror(errno));
                unlink(path);
                return r;
        }
        *ret_fd = STEAL_FD(fd);
        return 0;
}

int rpc_open(struct exchange *x, int fd, struct rpc **ret, struct fault *fault)
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
        if (uv_poll_init(x->loop, &rpc->listener, rpc->fd)) {
                close(rpc->fd);
                free(rpc);
                return fault_set(fault, ZERO_EIO, "cannot poll the socket");
        }
        rpc->spare = spare_open();
        uv_poll_start(&rpc->listener, UV_READABLE, server_polled);
        rpc->listening = true;
        x->query = query_message;
        x->query_arg = rpc;
        *ret = rpc;
        return 0;
}

void rpc_gone(struct rpc *rpc)
{
        void (*closed)(void *arg) = rpc->closed;
        void *arg = rpc->closed_arg;

        if (rpc->listening || rpc->n_sessions)
                return;
        free(rpc);
        closed(arg);
}

static void listener_closed(uv_handle_t *handle)
{
        struct rpc *rpc = CONTAINER_OF((uv_poll_t *)handle, struct rpc, listener);

        close(rpc->fd);
        cleanup_close(&rpc->spare);
        rpc->listening = false;
        rpc_gone(rpc);
}

void rpc_close(struct rpc *rpc, void (*closed)(void *arg), void *arg)
{
        rpc->closed = closed;
        rpc->closed_arg = arg;
        list_for_each (&rpc->sessions, item) {
                session_end(CONTAINER_OF(item, struct session, link));
        }
        uv_close((uv_handle_t *)&rpc->listener, listener_closed);
}

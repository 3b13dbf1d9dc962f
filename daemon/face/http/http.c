/*
 * HTTP through libmicrohttpd: connections and answers, on one thread.
 *
 * A request waits, suspended, until the loop has published a snapshot.  Each answer ends its
 * connection, so VISIT_MS bounds a connection whatever its client does: send a byte now and then,
 * or read none.  A download has more time: TAKE_MS for each BLOCK_BYTES, and START_MS and a
 * millisecond for each RATE bytes in all, as it keeps a version from other readers.  Where more
 * than VISITS are open, or VISITS_ADDRESS from one address, that bound is CROWD_MS: connections
 * that say nothing keep no probe out.  At most VISITS_MOST are open; more wait in the socket's
 * queue.
 */
#include "daemon/face/http/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "daemon/face/http/answer.h"
#include "daemon/face/http/listen.h"
#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

enum { VISITS = 48, VISITS_ADDRESS = 16, VISITS_MOST = 96, CROWD_MS = 250, VISIT_MS = 10000 };
enum { IDLE_S = 5, LATE_MS = 2000, SWEEP_MS = 100 };
enum { TAKE_MS = 20000, BLOCK_BYTES = 256 << 10 };
enum { START_MS = 60000, RATE = 1 << 10 }; /* bytes a millisecond */
enum { REQUEST_BYTES = 16 << 10 };

struct http {
        struct engine *x; /* for the loop thread alone */
        char node[NODE_NAME_MAX + 1];
        uv_mutex_t token_lock;
        struct http_place place; /* its token changes */
        int socket;
        struct exchange *exchange;
        uv_thread_t thread;
        uv_async_t ended; /* the thread */
        atomic_bool stop;
        void (*closed)(void *arg);
        void *closed_arg;
        /* The thread's own. */
        struct MHD_Daemon *server;
        struct list visits, waiting; /* the oldest first */
        unsigned n_visits;           /* with those that were shut down and are not gone */
        struct snapshot *latest[SNAPSHOT_KINDS];
};

/* A connection. */
struct visit {
        struct list link;
        struct http *http;
        int fd;
        uint64_t since_ms;       /* or when a download took its last block */
        uint64_t most_ms;        /* of a download; 0: it is none */
        struct in6_addr address; /* zeros: a unix socket's */
        bool ended;              /* it was shut down */
};

struct call {
        struct list link; /* in waiting */
        struct MHD_Connection *connection;
        enum http_what what;
        uint64_t since_ms;
        bool head;                 /* nobody reads the body */
        struct download *download; /* NULL: there is none, or nothing more is read */
        uint64_t bytes, until_ms;  /* of the file; by when the client has to have it */
};

/* ---- answers ---- */

/* The page loads its own parts alone and makes no HTML of texts; nothing else here is a page. */
static const char policy[] =
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'";

static void add_headers(struct MHD_Response *r, const char *type)
{
        MHD_add_response_header(r, "Content-Type", type);
        MHD_add_response_header(r, "Cache-Control", "no-store");
        MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
        MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
        MHD_add_response_header(r, "Content-Security-Policy", policy);
        MHD_add_response_header(r, "Connection", "close");
}

static struct MHD_Response *response_new(const char *type, char *text, size_t n)
{
        struct MHD_Response *r = MHD_create_response_from_buffer(n, text, MHD_RESPMEM_MUST_FREE);

        if (r)
                add_headers(r, type);
        else
                free(text);
        return r;
}

static enum MHD_Result give(struct MHD_Connection *connection, unsigned status,
                            struct MHD_Response *response)
{
        enum MHD_Result r = response ? MHD_queue_response(connection, status, response) : MHD_NO;

        if (response)
                MHD_destroy_response(response);
        return r;
}

static enum MHD_Result give_text(struct MHD_Connection *connection, unsigned status,
                                 const char *text)
{
        char *copy = strdup(text);
        struct MHD_Response *r =
                copy ? response_new("text/plain; charset=utf-8", copy, strlen(copy)) : NULL;

        if (r && status == 405)
                MHD_add_response_header(r, "Allow", "GET, HEAD");
        if (r && status == 401)
                MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
        if (r && status == 503)
                MHD_add_response_header(r, "Retry-After", "5");
        return give(connection, status, r);
}

static enum MHD_Result give_answer(const struct call *call, const struct snapshot *s)
{
        const char *job =
                MHD_lookup_connection_value(call->connection, MHD_GET_ARGUMENT_KIND, "job");
        struct answer a;

        answer_make(call->what, s, job, &a);
        return give(call->connection, a.status, a.text ? response_new(a.type, a.text, a.n) : NULL);
}

static void take_snapshots(struct http *http)
{
        for (enum snapshot_kind kind = 0; kind < SNAPSHOT_KINDS; kind++) {
                struct snapshot *s = exchange_take(http->exchange, kind);

                if (!s)
                        continue;
                snapshot_free(http->latest[kind]);
                http->latest[kind] = s;
        }
}

/* ---- downloads ---- */

static struct visit *visit_of(struct MHD_Connection *connection)
{
        return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)
                ->socket_context;
}

/* The visit's time begins anew: it is the youngest now. */
static void visit_renew(struct visit *v, uint64_t most_ms)
{
        list_remove(&v->link);
        list_insert(&v->http->visits, &v->link);
        v->since_ms = snapshot_now();
        v->most_ms = most_ms;
}

static void call_leave(struct call *call)
{
        if (call->download)
                download_leave(STEAL(call->download));
}

/* A client that has given up: who waits reads nothing, and would not see that. */
static bool hung_up(const struct call *call)
{
        struct pollfd fd = { visit_of(call->connection)->fd, POLLRDHUP, 0 };

        return poll(&fd, 1, 0) == 1;
}

static ssize_t download_block(void *arg, uint64_t at, char *buffer, size_t n)
{
        struct call *call = arg;
        ssize_t r =
                snapshot_now() < call->until_ms ? download_read(call->download, at, buffer, n) : -1;

        visit_renew(visit_of(call->connection), TAKE_MS);
        if (r < 0 || at + (uint64_t)r == call->bytes)
                call_leave(call);
        return r < 0 ? MHD_CONTENT_READER_END_WITH_ERROR : r;
}

static enum MHD_Result give_download(struct call *call)
{
        struct MHD_Response *r;
        uint64_t version;
        const char *text;
        unsigned status = download_open(call->download, &version, &call->bytes, &text);
        char number[24];

        if (status != 200) {
                enum MHD_Result given = give_text(call->connection, status, text);

                call_leave(call);
                return given;
        }
        if (call->head)
                call_leave(call);
        call->until_ms = snapshot_now() + START_MS + call->bytes / RATE;
        r = MHD_create_response_from_callback(call->bytes, BLOCK_BYTES, download_block, call, NULL);
        if (r) {
                add_headers(r, "application/octet-stream");
                snprintf(number, sizeof number, "%llu", (unsigned long long)version);
                MHD_add_response_header(r, "X-Zerod-Version", number);
        }
        return give(call->connection, status, r);
}

static void address_text(struct MHD_Connection *connection, char ret[static INET6_ADDRSTRLEN])
{
        const struct sockaddr *from =
                MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS)
                        ->client_addr;

        strcpy(ret, "unix");
        if (from && from->sa_family == AF_INET6)
                inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)from)->sin6_addr, ret,
                          INET6_ADDRSTRLEN);
        else if (from && from->sa_family == AF_INET)
                inet_ntop(AF_INET, &((const struct sockaddr_in *)from)->sin_addr, ret,
                          INET6_ADDRSTRLEN);
}

/* NULL: refused, with an answer. */
static struct download *download_begin(struct http *http, struct MHD_Connection *connection,
                                       const char *path, enum MHD_Result *ret)
{
        const char *job = path + sizeof HTTP_WEIGHTS_PATH - 1;
        const char *version =
                MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "version");
        const char *newer =
                MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "newer_than");
        struct visit *v = visit_of(connection);
        struct download *d = NULL;
        char address[INET6_ADDRSTRLEN];
        uint64_t least, most;
        int r = -ENOMEM;

        address_text(connection, address);
        if (!http_versions(version, newer, &least, &most))
                *ret = give_text(connection, 400,
                                 "ask for version=N or newer_than=N, and N is a version\n");
        else if (strlen(job) > ZERO_JOB_MAX)
                *ret = give_text(connection, 404, "no job has so long a name\n");
        else if (!v || (r = download_ask(exchange_downloads(http->exchange), job, address, least,
                                         most, &d)))
                *ret = give_text(connection, 503,
                                 r == -EBUSY ? "as many downloads as may wait or go on: ask again\n"
                                             : "out of memory\n");
        if (!d)
                return NULL;
        /* visits have the only clock: libmicrohttpd's does not see that the loop works */
        MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
        setsockopt(v->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &(int){ BLOCK_BYTES }, sizeof(int));
        visit_renew(v, DOWNLOAD_WAIT_MS + VISIT_MS);
        return d;
}

/* Answers, or lets the call wait for the loop. */
static enum MHD_Result call_wait(struct http *http, struct call *call)
{
        list_insert(&http->waiting, &call->link);
        MHD_suspend_connection(call->connection);
        return MHD_YES;
}

static enum MHD_Result call_go_on(struct http *http, struct call *call)
{
        enum snapshot_kind kind = answer_needs(call->what);
        const struct snapshot *s = kind == SNAPSHOT_NONE ? NULL : http->latest[kind];

        if (call->download && download_told(call->download))
                return give_download(call);
        if (call->download)
                return http->stop || hung_up(call)
                               ? give_text(call->connection, 503, "zerod stops\n")
                               : call_wait(http, call);
        if (kind == SNAPSHOT_NONE)
                return give_answer(call, NULL);
        if (s && s->made_ms + SNAPSHOT_FRESH_MS >= call->since_ms)
                return give_answer(call, s);
        if (snapshot_now() - call->since_ms >= LATE_MS || http->stop)
                return give_text(call->connection, 503,
                                 "the event loop has not answered in time\n");
        exchange_want(http->exchange, kind);
        return call_wait(http, call);
}

/* ---- requests ---- */

struct parameters {
        enum http_what what;
        bool bad;
};

static enum MHD_Result check_parameter(void *arg, enum MHD_ValueKind kind, const char *key,
                                       const char *value)
{
        struct parameters *p = arg;
        bool known = p->what == HTTP_JOBS
                             ? strcmp(key, "job") == 0
                             : p->what == HTTP_WEIGHTS && (strcmp(key, "version") == 0 ||
                                                           strcmp(key, "newer_than") == 0);

        p->bad = p->bad || !known || !value;
        return MHD_YES;
}

static bool parameters_good(struct MHD_Connection *connection, enum http_what what)
{
        struct parameters p = { .what = what };

        return MHD_get_connection_values(connection, MHD_GET_ARGUMENT_KIND, check_parameter, &p) <=
                       1 &&
               !p.bad;
}

static const char *header(struct MHD_Connection *connection, const char *name)
{
        return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
}

static enum MHD_Result call_begin(struct http *http, struct MHD_Connection *connection,
                                  const char *method, const char *path, struct call **ret)
{
        struct http_request request = { method,
                                        path,
                                        header(connection, "Host"),
                                        header(connection, "Origin"),
                                        header(connection, "Sec-Fetch-Site"),
                                        header(connection, "Accept"),
                                        header(connection, "Authorization") };
        uint8_t token[sizeof http->place.token];
        struct http_rules rules = { http->node, http->place.path[0],
                                    http->place.has_token ? token : NULL };
        enum http_what what = HTTP_WHATS;
        enum MHD_Result refused;
        const char *text = NULL;
        struct call *call;
        unsigned status;

        uv_mutex_lock(&http->token_lock);
        memcpy(token, http->place.token, sizeof token);
        uv_mutex_unlock(&http->token_lock);
        status = http_route(&rules, &request, &what, &text);
        explicit_bzero(token, sizeof token);
        if (status != 200)
                return give_text(connection, status, text);
        if (!parameters_good(connection, what))
                return give_text(connection, 400,
                                 "the only parameters are job=NAME, of /api/jobs, and version=N or "
                                 "newer_than=N, of /weights/JOB\n");
        call = calloc(1, sizeof *call);
        if (!call)
                return MHD_NO;
        *call = (struct call){ .connection = connection,
                               .what = what,
                               .since_ms = snapshot_now(),
                               .head = strcmp(method, "HEAD") == 0 };
        list_init(&call->link);
        if (what == HTTP_WEIGHTS) {
                call->download = download_begin(http, connection, path, &refused);
                if (!call->download) {
                        free(call);
                        return refused;
                }
        }
        *ret = call;
        return call_go_on(http, call);
}

/* Called when the headers are there, and again when a suspended call goes on. */
static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *data,
                                  size_t *size, void **context)
{
        struct http *http = arg;

        if (*context)
                return call_go_on(http, *context);
        return call_begin(http, connection, method, path, (struct call **)context);
}

static void on_request_over(void *arg, struct MHD_Connection *connection, void **context,
                            enum MHD_RequestTerminationCode how)
{
        struct call *call = *context;

        if (call)
                list_remove(&call->link);
        if (call)
                call_leave(call);
        free(call);
        *context = NULL;
}

/* ---- connections ---- */

static struct in6_addr address_of(struct MHD_Connection *connection)
{
        const struct sockaddr *from =
                MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS)
                        ->client_addr;
        struct in6_addr address = { 0 };

        if (from && from->sa_family == AF_INET6)
                address = ((const struct sockaddr_in6 *)from)->sin6_addr;
        else if (from && from->sa_family == AF_INET)
                memcpy(&address, &((const struct sockaddr_in *)from)->sin_addr,
                       sizeof(struct in_addr));
        return address;
}

static void visit_begin(struct http *http, struct MHD_Connection *connection, void **ret)
{
        const union MHD_ConnectionInfo *fd =
                MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        struct visit *v = calloc(1, sizeof *v);

        if (!v) {
                shutdown(fd->connect_fd, SHUT_RDWR);
                return;
        }
        v->http = http;
        v->fd = fd->connect_fd;
        v->since_ms = snapshot_now();
        v->address = address_of(connection);
        list_insert(&http->visits, &v->link);
        http->n_visits++;
        *ret = v;
}

static void on_visit(void *arg, struct MHD_Connection *connection, void **context,
                     enum MHD_ConnectionNotificationCode code)
{
        struct visit *v = *context;

        if (code == MHD_CONNECTION_NOTIFY_STARTED) {
                visit_begin(arg, connection, context);
                return;
        }
        if (v) {
                list_remove(&v->link);
                v->http->n_visits--;
        }
        free(v);
        *context = NULL;
}

static bool crowded(struct http *http, const struct visit *by)
{
        unsigned all = 0, its = 0;

        list_for_each (&http->visits, item) {
                const struct visit *v = CONTAINER_OF(item, struct visit, link);

                all += !v->ended;
                its += !v->ended && memcmp(&v->address, &by->address, sizeof v->address) == 0;
        }
        return all > VISITS || its > VISITS_ADDRESS;
}

static void visits_sweep(struct http *http, uint64_t now)
{
        list_for_each (&http->visits, item) {
                struct visit *v = CONTAINER_OF(item, struct visit, link);
                uint64_t age = now - v->since_ms;

                if (age < CROWD_MS)
                        return;
                if (v->ended ||
                    (v->most_ms ? age < v->most_ms : age < VISIT_MS && !crowded(http, v)))
                        continue;
                v->ended = true;
                shutdown(v->fd, SHUT_RDWR);
        }
}

/* ---- the thread ---- */

static void calls_resume(struct http *http, bool all)
{
        uint64_t now = snapshot_now();

        list_for_each (&http->waiting, item) {
                struct call *call = CONTAINER_OF(item, struct call, link);

                if (!all && (call->download ? !hung_up(call) : now - call->since_ms < LATE_MS))
                        continue;
                list_remove(&call->link);
                MHD_resume_connection(call->connection);
        }
}

static int wait_ms(struct http *http)
{
        MHD_UNSIGNED_LONG_LONG ms;
        int most = list_empty(&http->visits) ? -1 : SWEEP_MS;

        if (MHD_get_timeout(http->server, &ms) != MHD_YES || (most >= 0 && ms > SWEEP_MS))
                return most;
        return (int)ms;
}

/* A full server listens again only in the run behind that in which a connection has ended. */
static void server_run(struct http *http)
{
        unsigned before = http->n_visits;

        MHD_run(http->server);
        if (http->n_visits < before)
                MHD_run(http->server);
}

static void serve(struct http *http)
{
        const union MHD_DaemonInfo *info =
                MHD_get_daemon_info(http->server, MHD_DAEMON_INFO_EPOLL_FD);
        struct pollfd fds[] = { { info->epoll_fd, POLLIN, 0 },
                                { exchange_fd(http->exchange), POLLIN, 0 } };

        while (!http->stop) {
                eventfd_t n;

                poll(fds, 2, wait_ms(http));
                if (fds[1].revents && eventfd_read(fds[1].fd, &n) == 0) {
                        take_snapshots(http);
                        calls_resume(http, true);
                }
                calls_resume(http, false);
                visits_sweep(http, snapshot_now());
                downloads_look(exchange_downloads(http->exchange));
                server_run(http);
        }
        calls_resume(http, true);
        MHD_run(http->server);
}

static void run(void *arg)
{
        struct http *http = arg;

        serve(http);
        MHD_stop_daemon(http->server);
        for (size_t kind = 0; kind < SNAPSHOT_KINDS; kind++)
                snapshot_free(http->latest[kind]);
        uv_async_send(&http->ended);
}

/* ---- start and stop, on the loop thread ---- */

static void exchange_closed(void *arg)
{
        struct http *http = arg;

        http->closed(http->closed_arg);
        uv_mutex_destroy(&http->token_lock);
        explicit_bzero(&http->place, sizeof http->place);
        free(http);
}

static void async_closed(uv_handle_t *handle)
{
        struct http *http = CONTAINER_OF((uv_async_t *)handle, struct http, ended);

        exchange_close(http->exchange, exchange_closed, http);
}

static void on_ended(uv_async_t *async)
{
        struct http *http = CONTAINER_OF(async, struct http, ended);

        uv_thread_join(&http->thread);
        if (http->place.path[0])
                unlink(http->place.path);
        uv_close((uv_handle_t *)async, async_closed);
}

static struct MHD_Daemon *server_new(struct http *http)
{
        return MHD_start_daemon(
                MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, on_request, http,
                MHD_OPTION_LISTEN_SOCKET, http->socket, MHD_OPTION_CONNECTION_LIMIT,
                (unsigned)VISITS_MOST, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_S,
                MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)REQUEST_BYTES,
                MHD_OPTION_NOTIFY_CONNECTION, on_visit, http, MHD_OPTION_NOTIFY_COMPLETED,
                on_request_over, http, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_END);
}

/* The thread takes no signals, SIGPIPE included. */
static int thread_start(struct http *http)
{
        sigset_t all, before;
        int r;

        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        r = uv_thread_create(&http->thread, run, http);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        return r;
}

static int http_start(struct http *http, struct fault *fault)
{
        int r;

        list_init(&http->visits);
        list_init(&http->waiting);
        r = exchange_new(http->x, &http->exchange);
        if (r)
                return fault_errno(fault, -r, "http");
        if (uv_mutex_init(&http->token_lock))
                return fault_set(fault, ZERO_ENOMEM, "http: out of memory");
        http->server = server_new(http);
        if (!http->server)
                return fault_set(fault, ZERO_EIO, "http: libmicrohttpd does not start");
        uv_async_init(http->x->loop, &http->ended, on_ended);
        if (thread_start(http))
                return fault_set(fault, ZERO_ENOMEM, "http: cannot start a thread");
        return 0;
}

int http_open(struct engine *x, struct http **ret, struct fault *fault)
{
        CLEANUP(cleanup_free) struct http *http = calloc(1, sizeof *http);
        int r;

        if (!http)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        http->x = x;
        strcpy(http->node, node_name(x, x->cluster->self));
        *ret = NULL;
        r = conf_http(x->conf, &http->place, fault);
        if (r || !http->place.on)
                return r;
        r = http_listen(&http->place, x->conf->http, &http->socket, fault);
        if (r && !http->place.chosen) {
                log_warning("no /metrics: %s", fault->text);
                return 0;
        }
        if (!r)
                r = http_start(http, fault); /* after a failure the process ends */
        if (!r)
                *ret = STEAL(http);
        return r;
}

int http_reload(struct http *http, struct fault *fault)
{
        struct http_place fresh;
        int r;

        if (!http || !http->place.has_token)
                return 0;
        r = conf_http(http->x->conf, &fresh, fault);
        if (r)
                return r;
        uv_mutex_lock(&http->token_lock);
        memcpy(http->place.token, fresh.token, sizeof fresh.token);
        uv_mutex_unlock(&http->token_lock);
        explicit_bzero(&fresh, sizeof fresh);
        log_info("reload: read http_token_file again");
        return 0;
}

void http_serve(struct http *http, bool serving)
{
        if (http)
                exchange_serve(http->exchange, serving);
}

void http_close(struct http *http, void (*closed)(void *arg), void *arg)
{
        if (!http) {
                closed(arg);
                return;
        }
        http->closed = closed;
        http->closed_arg = arg;
        http->stop = true;
        eventfd_write(exchange_fd(http->exchange), 1);
}

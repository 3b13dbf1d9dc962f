/* Which transports UCX may use here, and that it opens no port. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/fabric/bulk/ucx_context.h"
#include "daemon/fabric/bulk/ucx_port.h"
#include "nodes.h"

static void chooses(const char *environment, const char *tls, const char *expected)
{
        struct fault fault = { 0 };
        const char *chosen = NULL;
        int r;

        if (environment)
                setenv("UCX_TLS", environment, 1);
        else
                unsetenv("UCX_TLS");
        r = bulk_ucx_choose_tls(tls, &chosen, &fault);
        cr_assert_eq(r, expected ? 0 : ZERO_EINVAL, "'%s'", tls ? tls : "(null)");
        if (expected)
                cr_assert_str_eq(chosen, expected);
        else
                cr_assert(strstr(fault.text, "tcp"));
}

Test(ucx_tls, what_is_given_wins_over_the_environment)
{
        chooses(NULL, "posix,self", "posix,self");
        chooses("rc,self", "posix,self", "posix,self");
        chooses("rc,self", NULL, "rc,self");
        chooses("rc,self", "", "rc,self");
}

static struct ucx_reads reads_over(const char *transport, const char *use, unsigned version)
{
        struct ucx_reads reads = { 0 };
        char text[200];

        snprintf(text, sizeof text,
                 "# UCP endpoint\n#  lane[0]:  1:posix/memory.0 md[1] -> md[1]/posix am am_bw#0\n"
                 "#  lane[1]:  2:%s/x.0 md[2] -> md[2]/x/sysdev[255] %s\n",
                 transport, use);
        bulk_ucx_read_lanes(text, version, &reads);
        return reads;
}

Test(ucx_lanes, gpus_are_read_by_a_network_card_and_by_a_new_cuda_ipc)
{
        cr_assert(reads_over("rc_mlx5", "rma_bw#0", 11300).gpus);
        cr_assert(reads_over("cuda_ipc", "rma_bw#0", 12201).gpus);
        cr_assert(!reads_over("cuda_ipc", "rma_bw#0", 12200).gpus);
        cr_assert(reads_over("cuda_ipc", "rma_bw#0", 12200).any);
        cr_assert(!reads_over("cma", "rma_bw#0", 12201).gpus);
        cr_assert(reads_over("cma", "rma_bw#0", 12201).any);
        cr_assert(!reads_over("rc_mlx5", "am_bw#1", 12201).any);
}

Test(ucx_tls, nothing_given_leaves_tcp_out)
{
        chooses(NULL, NULL, "^tcp,sysv");
        chooses("", "", "^tcp,sysv");
}

Test(ucx_tls, tcp_comes_in_by_its_name_alone)
{
        chooses(NULL, "tcp,self", "tcp,self");
        chooses(NULL, "self,tcp", "self,tcp");
        chooses(NULL, "^tcp", "^tcp");
        chooses(NULL, "^rc,tcp", "^rc,tcp");
        chooses(NULL, "all", NULL);
        chooses(NULL, "self,all", NULL);
        chooses(NULL, "^rc", NULL);
        chooses(NULL, "^tcpx", NULL);
        chooses("all", NULL, NULL);
}

/* Inodes of listening sockets of any family stand in these files, state 0A. */
static bool listens(unsigned long inode, const char *file)
{
        FILE *in = fopen(file, "r");
        char line[512];
        bool found = false;

        while (in && !found && fgets(line, sizeof line, in)) {
                unsigned state;
                unsigned long at;
                found = sscanf(line, "%*s %*s %*s %x %*s %*s %*s %*s %*s %lu", &state, &at) == 2 &&
                        state == 10 && at == inode;
        }
        if (in)
                fclose(in);
        return found;
}

static int listening_sockets(void)
{
        DIR *directory = opendir("/proc/self/fd");
        struct dirent *entry;
        int n = 0;

        cr_assert(directory);
        while ((entry = readdir(directory))) {
                char path[300], link[64];
                unsigned long inode;
                ssize_t length;
                snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
                length = readlink(path, link, sizeof link - 1);
                if (length < 0)
                        continue;
                link[length] = '\0';
                if (sscanf(link, "socket:[%lu]", &inode) == 1)
                        n += listens(inode, "/proc/net/tcp") || listens(inode, "/proc/net/tcp6");
        }
        closedir(directory);
        return n;
}

Test(ucx, opens_no_port)
{
        struct bulk_ucx *ucx;
        struct bulk_ucx_port *port;
        uv_loop_t loop;

        unsetenv("UCX_TLS");
        uv_loop_init(&loop);
        cr_assert_eq(bulk_ucx_new(NULL, &ucx, NULL), 0);
        cr_assert_eq(bulk_ucx_port_new(ucx, &loop, &port), 0);
        cr_assert(strstr(bulk_ucx_tls(ucx), "posix"), "%s", bulk_ucx_tls(ucx));
        cr_assert(!strstr(bulk_ucx_tls(ucx), "tcp"), "%s", bulk_ucx_tls(ucx));
        cr_assert_eq(listening_sockets(), 0);
        bulk_ucx_port_free(port);
        bulk_ucx_free(ucx);
        end_loop(&loop);
}

/* Shows that the test above can fail. */
Test(ucx, opens_ports_where_tcp_is_named)
{
        struct bulk_ucx *ucx;
        struct bulk_ucx_port *port;
        uv_loop_t loop;

        uv_loop_init(&loop);
        cr_assert_eq(bulk_ucx_new("tcp,self", &ucx, NULL), 0);
        cr_assert_eq(bulk_ucx_port_new(ucx, &loop, &port), 0);
        cr_assert_gt(listening_sockets(), 0);
        bulk_ucx_port_free(port);
        bulk_ucx_free(ucx);
        end_loop(&loop);
}

/* Bytes of UCX's shared memory that this process has mapped. */
static size_t shared_memory(void)
{
        FILE *maps = fopen("/proc/self/maps", "r");
        char line[512];
        size_t begin, end, sum = 0;

        cr_assert(maps);
        while (fgets(line, sizeof line, maps))
                if (strstr(line, "ucx_shm_posix") && sscanf(line, "%zx-%zx", &begin, &end) == 2)
                        sum += end - begin;
        fclose(maps);
        return sum;
}

static size_t shared_memory_of_a_port(void)
{
        struct bulk_ucx *ucx;
        struct bulk_ucx_port *port;
        uv_loop_t loop;
        size_t bytes;

        uv_loop_init(&loop);
        cr_assert_eq(bulk_ucx_new("posix,self", &ucx, NULL), 0);
        cr_assert_eq(bulk_ucx_port_new(ucx, &loop, &port), 0);
        bytes = shared_memory();
        bulk_ucx_port_free(port);
        bulk_ucx_free(ucx);
        end_loop(&loop);
        return bytes;
}

Test(ucx, the_environment_sets_the_buffers_of_shared_memory)
{
        size_t ours = shared_memory_of_a_port();

        setenv("UCX_MM_SEG_SIZE", "66000", 1);
        cr_assert_gt(shared_memory_of_a_port(), ours + ours / 2);
        unsetenv("UCX_MM_SEG_SIZE");
        setenv("UCX_POSIX_SEG_SIZE", "66000", 1);
        cr_assert_gt(shared_memory_of_a_port(), ours + ours / 2);
}

Test(ucx, without_a_transport_there_is_no_device)
{
        struct bulk_ucx *ucx;

        setenv("UCX_LOG_LEVEL", "fatal", 1);
        cr_assert_eq(bulk_ucx_new("nonsense", &ucx, NULL), -ENODEV);
}

Test(ucx, an_address_out_of_bounds_is_refused)
{
        static uint8_t zeros[5000];
        struct bulk_ucx *ucx;
        struct bulk_ucx_port *port;
        struct bulk_peer *peer;
        uv_loop_t loop;

        unsetenv("UCX_TLS");
        uv_loop_init(&loop);
        cr_assert_eq(bulk_ucx_new(NULL, &ucx, NULL), 0);
        cr_assert_eq(bulk_ucx_port_new(ucx, &loop, &port), 0);
        cr_assert_eq(bulk_ucx_peer_new(port, zeros, 0, 1, NULL, NULL, &peer), -EINVAL);
        cr_assert_eq(bulk_ucx_peer_new(port, zeros, 5000, 1, NULL, NULL, &peer), -EINVAL);
        bulk_ucx_port_free(port);
        bulk_ucx_free(ucx);
        end_loop(&loop);
}

/* ---- memory of another process is read ---- */

enum { PAYLOAD = 1 << 20, TOKEN = 7 };
static const uint64_t DEADLINE_NS = 10000000000;

/* Both ends of a link, in one process. */
struct pair {
        uv_loop_t loop;
        struct bulk_ucx *ucx;
        struct bulk_peer *peer[2];
        int open;
};

static void pair_open(struct pair *pair)
{
        struct bulk_ucx_port *port[2];
        const void *address[2];
        size_t size[2];

        unsetenv("UCX_TLS");
        uv_loop_init(&pair->loop);
        cr_assert_eq(bulk_ucx_new(NULL, &pair->ucx, NULL), 0);
        for (int i = 0; i < 2; i++) {
                cr_assert_eq(bulk_ucx_port_new(pair->ucx, &pair->loop, &port[i]), 0);
                address[i] = bulk_ucx_port_address(port[i], &size[i]);
        }
        for (int i = 0; i < 2; i++)
                cr_assert_eq(bulk_ucx_peer_new(port[i], address[!i], size[!i], TOKEN, NULL, NULL,
                                               &pair->peer[i]),
                             0);
        pair->open = 2;
}

static void on_peer_closed(void *arg)
{
        ((struct pair *)arg)->open--;
}

static void peer_close(struct pair *pair, int i)
{
        pair->peer[i]->ops->close(pair->peer[i], on_peer_closed, pair);
}

static void pair_close(struct pair *pair)
{
        while (pair->open)
                uv_run(&pair->loop, UV_RUN_ONCE);
        bulk_ucx_free(pair->ucx);
        end_loop(&pair->loop);
}

static void on_ended(void *arg, int status)
{
        *(int *)arg = status;
}

static bool is_read(const struct bulk_ucx_port *port)
{
        return !list_empty(&port->receives) && ucx_port_is_empty(port);
}

Test(ucx, a_payload_that_was_read_lands_when_its_sender_confirms_it)
{
        static uint8_t from[PAYLOAD] = { 1 }, to[PAYLOAD];
        struct pair pair;
        struct bulk_ucx_port *sender, *receiver;
        int sent = 1, landed = 1;

        pair_open(&pair);
        sender = ucx_port_of(pair.peer[0]);
        receiver = ucx_port_of(pair.peer[1]);
        cr_assert(sender->can_get, "cma is not used");
        cr_assert_eq(pair.peer[1]->ops->expect(pair.peer[1], 1, to, PAYLOAD, on_ended, &landed), 0);
        cr_assert_eq(pair.peer[0]->ops->send(pair.peer[0], 1, from, PAYLOAD, on_ended, &sent), 0);
        ucx_port_pump(sender);
        for (uint64_t end = uv_hrtime() + DEADLINE_NS; !is_read(receiver) && uv_hrtime() < end;) {
                if (list_empty(&receiver->receives))
                        ucp_worker_progress(sender->worker);
                ucp_worker_progress(receiver->worker);
        }
        cr_assert(is_read(receiver));
        peer_close(&pair,
                   0); /* the owner may use the memory again now, perhaps before it was read */
        while (pair.open > 1)
                uv_run(&pair.loop, UV_RUN_ONCE);
        cr_assert_eq(sent, -ECANCELED);
        cr_assert_eq(landed, 1);
        peer_close(&pair, 1);
        pair_close(&pair);
        cr_assert_eq(landed, -ECANCELED);
}

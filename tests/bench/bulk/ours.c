/*
 * Our own paths between two processes, each with its loop, as two daemons have them.
 *
 * The receiver expects everything before the clock starts; the sender keeps IN_FLIGHT payloads
 * going, and the clock stops when the receiver says that all have landed.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/bulk/bench.h"

enum { IN_FLIGHT = 16, DEADLINE_S = 120 };

static struct end {
        const struct load *load;
        uv_loop_t loop;
        struct bulk_path *path;
        struct bulk_peer *peer;
        size_t given, ended;
        char *buffer;
        bool closed;
} end;

static void must(bool ok)
{
        if (!ok)
                _exit(1);
}

static void give_next(void);

static void on_sent(void *arg, int status)
{
        must(status == 0);
        end.ended++;
        give_next();
}

static void on_landed(void *arg, int status)
{
        must(status == 0);
        end.ended++;
}

static void give_next(void)
{
        if (end.given < end.load->count)
                must(end.peer->ops->send(end.peer, end.given++, end.buffer, end.load->size, on_sent,
                                         NULL) == 0);
}

static void run_until_ended(void)
{
        while (end.ended < end.load->count)
                uv_run(&end.loop, UV_RUN_ONCE);
}

static void on_closed(void *arg)
{
        end.closed = true;
}

static void side_begin(const struct bulk_path_ops *path, const struct bulk_rendezvous *at, int side,
                       const struct load *load)
{
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGPIPE, SIG_IGN);
        alarm(DEADLINE_S);
        end.load = load;
        end.buffer = malloc(load->size);
        must(end.buffer != NULL);
        memset(end.buffer, side + 1, load->size);
        uv_loop_init(&end.loop);
        path->side(&end.loop, at, side, 1, &end.path, &end.peer);
}

static void side_end(const struct bulk_path_ops *path)
{
        end.peer->ops->close(end.peer, on_closed, NULL);
        while (!end.closed)
                uv_run(&end.loop, UV_RUN_ONCE);
        path->free(end.path);
        _exit(0);
}

static void receive(const struct bulk_path_ops *path, const struct bulk_rendezvous *at,
                    const struct load *load)
{
        char byte = 0;

        side_begin(path, at, 1, load);
        for (uint64_t i = 0; i < load->count; i++)
                must(end.peer->ops->expect(end.peer, i, end.buffer, load->size, on_landed, NULL) ==
                     0);
        must(write(at->fd[1], &byte, 1) == 1);
        run_until_ended();
        must(write(at->fd[1], &byte, 1) == 1);
        must(read(at->fd[1], &byte, 1) == 1);
        side_end(path);
}

static void send_all(const struct bulk_path_ops *path, const struct bulk_rendezvous *at,
                     const struct load *load, int result)
{
        uint64_t begun, took;
        char byte;

        side_begin(path, at, 0, load);
        must(read(at->fd[0], &byte, 1) == 1);
        begun = uv_hrtime();
        for (int i = 0; i < IN_FLIGHT; i++)
                give_next();
        run_until_ended();
        must(read(at->fd[0], &byte, 1) == 1);
        took = uv_hrtime() - begun;
        must(write(result, &took, sizeof took) == sizeof took);
        must(write(at->fd[0], &byte, 1) == 1);
        side_end(path);
}

double run_ours(const struct bulk_path_ops *path, const struct load *load)
{
        struct bulk_rendezvous at = { .key = { 1 } };
        int result[2];
        uint64_t took = 0;
        pid_t child[2];

        if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, at.fd) || pipe(result))
                return 0;
        for (int i = 0; i < 2; i++) {
                child[i] = fork();
                if (child[i] == 0 && i == 0)
                        send_all(path, &at, load, result[1]);
                if (child[i] == 0)
                        receive(path, &at, load);
        }
        close(result[1]);
        if (read(result[0], &took, sizeof took) != sizeof took)
                took = 0;
        close(result[0]);
        close(at.fd[0]);
        close(at.fd[1]);
        for (int i = 0; i < 2; i++)
                waitpid(child[i], NULL, 0);
        return took ? (double)load->size * (double)load->count * 1e9 / (double)took : 0;
}

/* A side whose other side, in another process, dies or stops under load. */
#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/conformance/bulk/pair.h"

static pid_t other_side(const struct bulk_rendezvous *at, void (*act)(void))
{
        pid_t child = fork();

        if (child)
                return child;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        loop_open();
        path->side(&pair.loop, at, 1, 7, &pair.path, &pair.peer[1]);
        act();
        _exit(0);
}

static uint8_t bulk_out[4 << 20], bulk_in[4 << 20];

static void ignore(void *arg, int status)
{
}

/* Sends and expects without end, and never gets to an end. */
static void load_without_end(void)
{
        struct bulk_peer *peer = pair.peer[1];

        for (uint64_t i = 0; i < 40; i++) {
                peer->ops->expect(peer, i, bulk_in, sizeof bulk_in, ignore, NULL);
                peer->ops->send(peer, i, bulk_out, sizeof bulk_out, ignore, NULL);
        }
        uv_run(&pair.loop, UV_RUN_DEFAULT);
}

static void rendezvous(struct bulk_rendezvous *ret)
{
        cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ret->fd), 0);
        memset(ret->key, 3, sizeof ret->key);
}

/* After the signal the peer is closed at once, and every op ends once. */
static void loses_its_peer_to(int signal)
{
        enum { N = 40 };
        struct bulk_rendezvous at;
        uint64_t begun;
        pid_t child;

        if (!path->remote)
                cr_skip_test("both ends are in one process");
        rendezvous(&at);
        child = other_side(&at, load_without_end);
        loop_open();
        path->side(&pair.loop, &at, 0, 7, &pair.path, &pair.peer[0]);
        adopt(0);
        for (uint64_t i = 0; i < N; i++) {
                cr_assert_eq(expect_at(0, i, bulk_in, sizeof bulk_in, &pair.land[i]), 0);
                cr_assert_eq(send_from(0, i, bulk_out, sizeof bulk_out, &pair.send[i]), 0);
        }
        run_until(&pair.ended, 3);
        kill(child, signal);
        if (signal == SIGKILL)
                waitpid(child, NULL, 0);
        for (int i = 0; i < 20; i++)
                uv_run(&pair.loop, UV_RUN_NOWAIT);
        begun = uv_hrtime();
        close_side(0);
        run_until(&pair.closed[0], 1);
        cr_assert_lt(uv_hrtime() - begun, 1000000000u, "closing waited for the other side");
        for (int i = 0; i < N; i++) {
                cr_assert_eq(pair.land[i].ended, 1);
                cr_assert_eq(pair.send[i].ended, 1);
        }
        pair_close();
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
}

Test(bulk, a_killed_peer_is_closed_at_once)
{
        loses_its_peer_to(SIGKILL);
}

Test(bulk, a_stopped_peer_is_closed_at_once)
{
        loses_its_peer_to(SIGSTOP);
}

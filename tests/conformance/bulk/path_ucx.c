/*
 * The suite's ends of the path by UCX: in pieces, and by rendezvous, for which memory of another
 * process is read (cma), as RDMA would.
 */
#include "tests/conformance/bulk/bulk_path.h"

#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

struct bulk_path {
        struct bulk_ucx *ucx;
};

static void must(int ok)
{
        if (!ok)
                abort();
}

static struct bulk_path *path_new(void)
{
        struct bulk_path *path = calloc(1, sizeof *path);

        must(path && bulk_ucx_new(NULL, &path->ucx, NULL) == 0);
        return path;
}

static void pair_open(uv_loop_t *loop, const uint64_t token[2], struct bulk_path **ret,
                      struct bulk_peer *ret_peer[2])
{
        struct bulk_path *path = path_new();
        struct bulk_ucx_port *port[2];
        const void *address[2];
        size_t size[2];

        for (int i = 0; i < 2; i++)
                must(bulk_ucx_port_new(path->ucx, loop, &port[i]) == 0);
        address[0] = bulk_ucx_port_address(port[0], &size[0]);
        address[1] = bulk_ucx_port_address(port[1], &size[1]);
        for (int i = 0; i < 2; i++)
                must(bulk_ucx_peer_new(port[i], address[!i], size[!i], token[i], NULL, NULL,
                                       &ret_peer[i]) == 0);
        *ret = path;
}

static void side_open(uv_loop_t *loop, const struct bulk_rendezvous *at, int side, uint64_t token,
                      struct bulk_path **ret, struct bulk_peer **ret_peer)
{
        struct bulk_path *path = path_new();
        struct bulk_ucx_port *port;
        uint8_t theirs[4096];
        const void *mine;
        size_t size;
        ssize_t n;

        must(bulk_ucx_port_new(path->ucx, loop, &port) == 0);
        mine = bulk_ucx_port_address(port, &size);
        must(write(at->fd[side], mine, size) == (ssize_t)size);
        n = read(at->fd[side], theirs, sizeof theirs);
        must(n > 0);
        must(bulk_ucx_peer_new(port, theirs, (size_t)n, token, NULL, NULL, ret_peer) == 0);
        *ret = path;
}

static void path_free(struct bulk_path *path)
{
        bulk_ucx_free(path->ucx);
        free(path);
}

static void pair(uv_loop_t *loop, const uint64_t token[2], struct bulk_path **ret,
                 struct bulk_peer *ret_peer[2])
{
        setenv("UCX_TLS", "posix,self", 1);
        pair_open(loop, token, ret, ret_peer);
}

static void side(uv_loop_t *loop, const struct bulk_rendezvous *at, int side, uint64_t token,
                 struct bulk_path **ret, struct bulk_peer **ret_peer)
{
        setenv("UCX_TLS", "posix,self", 1);
        side_open(loop, at, side, token, ret, ret_peer);
}

const struct bulk_path_ops bulk_path_ucx = {
        .remote = true, .pair = pair, .side = side, .free = path_free
};

/* Processes that are not each other's parents may read each other, too. */
static void choose_get(void)
{
        setenv("UCX_TLS", "posix,cma,self", 1);
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
}

static void pair_get(uv_loop_t *loop, const uint64_t token[2], struct bulk_path **ret,
                     struct bulk_peer *ret_peer[2])
{
        choose_get();
        pair_open(loop, token, ret, ret_peer);
}

static void side_get(uv_loop_t *loop, const struct bulk_rendezvous *at, int side, uint64_t token,
                     struct bulk_path **ret, struct bulk_peer **ret_peer)
{
        choose_get();
        side_open(loop, at, side, token, ret, ret_peer);
}

const struct bulk_path_ops bulk_path_ucx_get = {
        .remote = true, .pair = pair_get, .side = side_get, .free = path_free
};

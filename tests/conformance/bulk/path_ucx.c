/* The suite's end of the path by UCX, over the transports it takes by itself. */
#include "tests/conformance/bulk/bulk_path.h"

#include <stdlib.h>
#include <unistd.h>

const bool bulk_path_is_remote = true;

struct bulk_path {
        struct bulk_ucx *ucx[2];
};

static void must(int ok)
{
        if (!ok)
                abort();
}

static struct bulk_path *path_new(void)
{
        struct bulk_path *path = calloc(1, sizeof *path);

        must(path != NULL);
        return path;
}

void bulk_path_pair(uv_loop_t *loop, const uint64_t token[2], struct bulk_path **ret,
                    struct bulk_peer *ret_peer[2])
{
        struct bulk_path *path = path_new();

        for (int i = 0; i < 2; i++)
                must(bulk_ucx_new(loop, NULL, &path->ucx[i], NULL) == 0);
        for (int i = 0; i < 2; i++) {
                size_t size;
                const void *address = bulk_ucx_address(path->ucx[!i], &size);
                must(bulk_ucx_peer_new(path->ucx[i], address, size, token[i], NULL, NULL,
                                       &ret_peer[i]) == 0);
        }
        *ret = path;
}

void bulk_path_side(uv_loop_t *loop, const struct bulk_rendezvous *at, int side, uint64_t token,
                    struct bulk_path **ret, struct bulk_peer **ret_peer)
{
        struct bulk_path *path = path_new();
        uint8_t theirs[4096];
        const void *mine;
        size_t size;
        ssize_t n;

        must(bulk_ucx_new(loop, NULL, &path->ucx[0], NULL) == 0);
        mine = bulk_ucx_address(path->ucx[0], &size);
        must(write(at->fd[side], mine, size) == (ssize_t)size);
        n = read(at->fd[side], theirs, sizeof theirs);
        must(n > 0);
        must(bulk_ucx_peer_new(path->ucx[0], theirs, (size_t)n, token, NULL, NULL, ret_peer) == 0);
        *ret = path;
}

void bulk_path_free(struct bulk_path *path)
{
        bulk_ucx_free(path->ucx[0]);
        bulk_ucx_free(path->ucx[1]);
        free(path);
}

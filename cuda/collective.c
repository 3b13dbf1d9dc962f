/*
 * NCCL: bytes among GPUs of this process.  The library is loaded when it is asked for, so that the
 * plugin loads where there is none.  Every code of NCCL is translated here, by nccl_errno(), and
 * appears nowhere else.
 *
 * NCCL only carries bytes.  Its own sums keep no order of ranks.
 *
 * What it takes from the environment is settled before it is loaded:
 *   NCCL_SOCKET_IFNAME=lo       Each communicator has threads that listen on TCP for its members,
 *                               for as long as it lives and also where all are in one process.
 *                               By itself NCCL would have them listen on the first interface that
 *                               is not loopback.
 *   NCCL_RAS_ENABLE=0           Nor does it open port 28028 for queries.
 *   NCCL_COMM_ID                is of communicators among processes, for which a trainer's
 *                               environment may have it: ours would wait for those.
 *   NCCL_P2P_DIRECT_DISABLE=1   Up to about 2.24, members of one process write to each other's
 *                               buffers.  Memory that is exported is mapped for its own GPU alone:
 *                               another one's write is a fault that ends the process.  By this they
 *                               write to NCCL's own buffers, as later versions do in any case.
 * The first two are the user's if set.
 */
#include <dlfcn.h>
#include <errno.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/plugin.h"

static struct {
        void *library;
        ncclResult_t (*version)(int *version);
        const char *(*error)(ncclResult_t result);
        const char *(*last_error)(ncclComm_t comm);
        ncclResult_t (*init)(ncclComm_t *comms, int n, const int *devices);
        ncclResult_t (*destroy)(ncclComm_t comm);
        ncclResult_t (*abort)(ncclComm_t comm);
        ncclResult_t (*async)(ncclComm_t comm, ncclResult_t *result);
        ncclResult_t (*begin)(void);
        ncclResult_t (*end)(void);
        ncclResult_t (*broadcast)(const void *src, void *dst, size_t n, ncclDataType_t type,
                                  int root, ncclComm_t comm, cudaStream_t stream);
        ncclResult_t (*send)(const void *src, size_t n, ncclDataType_t type, int peer,
                             ncclComm_t comm, cudaStream_t stream);
        ncclResult_t (*receive)(void *dst, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                                cudaStream_t stream);
} nccl;

struct comm {
        uint32_t n;
        ncclComm_t members[];
};

static _Thread_local char why[384];

const char *cuda_nccl_error(void)
{
        return why;
}

/* ---- the library ------------------------------------------------------------------ */

static int nccl_errno(ncclResult_t result)
{
        switch (result) {
        case ncclSuccess:
                return 0;
        case ncclInvalidArgument:
        case ncclInvalidUsage:
                return -EINVAL;
        default:
                return -EIO;
        }
}

/* 0 or -errno, and why. */
static int check(const char *call, ncclResult_t result)
{
        const char *more;

        if (result == ncclSuccess)
                return 0;
        more = nccl.last_error(NULL);
        snprintf(why, sizeof(why), "%s: %s%s%.200s", call, nccl.error(result),
                 more && *more ? ": " : "", more ? more : "");
        return nccl_errno(result);
}

/* Writes the environment only where it changes, so that a second call only reads. */
static void settle_environment(void)
{
        const char *direct = getenv("NCCL_P2P_DIRECT_DISABLE");

        if (!getenv("NCCL_SOCKET_IFNAME"))
                setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
        if (!getenv("NCCL_RAS_ENABLE"))
                setenv("NCCL_RAS_ENABLE", "0", 1);
        if (getenv("NCCL_COMM_ID"))
                unsetenv("NCCL_COMM_ID");
        if (!direct || strcmp(direct, "1") != 0)
                setenv("NCCL_P2P_DIRECT_DISABLE", "1", 1);
}

static int look_up(void *library)
{
        const struct {
                const char *name;
                void *to;
        } calls[] = {
                { "ncclGetVersion", &nccl.version },
                { "ncclGetErrorString", &nccl.error },
                { "ncclGetLastError", &nccl.last_error },
                { "ncclCommInitAll", &nccl.init },
                { "ncclCommDestroy", &nccl.destroy },
                { "ncclCommAbort", &nccl.abort },
                { "ncclCommGetAsyncError", &nccl.async },
                { "ncclGroupStart", &nccl.begin },
                { "ncclGroupEnd", &nccl.end },
                { "ncclBroadcast", &nccl.broadcast },
                { "ncclSend", &nccl.send },
                { "ncclRecv", &nccl.receive },
        };

        for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
                void *function = dlsym(library, calls[i].name);

                if (!function) {
                        snprintf(why, sizeof(why), "libnccl.so.2 is too old: it has no %s",
                                 calls[i].name);
                        return -ENOTSUP;
                }
                *(void **)calls[i].to = function;
        }
        return 0;
}

int cuda_nccl_open(int *ret_version)
{
        int r, version = 0;

        if (!nccl.library) {
                void *library;

                settle_environment();
                library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
                if (!library) {
                        snprintf(why, sizeof(why), "%.300s", dlerror());
                        return -ENOENT;
                }
                r = look_up(library);
                if (r < 0) {
                        dlclose(library);
                        return r;
                }
                nccl.library = library; /* it stays loaded: it has threads */
        }
        r = check("ncclGetVersion", nccl.version(&version));
        if (r == 0)
                *ret_version = version;
        return r;
}

/* ---- communicators --------------------------------------------------------------- */

int cuda_comm_new(const int *devices, uint32_t n, void **ret_comm)
{
        struct comm *c = calloc(1, sizeof(*c) + n * sizeof(ncclComm_t));
        int r;

        if (!c) {
                snprintf(why, sizeof(why), "out of memory");
                return -ENOMEM;
        }
        c->n = n;
        r = check("ncclCommInitAll", nccl.init(c->members, (int)n, devices));
        if (r < 0) {
                free(c);
                return r;
        }
        *ret_comm = c;
        return 0;
}

static void end_members(struct comm *c, ncclResult_t (*end)(ncclComm_t comm))
{
        for (uint32_t i = 0; i < c->n; i++)
                (void)end(c->members[i]);
        free(c);
}

void cuda_comm_free(void *comm)
{
        end_members(comm, nccl.destroy);
}

void cuda_comm_abort(void *comm)
{
        end_members(comm, nccl.abort);
}

/* ---- enqueued --------------------------------------------------------------------- */

/* Ends a group, even after a failure in it, which r tells. */
static int group_end(int r)
{
        ncclResult_t result = nccl.end();

        return r < 0 ? r : check("ncclGroupEnd", result);
}

int cuda_broadcast(void *comm, uint32_t root, const void *src, void *const *dst, size_t n,
                   void *const *streams)
{
        const struct comm *c = comm;
        int r = check("ncclGroupStart", nccl.begin());

        if (r < 0)
                return r;
        for (uint32_t i = 0; r == 0 && i < c->n; i++)
                r = check("ncclBroadcast",
                          nccl.broadcast(i == root ? src : dst[i], dst[i], n, ncclUint8, (int)root,
                                         c->members[i], streams[i]));
        return group_end(r);
}

int cuda_exchange(void *comm, const struct zero_cuda_move *moves, uint32_t n_moves,
                  void *const *streams)
{
        const struct comm *c = comm;
        int r = check("ncclGroupStart", nccl.begin());

        if (r < 0)
                return r;
        for (uint32_t i = 0; r == 0 && i < n_moves; i++) {
                const struct zero_cuda_move *m = &moves[i];

                r = check("ncclSend", nccl.send(m->src, m->n, ncclUint8, (int)m->to,
                                                c->members[m->from], streams[m->from]));
                if (r == 0)
                        r = check("ncclRecv", nccl.receive(m->dst, m->n, ncclUint8, (int)m->from,
                                                           c->members[m->to], streams[m->to]));
        }
        return group_end(r);
}

static int stream_done(cudaStream_t stream)
{
        cudaError_t error = cudaStreamQuery(stream);
        int r;

        if (error == cudaErrorNotReady) {
                (void)cudaGetLastError();
                return 0;
        }
        r = cuda_errno(error);
        if (r < 0)
                snprintf(why, sizeof(why), "a stream: %s", cudaGetErrorString(error));
        return r < 0 ? r : 1;
}

int cuda_comm_done(void *comm, void *const *streams)
{
        const struct comm *c = comm;
        bool done = true;

        for (uint32_t i = 0; i < c->n; i++) {
                ncclResult_t result = ncclSuccess;
                int r = check("ncclCommGetAsyncError", nccl.async(c->members[i], &result));

                if (r == 0)
                        r = check("a member", result);
                if (r < 0)
                        return r;
                r = stream_done(streams[i]);
                if (r < 0)
                        return r;
                done = done && r > 0;
        }
        return done;
}

/* A libnccl.so.2 that touches no GPU: it notes how it is called, and fails as it is told. */
#include "tests/support/nccl/fake_nccl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

struct ncclComm {
        int rank, n;
};

/* The header's have no prototype. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

EXPORT struct fake_nccl fake_nccl;

static void keep(char *to, size_t size, const char *variable)
{
        const char *value = getenv(variable);

        snprintf(to, size, "%s", value ? value : "");
}

__attribute__((constructor)) static void loaded(void)
{
        keep(fake_nccl.interface, sizeof fake_nccl.interface, "NCCL_SOCKET_IFNAME");
        keep(fake_nccl.ras, sizeof fake_nccl.ras, "NCCL_RAS_ENABLE");
        keep(fake_nccl.id, sizeof fake_nccl.id, "NCCL_COMM_ID");
        keep(fake_nccl.direct, sizeof fake_nccl.direct, "NCCL_P2P_DIRECT_DISABLE");
}

__attribute__((format(printf, 2, 3))) static ncclResult_t call(const char *name, const char *format,
                                                               ...)
{
        size_t length = strlen(fake_nccl.log);
        va_list args;

        va_start(args, format);
        vsnprintf(fake_nccl.log + length, sizeof fake_nccl.log - length, format, args);
        va_end(args);
        return fake_nccl.failing && strcmp(fake_nccl.failing, name) == 0 ? fake_nccl.with
                                                                         : ncclSuccess;
}

EXPORT ncclResult_t ncclGetVersion(int *version)
{
        *version = 22809;
        return call("ncclGetVersion", "version; ");
}

EXPORT const char *ncclGetErrorString(ncclResult_t result)
{
        return result == ncclRemoteError ? "remote process exited" : "an error";
}

EXPORT const char *ncclGetLastError(ncclComm_t comm)
{
        return "what came before it";
}

EXPORT ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n, const int *devices)
{
        ncclResult_t result = call("ncclCommInitAll", "init %d; ", n);

        for (int i = 0; i < n && result == ncclSuccess; i++) {
                comms[i] = malloc(sizeof *comms[i]);
                if (!comms[i])
                        return ncclSystemError;
                *comms[i] = (struct ncclComm){ i, n };
        }
        return result;
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
        ncclResult_t result = call("ncclCommDestroy", "destroy %d; ", comm->rank);

        free(comm);
        return result;
}

#ifndef FAKE_NCCL_OLD
EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm)
{
        ncclResult_t result = call("ncclCommAbort", "abort %d; ", comm->rank);

        free(comm);
        return result;
}
#endif

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result)
{
        *result = comm->rank == comm->n - 1 ? fake_nccl.async : ncclSuccess;
        return call("ncclCommGetAsyncError", "async %d; ", comm->rank);
}

EXPORT ncclResult_t ncclGroupStart(void)
{
        return call("ncclGroupStart", "begin; ");
}

EXPORT ncclResult_t ncclGroupEnd(void)
{
        return call("ncclGroupEnd", "end; ");
}

EXPORT ncclResult_t ncclBroadcast(const void *src, void *dst, size_t n, ncclDataType_t type,
                                  int root, ncclComm_t comm, cudaStream_t stream)
{
        return call("ncclBroadcast", "broadcast %d>%d %zu %s; ", root, comm->rank, n,
                    src == dst ? "in place" : "copied");
}

EXPORT ncclResult_t ncclSend(const void *src, size_t n, ncclDataType_t type, int peer,
                             ncclComm_t comm, cudaStream_t stream)
{
        return call("ncclSend", "send %d>%d %zu on %zu; ", comm->rank, peer, n, (size_t)stream);
}

EXPORT ncclResult_t ncclRecv(void *dst, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                             cudaStream_t stream)
{
        return call("ncclRecv", "receive %d>%d %zu on %zu; ", peer, comm->rank, n, (size_t)stream);
}

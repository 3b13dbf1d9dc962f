/*
 * cuda/collective.c against a libnccl.so.2 that notes its calls; this file stands in for the CUDA
 * runtime.  With $OLD_NCCL set that library lacks a function.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/plugin.h"
#include "tests/support/nccl/fake_nccl.h"

static struct fake_nccl *nccl;
static cudaError_t stream_state;
static void *streams[] = { (void *)1, (void *)2, (void *)3 };
static void *comm;

int cuda_errno(cudaError_t error)
{
        return error == cudaSuccess ? 0 : -EIO;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
        return stream == streams[1] ? stream_state : cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
        return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
        return "an unspecified launch failure";
}

/* ---- without communicators --------------------------------------------------------- */

static void find(void)
{
        void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);

        nccl = dlsym(library, "fake_nccl");
        cr_assert_not_null(nccl, "the real libnccl.so.2 was loaded");
}

static void open_it(void)
{
        int version = 0;

        cr_assert_eq(cuda_nccl_open(&version), 0, "%s", cuda_nccl_error());
        cr_assert_eq(version, 22809);
        find();
        nccl->log[0] = '\0';
}

Test(collective, a_library_that_lacks_a_function_is_refused_by_its_name)
{
        int version = 7;

        if (!getenv("OLD_NCCL"))
                cr_skip("this libnccl.so.2 is whole");
        cr_assert_eq(cuda_nccl_open(&version), -ENOTSUP);
        cr_assert_eq(version, 7);
        cr_assert_str_eq(cuda_nccl_error(), "libnccl.so.2 is too old: it has no ncclCommAbort");
}

static void skip_old(void)
{
        if (getenv("OLD_NCCL"))
                cr_skip("this libnccl.so.2 is old");
}

Test(collective, its_threads_listen_on_loopback_and_members_write_to_no_foreign_buffer)
{
        skip_old();
        unsetenv("NCCL_SOCKET_IFNAME");
        unsetenv("NCCL_RAS_ENABLE");
        setenv("NCCL_COMM_ID", "10.0.0.1:5555", 1);
        setenv("NCCL_P2P_DIRECT_DISABLE", "0", 1);
        open_it();
        cr_assert_str_eq(nccl->interface, "=lo");
        cr_assert_str_eq(nccl->ras, "0");
        cr_assert_str_eq(nccl->id, "");
        cr_assert_str_eq(nccl->direct, "1");
}

Test(collective, an_interface_that_the_user_has_chosen_stays)
{
        skip_old();
        setenv("NCCL_SOCKET_IFNAME", "eth7", 1);
        setenv("NCCL_RAS_ENABLE", "1", 1);
        open_it();
        cr_assert_str_eq(nccl->interface, "eth7");
        cr_assert_str_eq(nccl->ras, "1");
}

Test(collective, a_communicator_that_cannot_be_made_says_why)
{
        skip_old();
        open_it();
        nccl->failing = "ncclCommInitAll";
        nccl->with = ncclUnhandledCudaError;
        cr_assert_eq(cuda_comm_new((int[]){ 0, 1, 2 }, 3, &comm), -EIO);
        cr_assert_null(comm);
        cr_assert_str_eq(cuda_nccl_error(), "ncclCommInitAll: an error: what came before it");
}

/* ---- among three GPUs ------------------------------------------------------------------ */

static void begin(void)
{
        skip_old();
        open_it();
        cr_assert_eq(cuda_comm_new((int[]){ 4, 0, 2 }, 3, &comm), 0);
        cr_assert_str_eq(nccl->log, "init 3; ");
        nccl->log[0] = '\0';
}

Test(collective, a_broadcast_is_one_group_of_all_members, .init = begin)
{
        char memory[3] = { 0 };
        void *dst[] = { &memory[0], &memory[1], &memory[2] };

        cr_assert_eq(cuda_broadcast(comm, 1, &memory[1], dst, 8, streams), 0);
        cr_assert_str_eq(nccl->log, "begin; broadcast 1>0 8 in place; broadcast 1>1 8 in place; "
                                    "broadcast 1>2 8 in place; end; ");
        cuda_comm_free(comm);
}

static const struct zero_cuda_move moves[] = {
        { .n = 16, .to = 1, .from = 0 },
        { .n = 8, .to = 0, .from = 2 },
};

Test(collective, each_move_is_sent_and_received_on_its_members_streams, .init = begin)
{
        cr_assert_eq(cuda_exchange(comm, moves, 2, streams), 0);
        cr_assert_str_eq(nccl->log, "begin; send 0>1 16 on 1; receive 0>1 16 on 2; "
                                    "send 2>0 8 on 3; receive 2>0 8 on 1; end; ");
        cuda_comm_free(comm);
}

Test(collective, a_group_is_ended_after_a_failure_in_it, .init = begin)
{
        nccl->failing = "ncclRecv";
        nccl->with = ncclInvalidArgument;
        cr_assert_eq(cuda_exchange(comm, moves, 2, streams), -EINVAL);
        cr_assert_str_eq(nccl->log, "begin; send 0>1 16 on 1; receive 0>1 16 on 2; end; ");
        cr_assert_str_eq(cuda_nccl_error(), "ncclRecv: an error: what came before it");
        nccl->failing = "ncclGroupEnd";
        nccl->with = ncclSystemError;
        cr_assert_eq(cuda_exchange(comm, moves, 2, streams), -EIO);
        cuda_comm_abort(comm);
}

Test(collective, it_is_done_when_every_stream_is, .init = begin)
{
        stream_state = cudaErrorNotReady;
        cr_assert_eq(cuda_comm_done(comm, streams), 0);
        stream_state = cudaSuccess;
        cr_assert_eq(cuda_comm_done(comm, streams), 1);
        stream_state = cudaErrorLaunchFailure;
        cr_assert_eq(cuda_comm_done(comm, streams), -EIO);
        cr_assert_str_eq(cuda_nccl_error(), "a stream: an unspecified launch failure");
        cuda_comm_abort(comm);
}

Test(collective, what_fails_later_is_told_before_the_streams_are_asked, .init = begin)
{
        nccl->async = ncclRemoteError;
        stream_state = cudaErrorNotReady;
        cr_assert_eq(cuda_comm_done(comm, streams), -EIO);
        cr_assert_str_eq(cuda_nccl_error(), "a member: remote process exited: what came before it");
        cuda_comm_abort(comm);
}

Test(collective, it_ends_in_order_or_is_aborted, .init = begin)
{
        cuda_comm_abort(comm);
        cr_assert_str_eq(nccl->log, "abort 0; abort 1; abort 2; ");
        cr_assert_eq(cuda_comm_new((int[]){ 1 }, 1, &comm), 0);
        nccl->log[0] = '\0';
        cuda_comm_free(comm);
        cr_assert_str_eq(nccl->log, "destroy 0; ");
}

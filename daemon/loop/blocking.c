/* Blocking work on libuv's threads; see blocking.h. */
#include "daemon/core/blocking.h"

#include <assert.h>

#include "proto/cleanup.h"

static void work_run(uv_work_t *work)
{
        struct blocking_work *job = CONTAINER_OF(work, struct blocking_work, work);

        job->run(job);
}

static void work_done(uv_work_t *work, int status)
{
        struct blocking_work *job = CONTAINER_OF(work, struct blocking_work, work);

        assert(status == 0); /* nothing cancels the work */
        job->done(job);
}

void blocking_submit(uv_loop_t *loop, struct blocking_work *job)
{
        int r = uv_queue_work(loop, &job->work, work_run, work_done);

        assert(r == 0);
}

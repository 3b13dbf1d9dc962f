/* Blocking work on libuv's threads; see disk.h. */
#include "daemon/core/disk.h"

#include <assert.h>

#include "proto/cleanup.h"

static void work_run(uv_work_t *work)
{
        struct disk_job *job = CONTAINER_OF(work, struct disk_job, work);

        job->run(job);
}

static void work_done(uv_work_t *work, int status)
{
        struct disk_job *job = CONTAINER_OF(work, struct disk_job, work);

        assert(status == 0); /* nothing cancels it */
        job->done(job);
}

void disk_submit(uv_loop_t *loop, struct disk_job *job)
{
        int r = uv_queue_work(loop, &job->work, work_run, work_done);

        assert(r == 0);
}

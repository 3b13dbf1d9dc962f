/* What a node keeps of its ranks while their sessions come and go. */
#include "daemon/core/job.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "proto/cleanup.h"

int kept_set(struct kept *k, const void *p, size_t n)
{
        void *data = n ? malloc(n) : NULL;

        if (n && !data)
                return -ENOMEM;
        if (n)
                memcpy(data, p, n);
        free(k->data);
        *k = (struct kept){ data, (uint32_t)n };
        return 0;
}

void kept_clear(struct kept *k)
{
        free(k->data);
        *k = (struct kept){ 0 };
}

static void seat_clear(struct seat *seat)
{
        free(STEAL(seat->params));
        kept_clear(&seat->handed);
        seat->closed = seat->stepped = seat->refused = false;
}

void seats_free(struct seat *seats, uint32_t n)
{
        for (uint32_t r = 0; seats && r < n; r++) {
                seat_clear(&seats[r]);
                kept_clear(&seats[r].kept);
        }
        free(seats);
}

void seats_reset(struct job *job, bool decided)
{
        for (uint32_t r = 0; r < job->world_size; r++) {
                struct seat *seat = &job->seats[r];

                if (decided && seat->stepped) {
                        kept_clear(&seat->kept);
                        seat->kept = seat->handed;
                        seat->handed = (struct kept){ 0 };
                }
                seat_clear(seat);
        }
}

void seats_keep(struct job *job, Zero__Kept **kept, size_t n)
{
        for (uint32_t r = 0; r < job->world_size; r++)
                kept_clear(&job->seats[r].kept);
        for (size_t i = 0; i < n; i++)
                if (kept[i]->rank < job->world_size && kept[i]->blob.len <= ZERO_BLOB_MAX &&
                    kept_set(&job->seats[kept[i]->rank].kept, kept[i]->blob.data,
                             kept[i]->blob.len))
                        log_error("job %s: out of memory: what rank %u kept is not known here",
                                  job->name, kept[i]->rank);
}

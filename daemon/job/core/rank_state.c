/* What a node knows of ranks, and what it keeps of its own ranks while their sessions come and go.
 */
#include "daemon/job/core/job.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

int blob_set(struct blob *k, const void *p, size_t n)
{
        void *data = n ? malloc(n) : NULL;

        if (n && !data)
                return -ENOMEM;
        if (n)
                memcpy(data, p, n);
        free(k->data);
        *k = (struct blob){ data, (uint32_t)n };
        return 0;
}

void blob_clear(struct blob *k)
{
        free(k->data);
        *k = (struct blob){ 0 };
}

static void rank_state_clear(struct rank_state *rank_state)
{
        free(STEAL(rank_state->params));
        blob_clear(&rank_state->handed);
        rank_state->closed = rank_state->stepped = rank_state->refused = false;
}

void rank_states_free(struct rank_state *rank_states, uint32_t n)
{
        for (uint32_t r = 0; rank_states && r < n; r++) {
                rank_state_clear(&rank_states[r]);
                blob_clear(&rank_states[r].kept);
        }
        free(rank_states);
}

void rank_states_reset(struct job *job, bool decided)
{
        for (uint32_t r = 0; r < job->world_size; r++) {
                struct rank_state *rank_state = &job->ranks[r];

                if (decided && rank_state->stepped) {
                        blob_clear(&rank_state->kept);
                        rank_state->kept = rank_state->handed;
                        rank_state->handed = (struct blob){ 0 };
                }
                rank_state_clear(rank_state);
        }
}

void rank_states_keep(struct job *job, Zero__RankBlob **kept, size_t n)
{
        for (uint32_t r = 0; r < job->world_size; r++)
                blob_clear(&job->ranks[r].kept);
        for (size_t i = 0; i < n; i++)
                if (kept[i]->rank < job->world_size && kept[i]->blob.len <= ZERO_BLOB_MAX &&
                    blob_set(&job->ranks[kept[i]->rank].kept, kept[i]->blob.data,
                             kept[i]->blob.len))
                        log_error("job %s: out of memory: this node does not have the blob of rank "
                                  "%u",
                                  job->name, kept[i]->rank);
}

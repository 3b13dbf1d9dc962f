/* Describes this node's replicas to the rules of rules/owner.h. */
#include "daemon/job/shard/shard.h"

static_assert((int)OWNER_OPEN == ATTEMPT_OPEN && (int)OWNER_PREPARED == ATTEMPT_PREPARED &&
                      (int)OWNER_DECIDED == ATTEMPT_DECIDED,
              "the phases of a record have the same numbers in rules/owner.h and store/state.h");

struct owner_record record_facts(const struct state_record *r)
{
        return (struct owner_record){ .version = r->version,
                                      .attempt = r->attempt,
                                      .phase = (enum owner_phase)r->phase,
                                      .decided_attempt = r->decided_attempt,
                                      .commit = r->commit };
}

bool record_stands(const struct replica *h, const struct owner_record *r)
{
        struct owner_record is = record_facts(h->state->record);

        return is.version == r->version && is.attempt == r->attempt && is.phase == r->phase &&
               is.decided_attempt == r->decided_attempt && is.commit == r->commit;
}

static struct owner_replica replica_facts(const struct replica *h, uint32_t id)
{
        return (struct owner_replica){ .id = id,
                                       .record = record_facts(h->state->record),
                                       .in_force = h->state->id.epoch == h->job->placement.epoch,
                                       .updating = h->updating,
                                       .ahead = h->ahead };
}

static void stand_facts(const struct job *job, struct owner *ret)
{
        ret->version = job->version;
        ret->attempt = job->attempt;
        ret->started = job->started;
        ret->n = 0;
}

void owner_of_replica(const struct replica *h, struct owner *ret)
{
        stand_facts(h->job, ret);
        ret->replicas[ret->n++] = replica_facts(h, 0);
}

void owner_of_job(const struct job *job, struct owner *ret, struct replica *at[OWNER_REPLICAS])
{
        stand_facts(job, ret);
        for_replicas (job, h) {
                assert(ret->n < OWNER_REPLICAS);
                at[ret->n] = h;
                ret->replicas[ret->n] = replica_facts(h, ret->n);
                ret->n++;
        }
}

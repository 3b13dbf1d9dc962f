/* Decides what a node's replicas do when the coordinator tells them to; see owner.h. */
#include "daemon/job/rules/owner.h"

#include <assert.h>

#include "daemon/job/rules/moving.h"

/* ---- actions --------------------------------------------------------------------------------- */

static struct owner_action *act(struct owner_actions *to, enum owner_action_kind kind)
{
        struct owner_action *a = &to->items[to->n++];

        assert(to->n <= OWNER_ACTIONS);
        *a = (struct owner_action){ .kind = kind };
        return a;
}

static struct owner_action *replica_act(struct owner_actions *to, enum owner_action_kind kind,
                                        const struct owner_replica *r)
{
        struct owner_action *a = act(to, kind);

        a->replica = r->id;
        a->record = r->record;
        return a;
}

static void abort_for(struct owner_actions *to, const struct owner_replica *r, uint64_t attempt)
{
        struct owner_action *a = replica_act(to, OWNER_ABORT, r);

        a->record.attempt = attempt;
        a->record.phase = OWNER_OPEN;
}

/* Adds a decision for a replica that has voted in the attempt. */
static void decide_as(struct owner_actions *to, const struct owner_replica *r, bool commit)
{
        struct owner_action *a = replica_act(to, OWNER_DECIDE, r);

        a->record.phase = OWNER_DECIDED;
        a->record.decided_attempt = r->record.attempt;
        a->record.commit = commit;
}

static void stand(struct owner_actions *to, uint64_t version, uint64_t attempt)
{
        struct owner_action *a = act(to, OWNER_STAND);

        a->version = version;
        a->attempt = attempt;
}

/* ---- the coordinator's word ------------------------------------------------------------------ */

/*
 * The coordinator starts no attempt before each replica has heard the last decision.  A start also
 * voids votes: the coordinator has found that not all replicas of the job have voted.
 */
static void on_start(const struct owner *o, const struct owner_event *e, struct owner_actions *to)
{
        if (o->n && (o->version != e->version || o->attempt > e->attempt)) {
                act(to, OWNER_CLASH);
                return;
        }
        stand(to, e->version, e->attempt);
        for (uint32_t i = 0; i < o->n; i++) {
                const struct owner_replica *r = &o->replicas[i];

                /* a replica that carries a decision out takes the attempt up when it votes */
                if (r->record.phase != OWNER_DECIDED && r->record.attempt < e->attempt)
                        abort_for(to, r, e->attempt);
                if (r->ahead && !r->updating)
                        replica_act(to, OWNER_UNDO, r);
        }
        act(to, OWNER_BEGIN);
}

/* Asks all replicas for something that concerns the running attempt. */
static void on_asked(const struct owner *o, const struct owner_event *e,
                     enum owner_action_kind kind, struct owner_actions *to)
{
        if (e->attempt != o->attempt)
                return;
        for (uint32_t i = 0; i < o->n; i++)
                replica_act(to, kind, &o->replicas[i]);
}

/* While an update still reads the last attempt's gradient, the record stays in that attempt. */
static void on_summed(const struct owner *o, struct owner_actions *to)
{
        const struct owner_replica *r = &o->replicas[0];
        struct owner_action *a;

        if (!r->asked || !r->summed || r->updating)
                return;
        a = replica_act(to, OWNER_VOTE, r);
        if (!r->closing)
                return;
        a->record.attempt = o->attempt;
        a->record.phase = OWNER_PREPARED;
}

/* No step runs on an earlier placement: an attempt that was not decided there never will be. */
static void on_settle(const struct owner *o, const struct owner_event *e, struct owner_actions *to)
{
        const struct owner_replica *r = &o->replicas[0];

        switch (settling(owner_stand(&r->record).prepared_attempt, e->attempt)) {
        case SETTLE_CARRY_OUT:
                decide_as(to, r, e->commit);
                break;
        case SETTLE_VOID:
                abort_for(to, r, r->record.attempt + 1);
                break;
        case SETTLE_STANDS:
                break;
        }
}

static bool has_voted(const struct owner_replica *r, uint64_t attempt)
{
        return r->record.phase == OWNER_PREPARED && r->record.attempt == attempt;
}

/* True if each replica has voted in the attempt or knows its decision.  A replica knows it if the
 * daemon was killed before another replica here had recorded it. */
static bool may_hear(const struct owner *o, uint64_t attempt)
{
        for (uint32_t i = 0; i < o->n; i++)
                if (!has_voted(&o->replicas[i], attempt) &&
                    o->replicas[i].record.decided_attempt != attempt)
                        return false;
        return true;
}

static void decided(const struct owner *o, const struct owner_event *e, struct owner_actions *to)
{
        if (!may_hear(o, e->attempt)) {
                act(to, OWNER_CLASH);
                return;
        }
        stand(to, e->version, e->attempt + 1);
        for (uint32_t i = 0; i < o->n; i++)
                if (has_voted(&o->replicas[i], e->attempt))
                        decide_as(to, &o->replicas[i], e->commit);
        act(to, OWNER_BEGIN)->decided = true;
}

/* A node without shards on which no attempt has begun does not know which attempt runs, so it takes
 * any decision that is news. */
static void on_decision(const struct owner *o, const struct owner_event *e,
                        struct owner_actions *to)
{
        bool step = !e->refused && !e->norm_only;
        bool news = step && !o->n && !o->started && e->attempt > o->attempt;

        if (e->attempt != o->attempt && !news)
                return;
        if (step)
                decided(o, e, to);
        else
                act(to, e->refused ? OWNER_REFUSE : OWNER_TELL_NORM);
}

/* ---- what a replica carries out -------------------------------------------------------------- */

/* Only replicas in force tell the coordinator: nobody counts who has carried out a step on an
 * earlier placement. */
static void on_updated(const struct owner *o, struct owner_actions *to)
{
        const struct owner_replica *r = &o->replicas[0];
        struct owner_action *a = replica_act(to, OWNER_FINISH, r);

        a->record.version += r->record.commit;
        a->record.attempt++;
        a->record.phase = OWNER_OPEN;
        if (r->in_force)
                replica_act(to, OWNER_TELL_DONE, r);
}

static void on_given(const struct owner *o, struct owner_actions *to)
{
        if (o->replicas[0].record.phase == OWNER_DECIDED)
                replica_act(to, OWNER_UPDATE, &o->replicas[0]);
}

void owner_step(const struct owner *o, const struct owner_event *e, struct owner_actions *ret)
{
        ret->n = 0;
        switch (e->kind) {
        case OWNER_START:
                on_start(o, e, ret);
                break;
        case OWNER_PREPARE:
                on_asked(o, e, OWNER_ASK, ret);
                break;
        case OWNER_AHEAD:
                on_asked(o, e, OWNER_LEAD, ret);
                break;
        case OWNER_SUMMED:
                on_summed(o, ret);
                break;
        case OWNER_DECISION:
                on_decision(o, e, ret);
                break;
        case OWNER_SETTLE:
                on_settle(o, e, ret);
                break;
        case OWNER_UPDATED:
                on_updated(o, ret);
                break;
        case OWNER_GIVEN:
                on_given(o, ret);
                break;
        }
}

/* ---- what is known --------------------------------------------------------------------------- */

struct owner_stand owner_stand(const struct owner_record *r)
{
        bool decided = r->phase == OWNER_DECIDED;

        return (struct owner_stand){ .version = r->version + (decided && r->commit),
                                     .attempt = r->attempt + decided,
                                     .done = !decided,
                                     .prepared_attempt =
                                             r->phase == OWNER_PREPARED ? r->attempt : 0 };
}

bool owner_behind(const struct owner_replica *a, const struct owner_replica *b)
{
        if (a->in_force != b->in_force)
                return a->in_force;
        return owner_stand(&a->record).attempt < owner_stand(&b->record).attempt;
}

enum owner_offer owner_offer(uint64_t attempt, bool started, uint64_t offered)
{
        if (offered > attempt)
                return OWNER_OFFER_EARLY;
        return offered == attempt && started ? OWNER_OFFER_NOW : OWNER_OFFER_OVER;
}

/* update.h - runs the optimizer on an owner's shards once a step is decided, and on eager groups as
 * soon as their gradient is complete. */
#pragma once

#include "daemon/step/reduce/reduce.h"

/* Records the decision, which takes the record to `to`, and carries it out. */
void update_begin(struct replica *h, const Zero__Decision *d, const struct owner_record *to);
/* Carries out the recorded decision, from wherever a crash has left it. */
void update_start(struct replica *h);
/* The ranks will end the running attempt by these: updates eager groups as they become complete. */
void update_lead(struct replica *h, const struct step_params *params);
/* A vote is asked for: what was updated ahead with other values than these goes back. */
void update_led_as(struct replica *h, const struct step_params *params);
/* Puts the old values of all that is ahead of the decision back, and updates nothing more before
 * it.  Observers hear `settled` when that is done. */
void update_undo(struct replica *h);
/* True if planes are, or may be, other than the record has them: an update runs, old values are put
 * back, or groups are ahead of the decision. */
static inline bool update_holds(const struct replica *h)
{
        return h->updating || h->ahead;
}
/* The replica has received its state: goes on with a vote or carries out a decision that the
 * state's record has. */
void replica_take_up(struct replica *h);
/* The job has received its states: it goes on where their records stand. */
void job_take_up(struct job *job);

extern const struct module update_module;
extern const struct shard_observer update_observer;

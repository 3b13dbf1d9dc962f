/* machine.h - the coordinator of a world, out of its bytes and back into them. */
#pragma once

#include "daemon/job/coordinator.h"
#include "world.h"

enum { MACHINE_ACTIONS = 32 };

/* Other bounds: another coordinator. */
void machine_new(void);
/*
 * An event happens to the coordinator of w; what that gives, how many.  `call` of an action: what
 * COORDINATOR_ANSWER answers with; the node of the source of COORDINATOR_FILL.
 */
uint32_t machine_step(struct world *w, const struct coordinator_event *e,
                      struct coordinator_action ret[MACHINE_ACTIONS]);
/* Why the job cannot go on. */
const char *machine_fault(void);

/* For events; what is pointed to is valid until the next event. */
struct told_state machine_told(uint32_t holder, const struct stand *s);
struct join *machine_join(const struct world *w, uint32_t node, u8 rank, u8 session);
const struct step_params *machine_params(u8 scale);

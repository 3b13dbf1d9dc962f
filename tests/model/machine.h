/* machine.h - the coordinator of a world: read from the world's bytes, stepped, written back. */
#pragma once

#include "daemon/job/rules/coordinator.h"
#include "world.h"

enum { MACHINE_ACTIONS = 32 };

/* The bounds have changed: makes another coordinator. */
void machine_new(void);
/*
 * Steps the coordinator of w with an event; returns the number of actions.  An action's `call` is
 * what COORDINATOR_ANSWER answers with, or the node of the source of COORDINATOR_FILL.
 */
uint32_t machine_step(struct world *w, const struct coordinator_event *e,
                      struct coordinator_action ret[MACHINE_ACTIONS]);
/* The reason why the job cannot go on. */
const char *machine_fault(void);

/* Parts of events; the pointers are valid until the next event. */
struct told_state machine_told(uint32_t holder, const struct stand *s);
struct join *machine_join(const struct world *w, uint32_t node, u8 rank, u8 session);
const struct step_params *machine_params(u8 scale);

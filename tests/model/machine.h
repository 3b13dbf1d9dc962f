/* machine.h - the coordinator's step machine of a world. */
#pragma once

#include "daemon/job/step.h"
#include "world.h"

/* The one there is, as w has it; valid until the next call. */
struct step *machine_load(const struct world *w);
void machine_store(struct world *w);
struct step_params machine_params(u8 scale);

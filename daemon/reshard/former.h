/* former.h - states of earlier placements on this node, until another one is whole. */
#pragma once

#include "daemon/shard/shard.h"

/* States of earlier placements: a decided step is carried out. */
void former_take_up(struct job *job);
/* Where the job stood when its placement ended; that another one is whole. */
void former_settle_message(struct job *job, uint32_t node, const Zero__LinkMessage *m);
void former_placed_message(struct exchange *x, uint32_t node, const Zero__LinkMessage *m);

extern const struct module former_module;
extern const struct shard_observer former_observer;

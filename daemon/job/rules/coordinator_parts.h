/* coordinator_parts.h - what the files of the coordinator share (coordinator.h). */
#pragma once

#include "daemon/job/rules/coordinator.h"

/* ---- coordinator_rank_slots.c: joins, slots, starts ---- */

/* Appends an action. */
void act(struct coordinator *c, struct coordinator_action action);
static inline void act_node(struct coordinator *c, enum coordinator_action_kind kind, uint32_t node)
{
        act(c, (struct coordinator_action){ .kind = kind, .node = node });
}

void joins_end(struct coordinator *c, int status, const char *text);
/* Gives every waiting rank its slot, once it is known where the job stands. */
void joins_admit(struct coordinator *c);
/* Ends attaching ranks after a clash of layouts. */
void joins_clash(struct coordinator *c);
void joins_forget_node(struct coordinator *c, uint32_t node);
void coordinator_leave(struct coordinator *c, const struct coordinator_event *e);
/* The ranks on a node are lost with it. */
void rank_slots_down(struct coordinator *c, uint32_t node);
/* Checks a new join: 0, or why it cannot wait. */
int join_check(const struct coordinator *c, struct join *j);
void join_end(struct coordinator *c, struct join *j, int status, const char *text);
/* Starts a new attempt if everything is there. */
void coordinator_advance(struct coordinator *c);

/* ---- coordinator_open.c ---- */

void open_ask(struct coordinator *c, uint32_t node);
void open_ask_again(struct coordinator *c);
/* Continues after a node's answer, or after a rank has come that may create the job. */
void open_settle(struct coordinator *c);
void open_forget(struct coordinator *c, uint32_t node);
/* Stops the job until a node returns or the job is dropped. */
void open_hinder(struct coordinator *c, int status, uint32_t node, const char *why);
/* Stops the job likewise, because no node has what this node should hold. */
void open_gone(struct coordinator *c, uint32_t node);
/* A node tells of a state. */
int state_told(struct coordinator *c, uint32_t node, const struct told_state *s,
               struct fault *fault);
void open_done(struct coordinator *c, uint32_t holder, uint64_t attempt);
void open_answered(struct coordinator *c, const struct coordinator_event *e);
void open_failed(struct coordinator *c, const struct coordinator_event *e);
/*
 * Ends attaching ranks after a clash of layouts.  A job created only for them ends, too, once all
 * nodes have said what they created.  So the ranks can come again with one layout.
 */
void open_clash(struct coordinator *c);
void coordinator_end(struct coordinator *c, int status, const char *text);

/* ---- coordinator_place.c ---- */

/* Does what is left to do until every holder has its state. */
void placing_advance(struct coordinator *c);
/* True if a holder on the node lacks its state. */
bool placing_lacks(const struct coordinator *c, uint32_t node);
void placed_tell(struct coordinator *c, uint32_t node);
void old_placement_forget_node(struct coordinator *c, uint32_t node);
void settle_answered(struct coordinator *c, const struct coordinator_event *e);
void fill_ended(struct coordinator *c, const struct coordinator_event *e);

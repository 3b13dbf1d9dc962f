/* What the subcommands about owners share. */
#pragma once

#include "ctl.h"

enum { OWNERS_POLL_MS = 200 };

/* Epoch, owners, mirrors, who is there, and whether they are enough to change anything. */
void show_view(const struct ctl *ctl, FILE *out, const json_t *view);

/* owners.c: asks for a change, and follows it.  argument: of the query. */
int change_owners(struct ctl *ctl, const char *what, const char *argument);
/* The owners are as was wished. */
bool owners_fit(const json_t *view, const char *what, const char *argument);
/* What the timeout is, if none is given. */
double owners_patience(const struct ctl *ctl);

/*
 * owners_move.c: follows the moves of all jobs to the owners of an epoch, or of a later one, until
 * they are over.  Gives up, and says for whom it waits, when nothing moves for as long as the
 * timeout.  *ret_view: the owners then.  back: why that epoch's were taken back, or "".
 */
enum { OWNERS_WHY = 500 };
int owners_follow(struct ctl *ctl, double epoch, json_t **ret_view, char back[static OWNERS_WHY]);

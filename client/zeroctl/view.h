/* What the subcommands about owners share. */
#pragma once

#include "ctl.h"

/* Epoch, owners, mirrors, who is there, and whether they are enough to change anything. */
void show_view(const struct ctl *ctl, FILE *out, const json_t *view);
/*
 * Asks for a change; argument: of the query.  Says first, on standard error, who keeps it waiting.
 * dead: nodes that are not waited for, with commas between; or NULL.
 */
int change_owners(struct ctl *ctl, const char *what, const char *argument, const char *dead);

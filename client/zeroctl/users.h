/* zeroctl grant, revoke, grants and versions: users who follow a job. */
#pragma once

#include "ctl.h"

/* The user's name here, or the number. */
struct user_name {
        char text[64];
};
struct user_name user_name(double uid);
/* A line: who beside the owner may follow the job. */
void show_grants(const struct ctl *ctl, FILE *out, const json_t *answer);
/* Carries "grant" or "revoke" out, whichever the subcommand is. */
int grants_change(struct ctl *ctl);

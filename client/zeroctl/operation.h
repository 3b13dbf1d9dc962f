/*
 * Checkpoints and restores: long work of the daemons, which zeroctl begins, and follows until it is
 * over.  The work goes on when zeroctl is interrupted.
 */
#pragma once

#include "ctl.h"

/* What only some operations take: a text, or a number; NULL and below 0: not given. */
struct operation_more {
        const char *name;
        long value;
        const char *text;
};

/* What a question about a directory says of it: its absolute path, and what this process sees
 * there.
 */
int operation_place(const char *directory, json_t **ret);
/* Begins it.  more: the last has no name; NULL: none. */
int operation_begin(struct ctl *ctl, const char *what, const struct operation_more *more,
                    json_t **ret_answer);
/* Begins it, and waits until it has come out well. */
int operation_await(struct ctl *ctl, const char *what, const struct operation_more *more,
                    json_t **ret_answer);
/* The same, and shows the outcome. */
int operation_carry_out(struct ctl *ctl, const char *what, const struct operation_more *more);

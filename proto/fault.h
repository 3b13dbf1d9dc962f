/*
 * A refusal on its way to the person it is meant for: a status and a sentence
 * that says what is wrong and what to do.  Functions that can refuse take a
 * struct fault * last and return the (positive) status; -errno stays what it is.
 */
#pragma once

#include "proto/zero_types.h"

struct fault {
        int status; /* enum zero_status */
        char text[512];
};

/* Fills *fault (may be NULL) and returns status. */
int fault_set(struct fault *fault, int status, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
/* For -errno from the system: EIO, ENOMEM or ESHM with strerror's text behind `what`. */
int fault_errno(struct fault *fault, int error, const char *what);

/* Part of libzero's interface (zero.h), hence visible. */
__attribute__((visibility("default"))) const char *zero_status_name(int status);
__attribute__((visibility("default"))) const char *zero_status_text(int status);

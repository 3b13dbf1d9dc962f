/*
 * A refusal for a person: a status, and a sentence that says what is wrong and what to do.
 * Functions that can refuse take a struct fault * as their last argument and return the status,
 * which is positive; -errno keeps its meaning.
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
/* For errno or -errno from the system: EIO, ENOMEM or ESHM, with strerror()'s text after `what`. */
int fault_errno(struct fault *fault, int error, const char *what);

/* Visible because they are part of libzero's interface (zero.h). */
__attribute__((visibility("default"))) const char *zero_status_name(int status);
__attribute__((visibility("default"))) const char *zero_status_text(int status);

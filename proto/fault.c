/*
 * Refusals for people, and the table of status codes.
 *
 * Rule: a text is always whole UTF-8, even if it had to be cut, because it goes on into messages
 * and JSON.
 */
#include "proto/fault.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/text.h"

/* Declared again in the public zero.h, and exported by libzero. */
#define EXPORTED __attribute__((visibility("default")))

int fault_set(struct fault *fault, int status, const char *format, ...)
{
        if (!fault)
                return status;

        va_list arguments;
        va_start(arguments, format);
        vsnprintf(fault->text, sizeof(fault->text), format, arguments);
        va_end(arguments);
        text_trim(fault->text);
        fault->status = status;
        return status;
}

static int status_of_errno(int error)
{
        switch (error) {
        case ENOMEM:
                return ZERO_ENOMEM;
        case ENOSPC: /* tmpfs is full */
                return ZERO_ESHM;
        default:
                return ZERO_EIO;
        }
}

int fault_errno(struct fault *fault, int error, const char *what)
{
        char buffer[128];
        int code = error < 0 ? -error : error;

        return fault_set(fault, status_of_errno(code), "%s: %s", what,
                         strerror_r(code, buffer, sizeof(buffer)));
}

EXPORTED const char *zero_status_name(int status)
{
        switch (status) {
#define X(name, code, text) \
        case code:          \
                return #name;
                ZERO_STATUS_MAP(X)
#undef X
        default:
                return "UNKNOWN";
        }
}

EXPORTED const char *zero_status_text(int status)
{
        switch (status) {
#define X(name, code, text) \
        case code:          \
                return text;
                ZERO_STATUS_MAP(X)
#undef X
        default:
                return "unknown status";
        }
}

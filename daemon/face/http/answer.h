/* answer.h - the bodies of answers, made from a snapshot. */
#pragma once

#include "daemon/face/http/request.h"
#include "daemon/face/http/snapshot.h"

struct answer {
        unsigned status;
        const char *type; /* of its content */
        char *text;       /* the caller frees it; NULL: out of memory */
        size_t n;
};

enum snapshot_kind answer_needs(enum http_what what);
/* s: of the kind that it needs; NULL if it needs none.  job: of "/api/jobs?job=NAME", or NULL. */
void answer_make(enum http_what what, const struct snapshot *s, const char *job,
                 struct answer *ret);

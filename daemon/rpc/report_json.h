/* Values of reports.  Internal to the files report*.c. */
#pragma once

#include <jansson.h>
#include <stdint.h>

static inline json_t *number(uint64_t n)
{
        return json_integer((json_int_t)n);
}

/* Bytes from outside (names in messages) were checked for UTF-8 where they came in. */
static inline json_t *text(const char *s)
{
        json_t *j = json_string(s);

        return j ? j : json_string("?");
}

/*
 * option.h - one row of conf_table.h: how to read, check, keep and show its value.  Pure.
 */
#pragma once

#include "daemon/floor/conf/conf.h"
#include "daemon/floor/conf/conf_table.h"
#include "proto/text.h"

enum conf_kind {
        CONF_TEXT,
        CONF_LIST, /* words between blanks */
        CONF_PATH,
        CONF_CHOICE,
        CONF_MODE,
        CONF_COUNT,
        CONF_SIZE,
        CONF_CHUNK, /* a multiple of LAYOUT_ALIGN */
};

struct option {
        const char *name, *section;
        const char *placeholder; /* the unit of a number */
        const char *preset;      /* the default, as text */
        const char *doc;
        enum conf_kind kind;
        size_t offset;     /* in struct conf */
        uint64_t min, max; /* of a number; max: of a string's length */
};

#define OPTION_ONE(...) +1
enum { N_OPTIONS = 0 CONF_TABLE(OPTION_ONE, OPTION_ONE), OPTION_NUMBER = 32, OPTION_FACTS = 256 };

extern const struct option options[N_OPTIONS];

/* The option whose name is the first n bytes of `name`, or NULL. */
const struct option *option_find(const char *name, size_t n);
/* The known name with the fewest changes to `name`. */
const char *option_nearest(const char *name);
/* The text as a fault may show it, whatever bytes it consists of. */
struct text_quote option_quote(const char *text);

bool option_is_string(const struct option *o);
/* Whether a running daemon may change the option: whoever uses the value reads it anew. */
bool option_is_live(const struct option *o);
/* Reads value and keeps it in conf; a fault says what is allowed. */
int option_set(const struct option *o, struct conf *conf, const char *value, struct fault *fault);
/* The value as text, in scratch if it is a number. */
const char *option_get(const struct option *o, const struct conf *conf,
                       char scratch[static OPTION_NUMBER]);
/* "1 to 4096 jobs" for a number. */
void option_range(const struct option *o, char ret_text[static 4 * OPTION_NUMBER]);

/*
 * option.c - the options as data, and their values as text.
 */
#include "daemon/floor/conf/option.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/layout.h"
#include "proto/text.h"

enum { NAME_COMPARED = 64, SUFFIX_BITS = 10 };

#define S(section_, field, kind_, placeholder_, preset_, longest, doc_) \
        { .name = #field,                                               \
          .section = section_,                                          \
          .placeholder = placeholder_,                                  \
          .preset = preset_,                                            \
          .doc = doc_,                                                  \
          .kind = CONF_##kind_,                                         \
          .offset = offsetof(struct conf, field),                       \
          .max = longest },
#define N(section_, field, kind_, unit, preset_, least, most, doc_) \
        { .name = #field,                                           \
          .section = section_,                                      \
          .placeholder = unit,                                      \
          .preset = preset_,                                        \
          .doc = doc_,                                              \
          .kind = CONF_##kind_,                                     \
          .offset = offsetof(struct conf, field),                   \
          .min = least,                                             \
          .max = most },
const struct option options[N_OPTIONS] = { CONF_TABLE(S, N) };
#undef S
#undef N

static const char suffixes[] = "KMGT";

const struct option *option_find(const char *name, size_t n)
{
        for (uint32_t i = 0; i < N_OPTIONS; i++) {
                if (strlen(options[i].name) == n && memcmp(options[i].name, name, n) == 0)
                        return &options[i];
        }
        return NULL;
}

static uint32_t least(uint32_t a, uint32_t b)
{
        return a < b ? a : b;
}

/* Levenshtein's distance between a and the first NAME_COMPARED bytes of b. */
static uint32_t distance(const char *a, const char *b)
{
        uint32_t row[NAME_COMPARED + 1], n = (uint32_t)strnlen(b, NAME_COMPARED);

        for (uint32_t j = 0; j <= n; j++)
                row[j] = j;
        for (uint32_t i = 0; a[i]; i++) {
                uint32_t diagonal = row[0];

                row[0] = i + 1;
                for (uint32_t j = 1; j <= n; j++) {
                        uint32_t replaced = diagonal + (a[i] != b[j - 1]);

                        diagonal = row[j];
                        row[j] = least(replaced, least(row[j], row[j - 1]) + 1);
                }
        }
        return row[n];
}

const char *option_nearest(const char *name)
{
        const char *nearest = options[0].name;
        uint32_t fewest = UINT32_MAX;

        for (uint32_t i = 0; i < N_OPTIONS; i++) {
                uint32_t d = distance(options[i].name, name);

                if (d < fewest) {
                        fewest = d;
                        nearest = options[i].name;
                }
        }
        return nearest;
}

bool option_is_string(const struct option *o)
{
        return o->kind < CONF_COUNT;
}

bool option_is_live(const struct option *o)
{
        static const char *const live[] = { "log_level",    "memory_limit", "stash_limit",
                                            "gpu_windows",  "job_limit",    "wait_ms",
                                            "rank_wait_ms", "drain_ms",     "checkpoint_memory" };

        for (size_t i = 0; i < sizeof live / sizeof live[0]; i++)
                if (strcmp(o->name, live[i]) == 0)
                        return true;
        return false;
}

/* Parses digits, and for a size one suffix.  False also for a number beyond 64 bits. */
static bool parse_number(const char *text, bool size, uint64_t *ret)
{
        uint64_t x = 0;
        const char *p = text, *suffix;

        for (; *p >= '0' && *p <= '9'; p++) {
                if (__builtin_mul_overflow(x, 10, &x) ||
                    __builtin_add_overflow(x, (uint64_t)(*p - '0'), &x))
                        return false;
        }
        if (p == text)
                return false;
        if (*p && size && (suffix = strchr(suffixes, *p))) {
                uint32_t bits = SUFFIX_BITS * (uint32_t)(suffix - suffixes + 1);

                if (x > UINT64_MAX >> bits)
                        return false;
                x <<= bits;
                p++;
        }
        if (*p)
                return false;
        *ret = x;
        return true;
}

/* Formats with the largest suffix that leaves a whole number. */
static void format_number(const struct option *o, uint64_t x, char *ret_text)
{
        char suffix[2] = "";

        for (const char *s = suffixes; *s && o->kind == CONF_SIZE && x && x % 1024 == 0; s++) {
                x /= 1024;
                suffix[0] = *s;
        }
        snprintf(ret_text, OPTION_NUMBER, "%" PRIu64 "%s", x, suffix);
}

void option_range(const struct option *o, char ret_text[static 4 * OPTION_NUMBER])
{
        char low[OPTION_NUMBER], high[OPTION_NUMBER];

        format_number(o, o->min, low);
        format_number(o, o->max, high);
        snprintf(ret_text, 4 * OPTION_NUMBER, "%s to %s %.*s%s", low, high, OPTION_NUMBER,
                 o->placeholder, o->kind == CONF_CHUNK ? " in steps of 128" : "");
}

struct text_quote option_quote(const char *text)
{
        return text_quote(text_printable(text) ? text : "?");
}

static int set_number(const struct option *o, struct conf *conf, const char *value,
                      struct fault *fault)
{
        char range[4 * OPTION_NUMBER];
        uint64_t x;

        option_range(o, range);
        if (!parse_number(value, o->kind == CONF_SIZE, &x) || x < o->min || x > o->max ||
            (o->kind == CONF_CHUNK && x % LAYOUT_ALIGN != 0))
                return fault_set(fault, ZERO_EINVAL, "%s = %s: must be %s%s", o->name,
                                 text_quote(value).text, range,
                                 o->kind == CONF_SIZE ? " (suffixes K, M, G, T)" : "");
        memcpy((char *)conf + o->offset, &x, sizeof(x));
        return 0;
}

static bool is_choice(const char *choices, const char *value)
{
        size_t n = strlen(value);

        for (const char *p = choices;; p++) {
                size_t length = strcspn(p, "|");

                if (length == n && memcmp(p, value, n) == 0)
                        return true;
                p += length;
                if (!*p)
                        return false;
        }
}

static bool is_mode(const char *value)
{
        size_t n = strspn(value, "01234567");

        return !value[n] && (n == 3 || (n == 4 && value[0] == '0'));
}

static int check_string(const struct option *o, const char *value, struct fault *fault)
{
        if (strlen(value) > o->max)
                return fault_set(fault, ZERO_EINVAL, "%s: longer than %" PRIu64 " bytes", o->name,
                                 o->max);
        if (!text_printable(value))
                return fault_set(fault, ZERO_EINVAL, "%s: must be UTF-8 without control characters",
                                 o->name);
        if (o->kind == CONF_CHOICE && !is_choice(o->placeholder, value))
                return fault_set(fault, ZERO_EINVAL, "%s = %s: must be one of %s", o->name,
                                 text_quote(value).text, o->placeholder);
        if (o->kind == CONF_MODE && !is_mode(value))
                return fault_set(fault, ZERO_EINVAL, "%s = %s: must be octal, 0000 to 0777",
                                 o->name, text_quote(value).text);
        return 0;
}

static int set_string(const struct option *o, struct conf *conf, const char *value,
                      struct fault *fault)
{
        char **field = (char **)(void *)((char *)conf + o->offset), *copy;
        int r = check_string(o, value, fault);

        if (r)
                return r;
        copy = strdup(value);
        if (!copy)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        free(*field);
        *field = copy;
        return 0;
}

int option_set(const struct option *o, struct conf *conf, const char *value, struct fault *fault)
{
        if (!text_printable(value))
                return fault_set(fault, ZERO_EINVAL, "%s: must be UTF-8 without control characters",
                                 o->name);
        return option_is_string(o) ? set_string(o, conf, value, fault)
                                   : set_number(o, conf, value, fault);
}

const char *option_get(const struct option *o, const struct conf *conf,
                       char scratch[static OPTION_NUMBER])
{
        const void *field = (const char *)conf + o->offset;

        if (option_is_string(o))
                return *(char *const *)field;
        format_number(o, *(const uint64_t *)field, scratch);
        return scratch;
}

/*
 * record.h - plain structs whose fields have names, with conversion to and from JSON.
 *
 * A macro declares a record, with one row for each field: F(kind, name, doc), or R(kind, type,
 * name, doc) if the kind needs a type.  doc tells unit and meaning.
 *
 *   F text     const char *           NULL is null
 *   F number   uint64_t               RECORD_NULL is null
 *   F real     double                 not finite is null
 *   F flag     bool
 *   F texts    struct record_texts    n RECORD_NONE: null
 *   F numbers  struct record_numbers  RECORD_NULL in it is null
 *   F counts   struct record_counts   an object: names and numbers
 *   R record   struct type
 *   R maybe    struct type *          NULL is null
 *   R inlined  struct type *          its fields are among the record's own; NULL: they are absent
 *   R list     list of struct type
 *   R called   const char *           a text; `type` is its name in JSON, as a string
 *
 * A column behind doc says what the field is in /metrics (status.h), without it nothing: COUNTER,
 * GAUGE or INFO with the metric's name, of a list its length; HISTOGRAM of a list of status_waited;
 * PROCESS_COUNTER or PROCESS_GAUGE of what all that Prometheus scrapes tells of its process;
 * LABEL with the name of a label that the record's metrics have, and those of the records in it.
 *
 * A record points only into one arena, or to constants.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECORD_NULL UINT64_MAX
#define RECORD_NONE UINT32_MAX

/* ---- memory ---- */

/* Zero-initialized, an arena is empty. */
struct arena {
        struct arena_block *blocks;
        bool failed; /* an allocation failed, so the contents are incomplete */
};
/* Zeroed.  NULL: out of memory. */
void *arena_new(struct arena *arena, size_t bytes);
/* NULL gives NULL. */
const char *arena_copy(struct arena *arena, const char *text);
const char *arena_text(struct arena *arena, const char *format, ...)
        __attribute__((format(printf, 2, 3)));
void arena_deinit(struct arena *arena);

/* Appends a zeroed element to a list; NULL: out of memory. */
#define LIST_ADD(arena, list)                                                                     \
        ({                                                                                        \
                void *items_ = list_grow(arena, (list)->items, (list)->n, sizeof *(list)->items); \
                items_ ? ((list)->items = items_, &(list)->items[(list)->n++]) : NULL;            \
        })
void *list_grow(struct arena *arena, void *items, uint32_t n, size_t size);

/* ---- types ---- */

struct record_texts {
        uint32_t n;
        const char **items;
};

struct record_numbers {
        uint32_t n;
        uint64_t *items;
};

struct record_counts {
        uint32_t n;
        struct record_count {
                const char *name;
                uint64_t n;
        } * items;
};
/* False: out of memory. */
bool texts_add(struct arena *arena, struct record_texts *texts, const char *text);
bool numbers_add(struct arena *arena, struct record_numbers *numbers, uint64_t n);
bool counts_add(struct arena *arena, struct record_counts *counts, const char *name, uint64_t n);

enum record_kind {
        RECORD_text,
        RECORD_number,
        RECORD_real,
        RECORD_flag,
        RECORD_texts,
        RECORD_numbers,
        RECORD_counts,
        RECORD_record,
        RECORD_maybe,
        RECORD_inlined,
        RECORD_list,
};

enum record_metric {
        RECORD_NO_METRIC,
        RECORD_COUNTER,
        RECORD_GAUGE,
        RECORD_INFO,
        RECORD_HISTOGRAM,
        RECORD_LABEL,
};

struct record_type {
        size_t size, n_fields;
        const struct record_field {
                const char *name;
                enum record_kind kind;
                size_t offset;
                const struct record_type *(*type)(void); /* the type of a nested record, or NULL */
                const char *doc;
                enum record_metric metric;
                const char *metric_name;
        } * fields;
};

/* clang-format off */
#define RECORD_MEMBER_text(name) const char *name;
#define RECORD_MEMBER_number(name) uint64_t name;
#define RECORD_MEMBER_real(name) double name;
#define RECORD_MEMBER_flag(name) bool name;
#define RECORD_MEMBER_texts(name) struct record_texts name;
#define RECORD_MEMBER_numbers(name) struct record_numbers name;
#define RECORD_MEMBER_counts(name) struct record_counts name;
#define RECORD_MEMBER_record(type, name) struct type name;
#define RECORD_MEMBER_maybe(type, name) struct type *name;
#define RECORD_MEMBER_inlined(type, name) struct type *name;
#define RECORD_MEMBER_list(type, name) struct { uint32_t n; struct type *items; } name;
#define RECORD_MEMBER_called(type, name) const char *name;

#define COUNTER(name) RECORD_COUNTER, "zerod_" name
#define GAUGE(name) RECORD_GAUGE, "zerod_" name
#define INFO(name) RECORD_INFO, "zerod_" name
#define HISTOGRAM(name) RECORD_HISTOGRAM, "zerod_" name
#define PROCESS_COUNTER(name) RECORD_COUNTER, "process_" name
#define PROCESS_GAUGE(name) RECORD_GAUGE, "process_" name
#define LABEL(name) RECORD_LABEL, name

#define RECORD_MEMBER(kind, name, doc, ...) RECORD_MEMBER_##kind(name)
#define RECORD_MEMBER_TYPED(kind, type, name, doc, ...) RECORD_MEMBER_##kind(type, name)

#define RECORD_ROW(kind, name, ...) \
        { #name, RECORD_##kind, offsetof(record_self, name), NULL, __VA_ARGS__ },
#define RECORD_ROW_record(type, name) #name, RECORD_record, offsetof(record_self, name), type##_type
#define RECORD_ROW_maybe(type, name) #name, RECORD_maybe, offsetof(record_self, name), type##_type
#define RECORD_ROW_inlined(type, name) #name, RECORD_inlined, offsetof(record_self, name), type##_type
#define RECORD_ROW_list(type, name) #name, RECORD_list, offsetof(record_self, name), type##_type
#define RECORD_ROW_called(type, name) type, RECORD_text, offsetof(record_self, name), NULL
#define RECORD_ROW_TYPED(kind, type, name, ...) { RECORD_ROW_##kind(type, name), __VA_ARGS__ },

/* In a header: declares struct TYPE, and TYPE_type(), which describes its fields. */
#define RECORD_DECLARE(type, FIELDS)                                                               \
        struct type { FIELDS(RECORD_MEMBER, RECORD_MEMBER_TYPED) };                                \
        const struct record_type *type##_type(void);
/* In one source file. */
#define RECORD_DEFINE(type, FIELDS)                                                                \
        const struct record_type *type##_type(void)                                                \
        {                                                                                          \
                typedef struct type record_self;                                                   \
                static const struct record_field fields[] = { FIELDS(RECORD_ROW, RECORD_ROW_TYPED) }; \
                static const struct record_type t = { sizeof(record_self),                         \
                                                      sizeof fields / sizeof fields[0], fields };  \
                                                                                                   \
                return &t;                                                                         \
        }
/* clang-format on */

/* ---- JSON ---- */

/* NULL: out of memory. */
json_t *record_to_json(const struct record_type *type, const void *record);
/* The same, and frees the arena.  Also NULL if arena->failed. */
json_t *record_take_json(const struct record_type *type, const void *record, struct arena *arena);
/*
 * Fills a record; all that it points to lies in the arena.  Missing fields become null, false or an
 * empty list.  False: the JSON has other types than the record, or out of memory.
 */
bool record_from_json(const struct record_type *type, const json_t *json, struct arena *arena,
                      void *ret);

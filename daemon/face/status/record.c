/* Records: their memory, and their conversion to and from JSON. */
#include "daemon/face/status/record.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

enum { BLOCK_BYTES = 16 << 10, BLOCK_ALIGN = sizeof(max_align_t) };

struct arena_block {
        struct arena_block *next;
        size_t used, size;
        max_align_t bytes[];
};

static struct arena_block *block_new(struct arena *arena, size_t bytes)
{
        size_t size = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        struct arena_block *b = calloc(1, sizeof *b + size);

        if (!b) {
                arena->failed = true;
                return NULL;
        }
        b->size = size;
        b->next = arena->blocks;
        arena->blocks = b;
        return b;
}

void *arena_new(struct arena *arena, size_t bytes)
{
        struct arena_block *b = arena->blocks;
        void *p;

        bytes = (bytes + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN;
        if (!b || b->size - b->used < bytes)
                b = block_new(arena, bytes);
        if (!b)
                return NULL;
        p = (char *)b->bytes + b->used;
        b->used += bytes;
        return p;
}

const char *arena_copy(struct arena *arena, const char *text)
{
        size_t n = text ? strlen(text) + 1 : 0;
        char *copy = text ? arena_new(arena, n) : NULL;

        return copy ? memcpy(copy, text, n) : NULL;
}

const char *arena_text(struct arena *arena, const char *format, ...)
{
        char text[4400]; /* the longest path, and a job's name */
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        return arena_copy(arena, text);
}

void arena_deinit(struct arena *arena)
{
        while (arena->blocks) {
                struct arena_block *b = arena->blocks;

                arena->blocks = b->next;
                free(b);
        }
}

/* A list's capacity is a power of two. */
void *list_grow(struct arena *arena, void *items, uint32_t n, size_t size)
{
        void *more;

        if (n & (n - 1))
                return items;
        more = arena_new(arena, (n ? 2 * (size_t)n : 1) * size);
        if (more && n)
                memcpy(more, items, n * size);
        return more;
}

bool texts_add(struct arena *arena, struct record_texts *texts, const char *text)
{
        const char **item = text ? LIST_ADD(arena, texts) : NULL;

        if (item)
                *item = text;
        return item;
}

bool numbers_add(struct arena *arena, struct record_numbers *numbers, uint64_t n)
{
        uint64_t *item = LIST_ADD(arena, numbers);

        if (item)
                *item = n;
        return item;
}

bool counts_add(struct arena *arena, struct record_counts *counts, const char *name, uint64_t n)
{
        struct record_count *item = LIST_ADD(arena, counts);

        if (item)
                *item = (struct record_count){ name, n };
        return item;
}

/* ---- to JSON ---- */

/* How every list of a record begins. */
struct any_list {
        uint32_t n;
        const void *items;
};

static const void *pointer_at(const void *p)
{
        const void *pointer;

        memcpy(&pointer, p, sizeof pointer);
        return pointer;
}

/* Text from outside that is not UTF-8 becomes null. */
static json_t *text_to_json(const char *text)
{
        json_t *j = text ? json_string(text) : json_null();

        return j ? j : json_string("?");
}

static json_t *number_to_json(uint64_t n)
{
        return n == RECORD_NULL ? json_null() : json_integer((json_int_t)n);
}

static json_t *real_to_json(double x)
{
        return isfinite(x) ? json_real(x) : json_null();
}

static json_t *counts_to_json(const struct record_count *counts, uint32_t n)
{
        json_t *j = json_object();

        for (uint32_t i = 0; i < n; i++)
                json_object_set_new_nocheck(j, counts[i].name, number_to_json(counts[i].n));
        return j;
}

static json_t *list_to_json(const struct record_field *f, const void *list)
{
        struct any_list l;
        json_t *j;

        memcpy(&l, list, sizeof l);
        if (l.n == RECORD_NONE)
                return json_null();
        if (f->kind == RECORD_counts)
                return counts_to_json(l.items, l.n);
        j = json_array();
        for (uint32_t i = 0; i < l.n; i++) {
                json_t *item;

                if (f->kind == RECORD_texts)
                        item = text_to_json(((const char *const *)l.items)[i]);
                else if (f->kind == RECORD_numbers)
                        item = number_to_json(((const uint64_t *)l.items)[i]);
                else
                        item = record_to_json(f->type(),
                                              (const char *)l.items + i * f->type()->size);
                if (json_array_append_new(j, item)) {
                        json_decref(j);
                        return NULL;
                }
        }
        return j;
}

static json_t *field_to_json(const struct record_field *f, const void *p)
{
        switch (f->kind) {
        case RECORD_text:
                return text_to_json(pointer_at(p));
        case RECORD_number:
                return number_to_json(*(const uint64_t *)p);
        case RECORD_real:
                return real_to_json(*(const double *)p);
        case RECORD_flag:
                return json_boolean(*(const bool *)p);
        case RECORD_record:
                return record_to_json(f->type(), p);
        case RECORD_maybe:
                return pointer_at(p) ? record_to_json(f->type(), pointer_at(p)) : json_null();
        default:
                return list_to_json(f, p);
        }
}

json_t *record_to_json(const struct record_type *type, const void *record)
{
        json_t *j = json_object();
        int r = j ? 0 : -1;

        for (size_t i = 0; i < type->n_fields && !r; i++) {
                const struct record_field *f = &type->fields[i];
                const void *p = (const char *)record + f->offset;

                if (f->kind != RECORD_inlined) {
                        r = json_object_set_new_nocheck(j, f->name, field_to_json(f, p));
                } else if (pointer_at(p)) {
                        json_t *more = record_to_json(f->type(), pointer_at(p));

                        r = more ? json_object_update(j, more) : -1;
                        json_decref(more);
                }
        }
        if (!r)
                return j;
        json_decref(j);
        return NULL;
}

json_t *record_take_json(const struct record_type *type, const void *record, struct arena *arena)
{
        json_t *j = arena->failed ? NULL : record_to_json(type, record);

        arena_deinit(arena);
        return j;
}

/* ---- from JSON ---- */

static bool text_from_json(const json_t *j, struct arena *arena, const char **ret)
{
        *ret = json_is_string(j) ? arena_copy(arena, json_string_value(j)) : NULL;
        return *ret || !j || json_is_null(j);
}

static bool number_from_json(const json_t *j, uint64_t *ret)
{
        *ret = json_is_integer(j) ? (uint64_t)json_integer_value(j) : RECORD_NULL;
        return !j || json_is_null(j) || (json_is_integer(j) && json_integer_value(j) >= 0);
}

static bool item_from_json(const struct record_field *f, const json_t *j, struct arena *arena,
                           void *item)
{
        if (f->kind == RECORD_texts)
                return text_from_json(j, arena, item) && json_is_string(j);
        if (f->kind == RECORD_numbers)
                return number_from_json(j, item);
        return record_from_json(f->type(), j, arena, item);
}

static bool list_from_json(const struct record_field *f, const json_t *j, struct arena *arena,
                           void *ret)
{
        size_t size = f->kind == RECORD_texts     ? sizeof(const char *)
                      : f->kind == RECORD_numbers ? sizeof(uint64_t)
                                                  : f->type()->size;
        struct any_list l = { .n = (uint32_t)json_array_size(j) };
        char *items = l.n ? arena_new(arena, l.n * size) : NULL;

        if ((j && !json_is_array(j)) || (l.n && !items))
                return false;
        for (uint32_t i = 0; i < l.n; i++)
                if (!item_from_json(f, json_array_get(j, i), arena, items + i * size))
                        return false;
        l.items = items;
        memcpy(ret, &l, sizeof l);
        return true;
}

static bool maybe_from_json(const struct record_field *f, const json_t *j, struct arena *arena,
                            void *ret)
{
        void *record = NULL;

        if (j && !json_is_null(j)) {
                record = arena_new(arena, f->type()->size);
                if (!record || !record_from_json(f->type(), j, arena, record))
                        return false;
        }
        memcpy(ret, &record, sizeof record);
        return true;
}

static bool field_from_json(const struct record_field *f, const json_t *object, struct arena *arena,
                            void *ret)
{
        const json_t *j = json_object_get(object, f->name);

        switch (f->kind) {
        case RECORD_text:
                return text_from_json(j, arena, ret);
        case RECORD_number:
                return number_from_json(j, ret);
        case RECORD_real:
                *(double *)ret = json_is_number(j) ? json_number_value(j) : NAN;
                return !j || json_is_null(j) || json_is_number(j);
        case RECORD_flag:
                *(bool *)ret = json_is_true(j);
                return !j || json_is_boolean(j);
        case RECORD_record:
                return record_from_json(f->type(), j, arena, ret);
        case RECORD_maybe:
                return maybe_from_json(f, j, arena, ret);
        case RECORD_inlined:
                return maybe_from_json(f, object, arena, ret);
        case RECORD_counts: /* nobody reads them */
                return false;
        default:
                return list_from_json(f, j, arena, ret);
        }
}

bool record_from_json(const struct record_type *type, const json_t *json, struct arena *arena,
                      void *ret)
{
        if (!json_is_object(json))
                return false;
        for (size_t i = 0; i < type->n_fields; i++)
                if (!field_from_json(&type->fields[i], json, arena,
                                     (char *)ret + type->fields[i].offset))
                        return false;
        return true;
}

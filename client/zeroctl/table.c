/* See table.h. */
#include "table.h"

#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static void *or_die(void *pointer)
{
        if (!pointer) {
                fputs("zeroctl: out of memory\n", stderr);
                exit(1);
        }
        return pointer;
}

static void append(struct table *t, char *text, enum paint paint)
{
        if (t->n_cells == t->capacity) {
                t->capacity = t->capacity ? 2 * t->capacity : 64;
                t->cells = or_die(realloc(t->cells, t->capacity * sizeof(*t->cells)));
        }
        t->cells[t->n_cells++] = (struct cell){ text, paint };
}

void table_init(struct table *t, const char *headers)
{
        memset(t, 0, sizeof(*t));
        for (const char *p = headers; *p;) {
                size_t n;

                assert(t->n_columns < TABLE_COLUMNS);
                t->right[t->n_columns] = *p == '>';
                p += *p == '>';
                n = strcspn(p, "|");
                append(t, or_die(strndup(p, n)), PAINT_HEAD);
                t->n_columns++;
                p += n + (p[n] == '|');
        }
}

void table_deinit(struct table *t)
{
        for (unsigned i = 0; i < t->n_cells; i++)
                free(t->cells[i].text);
        free(t->cells);
        memset(t, 0, sizeof(*t));
}

void table_add(struct table *t, enum paint paint, const char *format, ...)
{
        va_list arguments;
        char *text;
        int n;

        va_start(arguments, format);
        n = vasprintf(&text, format, arguments);
        va_end(arguments);
        append(t, or_die(n < 0 ? NULL : text), paint);
}

/* About how many columns a UTF-8 text takes on a terminal. */
static unsigned text_width(const char *text)
{
        unsigned n = 0;

        for (; *text; text++)
                n += ((unsigned char)*text & 0xc0) != 0x80;
        return n;
}

const char *paint_begin(enum paint paint, bool colour)
{
        if (!colour)
                return "";
        switch (paint) {
        case PAINT_HEAD:
                return "\033[1m";
        case PAINT_GOOD:
                return "\033[32m";
        case PAINT_WARN:
                return "\033[33m";
        case PAINT_BAD:
                return "\033[31m";
        default:
                return "";
        }
}

const char *paint_end(enum paint paint, bool colour)
{
        return colour && paint != PAINT_NONE ? "\033[0m" : "";
}

static unsigned column_width(const struct table *t, unsigned column)
{
        unsigned widest = 0;

        for (unsigned i = column; i < t->n_cells; i += t->n_columns) {
                unsigned width = text_width(t->cells[i].text);

                widest = width > widest ? width : widest;
        }
        return widest;
}

static void print_cell(const struct table *t, unsigned i, unsigned width, FILE *out, bool colour)
{
        const struct cell *cell = &t->cells[i];
        unsigned column = i % t->n_columns;
        bool last = column == t->n_columns - 1;
        int gap = (int)(width - text_width(cell->text));

        fprintf(out, "%*s%s%s%s", t->right[column] ? gap : 0, "", paint_begin(cell->paint, colour),
                cell->text, paint_end(cell->paint, colour));
        if (last)
                fputc('\n', out);
        else
                fprintf(out, "%*s", (t->right[column] ? 0 : gap) + 2, "");
}

void table_print(const struct table *t, FILE *out, bool colour)
{
        unsigned width[TABLE_COLUMNS];

        assert(t->n_cells % t->n_columns == 0);
        if (t->n_cells == t->n_columns)
                return;
        for (unsigned i = 0; i < t->n_columns; i++)
                width[i] = column_width(t, i);
        for (unsigned i = 0; i < t->n_cells; i++)
                print_cell(t, i, width[i % t->n_columns], out, colour);
}

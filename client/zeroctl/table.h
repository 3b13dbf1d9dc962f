/*
 * Tables for people: columns as wide as their widest cell, numbers to the right.
 * Add cells row by row; the first row is the header.  The program exits if memory is used up.
 */
#pragma once

#include <stdbool.h>
#include <stdio.h>

enum paint { PAINT_NONE = 0, PAINT_HEAD = 1, PAINT_GOOD = 32, PAINT_WARN = 33, PAINT_BAD = 31 };

enum { TABLE_COLUMNS = 16 };

struct cell {
        char *text;
        enum paint paint;
};

struct table {
        struct cell *cells;
        unsigned n_cells, capacity;
        unsigned n_columns;
        bool right[TABLE_COLUMNS];
};

/* headers: separated by '|'; one that begins with '>' heads a column of numbers. */
void table_init(struct table *table, const char *headers);
void table_deinit(struct table *table);
void table_add(struct table *table, enum paint paint, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
/* Prints nothing if there is only the header. */
void table_print(const struct table *table, FILE *out, bool colour);
/* The escape sequence that begins a paint, or ends it; "" without colour. */
const char *paint_begin(enum paint paint, bool colour);
const char *paint_end(enum paint paint, bool colour);

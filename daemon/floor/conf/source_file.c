/*
 * source_file.c - the configuration file: one section [zerod] of `key = value` lines.
 *
 * inih reads into a line buffer whose size was fixed when inih was built (200 bytes on Debian), and
 * silently splits longer lines.  So the reader here gives inih the beginning of a line, and
 * on_key() takes the value from the whole line.  A line that begins with a blank continues the key
 * before it, which is inih's own rule.
 *
 * Rule: the fault reports the first mistake in the file.
 */
#include "daemon/floor/conf/source.h"

#include <errno.h>
#include <ini.h>
#include <stdio.h>
#include <string.h>

#include "proto/cleanup.h"

enum { FILE_LIMIT = 256 << 10, WHERE_TEXT = 320 };

struct text_source {
        struct loaded *l;
        const char *name;
        char *p, *end;
        const char *whole; /* the line, without blanks at its end */
        size_t handed;     /* how many bytes of it inih got */
        uint32_t line;
        struct fault fault;
};

struct where {
        char text[WHERE_TEXT];
};

static void cleanup_file(FILE **file)
{
        if (*file)
                fclose(*file);
}

static struct where place(const struct text_source *s, uint32_t line)
{
        struct where where;

        snprintf(where.text, sizeof(where.text), "%.300s:%u", s->name, line);
        return where;
}

/* Turns tabs into blanks, and removes the carriage return, a comment behind a value (of which inih
 * knows only `;`, and not in lines that continue), blanks at the end and all but one at the
 * beginning.  NULL if the line is not text. */
static char *clean_line(char *line, size_t n)
{
        char *comment;

        if (n > 0 && line[n - 1] == '\r')
                line[--n] = '\0';
        for (char *tab = line; (tab = strchr(tab, '\t'));)
                *tab = ' ';
        if (strlen(line) != n || !text_printable(line))
                return NULL;
        for (comment = line; (comment = strchr(comment, ' ')); comment++)
                if (comment[1] == ';' || comment[1] == '#')
                        *comment = '\0';
        for (n = strlen(line); n > 0 && line[n - 1] == ' ';)
                line[--n] = '\0';
        n = strspn(line, " ");
        return n ? line + n - 1 : line;
}

/* inih's reader: fgets() over the text, but a line that does not fit is cut. */
static char *next_line(char *buffer, int size, void *arg)
{
        struct text_source *s = arg;
        char *line = s->p, *feed;

        if (line == s->end || s->fault.status)
                return NULL;
        s->line++;
        feed = memchr(line, '\n', (size_t)(s->end - line));
        s->p = feed ? feed + 1 : s->end;
        if (!feed)
                feed = s->end;
        *feed = '\0';
        s->whole = clean_line(line, (size_t)(feed - line));
        if (!s->whole) {
                fault_set(&s->fault, ZERO_EINVAL, "%s: not a line of UTF-8 text",
                          place(s, s->line).text);
                return NULL;
        }
        s->handed = strnlen(s->whole, (size_t)size - sizeof("\n"));
        while (s->handed > 0 && s->whole[s->handed - 1] == ' ')
                s->handed--;
        snprintf(buffer, (size_t)size, "%.*s\n", (int)s->handed, s->whole);
        return buffer;
}

/* The value in the whole line.  inih's value is the end of what inih got. */
static const char *whole_value(const struct text_source *s, const char *value)
{
        value = s->whole + s->handed - strlen(value);
        return value + strspn(value, " ");
}

/* A key for the second time: one more line of a list, or a mistake. */
static int set_again(struct text_source *s, const struct option *o, const char *value)
{
        char scratch[OPTION_NUMBER];
        const char *before = option_get(o, &s->l->conf, scratch);
        uint32_t first = s->l->origin[o - options].line;
        CLEANUP(cleanup_free)
        char *joined = NULL;

        if (o->kind != CONF_LIST)
                return fault_set(
                        &s->fault, ZERO_EINVAL,
                        "%s: %s is already set in line %u (a line that begins with a blank "
                        "continues the key before it)",
                        place(s, s->line).text, o->name, first);
        if (asprintf(&joined, "%s %s", before, value) < 0) {
                joined = NULL;
                return fault_set(&s->fault, ZERO_ENOMEM, "out of memory");
        }
        return loaded_set(s->l, o, before[0] ? joined : value, (struct origin){ CONF_FILE, first },
                          place(s, s->line).text, &s->fault);
}

/* inih's handler: 1 goes on; it stops when next_line() finds the fault. */
static int on_key(void *arg, const char *section, const char *name, const char *value)
{
        struct text_source *s = arg;
        const struct option *o = option_find(name, strlen(name));

        if (s->fault.status)
                return 1;
        value = whole_value(s, value);
        if (strcmp(section, "zerod") != 0)
                fault_set(&s->fault, ZERO_EINVAL,
                          section[0] ? "%s: unknown section %s; the only one is [zerod]"
                                     : "%s: %s comes before the line [zerod]",
                          place(s, s->line).text, option_quote(section[0] ? section : name).text);
        else if (!o)
                fault_set(&s->fault, ZERO_EINVAL, "%s: unknown key %s; the nearest is %s",
                          place(s, s->line).text, option_quote(name).text, option_nearest(name));
        else if (s->l->origin[o - options].source == CONF_FILE)
                set_again(s, o, value);
        else
                loaded_set(s->l, o, value, (struct origin){ CONF_FILE, s->line },
                           place(s, s->line).text, &s->fault);
        return 1;
}

int source_text(struct loaded *l, const char *name, const char *text, size_t size,
                struct fault *fault)
{
        struct text_source s = { .l = l, .name = name };
        CLEANUP(cleanup_free)
        char *copy = NULL;
        int line;

        if (size > FILE_LIMIT)
                return fault_set(fault, ZERO_EINVAL, "%s: larger than %d bytes", name, FILE_LIMIT);
        copy = malloc(size + 1);
        if (!copy)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        s.p = memcpy(copy, text, size);
        s.end = copy + size;
        line = ini_parse_stream(next_line, &s, on_key, &s);
        if (line < 0)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        /* inih goes on after a line that it cannot read, and returns the first such line */
        if (line > 0 && (!s.fault.status || (uint32_t)line < s.line))
                return fault_set(fault, ZERO_EINVAL,
                                 "%s: expected `key = value`, [zerod] or a comment",
                                 place(&s, (uint32_t)line).text);
        return s.fault.status ? fault_set(fault, s.fault.status, "%s", s.fault.text) : 0;
}

int source_file(struct loaded *l, const char *path, bool needed, struct fault *fault)
{
        CLEANUP(cleanup_file)
        FILE *file = fopen(path, "re");
        CLEANUP(cleanup_free)
        char *text = NULL;
        size_t n;

        if (!file && errno == ENOENT && !needed)
                return 0;
        if (!file)
                return fault_set(fault, ZERO_EIO, "%.300s: %s", path, strerror(errno));
        l->file = strdup(path);
        text = malloc(FILE_LIMIT + 1);
        if (!l->file || !text)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        n = fread(text, 1, FILE_LIMIT + 1, file);
        if (ferror(file))
                return fault_set(fault, ZERO_EIO, "%.300s: %s", path, strerror(errno));
        return source_text(l, path, text, n, fault);
}

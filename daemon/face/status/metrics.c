/*
 * Records as the text of /metrics.
 *
 * All samples of a metric stand together, so the record is walked once for each metric.
 */
#include "daemon/face/status/status.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LABELS = 2048, LABEL_VALUE = 256, METRICS_MAX = 256 };
static const char total[] = "_total", info[] = "_info";

/* Writes the samples of one metric. */
struct writer {
        FILE *out;
        const struct record_field *metric;
};

static const void *pointer_at(const void *p)
{
        const void *pointer;

        memcpy(&pointer, p, sizeof pointer);
        return pointer;
}

/* How every list of a record begins. */
struct any_list {
        uint32_t n;
        const char *items;
};

static struct any_list list_at(const void *p)
{
        struct any_list list;

        memcpy(&list, p, sizeof list);
        if (list.n == RECORD_NONE)
                list.n = 0;
        return list;
}

/* ---- labels ---- */

/* Labels so far: `a="b",c="d"`. */
struct labels {
        size_t n;
        char text[LABELS];
};

/* A value is cut after LABEL_VALUE bytes, and a label without space for it is left out. */
static void label_add(struct labels *l, const char *name, const char *value)
{
        char escaped[2 * LABEL_VALUE + 1];
        size_t n = 0;
        int added;

        for (size_t i = 0; value[i] && i < LABEL_VALUE; i++) {
                if (value[i] == '\\' || value[i] == '"' || value[i] == '\n')
                        escaped[n++] = '\\';
                escaped[n++] = (char)(value[i] == '\n' ? 'n' : value[i]);
        }
        escaped[n] = '\0';
        added = snprintf(l->text + l->n, sizeof l->text - l->n, "%s%s=\"%s\"", l->n ? "," : "",
                         name, escaped);
        if (added > 0 && (size_t)added < sizeof l->text - l->n)
                l->n += (size_t)added;
        l->text[l->n] = '\0';
}

/* The labels that a record gives to all that is in it. */
static void labels_of(const struct record_type *type, const char *record, struct labels *l)
{
        for (size_t i = 0; i < type->n_fields; i++) {
                const struct record_field *f = &type->fields[i];
                const char *p = record + f->offset, *text;
                char number[24];

                if (f->metric != RECORD_LABEL)
                        continue;
                snprintf(number, sizeof number, "%" PRIu64,
                         f->kind == RECORD_number ? *(const uint64_t *)p : 0);
                text = f->kind == RECORD_number ? number : pointer_at(p);
                label_add(l, f->metric_name, text ? text : "");
        }
}

/* ---- samples ---- */

static void sample(const struct writer *w, const struct labels *l, double value)
{
        fprintf(w->out, "%s{%s} %.17g\n", w->metric->metric_name, l->text, value);
}

static void sample_number(const struct writer *w, const struct labels *l, uint64_t n)
{
        if (n != RECORD_NULL)
                fprintf(w->out, "%s{%s} %" PRIu64 "\n", w->metric->metric_name, l->text, n);
}

static void sample_counts(const struct writer *w, const struct labels *l, const char *p)
{
        struct any_list list = list_at(p);
        const struct record_count *counts = (const void *)list.items;

        for (uint32_t i = 0; i < list.n; i++) {
                struct labels more = *l;

                label_add(&more, "kind", counts[i].name);
                sample_number(w, &more, counts[i].n);
        }
}

/* Buckets count up; classic parsers and OpenMetrics want the same lines. */
static void sample_histogram(const struct writer *w, const struct labels *l, const char *p)
{
        const char *name = w->metric->metric_name;
        struct any_list list = list_at(p);
        const struct status_waited *kinds = (const void *)list.items;

        for (uint32_t i = 0; i < list.n; i++) {
                const struct status_waited *waited = &kinds[i];
                struct labels more = *l;
                uint64_t n = 0;

                label_add(&more, "for", waited->what);
                for (uint32_t b = 0; b < waited->at_most.n; b++) {
                        const char *bound = waited->at_most.items[b].name;

                        n += waited->at_most.items[b].n;
                        fprintf(w->out, "%s_bucket{%s,le=\"%s%s\"} %" PRIu64 "\n", name, more.text,
                                bound, strpbrk(bound, ".I") ? "" : ".0", n);
                }
                fprintf(w->out, "%s_sum{%s} %.17g\n%s_count{%s} %" PRIu64 "\n", name, more.text,
                        waited->sum_s, name, more.text, waited->n);
        }
}

static void sample_info(const struct writer *w, const struct labels *l, const char *text)
{
        struct labels more = *l;

        if (!text || !text[0])
                return;
        label_add(&more, w->metric->name, text);
        sample_number(w, &more, 1);
}

static void sample_field(const struct writer *w, const struct labels *l, const char *p)
{
        switch (w->metric->kind) {
        case RECORD_text:
                sample_info(w, l, pointer_at(p));
                break;
        case RECORD_number:
                sample_number(w, l, *(const uint64_t *)(const void *)p);
                break;
        case RECORD_real:
                if (isfinite(*(const double *)(const void *)p))
                        sample(w, l, *(const double *)(const void *)p);
                break;
        case RECORD_flag:
                sample_number(w, l, *(const bool *)p);
                break;
        case RECORD_counts:
                sample_counts(w, l, p);
                break;
        default: /* a list */
                if (w->metric->metric == RECORD_HISTOGRAM)
                        sample_histogram(w, l, p);
                else
                        sample_number(w, l, list_at(p).n);
        }
}

/* ---- the walk ---- */

static bool holds(const struct record_type *type, const struct record_field *metric)
{
        for (size_t i = 0; i < type->n_fields; i++)
                if (&type->fields[i] == metric ||
                    (type->fields[i].type && holds(type->fields[i].type(), metric)))
                        return true;
        return false;
}

static void walk(const struct writer *w, const struct record_type *type, const char *record,
                 const struct labels *above)
{
        struct labels l = *above;

        labels_of(type, record, &l);
        for (size_t i = 0; i < type->n_fields; i++) {
                const struct record_field *f = &type->fields[i];
                const struct record_type *inner = f->type ? f->type() : NULL;
                const char *p = record + f->offset;

                if (f == w->metric)
                        sample_field(w, &l, p);
                if (!inner || !holds(inner, w->metric))
                        continue;
                if (f->kind == RECORD_record)
                        walk(w, inner, p, &l);
                else if (f->kind != RECORD_list && pointer_at(p))
                        walk(w, inner, pointer_at(p), &l);
                for (uint32_t n = 0; f->kind == RECORD_list && n < list_at(p).n; n++)
                        walk(w, inner, list_at(p).items + n * inner->size, &l);
        }
}

/* ---- the text ---- */

struct metrics {
        size_t n;
        const struct record_field *all[METRICS_MAX];
};

static bool known(const struct metrics *m, const struct record_field *f)
{
        for (size_t i = 0; i < m->n; i++)
                if (m->all[i] == f)
                        return true;
        return false;
}

static void collect(const struct record_type *type, struct metrics *m)
{
        for (size_t i = 0; i < type->n_fields; i++) {
                const struct record_field *f = &type->fields[i];

                if (f->metric && f->metric != RECORD_LABEL && m->n < METRICS_MAX && !known(m, f))
                        m->all[m->n++] = f;
                if (f->type)
                        collect(f->type(), m);
        }
}

/* OpenMetrics names a counter without _total, and an info without _info. */
static void write_head(FILE *out, const struct record_field *f, enum metrics_format format)
{
        const char *type = f->metric == RECORD_COUNTER ? "counter" : "gauge";
        int n = (int)strlen(f->metric_name);

        if (f->metric == RECORD_HISTOGRAM)
                type = "histogram";
        if (format == METRICS_OPEN && f->metric == RECORD_COUNTER)
                n -= (int)strlen(total);
        if (format == METRICS_OPEN && f->metric == RECORD_INFO) {
                n -= (int)strlen(info);
                type = "info";
        }
        fprintf(out, "# HELP %.*s %s\n# TYPE %.*s %s\n", n, f->metric_name, f->doc, n,
                f->metric_name, type);
}

char *metrics_text(const struct record_type *type, const void *record, enum metrics_format format,
                   size_t *ret_n)
{
        struct metrics metrics = { 0 };
        struct labels none = { 0 };
        char *text = NULL;
        FILE *out = open_memstream(&text, ret_n);

        if (!out)
                return NULL;
        collect(type, &metrics);
        for (size_t i = 0; i < metrics.n; i++) {
                struct writer w = { out, metrics.all[i] };

                write_head(out, metrics.all[i], format);
                walk(&w, type, record, &none);
        }
        if (format == METRICS_OPEN)
                fputs("# EOF\n", out);
        if (fclose(out) == 0)
                return text;
        free(text);
        return NULL;
}

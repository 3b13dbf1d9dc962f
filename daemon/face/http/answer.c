/* The bodies of answers. */
#include "daemon/face/http/answer.h"

#include <stdlib.h>
#include <string.h>

static const char plain[] = "text/plain; charset=utf-8", json[] = "application/json",
                  classic[] = "text/plain; version=0.0.4; charset=utf-8",
                  openmetrics[] = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/* The build makes string literals of them (literal.sed). */
static const char page_html[] =
#include "page.html.inc"
        ;
static const char page_css[] =
#include "page.css.inc"
        ;
static const char page_js[] =
#include "page.js.inc"
        ;

static const struct {
        const char *type, *text;
} parts[] = {
        [HTTP_PAGE] = { "text/html; charset=utf-8", page_html },
        [HTTP_PAGE_CSS] = { "text/css; charset=utf-8", page_css },
        [HTTP_PAGE_JS] = { "text/javascript; charset=utf-8", page_js },
};

static const enum snapshot_kind needs[HTTP_WHATS] = {
        [HTTP_PAGE] = SNAPSHOT_NONE,        [HTTP_PAGE_CSS] = SNAPSHOT_NONE,
        [HTTP_PAGE_JS] = SNAPSHOT_NONE,     [HTTP_METRICS] = SNAPSHOT_NODE,
        [HTTP_OPENMETRICS] = SNAPSHOT_NODE, [HTTP_HEALTHZ] = SNAPSHOT_HEALTH,
        [HTTP_READYZ] = SNAPSHOT_HEALTH,    [HTTP_STATUS] = SNAPSHOT_NODE,
        [HTTP_JOBS] = SNAPSHOT_NODE,        [HTTP_MEMBERS] = SNAPSHOT_MEMBERS,
        [HTTP_CONFIG] = SNAPSHOT_CONFIG,    [HTTP_MAP] = SNAPSHOT_MAP,
};

enum snapshot_kind answer_needs(enum http_what what)
{
        return needs[what];
}

static void give(struct answer *a, unsigned status, const char *type, const char *text)
{
        a->status = status;
        a->type = type;
        a->text = strdup(text);
        a->n = strlen(text);
}

static void give_text(struct answer *a, unsigned status, const char *text)
{
        give(a, status, plain, text);
}

static void give_record(struct answer *a, const struct record_type *type, const void *record)
{
        json_t *j = record_to_json(type, record);

        a->type = json;
        a->text = json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(17));
        a->n = a->text ? strlen(a->text) : 0;
        json_decref(j);
}

static void give_metrics(struct answer *a, const struct snapshot *s, enum metrics_format format)
{
        a->type = format == METRICS_OPEN ? openmetrics : classic;
        a->text = metrics_text(s->type, &s->record, format, &a->n);
}

static void give_jobs(struct answer *a, const struct snapshot *s, const char *job)
{
        const struct status_node *node = &s->record.node;
        struct status_jobs jobs = { .jobs = { 0 } };

        jobs.jobs.n = node->jobs.n;
        jobs.jobs.items = node->jobs.items;
        for (uint32_t i = 0; job && i < node->jobs.n; i++) {
                if (strcmp(node->jobs.items[i].job, job) != 0)
                        continue;
                jobs.jobs.n = 1;
                jobs.jobs.items = &node->jobs.items[i];
                job = NULL;
        }
        if (job)
                give_text(a, 404, "no job of that name on this node\n");
        else
                give_record(a, status_jobs_type(), &jobs);
}

void answer_make(enum http_what what, const struct snapshot *s, const char *job, struct answer *ret)
{
        *ret = (struct answer){ .status = 200 };
        if (http_is_page(what))
                give(ret, 200, parts[what].type, parts[what].text);
        else if (what == HTTP_HEALTHZ)
                give_text(ret, 200, "ok\n");
        else if (what == HTTP_READYZ && s->ready)
                give_text(ret, 200, "ready\n");
        else if (!s->serving || what == HTTP_READYZ)
                give_text(ret, 503, "not ready: zerod stops, or starts again with other owners\n");
        else if (what == HTTP_METRICS)
                give_metrics(ret, s, METRICS_CLASSIC);
        else if (what == HTTP_OPENMETRICS)
                give_metrics(ret, s, METRICS_OPEN);
        else if (what == HTTP_JOBS)
                give_jobs(ret, s, job);
        else
                give_record(ret, s->type, &s->record);
}

/* The bodies of answers. */
#include "daemon/http/answer.h"

#include <stdlib.h>
#include <string.h>

static const char plain[] = "text/plain; charset=utf-8", json[] = "application/json",
                  classic[] = "text/plain; version=0.0.4; charset=utf-8",
                  openmetrics[] = "application/openmetrics-text; version=1.0.0; charset=utf-8";

static const char index_text[] =
        "zerod " ZEROD_VERSION "\n"
        "\n"
        "/metrics      for Prometheus: the classic format, or OpenMetrics\n"
        "/healthz      200: the event loop runs\n"
        "/readyz       200: clients may come\n"
        "/api/status   the JSON of zeroctl --json status\n"
        "/api/jobs     of zeroctl --json jobs; ?job=NAME: that job alone\n"
        "/api/members  of zeroctl --json members\n"
        "/api/config   of zeroctl --json config\n";

static const enum snapshot_kind needs[HTTP_WHATS] = {
        [HTTP_INDEX] = SNAPSHOT_HEALTH,     [HTTP_METRICS] = SNAPSHOT_NODE,
        [HTTP_OPENMETRICS] = SNAPSHOT_NODE, [HTTP_HEALTHZ] = SNAPSHOT_HEALTH,
        [HTTP_READYZ] = SNAPSHOT_HEALTH,    [HTTP_STATUS] = SNAPSHOT_NODE,
        [HTTP_JOBS] = SNAPSHOT_NODE,        [HTTP_MEMBERS] = SNAPSHOT_MEMBERS,
        [HTTP_CONFIG] = SNAPSHOT_CONFIG,
};

enum snapshot_kind answer_needs(enum http_what what)
{
        return needs[what];
}

static void give_text(struct answer *a, unsigned status, const char *text)
{
        a->status = status;
        a->type = plain;
        a->text = strdup(text);
        a->n = strlen(text);
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
        if (what == HTTP_INDEX)
                give_text(ret, 200, index_text);
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

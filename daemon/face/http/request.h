/*
 * request.h - what an HTTP request asks for, and whether it may: a pure function of its parts.
 *
 * A browser must not read for a page of another site.  So a request that a page of another origin
 * caused is refused, and so is one whose Host is a name that a stranger's DNS may have pointed
 * here: the name must be an IP address, localhost or this node's own.  Whoever shows the token is
 * no such browser, and may use any name.  A browser shows no token when a person opens the page, so
 * the page comes without: it asks the person for the token, and shows that with its own requests.
 * /healthz and /readyz come without too, for what probes them keeps no secrets.  Parameters come to
 * nobody where there is no token.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Answers; a row each in request.c. */
enum http_what {
        HTTP_PAGE, /* the page's parts: the same for all, without a word of the cluster */
        HTTP_PAGE_CSS,
        HTTP_PAGE_JS,
        HTTP_METRICS,
        HTTP_OPENMETRICS,
        HTTP_HEALTHZ,
        HTTP_READYZ,
        HTTP_STATUS,
        HTTP_JOBS,
        HTTP_MEMBERS,
        HTTP_CONFIG,
        HTTP_MAP,
        HTTP_WEIGHTS, /* "/weights/JOB" */
        HTTP_WHATS,
};

/* What a client sent; NULL: nothing. */
struct http_request {
        const char *method, *path, *host, *origin, *fetch_site, *accept, *authorization;
};

struct http_rules {
        const char *node;     /* name of this node */
        bool local;           /* a unix socket, which no browser reaches */
        const uint8_t *token; /* 32 bytes; NULL: none is needed */
};

static inline bool http_is_page(enum http_what what)
{
        return what <= HTTP_PAGE_JS;
}

/* Comes without the token: it says nothing but whether zerod is there and serves. */
static inline bool http_is_open(enum http_what what)
{
        return http_is_page(what) || what == HTTP_HEALTHZ || what == HTTP_READYZ;
}

/* The path of HTTP_WEIGHTS has the job's name behind it. */
#define HTTP_WEIGHTS_PATH "/weights/"

/*
 * Which versions /weights/JOB asks for: ?version=N, or ?newer_than=N, or the newest.  NULL: it was
 * not said.  False: a value is no number of a version, or both were said.
 */
bool http_versions(const char *version, const char *newer_than, uint64_t *ret_least,
                   uint64_t *ret_most);
/* The HTTP status: 200 and what is asked for, or a refusal with its text. */
unsigned http_route(const struct http_rules *rules, const struct http_request *request,
                    enum http_what *ret_what, const char **ret_text);

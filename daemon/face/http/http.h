/*
 * http.h - HTTP for scrapers and people: a page, /metrics, /healthz, /readyz, /api/, /weights/.
 *
 *   http.c (libmicrohttpd)    connections and answers, on a thread of their own
 *   http_fallback.c           there is no libmicrohttpd
 *   request.c                 what a request asks for, and whether it may
 *   snapshot.c                what the loop publishes: all that the thread of http.c reads, but for
 *   download.c                whole versions of a job's parameters
 *   answer.c                  the bodies of answers
 *   page.html, .css, .js      the page for browsers, which the build puts into the program
 *   listen.c                  the listening socket
 *
 * Rule: the loop does nothing for HTTP unless somebody asks, and then fills one snapshot for all
 * who ask within SNAPSHOT_FRESH_MS.  A client can hold up neither the loop nor, beyond a deadline,
 * others.
 */
#pragma once

#include "daemon/cluster/engine/engine.h"

struct http;

/*
 * Listens where the option http says.  *ret is NULL if HTTP is off: by option, or because the
 * default address cannot be had, which is logged.  Loop thread.
 */
int http_open(struct engine *x, struct http **ret, struct fault *fault);
/* Reads http_token_file again; whoever shows the old token is refused from then on. */
int http_reload(struct http *http, struct fault *fault);
/* Whether the engine may be read; false while it stops or starts again. */
void http_serve(struct http *http, bool serving);
/* Calls closed() when the thread has ended. */
void http_close(struct http *http, void (*closed)(void *arg), void *arg);

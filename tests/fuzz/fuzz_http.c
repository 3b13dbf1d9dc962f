/*
 * A request of HTTP, as request.c sees it.  Input: a byte of rules (1: a token is needed, 2: a unix
 * socket), then a line each for method, path, Host, Origin, Sec-Fetch-Site, Accept, Authorization
 * and the parameters version and newer_than; the line "-" is no header or parameter.
 *
 * What must hold: whoever is let in has shown the token, or could not have been sent by a page of
 * another site; the page and the probes alone, which say nothing, come without a token that is
 * needed; parameters come to nobody without one; only what the table lists is found; a refusal says
 * why; versions are a range, or refused.
 */
#include "daemon/face/http/request.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { LINES = 9 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *or_null(const char *line)
{
        return strcmp(line, "-") == 0 ? NULL : line;
}

static void check(const struct http_rules *rules, const struct http_request *r)
{
        static const char good[] =
                "0707070707070707070707070707070707070707070707070707070707070707";
        enum http_what what = HTTP_WHATS;
        const char *text = NULL;
        unsigned status = http_route(rules, r, &what, &text);

        if (status != 200) {
                assert(text && text[0] && status >= 400 && status < 500);
                return;
        }
        assert(what != HTTP_WEIGHTS || rules->token);
        assert(what < HTTP_WHATS && r->path[0] == '/');
        assert(what == HTTP_WEIGHTS || !strstr(r->path, ".."));
        assert(strcmp(r->method, "GET") == 0 || strcmp(r->method, "HEAD") == 0);
        if (rules->token && http_is_open(what))
                assert(strcmp(r->path, "/") == 0 || strncmp(r->path, "/page.", 6) == 0 ||
                       strcmp(r->path, "/healthz") == 0 || strcmp(r->path, "/readyz") == 0);
        else if (rules->token)
                assert(r->authorization && strlen(r->authorization) == sizeof "Bearer " - 1 + 64 &&
                       strcmp(r->authorization + sizeof "Bearer " - 1, good) == 0);
        else
                assert(!r->origin && (rules->local || (r->host && r->host[0])));
}

static void check_versions(const char *version, const char *newer_than)
{
        uint64_t least, most;

        if (!http_versions(version, newer_than, &least, &most))
                return;
        assert(!version || (least == most && least == strtoull(version, NULL, 10)));
        assert(!newer_than || (most == UINT64_MAX && least == strtoull(newer_than, NULL, 10) + 1));
        assert(version || newer_than || (least == 0 && most == UINT64_MAX));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static const uint8_t token[32] = { 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
                                           7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7 };
        const char *lines[LINES] = { "", "", "-", "-", "-", "-", "-", "-", "-" };
        char *text = size ? strndup((const char *)data + 1, size - 1) : NULL, *rest = text;

        for (size_t i = 0; i < LINES && rest; i++)
                lines[i] = strsep(&rest, "\n");
        if (text)
                check(&(struct http_rules){ "n0", data[0] & 2, data[0] & 1 ? token : NULL },
                      &(struct http_request){ lines[0], lines[1], or_null(lines[2]),
                                              or_null(lines[3]), or_null(lines[4]),
                                              or_null(lines[5]), or_null(lines[6]) });
        check_versions(or_null(lines[7]), or_null(lines[8]));
        free(text);
        return 0;
}

/* What an HTTP request asks for, and whether it may. */
#include "daemon/face/http/request.h"

#include <arpa/inet.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { TOKEN = 32, TOKEN_HEX = 2 * TOKEN };

static const struct {
        const char *path;
        enum http_what what;
} routes[] = {
        { "/", HTTP_PAGE },
        { "/page.css", HTTP_PAGE_CSS },
        { "/page.js", HTTP_PAGE_JS },
        { "/metrics", HTTP_METRICS },
        { "/healthz", HTTP_HEALTHZ },
        { "/readyz", HTTP_READYZ },
        { "/api/status", HTTP_STATUS },
        { "/api/jobs", HTTP_JOBS },
        { "/api/config", HTTP_CONFIG },
        { "/api/members", HTTP_MEMBERS },
        { "/api/map", HTTP_MAP },
};

static bool token_shown(const char *authorization, const uint8_t token[static TOKEN])
{
        static const char scheme[] = "Bearer ";
        uint8_t shown[TOKEN];
        size_t n = 0;

        if (!authorization || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0)
                return false;
        authorization += sizeof scheme - 1;
        return strlen(authorization) == TOKEN_HEX &&
               sodium_hex2bin(shown, sizeof shown, authorization, TOKEN_HEX, NULL, &n, NULL) == 0 &&
               n == TOKEN && sodium_memcmp(shown, token, TOKEN) == 0;
}

/* host: without port and brackets (RFC 9110, section 7.2). */
static bool host_is_ours(const char *host, bool bracket, const char *node)
{
        uint8_t address[sizeof(struct in6_addr)];

        if (bracket)
                return inet_pton(AF_INET6, host, address) == 1;
        return strcasecmp(host, "localhost") == 0 || strcasecmp(host, node) == 0 ||
               inet_pton(AF_INET, host, address) == 1;
}

static bool host_allowed(const char *header, const char *node)
{
        char host[256];
        bool bracket = header && header[0] == '[';
        const char *end, *port;

        if (!header)
                return false;
        header += bracket;
        end = header + strcspn(header, bracket ? "]" : ":");
        port = end + (bracket && *end);
        if ((bracket && !*end) || (size_t)(end - header) >= sizeof host)
                return false;
        if (*port && (*port != ':' || strspn(port + 1, "0123456789") != strlen(port + 1)))
                return false;
        memcpy(host, header, (size_t)(end - header));
        host[end - header] = '\0';
        return host_is_ours(host, bracket, node);
}

/* Browsers name no origin when a page reads from its own server, so an origin is another's. */
static bool of_another_site(const struct http_request *r)
{
        return r->origin || (r->fetch_site && strcmp(r->fetch_site, "none") != 0 &&
                             strcmp(r->fetch_site, "same-origin") != 0);
}

static unsigned refuse(unsigned status, const char *text, const char **ret_text)
{
        *ret_text = text;
        return status;
}

/* 0, or the refusal's status. */
static unsigned check(const struct http_rules *rules, const struct http_request *r, bool open,
                      const char **ret_text)
{
        if (strcmp(r->method, "GET") != 0 && strcmp(r->method, "HEAD") != 0)
                return refuse(405, "only GET and HEAD: HTTP changes nothing here\n", ret_text);
        if (rules->token && !open && !token_shown(r->authorization, rules->token))
                return refuse(401,
                              "show the token: Authorization: Bearer TOKEN (http_token_file)\n",
                              ret_text);
        if (!rules->token && of_another_site(r))
                return refuse(403, "a page of another site may not read here\n", ret_text);
        if (!rules->token && !rules->local && !host_allowed(r->host, rules->node))
                return refuse(403,
                              "the Host header must be an IP address, localhost or this node's "
                              "name; with http_token_file it may be any\n",
                              ret_text);
        return 0;
}

/* ---- the format of /metrics ---- */

/* The q of the first media range that begins with `type`; -1: there is none. */
static double quality(const char *accept, const char *type)
{
        for (const char *p = accept; *p; p += *p == ',') {
                size_t n = strcspn(p, ",");
                const char *begin = p + strspn(p, " \t"), *q = NULL;

                if (strncasecmp(begin, type, strlen(type)) == 0) {
                        for (const char *s = begin; s < p + n && !q; s++)
                                if (*s == ';' &&
                                    strncasecmp(s + 1 + strspn(s + 1, " \t"), "q=", 2) == 0)
                                        q = s + 1 + strspn(s + 1, " \t") + 2;
                        return q ? strtod(q, NULL) : 1;
                }
                p += n;
        }
        return -1;
}

static bool wants_openmetrics(const char *accept)
{
        double open = accept ? quality(accept, "application/openmetrics-text") : -1;

        return open > 0 && open >= quality(accept, "text/plain");
}

/* ---- the versions of /weights ---- */

/* A decimal number below UINT64_MAX. */
static bool number(const char *text, uint64_t *ret)
{
        *ret = 0;
        for (const char *p = text; *p; p++)
                if (*p < '0' || *p > '9' || __builtin_mul_overflow(*ret, 10, ret) ||
                    __builtin_add_overflow(*ret, (uint64_t)(*p - '0'), ret))
                        return false;
        return *text && *ret < UINT64_MAX;
}

bool http_versions(const char *version, const char *newer_than, uint64_t *ret_least,
                   uint64_t *ret_most)
{
        uint64_t n = 0;

        if ((version && newer_than) || (version && !number(version, &n)) ||
            (newer_than && !number(newer_than, &n)))
                return false;
        *ret_least = newer_than ? n + 1 : n;
        *ret_most = version ? n : UINT64_MAX;
        return true;
}

unsigned http_route(const struct http_rules *rules, const struct http_request *request,
                    enum http_what *ret_what, const char **ret_text)
{
        enum http_what what = HTTP_WHATS;
        unsigned status;

        for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++)
                if (strcmp(routes[i].path, request->path) == 0)
                        what = routes[i].what;
        if (strncmp(request->path, HTTP_WEIGHTS_PATH, sizeof HTTP_WEIGHTS_PATH - 1) == 0)
                what = HTTP_WEIGHTS;
        status = check(rules, request, http_is_open(what), ret_text);
        if (status)
                return status;
        if (what == HTTP_WEIGHTS && !rules->token)
                return refuse(403,
                              "whoever gets parameters shows a token: set http_token_file, and "
                              "start zerod again\n",
                              ret_text);
        if (what == HTTP_WHATS)
                return refuse(404, "not found; zerod(8) lists what there is\n", ret_text);
        if (what == HTTP_METRICS && wants_openmetrics(request->accept))
                what = HTTP_OPENMETRICS;
        *ret_what = what;
        return 200;
}

/*
 * http.c - where HTTP is answered, as http and http_token_file say.
 *
 * Invariant of the result: without a token it is a unix socket or a loopback address.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "daemon/floor/conf/cluster_parse.h"
#include "daemon/floor/conf/source.h"

static int parse_ipv4(const char *host, uint16_t port, struct http_place *ret)
{
        struct sockaddr_in *address = (struct sockaddr_in *)&ret->address;

        *address = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port) };
        ret->address_bytes = sizeof *address;
        return inet_pton(AF_INET, host, &address->sin_addr);
}

static int parse_ipv6(const char *host, uint16_t port, struct http_place *ret)
{
        struct sockaddr_in6 *address = (struct sockaddr_in6 *)&ret->address;

        *address = (struct sockaddr_in6){ .sin6_family = AF_INET6, .sin6_port = htons(port) };
        ret->address_bytes = sizeof *address;
        return inet_pton(AF_INET6, host, &address->sin6_addr);
}

/* "127.0.0.1:7680", "[::1]:7680" or "localhost:7680". */
static bool parse_address(const char *text, struct http_place *ret)
{
        char host[INET6_ADDRSTRLEN + 2];
        const char *colon = strrchr(text, ':');
        size_t n = colon ? (size_t)(colon - text) : 0;
        uint16_t port;

        if (n == 0 || n >= sizeof host || !port_valid(colon + 1, &port))
                return false;
        memcpy(host, text, n);
        host[n] = '\0';
        if (strcmp(host, "localhost") == 0)
                strcpy(host, "127.0.0.1");
        if (host[0] != '[')
                return parse_ipv4(host, port, ret) == 1;
        host[n - 1] = '\0';
        return text[n - 1] == ']' && parse_ipv6(host + 1, port, ret) == 1;
}

static bool is_loopback(const struct http_place *place)
{
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)&place->address;
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&place->address;

        if (place->address.ss_family == AF_INET)
                return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
        return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

static int parse_place(const char *http, struct http_place *ret, struct fault *fault)
{
        if (http[0] == '/') {
                if (strlen(http) >= sizeof ret->path)
                        return fault_set(fault, ZERO_EINVAL,
                                         "http: a socket's path has at most %zu bytes",
                                         sizeof ret->path - 1);
                strcpy(ret->path, http);
                return 0;
        }
        if (!parse_address(http, ret))
                return fault_set(
                        fault, ZERO_EINVAL,
                        "http = %s: must be an IP address and a port such as 127.0.0.1:7680 or "
                        "[::1]:7680, the path of a unix socket, or empty",
                        text_quote(http).text);
        if (!ret->has_token && !is_loopback(ret))
                return fault_set(
                        fault, ZERO_EINVAL,
                        "http = %s: others than this machine could read there without asking; "
                        "set http_token_file, or use 127.0.0.1 behind a reverse proxy",
                        text_quote(http).text);
        return 0;
}

int conf_http(const struct conf *conf, struct http_place *ret, struct fault *fault)
{
        struct http_place place = { .on = conf->http[0],
                                    .chosen = !loaded_is_default(conf, "http"),
                                    .has_token = conf->http_token_file[0] };
        int r = 0;

        if (place.on && place.has_token)
                r = key_read("http_token_file", conf->http_token_file, place.token, fault);
        if (place.on && !r)
                r = parse_place(conf->http, &place, fault);
        if (!r)
                *ret = place;
        explicit_bzero(place.token, sizeof place.token);
        return r;
}

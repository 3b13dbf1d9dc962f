/* http_fallback.c - zerod is built without libmicrohttpd: HTTP is off. */
#include "daemon/face/http/http.h"

#include "daemon/floor/base/log.h"

int http_open(struct engine *x, struct http **ret, struct fault *fault)
{
        struct http_place place;
        int r = conf_http(x->conf, &place, fault);

        if (r)
                return r;
        if (place.on && place.chosen)
                return fault_set(fault, ZERO_EINVAL,
                                 "http = %s: this zerod was built without libmicrohttpd; leave "
                                 "http empty, or build zerod with it",
                                 x->conf->http);
        if (place.on)
                log_info("no /metrics: this zerod was built without libmicrohttpd");
        *ret = NULL;
        return 0;
}

int http_reload(struct http *http, struct fault *fault)
{
        return 0;
}

void http_serve(struct http *http, bool serving)
{
}

void http_close(struct http *http, void (*closed)(void *arg), void *arg)
{
        closed(arg);
}

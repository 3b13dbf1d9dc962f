/* The listening socket of HTTP. */
#include "daemon/face/http/listen.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "daemon/face/rpc/rpc.h"
#include "proto/cleanup.h"

int http_listen(const struct http_place *place, const char *http, int *ret_fd, struct fault *fault)
{
        CLEANUP(cleanup_close) int fd = -1;
        int on = 1;

        if (place->path[0])
                return rpc_listen(place->path, "0666", ret_fd, fault);
        fd = socket(place->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return fault_errno(fault, errno, "http: socket");
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (place->address.ss_family == AF_INET6)
                setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
        if (bind(fd, (const struct sockaddr *)&place->address, place->address_bytes) ||
            listen(fd, SOMAXCONN))
                return fault_set(fault, errno == EADDRINUSE ? ZERO_EBUSY : ZERO_EIO,
                                 "http = %s: %s; set the option http to another address, or to "
                                 "nothing",
                                 http, strerror(errno));
        *ret_fd = STEAL_FD(fd);
        return 0;
}

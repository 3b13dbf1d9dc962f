/* service_fallback.c - there is no service manager. */
#include "daemon/floor/loop/service.h"

int service_new(uv_loop_t *loop, struct service **ret)
{
        *ret = NULL;
        return 0;
}

void service_close(struct service *service)
{
}

void service_ready(struct service *service)
{
}

void service_reloading(struct service *service)
{
}

void service_stopping(struct service *service)
{
}

void service_stop_takes(uint64_t seconds)
{
}

int service_socket(void)
{
        return -1;
}

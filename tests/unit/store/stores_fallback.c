#include "stores.h"

bool stores_watch(const struct iovec *parts, int n, void (*look)(void *arg), void *arg)
{
        return false;
}

void stores_end(void)
{
}

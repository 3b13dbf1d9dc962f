/* See order.h. */
#include "daemon/step/stash/order.h"

void order_read(struct order *o, uint32_t *n_reads, uint64_t key)
{
        if ((*n_reads)++ != o->at || o->at == ORDER_MOST)
                return;
        if (o->at == o->n || o->keys[o->at] != key)
                o->n = o->at + 1;
        o->keys[o->at++] = key;
}

/* Paths of builds that are used take GPU memory by themselves or not at all; see copied.c. */
#include "daemon/fabric/bulk/bulk.h"

bool bulk_copied_wanted(void)
{
        return false;
}

int bulk_copied(struct bulk_peer **peer)
{
        return 0;
}

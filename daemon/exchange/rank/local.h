/* local.h - shared by attaching (attach.c) and the steps of attached ranks (rank.c). */
#pragma once

#include "daemon/exchange/exchange.h"

/* Ends all leases of a rank. */
void rank_release_all(struct rank *rank);

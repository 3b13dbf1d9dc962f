/*
 * node.h - the composition root: makes the parts of a daemon in order, runs them, and takes
 * them down in the opposite order.
 */
#pragma once

#include "daemon/floor/conf/conf.h"

struct node;

/* Runs a daemon until it is told to stop; conf stays the caller's.  0, or a fault. */
int node_run(struct conf *conf, struct fault *fault);

/*
 * cluster.h - the static list of nodes, which of them hold shards, and the key they share.
 */
#pragma once

#include "proto/zero_types.h"

enum { CLUSTER_KEY = 32, NODE_NAME_MAX = 63, CLUSTER_DEVICES_MAX = 8 };

/* The same on every node, in the same order. */
struct cluster_node {
        char name[NODE_NAME_MAX + 1];
        char host[256];
        uint16_t port;
        uint8_t owners; /* how many devices of it hold shards */
};
struct cluster {
        uint32_t n_nodes, self;
        bool mirror; /* every owner's shards are held a second time */
        struct cluster_node nodes[ZERO_NODE_MAX];
        uint8_t hash[32]; /* of names, owners and mirror, not of addresses */
        uint8_t key[CLUSTER_KEY], key_next[CLUSTER_KEY];
        bool has_key, has_key_next; /* without a key only a cluster of one */
};

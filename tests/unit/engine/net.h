/*
 * Several nodes' engines in one process and one loop, over the in-process fabric, each
 * with its own compute threads and its own state directory.  Every failure ends the process.
 */
#pragma once

#include "daemon/cluster/engine/engine.h"
#include "tests/support/fabric_inproc.h"

enum { NET_NODES_MAX = 6, NET_WAIT_MS = 20000, NET_HOME = 112 };

struct net_options {
        uint32_t nodes;
        uint32_t owners;        /* the number of nodes that hold shards, from the first on */
        uint32_t owners_a_node; /* 0: 1 */
        bool mirror;
        uint32_t delay_ms; /* messages wait a random time up to this */
        uint32_t threads;  /* of each node; 0: 2 */
        uint64_t window;   /* bytes; 0: what ranks declare */
        uint64_t chunk;    /* elements; 0: the default */
        uint64_t reduce_buffers;
        uint32_t part_bytes; /* 0: the default */
        bool gpu_states;     /* planes are on the GPU */
        const char *isa;     /* NULL: the best */
};

struct net_node {
        struct net *net;
        struct conf conf;
        struct cluster cluster;
        struct engine x;
        char directory[NET_HOME + 20];
        uint32_t up; /* nodes that it sees */
        bool closed;
};

struct net {
        uv_loop_t loop;
        uv_timer_t alarm; /* ends a wait that takes too long */
        bool late;
        struct net_options options;
        struct inproc_net *inproc;
        char root[NET_HOME + 8];
        struct net_node nodes[NET_NODES_MAX];
};

/* The directory of all nets, made and deleted by main(). */
extern char net_home[NET_HOME];
void directory_delete(const char *path);

void net_open(struct net *net, const struct net_options *options);
/* Stops every node and closes the loop, and checks that no handle is left; keeps the state files.
 */
void net_stop(struct net *net);
/* Starts the same nodes again, on the state files that net_stop() kept. */
void net_restart(struct net *net);
/* net_stop(), then deletes the state files. */
void net_close(struct net *net);
/* Waits until all nodes see each other. */
void net_up(struct net *net);
/* Runs the loop until condition(arg) is true; fails, with what, if that takes too long. */
void net_wait(struct net *net, bool (*condition)(void *arg), void *arg, const char *what);
/* One turn of the loop, or 10 ms. */
void net_turn(struct net *net);
struct job *net_job(struct net *net, uint32_t node, const char *name);
/* The node's replica as an owner; NULL: none. */
struct replica *net_own(const struct job *job);
/* Tells all nodes to drop the job. */
void net_drop(struct net *net, const char *name);
/* Waits until nothing of any job is left anywhere. */
void net_gone(struct net *net);
/* The job's checksum over all owners. */
struct checksum net_checksum(struct net *net, const char *name);

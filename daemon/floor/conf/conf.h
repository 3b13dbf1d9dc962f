/*
 * conf.h - the daemon's options.  One table (conf_table.h) drives file, environment, command line,
 * --help and man page.  Later sources win: default, file, environment, command line.  An unknown
 * key is an error that names the nearest known key.
 */
#pragma once

#include <sys/socket.h>

#include "proto/fault.h"

enum conf_source { CONF_DEFAULT, CONF_FILE, CONF_ENVIRONMENT, CONF_ARGUMENT, CONF_SET };

struct conf {
        char *node;                 /* this node's name; "": host name */
        char *peers;                /* "a=host:port b=host:port ...", all nodes, self included */
        char *owners;               /* names of the nodes that hold shards at first; "": all */
        uint64_t mirror;            /* 1: shards are held a second time, on another node */
        char *key_file;             /* cluster key: 32 bytes, hex or raw, mode 0600 or stricter */
        char *key_next_file;        /* second key during rotation */
        char *socket;               /* "": see conf_table.h */
        char *socket_mode;          /* octal, of the socket file */
        char *http;                 /* "": off */
        char *http_token_file;      /* "": no token */
        char *state_dir;            /* "": see conf_table.h */
        char *membership_dir;       /* "": see conf_table.h */
        char *checkpoint_dir;       /* "": only for the user zerod runs as, and root */
        char *device;               /* auto, host, host:scalar, host:avx2, host:avx512, cuda */
        char *cuda_plugin;          /* "": where it is installed */
        char *gpu_collectives;      /* auto, nccl, copies */
        char *optimizer;            /* host, device */
        char *bulk;                 /* auto, ucx, tcp */
        char *tcp_payloads;         /* "authenticated", "encrypted" or "plain" */
        char *ucx_tls;              /* "" */
        char *bulk_gpu;             /* auto, staged */
        char *user;                 /* the user that a daemon started as root becomes; "": none */
        char *log_level;            /* error, warning, info, debug */
        char *log_dir;              /* traces of what passed its deadline; "": none */
        uint64_t threads;           /* compute threads; 0: one a CPU, at most 8 */
        uint64_t window;            /* bytes of a job's gather window; 0: what its ranks declare */
        uint64_t follow_copies;     /* of a job's parameters, for readers */
        char *follow_by;            /* auto, deltas, whole */
        uint64_t follow_deltas;     /* bytes of the deltas of a user's jobs; 0: none are coded */
        uint64_t follow_limit;      /* bytes of these copies of a user's jobs; 0: no limit */
        uint64_t stash_limit;       /* bytes of a user's stashes; 0: no limit */
        uint64_t base_limit;        /* bytes of a user's bases; 0: no limit */
        uint64_t gpu_windows;       /* bytes of a user's windows on each GPU; 0: no limit */
        uint64_t chunk;             /* elements of a chunk; never 0 once loaded */
        uint64_t memory_limit;      /* bytes of all states, 0: none */
        uint64_t drain_ms;          /* how long a stop waits for steps in flight at most */
        uint64_t checkpoint_memory; /* bytes of a checkpoint's copy; 0: as much as the state */
        uint64_t session_limit;     /* most connections of clients */
        uint64_t job_limit;         /* most jobs of one user */
        uint64_t wait_ms;           /* timeout of clients' calls that name none */
        uint64_t rank_wait_ms;      /* the same while waiting for a rank, since its last call */
        uint64_t reduce_buffers;    /* bytes for sums and accumulators of gradients; 0: what the
                                     * largest group needs */
        uint64_t delay_ms;          /* tests: messages between nodes wait up to this */
};

/* ---- the cluster: its nodes, which of them hold shards, and the key they share ---- */

enum { CLUSTER_KEY = 32, NODE_NAME_MAX = 63, CLUSTER_DEVICES_MAX = 8 };

/* The same on every node, in the same order. */
struct cluster_node {
        char name[NODE_NAME_MAX + 1];
        char host[256];
        uint16_t port;
        uint8_t owners; /* how many of its devices hold shards */
};
struct cluster {
        uint32_t n_nodes, self;
        bool mirror; /* every owner's shards are held a second time */
        struct cluster_node nodes[ZERO_NODE_MAX];
        uint8_t hash[32]; /* of names, owners and mirror, not of addresses */
        uint8_t key[CLUSTER_KEY], key_next[CLUSTER_KEY];
        bool has_key, has_key_next; /* only a cluster of one may have no key */
};

/* ---- where HTTP is answered ---- */

struct http_place {
        bool on, chosen; /* chosen: by a person */
        char path[108];  /* of a unix socket; "": the address */
        struct sockaddr_storage address;
        socklen_t address_bytes;
        bool has_token;
        uint8_t token[CLUSTER_KEY];
};

/* ---- loading ---- */

/* Beyond every zero_status. */
enum { CONF_DONE = 1000 };

/*
 * argv is main()'s; environ holds variables "ZEROD_" and a key in capitals.  0: go on.  CONF_DONE:
 * --help or --version was printed, or --check passed, so exit with 0.  Otherwise a fault with file
 * and line.
 */
int conf_load(int argc, char **argv, struct conf **ret, struct fault *fault);
/* As conf_load(), for a file's text alone; for tests and fuzzing. */
int conf_parse(const char *name, const char *text, size_t size, struct conf **ret,
               struct fault *fault);
void conf_free(struct conf *conf);
/*
 * Changes one option of a running daemon, as conf_load() would read it.  ZERO_EINVAL for a name or
 * value that is not allowed, and for an option that takes effect only at a start.
 */
int conf_set(struct conf *conf, const char *name, const char *value, struct fault *fault);
/*
 * Reads the sources of conf_load() again; argv must still be there.  Calls changed() for every
 * option with another value than before: `live` options are changed, others would take effect at a
 * start.  What conf_set() has set goes back to the sources' value.  A fault in the sources changes
 * nothing.
 */
int conf_load_again(struct conf *conf,
                    void (*changed)(void *arg, const char *name, const char *was, const char *is,
                                    bool live),
                    void *arg, struct fault *fault);
/* Every option with its value and source ("file /etc/zerod/zerod.conf:12"), in table order. */
void conf_each(const struct conf *conf,
               void (*each)(void *arg, const char *name, const char *value, const char *source,
                            const char *doc),
               void *arg);
/* The cluster that peers, owners, node and key files describe. */
int conf_cluster(const struct conf *conf, struct cluster *ret, struct fault *fault);
/* The hash of its first n nodes, which is what it had before it grew. */
void cluster_hash(const struct cluster *c, uint32_t n, uint8_t ret[static 32]);
/* What http and http_token_file say. */
int conf_http(const struct conf *conf, struct http_place *ret, struct fault *fault);

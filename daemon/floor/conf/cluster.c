/*
 * cluster.c - the cluster that peers, owners, node and the key files describe.
 *
 * Invariants of the result: names are unique and consist of plain characters, self is one of the
 * nodes, at least one node owns shards, and a cluster of several nodes has a key.
 */
#include "daemon/floor/conf/cluster_parse.h"

#include <arpa/inet.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

static const char blanks[] = " ";

/* The next word of *p, with its length in *ret_n; NULL at the end.  Moves *p behind the word. */
static const char *next_word(const char **p, size_t *ret_n)
{
        const char *word = *p + strspn(*p, blanks);

        *ret_n = strcspn(word, blanks);
        *p = word + *ret_n;
        return *ret_n ? word : NULL;
}

bool node_name_valid(const char *name)
{
        static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                    "0123456789._-";
        size_t n = strspn(name, plain);

        return n > 0 && !name[n] && n <= NODE_NAME_MAX && name[0] != '-' && name[0] != '.';
}

static int find_node(const struct cluster *c, const char *name)
{
        for (uint32_t i = 0; i < c->n_nodes; i++) {
                if (strcmp(c->nodes[i].name, name) == 0)
                        return (int)i;
        }
        return -1;
}

/* What consists of digits and dots can only be an address: no resolver looks it up. */
static bool host_valid(char *host, bool brackets)
{
        static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                    "0123456789._-";
        char *zone = brackets ? strchr(host, '%') : NULL; /* of a link-local address */
        uint8_t address[sizeof(struct in6_addr)];
        bool valid;

        if (!brackets)
                return host[strspn(host, "0123456789.")] ? !host[strspn(host, plain)]
                                                         : inet_pton(AF_INET, host, address) == 1;
        if (zone)
                *zone = '\0';
        valid = inet_pton(AF_INET6, host, address) == 1;
        if (zone)
                *zone = '%';
        return valid && (!zone || (zone[1] && !zone[1 + strspn(zone + 1, plain)]));
}

bool port_valid(const char *text, uint16_t *ret)
{
        size_t n = strspn(text, "0123456789");
        long port = strtol(text, NULL, 10);

        if (n == 0 || n > 5 || text[n] || port < 1 || port > UINT16_MAX)
                return false;
        *ret = (uint16_t)port;
        return true;
}

/* "host:port" or "[address]:port". */
static int parse_address(char *text, struct cluster_node *ret, struct fault *fault)
{
        bool brackets = text[0] == '[';
        char *host = text + brackets;
        char *end = brackets ? strchr(text, ']') : strchr(text, ':');
        char *colon = end && brackets ? end + 1 : end;

        if (!end || *colon != ':')
                return fault_set(fault, ZERO_EINVAL, "peers: node %s: expected HOST:PORT, found %s",
                                 text_quote(ret->name).text, text_quote(text).text);
        if (!port_valid(colon + 1, &ret->port))
                return fault_set(fault, ZERO_EINVAL,
                                 "peers: node %s: port %s must be a number from 1 to 65535",
                                 text_quote(ret->name).text, text_quote(colon + 1).text);
        *end = '\0';
        if (strlen(host) >= sizeof(ret->host) || !host_valid(host, brackets))
                return fault_set(fault, ZERO_EINVAL,
                                 "peers: node %s: %s is neither a host name nor an address",
                                 text_quote(ret->name).text, text_quote(host).text);
        strcpy(ret->host, host);
        return 0;
}

/* "name=host:port"; the word may be changed. */
static int parse_peer(struct cluster *c, char *word, struct fault *fault)
{
        struct cluster_node node = { .owners = 1 };
        char *equals = strchr(word, '=');
        int r;

        if (!equals)
                return fault_set(fault, ZERO_EINVAL, "peers: expected NAME=HOST:PORT, found %s",
                                 text_quote(word).text);
        *equals = '\0';
        if (!node_name_valid(word))
                return fault_set(fault, ZERO_EINVAL,
                                 "peers: %s is not a node name: 1 to %d letters, digits, '_', '-' "
                                 "and '.', not beginning with '-' or '.'",
                                 text_quote(word).text, NODE_NAME_MAX);
        if (find_node(c, word) >= 0)
                return fault_set(fault, ZERO_EINVAL, "peers: node %s is listed twice",
                                 text_quote(word).text);
        strcpy(node.name, word);
        r = parse_address(equals + 1, &node, fault);
        if (r)
                return r;
        for (uint32_t i = 0; i < c->n_nodes; i++) {
                if (c->nodes[i].port == node.port && strcmp(c->nodes[i].host, node.host) == 0)
                        return fault_set(
                                fault, ZERO_EINVAL, "peers: nodes %s and %s have the same address",
                                text_quote(c->nodes[i].name).text, text_quote(node.name).text);
        }
        if (c->n_nodes == ZERO_NODE_MAX)
                return fault_set(fault, ZERO_EINVAL, "peers: more than %d nodes", ZERO_NODE_MAX);
        c->nodes[c->n_nodes++] = node;
        return 0;
}

static int parse_peers(struct cluster *c, const char *peers, struct fault *fault)
{
        const char *word;
        size_t n;

        while ((word = next_word(&peers, &n))) {
                CLEANUP(cleanup_free)
                char *copy = strndup(word, n);
                int r = copy ? parse_peer(c, copy, fault)
                             : fault_set(fault, ZERO_ENOMEM, "out of memory");

                if (r)
                        return r;
        }
        return 0;
}

static int add_self(struct cluster *c, const char *name, struct fault *fault)
{
        if (!node_name_valid(name))
                return fault_set(fault, ZERO_EINVAL, "node: %s is not a node name",
                                 text_quote(name).text);
        strcpy(c->nodes[0].name, name);
        c->nodes[0].owners = 1;
        c->n_nodes = 1;
        return 0;
}

static int find_self(struct cluster *c, const char *name, struct fault *fault)
{
        int i = find_node(c, name);

        if (i < 0)
                return fault_set(fault, ZERO_EINVAL,
                                 "node: %s is not among the peers; set `node` to this node's name "
                                 "there",
                                 text_quote(name).text);
        c->self = (uint32_t)i;
        return 0;
}

/* "NAME" or "NAME*DEVICES"; the word may be changed. */
static int mark_owner(struct cluster *c, char *name, struct fault *fault)
{
        char *star = strchr(name, '*');
        uint8_t devices = 1;

        if (star) {
                *star = '\0';
                if (star[1] < '1' || star[1] > '0' + CLUSTER_DEVICES_MAX || star[2])
                        return fault_set(fault, ZERO_EINVAL,
                                         "owners: %s*%s: the number of devices must be 1 to %d",
                                         text_quote(name).text, text_quote(star + 1).text,
                                         CLUSTER_DEVICES_MAX);
                devices = (uint8_t)(star[1] - '0');
        }
        int i = find_node(c, name);

        if (i < 0)
                return fault_set(fault, ZERO_EINVAL, "owners: %s is not among the peers",
                                 text_quote(name).text);
        if (c->nodes[i].owners)
                return fault_set(fault, ZERO_EINVAL, "owners: %s is listed twice",
                                 text_quote(name).text);
        c->nodes[i].owners = devices;
        return 0;
}

static int parse_owners(struct cluster *c, const char *owners, struct fault *fault)
{
        const char *word = owners;
        uint32_t total = 0;
        size_t n;

        if (!next_word(&word, &n))
                return 0; /* all */
        for (uint32_t i = 0; i < c->n_nodes; i++)
                c->nodes[i].owners = 0;
        while ((word = next_word(&owners, &n))) {
                CLEANUP(cleanup_free)
                char *copy = strndup(word, n);
                int r = copy ? mark_owner(c, copy, fault)
                             : fault_set(fault, ZERO_ENOMEM, "out of memory");

                if (r)
                        return r;
        }
        for (uint32_t i = 0; i < c->n_nodes; i++)
                total += c->nodes[i].owners;
        if (total > ZERO_NODE_MAX)
                return fault_set(fault, ZERO_EINVAL, "owners: more than %d devices in total",
                                 ZERO_NODE_MAX);
        return 0;
}

static int read_keys(struct cluster *c, const struct conf *conf, struct fault *fault)
{
        int r = 0;

        c->has_key = conf->key_file[0] != '\0';
        c->has_key_next = conf->key_next_file[0] != '\0';
        if (c->has_key_next && !c->has_key)
                return fault_set(fault, ZERO_EINVAL, "key_next_file: set key_file too");
        if (c->n_nodes > 1 && !c->has_key)
                return fault_set(fault, ZERO_EINVAL,
                                 "key_file: needed by a cluster of %u nodes; make one with "
                                 "`head -c 32 /dev/urandom`, mode 0600, the same on every node",
                                 c->n_nodes);
        if (c->has_key)
                r = key_read("key_file", conf->key_file, c->key, fault);
        if (r == 0 && c->has_key_next)
                r = key_read("key_next_file", conf->key_next_file, c->key_next, fault);
        return r;
}

/* Hashes names in order, owners and mirror; each name ends with a byte 0. */
void cluster_hash(const struct cluster *c, uint32_t n, uint8_t ret[static 32])
{
        static const char domain[] = "zerod cluster 2";
        uint8_t mirror = c->mirror;
        crypto_generichash_state state;

        crypto_generichash_init(&state, NULL, 0, sizeof(c->hash));
        crypto_generichash_update(&state, (const uint8_t *)domain, sizeof(domain));
        for (uint32_t i = 0; i < n; i++) {
                const struct cluster_node *node = &c->nodes[i];

                crypto_generichash_update(&state, (const uint8_t *)node->name,
                                          strlen(node->name) + 1);
                crypto_generichash_update(&state, &node->owners, 1);
        }
        crypto_generichash_update(&state, &mirror, 1);
        crypto_generichash_final(&state, ret, sizeof(c->hash));
}

int conf_cluster(const struct conf *conf, struct cluster *ret, struct fault *fault)
{
        CLEANUP(cleanup_free)
        struct cluster *c = calloc(1, sizeof(*c));
        int r;

        if (!c || sodium_init() < 0)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        r = parse_peers(c, conf->peers, fault);
        if (r == 0 && c->n_nodes == 0)
                r = add_self(c, conf->node, fault);
        if (r == 0)
                r = find_self(c, conf->node, fault);
        if (r == 0)
                r = parse_owners(c, conf->owners, fault);
        if (r == 0)
                r = read_keys(c, conf, fault);
        if (r == 0) {
                c->mirror = conf->mirror;
                cluster_hash(c, c->n_nodes, c->hash);
                *ret = *c;
        }
        sodium_memzero(c, sizeof(*c));
        return r;
}

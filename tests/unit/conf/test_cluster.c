/* The cluster described by peers, owners, node and key files. */
#include <criterion/criterion.h>

#include "daemon/floor/conf/conf.h"
#include "files.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct conf conf;
static struct cluster cluster;
static struct fault fault;
static const char hex[] = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1F\n";

static void setup(void)
{
        files_setup();
        conf.node = "a";
        conf.peers = conf.owners = conf.key_next_file = "";
        conf.key_file = (char *)files_write("key", hex, 64, 0600);
}

TestSuite(cluster, .init = setup, .fini = files_teardown);

static int read_cluster(const char *peers, const char *owners)
{
        conf.peers = (char *)peers;
        conf.owners = (char *)owners;
        return conf_cluster(&conf, &cluster, &fault);
}

#define REFUSED(part)                                                                        \
        do {                                                                                 \
                struct cluster before_ = cluster;                                            \
                cr_assert_gt(conf_cluster(&conf, &cluster, &fault), 0);                      \
                cr_assert(strstr(fault.text, part), "'%s' is not in: %s", part, fault.text); \
                cr_assert_eq(memcmp(&before_, &cluster, sizeof(cluster)), 0);                \
        } while (0)
#define PEERS_REFUSED(list, part)    \
        do {                         \
                conf.peers = (list); \
                REFUSED(part);       \
        } while (0)

Test(cluster, alone)
{
        conf.key_file = "";
        cr_assert_eq(read_cluster("", ""), 0);
        cr_assert_eq(cluster.n_nodes, 1);
        cr_assert_eq(cluster.self, 0);
        cr_assert_str_eq(cluster.nodes[0].name, "a");
        cr_assert(cluster.nodes[0].owners && !cluster.has_key && !cluster.has_key_next);
}

Test(cluster, nodes_in_order)
{
        cr_assert_eq(read_cluster(" b=h.example:1  a=[fe80::1%eth0]:65535 c=10.0.0.1:7600", ""), 0,
                     "%s", fault.text);
        cr_assert_eq(cluster.n_nodes, 3);
        cr_assert_eq(cluster.self, 1);
        cr_assert_str_eq(cluster.nodes[0].name, "b");
        cr_assert_str_eq(cluster.nodes[0].host, "h.example");
        cr_assert_eq(cluster.nodes[0].port, 1);
        cr_assert_str_eq(cluster.nodes[1].host, "fe80::1%eth0");
        cr_assert_eq(cluster.nodes[1].port, 65535);
        cr_assert(cluster.nodes[0].owners && cluster.nodes[1].owners && cluster.nodes[2].owners);
}

Test(cluster, owners)
{
        cr_assert_eq(read_cluster("a=h:1 b=h:2 c=h:3", " c  b "), 0);
        cr_assert(!cluster.nodes[0].owners && cluster.nodes[1].owners && cluster.nodes[2].owners);
        cr_assert_eq(read_cluster("a=h:1 b=h:2 c=h:3", "c*8 a*2"), 0);
        cr_assert(cluster.nodes[0].owners == 2 && cluster.nodes[1].owners == 0 &&
                  cluster.nodes[2].owners == 8);
        conf.owners = "d";
        REFUSED("owners: 'd' is not among the peers");
        conf.owners = "b*0";
        REFUSED("the number of devices must be 1 to 8");
        conf.owners = "b*9";
        REFUSED("the number of devices must be 1 to 8");
        conf.owners = "b*12";
        REFUSED("the number of devices must be 1 to 8");
        conf.owners = "b*";
        REFUSED("the number of devices must be 1 to 8");
        conf.owners = "b b";
        REFUSED("twice");
}

Test(cluster, wrong_peers)
{
        PEERS_REFUSED("a=h:1 a=h:2", "'a' is listed twice");
        PEERS_REFUSED("a=h:1 b=h:1", "same address");
        PEERS_REFUSED("b=h:1 c=h:2", "node: 'a' is not among the peers");
        PEERS_REFUSED("a", "NAME=HOST:PORT");
        PEERS_REFUSED("a=h", "HOST:PORT");
        PEERS_REFUSED("a=[::1]7600", "HOST:PORT");
        PEERS_REFUSED("a=[::1", "HOST:PORT");
        PEERS_REFUSED("a=:7600", "'' is neither a host name");
        PEERS_REFUSED("a=[]:7600", "'' is neither a host name");
        PEERS_REFUSED("a=10.0.0.300:7600", "'10.0.0.300' is neither a host name nor an address");
        PEERS_REFUSED("a=10.0.0:7600", "is neither a host name");
        PEERS_REFUSED("a=[fe80::1::2]:7600", "is neither a host name");
        PEERS_REFUSED("a=[fe80::1%]:7600", "is neither a host name");
        PEERS_REFUSED("a=h_/:7600", "is neither a host name");
        PEERS_REFUSED("=h:1", "is not a node name");
        PEERS_REFUSED("-a=h:1", "is not a node name");
        PEERS_REFUSED("a/b=h:1", "is not a node name");
}

Test(cluster, wrong_ports)
{
        static const char *ports[] = { "",   "0",   "65536",          "-1", "+1",
                                       "1x", "0x1", "99999999999999", "1:2" };

        for (size_t i = 0; i < sizeof(ports) / sizeof(ports[0]); i++) {
                char peers[64];

                snprintf(peers, sizeof(peers), "a=h:%s", ports[i]);
                PEERS_REFUSED(peers, "1 to 65535");
        }
}

Test(cluster, lengths)
{
        char name[128], host[512], peers[1024];

        memset(name, 'n', sizeof(name));
        memset(host, 'h', sizeof(host));
        snprintf(peers, sizeof(peers), "a=h:1 %.63s=%.255s:2", name, host);
        cr_assert_eq(read_cluster(peers, ""), 0);
        cr_assert_eq(strlen(cluster.nodes[1].name), 63);
        cr_assert_eq(strlen(cluster.nodes[1].host), 255);
        snprintf(peers, sizeof(peers), "a=h:1 %.64s=h:2", name);
        PEERS_REFUSED(peers, "is not a node name");
        snprintf(peers, sizeof(peers), "a=h:1 b=%.256s:2", host);
        PEERS_REFUSED(peers, "neither a host name");
}

Test(cluster, at_most_64_nodes)
{
        char peers[4096] = "a=h:1";

        for (int i = 2; i <= 64; i++)
                sprintf(peers + strlen(peers), " n%d=h:%d", i, i);
        cr_assert_eq(read_cluster(peers, ""), 0);
        cr_assert_eq(cluster.n_nodes, ZERO_NODE_MAX);
        strcat(peers, " z=h:65");
        PEERS_REFUSED(peers, "more than 64 nodes");
}

Test(cluster, name_of_a_single_node)
{
        conf.node = "a b";
        REFUSED("'a b' is not a node name");
        conf.node = "";
        REFUSED("is not a node name");
}

static void hash_of(const char *peers, const char *owners, uint8_t ret[static 32])
{
        cr_assert_eq(read_cluster(peers, owners), 0);
        memcpy(ret, cluster.hash, 32);
}

Test(cluster, hash_is_of_names_order_and_owners_only)
{
        uint8_t h[32], other[32];

        hash_of("a=h:1 b=h:2", "", h);
        hash_of("a=x:7 b=y:8", "b a", other);
        cr_assert_eq(memcmp(h, other, 32), 0);
        hash_of("b=h:1 a=h:2", "", other);
        cr_assert_neq(memcmp(h, other, 32), 0);
        hash_of("a=h:1 b=h:2", "a", other);
        cr_assert_neq(memcmp(h, other, 32), 0);
        hash_of("a=h:1 bb=h:2", "", other);
        cr_assert_neq(memcmp(h, other, 32), 0);
        hash_of("a=h:1", "", other);
        cr_assert_neq(memcmp(h, other, 32), 0);
}

Test(cluster, self_does_not_change_the_hash)
{
        uint8_t h[32], other[32];

        hash_of("a=h:1 b=h:2", "", h);
        conf.node = "b";
        hash_of("a=h:1 b=h:2", "", other);
        cr_assert_eq(memcmp(h, other, 32), 0);
}

/* ---- key files ------------------------------------------------------------ */

static void key_is_counting(const uint8_t *key)
{
        for (int i = 0; i < CLUSTER_KEY; i++)
                cr_assert_eq(key[i], i);
}

Test(cluster, key_forms)
{
        uint8_t raw[CLUSTER_KEY];

        for (int i = 0; i < CLUSTER_KEY; i++)
                raw[i] = (uint8_t)i;
        cr_assert_eq(read_cluster("", ""), 0);
        key_is_counting(cluster.key);
        cr_assert(cluster.has_key);
        conf.key_file = (char *)files_write("feed", hex, 65, 0400);
        cr_assert_eq(read_cluster("", ""), 0);
        key_is_counting(cluster.key);
        conf.key_next_file = (char *)files_write("raw", raw, sizeof(raw), 0600);
        cr_assert_eq(read_cluster("", ""), 0);
        key_is_counting(cluster.key_next);
        cr_assert(cluster.has_key_next);
}

Test(cluster, key_lengths_and_digits)
{
        for (size_t n = 0; n <= 65; n++) {
                if (n == 32 || n == 64 || n == 65)
                        continue;
                conf.key_file = (char *)files_write("key", hex, n, 0600);
                REFUSED("must hold 32 bytes, or 64 hexadecimal digits");
        }
        conf.key_file = (char *)files_write("key",
                                            "g0112233445566778899aabbccddeeff"
                                            "00112233445566778899aabbccddeeff",
                                            64, 0600);
        REFUSED("hexadecimal");
        conf.key_file = (char *)files_write("key",
                                            "00112233445566778899aabbccddeeff"
                                            "00112233445566778899aabbccddeeff\n\n",
                                            66, 0600);
        REFUSED("hexadecimal");
}

Test(cluster, no_key_of_zeros)
{
        static const char zeros[CLUSTER_KEY];

        conf.key_file = (char *)files_write("key", zeros, sizeof(zeros), 0600);
        REFUSED("all zeros");
}

Test(cluster, no_access_for_others)
{
        for (int bit = 0; bit < 6; bit++) {
                chmod(conf.key_file, 0600 | 1 << bit);
                REFUSED("others have access");
                cr_assert_eq(fault.status, ZERO_EPERM);
        }
}

Test(cluster, no_key_of_another_user)
{
        if (geteuid() != 0) {
                files_teardown(); /* Criterion does not, after a test that is skipped */
                cr_skip_test("only root can give a file away");
        }
        cr_assert_eq(chown(conf.key_file, 4242, 0), 0);
        REFUSED("belongs to user 4242");
        cr_assert_eq(fault.status, ZERO_EPERM);
}

Test(cluster, missing_keys)
{
        conf.key_file = "/nonexistent/key";
        REFUSED("key_file: '/nonexistent/key'");
        conf.key_file = "/tmp";
        REFUSED("key_file");
        conf.key_file = "/dev/null";
        REFUSED("not a regular file");
        conf.key_file = "";
        PEERS_REFUSED("a=h:1 b=h:2", "key_file: needed by a cluster of 2 nodes");
        conf.peers = "";
        conf.key_next_file = (char *)files_write("next", hex, 64, 0600);
        REFUSED("key_next_file: set key_file too");
}

Test(cluster, a_pipe_does_not_hang)
{
        char path[256];

        snprintf(path, sizeof(path), "%s.pipe", conf.key_file);
        cr_assert_eq(mkfifo(path, 0600), 0);
        conf.key_file = path;
        REFUSED("not a regular file");
}

Test(cluster, faults_do_not_tell_the_key)
{
        conf.key_file = (char *)files_write("key", "5ecre75ecre75ecre7", 18, 0600);
        REFUSED("key_file");
        cr_assert_null(strstr(fault.text, "5ecre7"));
}

/*
 * handshake.c - the handshake's messages and its one state machine for both sides.
 *
 * Messages have fixed sizes and are read straight into the transcript, so a stranger cannot make
 * the handshake keep more.  Wire structs consist of bytes only: they have no padding and need no
 * alignment.  Proofs are compared in constant time.
 */
#include "daemon/fabric/link/handshake.h"

#include "daemon/fabric/link/handshake_keys.h"

#include <assert.h>
#include <endian.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum kind { KIND_HELLO = 1, KIND_CHALLENGE, KIND_PROOF, KIND_WELCOME, KIND_REFUSAL };
enum { NONCE = 32 };

static const uint8_t magic[8] = { 'z', 'e', 'r', 'o', 'd', '\r', '\n', 0x1a };

struct head {
        uint8_t magic[8];
        uint8_t version[2];
        uint8_t kind;
        uint8_t reason; /* of a refusal; else 0 */
        uint8_t size[4];
};
struct hello {
        struct head head;
        uint8_t oldest[4], newest[4];
        uint8_t role[4], from[4], to[4];
        uint8_t token[8];
        uint8_t from_name[NODE_NAME_MAX + 1], to_name[NODE_NAME_MAX + 1];
        uint8_t cluster[32];
        uint8_t nonce[NONCE];
        uint8_t key_ids[HANDSHAKE_KEYS][HANDSHAKE_KEY_ID];
        uint8_t kx[crypto_kx_PUBLICKEYBYTES];
};
struct challenge {
        struct head head;
        uint8_t speaks[4];
        uint8_t key[4]; /* place in key_ids */
        uint8_t nonce[NONCE];
        uint8_t kx[crypto_kx_PUBLICKEYBYTES];
};
struct proof {
        struct head head;
        uint8_t proof[HANDSHAKE_PROOF_BYTES];
};
static_assert(sizeof(struct head) == HANDSHAKE_HEAD, "frozen");
static_assert(sizeof(struct hello) == HANDSHAKE_HELLO, "no padding");
static_assert(sizeof(struct challenge) == HANDSHAKE_CHALLENGE, "no padding");
static_assert(sizeof(struct proof) == HANDSHAKE_PROOF, "no padding");
static_assert((int)crypto_kx_SESSIONKEYBYTES == (int)CLUSTER_KEY, "a key of keyed BLAKE2b");

static void put32(uint8_t *p, uint32_t v)
{
        v = htole32(v);
        memcpy(p, &v, sizeof v);
}

static uint32_t get32(const uint8_t *p)
{
        uint32_t v;
        memcpy(&v, p, sizeof v);
        return le32toh(v);
}

static uint32_t head_version(const struct head *head)
{
        return head->version[0] | (uint32_t)head->version[1] << 8;
}

static void write_head(struct head *head, enum kind kind, uint8_t reason, size_t size)
{
        memcpy(head->magic, magic, sizeof magic);
        head->version[0] = HANDSHAKE_VERSION & 0xff;
        head->version[1] = HANDSHAKE_VERSION >> 8;
        head->kind = (uint8_t)kind;
        head->reason = reason;
        put32(head->size, (uint32_t)size);
}

static const char *self_name(const struct handshake *h)
{
        return h->cluster->nodes[h->cluster->self].name;
}

static void set_peer(struct handshake *h, uint32_t node)
{
        h->node = node;
        snprintf(h->peer, sizeof h->peer, "node %s", h->cluster->nodes[node].name);
}

/* Sends a message that belongs to the transcript. */
static void say(struct handshake *h, const void *message, size_t size)
{
        assert(h->incoming == 0 && h->known + size <= sizeof h->transcript);
        assert(h->out_size + size <= sizeof h->out);
        memcpy(h->transcript + h->known, message, size);
        h->known += size;
        memcpy(h->out + h->out_size, message, size);
        h->out_size += size;
}

/* The text is for our own people; the peer learns nothing. */
__attribute__((format(printf, 2, 3))) static enum handshake_result refuse(struct handshake *h,
                                                                          const char *format, ...)
{
        va_list args;
        va_start(args, format);
        vsnprintf(h->why, sizeof h->why, format, args);
        va_end(args);
        h->state = HANDSHAKE_OVER;
        return HANDSHAKE_REFUSED;
}

/* A reason that reads the same on both sides: a format with one %s, the peer. */
static const char *reason_text(enum handshake_reason reason)
{
        switch (reason) {
        case HANDSHAKE_LIST:
                return "%s has another list of peers or owners: set peers, owners and mirror to "
                       "the same on all nodes";
        case HANDSHAKE_KEY:
                return "%s holds another cluster key";
        default:
                return "%s breaks the rules of the handshake";
        }
}

/* Tells the dialler the reason; refuse() has told our own people. */
static enum handshake_result refuse_aloud(struct handshake *h, enum handshake_reason reason)
{
        struct head head;
        write_head(&head, KIND_REFUSAL, (uint8_t)reason, sizeof head);
        memcpy(h->out, &head, sizeof head);
        h->out_size = sizeof head;
        return HANDSHAKE_REFUSED;
}

static enum handshake_result refuse_version(struct handshake *h, const struct head *head)
{
        bool first = h->state == HANDSHAKE_WANTS_HELLO;
        refuse(h,
               "%s has version %u of the handshake, this node version %d: upgrade all nodes by one "
               "release at a time",
               h->peer, head_version(head), HANDSHAKE_VERSION);
        return first ? refuse_aloud(h, HANDSHAKE_OLD) : HANDSHAKE_REFUSED;
}

static enum handshake_result refuse_rules(struct handshake *h)
{
        bool first = h->state == HANDSHAKE_WANTS_HELLO;
        refuse(h, reason_text(HANDSHAKE_RULES), h->peer);
        return first ? refuse_aloud(h, HANDSHAKE_RULES) : HANDSHAKE_REFUSED;
}

/* Makes the session keys from the transcript so far.  False: the peer's public key is unusable. */
static bool make_session(struct handshake *h, bool dialler)
{
        const struct hello *hello = (const struct hello *)h->transcript;
        const struct challenge *challenge =
                (const struct challenge *)(h->transcript + sizeof *hello);
        uint8_t in[crypto_kx_SESSIONKEYBYTES], out[crypto_kx_SESSIONKEYBYTES];
        int r = dialler ? crypto_kx_client_session_keys(in, out, hello->kx, h->kx_secret,
                                                        challenge->kx)
                        : crypto_kx_server_session_keys(in, out, challenge->kx, h->kx_secret,
                                                        hello->kx);
        sodium_memzero(h->kx_secret, sizeof h->kx_secret);
        if (r == 0) {
                handshake_session(h->key, h->transcript, h->known, in, h->receive_key);
                handshake_session(h->key, h->transcript, h->known, out, h->send_key);
        }
        sodium_memzero(in, sizeof in);
        sodium_memzero(out, sizeof out);
        return r == 0;
}

/* ---- the acceptor ---- */

/* Zero-padded, and fit to be printed: names go into messages for people. */
static bool name_ok(const uint8_t name[static NODE_NAME_MAX + 1])
{
        size_t n = strnlen((const char *)name, NODE_NAME_MAX + 1);
        if (n == 0 || n > NODE_NAME_MAX)
                return false;
        for (size_t i = 0; i < n; i++) {
                if (name[i] <= ' ' || name[i] > '~')
                        return false;
        }
        return sodium_is_zero(name + n, NODE_NAME_MAX + 1 - n);
}

static bool hello_ok(const struct hello *m)
{
        uint32_t role = get32(m->role);
        return (role == CHANNEL_LINK || role == CHANNEL_BULK) && name_ok(m->from_name) &&
               name_ok(m->to_name);
}

static uint32_t find_node(const struct cluster *cluster, const char *name)
{
        for (uint32_t i = 0; i < cluster->n_nodes; i++) {
                if (strcmp(cluster->nodes[i].name, name) == 0)
                        return i;
        }
        return HANDSHAKE_NOBODY;
}

/* 0, or the reason for which the dialler is refused; then h->why is set. */
static int judge_names(struct handshake *h, const struct hello *m)
{
        const char *from = (const char *)m->from_name, *to = (const char *)m->to_name;
        uint32_t node = find_node(h->cluster, from);
        if (node == HANDSHAKE_NOBODY) {
                refuse(h, "node %s is not in this node's list of peers", from);
                return HANDSHAKE_UNKNOWN;
        }
        if (node == h->cluster->self) {
                refuse(h,
                       "it has this node's name, %s: an address in peers leads back here, or "
                       "two nodes have the same name",
                       from);
                return HANDSHAKE_ITSELF;
        }
        set_peer(h, node);
        if (strcmp(to, self_name(h)) != 0) {
                refuse(h, "%s took this node for node %s: check the addresses in its peers",
                       h->peer, to);
                return HANDSHAKE_ASTRAY;
        }
        return 0;
}

/* A pair of nodes has one link, which the lower node dials. */
static int judge_cluster(struct handshake *h, const struct hello *m)
{
        enum handshake_reason reason;
        if (memcmp(m->cluster, h->cluster->hash, sizeof m->cluster) != 0)
                reason = HANDSHAKE_LIST;
        else if (get32(m->from) != h->node || get32(m->to) != h->cluster->self ||
                 (h->role == CHANNEL_LINK && h->node > h->cluster->self))
                reason = HANDSHAKE_RULES;
        else
                return 0;
        refuse(h, reason_text(reason), h->peer);
        return (int)reason;
}

static int judge_key(struct handshake *h, const struct hello *m, uint32_t *ret_place)
{
        h->key = handshake_common_key(h->cluster, m->key_ids, ret_place);
        if (h->key)
                return 0;
        refuse(h, reason_text(HANDSHAKE_KEY), h->peer);
        return HANDSHAKE_KEY;
}

/* The newest version of messages that both speak. */
static int judge_versions(struct handshake *h, const struct hello *m)
{
        uint32_t oldest = get32(m->oldest), newest = get32(m->newest);

        h->speaks = newest < h->newest ? newest : h->newest;
        if (h->speaks >= oldest && h->speaks >= h->oldest)
                return 0;
        refuse(h,
               "%s speaks versions %u to %u of messages, this node versions %u to %u: upgrade all "
               "nodes by one release at a time",
               h->peer, oldest, newest, h->oldest, h->newest);
        return HANDSHAKE_OLD;
}

static enum handshake_result take_hello(struct handshake *h, const struct hello *m)
{
        struct challenge answer;
        uint32_t place = 0;
        if (!hello_ok(m))
                return refuse_rules(h);
        h->role = (enum channel_role)get32(m->role);
        memcpy(&h->token, m->token, sizeof h->token);
        h->token = le64toh(h->token);
        int reason = judge_names(h, m);
        if (reason == 0)
                reason = judge_versions(h, m);
        if (reason == 0)
                reason = judge_cluster(h, m);
        if (reason == 0)
                reason = judge_key(h, m, &place);
        if (reason != 0)
                return refuse_aloud(h, (enum handshake_reason)reason);
        write_head(&answer.head, KIND_CHALLENGE, 0, sizeof answer);
        put32(answer.speaks, h->speaks);
        put32(answer.key, place);
        randombytes_buf(answer.nonce, sizeof answer.nonce);
        crypto_kx_keypair(answer.kx, h->kx_secret);
        say(h, &answer, sizeof answer);
        h->state = HANDSHAKE_WANTS_PROOF;
        return HANDSHAKE_MORE;
}

/* Whether m, the last message, proves what came before it. */
static bool proof_ok(const struct handshake *h, bool dialler, const struct proof *m)
{
        uint8_t right[HANDSHAKE_PROOF_BYTES];
        handshake_prove(h->key, dialler, h->transcript, h->known - sizeof *m, right);
        return sodium_memcmp(right, m->proof, sizeof right) == 0;
}

static enum handshake_result take_proof(struct handshake *h, const struct proof *m)
{
        struct proof answer;
        if (!proof_ok(h, true, m))
                return refuse(h, "%s did not prove that it holds the cluster key", h->peer);
        if (!make_session(h, false))
                return refuse_rules(h);
        write_head(&answer.head, KIND_WELCOME, 0, sizeof answer);
        handshake_prove(h->key, false, h->transcript, h->known, answer.proof);
        say(h, &answer, sizeof answer);
        h->state = HANDSHAKE_OVER;
        return HANDSHAKE_DONE;
}

/* ---- the dialler ---- */

static enum handshake_result take_challenge(struct handshake *h, const struct challenge *m)
{
        struct proof answer;
        h->key = handshake_key(h->cluster, get32(m->key));
        h->speaks = get32(m->speaks);
        if (!h->key || h->speaks < h->oldest || h->speaks > h->newest)
                return refuse_rules(h);
        write_head(&answer.head, KIND_PROOF, 0, sizeof answer);
        handshake_prove(h->key, true, h->transcript, h->known, answer.proof);
        say(h, &answer, sizeof answer);
        if (!make_session(h, true))
                return refuse_rules(h);
        h->state = HANDSHAKE_WANTS_WELCOME;
        return HANDSHAKE_MORE;
}

static enum handshake_result take_welcome(struct handshake *h, const struct proof *m)
{
        if (!proof_ok(h, false, m))
                return refuse(h, "%s did not prove that it holds the cluster key", h->peer);
        h->state = HANDSHAKE_OVER;
        return HANDSHAKE_DONE;
}

static enum handshake_result take_refusal(struct handshake *h, const struct head *head)
{
        switch (head->reason) {
        case HANDSHAKE_OLD:
                return refuse(h,
                              "%s speaks none of the versions %u to %u of messages that this node "
                              "speaks: upgrade all nodes by one release at a time",
                              h->peer, h->oldest, h->newest);
        case HANDSHAKE_ITSELF:
                return refuse(h,
                              "the address of %s leads to this node, or to one with the same "
                              "name: check peers",
                              h->peer);
        case HANDSHAKE_UNKNOWN:
                return refuse(h, "%s does not have this node, %s, in its list of peers", h->peer,
                              self_name(h));
        case HANDSHAKE_ASTRAY:
                return refuse(h, "another node answers at the address of %s: check peers", h->peer);
        case HANDSHAKE_TWIN:
                return refuse(h,
                              "%s is linked with another daemon that has this node's name, %s: "
                              "stop one of the two",
                              h->peer, self_name(h));
        case HANDSHAKE_LIST:
        case HANDSHAKE_KEY:
                return refuse(h, reason_text((enum handshake_reason)head->reason), h->peer);
        default:
                return refuse(h, "%s refused the connection, reason %u", h->peer, head->reason);
        }
}

/* ---- both ---- */

static void wanted(const struct handshake *h, enum kind *ret_kind, size_t *ret_size)
{
        static const struct {
                enum kind kind;
                size_t size;
        } table[] = {
                [HANDSHAKE_WANTS_HELLO] = { KIND_HELLO, sizeof(struct hello) },
                [HANDSHAKE_WANTS_CHALLENGE] = { KIND_CHALLENGE, sizeof(struct challenge) },
                [HANDSHAKE_WANTS_PROOF] = { KIND_PROOF, sizeof(struct proof) },
                [HANDSHAKE_WANTS_WELCOME] = { KIND_WELCOME, sizeof(struct proof) },
        };
        assert(h->state < HANDSHAKE_OVER);
        *ret_kind = table[h->state].kind;
        *ret_size = table[h->state].size;
}

/* MORE if this is the head of the message that comes next. */
static enum handshake_result take_head(struct handshake *h, const struct head *head)
{
        enum kind kind;
        size_t size;
        wanted(h, &kind, &size);
        if (head_version(head) != HANDSHAKE_VERSION)
                return refuse_version(h, head);
        if (head->kind == KIND_REFUSAL && get32(head->size) == sizeof *head &&
            (h->state == HANDSHAKE_WANTS_CHALLENGE ||
             (h->state == HANDSHAKE_WANTS_WELCOME && head->reason == HANDSHAKE_TWIN)))
                return take_refusal(h, head);
        if (head->kind != kind || head->reason != 0 || get32(head->size) != size)
                return refuse_rules(h);
        return HANDSHAKE_MORE;
}

static enum handshake_result take_message(struct handshake *h, size_t size)
{
        const uint8_t *m = h->transcript + h->known;
        h->known += size;
        h->incoming = 0;
        switch (h->state) {
        case HANDSHAKE_WANTS_HELLO:
                return take_hello(h, (const struct hello *)m);
        case HANDSHAKE_WANTS_CHALLENGE:
                return take_challenge(h, (const struct challenge *)m);
        case HANDSHAKE_WANTS_PROOF:
                return take_proof(h, (const struct proof *)m);
        default:
                return take_welcome(h, (const struct proof *)m);
        }
}

/* Looks at what has come of a message so far. */
static enum handshake_result look(struct handshake *h, size_t size)
{
        const uint8_t *m = h->transcript + h->known;
        size_t n = h->incoming < sizeof magic ? h->incoming : sizeof magic;
        if (memcmp(m, magic, n) != 0)
                return refuse(h, "%s is not zerod: its first bytes are not the handshake's",
                              h->peer);
        if (h->incoming == HANDSHAKE_HEAD)
                return take_head(h, (const struct head *)m);
        return h->incoming == size ? take_message(h, size) : HANDSHAKE_MORE;
}

enum handshake_result handshake_feed(struct handshake *h, const void *p, size_t n,
                                     size_t *ret_taken)
{
        const uint8_t *from = p;
        enum handshake_result r = HANDSHAKE_MORE;
        size_t taken = 0;
        while (r == HANDSHAKE_MORE && taken < n) {
                enum kind kind;
                size_t size, stop, some;
                wanted(h, &kind, &size);
                stop = h->incoming < HANDSHAKE_HEAD ? HANDSHAKE_HEAD : size;
                some = n - taken < stop - h->incoming ? n - taken : stop - h->incoming;
                memcpy(h->transcript + h->known + h->incoming, from + taken, some);
                h->incoming += some;
                taken += some;
                r = look(h, size);
        }
        *ret_taken = taken;
        return r;
}

static void init(struct handshake *h, const struct cluster *cluster, enum handshake_state state)
{
        assert(cluster->has_key && cluster->self < cluster->n_nodes);
        memset(h, 0, sizeof *h);
        h->cluster = cluster;
        h->oldest = MESSAGES_OLDEST;
        h->newest = MESSAGES_NEWEST;
        h->state = state;
}

void handshake_dial(struct handshake *h, const struct cluster *cluster, uint32_t node,
                    enum channel_role role, uint64_t token)
{
        struct hello m = { 0 };
        uint64_t wire_token = htole64(token);
        assert(node < cluster->n_nodes && node != cluster->self);
        init(h, cluster, HANDSHAKE_WANTS_CHALLENGE);
        set_peer(h, node);
        h->role = role;
        h->token = token;
        write_head(&m.head, KIND_HELLO, 0, sizeof m);
        put32(m.oldest, h->oldest);
        put32(m.newest, h->newest);
        put32(m.role, role);
        put32(m.from, cluster->self);
        put32(m.to, node);
        memcpy(m.token, &wire_token, sizeof m.token);
        memcpy(m.from_name, self_name(h), strlen(self_name(h)));
        memcpy(m.to_name, cluster->nodes[node].name, strlen(cluster->nodes[node].name));
        memcpy(m.cluster, cluster->hash, sizeof m.cluster);
        randombytes_buf(m.nonce, sizeof m.nonce);
        crypto_kx_keypair(m.kx, h->kx_secret);
        handshake_key_ids(cluster, m.key_ids);
        say(h, &m, sizeof m);
}

void handshake_accept(struct handshake *h, const struct cluster *cluster)
{
        init(h, cluster, HANDSHAKE_WANTS_HELLO);
        h->node = HANDSHAKE_NOBODY;
        memcpy(h->peer, "it", sizeof "it");
}

enum handshake_result handshake_turn_away(struct handshake *h)
{
        refuse(h,
               "another daemon with the name of %s is linked, and answers: two daemons have the "
               "same name; stop one of them",
               h->peer);
        return refuse_aloud(h, HANDSHAKE_TWIN);
}

void handshake_lost(struct handshake *h, const char *how)
{
        bool proved = h->state == HANDSHAKE_WANTS_WELCOME;
        refuse(h, "%s %s during the handshake%s", h->peer, how,
               proved ? ": does it hold another cluster key?" : "");
}

void handshake_deinit(struct handshake *h)
{
        sodium_memzero(h, sizeof *h);
}

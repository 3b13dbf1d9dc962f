/* handshake_keys.c - see handshake_keys.h.  No key or hash stays on the stack. */
#include "daemon/fabric/link/handshake_keys.h"

#include <sodium.h>
#include <string.h>

enum { LABEL = 16 };

static const char label_key_id[LABEL] = "zerod key id";
static const char label_dialler[LABEL] = "zerod dialler";
static const char label_acceptor[LABEL] = "zerod acceptor";
static const char label_session[LABEL] = "zerod session";

static void keyed_hash(const uint8_t *key, const char label[static LABEL], const uint8_t *p,
                       size_t n, uint8_t *ret, size_t size)
{
        crypto_generichash_state state;
        crypto_generichash_init(&state, key, CLUSTER_KEY, size);
        crypto_generichash_update(&state, (const uint8_t *)label, LABEL);
        crypto_generichash_update(&state, p, n);
        crypto_generichash_final(&state, ret, size);
        sodium_memzero(&state, sizeof state);
}

const uint8_t *handshake_key(const struct cluster *cluster, uint32_t place)
{
        if (place == 0)
                return cluster->has_key ? cluster->key : NULL;
        return place == 1 && cluster->has_key_next ? cluster->key_next : NULL;
}

void handshake_key_ids(const struct cluster *cluster,
                       uint8_t ret[static HANDSHAKE_KEYS][HANDSHAKE_KEY_ID])
{
        static const uint8_t nothing[1];
        for (uint32_t i = 0; i < HANDSHAKE_KEYS; i++) {
                const uint8_t *key = handshake_key(cluster, i);
                memset(ret[i], 0, HANDSHAKE_KEY_ID);
                if (key)
                        keyed_hash(key, label_key_id, nothing, 0, ret[i], HANDSHAKE_KEY_ID);
        }
}

const uint8_t *handshake_common_key(const struct cluster *cluster,
                                    const uint8_t ids[static HANDSHAKE_KEYS][HANDSHAKE_KEY_ID],
                                    uint32_t *ret_place)
{
        uint8_t own[HANDSHAKE_KEYS][HANDSHAKE_KEY_ID];
        handshake_key_ids(cluster, own);
        for (uint32_t theirs = 0; theirs < HANDSHAKE_KEYS; theirs++) {
                for (uint32_t ours = 0; ours < HANDSHAKE_KEYS; ours++) {
                        const uint8_t *key = handshake_key(cluster, ours);
                        if (!key || memcmp(own[ours], ids[theirs], HANDSHAKE_KEY_ID) != 0)
                                continue;
                        *ret_place = theirs;
                        return key;
                }
        }
        return NULL;
}

void handshake_prove(const uint8_t *key, bool dialler, const uint8_t *transcript, size_t n,
                     uint8_t ret[static HANDSHAKE_PROOF_BYTES])
{
        keyed_hash(key, dialler ? label_dialler : label_acceptor, transcript, n, ret,
                   HANDSHAKE_PROOF_BYTES);
}

void handshake_session(const uint8_t *key, const uint8_t *transcript, size_t n,
                       const uint8_t exchanged[static CLUSTER_KEY], uint8_t ret[static CLUSTER_KEY])
{
        uint8_t conversation[CLUSTER_KEY];
        keyed_hash(key, label_session, transcript, n, conversation, sizeof conversation);
        keyed_hash(exchanged, label_session, conversation, sizeof conversation, ret, CLUSTER_KEY);
        sodium_memzero(conversation, sizeof conversation);
}

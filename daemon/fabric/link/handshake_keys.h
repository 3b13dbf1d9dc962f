/*
 * handshake_keys.h - what the handshake computes from the cluster key.
 *
 * Every result is a BLAKE2b hash, keyed with the cluster key, of a label and a transcript; each use
 * has a label of its own.  Session keys are hashed once more under the secret of the key exchange.
 * A key's id is the hash of a label alone: it tells keys apart and reveals nothing else.
 */
#pragma once

#include "daemon/floor/conf/conf.h"

#include <stddef.h>

enum { HANDSHAKE_PROOF_BYTES = 32, HANDSHAKE_KEY_ID = 16, HANDSHAKE_KEYS = 2 };

/* The key in place 0 (key) or 1 (key_next), or NULL. */
const uint8_t *handshake_key(const struct cluster *cluster, uint32_t place);
/* The ids of both places; zeros for a place without a key. */
void handshake_key_ids(const struct cluster *cluster,
                       uint8_t ret[static HANDSHAKE_KEYS][HANDSHAKE_KEY_ID]);
/* The first of the peer's keys that this node holds too, and its place with the peer; NULL: none.
 */
const uint8_t *handshake_common_key(const struct cluster *cluster,
                                    const uint8_t ids[static HANDSHAKE_KEYS][HANDSHAKE_KEY_ID],
                                    uint32_t *ret_place);
/* The proof that the dialler, or the acceptor, holds the key. */
void handshake_prove(const uint8_t *key, bool dialler, const uint8_t *transcript, size_t n,
                     uint8_t ret[static HANDSHAKE_PROOF_BYTES]);
/* The session key of one direction.  exchanged: crypto_kx's key for that direction. */
void handshake_session(const uint8_t *key, const uint8_t *transcript, size_t n,
                       const uint8_t exchanged[static CLUSTER_KEY],
                       uint8_t ret[static CLUSTER_KEY]);

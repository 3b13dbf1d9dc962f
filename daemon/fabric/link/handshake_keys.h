/*
 * handshake_keys.h - what the handshake computes from the cluster key.
 *
 * Everything is a keyed BLAKE2b hash of a label and a transcript; every use has its own label.
 * Session keys are hashed once more, under the secret that the key exchange gave.
 * A key's id is the hash of its label alone: it tells keys apart and nothing else.
 */
#pragma once

#include "daemon/conf/conf.h"

#include <stddef.h>

enum { HANDSHAKE_PROOF_BYTES = 32, HANDSHAKE_KEY_ID = 16, HANDSHAKE_KEYS = 2 };

/* The key in place 0 (key) or 1 (key_next), or NULL. */
const uint8_t *handshake_key(const struct cluster *cluster, uint32_t place);
/* Zeros where there is no key. */
void handshake_key_ids(const struct cluster *cluster,
                       uint8_t ret[static HANDSHAKE_KEYS][HANDSHAKE_KEY_ID]);
/* The first of the peer's keys that is ours too, and its place with the peer; NULL: none. */
const uint8_t *handshake_common_key(const struct cluster *cluster,
                                    const uint8_t ids[static HANDSHAKE_KEYS][HANDSHAKE_KEY_ID],
                                    uint32_t *ret_place);
/* What the dialler, or the acceptor, says to prove that it holds key. */
void handshake_prove(const uint8_t *key, bool dialler, const uint8_t *transcript, size_t n,
                     uint8_t ret[static HANDSHAKE_PROOF_BYTES]);
/* The key of one direction; exchanged: what crypto_kx gave for that direction. */
void handshake_session(const uint8_t *key, const uint8_t *transcript, size_t n,
                       const uint8_t exchanged[static CLUSTER_KEY],
                       uint8_t ret[static CLUSTER_KEY]);

/*
 * handshake.h - how two nodes prove to each other that they hold the cluster key.
 *
 *   dialler  HELLO      role, both names, token, cluster hash, nonce, ids of its keys,
 *                       ephemeral public key
 *   acceptor CHALLENGE  nonce, which of those keys, ephemeral public key
 *   dialler  PROOF      keyed hash over all of the above
 *   acceptor WELCOME    keyed hash over all of the above, with another label
 *
 * or, instead of CHALLENGE or WELCOME, a REFUSAL with a reason in clear.  The acceptor says nothing
 * that depends on a key before the dialler has proved itself; a wrong proof is answered by
 * silence.  Proofs and session keys depend on every byte exchanged before them, hence on
 * roles, names, nonces, protocol version and cluster hash.
 *
 * Session keys also depend on a key exchange (crypto_kx: X25519) of the two ephemeral key pairs.
 * The secret halves are wiped when the session keys are made, so whoever records a conversation
 * and gets the cluster key later cannot read it.
 *
 * The first 16 bytes of every message (magic, version, kind, reason, size) are the same in
 * all protocol versions, so that other versions can be refused by name.
 *
 * Pure: bytes in, bytes out, a result.  No allocation; no log.  sodium_init() comes first.
 */
#pragma once

#include "daemon/fabric/link/link.h"

enum {
        HANDSHAKE_VERSION = 6, /* of the handshake, the link's and the bulk path's messages */
        HANDSHAKE_HEAD = 16,
        HANDSHAKE_HELLO = 292,
        HANDSHAKE_CHALLENGE = 84,
        HANDSHAKE_PROOF = 48,
        HANDSHAKE_TRANSCRIPT = HANDSHAKE_HELLO + HANDSHAKE_CHALLENGE + 2 * HANDSHAKE_PROOF,
        HANDSHAKE_OUT_MAX = HANDSHAKE_HELLO,
        HANDSHAKE_NOBODY = UINT32_MAX,
};

enum handshake_result {
        HANDSHAKE_MORE = 0,    /* send the output, feed what comes */
        HANDSHAKE_DONE = 1,    /* send the output; keys, node, role and token are valid */
        HANDSHAKE_REFUSED = 2, /* send the output, if any, and close; why says the cause */
};

/* In REFUSAL; codes are only ever appended. */
enum handshake_reason {
        HANDSHAKE_RULES = 1,   /* malformed, or a link dialled from the wrong side */
        HANDSHAKE_OLD = 2,     /* another protocol version */
        HANDSHAKE_ITSELF = 3,  /* the dialler bears the acceptor's name */
        HANDSHAKE_UNKNOWN = 4, /* the acceptor's list lacks the dialler's name */
        HANDSHAKE_ASTRAY = 5,  /* the dialler meant another node */
        HANDSHAKE_LIST = 6,    /* other nodes or owners, or in another order */
        HANDSHAKE_KEY = 7,     /* no key in common */
        HANDSHAKE_TWIN = 8,    /* another daemon of the dialler's name is linked */
};

enum handshake_state {
        HANDSHAKE_WANTS_HELLO,
        HANDSHAKE_WANTS_CHALLENGE,
        HANDSHAKE_WANTS_PROOF,
        HANDSHAKE_WANTS_WELCOME,
        HANDSHAKE_OVER,
};

struct handshake {
        const struct cluster *cluster;
        enum handshake_state state;
        uint32_t node;          /* the peer; of an acceptor: claimed until DONE, or NOBODY */
        enum channel_role role; /* these two: after HELLO */
        uint64_t token;
        uint8_t send_key[CHANNEL_KEY], receive_key[CHANNEL_KEY]; /* after DONE */
        uint8_t out[HANDSHAKE_OUT_MAX]; /* the caller sends it and sets out_size to 0 */
        size_t out_size;
        char why[160]; /* a sentence for people on this side, after REFUSED */

        /* private */
        char peer[NODE_NAME_MAX + 8]; /* "node b", or "it" */
        const uint8_t *key;           /* the one both hold */
        uint8_t kx_secret[crypto_kx_SECRETKEYBYTES];
        uint8_t transcript[HANDSHAKE_TRANSCRIPT];
        size_t known;    /* bytes of whole messages in transcript */
        size_t incoming; /* bytes behind them, of the message being read */
};

/* cluster must outlive the handshake and have a key. */
void handshake_dial(struct handshake *h, const struct cluster *cluster, uint32_t node,
                    enum channel_role role, uint64_t token);
void handshake_accept(struct handshake *h, const struct cluster *cluster);
/*
 * Takes up to n bytes of p, *ret_taken of them: all, unless the handshake ended before.
 * Not to be called after DONE or REFUSED.
 */
enum handshake_result handshake_feed(struct handshake *h, const void *p, size_t n,
                                     size_t *ret_taken);
/* The acceptor, DONE and not yet flushed: refuses instead, as another daemon of the peer's name
 * is linked. */
enum handshake_result handshake_turn_away(struct handshake *h);
/* Puts in h->why what a connection that ended before the handshake did most likely means. */
void handshake_lost(struct handshake *h, const char *how);
/* Wipes keys. */
void handshake_deinit(struct handshake *h);

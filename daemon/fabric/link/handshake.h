/*
 * handshake.h - how two nodes prove to each other that they hold the cluster key.
 *
 *   dialler  HELLO      the oldest and the newest version of messages that it speaks, role, both
 *                       names, token, cluster hash, nonce, ids of its keys, ephemeral public key
 *   acceptor CHALLENGE  the newest version that both speak, nonce, which of those keys, ephemeral
 *                       public key
 *   dialler  PROOF      keyed hash over all of the above
 *   acceptor WELCOME    keyed hash over all of the above, with another label
 *
 * In place of CHALLENGE or WELCOME the acceptor may send a REFUSAL with a reason in the clear.  It
 * says nothing that depends on a key before the dialler has proved itself, and answers a wrong
 * proof with silence.  Proofs and session keys depend on every byte exchanged before them, and so
 * on roles, names, nonces, versions and cluster hash.
 *
 * Session keys also depend on a key exchange (crypto_kx: X25519) of the two ephemeral key pairs.
 * The secret halves are wiped once the session keys are made, so somebody who records a
 * conversation and gets the cluster key later cannot read the conversation.
 *
 * The version in heads is that of the handshake.  It changes only if older releases need not be
 * understood any more; the messages behind the handshake have a version of their own (link.h).
 *
 * The first 16 bytes of every message (magic, version, kind, reason, size) have the same form in
 * all versions of the handshake, so a refusal can say which version the other side has.
 *
 * Pure: bytes in, bytes out, a result.  No allocation, no log.  Call sodium_init() first.
 */
#pragma once

#include "daemon/fabric/link/link.h"

enum {
        HANDSHAKE_VERSION = 8,
        HANDSHAKE_HEAD = 16,
        HANDSHAKE_HELLO = 300,
        HANDSHAKE_CHALLENGE = 88,
        HANDSHAKE_PROOF = 48,
        HANDSHAKE_TRANSCRIPT = HANDSHAKE_HELLO + HANDSHAKE_CHALLENGE + 2 * HANDSHAKE_PROOF,
        HANDSHAKE_OUT_MAX = HANDSHAKE_HELLO,
        HANDSHAKE_NOBODY = UINT32_MAX,
};

enum handshake_result {
        HANDSHAKE_MORE = 0,    /* send the output, and feed what comes */
        HANDSHAKE_DONE = 1,    /* send the output; keys, node, role and token are valid */
        HANDSHAKE_REFUSED = 2, /* send the output, if any, and close; `why` has the reason */
};

/* The reason in a REFUSAL.  New codes go to the end. */
enum handshake_reason {
        HANDSHAKE_RULES = 1,   /* malformed, or a link dialled from the wrong side */
        HANDSHAKE_OLD = 2,     /* another version of the handshake, or none of messages in common */
        HANDSHAKE_ITSELF = 3,  /* the dialler has the acceptor's name */
        HANDSHAKE_UNKNOWN = 4, /* the acceptor's list lacks the dialler's name */
        HANDSHAKE_ASTRAY = 5,  /* the dialler meant another node */
        HANDSHAKE_LIST = 6,    /* the two lists have other nodes or owners, or another order */
        HANDSHAKE_KEY = 7,     /* no key in common */
        HANDSHAKE_TWIN = 8,    /* another daemon with the dialler's name is linked */
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
        uint32_t node;          /* the peer; for an acceptor NOBODY, then a mere claim until DONE */
        enum channel_role role; /* this and token are valid after HELLO */
        uint64_t token;
        uint32_t oldest, newest, speaks; /* speaks: after DONE */
        uint8_t send_key[CHANNEL_KEY], receive_key[CHANNEL_KEY]; /* after DONE */
        uint8_t out[HANDSHAKE_OUT_MAX]; /* the caller sends it and sets out_size to 0 */
        size_t out_size;
        char why[240]; /* a sentence for people on this side, after REFUSED */

        /* private */
        char peer[NODE_NAME_MAX + 8]; /* "node b", or "it" */
        const uint8_t *key;           /* the key that both sides hold */
        uint8_t kx_secret[crypto_kx_SECRETKEYBYTES];
        uint8_t transcript[HANDSHAKE_TRANSCRIPT];
        size_t known;    /* bytes of whole messages in transcript */
        size_t incoming; /* bytes of the message being read, behind the whole ones */
};

/* cluster must outlive the handshake and have a key. */
void handshake_dial(struct handshake *h, const struct cluster *cluster, uint32_t node,
                    enum channel_role role, uint64_t token);
void handshake_accept(struct handshake *h, const struct cluster *cluster);
/*
 * Takes *ret_taken of the n bytes: all of them, unless the handshake ended before.  Must not be
 * called after DONE or REFUSED.
 */
enum handshake_result handshake_feed(struct handshake *h, const void *p, size_t n,
                                     size_t *ret_taken);
/* For an acceptor that is DONE and has not sent its output: refuses the peer after all, because
 * another daemon with the peer's name is linked. */
enum handshake_result handshake_turn_away(struct handshake *h);
/* The connection ended before the handshake did: sets h->why to the most likely cause. */
void handshake_lost(struct handshake *h, const char *how);
/* Wipes keys. */
void handshake_deinit(struct handshake *h);

/*
 * bulk.h - how payloads travel between two nodes.
 *
 * Every payload is asked for by its receiver, who has made room first: ops->expect()
 * names a transfer and where it lands, then the request goes over the link, then the
 * owner of the bytes calls ops->send() with the same transfer number.  A
 * payload nobody expects, of another length or with another token ends the
 * connection with the peer.  Only the receiver writes its own memory.
 *
 * Where the receiver reads the sender's memory (bulk_peer.announces), a payload may be announced
 * instead: its sender chooses the number, from BULK_ANNOUNCED on, and sends at once; the message
 * that says what the payload is names the number.  Nothing moves before the receiver has made room
 * and expects the number.  An announced payload comes once and whole; else the path breaks.  A
 * receiver that wants none of it forgets the number: then the send ends as if the payload had
 * landed.
 *
 * Payloads lie in host memory; where both sides' paths take GPU memory as well (bulk_peer.gpu),
 * those of BULK_AWAY_MIN bytes or more may lie in memory of gpu.h at either end.
 *
 * A bulk is one path (ucx, tcp; inproc in tests); a bulk_peer is one peer on it.  All calls and
 * callbacks are on the loop thread; no call runs a callback before it returns.
 * tests/conformance/bulk runs on every implementation.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/fabric/link/link.h"
#include "proto/fault.h"

struct bulk;
struct bulk_peer;

/* Smaller payloads are cheaper by way of host memory. */
enum { BULK_AWAY_MIN = 64 << 10 };

#define BULK_ANNOUNCED (UINT64_C(1) << 63)
/* Payloads that one side has announced and the other has not read. */
enum { BULK_ANNOUNCED_MAX = 64 };

/* status: 0; -ECANCELED if the peer was closed first; -EPROTO, -EIO. */
typedef void bulk_done(void *arg, int status);

struct bulk_ops {
        const char *name;
        /* Sends n bytes at p, which stay the caller's and do not change until done. */
        int (*send)(struct bulk_peer *peer, uint64_t transfer, const void *p, size_t n,
                    bulk_done *done, void *arg);
        /* Expects n bytes at p; p may be written until done.  -EEXIST: number in use. */
        int (*expect)(struct bulk_peer *peer, uint64_t transfer, void *p, size_t n, bulk_done *done,
                      void *arg);
        /* Forgets an expected transfer that its owner has refused: done gets -ECANCELED.
         * Idempotent.  Unknown numbers are ignored, but announced ones are remembered until they
         * come. */
        void (*forget)(struct bulk_peer *peer, uint64_t transfer);
        /* Closes the peer by force: every pending done gets -ECANCELED, then closed() is called
         * and the peer is gone.  Never waits for the other side. */
        void (*close)(struct bulk_peer *peer, void (*closed)(void *arg), void *arg);
};

struct bulk_peer {
        const struct bulk_ops *ops;
        /* called once if the path breaks by itself; then the owner closes the peer */
        void (*broken)(void *arg, const char *why);
        void *broken_arg;
        bool gpu; /* it takes GPU memory; the owner clears this if the other side's does not */
        /* The other side breaks the path if bytes change while they are sent. */
        bool checked;
        bool announces;
        uint64_t sent_bytes, received_bytes;
        uint32_t silent_ms; /* since the last byte, even of a beat; only of a path with beats */
};

/* ---- tcp: an authenticated channel of its own (link.h), role bulk ---- */

/* What protects payloads on the network; both sides must have the same. */
enum bulk_seal { BULK_PLAIN, BULK_AUTHENTICATED, BULK_ENCRYPTED };

/* A connection without even a beat is silent.  Silence is counted in beats, so that a stopped
 * loop blames nobody. */
enum { BULK_BEAT_MS = 1000, BULK_SILENCE_MS = 10000 };

/* Whether this CPU computes AES-GCM. */
bool bulk_tcp_has_aes(void);
/* Takes the channel over.  aes: both sides' CPUs have it. */
int bulk_tcp_peer_new(struct channel *channel, uint64_t token, enum bulk_seal seal, bool aes,
                      void (*broken)(void *, const char *), void *arg, struct bulk_peer **ret);

/* ---- ucx: active messages, by rendezvous where remote memory can be read; no tcp transport,
 * no listener.  Every link has a worker of its own, a port: ending the worker is the one way to be
 * sure that UCX lets go of everything at once, whatever state the other side is in.  ---- */

struct bulk_ucx;
/*
 * tls: UCX_TLS to use; it must name tcp explicitly.  NULL: the environment's, or everything without
 * tcp.  -ENODEV: no usable transport; a fault: tcp would be used without being named.
 */
int bulk_ucx_new(const char *tls, struct bulk_ucx **ret, struct fault *fault);
/* Its transports, with commas. */
const char *bulk_ucx_tls(const struct bulk_ucx *ucx);
/* Whether it knows the memory of GPUs (CUDA). */
bool bulk_ucx_knows_gpus(const struct bulk_ucx *ucx);
/* All peers must be closed and all ports freed. */
void bulk_ucx_free(struct bulk_ucx *ucx);

struct bulk_ucx_port;
int bulk_ucx_port_new(struct bulk_ucx *ucx, uv_loop_t *loop, struct bulk_ucx_port **ret);
/* The worker's address, for the other side; valid as long as the port. */
const void *bulk_ucx_port_address(const struct bulk_ucx_port *port, size_t *ret_size);
/* For a port that became no peer. */
void bulk_ucx_port_free(struct bulk_ucx_port *port);

/* Takes the port over on success.  -ENODEV: no transport reaches the address. */
int bulk_ucx_peer_new(struct bulk_ucx_port *port, const void *address, size_t size, uint64_t token,
                      void (*broken)(void *, const char *), void *arg, struct bulk_peer **ret);

/* ---- tests ---- */

/*
 * In builds for tests (-Dcrash_points=true) with BULK_GPU=copied in the environment: puts a path
 * before *peer that takes GPU memory by copying it; "spoilt": with errors.  Otherwise, and without
 * GPUs, *peer stays.  -ENOMEM.
 */
int bulk_copied(struct bulk_peer **peer);
/* Whether bulk_copied() would do that. */
bool bulk_copied_wanted(void);

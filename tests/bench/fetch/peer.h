/*
 * peer.h - what a fetch is measured against: bytes answered by another process over a
 * plain socket, and a plain copy.  All times are in microseconds.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* A process that answers each request with as many bytes as are asked for. */
struct peer {
        int fd;
        int process;
        char *buffer;
        size_t bytes;
};

/* Over TCP on loopback, or a unix socket; answers of at most `bytes`.  It ends with this process.
 */
int peer_start(bool tcp, size_t bytes, struct peer *ret_peer);
void peer_stop(struct peer *peer);
/* One request, and its answer of n bytes in full; negative if the connection failed. */
double peer_ask_us(struct peer *peer, size_t n);

double clock_us(void);
/* memcpy of n bytes between two buffers of at least that size. */
double copy_us(char *to, const char *from, size_t n);

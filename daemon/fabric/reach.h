/*
 * reach.h - whether UCX may reach another node: over shared memory if both are on one host,
 * otherwise over a transport that leaves the host.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REACH_HOST = 32 };

/*
 * A host in the sense of shared memory: a hash of boot, user, and the namespaces of processes, IPC,
 * network and users.  Two processes with the same hash can map each other's memory.
 */
void reach_host(uint8_t ret[static REACH_HOST]);

/* Whether both lists of UCX transports ("self,posix,rc_verbs") name one that leaves the host. */
bool reach_across(const char *ours, const char *theirs);

/*
 * reach.h - whether UCX may reach another node: over shared memory where both share a
 * host, else over a transport that leaves the host.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REACH_HOST = 32 };

/*
 * A host in the sense of shared memory: boot, user, and the namespaces of processes, IPC, network
 * and users.  Two processes with the same one can map each other's memory.
 */
void reach_host(uint8_t ret[static REACH_HOST]);

/* Whether both lists of UCX transports ("self,posix,rc_verbs") name one that leaves the host. */
bool reach_across(const char *ours, const char *theirs);

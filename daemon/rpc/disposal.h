/*
 * Closes connections of clients.
 *
 * The close of a descriptor that a client has passed may take as long as the client likes: a
 * socket that lingers, a file of the client's own file system.  Where the kernel can, it refuses
 * descriptors when they are sent (SO_PASSRIGHTS, Linux 6.16).  Elsewhere a connection that holds
 * some is closed on a thread of its own, which a process that ends does not wait for.
 *
 * A connection that waits for its close counts as one that its user has.  How many wait is bounded
 * by the kernel: a user may have as many descriptors on their way through sockets as open files.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* The kernel refuses descriptors sent to connections that are made from now on to this listener. */
void descriptors_refuse(int listener);
/* Whether the peer of this connection may have sent, or may send, descriptors. */
bool descriptors_may_come(int fd);
/* Closes a connection of this user; never blocks.  Any thread. */
void disposal_close(int fd, uid_t uid);
/* How many connections of this user wait for their close. */
uint32_t disposal_waiting(uid_t uid);
/* Half of the files that the process may open are connections that wait for their close. */
bool disposal_full(void);

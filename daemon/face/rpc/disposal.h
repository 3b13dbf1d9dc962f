/*
 * Closes connections of clients.
 *
 * Closing a descriptor that a client has sent may take as long as the client likes: it may be a
 * socket that lingers, or a file on the client's own file system.  Since Linux 6.16 the kernel
 * refuses descriptors when they are sent (SO_PASSRIGHTS).  On older kernels a thread closes
 * connections that hold some, and an ending process does not wait for that thread.
 *
 * A connection that waits for its close counts as its user's.  The kernel bounds how many can wait:
 * a user may have as many descriptors on their way through sockets as open files.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Asks the kernel to refuse descriptors on connections that this listener accepts from now on. */
void descriptors_refuse(int listener);
/* Whether the peer of this connection may have sent, or may send, descriptors. */
bool descriptors_may_come(int fd);
/* Closes a connection of this user; never blocks.  Any thread. */
void disposal_close(int fd, uid_t uid);
/* How many connections of this user wait for their close. */
uint32_t disposal_waiting(uid_t uid);
/* Whether connections that wait for their close are half of the files the process may open. */
bool disposal_full(void);

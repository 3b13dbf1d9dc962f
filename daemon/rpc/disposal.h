/*
 * Closes connections of clients.
 *
 * The close of a descriptor that a client has passed may take as long as the client likes: a
 * socket that lingers, a file of the client's own file system.  Where the kernel can, it refuses
 * descriptors when they are sent (SO_PASSRIGHTS, Linux 6.16).  Elsewhere a connection that holds
 * some is closed on a thread of its own, which a process that ends does not wait for.
 */
#pragma once

#include <stdbool.h>

/* The kernel refuses descriptors sent to connections that are made from now on to this listener. */
void descriptors_refuse(int listener);
/* Whether the peer of this connection may have sent, or may send, descriptors. */
bool descriptors_may_come(int fd);
/* Closes a connection; never blocks.  Any thread. */
void disposal_close(int fd);
/* So many connections wait for their close that no more should be accepted. */
bool disposal_full(void);

/* A client's memory of the versions that it follows; see zero_follow().  Private to libzero. */
#pragma once

enum { FOLLOW_COPIES = 16 }; /* of a job on a node at most */

struct follow;
/* Unmaps all versions.  NULL is allowed. */
void follow_free(struct follow *f);

/*
 * The users whose clients are connected, and what each may take: connections, loop time, memory.
 *
 * Root and the user that zerod runs as have what they ask for, as far as session_limit goes.  A
 * sixteenth of session_limit is kept for them.  Of the rest another user may have one connection
 * more as long as that user has fewer connections than are still free: alone up to one half.
 * A user's connections that wait for their close count as that user's; see disposal.h.
 */
#pragma once

#include <sys/types.h>

#include "daemon/rpc/budget.h"
#include "proto/list.h"

struct user {
        struct list link; /* users.all */
        uid_t uid;
        bool privileged;
        uint32_t n_sessions;
        struct budget budget;
        uint64_t asked_ms; /* loop time, since when so many questions for the status came */
        uint32_t asked;
};

struct users {
        struct list all;
        uint32_t limit, n_sessions;
        uint64_t ended; /* sessions that have ended */
};

void users_init(struct users *users, uint32_t session_limit);
void users_deinit(struct users *users);
/* Takes a place for a connection of this user.  -EUSERS: all places are taken; -EDQUOT: all that
 * this user may have; -ENOMEM. */
int user_enter(struct users *users, uid_t uid, uint64_t now_ms, struct user **ret);
void user_leave(struct users *users, struct user *user);
/* Forgets users without connections or debts. */
void users_sweep(struct users *users, uint64_t now_ms);
/* Whether the loop also serves jobs of others: of no user, or of each user but `only`. */
void users_share(struct users *users, bool shared, uid_t only);

/*
 * The users whose clients are connected, and what each may take: connections, loop time, memory.
 *
 * Root and the user that zerod runs as get as many connections as they want, within session_limit.
 * A sixteenth of session_limit is kept for them.  Any other user gets another connection as long as
 * that user has fewer connections than are still free; a user who is alone gets one half.
 * Connections that wait for their close count too; see disposal.h.
 *
 * A survey, a question to all nodes, outlives the connection that asked, because the nodes work on
 * it: it counts until its answers are there, and its user is known as long.
 */
#pragma once

#include <sys/types.h>

#include "daemon/face/rpc/budget.h"
#include "proto/list.h"

enum {
        SURVEYS_MAX = 8,    /* of a user, at once */
        SURVEYS_LARGE = 2,  /* of these, with answers of megabytes */
        SURVEYS_FACTOR = 8, /* root and the user that zerod runs as may have so many times more */
};

struct user {
        struct list link; /* users.all; alone once the users have ended */
        uid_t uid;
        bool privileged;
        uint32_t n_sessions;
        struct budget budget;
        uint32_t surveys, large; /* in flight */
        uint64_t asked_ms;       /* loop time from which `asked` counts */
        uint32_t asked;          /* questions for the status */
};

struct users {
        struct list all;
        uint32_t limit, n_sessions;
        uint64_t ended; /* sessions that have ended */
};

void users_init(struct users *users, uint32_t session_limit);
void users_deinit(struct users *users);
/* Takes a place for a connection of this user.  -EUSERS: all places are taken; -EDQUOT: this user
 * has as many as allowed; -ENOMEM. */
int user_enter(struct users *users, uid_t uid, uint64_t now_ms, struct user **ret);
void user_leave(struct users *users, struct user *user);
/* NULL: the user has no connections, or not lately. */
struct user *user_find(struct users *users, uid_t uid);
/* Counts a survey.  False: there are as many as the user may have, *ret_most. */
bool user_asks(struct user *user, bool large, uint32_t *ret_most);
/* The survey's answer is there.  May free the user. */
void user_answered(struct user *user, bool large);
/* Forgets users without connections, surveys or debts. */
void users_sweep(struct users *users, uint64_t now_ms);
/* Sets whether the loop also serves jobs of other users: for all users, except `only`. */
void users_share(struct users *users, bool shared, uid_t only);

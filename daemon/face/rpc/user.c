/* Users of the server; see user.h. */
#include "daemon/face/rpc/user.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/face/rpc/disposal.h"
#include "proto/cleanup.h"

enum { RESERVED = 16 }; /* one place in 16 is kept for root and zerod's user */

void users_init(struct users *users, uint32_t session_limit)
{
        *users = (struct users){ .limit = session_limit };
        list_init(&users->all);
}

void users_deinit(struct users *users)
{
        assert(users->n_sessions == 0);
        list_for_each (&users->all, item) {
                struct user *user = CONTAINER_OF(item, struct user, link);

                list_remove(&user->link);
                if (user->surveys == 0) /* else the last answer frees it */
                        free(user);
        }
}

struct user *user_find(struct users *users, uid_t uid)
{
        list_for_each (&users->all, item) {
                struct user *user = CONTAINER_OF(item, struct user, link);

                if (user->uid == uid)
                        return user;
        }
        return NULL;
}

static int user_new(struct users *users, uid_t uid, uint64_t now_ms, struct user **ret)
{
        struct user *user = calloc(1, sizeof *user);

        if (!user)
                return -ENOMEM;
        user->uid = uid;
        user->privileged = uid == 0 || uid == geteuid();
        budget_init(&user->budget, now_ms);
        list_insert(&users->all, &user->link);
        *ret = user;
        return 0;
}

/* Whether a user without privilege has fewer places than are free. */
static bool user_may_enter(const struct users *users, const struct user *user)
{
        uint32_t kept = users->limit > 1 ? (users->limit + RESERVED - 1) / RESERVED : 0;
        uint32_t taken = kept + users->n_sessions;

        return taken < users->limit &&
               user->n_sessions + disposal_waiting(user->uid) < users->limit - taken;
}

int user_enter(struct users *users, uid_t uid, uint64_t now_ms, struct user **ret)
{
        struct user *user = user_find(users, uid);
        int r = user ? 0 : user_new(users, uid, now_ms, &user);

        if (r)
                return r;
        if (users->n_sessions >= users->limit)
                return -EUSERS;
        if (!user->privileged && !user_may_enter(users, user))
                return -EDQUOT;
        user->n_sessions++;
        users->n_sessions++;
        *ret = user;
        return 0;
}

void user_leave(struct users *users, struct user *user)
{
        assert(user->n_sessions > 0);
        user->n_sessions--;
        users->n_sessions--;
        users->ended++;
}

bool user_asks(struct user *user, bool large, uint32_t *ret_most)
{
        uint32_t times = user->privileged ? SURVEYS_FACTOR : 1;

        *ret_most = times * (large ? SURVEYS_LARGE : SURVEYS_MAX);
        if (large ? user->large >= *ret_most : user->surveys >= *ret_most)
                return false;
        user->surveys++;
        user->large += large;
        return true;
}

void user_answered(struct user *user, bool large)
{
        assert(user->surveys > 0);
        user->surveys--;
        user->large -= large;
        if (user->surveys == 0 && list_empty(&user->link))
                free(user);
}

void users_sweep(struct users *users, uint64_t now_ms)
{
        list_for_each (&users->all, item) {
                struct user *user = CONTAINER_OF(item, struct user, link);

                if (user->n_sessions || user->surveys || !budget_may_work(&user->budget, now_ms))
                        continue;
                list_remove(&user->link);
                free(user);
        }
}

void users_share(struct users *users, bool shared, uid_t only)
{
        list_for_each (&users->all, item) {
                struct user *user = CONTAINER_OF(item, struct user, link);
                bool alone = user->privileged || !shared || user->uid == only;

                user->budget.quantum_ns = alone ? QUANTUM_ALONE_NS : QUANTUM_SHARED_NS;
        }
}

/*
 * Limits what the clients of one user read and write at once on this node.
 *
 * Each call in progress may have buffers of megabytes, and work on other nodes.  So TURNS calls of
 * a user are in progress, and the others wait in the order in which they came.  A call whose client
 * goes meanwhile never begins.
 */
#include "daemon/step/tensors/access.h"

#include "proto/cleanup.h"

static uint32_t begun_of(const struct tensors *t, uint32_t uid)
{
        uint32_t n = 0;

        list_for_each (&((struct tensors *)t)->begun, item) {
                n += CONTAINER_OF(item, struct turn, link)->uid == uid;
        }
        return n;
}

static struct turn *waiting_of(const struct tensors *t, uint32_t uid)
{
        list_for_each (&((struct tensors *)t)->waiting, item) {
                struct turn *turn = CONTAINER_OF(item, struct turn, link);

                if (turn->uid == uid)
                        return turn;
        }
        return NULL;
}

/* A call may end as it begins, and then calls this function again, which leaves the rest to the
 * outer loop. */
static void turns_advance(struct tensors *t, uint32_t uid)
{
        struct turn *turn;

        if (t->advancing)
                return;
        t->advancing = true;
        while (begun_of(t, uid) < TURNS && (turn = waiting_of(t, uid))) {
                list_remove(&turn->link);
                list_insert(&t->begun, &turn->link);
                turn->begun = true;
                turn->begin(turn);
        }
        t->advancing = false;
}

void turn_take(struct tensors *t, struct turn *turn)
{
        list_insert(&t->waiting, &turn->link);
        turns_advance(t, turn->uid);
}

void turn_end(struct tensors *t, struct turn *turn)
{
        bool begun = turn->begun;
        uint32_t uid = turn->uid;

        list_remove(&turn->link);
        if (begun)
                turns_advance(t, uid);
}

bool turn_waits(const struct turn *turn)
{
        return !turn->begun && !list_empty(&turn->link);
}

void turn_describe(struct wait_line *ret)
{
        snprintf(ret->who, sizeof ret->who, "this user's other reads and writes");
        snprintf(ret->what, sizeof ret->what, "at most %d are in progress at once", TURNS);
}

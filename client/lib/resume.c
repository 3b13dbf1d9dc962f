/*
 * A lost daemon: connecting and attaching again.
 *
 * Rules: the first try is made at once, later ones after a pause that doubles; they end with the
 * timeout of the call that makes them, and the next call tries again.  Being let in again has
 * the time of a request of its own, so that the daemon can say whom it waits for.
 * What ends for good is what no further try could change: a fenced rank, a dropped job,
 * another protocol.
 */
#include "client.h"

enum { PAUSE_FIRST_MS = 10, PAUSE_MOST_MS = 500 };

struct tries {
        int64_t until_ms; /* on wire_now()'s clock */
        int64_t pause_ms;
        int64_t rank_until_ms; /* the rank may be taken for so long; 0: it was not yet */
};

enum verdict { AGAIN, LATER, NEVER };

/* What becomes of a rank that the daemon did not let in again. */
static enum verdict judge(struct tries *t, int status)
{
        switch (status) {
        case ZERO_ERANK:
                /* the daemon may not have seen yet that the last session ended */
                if (t->rank_until_ms == 0)
                        t->rank_until_ms = wire_now() + CLIENT_GRACE_MS;
                return wire_now() < t->rank_until_ms ? AGAIN : NEVER;
        case ZERO_EBUSY:
        case ZERO_EQUOTA:
        case ZERO_ENOMEM:
        case ZERO_ESHM:
        case ZERO_EIO:
        case ZERO_EPEER:
        case ZERO_EABORTED:
                return AGAIN;
        case ZERO_EDEADLINE:
        case ZERO_ELOSTRANK:
        case ZERO_EINTERNAL:
                return LATER;
        default:
                return NEVER;
        }
}

/* ZERO_OK: there is time for another try. */
static int wait_for_try(struct zero_client *c, struct tries *t)
{
        int64_t now = wire_now(), end = now + t->pause_ms;

        if (now >= t->until_ms)
                return client_fail(c, ZERO_EDEADLINE,
                                   "zerod did not let rank %d into job '%s' within %u ms: %s",
                                   (int)c->rank, c->job, (unsigned)c->timeout_ms, c->cause.text);
        t->pause_ms = 2 * t->pause_ms < PAUSE_MOST_MS ? 2 * t->pause_ms : PAUSE_MOST_MS;
        if (wire_sleep(c->interrupt_fd, end < t->until_ms ? end : t->until_ms))
                return client_shut(c, "a call was interrupted");
        return ZERO_OK;
}

/* Connects if the connection is lost.  CLIENT_LOST: not reached. */
static int reach(struct zero_client *c, struct tries *t)
{
        int r;

        if (!c->lost)
                return 0;
        r = client_dial(c, t->until_ms);
        if (r > 0 && c->lost)
                return client_lose(c, "%s", c->error.text);
        return r;
}

/* The end of a try that failed.  ZERO_OK: try again. */
static int consider(struct zero_client *c, struct tries *t, int r)
{
        struct fault refusal = c->error;

        if (c->closed)
                return r;
        if (!c->lost) {
                enum verdict verdict = judge(t, r);

                if (verdict == NEVER)
                        client_shut(c, "%s", refusal.text);
                else
                        client_lose(c, "%s", refusal.text);
                c->error = refusal;
                if (verdict != AGAIN)
                        return r;
        }
        return wait_for_try(c, t);
}

int client_resume(struct zero_client *c)
{
        struct tries t = { .until_ms = c->began_ms + c->timeout_ms, .pause_ms = PAUSE_FIRST_MS };
        int r;

        c->entering = true;
        do {
                r = reach(c, &t);
                if (r == 0 && c->layout)
                        r = client_join(c, c->layout, &c->needs, true);
                if (r == 0)
                        break;
                r = consider(c, &t, r);
        } while (r == 0);
        c->entering = false;
        return r;
}

int client_enter(struct zero_client *c, const layout *l, const struct zero_needs *needs)
{
        struct tries t = { .until_ms = c->began_ms + c->timeout_ms, .pause_ms = PAUSE_FIRST_MS };
        int r;

        c->entering = true;
        for (;;) {
                r = reach(c, &t);
                if (r == 0)
                        r = client_join(c, l, needs, false);
                if (r == 0 || !c->lost || c->closed)
                        break;
                r = wait_for_try(c, &t);
                if (r)
                        break;
        }
        c->entering = false;
        return r;
}

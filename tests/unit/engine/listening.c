/* See listening.h. */
#include "listening.h"

#include <string.h>

#include "check.h"

struct ears ears[RANKS_MAX];

static void note_failure(struct trainer *t, const struct op *op, int status, const char *text,
                         const struct request *r)
{
        struct ears *e = &ears[t->needs.rank];

        if (status == 0)
                return;
        e->status = status;
        e->failures++;
        snprintf(e->text, sizeof e->text, "%s", text);
}

void open_listening(struct session *s, const struct training *t)
{
        memset(ears, 0, sizeof ears);
        session_open(s, t);
        for (uint32_t r = 0; r < t->ranks; r++)
                s->trainers[r].heard = note_failure;
}

void run_turns(struct session *s, uint32_t turns, uint64_t seed)
{
        for (uint32_t i = 0; i < turns; i++)
                if (!trainers_turn(s->trainers, s->training->ranks, &seed))
                        return;
}

void forget_program(struct trainer *t)
{
        free(t->ops);
        t->ops = NULL;
        t->n_ops = t->next = 0;
}

void kill_all(struct session *s)
{
        for (uint32_t r = 0; r < s->training->ranks; r++) {
                trainer_kill(&s->trainers[r]);
                forget_program(&s->trainers[r]);
        }
}

void cut_behind(const struct training *t, uint32_t turns, const struct outcome *expected)
{
        struct session s;

        open_listening(&s, t);
        session_attach(&s);
        session_program(&s, 1);
        session_run(&s);
        session_program(&s, 2);
        run_turns(&s, turns, turns);
        fabric_cut(s.net.nodes[0].x.fabric, 1, "for a test");
        run_turns(&s, 20, turns);
        kill_all(&s);
        net_up(&s.net);
        memset(ears, 0, sizeof ears);
        session_attach(&s);
        for (uint64_t v = s.trainers[0].rank->job->version; v < 3; v++) {
                session_program(&s, (uint32_t)v + 1);
                session_run(&s);
        }
        for (uint32_t r = 0; r < t->ranks; r++)
                CHECK(ears[r].failures == 0, "after %u turns, rank %u: %s", turns, r, ears[r].text);
        s.outcome.sum = net_checksum(&s.net, "zoo");
        CHECK(memcmp(&s.outcome.sum, &expected->sum, sizeof expected->sum) == 0, "after %u turns",
              turns);
        session_close(&s);
}

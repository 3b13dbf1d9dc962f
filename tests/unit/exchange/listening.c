/* See listening.h. */
#include "listening.h"

#include <string.h>

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

/* Two nodes agree on a bulk path: conversations with the state machine alone. */
#include <criterion/criterion.h>
#include <string.h>

#include "daemon/fabric/choice.h"

/* A word of a side that is up, not about the path. */
enum { SPOKEN = CHOICE_LATE + 1 };

/* Both sides, and the messages on their way to each. */
struct talk {
        struct choice side[2]; /* 0: lower */
        int queue[2][64];      /* enum choice_event, SPOKEN */
        unsigned head[2], tail[2];
        bool channel[2]; /* stands, was not told yet: it has no order with the link */
        bool ucx_works, dial_works, make_works[2];
        bool made[2], up[2], cut;
};

static void tell(struct talk *talk, int to, int event)
{
        cr_assert_lt(talk->tail[to], 64);
        talk->queue[to][talk->tail[to]++] = event;
}

/* A dropped path loses the results of its probes. */
static void drop(struct talk *talk, int i)
{
        unsigned kept = talk->head[i];

        for (unsigned k = talk->head[i]; k < talk->tail[i]; k++) {
                if (talk->queue[i][k] != CHOICE_LANDED && talk->queue[i][k] != CHOICE_FAILED)
                        talk->queue[i][kept++] = talk->queue[i][k];
        }
        talk->tail[i] = kept;
        talk->made[i] = false;
}

static void step(struct talk *talk, int i, int event)
{
        unsigned actions;

        if (event == SPOKEN) {
                cr_assert(talk->up[i], "side %d is spoken to before it is up", i);
                return;
        }
        actions = choice_step(&talk->side[i], (enum choice_event)event);

        if (actions & CHOICE_DROP)
                drop(talk, i);
        if (actions & CHOICE_MAKE) {
                if (!talk->make_works[i]) {
                        step(talk, i, CHOICE_FAILED);
                        return;
                }
                talk->made[i] = true;
        }
        if (actions & CHOICE_PROBE)
                tell(talk, i, talk->ucx_works ? CHOICE_LANDED : CHOICE_FAILED);
        if (actions & CHOICE_SAY_UCX)
                tell(talk, !i, CHOICE_HEARD_UCX);
        if (actions & CHOICE_SAY_FAILED)
                tell(talk, !i, CHOICE_HEARD_FAILED);
        if (actions & CHOICE_SAY_TCP)
                tell(talk, !i, CHOICE_HEARD_TCP);
        if (actions & CHOICE_DIAL) {
                if (talk->dial_works)
                        talk->channel[0] = talk->channel[1] = true;
                else
                        tell(talk, i, CHOICE_FAILED);
        }
        if (actions & CHOICE_GO_UP) {
                talk->up[i] = true;
                tell(talk, !i, SPOKEN);
        }
        talk->cut |= actions & CHOICE_CUT;
}

static void begin(struct talk *talk, bool may_ucx, bool ucx_only)
{
        *talk = (struct talk){ .ucx_works = true,
                               .dial_works = true,
                               .make_works = { true, true } };
        for (int i = 0; i < 2; i++) {
                choice_start(&talk->side[i], i == 0, ucx_only);
                talk->side[i].may_ucx = may_ucx;
                tell(talk, i, CHOICE_HEARD_HELLO);
        }
}

static bool waits(const struct talk *talk, int i)
{
        return talk->channel[i] || talk->head[i] < talk->tail[i];
}

/* Delivers in an order that the seed picks; each queue stays in order. */
static void run(struct talk *talk, unsigned seed)
{
        while (waits(talk, 0) || waits(talk, 1)) {
                int i = (int)(seed >> 16 & 1);
                bool channel = seed >> 17 & 1;
                seed = seed * 1103515245 + 12345;
                if (!waits(talk, i))
                        i = !i;
                if (talk->channel[i] && (channel || talk->head[i] == talk->tail[i])) {
                        talk->channel[i] = false;
                        step(talk, i, CHOICE_CHANNEL);
                } else {
                        step(talk, i, talk->queue[i][talk->head[i]++]);
                }
                if (talk->cut)
                        return;
        }
}

static void ends_with(struct talk *talk, enum choice_path path)
{
        cr_assert(!talk->cut);
        for (int i = 0; i < 2; i++) {
                cr_assert(talk->up[i], "side %d is not up", i);
                cr_assert_eq(talk->side[i].state, CHOICE_UP);
                cr_assert_eq(talk->side[i].path, path);
                cr_assert_eq(talk->made[i], path == CHOICE_UCX);
                cr_assert_eq(choice_deadline_ms(&talk->side[i]), 0);
        }
}

Test(choice, ucx_where_probes_pass)
{
        for (unsigned seed = 0; seed < 1000; seed++) {
                struct talk talk;
                begin(&talk, true, false);
                run(&talk, seed * 2654435761u);
                ends_with(&talk, CHOICE_UCX);
        }
}

Test(choice, tcp_where_ucx_may_not_reach)
{
        for (unsigned seed = 0; seed < 1000; seed++) {
                struct talk talk;
                begin(&talk, false, false);
                run(&talk, seed * 2654435761u);
                ends_with(&talk, CHOICE_TCP);
        }
}

Test(choice, tcp_where_a_probe_fails)
{
        for (unsigned seed = 0; seed < 1000; seed++) {
                struct talk talk;
                begin(&talk, true, false);
                talk.ucx_works = false;
                run(&talk, seed * 2654435761u);
                ends_with(&talk, CHOICE_TCP);
        }
}

Test(choice, tcp_where_a_side_cannot_make_its_ucx_peer)
{
        for (unsigned seed = 0; seed < 1000; seed++) {
                struct talk talk;
                begin(&talk, true, false);
                talk.make_works[seed % 2] = false;
                run(&talk, seed * 2654435761u);
                ends_with(&talk, CHOICE_TCP);
        }
}

/* The lower node's probes are late in whatever state that finds the two. */
Test(choice, tcp_where_probes_are_late)
{
        for (unsigned after = 0; after < 8; after++) {
                struct talk talk;
                begin(&talk, true, false);
                for (unsigned i = 0; i < after && talk.head[i % 2] < talk.tail[i % 2]; i++)
                        step(&talk, (int)(i % 2), talk.queue[i % 2][talk.head[i % 2]++]);
                if (talk.side[0].state != CHOICE_PROPOSED && talk.side[0].state != CHOICE_PROBING)
                        continue;
                step(&talk, 0, CHOICE_LATE);
                run(&talk, after);
                ends_with(&talk, CHOICE_TCP);
        }
}

Test(choice, a_link_that_wants_ucx_alone_is_cut_without_it)
{
        struct talk talk;

        begin(&talk, false, true);
        run(&talk, 1);
        cr_assert(talk.cut);
        begin(&talk, true, true);
        talk.ucx_works = false;
        run(&talk, 1);
        cr_assert(talk.cut);
        cr_assert(!talk.up[0] && !talk.up[1]);
}

Test(choice, a_dial_that_fails_cuts)
{
        struct talk talk;

        begin(&talk, false, false);
        talk.dial_works = false;
        run(&talk, 1);
        cr_assert(talk.cut);
        cr_assert(!talk.up[0] && !talk.up[1]);
}

/* For any events in any order: no side goes up on a path that it has dropped, an ended side stays
 * ended, and every state that waits has a deadline. */
Test(choice, any_sequence_of_events_is_survived)
{
        unsigned seed = 1;

        for (int round = 0; round < 20000; round++) {
                struct choice choice;
                bool ended = false, up = false;
                choice_start(&choice, round & 1, round & 2);
                choice.may_ucx = round & 4;
                for (int i = 0; i < 12; i++) {
                        unsigned actions;
                        seed = seed * 1103515245 + 12345;
                        actions = choice_step(&choice, (enum choice_event)(seed >> 16 & 7));
                        cr_assert(!(ended && actions), "acts behind its end");
                        cr_assert(!(up && actions & CHOICE_GO_UP), "up twice");
                        cr_assert(!(actions & CHOICE_CUT) || choice.state == CHOICE_OFF);
                        cr_assert(choice.state == CHOICE_OFF || choice.state == CHOICE_UP ||
                                  choice_deadline_ms(&choice) > 0);
                        ended |= actions & CHOICE_CUT;
                        up |= actions & CHOICE_GO_UP;
                }
        }
}

/* How two nodes agree on the bulk path; see choice.h. */
#include "daemon/fabric/choice.h"

#include "daemon/fabric/fabric.h"

void choice_start(struct choice *choice, bool lower, bool ucx_only)
{
        *choice = (struct choice){ .state = CHOICE_HELLO, .lower = lower, .ucx_only = ucx_only };
}

void choice_stop(struct choice *choice)
{
        choice->state = CHOICE_OFF;
}

static unsigned cut(struct choice *choice)
{
        choice->state = CHOICE_OFF;
        return CHOICE_CUT;
}

static unsigned go_up(struct choice *choice, enum choice_path path)
{
        choice->state = CHOICE_UP;
        choice->path = path;
        return CHOICE_GO_UP;
}

/* Lower: UCX cannot be used or has failed. */
static unsigned ask_tcp(struct choice *choice)
{
        if (choice->ucx_only)
                return cut(choice);
        choice->state = CHOICE_ASKED;
        return CHOICE_DROP | CHOICE_SAY_TCP;
}

static unsigned hello(struct choice *choice)
{
        if (!choice->lower) {
                choice->state = CHOICE_WAITING;
                return 0;
        }
        if (!choice->may_ucx)
                return ask_tcp(choice);
        choice->state = CHOICE_PROPOSED;
        return CHOICE_MAKE | CHOICE_SAY_UCX;
}

static unsigned lower_probing(struct choice *choice, enum choice_event event)
{
        switch (event) {
        case CHOICE_HEARD_UCX:
                choice->theirs_landed = true;
                break;
        case CHOICE_LANDED:
                choice->landed = true;
                break;
        case CHOICE_HEARD_FAILED:
        case CHOICE_FAILED:
        case CHOICE_LATE:
                return ask_tcp(choice);
        default:
                return cut(choice);
        }
        if (!choice->landed || !choice->theirs_landed)
                return 0;
        return go_up(choice, CHOICE_UCX) | CHOICE_SAY_UCX;
}

static unsigned lower_dialling(struct choice *choice, enum choice_event event)
{
        if (event == CHOICE_CHANNEL)
                choice->channel = true;
        else if (event == CHOICE_HEARD_TCP)
                choice->theirs_channel = true;
        else
                return cut(choice);
        if (!choice->channel || !choice->theirs_channel)
                return 0;
        return go_up(choice, CHOICE_TCP) | CHOICE_SAY_TCP;
}

static unsigned lower_step(struct choice *choice, enum choice_event event)
{
        switch (choice->state) {
        case CHOICE_PROPOSED:
                if (event == CHOICE_HEARD_UCX) {
                        choice->state = CHOICE_PROBING;
                        return CHOICE_PROBE;
                }
                return lower_probing(choice, event);
        case CHOICE_PROBING:
                return lower_probing(choice, event);
        case CHOICE_ASKED:
                if (event == CHOICE_HEARD_UCX || event == CHOICE_HEARD_FAILED)
                        return 0; /* sent before the other side was told to use TCP */
                if (event != CHOICE_HEARD_TCP)
                        return cut(choice);
                choice->state = CHOICE_DIALLING;
                return CHOICE_DIAL;
        case CHOICE_DIALLING:
                return lower_dialling(choice, event);
        default:
                return cut(choice);
        }
}

/* Higher: its UCX has failed; the lower node decides what to do. */
static unsigned tell_failed(struct choice *choice)
{
        choice->state = CHOICE_WAITING;
        choice->may_ucx = false;
        return CHOICE_DROP | CHOICE_SAY_FAILED;
}

static unsigned higher_waiting(struct choice *choice, enum choice_event event)
{
        if (event != CHOICE_HEARD_UCX || !choice->may_ucx)
                return cut(choice);
        choice->state = CHOICE_PROBING;
        return CHOICE_MAKE | CHOICE_PROBE | CHOICE_SAY_UCX;
}

static unsigned higher_step(struct choice *choice, enum choice_event event)
{
        bool probing = choice->state == CHOICE_PROBING || choice->state == CHOICE_PROBED;

        if (event == CHOICE_HEARD_TCP && (probing || choice->state == CHOICE_WAITING)) {
                if (choice->ucx_only)
                        return cut(choice);
                choice->state = CHOICE_ACCEPTING;
                return CHOICE_DROP | CHOICE_SAY_TCP;
        }
        if (event == CHOICE_FAILED && probing)
                return tell_failed(choice);
        if (choice->state == CHOICE_WAITING)
                return higher_waiting(choice, event);
        if (choice->state == CHOICE_PROBING && event == CHOICE_LANDED) {
                choice->state = CHOICE_PROBED;
                return CHOICE_SAY_UCX;
        }
        if (choice->state == CHOICE_PROBED && event == CHOICE_HEARD_UCX)
                return go_up(choice, CHOICE_UCX);
        if (choice->state == CHOICE_ACCEPTING && event == CHOICE_CHANNEL) {
                choice->state = CHOICE_ACCEPTED;
                return CHOICE_SAY_TCP;
        }
        if (choice->state == CHOICE_ACCEPTED && event == CHOICE_HEARD_TCP)
                return go_up(choice, CHOICE_TCP);
        return cut(choice);
}

unsigned choice_step(struct choice *choice, enum choice_event event)
{
        if (choice->state == CHOICE_OFF)
                return 0;
        if (choice->state == CHOICE_UP)
                return cut(choice);
        if (choice->state == CHOICE_HELLO)
                return event == CHOICE_HEARD_HELLO ? hello(choice) : cut(choice);
        return choice->lower ? lower_step(choice, event) : higher_step(choice, event);
}

uint32_t choice_deadline_ms(const struct choice *choice)
{
        switch (choice->state) {
        case CHOICE_OFF:
        case CHOICE_UP:
                return 0;
        case CHOICE_PROPOSED:
        case CHOICE_PROBING:
        case CHOICE_PROBED:
                /* so that the lower node gives up first */
                return choice->lower ? FABRIC_PROBE_MS : 3 * FABRIC_PROBE_MS;
        default:
                return DOOR_HANDSHAKE_MS + 3 * FABRIC_PROBE_MS;
        }
}

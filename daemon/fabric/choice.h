/*
 * choice.h - how two nodes agree on the bulk path of their link.  I/O-free: takes events and
 * returns actions.
 *
 *   lower node                         higher node
 *   hello                       <->    hello
 *   if UCX may reach: expects the probes
 *   choice{ucx, ok}              ->    expects the probes, sends its own
 *                               <-     choice{ucx, ok}
 *   sends its probes            <->
 *                               <-     choice{ucx, ok}: the lower node's probes landed
 *   when both nodes' probes have landed: up
 *   choice{ucx, ok}              ->    up
 *   if UCX may not reach, or a step above fails or is late:
 *   choice{tcp, ok}              ->    drops UCX
 *                               <-     choice{tcp, ok}
 *   dials a bulk channel         ->    takes it
 *                               <-     choice{tcp, ok}
 *   when its own end stands too: up
 *   choice{tcp, ok}              ->    up
 *
 * choice{ucx, not ok} from the higher node says that a probe failed there.
 *
 * Invariants: a side goes up only when the other side is up, or becomes up by the next message on
 * the link.  So no other message reaches a side that is not up yet, although channel and link keep
 * no common order.  Every state except UP and OFF has a deadline.  An event that does not fit the
 * state cuts the link.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The path that the two sides agreed on, or try next. */
enum choice_path { CHOICE_UCX, CHOICE_TCP };

enum choice_state {
        CHOICE_OFF,       /* no link, or it is being cut */
        CHOICE_HELLO,     /* waits for the other side's hello */
        CHOICE_PROPOSED,  /* lower: UCX, waits until the other side expects the probes */
        CHOICE_WAITING,   /* higher: waits for the lower node's choice */
        CHOICE_PROBING,   /* both: probes are on their way */
        CHOICE_PROBED,    /* higher: its own probes have landed */
        CHOICE_ASKED,     /* lower: TCP, waits until the other side is ready */
        CHOICE_DIALLING,  /* lower: dials the bulk channel */
        CHOICE_ACCEPTING, /* higher: waits for the bulk channel */
        CHOICE_ACCEPTED,  /* higher: its end of the channel stands */
        CHOICE_UP,
};

enum choice_event {
        CHOICE_HEARD_HELLO,
        CHOICE_HEARD_UCX,    /* choice{ucx, ok} */
        CHOICE_HEARD_FAILED, /* choice{ucx, not ok} */
        CHOICE_HEARD_TCP,    /* choice{tcp, ok} */
        CHOICE_LANDED,       /* all own probes are sent, and all of the other side's came whole */
        CHOICE_FAILED,       /* the path could not be made, or broke, or a probe did not come */
        CHOICE_CHANNEL,      /* the bulk channel stands */
        CHOICE_LATE,         /* the state's deadline passed */
};

/* To be done in this order. */
enum choice_action {
        CHOICE_DROP = 1 << 0,       /* close the UCX peer, if there is one */
        CHOICE_MAKE = 1 << 1,       /* make the UCX peer and expect the probes */
        CHOICE_PROBE = 1 << 2,      /* send the probes */
        CHOICE_SAY_UCX = 1 << 3,    /* choice{ucx, ok} */
        CHOICE_SAY_FAILED = 1 << 4, /* choice{ucx, not ok} */
        CHOICE_SAY_TCP = 1 << 5,    /* choice{tcp, ok} */
        CHOICE_DIAL = 1 << 6,       /* dial a bulk channel */
        CHOICE_GO_UP = 1 << 7,
        CHOICE_CUT = 1 << 8, /* cut the link */
};

struct choice {
        enum choice_state state;
        bool lower;    /* this node has the lower index */
        bool may_ucx;  /* both sides have UCX and UCX may reach; known with the hello */
        bool ucx_only; /* this node takes no other path */
        bool landed, theirs_landed, channel, theirs_channel;
        enum choice_path path;
};

/* A link has come up. */
void choice_start(struct choice *choice, bool lower, bool ucx_only);
/* The link is gone, or being cut. */
void choice_stop(struct choice *choice);
/* Returns choice_action bits. */
unsigned choice_step(struct choice *choice, enum choice_event event);
/* How long the state may last; 0: for ever. */
uint32_t choice_deadline_ms(const struct choice *choice);

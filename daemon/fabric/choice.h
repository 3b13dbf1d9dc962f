/*
 * choice.h - how two nodes agree on the bulk path of their link.  I/O-free: it is
 * told events and returns what to do.
 *
 *   lower node                         higher node
 *   hello                       <->    hello
 *   if UCX may reach: expects the probes
 *   choice{ucx, ok}              ->    expects the probes, sends its own
 *                               <-     choice{ucx, ok}
 *   sends its probes            <->
 *                               <-     choice{ucx, ok}: they landed
 *   when both have landed: up
 *   choice{ucx, ok}              ->    up
 *   else, or if anything of that fails or is late:
 *   choice{tcp, ok}              ->    drops UCX
 *                               <-     choice{tcp, ok}
 *   dials a bulk channel         ->    takes it
 *                               <-     choice{tcp, ok}
 *   when its end stands too: up
 *   choice{tcp, ok}              ->    up
 *
 * choice{ucx, not ok} from the higher node says that a probe failed there.  Invariants: a
 * side is up only when the other side is, or will be by the next message it gets on the link,
 * so that no other message ever comes before it is (the channel has no order with the link);
 * every state but UP and OFF has a deadline; what does not fit the state cuts the link.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* With which of them the two sides came to an agreement, or must. */
enum choice_path { CHOICE_UCX, CHOICE_TCP };

enum choice_state {
        CHOICE_OFF,       /* no link, or it is being cut */
        CHOICE_HELLO,     /* waits for the other side's hello */
        CHOICE_PROPOSED,  /* lower: UCX, waits until the other side expects the probes */
        CHOICE_WAITING,   /* higher: for what the lower one chooses */
        CHOICE_PROBING,   /* both */
        CHOICE_PROBED,    /* higher: its own probes have landed */
        CHOICE_ASKED,     /* lower: TCP, waits until the other side is ready */
        CHOICE_DIALLING,  /* lower */
        CHOICE_ACCEPTING, /* higher */
        CHOICE_ACCEPTED,  /* higher: the channel stands at its end */
        CHOICE_UP,
};

enum choice_event {
        CHOICE_HEARD_HELLO,
        CHOICE_HEARD_UCX,    /* choice{ucx, ok} */
        CHOICE_HEARD_FAILED, /* choice{ucx, not ok} */
        CHOICE_HEARD_TCP,    /* choice{tcp, ok} */
        CHOICE_LANDED,       /* all own probes have landed whole, and have been sent */
        CHOICE_FAILED,       /* the path could not be made, or broke, or a probe did not come */
        CHOICE_CHANNEL,      /* the bulk channel stands */
        CHOICE_LATE,         /* the state's deadline passed */
};

/* What to do, in this order. */
enum choice_action {
        CHOICE_DROP = 1 << 0,       /* close the UCX peer, if there is one */
        CHOICE_MAKE = 1 << 1,       /* make the UCX peer and expect the probes */
        CHOICE_PROBE = 1 << 2,      /* send the probes */
        CHOICE_SAY_UCX = 1 << 3,    /* choice{ucx, ok} */
        CHOICE_SAY_FAILED = 1 << 4, /* choice{ucx, not ok} */
        CHOICE_SAY_TCP = 1 << 5,    /* choice{tcp, ok} */
        CHOICE_DIAL = 1 << 6,       /* a bulk channel */
        CHOICE_GO_UP = 1 << 7,
        CHOICE_CUT = 1 << 8, /* the link */
};

struct choice {
        enum choice_state state;
        bool lower;    /* this node has the lower index */
        bool may_ucx;  /* both have UCX and it may reach; known with the hello */
        bool ucx_only; /* this node takes nothing else */
        bool landed, theirs_landed, channel, theirs_channel;
        enum choice_path path;
};

/* A link has come up. */
void choice_start(struct choice *choice, bool lower, bool ucx_only);
/* It is gone, or being cut. */
void choice_stop(struct choice *choice);
/* Returns choice_action bits. */
unsigned choice_step(struct choice *choice, enum choice_event event);
/* How long the state may last; 0: for ever. */
uint32_t choice_deadline_ms(const struct choice *choice);

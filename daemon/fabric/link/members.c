/*
 * members.c - see link.h.
 *
 * A member is down, or dialling, or has a link.  A link that is cut is gone only after its ended();
 * a newer channel of the same node waits for that.  `open` counts what must end before the members
 * are freed: the door, timers, links.
 */
#include "daemon/fabric/link/link.h"

#include "daemon/fabric/link/door.h"
#include "daemon/fabric/link/encrypted.h"
#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct members_options default_options = {
        .heartbeat = MEMBERS_HEARTBEAT_MS,
        .silence = MEMBERS_SILENCE_MS,
        .handshake = DOOR_HANDSHAKE_MS,
        .dial_first = 50,
        .dial_last = 500,
        .queue_max = (size_t)256 << 20,
};

struct member {
        struct members *members;
        uint32_t node;
        struct link *link;
        uint64_t process; /* the number of the process at the other end, if that end dialled */
        uint32_t speaks;  /* the version of messages on the last link */
        enum goodbye goodbye;
        struct channel *waiting; /* a newer connection, used once the link has ended */
        uv_timer_t redial;       /* for nodes that this node dials */
        uint32_t delay_ms;       /* before the next dial but one */
        uint64_t since_ms;
        struct link_stats past; /* bytes of links that ended; when last heard */
        char why[240];
        char claim[320]; /* what happened to a visitor that claimed its name without proof */
};

struct members {
        uv_loop_t *loop;
        const struct cluster *cluster;
        struct members_options options;
        struct members_events events;
        struct door *door;
        uint64_t process; /* a random number for this process */
        uint32_t open;
        bool closing;
        void (*closed)(void *arg);
        void *closed_arg;
        struct member members[ZERO_NODE_MAX];
};

static void members_less(struct members *members)
{
        assert(members->open > 0);
        if (--members->open > 0)
                return;
        assert(members->closing);
        void (*closed)(void *arg) = members->closed;
        void *arg = members->closed_arg;
        free(members);
        closed(arg);
}

static const char *member_name(const struct member *member)
{
        return member->members->cluster->nodes[member->node].name;
}

static bool member_is_up(const struct member *member)
{
        return member->link && !link_is_ending(member->link);
}

static struct member *member_of(struct members *members, uint32_t node)
{
        assert(node < members->cluster->n_nodes);
        return &members->members[node];
}

/* A pair of nodes has one link, which the lower node dials. */
static bool member_is_dialled(const struct member *member)
{
        return member->node > member->members->cluster->self;
}

/* Logs why a node is down, and again only when the reason changes. */
static void member_explain(struct member *member, const char *why)
{
        char text[sizeof member->why];
        snprintf(text, sizeof text, "%s", why);
        if (strcmp(text, member->why) == 0)
                return;
        memcpy(member->why, text, sizeof text);
        log_warning("no link with node %s: %s", member_name(member), text);
}

/* ---- links ---- */

static void member_start_link(struct member *member, struct channel *channel);
static void member_redial(struct member *member);

static void member_hear_goodbye(struct member *member, const Zero__Goodbye *m)
{
        member->goodbye = m->drained ? GOODBYE_DRAINED : GOODBYE_STOPPED;
        log_info("node %s is stopping in order%s", member_name(member),
                 m->drained ? ", drained" : "");
}

static void on_message(void *arg, const uint8_t *p, size_t n)
{
        struct member *member = arg;
        struct members *members = member->members;
        if (members->closing)
                return;
        Zero__LinkMessage *m = zero__link_message__unpack(NULL, n, p);
        if (!m) {
                link_cut(member->link, "malformed message");
                return;
        }
        if (m->body_case == ZERO__LINK_MESSAGE__BODY_GOODBYE)
                member_hear_goodbye(member, m->goodbye);
        else
                members->events.message(members->events.arg, member->node, m);
        zero__link_message__free_unpacked(m, NULL);
}

static void member_down(struct member *member, const char *why)
{
        struct members *members = member->members;
        if (member->goodbye == GOODBYE_NONE)
                log_warning("lost the link with node %s: %s", member_name(member), why);
        else
                log_info("node %s is gone after it said that it stops: %s", member_name(member),
                         why);
        snprintf(member->why, sizeof member->why, "%s", why);
        members->events.down(members->events.arg, member->node, why);
}

/* Resets the back-off if the link lasted long enough. */
static void member_forgive(struct member *member, uint64_t now)
{
        const struct members_options *options = &member->members->options;
        if (now - member->since_ms >= options->dial_last)
                member->delay_ms = options->dial_first;
        member->since_ms = now;
}

static void on_link_ended(void *arg, const struct link_stats *last, const char *why)
{
        struct member *member = arg;
        struct members *members = member->members;
        member->link = NULL;
        member->past.sent_bytes += last->sent_bytes;
        member->past.received_bytes += last->received_bytes;
        member->past.last_heard_ms = last->last_heard_ms;
        member_forgive(member, uv_now(members->loop));
        if (!members->closing)
                member_down(member, why);
        struct channel *next = STEAL(member->waiting);
        if (members->closing)
                channel_close(next);
        else if (next)
                member_start_link(member, next);
        else
                member_redial(member);
        members_less(members);
}

static void member_start_link(struct member *member, struct channel *channel)
{
        struct members *members = member->members;
        struct link_options options = { .heartbeat_ms = members->options.heartbeat,
                                        .silence_ms = members->options.silence,
                                        .message_max = LINK_MESSAGE_MAX,
                                        .queue_max = members->options.queue_max };
        struct link_events events = { .message = on_message,
                                      .ended = on_link_ended,
                                      .arg = member };
        uint64_t process = channel->token;
        uint32_t speaks = channel->speaks;
        int r = link_new(channel, &options, &events, &member->link);
        if (r < 0) {
                channel_close(channel);
                member_explain(member, uv_strerror(r));
                member_redial(member);
                return;
        }
        members->open++;
        member->since_ms = uv_now(members->loop);
        member->process = process;
        member->speaks = speaks;
        member->goodbye = GOODBYE_NONE;
        member->why[0] = member->claim[0] = '\0';
        log_info("node %s is linked, messages have version %u", member_name(member), speaks);
        members->events.up(members->events.arg, member->node);
}

/* The newcomer has proved who it is, so its node no longer uses the old link. */
static void member_take_link(struct member *member, struct channel *channel)
{
        if (!member->link) {
                member_start_link(member, channel);
                return;
        }
        channel_close(STEAL(member->waiting));
        member->waiting = channel;
        link_cut(member->link, "the same node has made a new link");
}

/* ---- dialling ---- */

static void on_dialled(void *arg, struct channel *channel, const char *why)
{
        struct member *member = arg;
        if (channel) {
                member_take_link(member, channel);
        } else if (!member->members->closing) {
                member_explain(member, why);
                member_redial(member);
        }
}

static void on_redial(uv_timer_t *timer)
{
        struct member *member = CONTAINER_OF(timer, struct member, redial);
        int r = door_dial(member->members->door, member->node, CHANNEL_LINK,
                          member->members->process, on_dialled, member);
        if (r < 0) {
                member_explain(member, uv_strerror(r));
                member_redial(member);
        }
}

/* Waits between half the delay and all of it, so that nodes do not dial in step. */
static void member_redial(struct member *member)
{
        uint32_t half = member->delay_ms / 2, last = member->members->options.dial_last;
        if (!member_is_dialled(member))
                return;
        uv_timer_start(&member->redial, on_redial, half + randombytes_uniform(half + 1), 0);
        member->delay_ms = member->delay_ms < last / 2 ? member->delay_ms * 2 : last;
}

/* ---- the door ---- */

static void on_incoming(void *arg, struct channel *channel)
{
        struct members *members = arg;
        if (channel->role == CHANNEL_LINK)
                member_take_link(member_of(members, channel->node), channel);
        else
                members->events.bulk(members->events.arg, channel);
}

/* The door has logged the refusal.  Anybody can claim a node's name, so this is only noted. */
static void on_refused(void *arg, uint32_t node, const char *from, const char *why)
{
        struct member *member = member_of(arg, node);
        snprintf(member->claim, sizeof member->claim,
                 "a connection from %s in its name was refused: %s", from, why);
}

/* A process may replace its own link.  Another process may replace it only after the link has
 * missed a heartbeat: otherwise two daemons with the same name would replace each other for ever.
 */
static bool on_admit(void *arg, uint32_t node, enum channel_role role, uint64_t token)
{
        const struct members *members = arg;
        const struct member *member = &members->members[node];
        struct link_stats stats;
        if (role != CHANNEL_LINK || !member_is_up(member) || token == member->process)
                return true;
        link_get_stats(member->link, &stats);
        return uv_now(members->loop) - stats.last_heard_ms >= 2 * members->options.heartbeat;
}

/* ---- life ---- */

static void members_init(struct members *members)
{
        for (uint32_t i = 0; i < members->cluster->n_nodes; i++) {
                struct member *member = &members->members[i];
                member->members = members;
                member->node = i;
                member->since_ms = uv_now(members->loop);
                member->delay_ms = members->options.dial_first;
                if (!member_is_dialled(member))
                        continue;
                uv_timer_init(members->loop, &member->redial);
                uv_timer_start(&member->redial, on_redial, 0, 0);
                members->open++;
        }
}

int members_new_with(uv_loop_t *loop, const struct cluster *cluster,
                     const struct members_options *options, const struct members_events *events,
                     struct members **ret, struct fault *fault)
{
        struct members *members = calloc(1, sizeof *members);
        if (!members)
                return fault_errno(fault, -ENOMEM, "linking with other nodes");
        members->loop = loop;
        members->cluster = cluster;
        members->options = *options;
        members->events = *events;
        randombytes_buf(&members->process, sizeof members->process);
        struct door_events door_events = {
                .incoming = on_incoming, .refused = on_refused, .admits = on_admit, .arg = members
        };
        int r = door_open(loop, cluster, &door_events, &members->door, fault);
        if (r != 0) {
                free(members);
                return r;
        }
        door_set_deadline(members->door, options->handshake);
        members->open = 1;
        members_init(members);
        *ret = members;
        return 0;
}

int members_new(uv_loop_t *loop, const struct cluster *cluster, const struct members_events *events,
                struct members **ret, struct fault *fault)
{
        return members_new_with(loop, cluster, &default_options, events, ret, fault);
}

static void on_redial_closed(uv_handle_t *handle)
{
        members_less(CONTAINER_OF(handle, struct member, redial)->members);
}

static void on_door_closed(void *arg)
{
        members_less(arg);
}

void members_close(struct members *members, void (*closed)(void *arg), void *arg)
{
        assert(!members->closing);
        members->closing = true;
        members->closed = closed;
        members->closed_arg = arg;
        door_close(members->door, on_door_closed, members);
        for (uint32_t i = 0; i < members->cluster->n_nodes; i++) {
                struct member *member = &members->members[i];
                if (member->link)
                        link_cut(member->link, "the node is going down");
                if (member_is_dialled(member))
                        uv_close((uv_handle_t *)&member->redial, on_redial_closed);
        }
}

/* ---- use ---- */

int members_send(struct members *members, uint32_t node, const Zero__LinkMessage *m)
{
        struct member *member = member_of(members, node);
        uint8_t few[1024];
        if (!member_is_up(member))
                return -ENOTCONN;
        size_t n = zero__link_message__get_packed_size(m);
        if (n > LINK_MESSAGE_MAX)
                return -EMSGSIZE;
        if (n <= sizeof few)
                return link_send(member->link, few, zero__link_message__pack(m, few));
        CLEANUP(cleanup_free) uint8_t *many = malloc(n);
        if (!many)
                return -ENOMEM;
        return link_send(member->link, many, zero__link_message__pack(m, many));
}

void members_cut(struct members *members, uint32_t node, const char *why)
{
        struct member *member = member_of(members, node);
        if (member->link)
                link_cut(member->link, why);
}

void members_info(const struct members *members, uint32_t node, struct member_info *ret)
{
        assert(node < members->cluster->n_nodes);
        const struct member *member = &members->members[node];
        struct member_info info = { .up = member_is_up(member),
                                    .goodbye = member->goodbye,
                                    .since_ms = member->since_ms,
                                    .speaks = member->speaks,
                                    .last_heard_ms = member->past.last_heard_ms,
                                    .sent_bytes = member->past.sent_bytes,
                                    .received_bytes = member->past.received_bytes };
        if (member->link) {
                struct link_stats now;
                link_get_stats(member->link, &now);
                info.last_heard_ms = now.last_heard_ms;
                info.sent_bytes += now.sent_bytes;
                info.received_bytes += now.received_bytes;
                info.queued_bytes = now.queued_bytes;
                info.round_trip_ns = now.round_trip_ns;
        }
        snprintf(info.why, sizeof info.why, "%s%s%s%s",
                 member->goodbye && !member->link ? "said that it stops; " : "", member->why,
                 member->why[0] && member->claim[0] ? "; " : "", member->link ? "" : member->claim);
        *ret = info;
}

int members_dial_bulk(struct members *members, uint32_t node, uint64_t token,
                      void (*done)(void *arg, struct channel *channel, const char *why), void *arg)
{
        return door_dial(members->door, node, CHANNEL_BULK, token, done, arg);
}

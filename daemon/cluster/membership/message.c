/* Converts paxos messages for the wire, and the paxos record for the disk. */
#include "daemon/cluster/membership/membership.h"

#include <errno.h>
#include <string.h>

void membership_send(struct engine *x, uint32_t node, const struct paxos_message *m,
                     const struct fault *refusal)
{
        Zero__LinkMessage message = ZERO__LINK_MESSAGE__INIT;
        Zero__Paxos out = ZERO__PAXOS__INIT;
        Zero__Placement chosen, value;

        out.kind = (uint32_t)m->kind;
        out.ballot = m->ballot;
        out.n_dead = node_set_words(&m->dead, &out.dead);
        out.voter = m->record.voter;
        out.promised = m->record.promised;
        out.accepted = m->record.accepted;
        placement_to_message(&m->record.chosen, &chosen);
        out.chosen = &chosen;
        if (m->record.accepted) {
                placement_to_message(&m->record.value, &value);
                out.value = &value;
        }
        message.job = (char *)"";
        message.body_case = ZERO__LINK_MESSAGE__BODY_VOTE;
        message.vote = &out;
        if (refusal) {
                message.status = (uint32_t)refusal->status;
                message.text = (char *)refusal->text;
        }
        fabric_send(x->fabric, node, &message);
}

int membership_receive(const struct engine *x, uint32_t node, const Zero__Paxos *from,
                       struct paxos_message *ret)
{
        struct paxos_message m = { .kind = from->kind,
                                   .ballot = from->ballot,
                                   .record = { .voter = from->voter,
                                               .promised = from->promised,
                                               .accepted = from->accepted } };
        bool asks = m.kind == PAXOS_PREPARE || m.kind == PAXOS_ACCEPT;

        if (!node_set_from_words(from->dead, from->n_dead, &m.dead) || from->kind >= PAXOS_KINDS ||
            m.ballot > PAXOS_BALLOT_MAX ||
            !placement_from_message(from->chosen, x->cluster->n_nodes, false, &m.record.chosen) ||
            (m.record.accepted && !from->value) ||
            (from->value &&
             !placement_from_message(from->value, x->cluster->n_nodes, false, &m.record.value)) ||
            !paxos_record_sane(&m.record, x->cluster->n_nodes))
                return -EPROTO;
        if (asks && (paxos_ballot_node(m.ballot) != node || node_set_has(m.dead, x->cluster->self)))
                return -EPROTO;
        *ret = m;
        return 0;
}

/* ---- the disk ---- */

_Static_assert((int)PLACEMENT_BEFORE == (int)BALLOTS_BEFORE, "as the file has it");

static void placement_to_ballots(const struct placement *p, struct ballots_placement *ret)
{
        ret->epoch = p->epoch;
        ret->n_owners = p->n_owners;
        memcpy(ret->node, p->node, p->n_owners * sizeof *p->node);
        for (size_t i = 0; i < BALLOTS_BEFORE; i++)
                ret->before[i] = node_set_to_word(p->before[i]);
        ret->older = node_set_to_word(p->older);
        ret->dead = node_set_to_word(p->dead);
}

static void placement_from_ballots(const struct engine *x, const struct ballots_placement *v,
                                   struct placement *ret)
{
        placement_init(ret, v->epoch, v->node, v->n_owners, x->cluster->mirror);
        for (size_t i = 0; i < BALLOTS_BEFORE; i++)
                ret->before[i] = node_set_from_word(v->before[i]);
        ret->older = node_set_from_word(v->older);
        ret->dead = node_set_from_word(v->dead);
}

void record_to_ballots(const struct paxos_record *r, struct ballots_record *ret)
{
        *ret = (struct ballots_record){ .voter = r->voter,
                                        .promised = r->promised,
                                        .accepted = r->accepted };
        placement_to_ballots(&r->chosen, &ret->chosen);
        if (r->accepted)
                placement_to_ballots(&r->value, &ret->value);
}

bool record_from_ballots(const struct engine *x, const struct ballots_record *b,
                         struct paxos_record *ret)
{
        *ret = (struct paxos_record){ .voter = b->voter,
                                      .promised = b->promised,
                                      .accepted = b->accepted };
        placement_from_ballots(x, &b->chosen, &ret->chosen);
        if (b->accepted)
                placement_from_ballots(x, &b->value, &ret->value);
        return paxos_record_sane(ret, x->cluster->n_nodes);
}

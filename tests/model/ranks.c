/* Trainers, and their daemon's part of them: attach.c, rank.c, reduce.c, and libzero. */
#include "world.h"

#include <string.h>

#include "proto/zero_types.h"

/* ---- what trainers hear ---- */

static struct node *node_of(struct world *w, uint32_t p)
{
        return &w->nodes[w->procs[p].node];
}

/* The job's version and attempt, in a reply. */
static void proc_hears(struct world *w, uint32_t p)
{
        struct proc *proc = &w->procs[p];
        const struct node *n = node_of(w, p);

        proc->version = n->version;
        proc->attempt = n->attempt;
        proc->scale = n->scale;
        proc->micro_batch = 0;
        proc->in_flight = 0;
        proc->normed = 0;
        proc->state = PROC_RUNS;
        truth_stands(w, p, n->version);
}

static void attach_end(struct world *w, uint32_t p)
{
        struct node *n = node_of(w, p);
        struct proc *proc = &w->procs[p];

        if (!(n->ranks[p] & RANK_ATTACHING))
                return;
        n->ranks[p] = (u8)((n->ranks[p] & ~RANK_ATTACHING) | RANK_ADMITTED);
        if (proc->in_flight && proc->in_flight == n->last_attempt)
                truth_told(w, p, n->last_attempt, n->last_version, n->last_decision);
        else
                truth_aborted(w, p, proc->in_flight, n->version);
        proc_hears(w, p);
        proc->micro_batch = n->pushed[proc->rank];
}

void ranks_admit(struct world *w, uint32_t node)
{
        struct node *n = &w->nodes[node];

        for (uint32_t r = 0; r < bounds.n_ranks; r++)
                if (n->session[r] && !(n->stepped >> r & 1))
                        attach_end(w, n->session[r] - 1u);
}

/* Whether the process waits for the others. */
static bool waits(const struct proc *proc)
{
        return proc->state == PROC_NORMS || proc->state == PROC_STEPS;
}

void ranks_tell_norm(struct world *w, uint32_t node)
{
        for (uint32_t r = 0; r < bounds.n_ranks; r++) {
                uint32_t p = w->nodes[node].session[r] - 1u;

                if (!w->nodes[node].session[r] || w->procs[p].state != PROC_NORMS)
                        continue;
                w->procs[p].state = PROC_RUNS;
                w->procs[p].normed = 1;
        }
}

void ranks_answer(struct world *w, uint32_t node, bool decided)
{
        struct node *n = &w->nodes[node];

        for (uint32_t r = 0; r < bounds.n_ranks; r++) {
                uint32_t p = n->session[r] - 1u;

                if (!n->session[r] || !waits(&w->procs[p]))
                        continue;
                REQUIRE(!decided || w->procs[p].state == PROC_STEPS,
                        "process %u waits for the norm of a step that is decided", p);
                REQUIRE(!decided || n->node_of_rank[r] == node,
                        "process %u is told the result of a step that rank %u took on another node",
                        p, r);
                if (decided)
                        truth_told(w, p, w->procs[p].attempt, n->last_version, n->last_decision);
                else
                        truth_aborted(w, p, w->procs[p].attempt, n->version);
                proc_hears(w, p);
        }
}

/* The rules never refuse a call here: a refusal that reaches a trainer is a fault. */
void ranks_refuse_step(struct world *w, uint32_t node, int status)
{
        struct node *n = &w->nodes[node];

        for (uint32_t r = 0; r < bounds.n_ranks; r++)
                if (n->session[r] && waits(&w->procs[n->session[r] - 1]))
                        violate("the call of rank %u is refused with status %d", r, status);
        n->stepped = 0;
        ranks_admit(w, node);
}

/* ---- attaching ---- */

static void rank_join(struct world *w, uint32_t p)
{
        const struct proc *proc = &w->procs[p];

        if (send(w, proc->node, COORDINATOR,
                 (struct message){ .type = JOIN, .rank = proc->rank, .session = session_of(w, p) }))
                node_of(w, p)->ranks[p] |= RANK_CALLING;
}

void proc_attach(struct world *w, uint32_t p)
{
        struct node *n = node_of(w, p);

        n->ranks[p] = RANK_EXISTS | RANK_ATTACHING;
        w->procs[p].state = PROC_ATTACHING;
        rank_join(w, p);
}

void ranks_up(struct world *w, uint32_t node)
{
        struct node *n = &w->nodes[node];

        for (uint32_t p = 0; p < PROCS; p++)
                if (w->procs[p].node == node && n->ranks[p] && !(n->ranks[p] & RANK_CALLING))
                        rank_join(w, p);
}

/* Calls end with the link. */
void ranks_down(struct world *w, uint32_t node)
{
        for (uint32_t p = 0; p < PROCS; p++)
                w->nodes[node].ranks[p] &= (u8)~RANK_CALLING;
}

static void rank_part(struct world *w, uint32_t p)
{
        send(w, w->procs[p].node, COORDINATOR,
             (struct message){
                     .type = PART, .rank = w->procs[p].rank, .session = session_of(w, p) });
}

/* The session has ended. */
static void rank_leave(struct world *w, uint32_t p)
{
        struct node *n = node_of(w, p);
        u8 *rank = &n->ranks[p];

        if (*rank & RANK_IN)
                n->session[w->procs[p].rank] = 0;
        if (*rank & (RANK_IN | RANK_CALLING))
                rank_part(w, p);
        *rank = 0;
}

static void rank_gone(struct world *w, uint32_t p)
{
        REQUIRE(w->procs[p].zombie, "process %u, the newest of its rank, is fenced", p);
        rank_leave(w, p);
        w->procs[p].state = PROC_FENCED;
}

void rank_fence(struct world *w, uint32_t node, const struct message *m)
{
        uint32_t p = session_proc(m->session);

        if (w->nodes[node].session[m->rank] == p + 1 && session_of(w, p) == m->session)
                rank_gone(w, p);
}

/* The job has started with this rank in it. */
static void rank_enter(struct world *w, uint32_t p)
{
        struct node *n = node_of(w, p);
        u8 rank = w->procs[p].rank;

        if (!n->started || n->session[rank]) {
                violate("process %u cannot enter: started %u, session %u", p, n->started,
                        n->session[rank]);
                return;
        }
        n->ranks[p] |= RANK_IN;
        n->session[rank] = (u8)(p + 1);
        if (!(n->stepped >> rank & 1))
                attach_end(w, p);
}

void rank_joined(struct world *w, uint32_t node, const struct message *m)
{
        uint32_t p = session_proc(m->session);
        u8 *rank = &w->nodes[node].ranks[p];

        if (session_of(w, p) != m->session || !(*rank & RANK_CALLING))
                return; /* that session has ended */
        *rank &= (u8)~RANK_CALLING;
        if (m->status)
                rank_gone(w, p);
        else if (!(*rank & RANK_IN))
                rank_enter(w, p);
}

/* ---- a trainer comes and goes ---- */

static void proc_forget(struct proc *proc)
{
        proc->version = proc->attempt = proc->scale = proc->micro_batch = proc->in_flight = 0;
        proc->normed = 0;
}

/* Its library connects again by itself, and remembers the step that was in flight. */
void proc_lose_daemon(struct world *w, uint32_t p)
{
        struct proc *proc = &w->procs[p];
        u8 in_flight = proc->state == PROC_STEPS ? proc->attempt : proc->in_flight;

        if (proc->state == PROC_FENCED)
                return;
        proc_forget(proc);
        proc->in_flight = in_flight;
        proc->state = PROC_AWAY;
}

void ranks_displace(struct world *w, uint32_t node)
{
        struct node *n = &w->nodes[node];

        for (uint32_t r = 0; r < bounds.n_ranks; r++) {
                uint32_t p = n->session[r] - 1u;

                if (!n->session[r] || n->node_of_rank[r] == node)
                        continue;
                rank_leave(w, p);
                proc_lose_daemon(w, p);
                w->procs[p].displaced++;
        }
}

void proc_kill(struct world *w, uint32_t p)
{
        struct proc *proc = &w->procs[p];

        if (node_of(w, p)->ranks[p])
                rank_leave(w, p);
        proc_forget(proc);
        proc->state = proc->zombie ? PROC_FENCED : PROC_AWAY;
        proc->incarnation++;
        proc->displaced = 0;
}

/* Its successor comes up on another node, while it goes on where it is. */
void proc_move(struct world *w, uint32_t p, uint32_t node)
{
        struct proc *proc = &w->procs[p];

        w->procs[RANKS] = (struct proc){ .state = PROC_AWAY,
                                         .rank = proc->rank,
                                         .node = (u8)node,
                                         .incarnation = (u8)(proc->incarnation + 1) };
        proc->zombie = 1;
}

/* ---- a step ---- */

/* Where a node reads an owner's shards: its own copy, or the owner's. */
static uint32_t nearest(uint32_t owner, uint32_t node)
{
        for (uint32_t c = 1; c < placement.copies; c++)
                if (holder_node(&placement, holder_of(&placement, owner, c)) == node)
                        return holder_of(&placement, owner, c);
        return holder_of(&placement, owner, 0);
}

/* A fetch is answered when every owner has the version. */
static bool fetched(const struct world *w, uint32_t p)
{
        const struct proc *proc = &w->procs[p];

        for (uint32_t o = 0; o < placement.n_owners; o++) {
                uint32_t holder = nearest(o, proc->node), at = holder_node(&placement, holder);
                const struct record *r =
                        &w->nodes[at].replicas[holder_copy(&placement, holder)].record;

                if (at != proc->node && (!is_up(w, at, proc->node) || !is_up(w, proc->node, at) ||
                                         !(w->connected[at] >> proc->node & 1)))
                        return false;
                if (!w->nodes[at].alive || !r->attempt || r->version != proc->version)
                        return false;
        }
        return true;
}

bool proc_can_push(const struct world *w, uint32_t p)
{
        const struct proc *proc = &w->procs[p];
        const struct node *n = &w->nodes[proc->node];

        if (proc->state != PROC_RUNS || proc->version >= bounds.steps ||
            proc->micro_batch >= bounds.micro_batches)
                return false;
        return proc->attempt != n->attempt || proc->micro_batch ||
               n->gathered == proc->version + 1 || fetched(w, p);
}

/* Offers to every owner what all local ranks have pushed. */
static void reduce_advance(struct world *w, uint32_t node)
{
        struct node *n = &w->nodes[node];

        while (n->reduced < bounds.micro_batches) {
                struct message m = { .type = OFFER,
                                     .attempt = n->attempt,
                                     .micro_batch = n->reduced,
                                     .last = n->reduced + 1 == bounds.micro_batches };
                bool local = false;

                for (uint32_t r = 0; r < bounds.n_ranks; r++) {
                        if (n->node_of_rank[r] != node)
                                continue;
                        local = true;
                        if (n->pushed[r] <= n->reduced)
                                return;
                        m.place[r] = n->contributed[r][n->reduced];
                }
                if (!local)
                        return;
                n->reduced++;
                for (uint32_t o = 0; o < bounds.n_nodes; o++) {
                        if (is_owner(o) && o == node)
                                accumulator_offer(w, node, node, &m);
                        else if (is_owner(o))
                                send(w, node, o, m);
                }
        }
}

void proc_push(struct world *w, uint32_t p)
{
        struct proc *proc = &w->procs[p];
        struct node *n = node_of(w, p);
        u8 rank = proc->rank;

        if (proc->attempt != n->attempt) {
                proc_hears(w, p); /* ZERO_EABORTED */
                return;
        }
        REQUIRE(n->session[rank] == p + 1, "a session that is none any more pushes");
        REQUIRE(proc->version == n->version, "a gradient of version %u is pushed at version %u",
                proc->version, n->version);
        REQUIRE(!(n->closed >> rank & 1) && proc->micro_batch == n->pushed[rank],
                "a push of rank %u is out of order", rank);
        n->gathered = (u8)(proc->version + 1);
        n->contributed[rank][proc->micro_batch++] = (u8)(p << 4 | proc->incarnation);
        n->pushed[rank]++;
        reduce_advance(w, proc->node);
}

/* close_report() and ready_send(). */
static void ready_send(struct world *w, uint32_t node, u8 rank, u8 scale, bool norm)
{
        struct node *n = &w->nodes[node];

        for (uint32_t r = 0; r < bounds.n_ranks; r++) {
                bool closes = norm ? n->session[r] &&
                                             w->procs[n->session[r] - 1].state == PROC_NORMS
                                   : n->stepped >> r & 1;

                if (n->node_of_rank[r] == node && !closes)
                        return;
        }
        send(w, node, COORDINATOR,
             (struct message){ .type = READY,
                               .attempt = n->attempt,
                               .rank = rank,
                               .scale = scale,
                               .flag = norm });
}

void proc_step(struct world *w, uint32_t p)
{
        struct proc *proc = &w->procs[p];
        struct node *n = node_of(w, p);
        bool norm = bounds.norm && !proc->normed;

        if (!norm && proc->attempt == n->last_attempt) {
                truth_told(w, p, n->last_attempt, n->last_version, n->last_decision);
                proc_hears(w, p);
                return;
        }
        if (proc->attempt != n->attempt) {
                proc_hears(w, p);
                return;
        }
        proc->state = norm ? PROC_NORMS : PROC_STEPS;
        n->stepped |= (u8)(!norm << proc->rank);
        n->closed |= (u8)(1 << proc->rank);
        ready_send(w, proc->node, proc->rank, proc->scale, norm);
}

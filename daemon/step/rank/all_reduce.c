/*
 * zero_all_reduce(): a few numbers of each rank go to the coordinator, which tells all nodes the
 * result.
 *
 * Rule: a node keeps the last result.  A rank whose call ended by its deadline may call again, and
 * finds the result there, or waits on.
 */
#include "daemon/step/rank/local.h"

#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

/* Numbers that the coordinator has not answered yet. */
struct given {
        struct job *job;
        uint32_t rank;
        uint64_t session, call; /* who waits for it: rank.session, rank.n_closing */
};

static void numbers_answered(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        struct given *g = arg;
        struct rank *rank = g->rank < g->job->world_size ? g->job->ranks[g->rank].session : NULL;

        /* a coordinator that was lost begins a new attempt when it is back */
        if (status != ZERO_OK && status != ZERO_EPEER && !g->job->dead && rank && rank->closing &&
            rank->session == g->session && rank->n_closing == g->call)
                request_end(STEAL(rank->closing), status, "%s", text);
        job_unref(g->job);
        free(g);
}

static int numbers_send(struct rank *rank, const Zero__AllReduce *of, struct request *r,
                        struct fault *fault)
{
        Zero__LinkMessage m = job_message(rank->job->name);
        Zero__Numbers numbers = ZERO__NUMBERS__INIT;
        struct given *g = malloc(sizeof *g);

        if (!g)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        numbers.rank = rank->rank;
        numbers.of = (Zero__AllReduce *)of;
        m.body_case = ZERO__LINK_MESSAGE__BODY_NUMBERS;
        m.numbers = &numbers;
        job_ref(rank->job);
        rank_wait(rank, r, WAITS_REDUCED);
        *g = (struct given){ rank->job, rank->rank, rank->session, rank->n_closing };
        call_send(rank->x, rank->job->coordinator, &m, CALL_MS, numbers_answered, g);
        return 0;
}

static void reduced_answer(struct job *job, struct request *r)
{
        r->result.reduced.values = job->reduced.values;
        r->result.reduced.n_values = job->reduced.n;
        request_end(r, ZERO_OK, NULL);
}

int rank_all_reduce(struct rank *rank, const Zero__Request *request, struct request *r,
                    struct fault *fault)
{
        const Zero__AllReduce *m = request->all_reduce;
        struct job *job = rank->job;
        struct numbers given = numbers_of(m);
        uint32_t done = job->reduced.attempt == job->attempt ? job->reduced.done : 0;
        uint64_t next = (uint64_t)m->number + 1;
        int status = close_check(rank, m->attempt, NULL, fault);

        if (status == ZERO_ELOSTRANK && next == done)
                status = 0; /* it was over before the rank was lost, and others have the result */
        if (!status)
                status = numbers_check(&given, fault);
        if (!status && next < done)
                status = fault_set(fault, ZERO_EORDER, "reduction %u is over: the next is %u",
                                   m->number, done);
        if (!status && next == done) {
                reduced_answer(job, r);
                return 0;
        }
        if (!status)
                status = others_check(rank, WAITS_REDUCED, fault);
        return status ? status : numbers_send(rank, m, r, fault);
}

void reduced_message(struct job *job, const Zero__Reduced *m)
{
        if (m->attempt != job->attempt || m->n_values > ZERO_VALUES_MAX)
                return;
        job->reduced.attempt = m->attempt;
        job->reduced.done = m->number + 1;
        job->reduced.n = (uint32_t)m->n_values;
        if (m->n_values)
                memcpy(job->reduced.values, m->values, m->n_values * sizeof *m->values);
        for (uint32_t i = 0; i < job->world_size; i++) {
                struct rank *rank = job->ranks[i].session;

                if (!rank || !rank->closing || rank->waits != WAITS_REDUCED)
                        continue;
                rank->active_ms = engine_now(job->x);
                reduced_answer(job, STEAL(rank->closing));
        }
}

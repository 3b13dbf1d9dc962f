/*
 * Payloads that this node asks for: it makes room, then sends the request.  The payload comes on
 * the bulk path, or a refusal on the link.  Where the path cannot bring it to its place, it lands
 * in host memory, and an offload thread copies it.
 */
#include "daemon/job/transfer/staging.h"

#include <errno.h>

#include "daemon/job/core/progress.h"
#include "proto/cleanup.h"

static void ask_end(struct ask *ask, int status)
{
        static const enum wait_for waits[TRAFFIC_KINDS] = { [TRAFFIC_GATHER] = WAIT_gather,
                                                            [TRAFFIC_REDUCE] = WAIT_reduce,
                                                            [TRAFFIC_STASH] = WAIT_stash_parts,
                                                            [TRAFFIC_STATE] = WAIT_state };

        if (status == 0)
                job_waited(ask->job, waits[ask->kind], ask->node, ask->group, ask->begun_ns);
        transit_free(STEAL(ask->transit));
        ask->done(ask, status);
}

static void ask_copied(struct offload_task *task)
{
        ask_end(CONTAINER_OF(task, struct ask, copy.task), 0);
}

static void ask_landed(void *arg, int status)
{
        struct ask *ask = arg;

        list_remove(&ask->link);
        if (status || !ask->transit) {
                ask_end(ask, status);
                return;
        }
        job_copy(ask->job, &ask->copy, ask->p, ask->transit, ask->n, ask_copied);
}

int ask_announced(struct ask *ask, struct job *job, uint32_t node, enum traffic kind,
                  uint64_t transfer, void *p, size_t n)
{
        struct engine *x = job->x;
        int r;

        if (!node_set_has(x->up, node))
                return -ENOTCONN;
        ask->transit = NULL;
        if (!fabric_takes(x->fabric, node, place_of(p), n) && !(ask->transit = transit_new(n)))
                return -ENOMEM;
        ask->x = x;
        ask->job = job;
        ask->node = node;
        ask->transfer = transfer;
        ask->begun_ns = uv_hrtime();
        ask->kind = kind;
        ask->group = NO_GROUP;
        ask->p = p;
        ask->n = n;
        ask->status = 0;
        ask->forgotten = false;
        ask->refused = NULL;
        r = fabric_expect(x->fabric, node, transfer, kind, ask->transit ? ask->transit : p, n,
                          ask_landed, ask);
        if (r == 0)
                list_insert(&x->transfer->asks, &ask->link);
        else
                transit_free(STEAL(ask->transit));
        return r;
}

void ask_forget(struct ask *ask)
{
        if (!ask->forgotten && !list_empty(&ask->link)) /* otherwise the payload has come */
                fabric_forget(ask->x->fabric, ask->node, ask->transfer);
        ask->forgotten = true;
}

int ask_send(struct ask *ask, struct job *job, uint32_t node, enum traffic kind, Zero__Pull *pull,
             void *p, size_t n)
{
        struct engine *x = job->x;
        Zero__LinkMessage m = job_message(job->name);
        int r = ask_announced(ask, job, node, kind, fabric_transfer(x->fabric, node), p, n);

        if (r)
                return r;
        pull->transfer = ask->transfer;
        if (kind == TRAFFIC_GATHER || kind == TRAFFIC_REDUCE)
                ask->group = pull->group;
        m.body_case = ZERO__LINK_MESSAGE__BODY_PULL;
        m.pull = pull;
        if (fabric_send(x->fabric, node, &m))
                ask_forget(ask);
        return 0;
}

void asks_forget(struct job *job, int status, const char *text)
{
        list_for_each (&job->x->transfer->asks, item) {
                struct ask *ask = (struct ask *)item; /* link is its first member */

                if (ask->job == job)
                        ask_forget(ask);
        }
}

void ask_refused_message(struct engine *x, uint32_t node, const Zero__Refuse *m)
{
        list_for_each (&x->transfer->asks, item) {
                struct ask *ask = (struct ask *)item; /* link is its first member */

                if (ask->node != node || ask->transfer != m->transfer)
                        continue;
                ask->status = m->status ? (int)m->status : ZERO_EPROTO;
                if (ask->refused)
                        ask->refused(ask, m);
                ask_forget(ask);
                return;
        }
        if (m->transfer &
            BULK_ANNOUNCED) /* its sender withdraws it, and this node has not read it yet */
                fabric_forget(x->fabric, node, m->transfer);
}

static void refusal_send(struct job *job, uint32_t node, Zero__Refuse *refuse)
{
        Zero__LinkMessage m = job_message(job->name);

        m.body_case = ZERO__LINK_MESSAGE__BODY_REFUSE;
        m.refuse = refuse;
        fabric_send(job->x->fabric, node, &m);
}

void ask_refuse(struct job *job, uint32_t node, uint64_t transfer, int status, const char *text)
{
        Zero__Refuse refuse = ZERO__REFUSE__INIT;

        refuse.transfer = transfer;
        refuse.status = (uint32_t)status;
        refuse.text = (char *)text;
        refusal_send(job, node, &refuse);
}

void ask_offer_deltas(struct job *job, uint32_t node, uint64_t transfer, uint64_t *bytes,
                      uint32_t n)
{
        Zero__Refuse refuse = ZERO__REFUSE__INIT;

        refuse.transfer = transfer;
        refuse.status = ZERO_EABORTED;
        refuse.text = (char *)"there are deltas";
        refuse.n_delta_bytes = n;
        refuse.delta_bytes = bytes;
        refusal_send(job, node, &refuse);
}

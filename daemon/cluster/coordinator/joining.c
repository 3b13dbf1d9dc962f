/* Ranks join.  The job itself is checked here; rank slots belong to the coordinator. */
#include "daemon/cluster/checkpoint/checkpoint.h"
#include "daemon/cluster/coordinator/coordinator.h"

#include <stdlib.h>

#include "proto/cleanup.h"

static int layouts_agree(const struct coordinated *c, uint32_t rank, const layout *l,
                         struct fault *fault)
{
        const struct list *joins = &c->state.joins;
        char text[300];

        if (layout_equal(l, c->layout, text, sizeof text))
                return 0;
        if (!c->state.step.started && !list_empty(joins))
                return fault_set(fault, ZERO_ELAYOUT,
                                 "the layout of rank %u differs from that of rank %u, which came "
                                 "to job '%s' before: %s",
                                 rank, CONTAINER_OF(joins->next, struct join, link)->rank, c->name,
                                 text);
        return fault_set(fault, ZERO_ELAYOUT,
                         "the layout of rank %u differs from job '%s' (zeroctl drop ends it): %s",
                         rank, c->name, text);
}

/* A job takes only ranks that mean the same job. */
static int job_check(const struct coordinated *c, const Zero__Join *join, const layout *l,
                     struct fault *fault)
{
        if (c->uid != join->uid && join->uid != 0)
                return fault_set(fault, ZERO_EPERM, "job '%s' belongs to user %u", c->name, c->uid);
        if (c->reduce_dtype != join->reduce_dtype)
                return fault_set(fault, ZERO_ECONFLICT,
                                 "the rank has reduce_dtype %s, but others have %s in job '%s'",
                                 dtype_name(join->reduce_dtype), dtype_name(c->reduce_dtype),
                                 c->name);
        return layouts_agree(c, join->rank, l, fault);
}

/* *ret is set even if the layouts differ. */
static int job_of_join(struct engine *x, const char *name, const Zero__Join *join,
                       struct coordinated **ret, struct fault *fault)
{
        layout *l = NULL;
        int r;

        /* the restore would replace the job, or the job that this join creates */
        if (restore_runs(x, name))
                return fault_set(fault, ZERO_EBUSY,
                                 "a restore of job '%s' is in progress: attach when it is done",
                                 name);
        r = optimizer_layout(join->layout, &l, fault);
        if (r)
                return r;
        *ret = coordinated_find(x, name);
        r = *ret ? job_check(*ret, join, l, fault) : layouts_admit(x, join->uid, l, fault);
        if (*ret || r) {
                layout_free(l);
        } else {
                *ret = coordinated_new(x, name, join->uid, join->world_size, join->reduce_dtype, l,
                                       0);
        }
        if (!r && (!*ret || coordinated_reserve(*ret, join->world_size)))
                r = fault_set(fault, ZERO_ENOMEM, "out of memory");
        return r;
}

static bool join_is_sane(const Zero__LinkMessage *m)
{
        const Zero__Join *join = m->join;

        return job_name_valid(m->job) && join->world_size >= 1 &&
               join->world_size <= ZERO_RANK_MAX && join->layout && dtype_valid(join->reduce_dtype);
}

void joining_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        const Zero__Join *join = m->join;
        struct coordinated *c;
        struct fault fault;
        struct join *j;
        bool clashes;
        int r;

        if (!join_is_sane(m)) {
                answer(x, node, m, ZERO_EPROTO, "the request to join the job is malformed");
                return;
        }
        c = coordinated_find(x, m->job);
        if (c && join->rank == RANK_ABSENT) /* the node has memory for its state now */
                coordinated_event(
                        c, (struct coordinator_event){ .kind = COORDINATOR_NODE_UP, .node = node });
        r = job_of_join(x, m->job, join, &c, &fault);
        clashes = r == ZERO_ELAYOUT && c && join->rank != RANK_ABSENT && !join->resume;
        j = r && !clashes ? NULL : calloc(1, sizeof *j);
        if (!j) {
                answer(x, node, m, r ? r : ZERO_ENOMEM, r ? fault.text : "out of memory");
                return;
        }
        *j = (struct join){ .node = node,
                            .rank = join->rank,
                            .world_size = join->world_size,
                            .incarnation = join->incarnation,
                            .session = join->session,
                            .pid = join->pid,
                            .resume = join->resume,
                            .fail_on_lost = join->fail_on_lost,
                            .call = m->call };
        if (clashes)
                j->fault = fault;
        coordinated_event(c, (struct coordinator_event){ .kind = clashes ? COORDINATOR_CLASH
                                                                         : COORDINATOR_JOIN,
                                                         .join = j });
}

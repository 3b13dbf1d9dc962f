/* Ranks join.  The job itself is checked here; rank slots belong to the coordinator. */
#include "daemon/cluster/checkpoint/checkpoint.h"
#include "daemon/cluster/coordinator/coordinator.h"

#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

/* A job takes only ranks that mean the same job, and root's. */
static int job_check(const struct coordinated *c, uint32_t rank, const struct job_spec *spec,
                     struct fault *fault)
{
        const struct list *joins = &c->state.joins;
        struct job_spec asked = *spec;
        char text[300], wants[32], has[32];
        int r;

        asked.uid = asked.uid ? asked.uid : c->uid;
        r = job_spec_compare(&asked, &c->spec, fault);
        if (c->state.step.started || list_empty(joins))
                return r;
        if (r == ZERO_ECONFLICT && job_spec_differs(&asked, &c->spec, wants, has))
                return fault_set(fault, r, "rank %u has %s, but others have %s in job '%s'", rank,
                                 wants, strchr(has, ' ') + 1, c->name);
        if (r != ZERO_ELAYOUT)
                return r;
        layout_equal(spec->layout, c->layout, text, sizeof text);
        return fault_set(fault, ZERO_ELAYOUT,
                         "the layout of rank %u differs from that of rank %u, which came to job "
                         "'%s' before: %s",
                         rank, CONTAINER_OF(joins->next, struct join, link)->rank, c->name, text);
}

/* *ret is set even if the layouts differ. */
static int job_of_join(struct engine *x, struct job_spec *spec, const Zero__Join *join,
                       struct coordinated **ret, struct fault *fault)
{
        int r;

        /* the restore would replace the job, or the job that this join creates */
        if (restore_runs(x, spec->name))
                return fault_set(fault, ZERO_EBUSY,
                                 "a restore of job '%s' is in progress: attach when it is done",
                                 spec->name);
        r = optimizer_layout(join->layout, &spec->layout, fault);
        if (r)
                return r;
        *ret = coordinated_find(x, spec->name);
        r = *ret ? job_check(*ret, join->rank, spec, fault)
                 : layouts_admit(x, spec->uid, spec->layout, fault);
        if (*ret || r)
                layout_free(spec->layout);
        else
                *ret = coordinated_new(x, spec, 0);
        if (!r && (!*ret || coordinated_reserve(*ret, spec->world_size)))
                r = fault_set(fault, ZERO_ENOMEM, "out of memory");
        return r;
}

void joining_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        const Zero__Join *join = m->join;
        struct job_spec spec = job_spec_named(m->job);
        struct coordinated *c;
        struct fault fault;
        struct join *j;
        bool clashes;
        int r;

        JOB_SPEC_READ(&spec, join);
        if (!job_name_valid(m->job) || !join->layout || job_spec_check(&spec, &fault)) {
                answer(x, node, m, ZERO_EPROTO, "the request to join the job is malformed");
                return;
        }
        c = coordinated_find(x, m->job);
        if (c && join->rank == RANK_ABSENT) /* the node has memory for its state now */
                coordinated_event(
                        c, (struct coordinator_event){ .kind = COORDINATOR_NODE_UP, .node = node });
        r = job_of_join(x, &spec, join, &c, &fault);
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

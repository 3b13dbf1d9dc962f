/* States on this node that no job in order uses, and the formats of the others; see doctor.h. */
#include "daemon/job/core/shut.h"
#include "daemon/cluster/coordinator/coordinator.h"
#include "daemon/cluster/doctor/doctor.h"

#include "proto/cleanup.h"

/* Findings: the other checks need 16. */
enum { TOLD_MAX = FINDINGS_MAX - 16 };

static const char check[] = "state file";

static void file_tell(const char *file, const char *why, void *arg)
{
        struct findings *f = arg;

        if (f->n >= TOLD_MAX)
                return;
        if (why)
                finding_add(f, check, FINDING_ERROR,
                            "do what the line says: until then no job of that name is made here",
                            "%s", why);
        else
                finding_add(f, check, FINDING_WARNING,
                            "give the node memory: zerod takes the file up when there is enough",
                            "state file %s is whole, and memory is short", file);
}

static void replica_tell(const struct replica *h, struct findings *f)
{
        const char *file = state_file(h->state);

        if (file && f->n < TOLD_MAX)
                finding_add(
                        f, check, FINDING_WARNING,
                        "start the daemons of all owners: what is not part of a whole job goes "
                        "then by itself",
                        "state file %s of job %.64s, %llu bytes: no rank has ever worked on it, "
                        "and nobody here waits for the job",
                        file, h->job->name, (unsigned long long)state_bytes(h->state));
}

/* Whether nobody here knows whether the states are part of a job that is whole. */
static bool is_left(const struct job *job)
{
        node_set owners = placement_nodes(&job->placement) & ~node_set_of(job->x->cluster->self);

        return !job->opening && !job->n_attached && job->holders == job->onlookers &&
               job_fresh(job) &&
               (!list_empty(&job->old_replicas) || node_set_any(owners & ~job->x->up));
}

/* What a reader of a memory figure wants to know. */
static void formats_tell(const struct job *job, struct findings *f)
{
        struct layout_formats formats[LAYOUT_FORMATS_MAX];
        uint32_t n = layout_formats(job->layout, formats);

        for (uint32_t i = 0; i < n && f->n < TOLD_MAX; i++)
                finding_add(f, "formats", FINDING_FINE, "",
                            "job %.64s: moments in %s, master weights in %s in %u of %u groups",
                            job->name, formats[i].state, formats[i].master, formats[i].n_groups,
                            job->layout->n_groups);
}

/* A job whose coordinator is here, and which needs a person. */
static void job_tell(const struct coordinated *c, struct findings *f)
{
        if (c->state.fault.status && f->n < TOLD_MAX)
                finding_add(f, "job", FINDING_ERROR,
                            "do what the line says: the job waits until then", "job %.64s: %s",
                            c->name, c->state.fault.text);
}

void states_examine(struct engine *x, struct findings *f)
{
        unsigned before = f->n;

        shut_each(x, file_tell, f);
        list_for_each (&x->jobs, item) {
                struct job *job = CONTAINER_OF(item, struct job, link);

                if (!is_left(job))
                        continue;
                for_replicas (job, h)
                        replica_tell(h, f);
                list_for_each (&job->old_replicas, old) {
                        replica_tell(CONTAINER_OF(old, struct replica, link), f);
                }
        }
        list_for_each (&x->coordinators, item) {
                job_tell(CONTAINER_OF(item, struct coordinated, link), f);
        }
        if (f->n == before)
                finding_add(f, check, FINDING_FINE, "", "all are in use");
        list_for_each (&x->jobs, item) {
                formats_tell(CONTAINER_OF(item, struct job, link), f);
        }
}

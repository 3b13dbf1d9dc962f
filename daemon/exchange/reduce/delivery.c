/*
 * Owners on other nodes take their ranges of parcels, part by part.  What is asked for has to be on
 * offer, and to be the owner's own.
 */
#include "daemon/exchange/planes/staging.h"
#include "daemon/exchange/reduce/reduce.h"

#include <stdlib.h>

#include "daemon/base/crash.h"
#include "proto/cleanup.h"

/* A part of a parcel on its way to its owner. */
struct delivery {
        struct job *job;
        struct parcel *parcel;
        uint32_t owner;
        uint64_t elements;
};

static void delivery_sent(void *arg, int status)
{
        struct delivery *d = arg;
        struct job *job = d->job;
        struct parcel *p = d->parcel;

        if (status == 0)
                job->reduce->elements_sent += d->elements;
        parcel_read_end(p, d->owner, status == 0 ? d->elements : 0);
        free(d);
        job_unref(job);
}

static struct parcel *parcel_find(struct job *job, const Zero__Pull *request)
{
        list_for_each (&job->reduce->parcels, item) {
                struct parcel *p = CONTAINER_OF(item, struct parcel, link);

                if (p->offered && !p->void_ && p->group == request->group &&
                    p->attempt == request->attempt && p->micro_batch == request->micro_batch)
                        return p;
        }
        return NULL;
}

void reduce_pull_message(struct job *job, uint32_t node, const Zero__Pull *request)
{
        struct parcel *p = parcel_find(job, request);
        struct range range = { request->first, request->count };
        struct delivery *d;

        if (!p || request->owner >= job->place.n_owners ||
            job->place.node[request->owner] != node) {
                ask_refuse(job, node, request->transfer, ZERO_EABORTED,
                           "no such gradient is offered");
                return;
        }
        if (!range_within(range, partition_range(job->partition, request->group, request->owner))) {
                ask_refuse(job, node, request->transfer, ZERO_EPROTO, "not this owner's range");
                return;
        }
        d = calloc(1, sizeof *d);
        if (!d) {
                ask_refuse(job, node, request->transfer, ZERO_ENOMEM, "out of memory");
                return;
        }
        *d = (struct delivery){ job, p, request->owner, range.count };
        job_ref(job);
        parcel_read_begin(p);
        if (staged_payload(job, p->on_gpu, node, request->transfer, TRAFFIC_REDUCE,
                           parcel_data(p, range.first), range.count * dtype_size(job->reduce_dtype),
                           delivery_sent, d) == 0) {
                crash_point(CRASH_PUSH_SENDING);
                return;
        }
        parcel_read_end(p, request->owner, 0);
        free(d);
        job_unref(job);
}

/* A session attaches: as a rank, which gets windows and what an earlier session of the rank left;
 * or as an observer. */
#include <stdlib.h>
#include <string.h>

#include "daemon/cluster/membership/membership.h"
#include "daemon/compute/device/gpu/gpu.h"
#include "daemon/face/rpc/session.h"
#include "proto/cleanup.h"
#include "proto/text.h"

/* The result of the last step, and the blob that the rank kept with it. */
static void reply_last(const struct rank *rank, Zero__AttachReply *attach, Zero__StepReply *last)
{
        const struct job *job = rank->job;
        const struct blob *kept = &job->ranks[rank->rank].kept;

        attach->blob = (ProtobufCBinaryData){ kept->bytes, kept->data };
        if (job->last.attempt == 0)
                return;
        job_last_reply(job, last);
        attach->last = last;
        attach->last_attempt = job->last.attempt;
}

/* What an earlier session of the rank has pushed in this attempt; the caller frees the result. */
static uint32_t *reply_accepted(const struct rank *rank, Zero__AttachReply *attach)
{
        uint32_t n = rank->job->layout->n_groups;
        uint32_t *accepted = calloc(n, sizeof *accepted);
        bool some = false;

        for (uint32_t g = 0; accepted && g < n; g++) {
                accepted[g] = rank_accepted(rank, g);
                some = some || accepted[g];
        }
        if (some) { /* out of memory: repeated pushes are recognised all the same */
                attach->n_accepted = n;
                attach->accepted = accepted;
        }
        return accepted;
}

/* Passes the segment as a descriptor, or as a handle if it has no descriptor.  Returns its size. */
static uint64_t reply_pass(const struct segment *s, ProtobufCBinaryData *handle, int *fds,
                           size_t *n)
{
        if (!s || !s->bytes)
                return 0;
        if (s->fd >= 0)
                fds[(*n)++] = s->fd;
        else
                *handle = (ProtobufCBinaryData){ sizeof s->handle, (uint8_t *)s->handle };
        return s->bytes;
}

void reply_attach(struct pending_call *call, Zero__Reply *reply)
{
        struct session *s = call->session;
        struct rank *rank = s->rank;
        struct job *job = rank->job;
        const struct segment *gather = gather_segment(rank->holds.gather);
        const struct segment *serve = gather_serve(rank->holds.gather);
        Zero__AttachReply attach = ZERO__ATTACH_REPLY__INIT;
        Zero__StepReply last = ZERO__STEP_REPLY__INIT;
        uint32_t *accepted;
        int fds[CONN_FDS_MAX];
        size_t n = 0;

        attach.version = job->version;
        attach.attempt = job->attempt;
        attach.loss_scale = job->last.loss_scale;
        reply_last(rank, &attach, &last);
        accepted = reply_accepted(rank, &attach);
        attach.session_bytes = rank->window->segment.bytes;
        attach.transfer_bytes = rank->window->transfer_bytes;
        fds[n++] = rank->window->segment.fd;
        attach.push_bytes = reply_pass(&rank->window->apart, &attach.push_handle, fds, &n);
        attach.gather_bytes = reply_pass(gather, &attach.gather_handle, fds, &n);
        attach.serve_bytes = reply_pass(serve, &attach.serve_handle, fds, &n);
        attach.stash_bytes = reply_pass(stash_segment(rank->stash), &attach.stash_handle, fds, &n);
        attach.push_groups = rank->window->slots->n;
        attach.no_events = rank->no_events;
        reply->body_case = ZERO__REPLY__BODY_ATTACH;
        reply->attach = &attach;
        session_reply(s, reply, fds, n);
        free(accepted);
        conn_price(s->conn, PRICE_RANK);
        rpc_share(s->rpc);
        drained_keep(s->rpc->x, rank);
}

static int attach_observer(struct pending_call *call, struct fault *fault)
{
        struct session *s = call->session;
        struct job *job = job_find(s->rpc->x, s->job_name);
        Zero__Reply reply = ZERO__REPLY__INIT;
        Zero__AttachReply attach = ZERO__ATTACH_REPLY__INIT;
        int r;

        if (!job || job->opening)
                return fault_set(fault, ZERO_ENOJOB, "there is no job '%s' on this node",
                                 s->job_name);
        if (!job_is_for(job, s->uid) && !granted(job, s->uid))
                return fault_set(fault, ZERO_EPERM,
                                 "job '%s' belongs to user %u, who may let user %u follow it by "
                                 "'zeroctl grant %s %u'",
                                 job->name, job->uid, s->uid, job->name, s->uid);
        if (s->job)
                return fault_set(fault, ZERO_EORDER, "attached already");
        r = push_window_new(&s->window, fault);
        if (r)
                return r;
        if (layout_to_message(job->layout, &attach.layout))
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        s->job = job;
        job_hold(job);
        attach.version = job->version;
        attach.attempt = job->attempt;
        attach.loss_scale = job->last.loss_scale;
        attach.session_bytes = s->window->segment.bytes;
        attach.transfer_bytes = s->window->transfer_bytes;
        reply.seq = call->seq;
        reply.body_case = ZERO__REPLY__BODY_ATTACH;
        reply.attach = &attach;
        session_reply(s, &reply, &s->window->segment.fd, 1);
        zero__layout__free_unpacked(attach.layout, NULL);
        call->request.gone = true;
        request_end(&call->request, ZERO_OK, NULL);
        return 0;
}

/* The session has lost its rank.  A client that is not told why connects and attaches again. */
static void session_gone(void *arg, int status, const char *text)
{
        struct session *s = arg;
        Zero__Reply reply = ZERO__REPLY__INIT;

        reply.status = (uint32_t)status;
        reply.text = (char *)text;
        if (status != ZERO_ECLOSED)
                session_reply(s, &reply, NULL, 0);
        session_end(s);
}

void readers_regranted(struct job *job)
{
        struct rpc *rpc = job->x->rpc;
        struct fault fault;

        if (!rpc)
                return;
        list_for_each (&rpc->sessions, item) {
                struct session *s = CONTAINER_OF(item, struct session, link);

                if (s->job != job || s->ending || job_is_for(job, s->uid) || granted(job, s->uid))
                        continue;
                fault_set(&fault, ZERO_EPERM, "user %u may follow job '%s' no more", s->uid,
                          job->name);
                while (!list_empty(&s->pending))
                        request_end(
                                &CONTAINER_OF(s->pending.next, struct pending_call, link)->request,
                                fault.status, "%s", fault.text);
                session_gone(s, fault.status, fault.text);
        }
}

int place_of_uuid(const ProtobufCBinaryData *uuid, uint32_t *ret_place, struct fault *fault)
{
        char text[2 * ZERO_GPU_UUID + 1] = "";
        int gpu;

        if (uuid->len != ZERO_GPU_UUID)
                return fault_set(fault, ZERO_EINVAL, "name a GPU by its %d bytes", ZERO_GPU_UUID);
        for (size_t i = 0; i < ZERO_GPU_UUID; i++)
                sprintf(text + 2 * i, "%02x", uuid->data[i]);
        gpu = gpu_find(uuid->data);
        if (gpu < 0)
                return fault_set(
                        fault, ZERO_EGPU,
                        "this daemon uses no GPU of UUID %s, only %u others: see the option "
                        "device and 'zeroctl status', or attach without a device",
                        text, gpus_count());
        *ret_place = gpu_place((uint32_t)gpu);
        return 0;
}

/* Where the rank wants its windows, and the GPU events that it will name: handles[]. */
static int attach_place(const Zero__Attach *m, uint8_t handles[][ZERO_GPU_HANDLE],
                        struct rank_needs *needs, struct fault *fault)
{
        if (m->gpu.len == 0 && m->n_events == 0)
                return 0;
        if (m->n_events > ZERO_GPU_EVENTS)
                return fault_set(fault, ZERO_EINVAL, "name %d events at most", ZERO_GPU_EVENTS);
        for (size_t i = 0; i < m->n_events; i++) {
                if (m->events[i].len != ZERO_GPU_HANDLE)
                        return fault_set(fault, ZERO_EINVAL,
                                         "an event's handle has %d bytes, not %zu", ZERO_GPU_HANDLE,
                                         m->events[i].len);
                memcpy(handles[i], m->events[i].data, ZERO_GPU_HANDLE);
        }
        needs->event_handles = (const uint8_t(*)[ZERO_GPU_HANDLE])handles;
        needs->n_events = (uint32_t)m->n_events;
        return place_of_uuid(&m->gpu, &needs->windows, fault);
}

/*
 * What the rank stashes.  Nobody can repeat the part of a set's dead rank alone, since the others
 * go on with what it stashed: the attempt is void.
 */
static int attach_stash(const Zero__StashNeeds *m, struct rank_needs *needs, struct fault *fault)
{
        if (!m)
                return 0;
        if (m->where > ZERO_STASH_HOST)
                return fault_set(fault, ZERO_EINVAL, "%u is no place for a stash", m->where);
        needs->fail_on_lost = needs->fail_on_lost || m->n_ranks > 1;
        return stash_needs_new(needs->rank, needs->job.world_size, m->ranks, m->n_ranks, m->bytes,
                               m->entry_bytes, m->where == ZERO_STASH_HOST ? 0 : needs->windows,
                               &needs->stash, fault);
}

static int origin_take(const char *what, const char *name, char ret[static ORIGIN_MAX + 1],
                       struct fault *fault)
{
        size_t n = strspn(name, ORIGIN_CHARACTERS);

        if (n > ORIGIN_MAX || name[n])
                return fault_set(fault, ZERO_EINVAL,
                                 "the name of a %s has at most %d characters of [A-Za-z0-9._-]",
                                 what, ORIGIN_MAX);
        memcpy(ret, name, n + 1);
        return 0;
}

int refuse_drained(const struct engine *x, struct fault *fault)
{
        const char *self = node_name(x, x->cluster->self);

        if (!membership_drained(x))
                return 0;
        return fault_set(fault, ZERO_EBUSY,
                         "node %s is drained and takes no new ranks: start them on other nodes, or "
                         "have 'zeroctl undrain %s' end the drain",
                         self, self);
}

/* The session is not attached. */
static int attach_rank(struct pending_call *call, const Zero__Attach *m, struct rank_needs *needs,
                       struct fault *fault)
{
        struct session *s = call->session;
        struct rank_events events = { session_gone, s };
        uint8_t handles[ZERO_GPU_EVENTS][ZERO_GPU_HANDLE];
        const ProtobufCBinaryData *base = &m->layout->base_hash;
        int r = attach_place(m, handles, needs, fault);

        if (!r && base->len == BASE_HASH && !base_held(&s->base, base->data))
                r = fault_set(fault, ZERO_EORDER,
                              "the layout names a base that this client does not have: "
                              "zero_base() comes first");
        if (!r)
                r = origin_take("Slurm job", m->slurm_job, needs->slurm_job, fault);
        if (!r)
                r = origin_take("pod", m->pod, needs->pod, fault);
        if (!r)
                r = attach_stash(m->stash, needs, fault);
        if (r)
                return r;
        return rank_attach(s->rpc->x, m->layout, needs, &events, &call->request, &s->rank, fault);
}

int handle_attach(struct pending_call *call, const Zero__Request *request, struct fault *fault)
{
        const Zero__Attach *m = request->attach;
        struct session *s = call->session;
        struct rank_needs needs = { .job = job_spec_named(s->job_name),
                                    .pid = (uint32_t)s->pid,
                                    .rank = (uint32_t)s->rank_number,
                                    .local_world_size = s->local_world_size,
                                    .hold_groups = m->hold_groups,
                                    .push_groups = m->push_groups,
                                    .push_auto = m->push_auto,
                                    .keeps_slots = s->protocol >= KEEPS_SLOTS,
                                    .incarnation = m->incarnation,
                                    .fail_on_lost = m->on_lost_rank == ZERO_LOST_FAIL,
                                    .resume = m->resume,
                                    .process_start = s->process_start,
                                    .timeout_ms = (uint32_t)s->timeout_ms,
                                    .grad_dtype = (enum zero_dtype)m->grad_dtype };

        needs.job.uid = s->uid;
        needs.job.world_size = s->world_size;
        needs.job.reduce_dtype = (enum zero_dtype)m->reduce_dtype;
        needs.job.accumulate = (enum zero_accumulate)m->accumulate;
        if (s->job_name[0] == '\0')
                return fault_set(fault, ZERO_EINVAL,
                                 "the session names no job: give one at connect");
        if (s->rank_number < 0)
                return attach_observer(call, fault);
        if (s->rank && !s->rank->admitted && !s->rank->attaching) /* an earlier call was refused */
                rank_leave(STEAL(s->rank), false);
        if (s->rank)
                return fault_set(fault, ZERO_EORDER, "attached already");
        if (!(m->resume && membership_drained(s->rpc->x) &&
              drained_admits(s->rpc->x, s->job_name, &needs)) &&
            refuse_drained(s->rpc->x, fault))
                return fault->status;
        if (!m->layout)
                return fault_set(fault, ZERO_EINVAL, "a rank must send its layout");
        return attach_rank(call, m, &needs, fault);
}

/* A session attaches: as a rank, with windows and what an earlier session left; or as an observer.
 */
#include <stdlib.h>

#include "daemon/rpc/session.h"
#include "proto/cleanup.h"

/* What the last step came to, and what the rank kept with it. */
static void reply_last(const struct rank *rank, Zero__AttachReply *attach, Zero__StepReply *last)
{
        const struct job *job = rank->job;
        const struct kept *kept = &job->seats[rank->rank].kept;

        attach->blob = (ProtobufCBinaryData){ kept->bytes, kept->data };
        if (job->last.attempt == 0)
                return;
        last->version = job->last.version;
        last->attempt = job->attempt;
        last->skipped = job->last.skipped;
        last->grad_norm = job->last.grad_norm;
        last->loss_scale = job->last.loss_scale;
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
        if (some) { /* out of memory: what is pushed again is recognised all the same */
                attach->n_accepted = n;
                attach->accepted = accepted;
        }
        return accepted;
}

void reply_attach(struct pending_call *call, Zero__Reply *reply)
{
        struct session *s = call->session;
        struct rank *rank = s->rank;
        struct job *job = rank->job;
        const struct holding *sole = holding_sole(job);
        const struct segment *gather = gather_segment(job->gather);
        Zero__AttachReply attach = ZERO__ATTACH_REPLY__INIT;
        Zero__StepReply last = ZERO__STEP_REPLY__INIT;
        uint32_t *accepted;
        int fds[CONN_FDS_MAX];
        size_t n = 0;

        attach.version = job->version;
        attach.attempt = job->attempt;
        attach.loss_scale = job->loss_scale;
        reply_last(rank, &attach, &last);
        accepted = reply_accepted(rank, &attach);
        attach.session_bytes = rank->window->segment.bytes;
        attach.transfer_bytes = rank->window->transfer_bytes;
        fds[n++] = rank->window->segment.fd;
        if (gather) {
                attach.gather_bytes = gather->bytes;
                fds[n++] = gather->fd;
        }
        if (sole && sole->state->serve) {
                attach.serve_bytes = sole->state->plan->serve_bytes;
                fds[n++] = sole->state->serve_fd;
        }
        reply->body_case = ZERO__REPLY__BODY_ATTACH;
        reply->attach = &attach;
        session_reply(s, reply, fds, n);
        free(accepted);
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
        if (s->uid != 0 && s->uid != job->uid)
                return fault_set(fault, ZERO_EPERM, "job '%s' belongs to user %u", job->name,
                                 job->uid);
        if (s->job)
                return fault_set(fault, ZERO_EORDER, "attached already");
        r = push_window_new(&s->window, NULL, 0, ZERO_FP32, fault);
        if (r)
                return r;
        if (layout_to_message(job->layout, &attach.layout))
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        s->job = job;
        job_hold(job);
        attach.version = job->version;
        attach.attempt = job->attempt;
        attach.loss_scale = job->loss_scale;
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

/* The session is its rank's no more: it is told why, and ends. */
static void session_fenced(void *arg, int status, const char *text)
{
        struct session *s = arg;
        Zero__Reply reply = ZERO__REPLY__INIT;

        reply.status = (uint32_t)status;
        reply.text = (char *)text;
        session_reply(s, &reply, NULL, 0);
        session_end(s);
}

int handle_attach(struct pending_call *call, const Zero__Attach *m, struct fault *fault)
{
        struct session *s = call->session;
        struct rank_events events = { session_fenced, s };
        struct rank_needs needs = { .uid = s->uid,
                                    .pid = (uint32_t)s->pid,
                                    .rank = (uint32_t)s->rank_number,
                                    .world_size = s->world_size,
                                    .local_world_size = s->local_world_size,
                                    .hold_groups = m->hold_groups,
                                    .push_groups = m->push_groups,
                                    .incarnation = m->incarnation,
                                    .fail_on_lost = m->on_lost_rank == ZERO_LOST_FAIL,
                                    .resume = m->resume,
                                    .timeout_ms = (uint32_t)s->timeout_ms,
                                    .grad_dtype = (enum zero_dtype)m->grad_dtype,
                                    .reduce_dtype = (enum zero_dtype)m->reduce_dtype };

        if (s->job_name[0] == '\0')
                return fault_set(fault, ZERO_EINVAL,
                                 "the session names no job: give one at connect");
        if (s->rank_number < 0)
                return attach_observer(call, fault);
        if (s->rank && !s->rank->admitted && !s->rank->attaching) /* an earlier try was refused */
                rank_leave(STEAL(s->rank), false);
        if (s->rank)
                return fault_set(fault, ZERO_EORDER, "attached already");
        if (!m->layout)
                return fault_set(fault, ZERO_EINVAL, "a rank brings its layout");
        return rank_attach(s->rpc->x, s->job_name, m->layout, &needs, &events, &call->request,
                           &s->rank, fault);
}

/* What every other file of libzero stands on: how a connection ends, and what a call reports. */
#include "client.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

_Thread_local struct fault client_thread_fault;

int client_missing(void)
{
        return fault_set(&client_thread_fault, ZERO_EINVAL, "the client is NULL");
}

bool client_forked(const struct zero_client *c)
{
        return c->pid != getpid();
}

int client_gone(struct zero_client *c)
{
        if (!c->closed) {
                c->closed = true;
                shutdown(c->wire.fd, SHUT_RDWR);
        }
        return client_fail(c, ZERO_ECLOSED, "the connection to zerod is closed: %s", c->cause.text);
}

int client_drop(struct zero_client *c)
{
        if (c->closed || c->rank == ZERO_OBSERVER || !(c->layout || c->entering))
                return client_gone(c);
        if (c->deferred.status == ZERO_EABORTED)
                c->void_attempt = true;
        c->deferred.status = ZERO_OK;
        c->lost = true;
        shutdown(c->wire.fd, SHUT_RDWR);
        memset(c->pending, 0, sizeof(c->pending));
        gpu_forget(c->gpu);
        c->call_seq = 0;
        client_forget_reply(c);
        return CLIENT_LOST;
}

void client_tell(struct zero_client *c, const char *who, const char *what)
{
        int64_t now = wire_now(), waited_ms = now - c->began_ms;
        char text[704];

        /* what was on its way before the call began is old */
        if (c->rank == ZERO_OBSERVER || !c->tell || waited_ms < CLIENT_TELL_MS || now < c->tell_ms)
                return;
        c->tell_ms = now + CLIENT_TELL_AGAIN_MS;
        snprintf(text, sizeof(text), "rank %d of job '%s' has waited %lld s for %.95s: %.199s",
                 (int)c->rank, c->job, (long long)(waited_ms + 500) / 1000, who, what);
        c->tell(c->tell_arg, text);
}

int64_t client_deadline(const struct zero_client *c)
{
        return wire_now() + (int64_t)c->timeout_ms + CLIENT_GRACE_MS;
}

void client_forget_reply(struct zero_client *c)
{
        if (c->reply)
                zero__reply__free_unpacked(c->reply, &c->arena.allocator);
        c->reply = NULL;
        arena_reset(&c->arena);
}

int client_report_deferred(struct zero_client *c)
{
        c->error = c->deferred;
        c->deferred.status = ZERO_OK;
        return c->error.status;
}

int client_check_group(struct zero_client *c, uint32_t group)
{
        if (!c->layout)
                return client_fail(c, ZERO_ENOTATTACHED, "zero_attach() was not called yet");
        if (c->rank == ZERO_OBSERVER)
                return client_fail(c, ZERO_EPERM, "an observer reads by zero_get() only");
        if (group >= c->layout->n_groups)
                return client_fail(c, ZERO_ENOGROUP, "no group %u: the layout has %u",
                                   (unsigned)group, (unsigned)c->layout->n_groups);
        return 0;
}

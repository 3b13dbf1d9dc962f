/*
 * ucx_context.h - how UCX is set up for the bulk path: which transports, which settings.
 */
#pragma once

#include <ucp/api/ucp.h>

#include "proto/fault.h"

/* UCX's status as 0 or -errno: -ENOMEM, -ECANCELED, -ENODEV (unreachable), else -EIO. */
int bulk_ucx_error(ucs_status_t status);

/*
 * Which transports to use.  UCX's tcp opens ports that do not survive hostile bytes, so a list
 * that would include it without naming it ("all", "^rc") is refused: a fault.
 * tls NULL or "": $UCX_TLS, else everything without tcp.
 */
int bulk_ucx_choose_tls(const char *tls, const char **ret, struct fault *fault);

/* The context, and the names of the transports it has, with commas ("self,posix,cma"). */
int bulk_ucx_context_new(const char *tls, ucp_context_h *ret, char **ret_tls);

/* Whether it knows the memory of CUDA. */
bool bulk_ucx_knows_cuda(ucp_context_h context);

/* Whether the endpoint has lanes to read the other side's memory by. */
struct ucx_reads {
        bool any;
        bool gpus; /* one of them reads memory of a GPU, and not through the host's */
};

struct ucx_reads bulk_ucx_reads(ucp_ep_h endpoint);
/* The same of UCX's words about an endpoint, which it changes.  version: 12201 is UCX 1.22.1. */
void bulk_ucx_read_lanes(char *text, unsigned version, struct ucx_reads *ret);

/*
 * The bulk path by UCX active messages: worker addresses are exchanged over the link, no
 * listener.
 *
 * A large payload goes by rendezvous, straight into its place, where the endpoint can read
 * remote memory (RDMA, or cma of another process); else in pieces, eagerly, which are copied to
 * their place as they come.  UCX would emulate a rendezvous there, but then it neither ends what it
 * was receiving when the endpoint is closed by force, nor stops writing to it.
 *
 * Reading cannot be called off: a receiver that was stopped in the middle, and whose sender has
 * given the link up, reads what the sender's owner has put there since.  So a payload that was
 * read has landed only when the sender confirms that the memory was still unchanged.
 *
 * GPU memory goes by rendezvous alone, which UCX does as the transports allow: read by the network
 * card or the other GPU, or staged by UCX.  In pieces each would be copied and waited for.
 *
 * Every link has a worker of its own.  Shared memory and RDMA do not tell of a dead or
 * stopped peer: the owner's link does, and ends the peer here by force.  What UCX still
 * waits for then, such as room with a stopped process, would keep requests and an endless
 * retry in a shared worker; a worker that is destroyed lets go of everything, and nothing that
 * was under way can arrive at the next link's.
 *
 * Rules.  UCX is called from the loop thread alone, and what it reports in its callbacks
 * is queued and handed on when it has returned, so no owner's code runs inside UCX.
 * Only the receiver writes its own memory (rendezvous by get, never by put).
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/compute/device/place/place.h"
#include "daemon/fabric/bulk/ucx_context.h"
#include "daemon/fabric/bulk/ucx_leftovers.h"
#include "daemon/fabric/bulk/ucx_port.h"

enum {
        TURN_NS = 1000000,  /* of work before the loop has a turn */
        CLOSE_NS = 2000000, /* for UCX to end by itself what it holds */
        ADDRESS_MAX = 4096,
};

struct bulk_ucx {
        ucp_context_h context;
        char *tls;
        unsigned ports;
        bool gpus; /* some are in use, and it knows their memory */
};

/* ---- the worker under the loop ---- */

static bool progress(struct bulk_ucx_port *port)
{
        bool any = false;

        for (int i = 0; i < 16 && ucp_worker_progress(port->worker); i++)
                any = true;
        return ucx_port_pump(port) || any;
}

/*
 * Before the loop sleeps: nothing is left to do, and the event descriptor is armed.  An armed
 * worker is left alone until its descriptor is readable or something is given to it, so that a
 * peer without traffic costs nothing.  A worker stays busy while a send waits for room with the
 * other side, of which no event will tell; then the loop turns without sleeping.
 */
static void on_prepare(uv_prepare_t *prepare)
{
        struct bulk_ucx_port *port = prepare->data;
        uint64_t until = uv_hrtime() + TURN_NS;
        bool idle = false, handed_on;
        ucs_status_t status;

        if (port->armed)
                return;
        while (!idle && uv_hrtime() < until)
                idle = !progress(port);
        /* what is handed on may bring new work, end the owner's wait, or close the peer */
        handed_on = bulk_queue_drain(&port->queue);
        if (!port->worker)
                return;
        status = handed_on || !idle ? UCS_ERR_BUSY : ucp_worker_arm(port->worker);
        port->armed = status == UCS_OK; /* after any other error the next turn tries again */
        if (status == UCS_ERR_BUSY)
                bulk_queue_wake(&port->queue);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
        struct bulk_ucx_port *port = poll->data;

        port->armed = false; /* on_prepare() makes the progress */
}

static int loop_open(struct bulk_ucx_port *port, uv_loop_t *loop)
{
        int descriptor, r;
        ucs_status_t status = ucp_worker_get_efd(port->worker, &descriptor);

        if (status != UCS_OK)
                return bulk_ucx_error(status);
        r = uv_poll_init(loop, &port->poll, descriptor);
        if (r)
                return r;
        port->poll.data = port;
        uv_prepare_init(loop, &port->prepare);
        port->prepare.data = port;
        bulk_queue_init(&port->queue, loop);
        uv_poll_start(&port->poll, UV_READABLE, on_readable);
        uv_prepare_start(&port->prepare, on_prepare);
        port->open_handles = 3;
        return 0;
}

static ucs_status_t handle(struct bulk_ucx_port *port, unsigned id, ucp_am_recv_callback_t handler)
{
        const ucp_am_handler_param_t params = {
                .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                              UCP_AM_HANDLER_PARAM_FIELD_ARG,
                .id = id,
                .cb = handler,
                .arg = port,
        };

        return ucp_worker_set_am_recv_handler(port->worker, &params);
}

static int worker_open(struct bulk_ucx_port *port)
{
        const ucp_worker_params_t params = {
                .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                .thread_mode = UCS_THREAD_MODE_SINGLE,
        };
        ucs_status_t status = ucp_worker_create(port->ucx->context, &params, &port->worker);

        if (status == UCS_OK)
                status = handle(port, UCX_AM_PAYLOAD, ucx_port_on_payload);
        if (status == UCS_OK)
                status = handle(port, UCX_AM_CONFIRMATION, ucx_port_on_confirmation);
        if (status == UCS_OK)
                status = ucp_worker_get_address(port->worker, &port->address, &port->address_size);
        return bulk_ucx_error(status);
}

/* ---- the end of a port ---- */

static void port_less(struct bulk_ucx_port *port)
{
        if (--port->open_handles > 0)
                return;
        if (port->base.closing) {
                bulk_base_deinit(&port->base);
                port->base.closed(port->base.closed_arg);
        }
        free(port);
}

static void on_handle_closed(uv_handle_t *handle)
{
        port_less(handle->data);
}

static void on_queue_closed(uv_handle_t *handle)
{
        struct bulk_queue *queue = handle->data;

        port_less(CONTAINER_OF(queue, struct bulk_ucx_port, queue));
}

/* UCX lets go of everything; it must not be on the stack. */
static void worker_close(struct bulk_ucx_port *port)
{
        if (port->open_handles) {
                uv_close((uv_handle_t *)&port->poll, on_handle_closed);
                uv_close((uv_handle_t *)&port->prepare, on_handle_closed);
        }
        if (port->address)
                ucp_worker_release_address(port->worker, port->address);
        if (port->worker)
                ucp_worker_destroy(STEAL(port->worker));
        port->ucx->ports--;
}

void bulk_ucx_port_free(struct bulk_ucx_port *port)
{
        if (!port)
                return;
        assert(!port->endpoint);
        worker_close(port);
        if (port->open_handles)
                uv_close((uv_handle_t *)&port->queue.idle, on_queue_closed);
        else
                free(port);
}

static void on_endpoint_closed(void *request, ucs_status_t status, void *arg)
{
        struct bulk_ucx_port *port = arg;

        port->endpoint_closed = true;
        ucp_request_free(request);
}

/* Gives UCX a moment to end by itself what it holds. */
static void endpoint_close(struct bulk_ucx_port *port)
{
        const ucp_request_param_t param = {
                .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                UCP_OP_ATTR_FIELD_FLAGS,
                .cb.send = on_endpoint_closed,
                .user_data = port,
                .flags = UCP_EP_CLOSE_FLAG_FORCE,
        };
        uint64_t until = uv_hrtime() + CLOSE_NS;
        ucs_status_ptr_t request = ucp_ep_close_nbx(port->endpoint, &param);

        if (!UCS_PTR_IS_PTR(request))
                port->endpoint_closed = true;
        while ((!port->endpoint_closed || !ucx_port_is_empty(port)) && uv_hrtime() < until)
                ucp_worker_progress(port->worker);
}

static void run_gone(struct bulk_event *event)
{
        struct bulk_ucx_port *port = CONTAINER_OF(event, struct bulk_ucx_port, gone);

        uv_close((uv_handle_t *)&port->queue.idle, on_queue_closed);
}

static void ucx_close(struct bulk_peer *peer, void (*closed)(void *arg), void *arg)
{
        struct bulk_ucx_port *port = ucx_port_of(peer);

        bulk_base_begin_close(&port->base, closed, arg);
        ucx_port_forget_all(port);
        endpoint_close(port);
        worker_close(port);
        ucx_port_cancel(port);
        bulk_queue_push(&port->queue, &port->gone);
}

/* ---- life ---- */

static const struct bulk_ops ucx_ops = {
        .name = "ucx",
        .send = ucx_port_send,
        .expect = ucx_port_expect,
        .forget = ucx_port_forget,
        .close = ucx_close,
};

int bulk_ucx_port_new(struct bulk_ucx *ucx, uv_loop_t *loop, struct bulk_ucx_port **ret)
{
        struct bulk_ucx_port *port = calloc(1, sizeof *port);
        int r;

        if (!port)
                return -ENOMEM;
        port->ucx = ucx;
        ucx->ports++;
        if (ucx->gpus)
                place_use(place_nth(0)); /* UCX opens transports for the one that is chosen */
        list_init(&port->queued);
        list_init(&port->inside);
        list_init(&port->receives);
        list_init(&port->announced);
        list_init(&port->gone.link);
        port->gone.run = run_gone;
        r = worker_open(port);
        if (r == 0)
                r = loop_open(port, loop);
        if (r) {
                bulk_ucx_port_free(port);
                return r;
        }
        *ret = port;
        return 0;
}

const void *bulk_ucx_port_address(const struct bulk_ucx_port *port, size_t *ret_size)
{
        *ret_size = port->address_size;
        return port->address;
}

static void on_error(void *arg, ucp_ep_h endpoint, ucs_status_t status)
{
        struct bulk_ucx_port *port = arg;

        bulk_base_break(&port->base, "UCX lost the peer");
}

int bulk_ucx_peer_new(struct bulk_ucx_port *port, const void *address, size_t size, uint64_t token,
                      void (*broken)(void *, const char *), void *arg, struct bulk_peer **ret)
{
        CLEANUP(cleanup_free) uint8_t *padded = calloc(2, ADDRESS_MAX);
        const ucp_ep_params_t params = {
                .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                              UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
                .address = (const ucp_address_t *)padded,
                .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                .err_handler = { .cb = on_error, .arg = port },
        };
        struct ucx_reads reads;
        int r;

        assert(!port->endpoint);
        if (size == 0 || size > ADDRESS_MAX)
                return -EINVAL;
        if (!padded)
                return -ENOMEM;
        /* UCX reads an address without being told its end: zeros stand behind it */
        memcpy(padded, address, size);
        bulk_base_init(&port->base, &ucx_ops, &port->queue, broken, arg);
        r = bulk_ucx_error(ucp_ep_create(port->worker, &params, &port->endpoint));
        if (r)
                return r;
        port->token = token;
        reads = bulk_ucx_reads(port->endpoint);
        port->can_get = reads.any;
        port->base.peer.gpu = reads.gpus && port->ucx->gpus;
        port->base.peer.announces = port->can_get;
        ucx_port_wake(port);
        *ret = &port->base.peer;
        return 0;
}

const char *bulk_ucx_tls(const struct bulk_ucx *ucx)
{
        return ucx->tls;
}

bool bulk_ucx_knows_gpus(const struct bulk_ucx *ucx)
{
        return ucx->gpus;
}

int bulk_ucx_new(const char *tls, struct bulk_ucx **ret, struct fault *fault)
{
        CLEANUP(cleanup_free) struct bulk_ucx *ucx = NULL;
        int r = bulk_ucx_choose_tls(tls, &tls, fault);

        if (r)
                return r;
        ucx = calloc(1, sizeof *ucx);
        if (!ucx)
                return -ENOMEM;
        bulk_ucx_remove_leftovers();
        r = bulk_ucx_context_new(tls, &ucx->context, &ucx->tls);
        if (r)
                return r;
        ucx->gpus = place_ops() && bulk_ucx_knows_cuda(ucx->context);
        *ret = STEAL(ucx);
        return 0;
}

void bulk_ucx_free(struct bulk_ucx *ucx)
{
        if (!ucx)
                return;
        assert(ucx->ports == 0);
        ucp_cleanup(ucx->context);
        free(ucx->tls);
        free(ucx);
}

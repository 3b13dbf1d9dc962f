/*
 * The bulk path by UCX active messages: worker addresses are exchanged over the link, no
 * listener.
 *
 * A large payload goes by rendezvous, straight into its place, where the endpoint can read
 * remote memory (RDMA); else in pieces, eagerly, which are copied to their place as they come.
 * UCX would emulate a rendezvous there, but then it neither ends what it was receiving when
 * the endpoint is closed by force, nor stops writing to it.
 *
 * Rules.  UCX is called from the loop thread alone, and what it reports in its callbacks
 * is queued and handed on when it has returned, so no owner's code runs inside UCX.
 * Only the receiver writes its own memory (rendezvous by get, never by put).  Shared
 * memory and RDMA do not tell of a dead or stopped peer: the owner's link does, and
 * ends the peer here by force.  A header names its sender, by a hash of the worker's address,
 * and the link's token: what a closed link left behind is dropped.
 */
#include <assert.h>
#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/fabric/bulk_ucx_context.h"
#include "daemon/fabric/bulk_ucx_peer.h"
#include "proto/cleanup.h"

enum {
        TURN_NS = 1000000, /* of work before the loop has a turn */
        ADDRESS_MAX = 4096,
};

static uint64_t address_hash(const void *address, size_t size)
{
        static const uint8_t key[crypto_shorthash_KEYBYTES];
        uint64_t hash;

        crypto_shorthash((uint8_t *)&hash, address, size, key);
        return hash;
}

void ucx_peer_finish(struct ucx_peer *peer)
{
        if (peer->base.closing && peer->endpoint_closed && peer->sends == 0 &&
            peer->landings == 0 && list_empty(&peer->gone.link))
                bulk_queue_push(&peer->ucx->queue, &peer->gone);
}

/* ---- the worker under the loop ---- */

static bool progress(struct bulk_ucx *ucx)
{
        bool any = false;

        for (int i = 0; i < 16 && ucp_worker_progress(ucx->worker); i++)
                any = true;
        list_for_each (&ucx->peers, item) {
                any |= ucx_peer_pump(CONTAINER_OF(item, struct ucx_peer, link));
        }
        return any;
}

/*
 * Before the loop sleeps: nothing is left to do, and the event descriptor is armed.  It
 * stays busy while a send waits for room with the other side, of which no event will tell; then
 * the loop turns without sleeping.
 */
static void on_prepare(uv_prepare_t *prepare)
{
        struct bulk_ucx *ucx = prepare->data;
        uint64_t until = uv_hrtime() + TURN_NS;
        bool idle = false;

        while (!idle && uv_hrtime() < until)
                idle = !progress(ucx);
        /* what is handed on may bring new work, or end the owner's wait */
        if (bulk_queue_drain(&ucx->queue) || !idle || ucp_worker_arm(ucx->worker) == UCS_ERR_BUSY)
                bulk_queue_wake(&ucx->queue);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
        /* it has ended the loop's sleep; on_prepare() makes the progress */
}

/* ---- peers ---- */

static void on_error(void *arg, ucp_ep_h endpoint, ucs_status_t status)
{
        struct ucx_peer *peer = arg;

        bulk_base_break(&peer->base, "UCX lost the peer");
}

static void endpoint_closed(struct ucx_peer *peer)
{
        peer->endpoint_closed = true;
        ucx_peer_finish(peer);
}

static void on_endpoint_closed(void *request, ucs_status_t status, void *arg)
{
        endpoint_closed(arg);
        ucp_request_free(request);
}

static void run_gone(struct bulk_event *event)
{
        struct ucx_peer *peer = CONTAINER_OF(event, struct ucx_peer, gone);

        bulk_base_deinit(&peer->base);
        peer->base.closed(peer->base.closed_arg);
        free(peer);
}

static void ucx_close(struct bulk_peer *p_peer, void (*closed)(void *arg), void *arg)
{
        struct ucx_peer *peer = ucx_peer_of(p_peer);
        struct bulk_ucx *ucx = peer->ucx;
        const ucp_request_param_t param = {
                .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                UCP_OP_ATTR_FIELD_FLAGS,
                .cb.send = on_endpoint_closed,
                .user_data = peer,
                .flags = UCP_EP_CLOSE_FLAG_FORCE,
        };
        ucs_status_ptr_t request;

        bulk_base_begin_close(&peer->base, closed, arg);
        list_remove(&peer->link);
        ucx_peer_cancel(peer);
        ucx->closed_tokens[ucx->n_closed++ % UCX_CLOSED_TOKENS] = peer->token;
        request = ucp_ep_close_nbx(peer->endpoint, &param);
        if (!UCS_PTR_IS_PTR(request))
                endpoint_closed(peer);
        bulk_queue_wake(&ucx->queue);
}

static const struct bulk_ops ucx_ops = {
        .name = "ucx",
        .send = ucx_peer_send,
        .expect = bulk_base_expect,
        .forget = bulk_base_forget,
        .close = ucx_close,
};

static int endpoint_new(struct ucx_peer *peer, const void *address, size_t size)
{
        CLEANUP(cleanup_free) uint8_t *padded = calloc(2, ADDRESS_MAX);
        const ucp_ep_params_t params = {
                .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                              UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
                .address = (const ucp_address_t *)padded,
                .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                .err_handler = { .cb = on_error, .arg = peer },
        };

        if (!padded)
                return -ENOMEM;
        /* UCX reads an address without being told its end: zeros stand behind it */
        memcpy(padded, address, size);
        return bulk_ucx_error(ucp_ep_create(peer->ucx->worker, &params, &peer->endpoint));
}

int bulk_ucx_peer_new(struct bulk_ucx *ucx, const void *address, size_t size, uint64_t token,
                      void (*broken)(void *, const char *), void *arg, struct bulk_peer **ret)
{
        CLEANUP(cleanup_free) struct ucx_peer *peer = NULL;
        int r;

        if (size == 0 || size > ADDRESS_MAX)
                return -EINVAL;
        peer = calloc(1, sizeof *peer);
        if (!peer)
                return -ENOMEM;
        bulk_base_init(&peer->base, &ucx_ops, &ucx->queue, broken, arg);
        peer->ucx = ucx;
        peer->token = token;
        peer->sender = address_hash(address, size);
        peer->gone.run = run_gone;
        list_init(&peer->gone.link);
        list_init(&peer->queued);
        r = endpoint_new(peer, address, size);
        if (r)
                return r;
        peer->can_get = bulk_ucx_can_get(peer->endpoint);
        list_insert(&ucx->peers, &peer->link);
        bulk_queue_wake(&ucx->queue);
        *ret = &STEAL(peer)->base.peer;
        return 0;
}

/* ---- the worker ---- */

const void *bulk_ucx_address(const struct bulk_ucx *ucx, size_t *ret_size)
{
        *ret_size = ucx->address_size;
        return ucx->address;
}

const char *bulk_ucx_tls(const struct bulk_ucx *ucx)
{
        return ucx->tls;
}

static void on_handle_closed(uv_handle_t *handle)
{
        struct bulk_ucx *ucx = handle->data;

        if (--ucx->open_handles == 0)
                free(ucx);
}

/* The queue's handle has the queue as its data. */
static void on_queue_closed(uv_handle_t *handle)
{
        struct bulk_queue *queue = handle->data;
        struct bulk_ucx *ucx = CONTAINER_OF(queue, struct bulk_ucx, queue);

        if (--ucx->open_handles == 0)
                free(ucx);
}

void bulk_ucx_free(struct bulk_ucx *ucx)
{
        if (!ucx)
                return;
        assert(list_empty(&ucx->peers));
        if (ucx->open_handles) {
                assert(list_empty(&ucx->queue.events));
                uv_close((uv_handle_t *)&ucx->poll, on_handle_closed);
                uv_close((uv_handle_t *)&ucx->prepare, on_handle_closed);
                uv_close((uv_handle_t *)&ucx->queue.idle, on_queue_closed);
        }
        if (ucx->address)
                ucp_worker_release_address(ucx->worker, ucx->address);
        if (ucx->worker)
                ucp_worker_destroy(ucx->worker);
        if (ucx->context)
                ucp_cleanup(ucx->context);
        free(ucx->tls);
        if (!ucx->open_handles)
                free(ucx);
}

static int worker_open(struct bulk_ucx *ucx)
{
        const ucp_worker_params_t params = {
                .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                .thread_mode = UCS_THREAD_MODE_SINGLE,
        };
        const ucp_am_handler_param_t handler = {
                .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                              UCP_AM_HANDLER_PARAM_FIELD_ARG,
                .id = UCX_AM_PAYLOAD,
                .cb = ucx_on_payload,
                .arg = ucx,
        };
        ucs_status_t status = ucp_worker_create(ucx->context, &params, &ucx->worker);

        if (status == UCS_OK)
                status = ucp_worker_set_am_recv_handler(ucx->worker, &handler);
        if (status == UCS_OK)
                status = ucp_worker_get_address(ucx->worker, &ucx->address, &ucx->address_size);
        if (status == UCS_OK)
                ucx->self = address_hash(ucx->address, ucx->address_size);
        return bulk_ucx_error(status);
}

static int loop_open(struct bulk_ucx *ucx, uv_loop_t *loop)
{
        int descriptor, r;
        ucs_status_t status = ucp_worker_get_efd(ucx->worker, &descriptor);

        if (status != UCS_OK)
                return bulk_ucx_error(status);
        r = uv_poll_init(loop, &ucx->poll, descriptor);
        if (r)
                return r;
        ucx->poll.data = ucx;
        uv_prepare_init(loop, &ucx->prepare);
        ucx->prepare.data = ucx;
        bulk_queue_init(&ucx->queue, loop);
        uv_poll_start(&ucx->poll, UV_READABLE, on_readable);
        uv_prepare_start(&ucx->prepare, on_prepare);
        ucx->open_handles = 3;
        return 0;
}

int bulk_ucx_new(uv_loop_t *loop, const char *tls, struct bulk_ucx **ret, struct fault *fault)
{
        struct bulk_ucx *ucx;
        int r = bulk_ucx_choose_tls(tls, &tls, fault);

        if (r)
                return r;
        ucx = calloc(1, sizeof *ucx);
        if (!ucx)
                return -ENOMEM;
        list_init(&ucx->peers);
        r = bulk_ucx_context_new(tls, &ucx->context, &ucx->tls);
        if (r == 0)
                r = worker_open(ucx);
        if (r == 0)
                r = loop_open(ucx, loop);
        if (r) {
                bulk_ucx_free(ucx);
                return r;
        }
        *ret = ucx;
        return 0;
}

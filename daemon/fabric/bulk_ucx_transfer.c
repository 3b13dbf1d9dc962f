/*
 * Payloads over UCX; see bulk_ucx.c for the rules.
 *
 * Receiving runs inside UCX's progress and only notes what happened; sending is done piece by
 * piece from the loop, as UCX takes them.
 */
#include "daemon/fabric/bulk_ucx_peer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
        RENDEZVOUS = 16 << 10, /* bytes from which a payload goes by it, where possible */
        PIECE = 64000,         /* bytes; with headers it fits one buffer (bulk_ucx_context.c) */
        ROUND = 512 << 10,     /* bytes of pieces before the next peer's turn */
};

/* Of a whole payload (rendezvous), or of one piece. */
struct ucx_header {
        uint64_t token, transfer, length, offset, sender;
};

struct ucx_send {
        struct bulk_op op;
        struct list link;
        struct ucx_peer *peer;
        const uint8_t *p;
        size_t piece;
        struct ucx_header header; /* offset: what was given */
};

struct ucx_landing {
        struct ucx_peer *peer;
        struct landing *landing;
};

/* ---- receiving ---- */

static struct ucx_peer *find_peer(struct bulk_ucx *ucx, const struct ucx_header *header)
{
        list_for_each (&ucx->peers, item) {
                struct ucx_peer *peer = CONTAINER_OF(item, struct ucx_peer, link);
                if (peer->sender == header->sender)
                        return peer;
        }
        return NULL;
}

static bool token_was_closed(const struct bulk_ucx *ucx, uint64_t token)
{
        for (size_t i = 0; i < UCX_CLOSED_TOKENS && i < ucx->n_closed; i++) {
                if (ucx->closed_tokens[i] == token)
                        return true;
        }
        return false;
}

static void on_landed(void *request, ucs_status_t status, size_t length, void *arg)
{
        struct ucx_landing *in = arg;
        struct ucx_peer *peer = in->peer;
        bool whole = status == UCS_OK && length == in->landing->n;

        if (!whole)
                bulk_base_break(&peer->base, "a payload failed on its way");
        bulk_base_landed(&peer->base, in->landing,
                         whole ? 0 : (peer->base.closing ? -ECANCELED : -EIO));
        peer->landings--;
        ucx_peer_finish(peer);
        free(in);
        if (request)
                ucp_request_free(request);
}

static void land_rendezvous(struct ucx_peer *peer, struct landing *landing, void *descriptor)
{
        struct ucx_landing *in = malloc(sizeof *in);
        const ucp_request_param_t param = {
                .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
                .cb.recv_am = on_landed,
                .user_data = in,
        };
        ucs_status_ptr_t request;

        if (!in) {
                bulk_base_break(&peer->base, "out of memory");
                bulk_base_landed(&peer->base, landing, -EIO);
                return;
        }
        *in = (struct ucx_landing){ .peer = peer, .landing = landing };
        peer->landings++;
        request =
                ucp_am_recv_data_nbx(peer->ucx->worker, descriptor, landing->p, landing->n, &param);
        if (UCS_PTR_IS_ERR(request))
                on_landed(NULL, UCS_PTR_STATUS(request), 0, in);
}

static void arrive_rendezvous(struct ucx_peer *peer, const struct ucx_header *header, size_t length,
                              void *descriptor)
{
        struct landing *landing;

        if (header->length != length)
                bulk_base_break(&peer->base, "it sent a payload of the wrong length");
        else if (bulk_base_arrive(&peer->base, header->transfer, length, &landing) == 0)
                land_rendezvous(peer, landing, descriptor);
}

/* Returning UCS_OK without having asked for the bytes drops them. */
ucs_status_t ucx_on_payload(void *arg, const void *header_bytes, size_t header_size, void *data,
                            size_t length, const ucp_am_recv_param_t *param)
{
        struct bulk_ucx *ucx = arg;
        struct ucx_header header; /* comes unaligned */
        struct ucx_peer *peer;

        if (header_size != sizeof header)
                return UCS_OK;
        memcpy(&header, header_bytes, sizeof header);
        peer = find_peer(ucx, &header);
        if (!peer || token_was_closed(ucx, header.token))
                return UCS_OK;
        if (header.token != peer->token) {
                bulk_base_break(&peer->base, "it sent a payload with another token");
                return UCS_OK;
        }
        if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)
                arrive_rendezvous(peer, &header, length, data);
        else
                bulk_base_piece(&peer->base, header.transfer, header.length, header.offset, data,
                                length);
        return UCS_OK;
}

/* ---- sending ---- */

static void end_send(struct ucx_send *send, ucs_status_t status)
{
        struct ucx_peer *peer = send->peer;

        list_remove(&send->link);
        if (status == UCS_OK)
                peer->base.peer.sent_bytes += send->header.length;
        else
                bulk_base_break(&peer->base, "a payload failed on its way");
        bulk_op_end(&peer->ucx->queue, &send->op,
                    status == UCS_OK ? 0 : (peer->base.closing ? -ECANCELED : -EIO));
}

static void on_sent(void *request, ucs_status_t status, void *arg)
{
        struct ucx_send *send = arg;
        struct ucx_peer *peer = send->peer;

        end_send(send, status);
        peer->sends--;
        ucx_peer_finish(peer);
        ucp_request_free(request);
}

static void piece_given(struct ucx_send *send, ucs_status_t status)
{
        send->header.offset += send->piece;
        if (status != UCS_OK || send->header.offset == send->header.length)
                end_send(send, status);
        else if (send->peer->base.closing)
                end_send(send, UCS_ERR_CANCELED);
}

static void on_piece(void *request, ucs_status_t status, void *arg)
{
        struct ucx_send *send = arg;
        struct ucx_peer *peer = send->peer;

        peer->waiting = false;
        piece_given(send, status);
        peer->sends--;
        ucx_peer_finish(peer);
        ucp_request_free(request);
}

static ucs_status_ptr_t give(struct ucx_send *send, size_t n, uint32_t flags,
                             ucp_send_nbx_callback_t given)
{
        const ucp_request_param_t param = {
                .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                UCP_OP_ATTR_FIELD_FLAGS,
                .cb.send = given,
                .user_data = send,
                .flags = flags,
        };
        ucs_status_ptr_t request;

        send->peer->sends++;
        request = ucp_am_send_nbx(send->peer->endpoint, UCX_AM_PAYLOAD, &send->header,
                                  sizeof send->header, send->p + send->header.offset, n, &param);
        if (!UCS_PTR_IS_PTR(request))
                send->peer->sends--;
        return request;
}

static void give_whole(struct ucx_send *send)
{
        ucs_status_ptr_t request;

        list_remove(&send->link);
        request = give(send, send->header.length, UCP_AM_SEND_FLAG_RNDV, on_sent);
        if (!UCS_PTR_IS_PTR(request))
                end_send(send, UCS_PTR_STATUS(request));
}

static void give_piece(struct ucx_send *send)
{
        size_t rest = send->header.length - send->header.offset;
        ucs_status_ptr_t request;

        send->piece = rest < PIECE ? rest : PIECE;
        request = give(send, send->piece, UCP_AM_SEND_FLAG_EAGER, on_piece);
        if (UCS_PTR_IS_PTR(request))
                send->peer->waiting = true;
        else
                piece_given(send, UCS_PTR_STATUS(request));
}

bool ucx_peer_pump(struct ucx_peer *peer)
{
        size_t given = 0;

        while (given < ROUND && !peer->waiting && !peer->base.broken &&
               !list_empty(&peer->queued)) {
                struct ucx_send *send = CONTAINER_OF(peer->queued.next, struct ucx_send, link);
                given += PIECE;
                if (peer->can_get && send->header.length >= RENDEZVOUS)
                        give_whole(send);
                else
                        give_piece(send);
        }
        return given > 0;
}

int ucx_peer_send(struct bulk_peer *p_peer, uint64_t transfer, const void *p, size_t n,
                  bulk_done *done, void *arg)
{
        struct ucx_peer *peer = ucx_peer_of(p_peer);
        struct ucx_send *send;
        int r = bulk_base_usable(&peer->base);

        if (r)
                return r;
        send = calloc(1, sizeof *send);
        if (!send)
                return -ENOMEM;
        bulk_op_init(&send->op, done, arg);
        send->peer = peer;
        send->p = p;
        send->header = (struct ucx_header){
                .token = peer->token, .transfer = transfer, .length = n, .sender = peer->ucx->self
        };
        list_insert(&peer->queued, &send->link);
        bulk_queue_wake(&peer->ucx->queue);
        return 0;
}

void ucx_peer_cancel(struct ucx_peer *peer)
{
        list_for_each (&peer->queued, item) {
                struct ucx_send *send = CONTAINER_OF(item, struct ucx_send, link);
                if (peer->waiting && item == peer->queued.next)
                        continue; /* UCX will return it */
                end_send(send, UCS_ERR_CANCELED);
        }
}

/*
 * Payloads over UCX; see ucx.c for the rules.
 *
 * Receiving runs inside UCX's progress and only notes what happened; sending is done piece by
 * piece from the loop, as UCX takes them.
 */
#include "daemon/fabric/bulk/ucx_port.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/compute/device/place/place.h"

enum {
        RENDEZVOUS = 16 << 10, /* bytes from which a payload goes by it, where possible */
        PIECE = 32 << 10,      /* bytes; with headers it fits one buffer (ucx_context.c) */
        ROUND = 512 << 10,     /* bytes of pieces before progress has its turn */
};

/* Of a whole payload (rendezvous), or of one piece. */
struct ucx_header {
        uint64_t token, transfer, length, offset;
};

struct ucx_send {
        struct bulk_op op;
        struct list link;
        struct bulk_ucx_port *port;
        const uint8_t *p;
        size_t piece;
        bool read;                /* by rendezvous: what is left to give is the confirmation */
        struct ucx_header header; /* offset: what was given */
};

struct ucx_receive {
        struct list link;
        struct bulk_ucx_port *port;
        struct receive *receive;
        bool read, confirmed; /* it ends when it is both */
};

/* UCX holds what there is to know of it until it is expected or forgotten. */
struct ucx_announced {
        struct list link;
        uint64_t transfer;
        size_t n;
        void *descriptor;
};

/* Of what lies at p; its GPU is chosen for what UCX does now. */
static ucs_memory_type_t memory_type(const void *p)
{
        uint32_t place = place_of(p);

        if (place_is_host(place))
                return UCS_MEMORY_TYPE_HOST;
        place_use(place);
        return UCS_MEMORY_TYPE_CUDA;
}

/* ---- receiving ---- */

static void end_receive(struct ucx_receive *in, bool whole)
{
        struct bulk_ucx_port *port = in->port;

        if (!whole)
                bulk_base_break(&port->base, "a payload failed on its way");
        bulk_base_landed(&port->base, in->receive,
                         whole ? 0 : (port->base.closing ? -ECANCELED : -EIO));
        list_remove(&in->link);
        free(in);
}

static void on_landed(void *request, ucs_status_t status, size_t length, void *arg)
{
        struct ucx_receive *in = arg;

        in->read = status == UCS_OK && length == in->receive->n;
        if (!in->read || in->confirmed)
                end_receive(in, in->read);
        ucp_request_free(request);
}

static void land_rendezvous(struct bulk_ucx_port *port, struct receive *receive, void *descriptor)
{
        struct ucx_receive *in = calloc(1, sizeof *in);
        const ucp_request_param_t param = {
                .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
                .cb.recv_am = on_landed,
                .user_data = in,
                .memory_type = memory_type(receive->p),
        };
        ucs_status_ptr_t request;

        if (!in) {
                bulk_base_break(&port->base, "out of memory");
                bulk_base_landed(&port->base, receive, -EIO);
                return;
        }
        in->port = port;
        in->receive = receive;
        list_insert(&port->receives, &in->link);
        request = ucp_am_recv_data_nbx(port->worker, descriptor, receive->p, receive->n, &param);
        if (UCS_PTR_IS_ERR(request))
                end_receive(in, false);
}

static struct ucx_announced *announced_find(const struct bulk_ucx_port *port, uint64_t transfer)
{
        list_for_each (&port->announced, item) {
                struct ucx_announced *announced = CONTAINER_OF(item, struct ucx_announced, link);

                if (announced->transfer == transfer)
                        return announced;
        }
        return NULL;
}

static ucs_status_t keep_announced(struct bulk_ucx_port *port, uint64_t transfer, size_t n,
                                   void *descriptor)
{
        bool few = port->n_announced < BULK_ANNOUNCED_MAX;
        struct ucx_announced *announced;

        if (announced_find(port, transfer)) {
                bulk_base_break(&port->base, "it announced a payload twice");
                return UCS_OK;
        }
        announced = few ? malloc(sizeof *announced) : NULL;
        if (!announced) {
                bulk_base_break(&port->base,
                                few ? "out of memory" : "it announced too many payloads at once");
                return UCS_OK;
        }
        announced->transfer = transfer;
        announced->n = n;
        announced->descriptor = descriptor;
        list_insert(&port->announced, &announced->link);
        port->n_announced++;
        return UCS_INPROGRESS;
}

static ucs_status_t arrive_rendezvous(struct bulk_ucx_port *port, const struct ucx_header *header,
                                      size_t length, void *descriptor)
{
        struct receive *receive;
        int r;

        if (header->length != length) {
                bulk_base_break(&port->base, "it sent a payload of the wrong length");
                return UCS_OK;
        }
        r = bulk_base_arrive(&port->base, header->transfer, length, &receive);
        if (r == 2)
                return keep_announced(port, header->transfer, length, descriptor);
        if (r == 0)
                land_rendezvous(port, receive, descriptor);
        return UCS_OK;
}

/* The header comes unaligned. */
static bool header_read(struct bulk_ucx_port *port, const void *bytes, size_t size,
                        struct ucx_header *ret)
{
        if (!port->endpoint)
                return false;
        if (size == sizeof *ret)
                memcpy(ret, bytes, size);
        if (size != sizeof *ret || ret->token != port->token) {
                bulk_base_break(&port->base, "it sent a payload with another token");
                return false;
        }
        return true;
}

/* Returning UCS_OK without having asked for the bytes drops them. */
ucs_status_t ucx_port_on_payload(void *arg, const void *header_bytes, size_t header_size,
                                 void *data, size_t length, const ucp_am_recv_param_t *param)
{
        struct bulk_ucx_port *port = arg;
        struct ucx_header header;

        if (!header_read(port, header_bytes, header_size, &header))
                return UCS_OK;
        if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)
                return arrive_rendezvous(port, &header, length, data);
        bulk_base_piece(&port->base, header.transfer, header.length, header.offset, data, length);
        return UCS_OK;
}

/* Of a payload that was dropped, perhaps. */
ucs_status_t ucx_port_on_confirmation(void *arg, const void *header_bytes, size_t header_size,
                                      void *data, size_t length, const ucp_am_recv_param_t *param)
{
        struct bulk_ucx_port *port = arg;
        struct ucx_header header;

        if (!header_read(port, header_bytes, header_size, &header))
                return UCS_OK;
        list_for_each (&port->receives, item) {
                struct ucx_receive *in = CONTAINER_OF(item, struct ucx_receive, link);

                if (in->receive->transfer != header.transfer)
                        continue;
                in->confirmed = true;
                if (in->read)
                        end_receive(in, true);
                break;
        }
        return UCS_OK;
}

static struct ucx_announced *announced_take(struct bulk_ucx_port *port, uint64_t transfer)
{
        struct ucx_announced *announced = announced_find(port, transfer);

        if (announced) {
                list_remove(&announced->link);
                port->n_announced--;
        }
        return announced;
}

/* The sender is told that it may have its memory back. */
static void announced_drop(struct bulk_ucx_port *port, struct ucx_announced *announced)
{
        ucp_am_data_release(port->worker, announced->descriptor);
        free(announced);
}

int ucx_port_expect(struct bulk_peer *peer, uint64_t transfer, void *p, size_t n, bulk_done *done,
                    void *arg)
{
        struct bulk_ucx_port *port = ucx_port_of(peer);
        int r = bulk_base_expect(peer, transfer, p, n, done, arg);
        struct ucx_announced *announced = r ? NULL : announced_take(port, transfer);
        struct receive *receive;

        if (!announced)
                return r;
        ucx_port_wake(port);
        if (bulk_base_arrive(&port->base, transfer, announced->n, &receive)) {
                announced_drop(port, announced);
                return 0;
        }
        land_rendezvous(port, receive, announced->descriptor);
        free(announced);
        return 0;
}

void ucx_port_forget(struct bulk_peer *peer, uint64_t transfer)
{
        struct bulk_ucx_port *port = ucx_port_of(peer);
        struct ucx_announced *announced = announced_take(port, transfer);

        if (!announced) {
                bulk_base_forget(peer, transfer);
                return;
        }
        announced_drop(port, announced);
        ucx_port_wake(port);
}

void ucx_port_forget_all(struct bulk_ucx_port *port)
{
        list_for_each (&port->announced, item) {
                list_remove(item);
                announced_drop(port, CONTAINER_OF(item, struct ucx_announced, link));
        }
}

/* ---- sending ---- */

static void end_send(struct ucx_send *send, ucs_status_t status)
{
        struct bulk_ucx_port *port = send->port;

        list_remove(&send->link);
        if (status == UCS_OK)
                port->base.peer.sent_bytes += send->header.length;
        else
                bulk_base_break(&port->base, "a payload failed on its way");
        bulk_op_end(&port->queue, &send->op,
                    status == UCS_OK ? 0 : (port->base.closing ? -ECANCELED : -EIO));
}

/* It has been read.  A port that is closing gives nothing more, so it confirms nothing. */
static void whole_given(struct ucx_send *send, ucs_status_t status)
{
        if (status != UCS_OK) {
                end_send(send, status);
                return;
        }
        send->read = true;
        send->header.offset = send->header.length;
        list_remove(&send->link);
        list_insert(&send->port->queued, &send->link);
        bulk_queue_wake(&send->port->queue);
}

static void on_sent(void *request, ucs_status_t status, void *arg)
{
        whole_given(arg, status);
        ucp_request_free(request);
}

static void piece_given(struct ucx_send *send, ucs_status_t status)
{
        send->header.offset += send->piece;
        if (status != UCS_OK || send->header.offset == send->header.length)
                end_send(send, status);
}

static void on_piece(void *request, ucs_status_t status, void *arg)
{
        struct ucx_send *send = arg;

        send->port->waiting = false;
        piece_given(send, status);
        ucp_request_free(request);
}

static ucs_status_ptr_t give(struct ucx_send *send, size_t n, uint32_t flags,
                             ucp_send_nbx_callback_t given)
{
        const ucp_request_param_t param = {
                .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
                .cb.send = given,
                .user_data = send,
                .flags = flags,
                .memory_type = send->read ? UCS_MEMORY_TYPE_HOST : memory_type(send->p),
        };

        return ucp_am_send_nbx(send->port->endpoint,
                               send->read ? UCX_AM_CONFIRMATION : UCX_AM_PAYLOAD, &send->header,
                               sizeof send->header,
                               send->read ? NULL : send->p + send->header.offset, n, &param);
}

static void give_whole(struct ucx_send *send)
{
        ucs_status_ptr_t request;

        list_remove(&send->link);
        list_insert(&send->port->inside, &send->link);
        request = give(send, send->header.length, UCP_AM_SEND_FLAG_RNDV, on_sent);
        if (!UCS_PTR_IS_PTR(request))
                whole_given(send, UCS_PTR_STATUS(request));
}

static void give_piece(struct ucx_send *send)
{
        size_t rest = send->header.length - send->header.offset;
        ucs_status_ptr_t request;

        send->piece = rest < PIECE ? rest : PIECE;
        request = give(send, send->piece, UCP_AM_SEND_FLAG_EAGER, on_piece);
        if (UCS_PTR_IS_PTR(request))
                send->port->waiting = true;
        else
                piece_given(send, UCS_PTR_STATUS(request));
}

bool ucx_port_pump(struct bulk_ucx_port *port)
{
        size_t given = 0;

        while (given < ROUND && !port->waiting && !port->base.broken &&
               !list_empty(&port->queued)) {
                struct ucx_send *send = CONTAINER_OF(port->queued.next, struct ucx_send, link);
                given += PIECE;
                if (port->can_get && !send->read &&
                    (send->header.length >= RENDEZVOUS || send->header.transfer & BULK_ANNOUNCED))
                        give_whole(send);
                else
                        give_piece(send);
        }
        return given > 0;
}

int ucx_port_send(struct bulk_peer *peer, uint64_t transfer, const void *p, size_t n,
                  bulk_done *done, void *arg)
{
        struct bulk_ucx_port *port = ucx_port_of(peer);
        struct ucx_send *send;
        int r = bulk_base_usable(&port->base);

        assert(peer->gpu || place_is_host(place_of(p)));
        if (r)
                return r;
        send = calloc(1, sizeof *send);
        if (!send)
                return -ENOMEM;
        bulk_op_init(&send->op, done, arg);
        send->port = port;
        send->p = p;
        send->header =
                (struct ucx_header){ .token = port->token, .transfer = transfer, .length = n };
        list_insert(&port->queued, &send->link);
        ucx_port_wake(port);
        return 0;
}

/* ---- the end ---- */

bool ucx_port_is_empty(const struct bulk_ucx_port *port)
{
        list_for_each (&port->receives, item) {
                if (!CONTAINER_OF(item, struct ucx_receive, link)->read)
                        return false;
        }
        return !port->waiting && list_empty(&port->inside);
}

static void cancel_sends(struct list *sends)
{
        list_for_each (sends, item) {
                end_send(CONTAINER_OF(item, struct ucx_send, link), UCS_ERR_CANCELED);
        }
}

void ucx_port_cancel(struct bulk_ucx_port *port)
{
        cancel_sends(&port->queued);
        cancel_sends(&port->inside);
        list_for_each (&port->receives, item) {
                end_receive(CONTAINER_OF(item, struct ucx_receive, link), false);
        }
}

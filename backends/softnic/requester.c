/* The send side of a QP: turns send queue entries into frames, and responses into completions.
 *
 * Messages leave in posting order, each with the next PSN. What is not acknowledged is sent again from the
 * first such message on (go-back-N), after a timeout when the other side could not be reached, or after its
 * RNR timer.
 */
#include "gpu.h"
#include "srd.h"

#include <errno.h>
#include <string.h>

enum {
    COPY_LIMIT =
        4096, /* up to here two copies through a socket cost less than one out of the peer's memory */
    LINK_LIMIT = 256 << 10, /* bytes that may wait in a link's buffer before more message data joins them */
    READ_PIECE = 1 << 20,   /* a READ through the socket asks for this much at a time */
};

/* IB specification, table "Encoding for RNR NAK timer field", in units of 10 us. */
static const uint32_t rnr_timer_10us[32] = {
    65536, 1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,   192,
    256,   384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};

static struct softnic_context *context_of(struct softnic_qp *qp)
{
    return softnic_context_of(qp->ibv.context);
}

static bool needs_response(const struct softnic_wqe *wqe)
{
    return wqe->opcode == IBV_WR_RDMA_READ || wqe->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
           wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

static void want_timer(struct softnic_qp *qp, uint64_t when)
{
    if (!qp->timer_ns || when < qp->timer_ns)
        qp->timer_ns = when;
    softnic_timer_at(context_of(qp), when);
}

static void go_back(struct softnic_qp *qp)
{
    qp->sq_cursor = qp->sq_acked;
    qp->tx_offset = qp->read_offset = 0;
    qp->reads_open = 0;
}

static void wait_and_resend(struct softnic_qp *qp, uint64_t delay_ns, bool timeout)
{
    go_back(qp);
    qp->waiting = true;
    qp->timed_out = timeout;
    qp->retry_at = softnic_now() + delay_ns;
    want_timer(qp, qp->retry_at);
}

/* Nobody answers. A real requester finds that out by its timer only, so this does not fail sooner either. */
static void unreachable(struct softnic_qp *qp)
{
    if (qp->waiting || qp->sq_acked == qp->sq_posted)
        return;
    if (qp->attr.timeout) {
        wait_and_resend(qp, (uint64_t)4096 << qp->attr.timeout, true);
    } else { /* no timer, as the specification has it: waits until the QP is moved to another state */
        go_back(qp);
        qp->waiting = true;
        qp->retry_at = UINT64_MAX;
    }
}

static void complete(struct softnic_qp *qp, const struct softnic_wqe *wqe, enum ibv_wc_status status)
{
    static const uint8_t opcodes[] = {[IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,
                                      [IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
                                      [IBV_WR_SEND] = IBV_WC_SEND,
                                      [IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND,
                                      [IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,
                                      [IBV_WR_ATOMIC_CMP_AND_SWP] = IBV_WC_COMP_SWAP,
                                      [IBV_WR_ATOMIC_FETCH_AND_ADD] = IBV_WC_FETCH_ADD};
    uint64_t release = ++qp->sq_completed;
    if (status == IBV_WC_SUCCESS && !wqe->signaled && !qp->init.sq_sig_all)
        return;
    struct softnic_cqe cqe = {.wc = {.wr_id = wqe->wr_id,
                                     .status = status,
                                     .opcode = (enum ibv_wc_opcode)opcodes[wqe->opcode],
                                     .byte_len = needs_response(wqe) ? wqe->length : 0,
                                     .qp_num = qp->ibv.qp_num},
                              .qp = qp,
                              .sq_release = release,
                              .last = release == qp->sq_posted};
    softnic_cq_push(softnic_cq_of(qp->init.send_cq), &cqe, false);
}

void softnic_qp_fail(struct softnic_qp *qp, enum ibv_wc_status first)
{
    if (qp->srd) {
        softnic_srd_flush(qp);
        return;
    }
    while (qp->sq_completed < qp->sq_acked)
        complete(qp, softnic_wqe_at(qp, qp->sq_completed), IBV_WC_SUCCESS);
    qp->ibv.state = qp->attr.qp_state = IBV_QPS_ERR;
    qp->generation++;
    qp->waiting = false;
    qp->timer_ns = 0;
    while (qp->sq_completed < qp->sq_posted) {
        complete(qp, softnic_wqe_at(qp, qp->sq_completed), first);
        first = IBV_WC_WR_FLUSH_ERR;
    }
    qp->sq_acked = qp->sq_cursor = qp->sq_posted;
    qp->reads_open = 0;
    softnic_qp_flush_receives(qp);
}

/* Completes what has been answered and is due; then, if its turn has come, what cannot be sent. */
void softnic_requester_retire(struct softnic_qp *qp)
{
    uint64_t now = 0;
    while (qp->sq_completed < qp->sq_acked) {
        struct softnic_wqe *wqe = softnic_wqe_at(qp, qp->sq_completed);
        if (wqe->due_ns && wqe->due_ns > (now ? now : (now = softnic_now()))) {
            want_timer(qp, wqe->due_ns);
            return;
        }
        complete(qp, wqe, IBV_WC_SUCCESS);
    }
    if (qp->ibv.state == IBV_QPS_RTS && qp->sq_completed == qp->sq_cursor && qp->sq_cursor < qp->sq_posted) {
        enum ibv_wc_status status = softnic_wqe_at(qp, qp->sq_cursor)->status;
        if (status != IBV_WC_SUCCESS && qp->busy)
            want_timer(qp, softnic_now()); /* a copy into this QP's buffers is running: fail after it */
        else if (status != IBV_WC_SUCCESS)
            softnic_qp_fail(qp, status);
    }
    bool begun = qp->sq_cursor < qp->sq_posted && softnic_wqe_at(qp, qp->sq_cursor)->sent_before;
    if (qp->ibv.state == IBV_QPS_SQD && qp->sq_completed == qp->sq_cursor && !begun && !qp->drained_told) {
        qp->drained_told = true;
        if (qp->attr.en_sqd_async_notify)
            softnic_event_qp(qp, IBV_EVENT_SQ_DRAINED);
    }
}

static struct softnic_frame frame_for(struct softnic_qp *qp, const struct softnic_wqe *wqe)
{
    static const uint8_t kinds[] = {[IBV_WR_RDMA_WRITE] = SOFTNIC_WRITE,
                                    [IBV_WR_RDMA_WRITE_WITH_IMM] = SOFTNIC_WRITE,
                                    [IBV_WR_SEND] = SOFTNIC_SEND,
                                    [IBV_WR_SEND_WITH_IMM] = SOFTNIC_SEND,
                                    [IBV_WR_RDMA_READ] = SOFTNIC_READ,
                                    [IBV_WR_ATOMIC_CMP_AND_SWP] = SOFTNIC_COMPARE_SWAP,
                                    [IBV_WR_ATOMIC_FETCH_AND_ADD] = SOFTNIC_FETCH_ADD};
    bool imm = wqe->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || wqe->opcode == IBV_WR_SEND_WITH_IMM;
    bool solicited = wqe->solicited && (imm || wqe->opcode == IBV_WR_SEND);
    return (struct softnic_frame){
        .kind = kinds[wqe->opcode],
        .flags = (uint8_t)((imm ? SOFTNIC_FLAG_IMM : 0) | (solicited ? SOFTNIC_FLAG_SOLICITED : 0)),
        .qpn_to = qp->attr.dest_qp_num,
        .qpn_from = qp->ibv.qp_num,
        .psn = (uint32_t)(qp->attr.sq_psn + qp->sq_cursor) & SOFTNIC_MESSAGE_MASK,
        .imm = imm ? wqe->imm : 0,
        .rkey = wqe->rkey,
        .length = wqe->length,
        .address = wqe->remote,
        .operand = {wqe->operand[0], wqe->operand[1]}};
}

enum sent { SENT, BLOCKED, REFUSED };

/* Data in frames, as much as the link has room for. */
static enum sent send_payload(struct softnic_qp *qp, struct softnic_wqe *wqe, struct softnic_link *link)
{
    struct softnic_frame head = frame_for(qp, wqe);
    struct iovec from[SOFTNIC_MAX_SGE];
    do {
        if (softnic_link_pending(link) > LINK_LIMIT)
            softnic_link_flush(link);
        if (link->dead || softnic_link_pending(link) > LINK_LIMIT)
            return BLOCKED;
        uint32_t left = wqe->length - qp->tx_offset;
        head.payload = left < SOFTNIC_MAX_PAYLOAD ? left : SOFTNIC_MAX_PAYLOAD;
        head.offset = qp->tx_offset;
        int count = wqe->is_inline ? 0
                                   : softnic_sge_slice(context_of(qp), qp->ibv.pd, wqe->sge, wqe->num_sge, 0,
                                                       head.offset, head.payload, from, NULL);
        if (count < 0)
            return REFUSED;
        char *to = softnic_link_reserve(link, &head, head.payload);
        if (!to) {
            softnic_link_kill(link);
            return BLOCKED;
        }
        if (wqe->is_inline)
            memcpy(to, wqe->inline_data, head.payload);
        for (int i = 0; i < count; to += from[i].iov_len, i++)
            memcpy(to, from[i].iov_base, from[i].iov_len);
        qp->tx_offset += head.payload;
    } while (qp->tx_offset < wqe->length);
    return SENT;
}

/* The addresses of the data; the peer fetches it. */
static enum sent send_segments(struct softnic_qp *qp, struct softnic_wqe *wqe, struct softnic_link *link)
{
    struct softnic_frame head = frame_for(qp, wqe);
    struct softnic_segment segment[SOFTNIC_MAX_SEGMENTS];
    struct iovec from[SOFTNIC_MAX_SGE];
    int count =
        softnic_sge_slice(context_of(qp), qp->ibv.pd, wqe->sge, wqe->num_sge, 0, 0, wqe->length, from, NULL);
    if (count < 0)
        return REFUSED;
    for (int i = 0; i < count; i++)
        segment[i] = (struct softnic_segment){(uintptr_t)from[i].iov_base, from[i].iov_len};
    head.segments = (uint16_t)count;
    head.flags |= SOFTNIC_FLAG_PULL;
    if (softnic_link_append(link, &head, segment, (size_t)count * sizeof(segment[0]))) {
        softnic_link_kill(link);
        return BLOCKED;
    }
    return SENT;
}

static bool in_gpu_memory(struct softnic_qp *qp, const struct softnic_wqe *wqe, unsigned access)
{
    struct iovec at[SOFTNIC_MAX_SGE];
    struct softnic_mr *mr[SOFTNIC_MAX_SGE];
    int count = wqe->is_inline ? 0
                               : softnic_sge_slice(context_of(qp), qp->ibv.pd, wqe->sge, wqe->num_sge, access,
                                                   0, wqe->length, at, mr);
    bool gpu = false;
    for (int i = 0; i < count; i++)
        gpu |= mr[i]->gpu;
    return gpu;
}

static enum sent send_read(struct softnic_qp *qp, struct softnic_wqe *wqe, struct softnic_link *link)
{
    struct softnic_frame head = frame_for(qp, wqe);
    struct iovec to[SOFTNIC_MAX_SGE];
    if (softnic_sge_slice(context_of(qp), qp->ibv.pd, wqe->sge, wqe->num_sge, IBV_ACCESS_LOCAL_WRITE, 0,
                          wqe->length, to, NULL) < 0 ||
        in_gpu_memory(qp, wqe, IBV_ACCESS_LOCAL_WRITE))
        return REFUSED;
    if (!qp->tx_offset)
        qp->reads_open++;
    uint32_t left = wqe->length - qp->tx_offset;
    head.offset = qp->tx_offset;
    head.operand[0] = link->pulls || left < READ_PIECE ? left : READ_PIECE;
    head.flags |= link->pulls ? SOFTNIC_FLAG_PULL : 0;
    if (softnic_link_append(link, &head, NULL, 0)) {
        softnic_link_kill(link);
        return BLOCKED;
    }
    qp->tx_offset += (uint32_t)head.operand[0];
    return qp->tx_offset < wqe->length ? BLOCKED : SENT; /* the next piece goes when this one has come */
}

static enum sent send_atomic(struct softnic_qp *qp, struct softnic_wqe *wqe, struct softnic_link *link)
{
    struct softnic_frame head = frame_for(qp, wqe);
    struct iovec to[SOFTNIC_MAX_SGE];
    if (softnic_sge_slice(context_of(qp), qp->ibv.pd, wqe->sge, wqe->num_sge, IBV_ACCESS_LOCAL_WRITE, 0, 8,
                          to, NULL) < 0 ||
        in_gpu_memory(qp, wqe, IBV_ACCESS_LOCAL_WRITE))
        return REFUSED;
    if (softnic_link_append(link, &head, NULL, 0)) {
        softnic_link_kill(link);
        return BLOCKED;
    }
    qp->reads_open++;
    return SENT;
}

static enum sent send_one(struct softnic_qp *qp, struct softnic_wqe *wqe, struct softnic_link *link)
{
    if (wqe->opcode == IBV_WR_RDMA_READ)
        return send_read(qp, wqe, link);
    if (needs_response(wqe))
        return send_atomic(qp, wqe, link);
    if (context_of(qp)->shares && in_gpu_memory(qp, wqe, 0)) {
        softnic_share_announce(link);
        return send_segments(qp, wqe, link);
    }
    if (wqe->is_inline || wqe->length <= COPY_LIMIT || !link->peer_pulls)
        return send_payload(qp, wqe, link);
    return send_segments(qp, wqe, link);
}

/* The link to send on, or NULL when nothing can be sent now. */
static struct softnic_link *link_for(struct softnic_qp *qp)
{
    struct softnic_context *ctx = context_of(qp);
    if (softnic_drops(ctx, qp->peer_device))
        softnic_links_drop(ctx);
    if (!qp->link)
        qp->link = softnic_link_to(ctx, qp->peer_device, qp->peer_context);
    if (!qp->link) {
        unreachable(qp);
        return NULL;
    }
    return qp->link->ready ? qp->link : NULL;
}

void softnic_requester_pump(struct softnic_qp *qp)
{
    while (!qp->waiting && qp->sq_cursor < qp->sq_posted) {
        struct softnic_wqe *wqe = softnic_wqe_at(qp, qp->sq_cursor);
        if (qp->ibv.state != IBV_QPS_RTS && !(qp->ibv.state == IBV_QPS_SQD && wqe->sent_before))
            break; /* a draining queue finishes what it has begun */
        bool responds = needs_response(wqe);
        if (wqe->status != IBV_WC_SUCCESS || (wqe->fence && qp->reads_open))
            break;
        if (responds && !qp->tx_offset && qp->reads_open >= qp->attr.max_rd_atomic) {
            if (!qp->attr.max_rd_atomic)
                wqe->status = IBV_WC_LOC_QP_OP_ERR;
            break;
        }
        if (wqe->release_ns && wqe->release_ns > softnic_now()) {
            want_timer(qp, wqe->release_ns);
            break;
        }
        struct softnic_link *link = link_for(qp);
        if (!link)
            break;
        enum sent sent = send_one(qp, wqe, link);
        if (sent == REFUSED)
            wqe->status = IBV_WC_LOC_PROT_ERR;
        if (sent != SENT)
            break;
        if (wqe->sent_before)
            qp->counters.retransmissions++;
        else
            softnic_tally_sent(qp, qp->peer_device, qp->attr.dest_qp_num, wqe);
        wqe->sent_before = true;
        qp->counters.sent_messages++;
        qp->counters.sent_bytes += wqe->opcode == IBV_WR_RDMA_READ ? 0 : wqe->length;
        qp->sq_cursor++;
        qp->tx_offset = 0;
    }
    softnic_requester_retire(qp);
}

void softnic_requester_timer(struct softnic_qp *qp, uint64_t now)
{
    if (qp->srd) {
        softnic_srd_pump(qp);
        return;
    }
    if (qp->waiting && qp->retry_at <= now) {
        if (qp->timed_out && !qp->retries_left) {
            softnic_qp_fail(qp, IBV_WC_RETRY_EXC_ERR);
            return;
        }
        if (qp->timed_out)
            qp->retries_left--;
        qp->waiting = false;
    } else if (qp->waiting && qp->retry_at != UINT64_MAX) {
        want_timer(qp, qp->retry_at);
    }
    softnic_requester_pump(qp);
}

void softnic_requester_link_lost(struct softnic_context *ctx, struct softnic_link *link)
{
    for (uint32_t i = 0; i < ctx->qp_top; i++) {
        struct softnic_qp *qp = ctx->qp[i];
        if (qp && qp->srd)
            softnic_srd_link_lost(qp, link);
        if (!qp || qp->link != link)
            continue;
        qp->link = NULL;
        if (qp->ibv.state == IBV_QPS_RTS || qp->ibv.state == IBV_QPS_SQD)
            unreachable(qp);
    }
}

void softnic_requester_link_ready(struct softnic_context *ctx, struct softnic_link *link)
{
    for (uint32_t i = 0; i < ctx->qp_top; i++)
        if (ctx->qp[i] && ctx->qp[i]->srd)
            softnic_srd_pump(ctx->qp[i]);
        else if (ctx->qp[i] && ctx->qp[i]->link == link)
            softnic_requester_pump(ctx->qp[i]);
}

/* Everything before `index` is done. */
static bool acknowledge(struct softnic_qp *qp, uint64_t index)
{
    if (index == qp->sq_acked)
        return true; /* no progress: the retries go on counting */
    for (; qp->sq_acked < index; qp->sq_acked++)
        if (needs_response(softnic_wqe_at(qp, qp->sq_acked)))
            return false; /* its data should have come first */
    qp->retries_left = qp->attr.retry_cnt;
    qp->rnr_left = qp->attr.rnr_retry;
    return true;
}

static void finish_response(struct softnic_qp *qp)
{
    qp->read_offset = 0;
    qp->reads_open--;
    qp->sq_acked++;
    qp->retries_left = qp->attr.retry_cnt;
    qp->rnr_left = qp->attr.rnr_retry;
}

static void refused(struct softnic_qp *qp, const struct softnic_frame *head)
{
    static const enum ibv_wc_status statuses[SOFTNIC_NAKS] = {[SOFTNIC_NAK_STRANGER] = IBV_WC_REM_OP_ERR,
                                                  [SOFTNIC_NAK_ACCESS] = IBV_WC_REM_ACCESS_ERR,
                                                  [SOFTNIC_NAK_INVALID] = IBV_WC_REM_INV_REQ_ERR,
                                                  [SOFTNIC_NAK_OPERATION] = IBV_WC_REM_OP_ERR};
    if (head->operand[0] == SOFTNIC_NAK_UNREACHABLE || head->operand[0] == SOFTNIC_NAK_SEQUENCE) {
        unreachable(qp);
    } else if (head->operand[0] != SOFTNIC_NAK_RNR) {
        softnic_qp_fail(qp, statuses[head->operand[0]]);
    } else if (qp->attr.rnr_retry != 7 && !qp->rnr_left) {
        softnic_qp_fail(qp, IBV_WC_RNR_RETRY_EXC_ERR);
    } else {
        unsigned left = qp->rnr_left;
        qp->rnr_left = qp->attr.rnr_retry == 7 ? left : left - 1;
        wait_and_resend(qp, rnr_timer_10us[head->operand[1]] * (uint64_t)10000, false);
    }
}

/* READ data into the entry's buffers. False: the QP has failed or is another one by now. */
static bool place_read(struct softnic_link *link, struct softnic_qp *qp, struct softnic_wqe *wqe,
                       const struct softnic_message *message)
{
    struct softnic_context *ctx = link->context;
    const struct softnic_frame *head = &message->head;
    uint32_t bytes = head->segments ? head->length - head->offset : head->payload;
    struct iovec to[SOFTNIC_MAX_SGE];
    struct softnic_mr *mr[SOFTNIC_MAX_SGE];
    int count = softnic_sge_slice(ctx, qp->ibv.pd, wqe->sge, wqe->num_sge, IBV_ACCESS_LOCAL_WRITE,
                                  head->offset, bytes, to, mr);
    if (count < 0) {
        softnic_qp_fail(qp, IBV_WC_LOC_PROT_ERR);
        return false;
    }
    if (head->segments) {
        int error = softnic_pull_pinned(link, qp, to, mr, count, message->segment, head->segments, bytes);
        if (error == -EFAULT) /* either side has unmapped registered memory */
            softnic_qp_fail(qp, IBV_WC_REM_OP_ERR);
        if (error)
            return false;
    } else {
        const uint8_t *from = message->payload;
        for (int i = 0; i < count; from += to[i].iov_len, i++)
            softnic_copy_in(to[i].iov_base, from, to[i].iov_len);
    }
    qp->read_offset += bytes;
    qp->counters.received_bytes += bytes;
    return true;
}

void softnic_requester_response(struct softnic_link *link, const struct softnic_message *message)
{
    const struct softnic_frame *head = &message->head;
    struct softnic_qp *qp = softnic_qp_find(link->context, head->qpn_to);
    if (qp && qp->srd) {
        softnic_srd_response(link, qp, message);
        return;
    }
    if (!qp || qp->link != link || qp->attr.dest_qp_num != head->qpn_from ||
        (qp->ibv.state != IBV_QPS_RTS && qp->ibv.state != IBV_QPS_SQD))
        return; /* it has gone on since; the answer is to a request that nobody waits for */

    uint64_t index =
        qp->sq_acked + ((head->psn - (uint32_t)(qp->attr.sq_psn + qp->sq_acked)) & SOFTNIC_MESSAGE_MASK);
    uint64_t sent_end = qp->sq_cursor + (qp->tx_offset ? 1 : 0);
    if (index >= sent_end)
        return; /* an answer to something that has been taken back since */
    bool fits = true;
    struct softnic_wqe *wqe = softnic_wqe_at(qp, index);
    if (head->kind == SOFTNIC_ACK) {
        fits = index < qp->sq_cursor && acknowledge(qp, index + 1);
    } else if (head->kind == SOFTNIC_NAK) {
        fits = acknowledge(qp, index);
        if (fits)
            refused(qp, head);
    } else if (head->kind == SOFTNIC_READ_DATA) {
        fits = acknowledge(qp, index) && wqe->opcode == IBV_WR_RDMA_READ && head->length == wqe->length &&
               head->offset == qp->read_offset;
        if (fits && !place_read(link, qp, wqe, message))
            return;
        if (fits && qp->read_offset == wqe->length && index < qp->sq_cursor)
            finish_response(qp);
    } else {
        struct iovec to[SOFTNIC_MAX_SGE];
        fits = acknowledge(qp, index) && needs_response(wqe) && wqe->opcode != IBV_WR_RDMA_READ &&
               index < qp->sq_cursor;
        if (fits && softnic_sge_slice(link->context, qp->ibv.pd, wqe->sge, wqe->num_sge,
                                      IBV_ACCESS_LOCAL_WRITE, 0, 8, to, NULL) == 1) {
            softnic_copy_in(to[0].iov_base, &head->operand[0], 8);
            qp->counters.received_bytes += 8;
            finish_response(qp);
        } else if (fits) {
            softnic_qp_fail(qp, IBV_WC_LOC_PROT_ERR);
        }
    }
    if (!fits)
        softnic_link_kill(link); /* not a softnic at the other end */
    softnic_requester_pump(qp);
}

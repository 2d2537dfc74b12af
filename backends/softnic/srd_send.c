/* The send side of an SRD QP. A request waits for its time, leaves in fragments between those of others, and ends by the
 * one answer to it. */
#include "srd.h"

#include <errno.h>
#include <string.h>

#define GIVE_UP_NS 500000000ull /* an unreachable peer is tried for so long */
#define RETRY_NS 10000000ull
#define RNR_NS 200000ull

enum {
    COPY_LIMIT = 4096,      /* as in requester.c: beyond it the peer fetches */
    LINK_LIMIT = 256 << 10, /* bytes that wait in a link's buffer before more data joins them */
    FRAGMENTS = 16,         /* of a message that the peer fetches */
    FRAGMENT_BYTES = 4096,  /* at least */
};

static struct softnic_context *context_of(struct softnic_qp *qp)
{
    return softnic_context_of(qp->ibv.context);
}

static uint32_t below(struct softnic_context *ctx, uint32_t bound)
{
    return (uint32_t)(softnic_random_unit(ctx) * bound);
}

static void want_timer(struct softnic_qp *qp, uint64_t when)
{
    if (!qp->timer_ns || when < qp->timer_ns)
        qp->timer_ns = when;
    softnic_timer_at(context_of(qp), when);
}

static uint32_t token_of(const struct softnic_qp *qp, const struct srd_request *r)
{
    return (r->serial << SRD_SLOT_BITS | (uint32_t)(r - qp->srd->slots)) & SOFTNIC_MESSAGE_MASK;
}

/* ---- ending ---- */

static void complete(struct softnic_qp *qp, struct srd_request *r, enum ibv_wc_status status)
{
    struct softnic_srd *srd = qp->srd;
    enum ibv_wr_opcode op = r->wqe.opcode;
    uint64_t release = ++qp->sq_completed;
    struct softnic_cqe cqe = {.wc = {.wr_id = r->wqe.wr_id,
                                     .status = status,
                                     .opcode = op == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ
                                               : op == IBV_WR_SEND || op == IBV_WR_SEND_WITH_IMM
                                                   ? IBV_WC_SEND
                                                   : IBV_WC_RDMA_WRITE,
                                     .byte_len = op == IBV_WR_RDMA_READ ? r->wqe.length : 0,
                                     .qp_num = qp->ibv.qp_num},
                              .qp = qp,
                              .sq_release = release,
                              .last = release == qp->sq_posted};
    uint32_t last = srd->active[--srd->active_count];
    srd->active[r->at] = last;
    srd->slots[last].at = r->at;
    srd->free[srd->free_count++] = (uint32_t)(r - srd->slots);
    r->serial++;
    softnic_cq_push(softnic_cq_of(qp->init.send_cq), &cqe, false);
}

/* It has been answered, or will not be: completes when it has left whole and the shaped time has come. */
static void finish(struct softnic_qp *qp, struct srd_request *r, uint64_t now)
{
    if (r->wqe.due_ns > now && r->status == IBV_WC_SUCCESS) {
        r->state = SRD_ANSWERED;
        r->when = r->wqe.due_ns;
        want_timer(qp, r->when);
        return;
    }
    complete(qp, r, r->status);
}

void softnic_srd_flush(struct softnic_qp *qp)
{
    struct softnic_srd *srd = qp->srd;
    qp->ibv.state = qp->attr.qp_state = IBV_QPS_ERR;
    qp->generation++;
    qp->timer_ns = 0;
    while (srd->active_count)
        complete(qp, &srd->slots[srd->active[0]], IBV_WC_WR_FLUSH_ERR);
    softnic_srd_forget_partials(qp, NULL);
    softnic_qp_flush_receives(qp);
}

/* ---- beginning ---- */

static uint32_t gcd(uint32_t a, uint32_t b)
{
    while (b) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Draws the order of its fragments; what has been sent is forgotten. */
static void start_over(struct softnic_qp *qp, struct srd_request *r, uint64_t when)
{
    struct softnic_context *ctx = context_of(qp);
    bool whole = r->wqe.opcode == IBV_WR_RDMA_READ || r->wqe.opcode == IBV_WR_SEND ||
                 r->wqe.opcode == IBV_WR_SEND_WITH_IMM || r->wqe.length <= FRAGMENT_BYTES;
    r->fragments = 0; /* cut when the link is known */
    if (whole)
        r->fragments = 1;
    r->fragment_bytes = r->wqe.length;
    r->sent = 0;
    r->arrived = 0;
    r->link = NULL;
    r->answered = false;
    r->state = SRD_QUEUED;
    r->serial++;
    r->when = when;
    r->first = r->step = 0;
    if (ctx->options.reorder_ns && below(ctx, 2))
        r->when += (uint64_t)(softnic_random_unit(ctx) * (double)ctx->options.reorder_ns);
}

static void cut(struct softnic_qp *qp, struct srd_request *r)
{
    struct softnic_context *ctx = context_of(qp);
    uint32_t bytes = (r->wqe.length + FRAGMENTS - 1) / FRAGMENTS;
    bytes = (bytes + FRAGMENT_BYTES - 1) / FRAGMENT_BYTES * FRAGMENT_BYTES;
    if (!r->link->peer_pulls && bytes > SOFTNIC_MAX_PAYLOAD)
        bytes = SOFTNIC_MAX_PAYLOAD;
    r->fragment_bytes = bytes;
    r->fragments = (r->wqe.length + bytes - 1) / bytes;
    r->first = 0;
    r->step = 1;
    if (!ctx->options.reorder_ns)
        return;
    r->first = below(ctx, r->fragments);
    r->step = 1 + below(ctx, r->fragments);
    while (gcd(r->step, r->fragments) != 1)
        r->step++;
}

void softnic_srd_commit(struct softnic_qp *qp, const struct srd_request *request)
{
    struct softnic_context *ctx = context_of(qp);
    struct softnic_srd *srd = qp->srd;
    uint32_t slot = srd->free[--srd->free_count];
    struct srd_request *r = &srd->slots[slot];
    uint32_t serial = r->serial;
    *r = *request;
    r->serial = serial;
    r->wqe.sent_before = false;
    r->at = srd->active_count;
    srd->active[srd->active_count++] = slot;
    qp->sq_posted++;
    r->rnr_left = qp->attr.rnr_retry;
    softnic_shape(ctx, &r->wqe);
    uint64_t now = softnic_now();
    start_over(qp, r, r->wqe.release_ns > now ? r->wqe.release_ns : now);
    if (++ctx->requests == ctx->options.fail_nth) {
        r->status = (enum ibv_wc_status)ctx->options.fail_status;
        r->answered = true; /* before anything leaves */
    }
}

/* ---- sending ---- */

static struct softnic_frame frame_for(struct softnic_qp *qp, const struct srd_request *r, uint32_t offset,
                                      uint32_t bytes)
{
    static const uint8_t kinds[] = {[IBV_WR_RDMA_WRITE] = SOFTNIC_WRITE,
                                    [IBV_WR_RDMA_WRITE_WITH_IMM] = SOFTNIC_WRITE,
                                    [IBV_WR_SEND] = SOFTNIC_SEND,
                                    [IBV_WR_SEND_WITH_IMM] = SOFTNIC_SEND,
                                    [IBV_WR_RDMA_READ] = SOFTNIC_READ};
    bool imm = r->wqe.opcode == IBV_WR_RDMA_WRITE_WITH_IMM || r->wqe.opcode == IBV_WR_SEND_WITH_IMM;
    bool read = r->wqe.opcode == IBV_WR_RDMA_READ;
    return (struct softnic_frame){.kind = kinds[r->wqe.opcode],
                                  .flags = (uint8_t)((imm ? SOFTNIC_FLAG_IMM : 0) |
                                                     (imm && r->wqe.solicited ? SOFTNIC_FLAG_SOLICITED : 0)),
                                  .qpn_to = r->qpn,
                                  .qpn_from = qp->ibv.qp_num,
                                  .psn = token_of(qp, r),
                                  .imm = imm ? r->wqe.imm : 0,
                                  .rkey = r->wqe.rkey,
                                  .length = bytes,
                                  .address = r->wqe.remote + offset,
                                  .operand = {read ? bytes : r->qkey, read ? r->qkey : r->wqe.length}};
}

enum sent { SENT, BLOCKED, REFUSED };

static enum sent send_data(struct softnic_qp *qp, struct srd_request *r)
{
    struct softnic_link *link = r->link;
    uint32_t index = (uint32_t)((r->first + (uint64_t)r->sent * r->step) % r->fragments);
    uint32_t offset = index * r->fragment_bytes, left = r->wqe.length - offset;
    uint32_t bytes = left < r->fragment_bytes ? left : r->fragment_bytes;
    struct softnic_frame head = frame_for(qp, r, offset, bytes);
    struct iovec from[SOFTNIC_MAX_SGE];
    int count = r->wqe.is_inline ? 0
                                 : softnic_sge_slice(context_of(qp), qp->ibv.pd, r->wqe.sge, r->wqe.num_sge,
                                                     0, offset, bytes, from, NULL);
    if (count < 0)
        return REFUSED;
    if (!r->wqe.is_inline && bytes > COPY_LIMIT && link->peer_pulls) {
        struct softnic_segment segment[SOFTNIC_MAX_SEGMENTS];
        for (int i = 0; i < count; i++)
            segment[i] = (struct softnic_segment){(uintptr_t)from[i].iov_base, from[i].iov_len};
        head.segments = (uint16_t)count;
        head.flags |= SOFTNIC_FLAG_PULL;
        if (softnic_link_append(link, &head, segment, (size_t)count * sizeof(segment[0])))
            softnic_link_kill(link);
        return link->dead ? BLOCKED : SENT;
    }
    head.payload = bytes;
    char *to = softnic_link_reserve(link, &head, bytes);
    if (!to) {
        softnic_link_kill(link);
        return BLOCKED;
    }
    if (r->wqe.is_inline)
        memcpy(to, r->wqe.inline_data, bytes);
    for (int i = 0; i < count; to += from[i].iov_len, i++)
        memcpy(to, from[i].iov_base, from[i].iov_len);
    return SENT;
}

static enum sent send_read(struct softnic_qp *qp, struct srd_request *r)
{
    struct softnic_frame head = frame_for(qp, r, 0, r->wqe.length);
    struct iovec to[SOFTNIC_MAX_SGE];
    if (softnic_sge_slice(context_of(qp), qp->ibv.pd, r->wqe.sge, r->wqe.num_sge, IBV_ACCESS_LOCAL_WRITE, 0,
                          r->wqe.length, to, NULL) < 0)
        return REFUSED;
    head.flags |= r->link->pulls ? SOFTNIC_FLAG_PULL : 0;
    if (softnic_link_append(r->link, &head, NULL, 0))
        softnic_link_kill(r->link);
    return r->link->dead ? BLOCKED : SENT;
}

/* Nobody is there: tried again for a while, as a network does that may yet find a path. */
static void unreachable(struct softnic_qp *qp, struct srd_request *r, uint64_t now)
{
    if (!r->give_up)
        r->give_up = now + GIVE_UP_NS;
    if (now >= r->give_up) {
        complete(qp, r, IBV_WC_RESP_TIMEOUT_ERR);
        return;
    }
    uint64_t give_up = r->give_up;
    start_over(qp, r, now + RETRY_NS);
    r->give_up = give_up;
    want_timer(qp, r->when);
}

/* Finds the link; false: not now. */
static bool connect_request(struct softnic_qp *qp, struct srd_request *r, uint64_t now)
{
    struct softnic_context *ctx = context_of(qp);
    if (softnic_drops(ctx, r->device))
        softnic_links_drop(ctx); /* takes r->link with it */
    if (r->state != SRD_QUEUED || r->when > now)
        return false;
    if (!r->link)
        r->link = softnic_link_to(ctx, r->device, (int)(r->qpn >> SOFTNIC_QP_BITS));
    if (!r->link) {
        unreachable(qp, r, now);
        return false;
    }
    if (!r->link->ready)
        return false;
    if (!r->fragments)
        cut(qp, r);
    return true;
}

/* One fragment of a request whose time has come. True: it has more. */
static bool step(struct softnic_qp *qp, struct srd_request *r, uint64_t now)
{
    if (r->answered && !r->sent) { /* the fault that was asked for */
        complete(qp, r, r->status);
        return false;
    }
    if (!connect_request(qp, r, now))
        return false;
    struct softnic_link *link = r->link;
    if (softnic_link_pending(link) > LINK_LIMIT)
        softnic_link_flush(link);
    if (link->dead || softnic_link_pending(link) > LINK_LIMIT)
        return false; /* goes on when the link has room, or elsewhere when it is lost */
    enum sent sent = r->wqe.opcode == IBV_WR_RDMA_READ ? send_read(qp, r) : send_data(qp, r);
    if (sent == REFUSED)
        complete(qp, r, IBV_WC_LOC_PROT_ERR);
    if (sent != SENT)
        return false;
    if (++r->sent < r->fragments)
        return true;
    r->state = SRD_SENT;
    if (!r->wqe.sent_before)
        softnic_tally_sent(qp, r->device, r->qpn, &r->wqe);
    r->wqe.sent_before = true;
    qp->counters.sent_messages++;
    qp->counters.sent_bytes += r->wqe.opcode == IBV_WR_RDMA_READ ? 0 : r->wqe.length;
    if (r->answered)
        finish(qp, r, now); /* refused while it was still leaving */
    return false;
}

void softnic_srd_pump(struct softnic_qp *qp)
{
    struct softnic_srd *srd = qp->srd;
    uint64_t now = softnic_now();
    uint32_t due = 0;
    if (qp->ibv.state != IBV_QPS_RTS)
        return;
    for (uint32_t i = 0; i < srd->active_count; i++) {
        struct srd_request *r = &srd->slots[srd->active[i]];
        if (r->when > now && r->state != SRD_SENT)
            want_timer(qp, r->when);
        else if (r->state == SRD_QUEUED)
            srd->due[due++] = srd->active[i];
        else if (r->state == SRD_ANSWERED) {
            complete(qp, r, r->status);
            i--; /* another has taken its place */
        }
    }
    bool mix = context_of(qp)->options.reorder_ns;
    while (due) {
        uint32_t i = mix ? below(context_of(qp), due) : 0;
        struct srd_request *r = &srd->slots[srd->due[i]];
        if (r->state == SRD_QUEUED && r->when <= now && step(qp, r, now))
            continue;
        if (mix)
            srd->due[i] = srd->due[--due];
        else
            memmove(srd->due, srd->due + 1, --due * sizeof(*srd->due));
    }
}

/* A request that had left whole may have been executed: it is not sent twice, its end is unknown. */
void softnic_srd_link_lost(struct softnic_qp *qp, struct softnic_link *link)
{
    struct softnic_srd *srd = qp->srd;
    uint64_t now = softnic_now();
    for (uint32_t i = 0; i < srd->active_count; i++) {
        struct srd_request *r = &srd->slots[srd->active[i]];
        if (r->link != link || r->state == SRD_ANSWERED)
            continue;
        if (r->state == SRD_SENT) {
            r->state = SRD_ANSWERED;
            r->status = IBV_WC_RESP_TIMEOUT_ERR;
            r->link = NULL;
            r->when = now + GIVE_UP_NS;
            want_timer(qp, r->when);
            continue;
        }
        if (!r->give_up)
            r->give_up = now + GIVE_UP_NS;
        start_over(qp, r, now + RETRY_NS);
        want_timer(qp, r->when);
    }
}

/* ---- answers ---- */

static void refused(struct softnic_qp *qp, struct srd_request *r, uint64_t why, uint64_t now)
{
    static const enum ibv_wc_status statuses[SOFTNIC_NAKS] = {
        [SOFTNIC_NAK_UNREACHABLE] = IBV_WC_REM_INV_RD_REQ_ERR, [SOFTNIC_NAK_RNR] = IBV_WC_RNR_RETRY_EXC_ERR,
        [SOFTNIC_NAK_ACCESS] = IBV_WC_REM_ACCESS_ERR,          [SOFTNIC_NAK_INVALID] = IBV_WC_REM_INV_REQ_ERR,
        [SOFTNIC_NAK_OPERATION] = IBV_WC_REM_ABORT_ERR,        [SOFTNIC_NAK_STRANGER] = IBV_WC_REM_OP_ERR};
    if (why == SOFTNIC_NAK_RNR && (qp->attr.rnr_retry == 7 || r->rnr_left)) {
        r->rnr_left -= qp->attr.rnr_retry != 7;
        qp->counters.retransmissions++;
        start_over(qp, r, now + RNR_NS);
        want_timer(qp, r->when);
        return;
    }
    r->answered = true;
    r->status = statuses[why] ? statuses[why] : IBV_WC_BAD_RESP_ERR;
    if (r->state == SRD_SENT)
        finish(qp, r, now);
}

/* READ data into the request's buffer. False: the QP has gone on. */
static bool place(struct softnic_link *link, struct softnic_qp *qp, struct srd_request *r,
                  const struct softnic_message *message)
{
    const struct softnic_frame *head = &message->head;
    uint32_t bytes = head->segments ? head->length - head->offset : head->payload;
    struct iovec to[SOFTNIC_MAX_SGE];
    struct softnic_mr *mr[SOFTNIC_MAX_SGE];
    int error = 0, count = softnic_sge_slice(link->context, qp->ibv.pd, r->wqe.sge, r->wqe.num_sge,
                                             IBV_ACCESS_LOCAL_WRITE, head->offset, bytes, to, mr);
    if (count < 0) {
        complete(qp, r, IBV_WC_LOC_PROT_ERR);
        return false;
    }
    if (head->segments)
        error = softnic_pull_pinned(link, qp, to, mr, count, message->segment, head->segments, bytes);
    const uint8_t *from = message->payload;
    for (int i = 0; i < count && !head->segments; from += to[i].iov_len, i++)
        softnic_copy_in(to[i].iov_base, from, to[i].iov_len);
    if (error == -EFAULT)
        complete(qp, r, IBV_WC_REM_ABORT_ERR);
    qp->counters.received_bytes += error ? 0 : bytes;
    return !error;
}

void softnic_srd_response(struct softnic_link *link, struct softnic_qp *qp,
                          const struct softnic_message *message)
{
    const struct softnic_frame *head = &message->head;
    uint32_t slot = head->psn & ((1u << SRD_SLOT_BITS) - 1);
    struct srd_request *r = slot < qp->sq_size ? &qp->srd->slots[slot] : NULL;
    uint64_t now = softnic_now();
    if (!r || r->at >= qp->srd->active_count || qp->srd->active[r->at] != slot || r->link != link ||
        token_of(qp, r) != head->psn || r->state == SRD_ANSWERED || r->answered)
        return; /* an answer to something that is over */
    bool fits = true;
    if (head->kind == SOFTNIC_NAK) {
        refused(qp, r, head->operand[0], now);
    } else if (head->kind == SOFTNIC_ACK) {
        fits = r->state == SRD_SENT && r->wqe.opcode != IBV_WR_RDMA_READ;
        r->answered = true;
        r->status = IBV_WC_SUCCESS;
        if (fits)
            finish(qp, r, now);
    } else if (head->kind == SOFTNIC_READ_DATA) {
        fits =
            r->wqe.opcode == IBV_WR_RDMA_READ && head->length == r->wqe.length && head->offset == r->arrived;
        if (fits && !place(link, qp, r, message))
            return;
        r->arrived += fits ? head->segments ? head->length - head->offset : head->payload : 0;
        if (fits && r->arrived == r->wqe.length) {
            r->answered = true;
            r->status = IBV_WC_SUCCESS;
            finish(qp, r, now);
        }
    } else {
        fits = false;
    }
    if (!fits)
        softnic_link_kill(link);
}

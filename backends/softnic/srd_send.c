/* The send side of an SRD QP: requests whose time has come leave in fragments, between those of
 * others. */
#include "gpu.h"
#include "srd.h"

#define GIVE_UP_NS 500000000ull /* an unreachable peer is tried for so long */
#define RETRY_NS 10000000ull

#define FRAGMENTS 16u /* of a message that the peer fetches */

static uint32_t srd_send_gcd(uint32_t a, uint32_t b)
{
    while (b) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Its fragments and, where messages are to be reordered, their order. */
static void srd_send_cut(struct softnic_qp *qp, struct srd_request *r)
{
    struct softnic_context *ctx = softnic_qp_context(qp);
    uint32_t bytes = (r->wqe.length + FRAGMENTS - 1) / FRAGMENTS;
    bytes = (bytes + SRD_FRAGMENT_BYTES - 1) / SRD_FRAGMENT_BYTES * SRD_FRAGMENT_BYTES;
    if (!r->link->peer_pulls && bytes > SOFTNIC_MAX_PAYLOAD)
        bytes = SOFTNIC_MAX_PAYLOAD;
    r->fragment_bytes = bytes;
    r->fragments = (r->wqe.length + bytes - 1) / bytes;
    r->first = 0;
    r->step = 1;
    if (!ctx->options.reorder_ns)
        return;
    r->first = softnic_srd_below(ctx, r->fragments);
    r->step = 1 + softnic_srd_below(ctx, r->fragments);
    while (srd_send_gcd(r->step, r->fragments) != 1)
        r->step++;
}

static struct softnic_frame srd_send_frame_for(struct softnic_qp *qp, const struct srd_request *r,
                                               uint32_t offset, uint32_t bytes)
{
    struct softnic_frame head = softnic_wqe_frame(qp, &r->wqe);
    bool read = r->wqe.opcode == IBV_WR_RDMA_READ;
    head.qpn_to = r->qpn;
    head.psn = softnic_srd_token(qp, r);
    head.length = bytes;
    head.address = r->wqe.remote + offset;
    head.operand[0] = read ? bytes : r->qkey;
    head.operand[1] = read ? r->qkey : r->wqe.length;
    return head;
}

enum sent { SENT, BLOCKED, REFUSED };

static enum sent srd_send_data(struct softnic_qp *qp, struct srd_request *r)
{
    struct softnic_link *link = r->link;
    uint32_t index = (uint32_t)((r->first + (uint64_t)r->sent * r->step) % r->fragments);
    uint32_t offset = index * r->fragment_bytes, left = r->wqe.length - offset;
    uint32_t bytes = left < r->fragment_bytes ? left : r->fragment_bytes;
    struct softnic_frame head = srd_send_frame_for(qp, r, offset, bytes);
    struct iovec from[SOFTNIC_MAX_SGE];
    struct softnic_mr *mr[SOFTNIC_MAX_SGE] = {NULL};
    int count = softnic_wqe_slice(qp, &r->wqe, 0, offset, bytes, from, mr);
    if (count < 0)
        return REFUSED;
    bool gpu = softnic_regions_in_gpu(mr, count);
    if (gpu)
        softnic_share_announce(link);
    if (gpu || (!r->wqe.is_inline && bytes > SOFTNIC_COPY_LIMIT && link->peer_pulls))
        return softnic_payload_refer(link, &head, from, count) && !link->dead ? SENT : BLOCKED;
    head.payload = bytes;
    return softnic_payload_carry(link, &head, &r->wqe, from, count) ? SENT : BLOCKED;
}

static enum sent srd_send_read(struct softnic_qp *qp, struct srd_request *r)
{
    struct softnic_frame head = srd_send_frame_for(qp, r, 0, r->wqe.length);
    struct iovec to[SOFTNIC_MAX_SGE];
    if (softnic_wqe_slice(qp, &r->wqe, IBV_ACCESS_LOCAL_WRITE, 0, r->wqe.length, to, NULL) < 0 ||
        softnic_wqe_in_gpu(qp, &r->wqe, IBV_ACCESS_LOCAL_WRITE))
        return REFUSED;
    head.flags |= r->link->pulls ? SOFTNIC_FLAG_PULL : 0;
    return softnic_link_send(r->link, &head, NULL, 0) && !r->link->dead ? SENT : BLOCKED;
}

/* The peer is not there: tried again for a while, as a network does that may yet find a path. */
static void srd_send_unreachable(struct softnic_qp *qp, struct srd_request *r, uint64_t now)
{
    if (!r->give_up)
        r->give_up = now + GIVE_UP_NS;
    if (now >= r->give_up) {
        softnic_srd_complete(qp, r, IBV_WC_RESP_TIMEOUT_ERR);
        return;
    }
    uint64_t give_up = r->give_up;
    softnic_srd_start_over(qp, r, now + RETRY_NS);
    r->give_up = give_up;
    softnic_qp_wake_at(qp, r->when);
}

/* Finds the link; false: not now. */
static bool srd_send_connect_request(struct softnic_qp *qp, struct srd_request *r, uint64_t now)
{
    struct softnic_context *ctx = softnic_qp_context(qp);
    if (softnic_drops(ctx, r->device))
        softnic_links_drop(ctx);
    if (!r->link)
        r->link = softnic_link_to(ctx, r->device, (int)(r->qpn >> SOFTNIC_QP_BITS));
    if (!r->link) {
        srd_send_unreachable(qp, r, now);
        return false;
    }
    if (!r->link->ready || r->link->dead)
        return false;
    if (!r->fragments)
        srd_send_cut(qp, r);
    return true;
}

/* One fragment of a request whose time has come. True: it has more. */
static bool srd_send_step(struct softnic_qp *qp, struct srd_request *r, uint64_t now)
{
    if (r->answered && !r->sent) { /* the fault that was asked for */
        softnic_srd_complete(qp, r, r->status);
        return false;
    }
    if (!srd_send_connect_request(qp, r, now))
        return false;
    struct softnic_link *link = r->link;
    if (softnic_link_pending(link) > SOFTNIC_LINK_LIMIT)
        softnic_link_flush(link);
    if (link->dead || softnic_link_pending(link) > SOFTNIC_LINK_LIMIT)
        return false; /* goes on when the link has room, or elsewhere when it is lost */
    enum sent sent =
        r->wqe.opcode == IBV_WR_RDMA_READ ? srd_send_read(qp, r) : srd_send_data(qp, r);
    if (sent == REFUSED)
        softnic_srd_complete(qp, r, IBV_WC_LOC_PROT_ERR);
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
        softnic_srd_finish(qp, r, now); /* refused while it was still leaving */
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
            softnic_qp_wake_at(qp, r->when);
        else if (r->state == SRD_QUEUED)
            srd->due[due++] = srd->active[i];
        else if (r->state == SRD_ANSWERED) {
            softnic_srd_complete(qp, r, r->status);
            i--; /* another has taken its place */
        }
    }
    bool mix = softnic_qp_context(qp)->options.reorder_ns;
    while (due) {
        uint32_t i = mix ? softnic_srd_below(softnic_qp_context(qp), due) : 0;
        struct srd_request *r = &srd->slots[srd->due[i]];
        if (r->state == SRD_QUEUED && r->when <= now && srd_send_step(qp, r, now))
            continue;
        if (mix)
            srd->due[i] = srd->due[--due];
        else
            memmove(srd->due, srd->due + 1, --due * sizeof(*srd->due));
    }
}

/* A request that had left whole may have been executed: it is not sent twice, its end is
 * unknown. */
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
            softnic_qp_wake_at(qp, r->when);
            continue;
        }
        if (!r->give_up)
            r->give_up = now + GIVE_UP_NS;
        softnic_srd_start_over(qp, r, now + RETRY_NS);
        softnic_qp_wake_at(qp, r->when);
    }
}

/* Queue pairs: made within the device's limits, and brought up to ready-to-send. */
#include "backends/verbs/rc_state.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t rc_qp_qps_of_rail(const struct rc *rc)
{
    return rc->peer_count * (rc->qps_per_peer / rc->rail_count);
}

static uint32_t rc_qp_control_entries(const struct rc *rc, const struct rc_rail *rail)
{
    return rail == &rc->rails[0] ? RC_CONTROL_DEPTH * rc->peer_count : 0;
}

/* How deep the queues can be on one device: each work request may end in a completion (a QP in
 * error flushes them all, signaled or not), and one CQ takes them all. */
static int rc_qp_fit_depth(struct rc *rc, const struct rc_rail *rail, char *error, size_t size)
{
    const struct ibv_device_attr *a = &rail->device.attr;
    uint64_t qps = rc_qp_qps_of_rail(rc), depth = rc->depth;
    if (a->max_qp_wr > 0 && depth > (uint64_t)a->max_qp_wr)
        depth = (uint64_t)a->max_qp_wr;
    uint64_t cqes = a->max_cqe > 0 ? (uint64_t)a->max_cqe : UINT64_MAX,
             control = rc_qp_control_entries(rc, rail);
    if (depth * qps + control > cqes)
        depth = cqes > control ? (cqes - control) / qps : 0;
    if (depth < 4 || (a->max_qp > 0 && qps > (uint64_t)a->max_qp))
        return mk_fail(-ENOSPC, error, size,
                       "%s holds %d QPs and %d completions, too few for %lu QPs to %u peers",
                       rail->device.name, a->max_qp, a->max_cqe, qps, rc->peer_count);
    rc->depth = (uint32_t)depth;
    return 0;
}

/* The same for all QPs. */
static int rc_qp_choose_depth(struct rc *rc, char *error, size_t size)
{
    /* writes of the longest command */
    uint64_t longest = mk_ceil_div(MK_CMD_MAX_BYTES, rc->max_message) + 1;
    int failed = 0;
    rc->depth = (uint32_t)rc->options.depth;
    if (rc->depth < longest && longest <= 1024)
        rc->depth = (uint32_t)longest;
    for (uint32_t i = 0; i < rc->rail_count && !failed; i++)
        failed = rc_qp_fit_depth(rc, &rc->rails[i], error, size);
    return failed;
}

/* Asks for room for an inline flag; a device without inline data refuses, and then flags go out of
 * registered memory. */
struct ibv_qp *rc_qp_make(const struct rc *rc, struct rc_rail *rail, uint32_t depth)
{
    const uint32_t wanted[] = {sizeof(uint64_t), 0};
    struct ibv_qp *qp = NULL;
    for (int i = 0; !qp && i < 2; i++) {
        struct ibv_qp_init_attr attr = {.send_cq = rail->cq,
                                        .recv_cq = rail->cq,
                                        .qp_type = IBV_QPT_RC,
                                        .cap = {.max_send_wr = depth,
                                                .max_recv_wr = 1,
                                                .max_send_sge = 1,
                                                .max_recv_sge = 1,
                                                .max_inline_data = wanted[i]}};
        errno = 0;
        qp = rc->api->create_qp(rail->device.pd, &attr);
        rail->max_inline = qp ? attr.cap.max_inline_data : 0;
    }
    return qp;
}

int rc_qp_to_init(const struct verbs_device *d, struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = d->port, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    return d->api->modify_qp(qp, &attr,
                             IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static int rc_qp_make_one(struct rc *rc, struct rc_qp *q, char *error, size_t size)
{
    const struct verbs_device *d = &q->rail->device;
    q->slots = calloc(rc->depth, sizeof *q->slots);
    q->puts = calloc(rc->depth, sizeof *q->puts);
    if (!q->slots || !q->puts)
        return -ENOMEM;
    q->qp = rc_qp_make(rc, q->rail, rc->depth);
    if (!q->qp) {
        int rc_ = errno ? -errno : -ENOMEM;
        snprintf(error, size, "%s cannot make a QP of %u entries: %s", d->name, rc->depth,
                 strerror(-rc_));
        return rc_;
    }
    if (q->rail->max_inline < sizeof(uint64_t)) {
        q->values =
            d->api->reg_mr(d->pd, q->slots, rc->depth * sizeof *q->slots, IBV_ACCESS_LOCAL_WRITE);
        if (!q->values)
            return mk_fail(errno ? -errno : -ENOMEM, error, size,
                           "%s cannot register a QP's flags: %s", d->name, strerror(errno));
    }
    int failed = rc_qp_to_init(d, q->qp);
    if (failed)
        snprintf(error, size, "%s: a QP cannot be brought to INIT: %s", d->name, strerror(failed));
    return -abs(failed);
}

static int rc_qp_make_cq(const struct rc *rc, struct rc_rail *rail, char *error, size_t size)
{
    uint32_t entries = rc->depth * rc_qp_qps_of_rail(rc) + rc_qp_control_entries(rc, rail);
    errno = 0;
    rail->cq = rc->api->create_cq(rail->device.context, (int)entries, NULL, NULL, 0);
    if (rail->cq)
        return 0;
    int failed = errno ? -errno : -ENOMEM;
    return mk_fail(failed, error, size, "%s cannot make a CQ of %u entries: %s", rail->device.name,
                   entries, strerror(-failed));
}

int rc_qps_create(struct rc *rc, char *error, size_t size)
{
    int failed = rc_qp_choose_depth(rc, error, size);
    for (uint32_t i = 0; i < rc->rail_count && !failed; i++)
        failed = rc_qp_make_cq(rc, &rc->rails[i], error, size);
    if (failed)
        return failed;
    uint32_t qps = rc->peer_count * rc->qps_per_peer;
    for (rc->flight_mask = 1; rc->flight_mask < (uint64_t)rc->depth * rc->qps_per_peer;)
        rc->flight_mask *= 2;
    rc->flight_mask--;
    rc->qps = calloc(qps, sizeof *rc->qps);
    for (uint32_t i = 0; rc->qps && i < qps && !failed; i++) {
        struct rc_qp *q = &rc->qps[i];
        q->index = i;
        q->peer = i / rc->qps_per_peer;
        q->rail = &rc->rails[i % rc->qps_per_peer % rc->rail_count];
        failed = rc_qp_make_one(rc, q, error, size);
    }
    for (uint32_t i = 0; rc->qps && i < rc->peer_count && !failed; i++) {
        rc->peers[i].qps = &rc->qps[i * rc->qps_per_peer];
        rc->peers[i].flights = calloc(rc->flight_mask + 1, sizeof *rc->peers[i].flights);
        if (!rc->peers[i].flights)
            failed = -ENOMEM;
    }
    if (!rc->qps || failed == -ENOMEM) {
        failed = -ENOMEM;
        if (!error[0])
            snprintf(error, size, "no memory for %u QPs of %u entries", qps, rc->depth);
    }
    return failed;
}

static struct ibv_ah_attr rc_qp_route(const struct verbs_options *o, const struct verbs_device *d,
                                      const struct rc_port *peer)
{
    struct ibv_ah_attr a = {
        .dlid = peer->lid, .sl = (uint8_t)o->service_level, .port_num = d->port};
    int ethernet = d->port_attr.link_layer == IBV_LINK_LAYER_ETHERNET;
    int other_subnet =
        memcmp(peer->gid, d->gid.raw, 8) != 0; /* the GID's first half is the subnet's prefix */
    if (ethernet || other_subnet || (d->port_attr.flags & IBV_QPF_GRH_REQUIRED)) {
        a.is_global = 1;
        memcpy(a.grh.dgid.raw, peer->gid, sizeof peer->gid);
        a.grh.sgid_index = (uint8_t)d->gid_index;
        a.grh.hop_limit = (uint8_t)o->hop_limit;
        a.grh.traffic_class = (uint8_t)o->traffic_class;
    }
    return a;
}

/* The path's: the smaller active MTU of both ports, or less where the option asks for it. */
static uint32_t rc_qp_agree_mtu(const struct rc *rc, const struct verbs_device *d,
                                const struct rc_port *peer)
{
    uint32_t mtu = verbs_mtu_bytes(d->port_attr.active_mtu),
             theirs = verbs_mtu_bytes((enum ibv_mtu)peer->mtu);
    mtu = theirs < mtu ? theirs : mtu;
    return rc->options.mtu && (uint64_t)rc->options.mtu < mtu ? (uint32_t)rc->options.mtu : mtu;
}

uint8_t rc_timeout(const struct rc *rc, const struct verbs_device *d)
{
    return rc->options.timeout ? (uint8_t)rc->options.timeout : verbs_device_timeout(d);
}

/* The first packet number of a generation: a quarter of all numbers further each time, so that late
 * packets of an earlier generation are not taken for new ones. */
uint32_t rc_first_psn(uint32_t psn, uint32_t generation)
{
    return (psn + (generation << 22)) & 0xffffff;
}

int rc_qp_start(const struct rc *rc, const struct rc_qp *q, char *error, size_t size)
{
    const struct verbs_options *o = &rc->options;
    const struct verbs_device *d = &q->rail->device;
    uint32_t rank = rc->peers[q->peer].rank;
    /* No rank reads or does atomics here, but some drivers refuse 0. */
    uint8_t reads = d->attr.max_qp_rd_atom > 0 ? 1 : 0;
    struct ibv_qp_attr receive = {.qp_state = IBV_QPS_RTR,
                                  .path_mtu = verbs_mtu_of(q->mtu),
                                  .dest_qp_num = q->remote_number,
                                  .rq_psn = rc_first_psn(q->remote_psn, q->generation),
                                  .max_dest_rd_atomic = reads,
                                  .min_rnr_timer = 12,
                                  .ah_attr = rc_qp_route(o, d, &q->port)};
    int failed =
        d->api->modify_qp(q->qp, &receive,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (failed)
        return mk_fail(-abs(failed), error, size,
                       "%s: the QP to rank %u cannot be brought to RTR: %s", d->name, rank,
                       strerror(abs(failed)));
    struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS,
                               .sq_psn = rc_first_psn(rc->psn, q->generation),
                               .timeout = rc_timeout(rc, d),
                               .retry_cnt = (uint8_t)o->retry,
                               .rnr_retry = (uint8_t)o->rnr_retry,
                               .max_rd_atomic = reads};
    failed = d->api->modify_qp(q->qp, &send,
                               IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                   IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    if (failed)
        snprintf(error, size, "%s: the QP to rank %u cannot be brought to RTS: %s", d->name, rank,
                 strerror(abs(failed)));
    return -abs(failed);
}

int rc_qp_connect(struct rc *rc, struct rc_qp *q, const struct rc_address *peer,
                  const struct rc_port *port, uint32_t qp_number, char *error, size_t size)
{
    q->port = *port;
    q->remote_number = qp_number;
    q->remote_psn = peer->psn;
    q->mtu = rc_qp_agree_mtu(rc, &q->rail->device, port);
    rc->mtu = !rc->mtu || q->mtu < rc->mtu ? q->mtu : rc->mtu;
    return rc_qp_start(rc, q, error, size);
}

void rc_qps_destroy(struct rc *rc)
{
    const struct verbs_api *api = rc->api;
    for (uint32_t i = 0; rc->qps && i < rc->peer_count * rc->qps_per_peer; i++) {
        if (rc->qps[i].qp)
            api->destroy_qp(rc->qps[i].qp);
        if (rc->qps[i].values)
            api->dereg_mr(rc->qps[i].values);
        free(rc->qps[i].slots);
        free(rc->qps[i].puts);
    }
    for (uint32_t i = 0; i < rc->rail_count; i++)
        if (rc->rails[i].cq)
            api->destroy_cq(rc->rails[i].cq);
    free(rc->qps);
}

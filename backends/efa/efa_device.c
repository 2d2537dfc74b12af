/* One EFA device: its limits, its queues, its address handles. */
#include "backends/efa/efa_state.h"
#include "core/base/sentence.h"
#include "core/base/sorted.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static int efa_device_query(struct efa *e, struct efa_device *d, char *error, size_t size)
{
    struct efadv_device_attr attr = {0};
    int rc = e->api.query_device(d->verbs.context, &attr, sizeof attr);
    if (rc)
        return mk_fail(-EOPNOTSUPP, error, size,
                       "%s is not an EFA device (%s): --fabric verbs may use it", d->verbs.name,
                       strerror(abs(rc)));
    if (!(attr.device_caps & EFA_CAP_RDMA_WRITE) || attr.max_rdma_size < 4096)
        return mk_fail(
            -EOPNOTSUPP, error, size,
            "%s has no RDMA write, which the efa fabric needs: use a newer EFA device, driver "
            "or libefa",
            d->verbs.name);
    d->caps = attr.device_caps;
    d->max_sq = attr.max_sq_wr;
    d->max_rq = attr.max_rq_wr;
    d->max_rdma = attr.max_rdma_size > 1u << 30 ? 1u << 30 : attr.max_rdma_size;
    if (e->options.max_rdma && e->options.max_rdma < d->max_rdma)
        d->max_rdma = (uint32_t)e->options.max_rdma;
    d->max_rdma &= ~127u;
    return 0;
}

int efa_device_open(struct efa *e, struct efa_device *d, const char *name, char *error, size_t size)
{
    struct verbs_options plain;
    verbs_options_default(&plain);
    int rc = verbs_device_open(&d->verbs, &e->api.verbs, name, &plain, error, size);
    rc = rc ? rc : efa_device_query(e, d, error, size);
    if (!rc)
        rc = mr_register(&e->api.verbs, d->verbs.pd, &e->heap, (int)e->options.relaxed_ordering,
                         &d->mr, error, size);
    if (!rc && getrandom(&d->qkey, sizeof d->qkey, 0) != sizeof d->qkey)
        rc = -EIO;
    d->qkey &= 0x7fffffff; /* the high bit is for privileged users */
    return rc;
}

/* ---- queues ---- */

/* Brings a QP up; a request names its target itself, so there is nothing to connect. */
static int efa_device_ready(struct efa *e, struct efa_device *d, struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = d->verbs.port, .qkey = d->qkey};
    int rc = e->api.verbs.modify_qp(qp, &attr,
                                    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
    attr.qp_state = IBV_QPS_RTR;
    rc = rc ? rc : e->api.verbs.modify_qp(qp, &attr, IBV_QP_STATE);
    attr.qp_state = IBV_QPS_RTS;
    attr.rnr_retry = 7; /* without end: a job's own timeout is the bound */
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN | (d->caps & EFA_CAP_RNR_RETRY ? IBV_QP_RNR_RETRY : 0);
    rc = rc ? rc : e->api.verbs.modify_qp(qp, &attr, mask);
    return -abs(rc);
}

static int efa_device_make_qp(struct efa *e, struct efa_device *d, int unsolicited, char *error,
                              size_t size)
{
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = d->send_cq,
        .recv_cq = d->recv_cq,
        .cap = {.max_send_wr = d->depth,
                .max_recv_wr = unsolicited ? 1 : e->peer_count * (e->window + EFA_CREDITS),
                .max_send_sge = 1,
                .max_recv_sge = 1},
        .qp_type = IBV_QPT_DRIVER,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = d->verbs.pd,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM};
    struct efa_qp_attr efa = {.driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD,
                              .flags = unsolicited ? EFA_QP_UNSOLICITED_WRITE : 0};
    errno = 0;
    struct ibv_qp *qp = e->api.create_qp_ex(d->verbs.context, &attr, &efa, sizeof efa);
    int rc = qp ? efa_device_ready(e, d, qp) : errno ? -errno : -ENOMEM;
    if (rc)
        snprintf(error, size,
                 "%s cannot make an SRD QP of %u entries for writes with immediate: %s",
                 d->verbs.name, d->depth, strerror(-rc));
    d->qps[unsolicited] = qp;
    return rc;
}

int efa_device_queues(struct efa *e, struct efa_device *d, char *error, size_t size)
{
    uint32_t incoming = e->peer_count * (e->window + EFA_CREDITS);
    d->depth = (uint32_t)e->options.depth < d->max_sq ? (uint32_t)e->options.depth : d->max_sq;
    if (d->verbs.attr.max_cqe > 0 && d->depth > (uint32_t)d->verbs.attr.max_cqe)
        d->depth = (uint32_t)d->verbs.attr.max_cqe;
    d->batch = d->depth;
    d->writes = calloc(d->depth, sizeof *d->writes);
    d->handles = calloc((size_t)e->peer_count, sizeof *d->handles);
    d->sources = calloc(e->peer_count, sizeof *d->sources);
    if (!d->writes || !d->handles || !d->sources)
        return -ENOMEM;
    errno = 0;
    d->control = e->api.verbs.reg_mr(d->verbs.pd, e->control, e->control_bytes,
                                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    d->send_cq = e->api.verbs.create_cq(d->verbs.context, (int)d->depth, NULL, NULL, 0);
    d->recv_cq = e->api.verbs.create_cq(d->verbs.context, (int)incoming, NULL, NULL, 0);
    if (!d->control || !d->send_cq || !d->recv_cq) {
        int rc = errno ? -errno : -ENOMEM;
        return mk_fail(
            rc, error, size,
            "%s cannot register %zu KiB or make completion queues of %u and %u entries: %s",
            d->verbs.name, e->control_bytes >> 10, d->depth, incoming, strerror(-rc));
    }
    int rc = efa_device_make_qp(e, d, 0, error, size);
    if (!rc && e->unsolicited && efa_device_make_qp(e, d, 1, error, size)) {
        /* a library or driver that is older than the device: receives do as well */
        e->unsolicited = 0;
        error[0] = '\0';
    }
    return rc;
}

/* ---- the peers ---- */

static int efa_device_by_ahn_and_qpn(const void *a, const void *b)
{
    const struct efa_source *x = a, *y = b;
    return MK_ORDER(x->ahn, y->ahn) ?: MK_ORDER(x->qpn, y->qpn);
}

uint32_t efa_device_source(const struct efa_device *d, uint32_t count, uint32_t ahn, uint32_t qpn)
{
    struct efa_source key = {.ahn = ahn, .qpn = qpn};
    const struct efa_source *found =
        bsearch(&key, d->sources, count, sizeof key, efa_device_by_ahn_and_qpn);
    return found ? found->peer : NIC_NO_PEER;
}

/* One per device of a peer: ranks that share one share the handle, and its number in
 * completions. */
int efa_device_handle(struct efa *e, struct efa_device *d, const uint8_t *gid,
                      struct efa_handle *out, char *error, size_t size)
{
    for (uint32_t i = 0; i < d->handle_count; i++)
        if (!memcmp(d->handles[i].gid.raw, gid, sizeof d->handles[i].gid)) {
            *out = d->handles[i];
            return 0;
        }
    struct efa_handle *h = &d->handles[d->handle_count];
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = d->verbs.port};
    struct efadv_ah_attr efa = {0};
    memcpy(attr.grh.dgid.raw, gid, sizeof attr.grh.dgid);
    memcpy(h->gid.raw, gid, sizeof h->gid);
    errno = 0;
    h->ah = e->api.create_ah(d->verbs.pd, &attr);
    int rc = h->ah ? 0 : errno ? -errno : -ENOMEM;
    if (!rc) {
        d->handle_count++;
        rc = -abs(e->api.query_ah(h->ah, &efa, sizeof efa));
        h->ahn = efa.ahn;
        *out = *h;
    }
    if (rc)
        snprintf(error, size, "%s cannot make an address handle: %s", d->verbs.name, strerror(-rc));
    return rc;
}

/* Keeps the kind of QP that all ranks have, and posts its receives. */
int efa_device_connect(struct efa *e, struct efa_device *d, char *error, size_t size)
{
    int other = !e->unsolicited;
    if (d->qps[other])
        e->api.verbs.destroy_qp(d->qps[other]);
    d->qps[other] = NULL;
    d->qp = d->qps[e->unsolicited];
    d->ex = e->api.qp_to_qp_ex(d->qp);
    qsort(d->sources, e->peer_count, sizeof *d->sources, efa_device_by_ahn_and_qpn);
    if (!d->ex)
        return mk_fail(-EOPNOTSUPP, error, size, "%s has no extended send calls", d->verbs.name);
    d->receives = e->unsolicited ? 0 : e->peer_count * (e->window + EFA_CREDITS);
    efa_post_receives(e, d);
    return 0;
}

void efa_device_close(struct efa *e, struct efa_device *d)
{
    const struct verbs_api *api = &e->api.verbs;
    for (int i = 0; i < 2; i++)
        if (d->qps[i])
            api->destroy_qp(d->qps[i]);
    for (uint32_t i = 0; i < d->handle_count; i++)
        e->api.destroy_ah(d->handles[i].ah);
    if (d->send_cq)
        api->destroy_cq(d->send_cq);
    if (d->recv_cq)
        api->destroy_cq(d->recv_cq);
    if (d->control)
        api->dereg_mr(d->control);
    if (d->verbs.api) {
        mr_deregister(api, &d->mr);
        verbs_device_close(&d->verbs);
    }
    free(d->writes);
    free(d->handles);
    free(d->sources);
}

/* The efadv calls of softefa devices, for programs that load libsoftnic in place of libefa, or
 * before it. Any other device answers EOPNOTSUPP, as libefa does. Structures may be longer or
 * shorter in the caller's header than in ours: only what the caller has room for is read and
 * written. */
#include "srd.h"

#include <errno.h>
#include <string.h>

#include <infiniband/efadv.h>

/* Younger than some headers in use. */
enum {
    CAPS_RDMA_READ = 1 << 0,
    CAPS_RNR_RETRY = 1 << 1,
    CAPS_CQ_WITH_SGID = 1 << 2,
    CAPS_RDMA_WRITE = 1 << 3,
    CAPS_UNSOLICITED_WRITE_RECV = 1 << 4,
    QP_UNSOLICITED_WRITE_RECV = 1 << 0,
    WC_WITH_SGID = 1 << 0,
    WC_IS_UNSOLICITED = 1 << 1,
};

struct qp_attr { /* struct efadv_qp_init_attr as it is now */
    uint64_t comp_mask;
    uint32_t driver_qp_type;
    uint16_t flags;
    uint8_t service_level;
    uint8_t reserved;
};

struct cq_view { /* struct efadv_cq as it is now */
    uint64_t comp_mask;
    int (*read_sgid)(struct efadv_cq *cq, union ibv_gid *sgid);
    bool (*is_unsolicited)(struct efadv_cq *cq);
};

_Static_assert(sizeof(struct cq_view) <= sizeof(((struct softnic_cq *)0)->efadv),
               "an efadv view fits its CQ");

static bool efadv_is_efa(const struct ibv_context *context)
{
    return softnic_context_of((struct ibv_context *)context)->device->efa;
}

/* EFA generations: with RDMA read alone, with write, with writes that take no receive. */
static uint32_t efadv_caps_of(const struct softnic_context *ctx)
{
    enum softnic_efa_caps caps = ctx->options.efa_caps;
    return CAPS_RDMA_READ | CAPS_RNR_RETRY | CAPS_CQ_WITH_SGID |
           (caps >= SOFTNIC_EFA_WRITE ? CAPS_RDMA_WRITE : 0) |
           (caps >= SOFTNIC_EFA_UNSOLICITED ? CAPS_UNSOLICITED_WRITE_RECV : 0);
}

static struct ibv_qp *efadv_create(struct ibv_pd *pd, struct ibv_qp_init_attr *init,
                                   const uint64_t *send_ops, const struct qp_attr *efa)
{
    bool unsolicited = efa->flags & QP_UNSOLICITED_WRITE_RECV;
    if (efa->comp_mask || efa->driver_qp_type != EFADV_QP_DRIVER_TYPE_SRD ||
        efa->flags & ~(unsigned)QP_UNSOLICITED_WRITE_RECV || efa->reserved)
        return softnic_none(EINVAL);
    return softnic_qp_create(pd, init, send_ops, &unsolicited);
}

struct ibv_qp *efadv_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr,
                                  struct efadv_qp_init_attr *efa_attr, uint32_t inlen)
{
    const uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    const uint64_t ops = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                         IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                         IBV_QP_EX_WITH_RDMA_READ;
    struct qp_attr efa = {0};
    bool extended = attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    const uint64_t writes = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    if (!efadv_is_efa(context) || attr->comp_mask & ~known ||
        (extended && attr->send_ops_flags & ~ops) ||
        (extended && attr->send_ops_flags & writes &&
         !(efadv_caps_of(softnic_context_of(context)) & CAPS_RDMA_WRITE)))
        return softnic_none(EOPNOTSUPP); /* SRD has no atomics */
    if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD) || inlen < offsetof(struct qp_attr, flags))
        return softnic_none(EINVAL);
    memcpy(&efa, efa_attr, inlen < sizeof(efa) ? inlen : sizeof(efa));
    if (efa.flags & QP_UNSOLICITED_WRITE_RECV &&
        !(efadv_caps_of(softnic_context_of(context)) & CAPS_UNSOLICITED_WRITE_RECV))
        return softnic_none(EOPNOTSUPP);
    return efadv_create(attr->pd, (struct ibv_qp_init_attr *)attr,
                        extended ? &attr->send_ops_flags : NULL, &efa);
}

struct ibv_qp *efadv_create_driver_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr,
                                      uint32_t type)
{
    struct qp_attr efa = {.driver_qp_type = type};
    if (!efadv_is_efa(pd->context))
        return softnic_none(EOPNOTSUPP);
    return efadv_create(pd, attr, NULL, &efa);
}

int efadv_query_device(struct ibv_context *context, struct efadv_device_attr *attr, uint32_t inlen)
{
    const struct softnic_context *ctx = softnic_context_of(context);
    if (!efadv_is_efa(context))
        return EOPNOTSUPP;
    if (inlen < offsetof(struct efadv_device_attr, reserved))
        return EINVAL;
    struct efadv_device_attr whole = {.max_sq_wr = ctx->options.efa_depth,
                                      .max_rq_wr = ctx->options.efa_depth,
                                      .max_sq_sge = SRD_MAX_SGE,
                                      .max_rq_sge = SRD_MAX_SGE,
                                      .inline_buf_size = SRD_INLINE,
                                      .device_caps = efadv_caps_of(ctx),
                                      .max_rdma_size = ctx->options.efa_rdma_bytes};
    memset(attr, 0, inlen);
    memcpy(attr, &whole, inlen < sizeof(whole) ? inlen : sizeof(whole));
    return 0;
}

int efadv_query_ah(struct ibv_ah *ah, struct efadv_ah_attr *attr, uint32_t inlen)
{
    struct efadv_ah_attr whole = {.ahn = ((struct softnic_ah *)ah)->number};
    if (!efadv_is_efa(ah->context))
        return EOPNOTSUPP;
    if (inlen < offsetof(struct efadv_ah_attr, reserved))
        return EINVAL;
    memset(attr, 0, inlen);
    memcpy(attr, &whole, inlen < sizeof(whole) ? inlen : sizeof(whole));
    return 0;
}

static struct softnic_cq *efadv_cq_of(struct efadv_cq *view)
{
    return (struct softnic_cq *)(void *)((char *)view - offsetof(struct softnic_cq, efadv));
}

/* Asked when the sender has no address handle here; answers for every receive. */
static int efadv_read_sgid(struct efadv_cq *view, union ibv_gid *sgid)
{
    struct softnic_cq *cq = efadv_cq_of(view);
    if (!(cq->current.wc.opcode & IBV_WC_RECV) || cq->current.wc.status != IBV_WC_SUCCESS)
        return ENOENT;
    softnic_device_gid(cq->current.source, sgid);
    return 0;
}

static bool efadv_is_unsolicited(struct efadv_cq *view)
{
    return efadv_cq_of(view)->current.unsolicited;
}

struct ibv_cq_ex *efadv_create_cq(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr,
                                  struct efadv_cq_init_attr *efa, uint32_t inlen)
{
    if (!efadv_is_efa(context) || inlen < sizeof(*efa) || efa->comp_mask ||
        efa->wc_flags & ~(uint64_t)(WC_WITH_SGID | WC_IS_UNSOLICITED))
        return softnic_none(EOPNOTSUPP);
    struct ibv_cq_ex *cq = softnic_create_cq_ex(context, attr);
    if (cq) {
        struct cq_view view = {.read_sgid = efa->wc_flags & WC_WITH_SGID ? efadv_read_sgid : NULL,
                               .is_unsolicited =
                                   efa->wc_flags & WC_IS_UNSOLICITED ? efadv_is_unsolicited : NULL};
        memcpy(((struct softnic_cq *)cq)->efadv, &view, sizeof(view));
    }
    return cq;
}

struct efadv_cq *efadv_cq_from_ibv_cq_ex(struct ibv_cq_ex *cq)
{
    return (struct efadv_cq *)(void *)((struct softnic_cq *)cq)->efadv;
}

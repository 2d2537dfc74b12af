/* The extended completion queue: start_poll, read_*, next_poll, end_poll. */
#include "nic.h"

#include <errno.h>
#include <sched.h>

static struct softnic_cq *completion_ex_of(struct ibv_cq_ex *cq)
{
    return (struct softnic_cq *)cq;
}

static int completion_ex_next_poll(struct ibv_cq_ex *ex)
{
    struct softnic_cq *cq = completion_ex_of(ex);
    if (!softnic_cq_poll_one(cq, &cq->current))
        return ENOENT;
    ex->wr_id = cq->current.wc.wr_id;
    ex->status = cq->current.wc.status;
    return 0;
}

/* Holds the CQ's lock from a start that finds something to end_poll, as the call's contract
 * allows. */
static int completion_ex_start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
    struct softnic_cq *cq = completion_ex_of(ex);
    if (attr->comp_mask)
        return EINVAL;
    pthread_mutex_lock(&cq->lock);
    int error = completion_ex_next_poll(ex);
    if (error) {
        bool yield = softnic_cq_should_yield(cq, NULL);
        pthread_mutex_unlock(&cq->lock);
        if (yield)
            sched_yield();
    }
    return error;
}

static void completion_ex_end_poll(struct ibv_cq_ex *ex)
{
    struct softnic_cq *cq = completion_ex_of(ex);
    bool yield = softnic_cq_should_yield(cq, &cq->current);
    pthread_mutex_unlock(&cq->lock);
    if (yield)
        sched_yield();
}

#define READ(type, name, field)                                                                    \
    static type completion_ex_read_##name(struct ibv_cq_ex *ex)                                    \
    {                                                                                              \
        return completion_ex_of(ex)->current.field;                                                \
    }
READ(enum ibv_wc_opcode, opcode, wc.opcode)
READ(uint32_t, vendor_err, wc.vendor_err)
READ(uint32_t, byte_len, wc.byte_len)
READ(__be32, imm_data, wc.imm_data)
READ(uint32_t, qp_num, wc.qp_num)
READ(uint32_t, src_qp, wc.src_qp)
READ(uint32_t, slid, wc.slid)
READ(uint64_t, time, time_ns)
#undef READ

static unsigned int completion_ex_read_wc_flags(struct ibv_cq_ex *ex)
{
    return completion_ex_of(ex)->current.wc.wc_flags;
}

/* service level and path bits are always 0 here */
static uint8_t completion_ex_read_zero(struct ibv_cq_ex *ex)
{
    return 0;
}

/* the device's clock is the wall clock */
struct ibv_cq_ex *softnic_create_cq_ex(struct ibv_context *context,
                                       struct ibv_cq_init_attr_ex *attr)
{
    const uint64_t known = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                           IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
    if (attr->wc_flags & ~known || attr->comp_mask & ~(uint32_t)IBV_CQ_INIT_ATTR_MASK_FLAGS)
        return softnic_none(EOPNOTSUPP);
    struct softnic_cq *cq = softnic_cq_create(context, (int)attr->cqe, attr->cq_context,
                                              attr->channel, (int)attr->comp_vector);
    if (!cq)
        return NULL;
    cq->ex.start_poll = completion_ex_start_poll;
    cq->ex.next_poll = completion_ex_next_poll;
    cq->ex.end_poll = completion_ex_end_poll;
    cq->ex.read_opcode = completion_ex_read_opcode;
    cq->ex.read_vendor_err = completion_ex_read_vendor_err;
    cq->ex.read_byte_len = completion_ex_read_byte_len;
    cq->ex.read_imm_data = completion_ex_read_imm_data;
    cq->ex.read_qp_num = completion_ex_read_qp_num;
    cq->ex.read_src_qp = completion_ex_read_src_qp;
    cq->ex.read_wc_flags = completion_ex_read_wc_flags;
    cq->ex.read_slid = completion_ex_read_slid;
    cq->ex.read_sl = cq->ex.read_dlid_path_bits = completion_ex_read_zero;
    cq->ex.read_completion_ts = cq->ex.read_completion_wallclock_ns = completion_ex_read_time;
    return &cq->ex;
}

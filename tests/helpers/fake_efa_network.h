/* The network between the devices of fake_efa.h: each step moves one message, drawn by the seed,
 * one thing further: a half of its bytes is read and placed, its receiver is told, its sender is
 * told. So every order that SRD allows can be had again. */
#pragma once

#include "tests/helpers/fake_efa.h"

static void fake_place(const struct fake_message *m, int half)
{
    const struct fake_write *w = &m->write;
    const struct ibv_mr *local = &fake.regions[w->lkey / 2 - 1],
                        *remote = &fake.regions[w->rkey / 2 - 1];
    uintptr_t from = (uintptr_t)local->addr, to = (uintptr_t)remote->addr;
    if (!w->bytes || local->pd != &m->from->device->pd ||
        remote->pd != &fake.devices[w->device].pd || w->from < from ||
        w->from + w->bytes > from + local->length || w->to < to ||
        w->to + w->bytes > to + remote->length || w->bytes > fake.rdma)
        fail_msg("a write of %u bytes that no device would do", w->bytes);
    uint32_t middle = w->bytes / 16 * 8, start = half ? middle : 0, end = half ? w->bytes : middle;
    memcpy((char *)(uintptr_t)w->to + start, (const char *)(uintptr_t)w->from + start, end - start);
}

/* Tells the receiver; 0: it has no receive now. */
static int fake_tell(struct fake_message *m)
{
    struct fake_device *target = &fake.devices[m->write.device];
    struct fake_qp *to = fake_find(target, m->write.qpn);
    uint32_t me = (uint32_t)(m->from->device - fake.devices);
    if (!target->handles[me] || !to || !to->live || to->qkey != m->write.qkey) {
        m->status = !target->handles[me] ? IBV_WC_REM_OP_ERR : IBV_WC_REM_INV_RD_REQ_ERR;
        return 1;
    }
    if (!to->unsolicited && !to->receives)
        return 0;
    to->receives -= !to->unsolicited;
    fake.delivered++;
    fake_push(to->recv, &(struct ibv_wc){.opcode = IBV_WC_RECV_RDMA_WITH_IMM,
                                         .imm_data = m->write.imm,
                                         .qp_num = to->ex.qp_base.qp_num,
                                         .src_qp = m->from->ex.qp_base.qp_num,
                                         .slid = fake_ahn(target, me),
                                         .wc_flags = IBV_WC_WITH_IMM});
    return 1;
}

/* Moves one message one thing further. 0: nothing is on its way. */
static int fake_step(void)
{
    if (!fake.message_count)
        return 0;
    uint32_t i = fake_random(fake.message_count);
    struct fake_message *m = fake.messages[i];
    if (m->placed != 3) {
        int half = m->placed ? m->placed == 1 : (int)fake_random(2);
        fake_place(m, half);
        m->placed |= 1 << half;
        return 1;
    }
    if (!m->told) {
        m->told = m->status ? 1 : fake_tell(m);
        return 1;
    }
    fake_push(m->from->send, &(struct ibv_wc){.wr_id = m->write.id,
                                              .status = m->status,
                                              .opcode = IBV_WC_RDMA_WRITE,
                                              .qp_num = m->from->ex.qp_base.qp_num});
    free(m);
    fake.messages[i] = fake.messages[--fake.message_count];
    return 1;
}

/* Forgets everything of the case before. */
static void fake_reset(uint64_t seed)
{
    for (uint32_t i = 0; i < fake.message_count; i++)
        free(fake.messages[i]);
    for (uint32_t i = 0; i < FAKE_DEVICES; i++)
        for (uint32_t k = 0; k < fake.devices[i].qp_count; k++) {
            free(fake.devices[i].qps[k]->batch);
            free(fake.devices[i].qps[k]);
        }
    memset(&fake, 0, sizeof fake);
    fake.random = seed * 0x9e3779b97f4a7c15ull + 1;
    for (uint32_t i = 0; i < FAKE_DEVICES; i++) {
        struct fake_device *d = &fake.devices[i];
        snprintf(d->ibv.name, sizeof d->ibv.name, "fake%u", i);
        d->context.device = &d->ibv;
        d->context.async_fd = -1;
        d->context.ops.poll_cq = fake_poll_cq;
        d->context.ops.post_recv = fake_post_recv;
    }
    fake.depth = fake.receives = fake.cqe = 4096;
    fake.rdma = 1 << 30;
    fake.caps = EFA_CAP_RDMA_WRITE | EFA_CAP_UNSOLICITED_WRITE | EFA_CAP_RNR_RETRY;
    for (int i = 0; i < 20; i++)
        fake_random(2);
}

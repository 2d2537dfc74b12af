/* One side of SRD traffic over softnic: a softefa device, an SRD QP with its CQs, a registered
 * buffer. */
#pragma once

#include "tests/softnic_load.h"

#include <infiniband/efadv.h>

enum { EFA_QKEY = 0x11223344, EFA_DEPTH = 256, EFA_UNSOLICITED = 1 };

static struct {
    __typeof__(&efadv_create_qp_ex) create_qp_ex;
    __typeof__(&efadv_create_driver_qp) create_driver_qp;
    __typeof__(&efadv_query_device) query_device;
    __typeof__(&efadv_query_ah) query_ah;
    __typeof__(&efadv_create_cq) create_cq;
    __typeof__(&efadv_cq_from_ibv_cq_ex) cq_from_ibv_cq_ex;
    __typeof__(&ibv_create_ah) create_ah;
    __typeof__(&ibv_destroy_ah) destroy_ah;
} efa;

struct efa_end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_qp *qp;
    struct ibv_qp_ex *ex;
    struct ibv_mr *mr;
    struct ibv_ah *peer; /* NULL: none made */
    uint8_t *buffer;
    size_t size;
};

static inline void efa_load(void)
{
    Dl_info info;
    nic_load();
    assert_true(dladdr((void *)(uintptr_t)nic.ibv_open_device, &info));
    void *library = dlopen(info.dli_fname, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(library);
#define FIND(field, name)                                                                          \
    efa.field = (__typeof__(efa.field))dlsym(library, name);                                       \
    assert_non_null(efa.field)
    FIND(create_qp_ex, "efadv_create_qp_ex");
    FIND(create_driver_qp, "efadv_create_driver_qp");
    FIND(query_device, "efadv_query_device");
    FIND(query_ah, "efadv_query_ah");
    FIND(create_cq, "efadv_create_cq");
    FIND(cq_from_ibv_cq_ex, "efadv_cq_from_ibv_cq_ex");
    FIND(create_ah, "ibv_create_ah");
    FIND(destroy_ah, "ibv_destroy_ah");
#undef FIND
}

static inline struct ibv_context *efa_device_open(const char *name)
{
    int count;
    struct ibv_context *context = NULL;
    struct ibv_device **list = nic.ibv_get_device_list(&count);
    assert_non_null(list);
    for (int i = 0; i < count; i++)
        if (!strcmp(nic.ibv_get_device_name(list[i]), name))
            context = nic.ibv_open_device(list[i]);
    nic.ibv_free_device_list(list);
    assert_non_null(context);
    return context;
}

static inline int efa_to(struct efa_end *e, enum ibv_qp_state state, int more, uint8_t rnr_retry)
{
    struct ibv_qp_attr attr = {
        .qp_state = state, .port_num = 1, .qkey = EFA_QKEY, .rnr_retry = rnr_retry};
    return nic.ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | more);
}

static inline struct ibv_qp *efa_qp(struct efa_end *e, uint32_t depth, uint16_t flags)
{
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = e->send_cq,
        .recv_cq = e->recv_cq,
        .cap = {.max_send_wr = depth,
                .max_recv_wr = EFA_DEPTH,
                .max_send_sge = 1,
                .max_recv_sge = 1},
        .qp_type = IBV_QPT_DRIVER,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = e->pd,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                          IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                          IBV_QP_EX_WITH_RDMA_READ};
    struct efadv_qp_init_attr efa_attr = {.driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD};
    /* a field that older headers call reserved */
    memcpy((char *)&efa_attr + 12, &flags, sizeof flags);
    return efa.create_qp_ex(e->context, &attr, &efa_attr, sizeof efa_attr);
}

static inline struct efa_end efa_open(const char *device, size_t size, uint32_t depth,
                                      uint16_t flags)
{
    struct efa_end e = {.context = efa_device_open(device), .size = size};
    e.pd = nic.ibv_alloc_pd(e.context);
    e.send_cq = nic.ibv_create_cq(e.context, 4096, NULL, NULL, 0);
    e.recv_cq = nic.ibv_create_cq(e.context, 4096, NULL, NULL, 0);
    e.buffer = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(e.pd && e.send_cq && e.recv_cq && e.buffer != MAP_FAILED);
    e.mr =
        nic.ibv_reg_mr(e.pd, e.buffer, size,
                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    e.qp = efa_qp(&e, depth, flags);
    assert_true(e.mr && e.qp);
    e.ex = nic.ibv_qp_to_qp_ex(e.qp);
    assert_non_null(e.ex);
    assert_int_equal(efa_to(&e, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, 0), 0);
    assert_int_equal(efa_to(&e, IBV_QPS_RTR, 0, 0), 0);
    assert_int_equal(efa_to(&e, IBV_QPS_RTS, IBV_QP_SQ_PSN | IBV_QP_RNR_RETRY, 7), 0);
    return e;
}

static inline struct ibv_ah *efa_ah(struct efa_end *from, struct efa_end *to)
{
    struct ibv_ah_attr attr = {.port_num = 1, .is_global = 1};
    assert_int_equal(nic.ibv_query_gid(to->context, 1, 0, &attr.grh.dgid), 0);
    struct ibv_ah *ah = efa.create_ah(from->pd, &attr);
    assert_non_null(ah);
    return ah;
}

static inline void efa_close(struct efa_end *e)
{
    if (e->peer)
        assert_int_equal(efa.destroy_ah(e->peer), 0);
    assert_int_equal(nic.ibv_destroy_qp(e->qp), 0);
    assert_int_equal(nic.ibv_dereg_mr(e->mr), 0);
    assert_int_equal(nic.ibv_destroy_cq(e->send_cq), 0);
    assert_int_equal(nic.ibv_destroy_cq(e->recv_cq), 0);
    assert_int_equal(nic.ibv_dealloc_pd(e->pd), 0);
    assert_int_equal(nic.ibv_close_device(e->context), 0);
    munmap(e->buffer, e->size);
}

static inline int efa_receive(struct efa_end *e, uint64_t id, int sges)
{
    struct ibv_sge sge = {(uintptr_t)e->buffer, 64, e->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = sges}, *bad;
    return ibv_post_recv(e->qp, &wr, &bad);
}

/* A write with immediate from `offset` here to the same offset there; what wr_complete said. */
static inline int efa_write(struct efa_end *e, struct efa_end *to, uint64_t id, uint64_t offset,
                            uint32_t bytes, uint32_t imm)
{
    ibv_wr_start(e->ex);
    e->ex->wr_id = id;
    e->ex->wr_flags = 0; /* not signaled: SRD completes every request all the same */
    ibv_wr_rdma_write_imm(e->ex, to->mr->rkey, (uintptr_t)to->buffer + offset, htobe32(imm));
    ibv_wr_set_sge(e->ex, e->mr->lkey, (uintptr_t)e->buffer + offset, bytes);
    ibv_wr_set_ud_addr(e->ex, e->peer, to->qp->qp_num, EFA_QKEY);
    return ibv_wr_complete(e->ex);
}

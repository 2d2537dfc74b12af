/* Shared by the softnic tests: the library, loaded from beside the test as a program would, and a
 * QP end with one buffer. Included by each test; nothing here is linked. */
#pragma once

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tests/helpers/test.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include "backends/softnic/cuda.h"
#include "backends/softnic/softnic.h"

#undef ibv_reg_mr

/* The calls that verbs.h does not reach through the context, by their own names. */
/* clang-format off */
#define SOFTNIC_CALLS(X) \
    X(ibv_get_device_list) X(ibv_free_device_list) X(ibv_get_device_name) X(ibv_open_device) \
    X(ibv_close_device) X(ibv_alloc_pd) X(ibv_dealloc_pd) X(ibv_reg_mr) X(ibv_reg_mr_iova2) \
    X(ibv_reg_dmabuf_mr) X(ibv_dereg_mr) X(ibv_create_cq) X(ibv_destroy_cq) X(ibv_create_qp) \
    X(ibv_destroy_qp) X(ibv_modify_qp) X(ibv_query_qp) X(ibv_query_device) X(ibv_query_gid) \
    X(ibv_qp_to_qp_ex) X(ibv_create_comp_channel) X(ibv_destroy_comp_channel) \
    X(ibv_get_cq_event) X(ibv_ack_cq_events) X(ibv_get_async_event) X(ibv_ack_async_event) \
    X(ibv_create_srq) X(ibv_create_ah) X(softnic_configure) X(softnic_error) X(softnic_silent) \
    X(softnic_provide_cuda)
/* clang-format on */

static struct {
#define X(name) __typeof__(&name) name;
    SOFTNIC_CALLS(X)
#undef X
    int (*softnic_counters)(struct ibv_context *, uint32_t, struct softnic_counters *);
} nic;

static inline void nic_load(void)
{
    char path[512];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 32);
    assert_true(length > 0);
    path[length] = 0;
    strcpy(strrchr(path, '/'), "/../libsoftnic.so");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fail_msg("%s", dlerror());
#define X(name)                                                                                    \
    nic.name = (__typeof__(nic.name))dlsym(library, #name);                                        \
    assert_non_null(nic.name);
    SOFTNIC_CALLS(X)
#undef X
    nic.softnic_counters = (__typeof__(nic.softnic_counters))dlsym(library, "softnic_counters");
    assert_non_null(nic.softnic_counters);
}

static inline void nic_configure(const char *options)
{
    if (nic.softnic_configure(options))
        fail_msg("%s", nic.softnic_error());
}

enum {
    NIC_ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
              IBV_ACCESS_REMOTE_ATOMIC
};

/* One side of a connection: a device, a QP with its own CQs, and a registered buffer. */
struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    uint8_t *buffer;
    size_t size;
    int access; /* of the QP */
    int timeout, retry_cnt, rnr_retry, min_rnr_timer;
    uint32_t psn, peer_psn;
};

/* The addresses that the ends exchange before they connect. */
struct address {
    uint16_t lid;
    uint32_t qpn, psn, rkey;
    uint64_t buffer;
};

static inline struct ibv_context *nic_open(int device)
{
    int count;
    struct ibv_device **list = nic.ibv_get_device_list(&count);
    if (!list)
        fail_msg("%s", nic.softnic_error());
    assert_true(device < count);
    struct ibv_context *context = nic.ibv_open_device(list[device]);
    assert_non_null(context);
    nic.ibv_free_device_list(list);
    return context;
}

static inline struct end end_open(struct ibv_context *context, size_t size,
                                  struct ibv_qp_init_attr init)
{
    struct end e = {.context = context,
                    .size = size,
                    .access = NIC_ALL,
                    .timeout = 8,
                    .retry_cnt = 3,
                    .rnr_retry = 7,
                    .min_rnr_timer = 1};
    e.psn = (uint32_t)(random() & 0xffffff);
    e.pd = nic.ibv_alloc_pd(context);
    e.send_cq = nic.ibv_create_cq(context, 4096, NULL, NULL, 0);
    e.recv_cq = nic.ibv_create_cq(context, 4096, NULL, NULL, 0);
    e.buffer = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(e.pd && e.send_cq && e.recv_cq && e.buffer != MAP_FAILED);
    e.mr = nic.ibv_reg_mr(e.pd, e.buffer, size, NIC_ALL);
    assert_non_null(e.mr);
    if (!init.qp_type)
        init = (struct ibv_qp_init_attr){.qp_type = IBV_QPT_RC,
                                         .cap = {.max_send_wr = 256,
                                                 .max_recv_wr = 256,
                                                 .max_send_sge = 8,
                                                 .max_recv_sge = 8,
                                                 .max_inline_data = 64}};
    init.send_cq = e.send_cq;
    init.recv_cq = e.recv_cq;
    e.qp = nic.ibv_create_qp(e.pd, &init);
    assert_non_null(e.qp);
    return e;
}

static inline struct end end_new(struct ibv_context *context, size_t size)
{
    return end_open(context, size, (struct ibv_qp_init_attr){0});
}

static inline void end_close(struct end *e)
{
    assert_int_equal(nic.ibv_destroy_qp(e->qp), 0);
    assert_int_equal(nic.ibv_dereg_mr(e->mr), 0);
    assert_int_equal(nic.ibv_destroy_cq(e->send_cq), 0);
    assert_int_equal(nic.ibv_destroy_cq(e->recv_cq), 0);
    assert_int_equal(nic.ibv_dealloc_pd(e->pd), 0);
    munmap(e->buffer, e->size);
}

static inline struct address end_address(const struct end *e)
{
    struct ibv_port_attr port;
    /* verbs.h's inline form also names ibv_query_port itself, which a program without libibverbs
     * cannot link */
    assert_int_equal(verbs_get_ctx(e->context)->query_port(e->context, 1, &port, sizeof(port)), 0);
    return (struct address){.lid = port.lid,
                            .qpn = e->qp->qp_num,
                            .psn = e->psn,
                            .rkey = e->mr->rkey,
                            .buffer = (uintptr_t)e->buffer};
}

static inline int end_to_init(struct end *e)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = (unsigned)e->access};
    return nic.ibv_modify_qp(e->qp, &attr,
                             IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static inline int end_to_rtr(struct end *e, struct address peer)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                               .path_mtu = IBV_MTU_4096,
                               .dest_qp_num = peer.qpn,
                               .rq_psn = peer.psn,
                               .max_dest_rd_atomic = 16,
                               .min_rnr_timer = (uint8_t)e->min_rnr_timer,
                               .ah_attr = {.dlid = peer.lid, .port_num = 1}};
    return nic.ibv_modify_qp(e->qp, &attr,
                             IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static inline int end_to_rts(struct end *e)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS,
                               .timeout = (uint8_t)e->timeout,
                               .retry_cnt = (uint8_t)e->retry_cnt,
                               .rnr_retry = (uint8_t)e->rnr_retry,
                               .sq_psn = e->psn,
                               .max_rd_atomic = 16};
    return nic.ibv_modify_qp(e->qp, &attr,
                             IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                 IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static inline void end_connect(struct end *e, struct address peer)
{
    assert_int_equal(end_to_init(e), 0);
    assert_int_equal(end_to_rtr(e, peer), 0);
    assert_int_equal(end_to_rts(e), 0);
}

/* Two ends of one process, connected. */
static inline void ends_connect(struct end *a, struct end *b)
{
    end_connect(a, end_address(b));
    end_connect(b, end_address(a));
}

static inline struct ibv_send_wr end_wr(enum ibv_wr_opcode opcode, uint64_t id, struct ibv_sge *sge,
                                        struct address peer, uint64_t offset)
{
    struct ibv_send_wr wr = {.wr_id = id,
                             .opcode = opcode,
                             .sg_list = sge,
                             .num_sge = 1,
                             .send_flags = IBV_SEND_SIGNALED};
    wr.wr.rdma.remote_addr = peer.buffer + offset;
    wr.wr.rdma.rkey = peer.rkey;
    return wr;
}

static inline int end_post(struct end *e, struct ibv_send_wr *wr)
{
    struct ibv_send_wr *bad;
    return ibv_post_send(e->qp, wr, &bad);
}

static inline int end_receive(struct end *e, uint64_t id, size_t offset, uint32_t length)
{
    struct ibv_sge sge = {(uintptr_t)e->buffer + offset, length, e->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
    return ibv_post_recv(e->qp, &wr, &bad);
}

/* Waits at most a minute for one completion. */
static inline struct ibv_wc cq_take(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    for (double end = test_seconds() + 60; test_seconds() < end;)
        if (ibv_poll_cq(cq, 1, &wc) == 1)
            return wc;
    fail_msg("no completion within a minute");
    return wc;
}

static inline void cq_expect(struct ibv_cq *cq, uint64_t id, enum ibv_wc_status status)
{
    struct ibv_wc wc = cq_take(cq);
    assert_int_equal(wc.wr_id, id);
    assert_int_equal(wc.status, status);
}

static inline bool cq_silent(struct ibv_cq *cq, int milliseconds)
{
    struct ibv_wc wc;
    for (double end = test_seconds() + milliseconds * 1e-3; test_seconds() < end; usleep(500))
        if (ibv_poll_cq(cq, 1, &wc))
            return false;
    return true;
}

static inline void async_expect(struct end *e, enum ibv_event_type type)
{
    struct ibv_async_event event;
    assert_int_equal(nic.ibv_get_async_event(e->context, &event), 0);
    assert_int_equal(event.event_type, type);
    nic.ibv_ack_async_event(&event);
}

static inline enum ibv_qp_state end_state(struct end *e)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    assert_int_equal(nic.ibv_query_qp(e->qp, &attr, IBV_QP_STATE, &init), 0);
    return attr.qp_state;
}

/* Each verb does on a softnic device what the table of docs/SOFT_ROCE.md says: it is there, or it
 * answers EOPNOTSUPP; and the table has all that the library exports. */
#include "softnic_load.h"

#include <arpa/inet.h>
#include <poll.h>

enum { VERBS_MAX = 256, BYTES = 4096 };

static void *library;

/* Functions that verbs.h's inline functions call by name; a stock program gets these from the
 * library that it loads. */
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_get_device_list
#define FORWARD(type, name, parameters, arguments)                                                 \
    type name parameters                                                                           \
    {                                                                                              \
        return ((type(*) parameters)dlsym(library, #name))arguments;                               \
    }
FORWARD(struct ibv_srq *, ibv_create_srq, (struct ibv_pd * pd, struct ibv_srq_init_attr *attr),
        (pd, attr))
FORWARD(struct ibv_qp *, ibv_create_qp, (struct ibv_pd * pd, struct ibv_qp_init_attr *attr),
        (pd, attr))
FORWARD(int, ibv_query_device, (struct ibv_context * context, struct ibv_device_attr *attr),
        (context, attr))
FORWARD(int, ibv_query_port,
        (struct ibv_context * context, uint8_t port, struct _compat_ibv_port_attr *attr),
        (context, port, attr))
FORWARD(struct ibv_mr *, ibv_reg_mr_iova2,
        (struct ibv_pd * pd, void *address, size_t length, uint64_t iova, unsigned access),
        (pd, address, length, iova, access))
FORWARD(int, _ibv_query_gid_ex,
        (struct ibv_context * context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
         uint32_t flags, size_t size),
        (context, port, index, entry, flags, size))
FORWARD(ssize_t, _ibv_query_gid_table,
        (struct ibv_context * context, struct ibv_gid_entry *entries, size_t most, uint32_t flags,
         size_t size),
        (context, entries, most, flags, size))

/* The library's function, typed as verbs.h declares it. */
#define LIB(name) ((__typeof__(&name))dlsym(library, #name))

static struct outcome {
    const char *name;
    int error; /* 0: it did what it is for */
} outcomes[VERBS_MAX];
static int outcome_count;

static void record(const char *name, int error)
{
    assert_true(outcome_count < VERBS_MAX);
    outcomes[outcome_count++] = (struct outcome){name, error};
}

static void *record_pointer(const char *name, void *made)
{
    record(name, made ? 0 : errno ? errno : -1);
    return made;
}

/* Calls by how they tell an error. */
#define POINTER(name, call) (errno = 0, record_pointer(#name, (void *)(uintptr_t)(call)))
#define NUMBER(name, call) record(#name, abs((int)(call)))
#define ANY(name, call) ((void)(call), record(#name, 0))
#define AT_LEAST_0(name, call) (errno = 0, record(#name, (call) >= 0 ? 0 : errno ? errno : -1))

static struct ibv_device **list;
static struct ibv_context *context;
static struct ibv_pd *pd;
static uint8_t *buffer;
static struct ibv_mr *mr;

static void devices_and_queries(void)
{
    int count;
    struct ibv_device_attr attr;
    struct ibv_device_attr_ex extended;
    struct ibv_port_attr port;
    union ibv_gid gid;
    struct ibv_gid_entry entry, entries[8];
    unsigned type;
    __be16 key;
    list = POINTER(ibv_get_device_list, ((struct ibv_device * *(*)(int *))
                                             dlsym(library, "ibv_get_device_list"))(&count));
    POINTER(ibv_get_device_name, LIB(ibv_get_device_name)(list[0]));
    AT_LEAST_0(ibv_get_device_index, LIB(ibv_get_device_index)(list[0]));
    ANY(ibv_get_device_guid, LIB(ibv_get_device_guid)(list[0]));
    NUMBER(ibv_fork_init, LIB(ibv_fork_init)());
    ANY(ibv_is_fork_initialized, LIB(ibv_is_fork_initialized)());
    POINTER(ibv_node_type_str, LIB(ibv_node_type_str)(IBV_NODE_CA));
    POINTER(ibv_port_state_str, LIB(ibv_port_state_str)(IBV_PORT_ACTIVE));
    POINTER(ibv_event_type_str, LIB(ibv_event_type_str)(IBV_EVENT_CQ_ERR));
    POINTER(ibv_wc_status_str, LIB(ibv_wc_status_str)(IBV_WC_SUCCESS));
    AT_LEAST_0(ibv_rate_to_mult, LIB(ibv_rate_to_mult)(IBV_RATE_10_GBPS));
    AT_LEAST_0(ibv_rate_to_mbps, LIB(ibv_rate_to_mbps)(IBV_RATE_10_GBPS));
    context = POINTER(ibv_open_device, LIB(ibv_open_device)(list[0]));
    assert_non_null(context);
    NUMBER(ibv_query_device, ibv_query_device(context, &attr));
    NUMBER(ibv_query_device_ex, ibv_query_device_ex(context, NULL, &extended));
    NUMBER(ibv_query_port, ___ibv_query_port(context, 1, &port));
    NUMBER(ibv_query_gid, LIB(ibv_query_gid)(context, 1, 0, &gid));
    NUMBER(ibv_query_gid_ex, ibv_query_gid_ex(context, 1, 0, &entry, 0));
    AT_LEAST_0(ibv_query_gid_table, ibv_query_gid_table(context, entries, 8, 0));
    NUMBER(ibv_query_gid_type, ((int (*)(struct ibv_context *, uint8_t, unsigned, unsigned *))dlsym(
                                   library, "ibv_query_gid_type"))(context, 1, 0, &type));
    NUMBER(ibv_query_pkey, LIB(ibv_query_pkey)(context, 1, 0, &key));
    AT_LEAST_0(ibv_get_pkey_index, LIB(ibv_get_pkey_index)(context, 1, key));
    NUMBER(ibv_query_rt_values_ex, ibv_query_rt_values_ex(context, &(struct ibv_values_ex){0}));
}

static void memory(void)
{
    buffer = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(buffer != MAP_FAILED);
    pd = POINTER(ibv_alloc_pd, LIB(ibv_alloc_pd)(context));
    struct ibv_mr *other =
        POINTER(ibv_reg_mr_iova,
                ((struct ibv_mr * (*)(struct ibv_pd *, void *, size_t, uint64_t, int)) dlsym(
                    library, "ibv_reg_mr_iova"))(pd, buffer, BYTES, 4096, IBV_ACCESS_LOCAL_WRITE));
    NUMBER(ibv_dereg_mr, LIB(ibv_dereg_mr)(other));
    other = POINTER(ibv_reg_mr_iova2,
                    ibv_reg_mr_iova2(pd, buffer, BYTES, 4096, IBV_ACCESS_LOCAL_WRITE));
    assert_int_equal(LIB(ibv_dereg_mr)(other), 0);
    mr = POINTER(ibv_reg_mr, ((struct ibv_mr * (*)(struct ibv_pd *, void *, size_t, int))
                                  dlsym(library, "ibv_reg_mr"))(pd, buffer, BYTES, NIC_ALL));
    POINTER(ibv_reg_dmabuf_mr, LIB(ibv_reg_dmabuf_mr)(pd, 0, BYTES, 0, 0, IBV_ACCESS_LOCAL_WRITE));
    errno = 0;
    int changed = LIB(ibv_rereg_mr)(mr, IBV_REREG_MR_CHANGE_ACCESS, pd, buffer, BYTES,
                                    IBV_ACCESS_LOCAL_WRITE);
    record("ibv_rereg_mr", changed ? errno : 0);
    POINTER(ibv_alloc_null_mr, ibv_alloc_null_mr(pd));
    NUMBER(ibv_advise_mr,
           ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &(struct ibv_sge){0}, 1));
    POINTER(ibv_alloc_mw, ibv_alloc_mw(pd, IBV_MW_TYPE_1));
    POINTER(ibv_alloc_dm, ibv_alloc_dm(context, &(struct ibv_alloc_dm_attr){.length = 64}));
    POINTER(ibv_reg_dm_mr, ibv_reg_dm_mr(pd, NULL, 0, 64, IBV_ACCESS_ZERO_BASED));
    POINTER(ibv_alloc_td, ibv_alloc_td(context, &(struct ibv_td_init_attr){0}));
    POINTER(ibv_alloc_parent_domain,
            ibv_alloc_parent_domain(context, &(struct ibv_parent_domain_init_attr){.pd = pd}));
    POINTER(ibv_import_device, LIB(ibv_import_device)(0));
    POINTER(ibv_import_pd, LIB(ibv_import_pd)(context, 1));
    POINTER(ibv_import_mr, LIB(ibv_import_mr)(pd, 1));
    POINTER(ibv_import_dm, LIB(ibv_import_dm)(context, 1));
}

/* Verbs that make objects which softnic does not have. */
static void other_objects(struct ibv_cq *cq, struct ibv_qp *qp)
{
    uint8_t mac[6];
    uint16_t vid;
    struct ibv_ah_attr ah = {.port_num = 1, .is_global = 1};
    union ibv_gid gid = {.raw = {0xff}};
    struct ibv_ece ece = {0};
    struct ibv_wc wc = {0};
    struct ibv_grh grh = {0};
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 1, .max_sge = 1}};
    struct ibv_srq_init_attr_ex srq_ex = {
        .attr = {.max_wr = 1, .max_sge = 1}, .comp_mask = IBV_SRQ_INIT_ATTR_PD, .pd = pd};
    POINTER(ibv_create_srq, ibv_create_srq(pd, &srq));
    POINTER(ibv_create_srq_ex, ibv_create_srq_ex(context, &srq_ex));
    NUMBER(ibv_modify_srq, LIB(ibv_modify_srq)(NULL, &srq.attr, IBV_SRQ_LIMIT));
    NUMBER(ibv_query_srq, LIB(ibv_query_srq)(NULL, &srq.attr));
    NUMBER(ibv_destroy_srq, LIB(ibv_destroy_srq)(NULL));
    POINTER(ibv_create_ah, LIB(ibv_create_ah)(pd, &ah));
    POINTER(ibv_create_ah_from_wc, LIB(ibv_create_ah_from_wc)(pd, &wc, &grh, 1));
    NUMBER(ibv_init_ah_from_wc, LIB(ibv_init_ah_from_wc)(context, 1, &wc, &grh, &ah));
    NUMBER(ibv_resolve_eth_l2_from_gid, LIB(ibv_resolve_eth_l2_from_gid)(context, &ah, mac, &vid));
    NUMBER(ibv_attach_mcast, LIB(ibv_attach_mcast)(qp, &gid, 0xc000));
    NUMBER(ibv_detach_mcast, LIB(ibv_detach_mcast)(qp, &gid, 0xc000));
    NUMBER(ibv_set_ece, LIB(ibv_set_ece)(qp, &ece));
    NUMBER(ibv_query_ece, LIB(ibv_query_ece)(qp, &ece));
    NUMBER(ibv_modify_cq, ibv_modify_cq(cq, &(struct ibv_modify_cq_attr){0}));
    NUMBER(ibv_modify_qp_rate_limit,
           ibv_modify_qp_rate_limit(qp, &(struct ibv_qp_rate_limit_attr){0}));
    POINTER(ibv_open_xrcd, ibv_open_xrcd(context, &(struct ibv_xrcd_init_attr){
                                                      .comp_mask = IBV_XRCD_INIT_ATTR_FD |
                                                                   IBV_XRCD_INIT_ATTR_OFLAGS}));
    POINTER(ibv_open_qp, ibv_open_qp(context, &(struct ibv_qp_open_attr){0}));
    POINTER(ibv_create_wq, ibv_create_wq(context, &(struct ibv_wq_init_attr){.pd = pd, .cq = cq}));
    POINTER(ibv_create_rwq_ind_table,
            ibv_create_rwq_ind_table(context, &(struct ibv_rwq_ind_table_init_attr){0}));
    POINTER(ibv_create_flow, ibv_create_flow(qp, &(struct ibv_flow_attr){0}));
    POINTER(ibv_create_flow_action_esp,
            ibv_create_flow_action_esp(context, &(struct ibv_flow_action_esp_attr){0}));
    POINTER(ibv_create_counters, ibv_create_counters(context, &(struct ibv_counters_init_attr){0}));
}

static struct ibv_cq_ex *make_cq_ex(uint64_t fields)
{
    struct ibv_cq_init_attr_ex init = {.cqe = 4, .wc_flags = fields};
    return ibv_create_cq_ex(context, &init);
}

static struct ibv_qp *make_qp_ex(struct ibv_cq *cq, uint64_t operations)
{
    struct ibv_qp_init_attr_ex init = {.qp_type = IBV_QPT_RC,
                                       .send_cq = cq,
                                       .recv_cq = cq,
                                       .cap = {.max_send_wr = 64,
                                               .max_recv_wr = 8,
                                               .max_send_sge = 2,
                                               .max_recv_sge = 1,
                                               .max_inline_data = 16},
                                       .comp_mask =
                                           IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                                       .pd = pd,
                                       .send_ops_flags = operations};
    errno = 0;
    return ibv_create_qp_ex(context, &init);
}

/* Operations that a QP is made for or not, and fields that a CQ is. */
static void refused_operations(struct ibv_cq *cq)
{
    POINTER(ibv_wr_local_inv, make_qp_ex(cq, IBV_QP_EX_WITH_LOCAL_INV));
    POINTER(ibv_wr_bind_mw, make_qp_ex(cq, IBV_QP_EX_WITH_BIND_MW));
    POINTER(ibv_wr_send_inv, make_qp_ex(cq, IBV_QP_EX_WITH_SEND_WITH_INV));
    POINTER(ibv_wr_send_tso, make_qp_ex(cq, IBV_QP_EX_WITH_TSO));
    /* IBV_QP_EX_WITH_ATOMIC_WRITE of newer headers */
    POINTER(ibv_wr_atomic_write, make_qp_ex(cq, 1ull << 12));
    POINTER(ibv_wc_read_cvlan, make_cq_ex(IBV_WC_EX_WITH_CVLAN));
    POINTER(ibv_wc_read_flow_tag, make_cq_ex(IBV_WC_EX_WITH_FLOW_TAG));
    POINTER(ibv_wc_read_tm_info, make_cq_ex(IBV_WC_EX_WITH_TM_INFO));
}

static struct ibv_wc take(struct ibv_cq *cq)
{
    struct ibv_wc wc = cq_take(cq);
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
    return wc;
}

/* Connects a QP to itself. */
static void connect_to_itself(struct ibv_qp *qp)
{
    struct end e = {.qp = qp,
                    .context = context,
                    .mr = mr,
                    .access = NIC_ALL,
                    .timeout = 14,
                    .retry_cnt = 7,
                    .rnr_retry = 7,
                    .min_rnr_timer = 1};
    end_connect(&e, end_address(&e));
}

/* One call, one batch of ibv_wr_*: what it asked for happened where a completion comes. */
#define BATCH(name, call)                                                                          \
    (ibv_wr_start(ex), ex->wr_id = 1, ex->wr_flags = IBV_SEND_SIGNALED, call,                      \
     record(#name, ibv_wr_complete(ex)))

static void work(struct ibv_qp *qp, struct ibv_cq *cq)
{
    struct ibv_sge sge = {(uintptr_t)buffer, 8, mr->lkey};
    struct ibv_recv_wr receive = {.sg_list = &sge, .num_sge = 1}, *bad_receive;
    struct ibv_send_wr send = {.sg_list = &sge,
                               .num_sge = 1,
                               .opcode = IBV_WR_RDMA_WRITE,
                               .send_flags = IBV_SEND_SIGNALED,
                               .wr.rdma = {(uintptr_t)buffer + 64, mr->rkey}},
                       *bad;
    struct ibv_data_buf piece = {buffer, 8};
    uint64_t at = (uintptr_t)buffer + 64;
    connect_to_itself(qp);
    NUMBER(ibv_post_send, ibv_post_send(qp, &send, &bad));
    take(cq);
    NUMBER(ibv_post_recv, ibv_post_recv(qp, &receive, &bad_receive));
    assert_int_equal(ibv_post_recv(qp, &receive, &bad_receive), 0);
    assert_int_equal(ibv_post_recv(qp, &receive, &bad_receive), 0);
    struct ibv_qp_ex *ex = POINTER(ibv_qp_to_qp_ex, LIB(ibv_qp_to_qp_ex)(qp));
    assert_non_null(ex);
    BATCH(ibv_wr_rdma_write, (ibv_wr_rdma_write(ex, mr->rkey, at),
                              ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 8)));
    take(cq);
    BATCH(ibv_wr_set_sge_list,
          (ibv_wr_rdma_write(ex, mr->rkey, at), ibv_wr_set_sge_list(ex, 1, &sge)));
    take(cq);
    BATCH(ibv_wr_set_inline_data,
          (ibv_wr_rdma_write(ex, mr->rkey, at), ibv_wr_set_inline_data(ex, buffer, 8)));
    take(cq);
    BATCH(ibv_wr_set_inline_data_list,
          (ibv_wr_rdma_write(ex, mr->rkey, at), ibv_wr_set_inline_data_list(ex, 1, &piece)));
    take(cq);
    BATCH(ibv_wr_rdma_read,
          (ibv_wr_rdma_read(ex, mr->rkey, at), ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 8)));
    take(cq);
    BATCH(ibv_wr_atomic_cmp_swp, (ibv_wr_atomic_cmp_swp(ex, mr->rkey, at, 0, 1),
                                  ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 8)));
    take(cq);
    BATCH(ibv_wr_atomic_fetch_add, (ibv_wr_atomic_fetch_add(ex, mr->rkey, at, 1),
                                    ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 8)));
    take(cq);
    BATCH(ibv_wr_rdma_write_imm, (ibv_wr_rdma_write_imm(ex, mr->rkey, at, htonl(7)),
                                  ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 8)));
    take(cq), take(cq);
    BATCH(ibv_wr_send, (ibv_wr_send(ex), ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 8)));
    take(cq), take(cq);
    BATCH(ibv_wr_send_imm,
          (ibv_wr_send_imm(ex, htonl(7)), ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 8)));
    take(cq), take(cq);
    ANY(ibv_wr_set_sge, 0); /* each batch above needed these three */
    ANY(ibv_wr_start, 0);
    NUMBER(ibv_wr_complete, (ibv_wr_start(ex), ibv_wr_complete(ex)));
    ANY(ibv_wr_abort, (ibv_wr_start(ex), ibv_wr_abort(ex)));
    ANY(ibv_poll_cq, 0); /* in take() */
}

static void completions(struct ibv_cq_ex *ex, struct ibv_cq *cq, struct ibv_comp_channel *channel,
                        struct ibv_qp *qp)
{
    void *user;
    struct ibv_cq *told;
    struct ibv_sge sge = {(uintptr_t)buffer, 8, mr->lkey};
    struct ibv_send_wr send = {.sg_list = &sge,
                               .num_sge = 1,
                               .opcode = IBV_WR_RDMA_WRITE,
                               .send_flags = IBV_SEND_SIGNALED,
                               .wr.rdma = {(uintptr_t)buffer + 64, mr->rkey}},
                       *bad;
    NUMBER(ibv_resize_cq, LIB(ibv_resize_cq)(cq, 512));
    NUMBER(ibv_req_notify_cq, ibv_req_notify_cq(cq, 0));
    assert_int_equal(ibv_post_send(qp, &send, &bad), 0);
    assert_int_equal(ibv_post_send(qp, &send, &bad), 0);
    NUMBER(ibv_get_cq_event, LIB(ibv_get_cq_event)(channel, &told, &user));
    assert_ptr_equal(told, cq);
    ANY(ibv_ack_cq_events, LIB(ibv_ack_cq_events)(cq, 1));
    int empty = ENOENT;
    for (double end = test_seconds() + 10; empty && test_seconds() < end;)
        empty = ibv_start_poll(ex, &(struct ibv_poll_cq_attr){0});
    record("ibv_start_poll", empty);
    assert_int_equal(empty, 0);
    ANY(ibv_wc_read_opcode, assert_int_equal(ibv_wc_read_opcode(ex), IBV_WC_RDMA_WRITE));
    ANY(ibv_wc_read_qp_num, assert_int_equal(ibv_wc_read_qp_num(ex), qp->qp_num));
    ANY(ibv_wc_read_vendor_err, ibv_wc_read_vendor_err(ex));
    ANY(ibv_wc_read_byte_len, ibv_wc_read_byte_len(ex));
    ANY(ibv_wc_read_imm_data, ibv_wc_read_imm_data(ex));
    ANY(ibv_wc_read_src_qp, ibv_wc_read_src_qp(ex));
    ANY(ibv_wc_read_wc_flags, ibv_wc_read_wc_flags(ex));
    ANY(ibv_wc_read_slid, ibv_wc_read_slid(ex));
    ANY(ibv_wc_read_sl, ibv_wc_read_sl(ex));
    ANY(ibv_wc_read_dlid_path_bits, ibv_wc_read_dlid_path_bits(ex));
    ANY(ibv_wc_read_completion_ts, assert_true(ibv_wc_read_completion_ts(ex)));
    ANY(ibv_wc_read_completion_wallclock_ns, assert_true(ibv_wc_read_completion_wallclock_ns(ex)));
    int next = ibv_next_poll(ex); /* the second may not be there yet */
    NUMBER(ibv_next_poll, next == ENOENT ? 0 : next);
    ANY(ibv_end_poll, ibv_end_poll(ex));
    if (next)
        cq_take(cq);
}

/* A key that opens nothing: the responder, which is the same QP, raises an event. Waits until it is
 * there. */
static void refused_write(struct ibv_qp *qp)
{
    struct ibv_sge sge = {(uintptr_t)buffer, 8, mr->lkey};
    struct ibv_send_wr send = {.sg_list = &sge,
                               .num_sge = 1,
                               .opcode = IBV_WR_RDMA_WRITE,
                               .send_flags = IBV_SEND_SIGNALED,
                               .wr.rdma = {(uintptr_t)buffer + 64, mr->lkey}},
                       *bad;
    struct pollfd event = {.fd = context->async_fd, .events = POLLIN};
    assert_int_equal(ibv_post_send(qp, &send, &bad), 0);
    assert_int_equal(poll(&event, 1, 10000), 1);
}

static void queues(void)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr got,
        plain = {.qp_type = IBV_QPT_RC,
                 .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_async_event event;
    struct ibv_comp_channel *channel =
        POINTER(ibv_create_comp_channel, LIB(ibv_create_comp_channel)(context));
    struct ibv_cq_init_attr_ex init = {.cqe = 64,
                                       .channel = channel,
                                       .wc_flags = IBV_WC_STANDARD_FLAGS |
                                                   IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                                                   IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK};
    struct ibv_cq_ex *ex = POINTER(ibv_create_cq_ex, ibv_create_cq_ex(context, &init));
    struct ibv_cq *cq = POINTER(ibv_cq_ex_to_cq, ibv_cq_ex_to_cq(ex)),
                  *other = POINTER(ibv_create_cq, LIB(ibv_create_cq)(context, 4, NULL, NULL, 0));
    struct ibv_qp *qp =
        POINTER(ibv_create_qp_ex,
                make_qp_ex(cq, IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                                   IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                                   IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                                   IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD));
    plain.send_cq = plain.recv_cq = other;
    struct ibv_qp *second = POINTER(ibv_create_qp, ibv_create_qp(pd, &plain));
    assert_true(cq && other && qp && second);
    NUMBER(ibv_query_qp, LIB(ibv_query_qp)(qp, &attr, IBV_QP_STATE, &got));
    ANY(ibv_query_qp_data_in_order, LIB(ibv_query_qp_data_in_order)(qp, IBV_WR_RDMA_WRITE, 0));
    other_objects(other, second);
    refused_operations(cq);
    work(qp, cq);
    ANY(ibv_modify_qp, 0); /* in connect_to_itself() */
    completions(ex, cq, channel, qp);
    refused_write(qp);
    NUMBER(ibv_get_async_event, LIB(ibv_get_async_event)(context, &event));
    assert_int_equal(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
    ANY(ibv_ack_async_event, LIB(ibv_ack_async_event)(&event));
    NUMBER(ibv_destroy_qp, LIB(ibv_destroy_qp)(qp));
    assert_int_equal(LIB(ibv_destroy_qp)(second), 0);
    NUMBER(ibv_destroy_cq, LIB(ibv_destroy_cq)(cq));
    assert_int_equal(LIB(ibv_destroy_cq)(other), 0);
    NUMBER(ibv_destroy_comp_channel, LIB(ibv_destroy_comp_channel)(channel));
}

/* ---- the table ---- */

struct row {
    char name[64];
    enum { THERE, REFUSED, NO_OBJECT } says;
};

static int read_table(struct row *rows)
{
    static const char *const words[] = {"there", "EOPNOTSUPP", "no object"};
    FILE *f = fopen("docs/SOFT_ROCE.md", "r");
    char line[4096];
    int count = 0;
    assert_non_null(f);
    while (fgets(line, sizeof(line), f)) {
        int says = -1;
        for (int i = 0; i < 3; i++) {
            char start[32];
            snprintf(start, sizeof(start), "| %s |", words[i]);
            if (!strncmp(line, start, strlen(start)))
                says = i;
        }
        if (says < 0)
            continue;
        for (char *at = line; (at = strstr(at, "`ibv_"));) {
            size_t length = strcspn(++at, "`");
            assert_true(count < VERBS_MAX && length < sizeof(rows->name));
            memcpy(rows[count].name, at, length);
            rows[count].name[length] = 0;
            rows[count++].says = (__typeof__(rows->says))says;
            at += length;
        }
    }
    fclose(f);
    return count;
}

static const struct row *row_of(const struct row *rows, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(rows[i].name, name))
            return &rows[i];
    return NULL;
}

CASE(does_what_the_table_says)
{
    static struct row rows[VERBS_MAX];
    int count = read_table(rows), wrong = 0;
    devices_and_queries();
    memory();
    queues();
    NUMBER(ibv_dealloc_pd, (LIB(ibv_dereg_mr)(mr), LIB(ibv_dealloc_pd)(pd)));
    NUMBER(ibv_close_device, LIB(ibv_close_device)(context));
    ANY(ibv_free_device_list, LIB(ibv_free_device_list)(list));
    munmap(buffer, BYTES);
    for (int i = 0; i < outcome_count; i++) {
        const struct row *row = row_of(rows, count, outcomes[i].name);
        int expected = row && row->says == REFUSED ? EOPNOTSUPP : 0;
        if (row && row->says != NO_OBJECT && outcomes[i].error == expected)
            continue;
        wrong++;
        print_error("%s: %s, and the table %s\n", outcomes[i].name,
                    outcomes[i].error ? strerror(outcomes[i].error) : "is there",
                    !row                   ? "lacks it"
                    : row->says == THERE   ? "says that it is there"
                    : row->says == REFUSED ? "says EOPNOTSUPP"
                                           : "says that there is no object for it");
    }
    for (int i = 0; i < count; i++) {
        int tried = rows[i].says == NO_OBJECT;
        for (int k = 0; k < outcome_count && !tried; k++)
            tried = !strcmp(outcomes[k].name, rows[i].name);
        if (!tried)
            print_error("%s is in the table and not in this test\n", rows[i].name);
        wrong += !tried;
    }
    assert_int_equal(wrong, 0);
}

CASE(table_is_complete)
{
    static struct row rows[VERBS_MAX];
    int count = read_table(rows), exported = 0, missing = 0;
    Dl_info info;
    char command[640], name[128];
    assert_true(dladdr(dlsym(library, "ibv_open_device"), &info));
    snprintf(command, sizeof(command), "nm -D --defined-only %s | awk '{print $3}'",
             info.dli_fname);
    FILE *f = popen(command, "r");
    while (f && fscanf(f, "%127s", name) == 1) {
        /* that one is no verb */
        if (strncmp(name, "ibv_", 4) || !strcmp(name, "ibv_read_sysfs_file"))
            continue;
        exported++;
        if (!row_of(rows, count, name)) {
            print_error("the library exports %s, and the table lacks it\n", name);
            missing++;
        }
    }
    if (f)
        pclose(f);
    if (!exported) {
        print_message("nm of binutils is not installed\n");
        skip();
    }
    assert_int_equal(missing, 0);
}

/* Functions of verbs.h beside verbs: arithmetic and names of types. */
static int is_no_verb(const char *name)
{
    static const char *const others[] = {"ibv_inc_rkey", "ibv_is_qpt_supported",
                                         "ibv_flow_label_to_udp_sport", "ibv_static_providers",
                                         "ibv_wc_opcode"};
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
        if (!strcmp(name, others[i]))
            return 1;
    return 0;
}

/* Of all that a program can call, inline functions among it; a header newer than Debian 12's knows
 * more. */
CASE(table_has_the_header)
{
    static struct row rows[VERBS_MAX];
    int count = read_table(rows), declared = 0, missing = 0;
    char name[128];
    FILE *f = popen("cat /usr/include/infiniband/verbs.h 2>/dev/null | grep -oE '\\bibv_[a-z0-9_]+ "
                    "*\\(' | tr -d ' (' | sort -u",
                    "r");
    while (f && fscanf(f, "%127s", name) == 1) {
        declared++;
        if (row_of(rows, count, name) || is_no_verb(name))
            continue;
        missing++;
        print_message("verbs.h has %s, and the table lacks it\n", name);
    }
    if (f)
        pclose(f);
    if (!declared || system("! grep -q IBV_QP_EX_WITH_FLUSH /usr/include/infiniband/verbs.h")) {
        print_message("skipped: verbs.h is not in /usr/include, or newer than the table\n");
        skip();
    }
    assert_int_equal(missing, 0);
}

static int setup(void **state)
{
    char path[512];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 32);
    assert_true(length > 0);
    path[length] = 0;
    strcpy(strrchr(path, '/'), "/../libsoftnic.so");
    setenv("SOFTNIC", "devices=1,efa=0", 1);
    nic_load();
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(library);
    return 0;
}

FIXTURE(setup, NULL)

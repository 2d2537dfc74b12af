/* softnic's EFA devices move GPU memory by copy engine alone, and keep SRD's promises there: an
 * arrival is told, and a request completes, when all its bytes are there, in any order; a request
 * whose copy fails says so. The GPU is a fake one whose memory the CPU cannot touch. */
#define OWN_MAIN
#include "tests/helpers/efa_end.h"
#include "tests/helpers/fake_gpu.h"

#include <endian.h>

enum { GPU = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, MIB = 1 << 20 };

static struct efa_end a, b;
static struct ibv_mr *from, *to; /* allocation 0, of a; allocation 1, of b */

static int setup(void **state)
{
    nic_configure("reorder=1ms,fail-wr=none,copy=auto");
    fake_gpu.slow_ns = fake_gpu.fail_copies = 0;
    memset(fake_gpu.engine[1], 0, FAKE_ALLOCATION_BYTES);
    for (size_t i = 0; i < FAKE_ALLOCATION_BYTES / 8; i++)
        ((uint64_t *)(void *)fake_gpu.engine[0])[i] = i * 0x9e3779b97f4a7c15u + 1;
    a = efa_open("softefa0", MIB, EFA_DEPTH, 0);
    b = efa_open("softefa1", MIB, EFA_DEPTH, EFA_UNSOLICITED);
    a.peer = efa_ah(&a, &b);
    b.peer = efa_ah(&b, &a);
    from = nic.ibv_reg_mr(a.pd, fake_gpu.device[0], FAKE_ALLOCATION_BYTES, GPU);
    to = nic.ibv_reg_mr(b.pd, fake_gpu.device[1], FAKE_ALLOCATION_BYTES, GPU);
    return from && to ? 0 : -1;
}

static int teardown(void **state)
{
    fake_gpu_hold(0);
    assert_int_equal(nic.ibv_dereg_mr(from), 0);
    assert_int_equal(nic.ibv_dereg_mr(to), 0);
    efa_close(&a);
    efa_close(&b);
    assert_int_equal(fake_gpu.contexts, 0);
    return 0;
}

/* A write with immediate out of a's GPU memory, or out of `host`, to b's GPU memory. */
static void write_gpu(uint64_t id, const void *host, size_t source, size_t target, uint32_t bytes)
{
    ibv_wr_start(a.ex);
    a.ex->wr_id = id;
    ibv_wr_rdma_write_imm(a.ex, to->rkey, (uintptr_t)fake_gpu.device[1] + target,
                          htobe32((uint32_t)id));
    if (host)
        ibv_wr_set_sge(a.ex, a.mr->lkey, (uintptr_t)host, bytes);
    else
        ibv_wr_set_sge(a.ex, from->lkey, (uintptr_t)fake_gpu.device[0] + source, bytes);
    ibv_wr_set_ud_addr(a.ex, a.peer, b.qp->qp_num, EFA_QKEY);
    assert_int_equal(ibv_wr_complete(a.ex), 0);
}

static uint32_t arrival(void)
{
    struct ibv_wc wc = cq_take(b.recv_cq);
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
    return be32toh(wc.imm_data);
}

CASE_WITH(test_told_when_there, setup, teardown)
{
    fake_gpu_hold(1);
    write_gpu(7, NULL, 64, 4096, MIB + 8);
    assert_true(cq_silent(b.recv_cq, 50) && cq_silent(a.send_cq, 1));
    fake_gpu_hold(0);
    assert_int_equal(arrival(), 7);
    assert_memory_equal(fake_gpu.engine[1] + 4096, fake_gpu.engine[0] + 64, MIB + 8);
    cq_expect(a.send_cq, 7, IBV_WC_SUCCESS);
}

CASE_WITH(test_no_order, setup, teardown)
{
    enum { N = 200, BYTES = 16384 };
    uint32_t displaced = 0;
    fake_gpu.slow_ns = 20000;
    for (uint32_t i = 0; i < N; i++)
        write_gpu(i, NULL, (size_t)i * BYTES, (size_t)(N - 1 - i) * BYTES, BYTES);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t which = arrival();
        displaced += which != i;
        assert_true(which < N);
        assert_memory_equal(fake_gpu.engine[1] + (size_t)(N - 1 - which) * BYTES,
                            fake_gpu.engine[0] + (size_t)which * BYTES, BYTES);
    }
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(cq_take(a.send_cq).status, IBV_WC_SUCCESS);
    assert_true(displaced > N / 4);
}

/* From host memory to the GPU, small and large, by direct reading and through the socket; and from
 * the GPU to host memory. */
CASE_WITH(test_mixed, setup, teardown)
{
    static const uint32_t sizes[] = {1, 8, 4096, 5000, 700000};
    for (size_t i = 0; i < MIB; i++)
        a.buffer[i] = (uint8_t)(i * 7 + i / 256);
    for (int stream = 0; stream < 2; stream++) {
        if (stream) { /* a link finds out how to copy when it is made */
            teardown(state);
            nic_configure("copy=stream");
            setup(state);
            for (size_t i = 0; i < MIB; i++)
                a.buffer[i] = (uint8_t)(i * 5);
        }
        for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            write_gpu(i, a.buffer + 24, 0, 4096 * (i + 1), sizes[i]);
            assert_int_equal(arrival(), i);
            assert_memory_equal(fake_gpu.engine[1] + 4096 * (i + 1), a.buffer + 24, sizes[i]);
            cq_expect(a.send_cq, i, IBV_WC_SUCCESS);
            ibv_wr_start(a.ex);
            a.ex->wr_id = 9;
            ibv_wr_rdma_write_imm(a.ex, b.mr->rkey, (uintptr_t)b.buffer + 8, htobe32(9));
            ibv_wr_set_sge(a.ex, from->lkey, (uintptr_t)fake_gpu.device[0] + 40, sizes[i]);
            ibv_wr_set_ud_addr(a.ex, a.peer, b.qp->qp_num, EFA_QKEY);
            assert_int_equal(ibv_wr_complete(a.ex), 0);
            assert_int_equal(arrival(), 9);
            assert_memory_equal(b.buffer + 8, fake_gpu.engine[0] + 40, sizes[i]);
            cq_expect(a.send_cq, 9, IBV_WC_SUCCESS);
        }
    }
}

/* Sends fill one receive each, though the first one's copies are under way when the second one
 * comes. */
CASE_WITH(test_sends, setup, teardown)
{
    enum { N = 8, BYTES = 8192 };
    fake_gpu.slow_ns = 200000;
    for (uint64_t i = 0; i < N; i++) {
        struct ibv_sge sge = {(uintptr_t)fake_gpu.device[1] + i * BYTES, BYTES, to->lkey};
        struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1}, *bad;
        assert_int_equal(ibv_post_recv(b.qp, &wr, &bad), 0);
    }
    for (uint64_t i = 0; i < N; i++) {
        ibv_wr_start(a.ex);
        a.ex->wr_id = i;
        ibv_wr_send_imm(a.ex, htobe32((uint32_t)i));
        ibv_wr_set_sge(a.ex, from->lkey, (uintptr_t)fake_gpu.device[0] + i * BYTES, BYTES);
        ibv_wr_set_ud_addr(a.ex, a.peer, b.qp->qp_num, EFA_QKEY);
        assert_int_equal(ibv_wr_complete(a.ex), 0);
    }
    for (uint64_t i = 0; i < N; i++) {
        struct ibv_wc wc = cq_take(b.recv_cq);
        assert_int_equal(wc.status, IBV_WC_SUCCESS);
        assert_int_equal(wc.wr_id, i);
        assert_memory_equal(fake_gpu.engine[1] + i * BYTES,
                            fake_gpu.engine[0] + be32toh(wc.imm_data) * BYTES, BYTES);
    }
}

CASE_WITH(test_copy_fails, setup, teardown)
{
    fake_gpu.fail_copies = 1;
    write_gpu(1, NULL, 0, 0, MIB);
    cq_expect(a.send_cq, 1, IBV_WC_REM_ABORT_ERR);
    assert_true(cq_silent(b.recv_cq, 5));
    fake_gpu.fail_copies = 0;
}

/* A request that nothing here copies: a read into GPU memory. */
CASE_WITH(test_read, setup, teardown)
{
    ibv_wr_start(a.ex);
    a.ex->wr_id = 4;
    ibv_wr_rdma_read(a.ex, b.mr->rkey, (uintptr_t)b.buffer);
    ibv_wr_set_sge(a.ex, from->lkey, (uintptr_t)fake_gpu.device[0], 4096);
    ibv_wr_set_ud_addr(a.ex, a.peer, b.qp->qp_num, EFA_QKEY);
    assert_int_equal(ibv_wr_complete(a.ex), 0);
    cq_expect(a.send_cq, 4, IBV_WC_LOC_PROT_ERR);
}

int main(void)
{
    efa_load();
    return cmocka_run_group_tests(test_cases, fake_gpu_begin, fake_gpu_end);
}

/* Ranks that come late, in launches that begin behind each other: two launches of one stream, of
 * which a rank waits 9 s for the first and 5 s more for the second, both within the timeout of 10
 * s, end well. (The second's blocks are on the GPU, and wait, from the first's begin on.)
 *
 *   gpu_late check        needs two Hopper GPUs */
#include "tests/helpers/gpu_pair.cuh"

enum { M = 16, N = 4096, K = 8192 };

static int rank_main(int rank, int listener, unsigned port)
{
    static const unsigned sleeps[] = {9, 5};
    struct mk_spec spec = {};
    struct mk_comm *comm;
    struct mk_plan *plan;
    void *a, *b, *c;
    spec.op = MK_OP_AG_GEMM;
    spec.shape[0] = M;
    spec.shape[1] = N;
    spec.shape[2] = K;
    spec.options = "shots=1";
    int result = pair_open(&comm, rank, listener, port, "late");
    if (!result)
        result = mk_plan_create(&plan, comm, &spec);
    if (!result && (cudaMalloc(&a, M / GPUS * K * 2) || cudaMalloc(&b, (size_t)N * K * 2) ||
                    cudaMalloc(&c, M * N * 2)))
        result = -1;
    for (int i = 0; i < 2 && !result; i++) {
        if (rank)
            sleep(sleeps[i]);
        result = mk_ag_gemm(plan, a, b, c, NULL);
    }
    if (!result)
        result = mk_wait(comm);
    if (result)
        fprintf(stderr, "rank %d: %s\n", rank, mk_error(comm));
    mk_comm_close(comm);
    return result != 0;
}

int main(void)
{
    return pair_run(rank_main);
}

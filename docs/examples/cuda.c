/* C = gather(A) * B on GPUs, in plain C with the CUDA runtime, one process a GPU. A launch stands
 * in a stream's order and is captured in a graph once and replayed.
 *
 *   cuda                                 one GPU
 *   cuda 0 2 PORT & cuda 1 2 PORT        two */
#include <cuda_runtime_api.h>
#include <mkernel/mkernel.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { M = 1024, N = 512, K = 768, REPLAYS = 5 };

static int refuse(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(cudaGetLastError()));
    return -EIO;
}

/* Device memory with `count` bf16 numbers of one value; NULL where there is none. */
static void *device(size_t count, uint16_t value)
{
    uint16_t *host = malloc(2 * count);
    void *memory = NULL;
    for (size_t i = 0; host && i < count; i++)
        host[i] = value;
    if (!host || cudaMalloc(&memory, 2 * count) != cudaSuccess ||
        cudaMemcpy(memory, host, 2 * count, cudaMemcpyHostToDevice) != cudaSuccess)
        memory = NULL;
    free(host);
    return memory;
}

/* Captures one launch; replayed it computes with what then lies in A and B. */
static int capture(struct mk_plan *plan, void *a, void *b, void *c, cudaStream_t stream,
                   cudaGraphExec_t *out)
{
    cudaGraph_t graph = NULL;
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess)
        return refuse("begin of capture");
    int rc = mk_ag_gemm(plan, a, b, c, stream);
    if (cudaStreamEndCapture(stream, &graph) != cudaSuccess ||
        cudaGraphInstantiate(out, graph, 0) != cudaSuccess)
        rc = rc ? rc : refuse("end of capture");
    if (graph)
        cudaGraphDestroy(graph);
    return rc;
}

static int run(struct mk_comm *comm, uint32_t ranks, uint16_t *last)
{
    struct mk_spec spec = {.op = MK_OP_AG_GEMM, .shape = {M, N, K}};
    struct mk_plan *plan;
    cudaStream_t stream;
    cudaGraphExec_t graph = NULL;
    int rc = mk_plan_create(&plan, comm, &spec);
    if (rc)
        return rc;
    /* The communicator's GPU is this thread's current device. 0x3f80 is 1, 0x4000 is 2,
     * 0xffff is NaN. */
    void *a = device(M / ranks * K, 0x3f80), *b = device(K * N, 0x4000), *c = device(M * N, 0xffff);
    if (!a || !b || !c || cudaStreamCreate(&stream) != cudaSuccess)
        return refuse("GPU memory and a stream");
    rc = capture(plan, a, b, c, stream, &graph);
    for (int i = 0; i < REPLAYS && !rc; i++)
        rc = cudaGraphLaunch(graph, stream) == cudaSuccess ? 0 : refuse("replay");
    if (!rc)
        rc = mk_wait_stream(comm, stream); /* the replays; it ends also where a rank is lost */
    if (!rc && cudaMemcpy(last, (uint16_t *)c + M * N - 1, sizeof *last, cudaMemcpyDeviceToHost) !=
                   cudaSuccess)
        rc = refuse("C");
    if (graph)
        cudaGraphExecDestroy(graph);
    cudaStreamDestroy(stream);
    cudaFree(a);
    cudaFree(b);
    cudaFree(c);
    return rc;
}

int main(int argc, char **argv)
{
    if (argc != 1 && argc != 4) {
        fprintf(stderr, "usage: cuda [RANK RANKS PORT]\n");
        return 2;
    }
    uint32_t rank = argc > 1 ? (uint32_t)atoi(argv[1]) : 0,
             ranks = argc > 1 ? (uint32_t)atoi(argv[2]) : 1;
    struct mk_config config = {.version = MK_VERSION_NUMBER,
                               .rank = rank,
                               .nodes = 1,
                               .gpus = ranks,
                               .exec = MK_EXEC_CUDA,
                               .host = "127.0.0.1",
                               .port = argc > 1 ? (uint16_t)atoi(argv[3]) : 0};
    struct mk_comm *comm;
    uint16_t last = 0;
    const char *token = getenv("MKERNEL_TOKEN");
    snprintf(config.token, sizeof config.token, "%s", token ? token : "an example's");
    int rc = mk_comm_open(&comm, &config);
    if (!rc)
        rc = run(comm, ranks, &last);
    if (rc)
        fprintf(stderr, "rank %u: %s\n", rank, mk_error(comm));
    mk_comm_close(comm);
    if (rc)
        return 1;
    printf("rank %u: %#x, %s\n", rank, last,
           last == 0x44c0 ? "right" : "wrong"); /* 0x44c0: 1536, which is 2 K */
    return last != 0x44c0;
}

/* Ranks that come late, in launches that begin behind each other: two launches of one stream, of
 * which a rank waits 9 s for the first and 5 s more for the second, both within the timeout of 10
 * s, end well. (The second's blocks are on the GPU, and wait, from the first's begin on.)
 *
 *   gpu_late check        needs two Hopper GPUs */
#include <cuda_runtime.h>

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/mkernel.h"

enum { GPUS = 2, M = 16, N = 4096, K = 8192 };

static int rank_main(int rank, int listener, unsigned port)
{
    static const unsigned sleeps[] = {9, 5};
    struct mk_config config = {};
    struct mk_spec spec = {};
    struct mk_comm *comm;
    struct mk_plan *plan;
    void *a, *b, *c;
    config.version = MK_VERSION_NUMBER;
    config.rank = rank;
    config.nodes = 1;
    config.gpus = GPUS;
    config.exec = MK_EXEC_CUDA;
    config.port = (uint16_t)port;
    config.listen_fd = rank ? 0 : listener;
    strcpy(config.token, "late");
    spec.op = MK_OP_AG_GEMM;
    spec.shape[0] = M;
    spec.shape[1] = N;
    spec.shape[2] = K;
    spec.options = "shots=1";
    int result = mk_comm_open(&comm, &config);
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

/* In a process of its own: this one must not start CUDA, as its children do. */
static int too_few_gpus(void)
{
    int status;
    pid_t child = fork();
    if (!child) {
        int n = 0, major = 0;
        _exit(cudaGetDeviceCount(&n) != cudaSuccess || n < GPUS ||
              cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess ||
              major != 9);
    }
    return waitpid(child, &status, 0) < 0 || status;
}

int main(void)
{
    struct sockaddr_in address = {};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), failed = 0, status;
    if (too_few_gpus()) {
        printf("skipped: fewer than %d Hopper GPUs\n", GPUS);
        return 77;
    }
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) ||
        listen(listener, GPUS) || getsockname(listener, (struct sockaddr *)&address, &length))
        return 1;
    fflush(NULL);
    for (int rank = 0; rank < GPUS; rank++)
        if (!fork())
            _exit(rank_main(rank, listener, ntohs(address.sin_port)));
    close(listener);
    for (int rank = 0; rank < GPUS; rank++)
        failed |= wait(&status) < 0 || status;
    printf("check: %s\n", failed ? "FAILED" : "ok");
    return failed;
}

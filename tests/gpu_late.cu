/* Ranks that come late, in launches that begin behind each other: two launches of one stream, of
 * which a rank waits 9 s for the first and 5 s more for the second, both within the timeout of 10
 * s, end well. (The second's blocks are on the GPU, and wait, from the first's begin on.) And
 * launches of two communicators with half of the SMs each, which the ranks begin in opposite order,
 * find their SMs.
 *
 *   gpu_late check            needs two Hopper GPUs
 *   gpu_late check shared     one, under MPS: ranks have half of its SMs each */
#include "tests/helpers/gpu_pair.cuh"

enum { PAUSE_US = 5000, ROUNDS = 4 };

/* A plan over a communicator of this job, and its arguments. */
struct late {
    struct mk_comm *comm;
    struct mk_plan *plan;
    void *a, *b, *c;
    cudaStream_t stream;
};

static int late_open(struct late *l, int rank, int listener, unsigned port, struct mk_spec *spec)
{
    const uint64_t m = spec->shape[0], n = spec->shape[1], k = spec->shape[2];
    int result = pair_open(&l->comm, rank, listener, port, "late");
    if (!result)
        result = mk_plan_create(&l->plan, l->comm, spec);
    if (!result &&
        (cudaMalloc(&l->a, m * k * 2) || cudaMalloc(&l->b, n * k * 2) ||
         cudaMalloc(&l->c, m * n * 2) || cudaMemset(l->a, 0, m * k * 2) ||
         cudaMemset(l->b, 0, n * k * 2) || cudaStreamCreate(&l->stream) || cudaDeviceSynchronize()))
        result = -1;
    return result;
}

static int late_close(struct late *l, int rank, int result)
{
    if (!result)
        result = mk_wait(l->comm);
    if (result)
        fprintf(stderr, "rank %d: %s\n", rank, mk_error(l->comm));
    mk_comm_close(l->comm);
    return result != 0;
}

static int late_main(int rank, int listener, unsigned port)
{
    static const unsigned sleeps[] = {9, 5};
    struct mk_spec spec = {};
    struct late l = {};
    spec.op = MK_OP_AG_GEMM;
    spec.shape[0] = 16;
    spec.shape[1] = 4096;
    spec.shape[2] = 8192;
    spec.options = "shots=1";
    int result = late_open(&l, rank, listener, port, &spec);
    for (int i = 0; i < 2 && !result; i++) {
        if (rank)
            sleep(sleeps[i]);
        result = mk_ag_gemm(l.plan, l.a, l.b, l.c, l.stream);
    }
    return late_close(&l, rank, result);
}

static int other_listener;
static unsigned other_port;

static int crossed_main(int rank, int listener, unsigned port)
{
    struct mk_spec spec = {};
    struct late l[2] = {};
    spec.op = MK_OP_GEMM_AR;
    spec.shape[0] = 1024;
    spec.shape[1] = spec.shape[2] = 4096;
    spec.options = "sms=66";
    int result = late_open(&l[0], rank, listener, port, &spec);
    if (!result)
        result = late_open(&l[1], rank, other_listener, other_port, &spec);
    for (int round = 0; round < ROUNDS && !result; round++) {
        for (int i = 0; i < 2; i++) {
            struct late *first = &l[i ^ rank];
            for (int launch = 0; launch < 4 && !result; launch++)
                result = mk_gemm_ar(first->plan, first->a, first->b, first->c, first->stream);
            usleep(PAUSE_US);
        }
        for (int i = 0; i < 2 && !result; i++)
            result = mk_wait(l[i].comm);
    }
    const int failed = late_close(&l[0], rank, result);
    return late_close(&l[1], rank, result) || failed;
}

int main(int argc, char **argv)
{
    const int shared = argc > 2 && !strcmp(argv[2], "shared");
    if (too_few_gpus(shared ? 1 : GPUS)) {
        printf("skipped: fewer than %d Hopper GPUs\n", shared ? 1 : GPUS);
        return 77;
    }
    if (shared)
        return pair_run(late_main);
    other_listener = pair_listen(&other_port);
    return other_listener < 0 || pair_run(late_main) || pair_run(crossed_main);
}

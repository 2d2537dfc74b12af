/*
 * The second attention engine (kernels/mma/attention.cuh, for every GPU of compute capability 8.0
 * and up) computes O = softmax(scale Q K^T) V and the logarithms of the rows' sums for any
 * sequence, heads of up to 128, grouped, causal or not, writes all of O and nothing else; and it is
 * compared with FlashAttention-2, which multiplies by mma.sync too.
 *
 *     gpu_mma_attention check            every tile on odd shapes, against an fp32 reference
 *     gpu_mma_attention bench [MS REST]  beside FlashAttention-2 through PyTorch in the same run,
 *                                        where python3 has it: blocks of MS ms in turn, REST ms of
 *                                        idling before each. Default 20 and 10
 *
 * With code of several GPUs and PTX of compute_80, as gpu_mma.
 *
 * Exit status: 0 right, 1 wrong, 77 no such GPU here.
 */
#include "tests/engines/mma_attention.cuh"

/* Elements of a head, keys of a block, warps, 16s of rows that each has, 16s of Q that stay in
 * registers, CTAs of an SM. Of both sizes of heads one tile where an SM has shared memory for two
 * CTAs, and one with eight warps in a CTA for those of 100 KB. */
#define TILES(X)                                                                                   \
    X(128, 64, 4, 2, 0, 2)                                                                         \
    X(64, 128, 4, 2, 0, 2)                                                                         \
    X(128, 64, 8, 1, 8, 1)                                                                         \
    X(64, 64, 8, 2, 4, 1)
#ifndef GPU_MMA_ATTENTION_MORE
#define GPU_MMA_ATTENTION_MORE(X) /* others to be tried */
#endif

#ifdef MK_EMULATED
/* For tests/test_hopper_attention.c: the number-th of TILES; -ENOENT: there are fewer. */
extern "C" int mma_heads_run(uint32_t number, const struct attention_call *call, uint32_t sms)
{
#define RUN(...) mma_attention_run<mma_attention_shape<__VA_ARGS__>>,
    static int (*const runs[])(const struct attention_call *, uint32_t,
                               cudaStream_t) = {TILES(RUN)};
#undef RUN
    return number < sizeof runs / sizeof *runs ? runs[number](call, sms, NULL) : -ENOENT;
}
#else

#include "tests/helpers/gpu_attention.cuh"

#define CONTESTANT(d, k, w, b, h, c)                                                               \
    {#k " keys, " #w " warps of " #b "x16, " #h " held, " #c " an SM",                             \
     mma_attention_run<mma_attention_shape<d, k, w, b, h, c>>, d == 64 ? 0 : 64, d},
static struct contestant contestants[] = {TILES(CONTESTANT) GPU_MMA_ATTENTION_MORE(CONTESTANT)};
#undef CONTESTANT
enum { CONTESTANTS = sizeof contestants / sizeof *contestants };

int main(int argc, char **argv)
{
    cudaDeviceProp prop;
    int wrong = 0;
    if (cudaGetDeviceProperties(&prop, 0) != cudaSuccess || prop.major < 8) {
        printf("gpu_mma_attention: skipped, no GPU of compute capability 8.0 or more here\n");
        return 77;
    }
    if (argc >= 2 && !strcmp(argv[1], "check")) {
        for (int i = 0; i < CONTESTANTS; i++)
            wrong |= check_shapes(contestants[i].dim, contestants[i].run, contestants[i].name);
        return wrong;
    }
    if (argc >= 2 && !strcmp(argv[1], "bench"))
        return bench_engines(argv[0], "flash", "FlashAttention-2", argc > 2 ? atof(argv[2]) : 20,
                             argc > 3 ? atof(argv[3]) : 10, contestants, CONTESTANTS);
    fprintf(stderr, "usage: gpu_mma_attention check | bench [MS REST]\n");
    return 2;
}
#endif

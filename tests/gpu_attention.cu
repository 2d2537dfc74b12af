/*
 * The attention engine computes O = softmax(scale Q K^T) V and the logarithms of the rows' sums for
 * any sequence, grouped heads, causal or not, writes all of O and nothing else; and it is as fast
 * as cuDNN.
 *
 *     gpu_attention check              odd shapes, against an fp32 reference
 *     gpu_attention bench [MS REST]    against cuDNN through PyTorch in the same run, where python3
 * has it: blocks of MS ms in turn, REST ms of idling before each. Default 20 and 10
 *
 * Exit status: 0 right, 1 wrong, 77 no Hopper GPU here.
 */
#include "tests/helpers/gpu_attention.cuh"

int main(int argc, char **argv)
{
    cudaDeviceProp prop;
    struct contestant engine = {"mkernel", attention_run, 0, 256};
    if (cudaGetDeviceProperties(&prop, 0) != cudaSuccess || prop.major != 9) {
        fprintf(stderr, "gpu_attention: no Hopper GPU here\n");
        return 77;
    }
    if (argc >= 2 && !strcmp(argv[1], "check"))
        return check_shapes(256, attention_run, "mkernel");
    if (argc >= 2 && !strcmp(argv[1], "bench"))
        return bench_engines(argv[0], "cudnn", "cuDNN", argc > 2 ? atof(argv[2]) : 20,
                             argc > 3 ? atof(argv[3]) : 10, &engine, 1);
    fprintf(stderr, "usage: gpu_attention check | bench [MS REST]\n");
    return 2;
}

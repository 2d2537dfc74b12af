/*
 * mk_quantize on a GPU (kernels/ops/quantize.cu): the host's bits, and how near memory's speed.
 *
 *     gpu_quantize check   codes and scales of every scaling and type, of shapes that end within
 *                          blocks
 *     gpu_quantize bench   GB/s of x, codes and scales together, beside a copy of as many bytes by
 *                          cudaMemcpyAsync: least, median and most of 21 CUDA graphs of 8 launches
 *                          in turns, on operands that rotate through more than L2 holds
 *     gpu_quantize speed   the same of 8192 x 8192 bf16, and wrong where blocks have under .75 of
 *                          the copy's speed
 *
 * One GPU. Exit status: 0 right, 1 wrong, 77 no Hopper GPU here.
 */
#include "core/mkernel.h"
#include "core/base/quantize.h"
#include "tests/helpers/gpu_inputs.cuh"
#include "tests/helpers/quantize.h"

#include <algorithm>
#include <string.h>

enum { TURNS = 21, LAUNCHES = 8 };

static const char *const names[MK_SCALINGS] = {"1x128", "128x128", "row", "tensor", "records"};

static int agrees(uint32_t scaling, uint32_t type, uint64_t rows, uint64_t k)
{
    const uint64_t count = quantize_codes(scaling, rows, k),
                   scales = quantize_scales(scaling, rows, k) * 4,
                   bytes = rows * k * (type == MK_INPUT_FP32 ? 4 : 2);
    void *x = quantize_input(type, rows, k);
    uint8_t *want = (uint8_t *)malloc(count + scales), *is = (uint8_t *)malloc(count + scales);
    char *on_gpu;
    memset(want, 0x55, count + scales);
    int wrong = mk_quantize(MK_EXEC_HOST, scaling, type, x, rows, k, want, (float *)(want + count),
                            0, NULL);
    CUDA(cudaMalloc(&on_gpu, bytes + count + scales));
    CUDA(cudaMemset(on_gpu, 0x55, bytes + count + scales));
    CUDA(cudaMemcpy(on_gpu, x, bytes, cudaMemcpyDefault));
    wrong |= mk_quantize(MK_EXEC_CUDA, scaling, type, on_gpu, rows, k, on_gpu + bytes,
                         (float *)(on_gpu + bytes + count), 0, NULL);
    CUDA(cudaMemcpy(is, on_gpu + bytes, count + scales, cudaMemcpyDefault));
    for (uint64_t i = 0; i < count + scales && !wrong; i++)
        if (is[i] != want[i]) {
            printf("%s %s, %llu x %llu: byte %llu of the %s is %02x, not %02x\n", names[scaling],
                   type ? "fp32" : "bf16", (unsigned long long)rows, (unsigned long long)k,
                   (unsigned long long)(i < count ? i : i - count), i < count ? "codes" : "scales",
                   is[i], want[i]);
            wrong = 1;
        }
    CUDA(cudaFree(on_gpu));
    free(x);
    free(want);
    free(is);
    return wrong;
}

static int check(void)
{
    static const uint64_t shapes[][2] = {{1, 16},    {150, 208},    {16, 7168},
                                         {129, 400}, {1000, 16448}, {4096, 2048}};
    int wrong = 0, count = 0;
    for (uint32_t scaling = 0; scaling < MK_SCALINGS; scaling++)
        for (uint32_t type = 0; type < MK_INPUTS; type++)
            for (uint32_t i = 0; i < sizeof shapes / sizeof *shapes; i++, count++)
                wrong |= agrees(scaling, type, shapes[i][0], shapes[i][1]);
    printf("%d cases: %s\n", count, wrong ? "wrong" : "the host's bits");
    return wrong;
}

/* us of one launch in a graph of LAUNCHES: of mk_quantize, or (scaling MK_SCALINGS) of a copy whose
 * bytes read and written are as many. `sets` operands lie one after another. */
static cudaGraphExec_t graph_of(uint32_t scaling, uint32_t type, char *memory, uint64_t set_bytes,
                                uint32_t sets, uint64_t rows, uint64_t k, cudaStream_t stream)
{
    const uint64_t count = rows * k, bytes = count * (type == MK_INPUT_FP32 ? 4 : 2);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (uint32_t i = 0; i < LAUNCHES; i++) {
        char *x = memory + i % sets * set_bytes;
        if (scaling == MK_SCALINGS)
            CUDA(cudaMemcpyAsync(x + set_bytes / 2, x, (bytes + count) / 2,
                                 cudaMemcpyDeviceToDevice, stream));
        else if (mk_quantize(MK_EXEC_CUDA, scaling, type, x, rows, k, x + bytes,
                             (float *)(x + bytes + count), 0, stream))
            exit(3);
    }
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    return exec;
}

/* Returns the least of the scalings' speeds over the copy's, of blocks. */
static double bench_shape(uint32_t type, uint64_t rows, uint64_t k)
{
    const uint64_t count = rows * k, bytes = count * (type == MK_INPUT_FP32 ? 4 : 2),
                   set_bytes = mk_round_up(bytes + quantize_codes(MK_SCALE_RECORDS, rows, k) +
                                               quantize_scales(0, rows, k) * 4,
                                           4096);
    const uint32_t sets =
        (uint32_t)std::min<uint64_t>(LAUNCHES, std::max<uint64_t>(2, 400000000 / set_bytes + 1));
    char *memory;
    cudaStream_t stream;
    cudaEvent_t start, stop;
    cudaGraphExec_t graphs[MK_SCALINGS + 1];
    float us[MK_SCALINGS + 1][TURNS];
    double least = 1e9;
    CUDA(cudaMalloc(&memory, set_bytes * sets));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaEventCreate(&start));
    CUDA(cudaEventCreate(&stop));
    for (uint32_t i = 0; i < sets; i++)
        fill<<<1056, 256, 0, stream>>>((bf16 *)(memory + i * set_bytes), bytes / 2, i);
    for (uint32_t i = 0; i <= MK_SCALINGS; i++)
        graphs[i] = graph_of(i, type, memory, set_bytes, sets, rows, k, stream);
    for (int turn = -1; turn < TURNS; turn++) /* -1 warms up */
        for (uint32_t i = 0; i <= MK_SCALINGS; i++) {
            float ms;
            CUDA(cudaEventRecord(start, stream));
            CUDA(cudaGraphLaunch(graphs[i], stream));
            CUDA(cudaEventRecord(stop, stream));
            CUDA(cudaEventSynchronize(stop));
            CUDA(cudaEventElapsedTime(&ms, start, stop));
            if (turn >= 0)
                us[i][turn] = ms * 1000 / LAUNCHES;
        }
    for (uint32_t i = 0; i <= MK_SCALINGS; i++) {
        std::sort(us[i], us[i] + TURNS);
        const double median = (double)us[i][TURNS / 2];
        printf("%6llu x %-6llu %s %-8s %8.2f us (%.2f-%.2f) %6.0f GB/s\n", (unsigned long long)rows,
               (unsigned long long)k, type ? "fp32" : "bf16", i < MK_SCALINGS ? names[i] : "copy",
               median, (double)us[i][0], (double)us[i][TURNS - 1],
               (double)(bytes + count) / median * 1e-3);
        CUDA(cudaGraphExecDestroy(graphs[i]));
    }
    for (uint32_t i = 0; i <= MK_SCALE_128X128; i++)
        least = std::min(least, (double)us[MK_SCALINGS][TURNS / 2] / (double)us[i][TURNS / 2]);
    CUDA(cudaFree(memory));
    CUDA(cudaStreamDestroy(stream));
    return least;
}

static int bench(void)
{
    static const uint64_t shapes[][2] = {{16, 7168}, {128, 7168}, {2048, 4096}, {8192, 8192}};
    for (uint32_t type = 0; type < MK_INPUTS; type++)
        for (uint32_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            bench_shape(type, shapes[i][0], shapes[i][1]);
    return 0;
}

int main(int argc, char **argv)
{
    struct cudaDeviceProp prop;
    if (cudaGetDeviceProperties(&prop, 0) != cudaSuccess || prop.major != 9) {
        printf("gpu_quantize: skipped, no Hopper GPU here\n");
        return 77;
    }
    printf("%s, %d SMs\n", prop.name, prop.multiProcessorCount);
    if (argc == 2 && !strcmp(argv[1], "check"))
        return check();
    if (argc == 2 && !strcmp(argv[1], "bench"))
        return bench();
    if (argc == 2 && !strcmp(argv[1], "speed"))
        return bench_shape(MK_INPUT_BF16, 8192, 8192) < 0.75;
    fprintf(stderr, "usage: gpu_quantize check | bench | speed\n");
    return 2;
}

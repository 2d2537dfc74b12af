/* `mkernel bench OP --exec cuda`: the fused kernel beside what others run, in one run and under the same conditions.
 *
 *   bench_gpu.c         the measurements of one rank
 *   bench_gpu_report.c  the table, the CSV and the JSON of all of them */
#ifndef MK_BENCH_GPU_H
#define MK_BENCH_GPU_H

#include "experiments/run.h"

#define BENCH_GPU_SHAPES 32
#define BENCH_LINK_BYTES ((uint64_t)256 << 20)

/* Milliseconds per launch. On one rank: median, least and most of its launches; joined: of the slowest rank. 0: not
 * measured. */
struct bench_gpu_time {
    double ms, min, max;
};

enum bench_gpu_what {
    BENCH_FUSED,  /* the operator */
    BENCH_GEMM,   /* cuBLAS alone, on a gathered A */
    BENCH_COMM,   /* NCCL's collective alone */
    BENCH_MOVE,   /* the operator's own communication: the same plan with N (of ag_gemm) or K = 8 */
    BENCH_TURNS,  /* NCCL and cuBLAS one after the other, on one stream */
    BENCH_LINK,   /* BENCH_LINK_BYTES to the next rank of the node by copy engine, all ranks at once */
    BENCH_TORCH,  /* PyTorch's fused operator on symmetric memory */
    BENCH_WHATS
};

struct bench_gpu_row {
    uint64_t m, n, k;
    struct bench_gpu_time times[BENCH_WHATS];
    double difference2, reference2; /* of all checked launches, all ranks */
    uint64_t wrong, checked;        /* elements; launches */
    double flop;                    /* per rank */
    enum mk_op op;
    uint32_t world;
    struct mk_role_split split;
    uint32_t tile_m, tile_n, chunk_rows;
    double bound; /* of the relative error */
};

/* Measures every shape on this rank and, on rank 0, reports. Returns an exit status and its sentence. */
int bench_gpu_rank(const struct run_job *job, char *sentence, size_t sentence_size) __attribute__((weak));

/* Runs PyTorch's fused operator on `shapes` (M,N,K:M,N,K) with the job's ranks, one line of CSV per shape into `out`. Blocks,
 * at most 4 minutes. 0, or -errno where python3, PyTorch or the operator is not there. */
int bench_torch(const struct run_job *job, const char *shapes, const char *out) __attribute__((weak));

/* Relative Frobenius error; 1e30 where nothing was checked. */
double bench_gpu_error(const struct bench_gpu_row *row);

/* Prints the table and writes --csv and --json. 0 or -errno with the path in *path. */
int bench_gpu_report(const struct run_job *job, const struct bench_gpu_row *rows, uint32_t count, const char **path);

#endif

/* Inside `mkernel bench OP --exec cuda`: a line of its table. */
#ifndef MK_BENCH_GPU_ROW_H
#define MK_BENCH_GPU_ROW_H

#include "experiments/job/gpu_shape.h"

#define BENCH_LINK_BYTES ((uint64_t)256 << 20)

enum bench_gpu_what {
    BENCH_FUSED, /* the operator */
    BENCH_GEMM,  /* cuBLAS alone, on a gathered A */
    BENCH_COMM,  /* NCCL's collective alone */
    BENCH_MOVE,  /* the operator's own communication: the same plan with N (of ag_gemm) or K = 8 */
    BENCH_TURNS, /* NCCL and cuBLAS one after the other, on one stream */
    /* BENCH_LINK_BYTES to the next rank of the node by copy engine, all ranks at once */
    BENCH_LINK,
    BENCH_TORCH, /* PyTorch's fused operator on symmetric memory */
    BENCH_WHATS
};

struct bench_gpu_row {
    uint64_t m, n, k;
    struct gpu_time times[BENCH_WHATS]; /* joined: of the slowest rank */
    struct gpu_check check;             /* joined: of all ranks */
    double flop;                        /* per rank */
    enum mk_op op;
    uint32_t world;
    /* what crosses a rank's NICs at the rate that their ports say; 0 on one node */
    double network_ms;
    struct mk_tuning tuning;
    char tuned[sizeof((struct mk_plan *)0)->tuned]; /* as the plan says */
    double bound;                                   /* of the relative error */
};

/* Whether all that was checked is right: a wrong result has no speed. */
int bench_gpu_right(const struct bench_gpu_row *row);

/* Prints the table and writes --csv and --json. 0 or -errno with the path in *path. */
int bench_gpu_report(const struct run_job *job, const struct bench_gpu_row *rows, uint32_t count,
                     const char **path);

#endif

/* Inside `mkernel bench OP --exec cuda`: a line of its table. */
#pragma once

#include "experiments/job/gpu_shape.h"
#include "experiments/run/run_why.h"

#define BENCH_LINK_BYTES ((uint64_t)256 << 20)

enum bench_gpu_what {
    BENCH_FUSED,   /* the operator */
    BENCH_PRODUCT, /* the computation alone: cuBLAS on a gathered A; cuDNN's attention; PyTorch's
                    * grouped product (of moe_ffn the first one) */
    BENCH_COMM,    /* NCCL's collective alone */
    /* the operator's own communication alone: the same plan with N (ag_gemm) or K of 8 (FP8: 16);
     * ring_attention without products */
    BENCH_MOVE,
    BENCH_TURNS, /* NCCL's collective and the product, one after the other on one stream */
    /* BENCH_LINK_BYTES to the next rank of the node by copy engine, all ranks at once */
    BENCH_LINK,
    BENCH_TORCH,  /* PyTorch's fused operator on symmetric memory, or its context parallelism */
    BENCH_SECOND, /* moe_ffn by PyTorch: its second grouped product */
    BENCH_BACK,   /* moe_ffn by PyTorch: NCCL's all-to-all of the results */
    BENCH_WHATS
};

struct bench_gpu_row {
    struct mk_problem problem;          /* as the plan chose it */
    struct gpu_time times[BENCH_WHATS]; /* joined: of the slowest rank */
    struct gpu_check check;             /* joined: of all ranks */
    double flop;                        /* per rank */
    double nvlink_bytes, network_bytes; /* received by a rank, as the plan says */
    /* of a MoE's first launch: the mean and the greatest number of rows of a rank */
    double rows;
    uint64_t most_rows;
    /* the time of a rank's network bytes at its ports' nominal rate; 0 on one node */
    double network_ms;
    char tuned[sizeof((struct mk_plan *)0)->tuned]; /* as the plan says */
    double bound;                                   /* of the relative error */
    /* --samples, on rank 0 once joined: of every rank [BENCH_WHATS][room] times in ms, of which
     * counts[] are there; NULL: not asked */
    float *samples;
    uint32_t room, counts[BENCH_WHATS];
    struct run_why why; /* --why */
};

/* A rank's state in a bench. */
struct bench {
    struct gpu_bench gpu;
    struct baseline_nccl *nccl;   /* NULL: not here */
    struct baseline_cudnn *cudnn; /* of ring_attention; NULL: not here */
    uint64_t link_offset; /* heap: BENCH_LINK_BYTES to copy from, behind them as many to copy to */
};

/* Makes a row of one shape of an operator that is no GEMM, on this rank. Collective. 0 or -errno,
 * with a sentence in b->gpu.error. */
int bench_other(struct bench *b, const struct mk_problem *asked, struct bench_gpu_row *row);

/* cuDNN's attention: starts it, waits for it, and has it launch as often as a turn of gpu_turn.
 * Without it b->cudnn is NULL, and the caller goes on. Collective; 0 or -errno. */
void bench_cudnn_start(struct bench *b);
int bench_cudnn_meet(struct bench *b);
int bench_cudnn_turn(struct bench *b, const struct mk_problem *q, float *times, uint32_t *count);

/* A copy of BENCH_LINK_BYTES to the next rank of the node, on the bench's stream. 0 or -EIO. */
int bench_gpu_copy_to_next(struct bench *b);

/* What the plan says for the row: its problem, its tuning, what crosses the NICs. */
void bench_gpu_describe(struct bench_gpu_row *row, const struct bench *b,
                        const struct mk_plan *plan);

/* --why of `plan`, behind its timed launches: `turn` captures the operator's graphs anew, since
 * the timed ones leave no events, and launches them by gpu_turn; b->gpu.launches are few meanwhile.
 * `times` has room for them. Collective. 0 or -errno, with a sentence in b->gpu.error. */
int bench_gpu_why(struct bench *b, const struct mk_plan *plan,
                  int (*turn)(void *context, float *times, uint32_t *count), void *context,
                  struct run_why *out);

/* Adds the times that bench_torch wrote before the ranks began. */
void bench_torch_read(struct bench_gpu_row *rows, uint32_t count);

/* Whether all that was checked is right: a wrong result has no speed. */
int bench_gpu_right(const struct bench_gpu_row *row);

/* Prints the table and writes --csv and --json. 0 or -errno with the path in *path. */
int bench_gpu_report(const struct run_job *job, const struct bench_gpu_row *rows, uint32_t count,
                     const char **path);

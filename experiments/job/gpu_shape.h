/* One shape of a GEMM operator on this rank's GPU: operands that rotate through more memory than L2
 * holds, plans on them as CUDA graphs, launches timed by pairs of events, results checked against
 * cuBLAS in fp32. `bench` and `tune` measure with it.
 *
 * Functions return 0 or -errno, with a sentence in b->error. One thread; all but gpu_shape_close
 * are collective where they say so. */
#pragma once

#include "experiments/baselines/baselines.h"
#include "experiments/job/run.h"

#define GPU_SETS 12u   /* sets of operands, at most */
#define GPU_TURNS 4u   /* turns of each of the things that are compared */
#define GPU_SKIPPED 2u /* launches at the start of a turn that are not counted, as warm-up */

struct gpu_bench {
    const struct run_job *job;
    struct mk_comm *comm; /* the caller's */
    struct baseline_cublas *cublas;
    struct baseline_cublaslt *cublaslt; /* FP8's; NULL: not asked for */
    cudaStream_t stream;
    cudaEvent_t *events;
    uint32_t launches_most, launches; /* of a turn, with those skipped */
    void *c; /* the C of all launches, in the symmetric heap at c_offset; NULL: each set has one */
    uint64_t c_offset;
    uint32_t checking; /* the plan that gpu_check has launched last, for sentences about failures */
    char *error;
    size_t size;
};

/* A plan as a graph for each set of operands. */
struct gpu_graphs {
    struct mk_plan *plan;
    cudaGraphExec_t sets[GPU_SETS];
};

struct gpu_shape {
    uint64_t m, n, k, rows;  /* rows: of a shard */
    uint64_t a_rows, c_rows; /* of this rank's A and C */
    uint32_t sets;
    uint16_t *c[GPU_SETS];
    void *a[GPU_SETS], *b[GPU_SETS];                /* bf16, or e4m3 codes */
    float *a_scales[GPU_SETS], *b_scales[GPU_SETS]; /* of FP8, as struct mk_spec has them */
    /* ag_gemm: the gathered A; else what cuBLAS makes for NCCL to add */
    void *whole;
    float *gathered_scales, *whole_scales; /* rank by rank, as NCCL gathers them; of the whole A */
    /* for the reference: A and B of any rank; for FP8 also their codes, scales and fp32 values */
    uint16_t *other_a, *other_b, *plain;
    uint8_t *codes;
    float *scales, *wide_a, *wide_b;
    float *reference;
    int c_in_heap;
};

/* What checks found, added up. */
struct gpu_check {
    double difference2, reference2; /* sums of squares */
    uint64_t wrong, launches;       /* elements outside their bound; launches that were checked */
};

/* Milliseconds per launch: median, least, most. 0: not measured. */
struct gpu_time {
    double ms, min, max;
};

/* Opens stream, events for turns of launches_most, and cuBLAS; once a communicator has chosen the
 * GPU. gpu_bench_close in either case. */
int gpu_bench_open(struct gpu_bench *b);
void gpu_bench_close(struct gpu_bench *b);

/* Writes "rank R: what", with CUDA's words where result is -EIO. Returns result. */
int gpu_say(struct gpu_bench *b, int result, const char *what);

/* What a plan's launch on a set takes. Returns how many. */
enum { GPU_ARGUMENTS = 5 };
uint32_t gpu_arguments(const struct gpu_bench *b, const struct gpu_shape *s, uint32_t set,
                       void *arguments[GPU_ARGUMENTS]);

/* Elements of A's scales for so many rows, of B's. */
uint64_t gpu_scales_a(uint64_t rows, uint64_t k);
uint64_t gpu_scales_b(uint64_t n, uint64_t k);

/* The scales that were gathered rank by rank as those of the whole A. 0 or -EIO. */
int gpu_join_scales(struct gpu_bench *b, struct gpu_shape *s);

/* Whether the operator gathers A; else it adds products. */
int gpu_gathers(const struct gpu_bench *b);

/* Operands of this rank for M,N,K = m,n,k. gpu_shape_close in either case. */
int gpu_shape_open(struct gpu_bench *b, struct gpu_shape *s, uint64_t m, uint64_t n, uint64_t k);
void gpu_shape_close(struct gpu_shape *s);

/* C [m, n] in the symmetric heap, of the plans that are made and the shape that is opened next,
 * where the operator looks for it there and the job says nothing else. */
int gpu_place_c(struct gpu_bench *b, uint64_t m, uint64_t n);

/* A plan of the job's operator with M,N,K = m,n,k and this tuning. Collective. */
int gpu_plan(struct gpu_bench *b, uint64_t m, uint64_t n, uint64_t k,
             const struct mk_tuning *tuning, struct mk_plan **out);

/* The launch of a plan, as it is. */
int gpu_launch_plan(struct gpu_bench *b, struct gpu_shape *s, struct mk_plan *plan, uint32_t set);

/* launch(context, 0), .., (context, count - 1) on b->stream as one graph. The caller destroys
 * *out. */
int gpu_capture_run(struct gpu_bench *b, int (*launch)(void *context, uint32_t number),
                    void *context, uint32_t count, cudaGraphExec_t *out);

/* A launch of `plan` as a graph: `arguments` of mk_launch. The caller destroys *out. */
int gpu_capture_launch(struct gpu_bench *b, struct mk_plan *plan, void *const *arguments,
                       uint32_t count, cudaGraphExec_t *out);

/* g->plan as graphs. gpu_graphs_close in either case. */
int gpu_capture(struct gpu_bench *b, struct gpu_shape *s, struct gpu_graphs *g);
void gpu_graphs_close(struct gpu_graphs *g);
int gpu_launch_graph(const struct gpu_bench *b, const struct gpu_shape *s,
                     const struct gpu_graphs *g, uint32_t number);

/* One turn: all ranks start together, launch(context, 0), (context, 1), ... follow each other
 * without a pause. Appends ms of those that count, b->launches - GPU_SKIPPED, to times.
 * Collective. */
int gpu_turn(struct gpu_bench *b, int (*launch)(void *context, uint32_t number), void *context,
             float *times, uint32_t *count);
struct gpu_time gpu_time_of(float *times, uint32_t count); /* sorts them */

/* Fresh launches of each of `count` plans on every set into poison; adds to checks[count].
 * Collective. */
int gpu_check(struct gpu_bench *b, struct gpu_shape *s, const struct gpu_graphs *graphs,
              uint32_t count, struct gpu_check *checks);

/* Relative Frobenius error; 1e30 where nothing was checked. And what it may be. */
double gpu_check_error(const struct gpu_check *c);
double gpu_check_bound(const struct gpu_bench *b);

/* What experiments/ops/<name>.c defines for an operator: the inputs that `run`, `bench` and `tune`
 * make for it, and the check of its results. (Its descriptor is in core/ops/op.h.) */
#pragma once

#include "core/ops/op.h"
#include "experiments/job/run.h"

/* The collective that moves the operator's data in the baseline of `bench` on GPUs. */
enum run_collective {
    RUN_NO_COLLECTIVE,
    RUN_ALL_GATHER,
    RUN_REDUCE_SCATTER,
    RUN_ALL_REDUCE,
    RUN_ALL_TO_ALL
};

/* The computation of the baseline. */
enum run_product { RUN_GEMM, RUN_ATTENTION, RUN_EXPERTS, RUN_LAYER /* of experts, whole */ };

/* The values of a bf16 input: elements before, before + 1, ... of the random tensor of `key`
 * (experiments/common/inputs.h), times 2^raised. */
struct run_source {
    uint64_t key, before;
    uint32_t raised;
};

/* A launch's arguments, in host memory, and the check of its outputs among them. */
struct run_checked {
    const void *const *arguments; /* [RUN_ARGUMENTS] */
    uint64_t launch;
    const struct check_pace *pace;
    struct check_result *result; /* is added to */
};

struct run_op {
    /* The values of bf16 input `argument` of any rank. NULL: run_data_plain. */
    struct run_source (*source)(const struct run_data *d, uint32_t argument, uint32_t rank,
                                uint64_t launch);
    /* Makes this rank's input `argument`, if that is not bf16. */
    void (*make)(const struct run_data *d, uint32_t argument, uint64_t launch, void *to);
    /* Judges the outputs by another path than the executor's. Every rank calls it. 0 or -errno. */
    int (*check)(const struct run_data *d, const struct run_checked *it);
    /* Bit set of the inputs that `check` makes itself on the GPU, if a GPU made the results. */
    uint32_t made_on_gpu;
    /* For tests: changes one checked element to a wrong value. NULL: the last of the first
     * output. */
    void (*spoil)(const struct run_data *d, uint64_t slot);
    int routed; /* 1: what moves depends on --routing and --skew */
    /* Of these: trace records of a CTA for a place of each rank's tokens, beside 3 a node */
    uint32_t records;
    enum run_collective collective;
    enum run_product product;
};

#define MK_OPERATOR(name, NAME, where) extern const struct run_op run_op_##name;
MK_OPERATORS(MK_OPERATOR)
#undef MK_OPERATOR

const struct run_op *run_op_of(enum mk_op op);

int run_op_is_routed(enum mk_op op);

/* Bytes of the tensor that an operator without a product moves, counted as nccl-tests does: its
 * largest argument. 0: it has a product. */
uint64_t run_op_tensor(const struct mk_problem *q);

/* Whether `bench` on GPUs has a baseline for this computation and collective (bench_gpu.h); else it
 * times the operator alone. The GEMMs' baselines call NCCL, but there is none with an
 * all-to-all. */
int run_is_compared(enum run_product product, enum run_collective collective);
int run_op_is_compared(enum mk_op op);

/* Random numbers in (-1, 1): argument 0 is one tensor of all ranks, one after the other; any
 * other is each rank's own. Key of a tensor: 0, and 1 + rank. */
struct run_source run_data_plain(const struct run_data *d, uint32_t argument, uint32_t rank,
                                 uint64_t launch);

/* The key of a tensor of a launch, for experiments/common/inputs.h. */
uint64_t run_data_key(const struct run_data *d, uint64_t tensor, uint64_t launch);

/* ops/gemm.c: struct run_op's source of operators that have a bias, which no other tensor is
 * like. */
struct run_source run_gemm_source(const struct run_data *d, uint32_t argument, uint32_t rank,
                                  uint64_t launch);

/* ops/gemm.c: struct run_op's check of one product, which this rank makes of a gathered A, or which
 * is added over ranks, as its collective says. */
int run_check_gemm(const struct run_data *d, const struct run_checked *it);

/* Its `make` of A, B and their scales where they are FP8: what they would be in bf16, quantised. */
void run_make_fp8(const struct run_data *d, uint32_t argument, uint64_t launch, void *to);

/* ops/gemm.c: rows of numbers of `s` as codes and scales; either may be NULL. Of MK_SCALE_RECORDS
 * `to` has records. 0 or -ENOMEM. */
int run_quantize(const struct run_data *d, const struct run_source *s, uint64_t rows, uint64_t k,
                 enum mk_scaling scaling, uint64_t pitch, uint8_t *to, float *scales);

/* ops/moved.c: struct run_op's check of an operator that only moves rows. */
int run_check_moved(const struct run_data *d, const struct run_checked *it);

/* ops/moe.c: struct run_op's `make` of a MoE: ids, and weights that add up to 1. */
void run_make_moe(const struct run_data *d, uint32_t argument, uint64_t launch, void *to);
void run_make_count(const struct run_data *d, uint64_t launch, uint32_t *to);

/* For tests: spoils the last element of the first expert that has rows, which argument number
 * `argument` holds (behind those that it has, nothing is checked); without rows what the next one
 * says of the first expert. */
void run_spoil_rows(const struct run_data *d, uint64_t slot, uint32_t argument, uint64_t row_bytes);

/* run_data_plain, where tokens are records, too. */
struct run_source run_moe_source(const struct run_data *d, uint32_t argument, uint32_t rank,
                                 uint64_t launch);

/* run_quantize of rows from number `first` of `s` on, whose scales lie as an expert's do. A rank's
 * tokens as records. 0 or -ENOMEM. */
int run_moe_quantize(const struct run_data *d, struct run_source s, uint64_t first, uint64_t rows,
                     uint64_t k, enum mk_scaling scaling, uint8_t *to, float *scales);
int run_moe_records(const struct run_data *d, uint32_t rank, uint64_t launch, uint8_t *to);

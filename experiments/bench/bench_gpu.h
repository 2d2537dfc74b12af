/* `mkernel bench OP --exec cuda`: the fused kernel beside what others run, in one run and under the
 * same conditions.
 *
 *   ../job/gpu_shape.c  operands, launches, checks of a GEMM operator's shape on one rank
 *   bench_gpu.c         what is measured there
 *   bench_other.c       the same of an operator that is no GEMM
 *   bench_torch.c       what PyTorch measures before the ranks start
 *   bench_gpu_report.c  the table, the CSV and the JSON of all of them */
#pragma once

#include "experiments/job/run.h"

/* Measures every shape on this rank and, on rank 0, reports. Returns an exit status and its
 * sentence. */
int bench_gpu_rank(const struct run_job *job, char *sentence, size_t sentence_size)
    __attribute__((weak));

/* Whether its rows can be added to the CSV that is there: as run_check_append. */
int bench_gpu_check_append(const struct run_job *job, char *error, size_t size)
    __attribute__((weak));

/* Runs what PyTorch has for the job's shapes with the job's ranks, lines of CSV into `out`
 * (bench_torch.c). Blocks, at most 4 minutes. 0, or -errno where python3, PyTorch or the operator
 * is not there or failed, with its own words in `error`. */
int bench_torch(const struct run_job *job, const char *out, char *error, size_t size)
    __attribute__((weak));

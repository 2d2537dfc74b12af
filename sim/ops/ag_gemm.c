/* AllGather+GEMM on the host: core/roles/ag_gemm.h compiled by gcc, behind struct sim_op. */
#include "core/cta/cta.h"
#include "core/base/e4m3.h"
#include "core/plan/epilogue.h"
#include "core/cta/half.h"
#include "core/base/quantize.h"
#include "core/roles/ag_gemm.h"
#include "sim/clock.h"
#include "sim/exact.h"
#include "sim/vectorised.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

MK_ROLES_OF(ag_gemm, ag_gemm_intra_comm(p, cta, p->blocks > 0),
            ag_gemm_inter_send(p, cta, p->blocks > 0), 0);
SIM_TILES_OF(ag_gemm, 0, (ag_gemm_tile(p, t, tile), 1),
             ag_gemm_before(p, cta, p->blocks > 0, tile, slice), 0, 0);

static void ag_gemm_operands(const struct mk_plan *plan, const struct mk_tile *t, uint64_t epoch,
                             struct sim_operands *out)
{
    const struct ag_gemm_plan *p = ag_gemm_plan_of(plan);
    int transposed = plan->problem.b_transposed;
    *out = (struct sim_operands){.c_number = plan_element(&plan->problem)}; /* added to nothing */
    out->a_space = (enum mk_space)t->a;
    out->a = (t->a == MK_SPACE_HEAP ? ag_gemm_gathered(p, t->slab, 0, epoch) : 0) +
             t->row * p->row_bytes;
    out->a_pitch = p->k;
    out->b_space = MK_SPACE_ARG1;
    out->b = (transposed ? (uint64_t)t->col * p->k : t->col) * op_factor_bytes(&plan->problem);
    out->b_pitch = transposed ? p->k : plan->problem.n;
    out->gate = p->up * (transposed ? (uint64_t)p->k : 1) * op_factor_bytes(&plan->problem);
    out->bias_gate = p->up * 2ull;
    out->b_transposed = transposed;
    out->c_space = MK_SPACE_ARG2;
    out->c = (((uint64_t)t->slab * p->shard_rows + t->row) * p->n + t->col) * 2;
    out->c_pitch = p->n;
    out->rows = t->rows;
    out->cols = t->cols;
    out->k = p->k;
    out->fp8 = plan->problem.fp8;
    out->epilogue = p->epilogue;
    out->bias_space = (enum mk_space)p->bias_space;
    out->bias = t->col * 2ull;
    const uint32_t chunk = ag_gemm_chunk_of(p, t->row);
    int own = t->a != MK_SPACE_HEAP;
    out->scales_space = own ? MK_SPACE_ARG3 : MK_SPACE_HEAP;
    out->scales_pitch =
        (uint32_t)(own ? ag_gemm_scales_bytes(p->shard_rows) : ag_gemm_scales_pitch(p, chunk)) / 4;
    out->scales = own ? t->row * 4ull
                      : ag_gemm_scales_at(p, t->slab, chunk, epoch) +
                            (t->row - (uint64_t)chunk * p->chunk_rows) * 4;
}

/* Operand `argument` of a rank: small integers, none 0, so that every byte counts; of FP8's scales
 * powers of two, of A near 2^40 and of B near 2^-40. Sums of their products are exact in fp32 and
 * in the 14 bits of a tensor core. */
static void ag_gemm_draw(float *to, uint64_t count, uint64_t seed, uint64_t launch, uint32_t rank,
                         uint32_t argument)
{
    static const float values[] = {-3, -2, -1, 1, 2, 3};
    struct sim_random r = sim_stream(seed, launch, rank, argument);
    for (uint64_t i = 0; i < count; i++)
        to[i] = argument < 2 ? values[sim_random_below(&r, 6)]
                             : ldexpf(1, (int)sim_random_below(&r, 3) + (argument == 3 ? 38 : -40));
}

static void ag_gemm_fill(const struct sim_launch *l)
{
    const struct mk_problem *q = &l->plan->problem;
    uint64_t bytes[MK_SPACES - 1];
    op_extents(q, bytes);
    for (uint32_t i = 0; i < 2; i++) {
        const uint64_t count = bytes[i] / op_factor_bytes(q);
        float *values = malloc(count * sizeof *values);
        if (!values)
            return; /* C keeps its poison, and is found wrong */
        ag_gemm_draw(values, count, l->seed, l->launch, q->topo.rank, i);
        for (uint64_t n = 0; n < count; n++)
            if (q->fp8)
                ((uint8_t *)l->arguments[i])[n] = mk_e4m3_from_float(values[n]);
            else
                ((uint16_t *)l->arguments[i])[n] = mk_half_from_float(plan_element(q), values[n]);
        free(values);
        if (q->fp8)
            ag_gemm_draw(l->arguments[3 + i], bytes[3 + i] / 4, l->seed, l->launch, q->topo.rank,
                         3 + i);
    }
    exact_fill_bias(q, l);
}

/* Rank `rank`'s A. */
static void ag_gemm_make_a(const struct mk_problem *q, const struct sim_launch *l, uint32_t rank,
                           float *scales, float *a)
{
    const uint64_t shard = q->m / mk_world(&q->topo), k = q->k, pitch = mk_round_up(shard, 4);
    ag_gemm_draw(a, shard * k, l->seed, l->launch, rank, 0);
    if (!q->fp8)
        return;
    ag_gemm_draw(scales, pitch * mk_ceil_div(k, MK_SCALE_BLOCK), l->seed, l->launch, rank, 3);
    for (uint64_t i = 0; i < shard * k; i++)
        a[i] *= scales[i % k / MK_SCALE_BLOCK * pitch + i / k];
}

/* This rank's B as [K, N]. */
static void ag_gemm_make_b(const struct mk_problem *q, void *const arguments[MK_SPACES - 1],
                           float *plain, float *b)
{
    const uint64_t n = q->n, k = q->k;
    if (q->b_columns)
        dequantize_columns(arguments[1], n, k, arguments[4], plain);
    else if (q->fp8)
        dequantize_blocks(arguments[1], n, k, arguments[4],
                          mk_round_up(mk_ceil_div(k, MK_SCALE_BLOCK), 4), plain);
    for (uint64_t i = 0; i < k * n && !q->fp8; i++)
        plain[i] = mk_half_to_float(plan_element(q), ((const uint16_t *)arguments[1])[i]);
    for (uint64_t i = 0; i < k * n; i++)
        b[i] = plain[q->b_transposed ? i % n * k + i / n : i];
}

VECTORISED static void ag_gemm_row(const float *a, const float *b, uint64_t n, uint64_t k,
                                   float *row)
{
    memset(row, 0, n * sizeof *row);
    for (uint64_t p = 0; p < k; p++)
        for (uint64_t j = 0; j < n; j++)
            row[j] += a[p] * b[p * n + j];
}

static int ag_gemm_verify(const struct sim_launch *l)
{
    const struct mk_problem *q = &l->plan->problem;
    const uint64_t m = q->m, n = q->n, k = q->k, shard = m / mk_world(&q->topo),
                   across = epilogue_columns(q->epilogue, n);
    const uint16_t *c = l->arguments[2];
    float *memory = malloc((m * k + 2 * k * n + n + shard * k) * sizeof *memory),
          *b = memory + m * k, *row = b + 2 * k * n;
    int wrong = !memory && sim_no_memory(l);
    for (uint32_t rank = 0; memory && rank < mk_world(&q->topo); rank++)
        ag_gemm_make_a(q, l, rank, row + n, memory + rank * shard * k);
    if (memory)
        ag_gemm_make_b(q, l->arguments, b + k * n, b);
    for (uint64_t i = 0; i < m && !wrong; i++) {
        ag_gemm_row(memory + i * k, b, n, k, row);
        for (uint64_t j = 0; j < across && !wrong; j++)
            wrong = !exact_is_right(q, l, j, c[i * across + j], &row[j]) &&
                    exact_is_wrong(l, "C", i, j, c[i * across + j], row[j]);
    }
    free(memory);
    return wrong;
}

SIM_OP(ag_gemm, SIM_TILES(ag_gemm), .operands = ag_gemm_operands, .fill = ag_gemm_fill,
       .verify = ag_gemm_verify);

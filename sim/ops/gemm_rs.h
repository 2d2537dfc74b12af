/* Where the operands of a tile of gemm_rs lie, and of gemm_ar, whose tiles are the same. */
#pragma once

#include "core/roles/gemm_rs_joint.h"
#include "core/roles/gemm_rs.h"
#include "core/ops/op.h"
#include "sim/op.h"

/* One shot: all of it, where a CTA has no senders; else what they do. */
static inline int sim_gemm_rs_joint(const struct mk_plan *plan, const struct gemm_rs_plan *p,
                                    struct mk_cta *cta, const struct mk_tile *t, uint32_t first,
                                    uint32_t rows, uint32_t parts)
{
    if (plan->problem.exec == MK_EXEC_CUDA)
        return gemm_rs_exchange(p, cta, t, first, rows, parts);
    return p->via_outbox ? gemm_rs_joint(p, cta, t) : 0;
}

/* Behind a compute CTA's last tile: norms of the rows whose sums are here. */
static inline int sim_gemm_rs_norm(const struct gemm_rs_plan *p, struct mk_cta *cta)
{
    if (!p->norm.columns)
        return 0;
    gemm_rs_ended(p, cta);
    return gemm_rs_norm_rows(p, cta);
}

static inline void sim_gemm_rs_operands(const struct mk_plan *plan, const struct gemm_rs_plan *p,
                                        const struct mk_tile *t, uint64_t epoch,
                                        struct sim_operands *out)
{
    int transposed = plan->problem.b_transposed;
    out->a_space = MK_SPACE_ARG0;
    const uint64_t row = (uint64_t)t->a_slab * p->shard_rows + t->row;
    const uint32_t bytes = op_factor_bytes(&plan->problem);
    out->a = row * p->k * bytes;
    out->fp8 = plan->problem.fp8;
    out->scales_space = MK_SPACE_ARG3;
    out->scales = row * 4;
    out->scales_pitch = (uint32_t)mk_round_up(p->m, 4);
    out->a_pitch = p->k;
    out->b_space = MK_SPACE_ARG1;
    out->b = (transposed ? (uint64_t)t->col * p->k : t->col) * bytes;
    out->b_pitch = transposed ? p->k : p->n;
    out->b_transposed = transposed;
    out->c_space = (enum mk_space)t->c;
    out->c_local = t->c_local;
    out->c = ((uint64_t)t->row * p->n + t->col) * 2;
    out->c_pitch = p->n;
    out->c_number = (enum mk_dtype)p->element;
    if (t->c == MK_SPACE_HEAP) {
        out->c = gemm_rs_tile_offset(p, t, epoch);
        out->c_pitch = t->cols;
        out->c_number = (enum mk_dtype)p->number;
    }
    for (uint32_t level = 0;
         level < GEMM_RS_LEVELS && t->c_local == mk_local_of(&p->topo, p->topo.rank); level++) {
        struct gemm_rs_terms terms = gemm_rs_level(p, t, level, epoch);
        out->added[level] = (struct sim_terms){
            terms.source, p->slab_pitch, terms.count, terms.place, (enum mk_dtype)p->number,
            p->blocks > 0};
    }
    out->blocks = p->blocks;
    for (uint32_t i = 0; i < p->blocks; i++)
        out->block_end[i] = gemm_rs_block_end(p, i) * MK_SUM_STAGE;
    if (p->via_outbox && plan->problem.exec == MK_EXEC_HOST) { /* added to behind the exchange */
        out->c_space = MK_SPACE_HEAP;
        out->c = gemm_rs_outbox_place(p, t);
        out->c_pitch = t->cols;
        out->c_number = (enum mk_dtype)p->number;
        out->added[0].count = 0;
    }
    out->rows = t->rows;
    out->cols = t->cols;
    out->k = p->k;
}

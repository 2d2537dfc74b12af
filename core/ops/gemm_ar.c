/* GEMM+AllReduce, C = the sum over ranks of A * B, on every rank: its plan is that of
 * GEMM+ReduceScatter, and where the sum is gathered. */
#include "core/command.h"
#include "core/mkernel.h"
#include "core/model_gemm.h"
#include "core/ops/gemm.h"
#include "core/roles/gemm_ar_plan.h"

#include <stdio.h>

static int gemm_ar_build(struct mk_plan *p, char *error, size_t size)
{
    struct gemm_ar_plan *a = gemm_ar_plan_in(p);
    uint64_t flags, bytes, world = mk_world(&p->problem.topo);
    int result = plan_build_gemm_rs(p, &a->rs, 1, &flags, &bytes, error, size);
    if (result)
        return result;
    if (a->rs.shots == 1)
        return plan_take(p, a->rs.tiles, flags, bytes, plan_gemm_rs_put_bytes(&a->rs), error, size);
    a->block_pitch = a->rs.slab_pitch / a->rs.element_bytes * 2;
    a->flag_whole = (uint32_t)(p->flag_base + flags);
    a->whole = p->heap_base + bytes;
    a->direct = p->problem.c_in_heap && p->problem.topo.nodes == 1;
    a->c_offset = p->problem.c_offset;
    return plan_take(p, a->rs.tiles, flags + world * a->rs.units,
                     bytes + (a->direct ? 0 : world * a->block_pitch),
                     plan_gemm_rs_put_bytes(&a->rs), error, size);
}

static void gemm_ar_describe_whole(const void *of, uint32_t index, struct mk_flag_meaning *out)
{
    const struct gemm_ar_plan *a = of;
    out->producer = index / a->rs.units;
    out->chunk = index % a->rs.units;
    snprintf(out->text, sizeof out->text, "the whole sum of chunk %u of rank %u's rows", out->chunk,
             out->producer);
}

static uint32_t flags(const struct mk_plan *p, struct op_flag_range *ranges)
{
    const struct gemm_ar_plan *a = gemm_ar_plan_of(p);
    uint32_t count = plan_gemm_rs_flags(&a->rs, ranges);
    if (a->rs.shots == 1)
        return count;
    ranges[count] = (struct op_flag_range){
        "whole", a->flag_whole, mk_world(&a->rs.topo) * a->rs.units, a, gemm_ar_describe_whole};
    return count + 1;
}

static void gemm_ar_describe_tile(const struct mk_plan *p, uint32_t id, struct mk_tile *out)
{
    plan_describe_gemm_rs_tile(&gemm_ar_plan_of(p)->rs, id, out);
}

static void gemm_ar_describe_chunk(const struct mk_plan *p, uint32_t id, uint32_t *rank,
                                   uint32_t *number, uint64_t *bytes)
{
    const struct gemm_rs_plan *r = &gemm_ar_plan_of(p)->rs;
    *rank = id / r->units;
    *number = id % r->units;
    struct gemm_rs_area a = gemm_rs_unit(r, *number);
    *bytes = gemm_rs_elements(&a) * (r->shots == 1 ? r->element_bytes : 2);
}

static void gemm_ar_work(const struct mk_plan *p, double *flop, uint64_t *nvlink_bytes,
                         uint64_t *network_bytes)
{
    const struct gemm_rs_plan *r = &gemm_ar_plan_of(p)->rs;
    uint64_t block = r->shots == 1 ? plan_gemm_rs_joint_bytes(r)
                                   : gemm_rs_block_bytes(r) + (uint64_t)r->shard_rows * r->n * 2;
    *flop = 2.0 * r->m * r->n * r->k;
    *network_bytes = (r->topo.nodes - 1) * block;
    *nvlink_bytes = (uint64_t)r->topo.nodes * (r->topo.gpus - 1) * block;
}

static void gemm_ar_choose_shape(enum op_size size, uint64_t world, uint64_t *numbers)
{
    op_choose_gemm(size, world, 1, numbers);
}

int mk_gemm_ar(struct mk_plan *plan, const void *a, const void *b, void *c, void *stream)
{
    void *const arguments[MK_SPACES - 1] = {OP_ARGUMENT(a), OP_ARGUMENT(b), c};
    return op_launch(plan, MK_OP_GEMM_AR, arguments, stream);
}

static void gemm_ar_model(struct model_walk *w, const struct mk_plan *p)
{
    model_gemm_rs(w, &p->problem, &gemm_ar_plan_of(p)->rs, 1);
}

const struct op_descriptor op_gemm_ar = {
    .help = "adds the products A B of all ranks; every rank gets the sum",
    .shape = &op_shape_gemm,
    .choose_shape = gemm_ar_choose_shape,
    .arguments = {{"A", OP_BF16, "M,K"}, {"B", OP_BF16, "K,N"}, {"C", OP_BF16, "M,N", .output = 1}},
    .needs =
        {[MK_COMPUTE] = OP_ALWAYS, [MK_INTRA_COMM] = OP_IF_RANKS, [MK_INTER_SEND] = OP_IF_NODES},
    .knobs = OP_GEMM_KNOBS | OP_SHOTS,
    .tuned = 1,
    .well_known = 1,
    .c_in_heap = 1,
    .b_layout = 1,
    .sums = 1,
    .build = gemm_ar_build,
    .flags = flags,
    .describe_tile = gemm_ar_describe_tile,
    .describe_chunk = gemm_ar_describe_chunk,
    .model = gemm_ar_model,
    .work = gemm_ar_work,
};

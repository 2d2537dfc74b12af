/* GEMM+AllReduce, C = the sum over ranks of A * B, on every rank: its plan is that of
 * GEMM+ReduceScatter, and where the sum is gathered. */
#include "core/cta/command.h"
#include "core/plan/epilogue.h"
#include "core/mkernel.h"
#include "core/model/gemm.h"
#include "core/ops/gemm.h"
#include "core/plan/pipeline.h"
#include "core/roles/gemm_ar_plan.h"

static int gemm_ar_build(const struct op_descriptor *op, struct mk_plan *p, char *error,
                         size_t size)
{
    struct gemm_ar_plan *a = gemm_ar_plan_in(p);
    int result = plan_build_gemm_rs(op, p, &a->rs, 1, error, size);
    if (result)
        return result;
    if (a->rs.shots == 2 || a->rs.shared_columns) {
        a->block_pitch = a->rs.slab_pitch / a->rs.element_bytes * 2;
        a->direct = p->problem.c_in_heap && p->problem.topo.nodes == 1;
        a->c_offset = p->problem.c_offset;
    }
    return plan_lay_out(op, p, a->rs.tiles, plan_gemm_rs_put_bytes(&a->rs), error, size);
}

static void gemm_ar_tables(struct mk_plan *p, struct op_tables *t)
{
    struct gemm_ar_plan *a = gemm_ar_plan_in(p);
    uint64_t world = mk_world(&a->rs.topo);
    plan_gemm_rs_tables(&p->problem, &a->rs, t);
    if (a->rs.shared_columns) {
        OP_BUFFERS(t, {"whole", &a->whole, 1, !a->direct, a->block_pitch});
        OP_FLAGS(t, {"whole",
                     &a->flag_whole,
                     {{'c', a->rs.shard_tiles, a->rs.pieces}, {'r', world, 1}},
                     "rank %r's columns of the sum of tile %c",
                     .producer = 'r'});
    }
    if (a->rs.shots == 1)
        return;
    OP_BUFFERS(t, {"whole", &a->whole, 1, a->direct ? 0 : world, a->block_pitch});
    OP_FLAGS(t, {"whole",
                 &a->flag_whole,
                 {{'r', world, 1}, {'c', a->rs.units, 1}},
                 a->rs.shard_cols ? "the whole sum of chunk %c of rank %r's columns"
                                  : "the whole sum of chunk %c of rank %r's rows",
                 .producer = 'r'});
}

static void gemm_ar_pipeline(const struct mk_plan *p, struct mk_pipeline *out)
{
    plan_gemm_rs_pipeline(&p->problem, &gemm_ar_plan_of(p)->rs, out);
    out->owned_pass = 1; /* they push the sum to all */
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

/* Of shared tiles: others' parts of a rank's columns, and the sums of all other columns. */
static uint64_t gemm_ar_shared_bytes(const struct gemm_rs_plan *r)
{
    uint64_t bytes = 0;
    for (uint32_t t = 0; t < r->tiles; t++) {
        struct mk_tile tile;
        gemm_rs_tile(r, t, &tile);
        for (uint32_t share = 0; share < gemm_rs_shares(r, &tile); share++)
            bytes += (uint64_t)tile.rows * gemm_rs_share_cols(r, &tile, share) *
                     (gemm_rs_sharer(r, &tile, share) == r->topo.rank
                          ? (r->topo.gpus - 1) * r->element_bytes
                          : 2);
    }
    return bytes;
}

static void gemm_ar_work(const struct mk_plan *p, double *flop, uint64_t *nvlink_bytes,
                         uint64_t *network_bytes)
{
    const struct gemm_rs_plan *r = &gemm_ar_plan_of(p)->rs;
    uint32_t nodes = r->topo.nodes, peers = r->topo.gpus - 1;
    *flop = 2.0 * r->m * r->n * r->k;
    *network_bytes = *nvlink_bytes = 0;
    if (r->shots == 1) {
        *nvlink_bytes =
            r->shared_columns ? gemm_ar_shared_bytes(r) : peers * plan_gemm_rs_joint_bytes(r);
        return;
    }
    for (uint32_t owner = 0; owner < mk_world(&r->topo); owner++) {
        const struct gemm_rs_area block = gemm_rs_block(r, owner);
        if (mk_local_of(&r->topo, owner) != mk_local_of(&r->topo, r->topo.rank))
            *nvlink_bytes += gemm_rs_elements(&block) * 2; /* gathered */
        else
            *nvlink_bytes += peers * gemm_rs_bytes(r, &block); /* to be added here */
    }
    /* puts are of whole blocks */
    const struct gemm_rs_area put = {.rows = r->block_rows, .cols = r->block_cols};
    *network_bytes = (nodes - 1) * (gemm_rs_bytes(r, &put) + gemm_rs_elements(&put) * 2);
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
    .shape = &op_shape_gemm_whole,
    .choose_shape = gemm_ar_choose_shape,
    .arguments = GEMM_SUM_ARGUMENTS("M"),
    .needs =
        {[MK_COMPUTE] = OP_ALWAYS, [MK_INTRA_COMM] = OP_IF_RANKS, [MK_INTER_SEND] = OP_IF_NODES},
    .knobs = OP_GEMM_KNOBS | OP_SHOTS | OP_SPLIT_K,
    .shots_measured = 1 << 2 | 1 << 4,
    .most_shots = MK_COLUMN_BLOCKS,
    .c_in_heap = 1,
    GEMM_SUM_HAS,
    .build = gemm_ar_build,
    .tables = gemm_ar_tables,
    .pipeline = gemm_ar_pipeline,
    .describe_tile = gemm_ar_describe_tile,
    .describe_chunk = gemm_ar_describe_chunk,
    .model = gemm_ar_model,
    .work = gemm_ar_work,
};

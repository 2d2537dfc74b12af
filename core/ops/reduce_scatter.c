/* ReduceScatter, C = this rank's rows of the sum over ranks of A: what it is, and which shapes it
 * takes. */
#include "core/ops/move.h"
#include "core/roles/reduce_scatter_plan.h"

static const struct op_shape shape = {
    OP_MOVE_SHAPE,
    .about = "reduce_scatter: every rank holds an A [M,K], and gets its rows of their sum",
    .defaults = "on the host 256 rows per rank,512; on GPUs 8192,8192; rounded up",
    .explored = "33 rows per rank,72",
    .dimensions = {OP_MOVE_DIMENSIONS("W")},
};

static int reduce_scatter_build(const struct op_descriptor *op, struct mk_plan *p, char *error,
                                size_t size)
{
    const struct mk_topo *t = &p->problem.topo;
    struct reduce_scatter_plan *r = reduce_scatter_plan_in(p);
    if (t->nodes > MK_TERMS)
        return plan_refuse(error, size,
                           "reduce_scatter on %u nodes: it adds up those of %u at most", t->nodes,
                           MK_TERMS);
    int result = plan_fill_move(op, p, error, size);
    if (result)
        return result;
    uint32_t bytes = t->gpus > 1 ? 4 : 2;
    r->element = plan_element(&p->problem);
    r->number = t->gpus > 1 ? MK_FP32 : r->element;
    r->sum_pitch = mk_round_up(r->move.block_rows * p->problem.k * bytes, MK_HEAP_UNIT);
    result = plan_lay_out(op, p, 0, r->move.chunk_rows * p->problem.k * bytes, error, size);
    if (!result)
        p->chunks = (mk_world(t) + t->nodes) * r->move.chunks;
    return result;
}

static void reduce_scatter_tables(struct mk_plan *p, struct op_tables *t)
{
    struct reduce_scatter_plan *r = reduce_scatter_plan_in(p);
    const struct mk_topo *topo = &r->move.topo;
    uint32_t nodes = topo->nodes > 1 ? topo->nodes : 0;
    OP_BUFFERS(t, {"come", r->move.come, 2, mk_world(topo), r->move.block_pitch},
               {"sums", r->sums, 2, nodes, r->sum_pitch},
               {"leaving", &r->leaving, 1, nodes, r->sum_pitch});
    OP_FLAGS(t,
             {"part",
              &r->move.flag_arrival,
              {{'n', topo->nodes, 1}, {'l', topo->gpus, 1}, {'c', r->move.chunks, 1}},
              "chunk %c of rank %l's A for rank %R",
              .producer = 'l'},
             {"sum",
              &r->flag_sum,
              {{'n', nodes, 1}, {'c', r->move.chunks, 1}},
              "node %n's sum of chunk %c of rank %m's rows",
              .producer = 'R'});
}

static void reduce_scatter_describe_chunk(const struct mk_plan *p, uint32_t id, uint32_t *rank,
                                          uint32_t *number, uint64_t *bytes)
{
    const struct reduce_scatter_plan *r = reduce_scatter_plan_of(p);
    const struct mk_topo *t = &r->move.topo;
    plan_describe_move_chunk(p, id, rank, number, bytes);
    if (*rank < mk_world(t))
        return;
    *rank = mk_rank_at(t, *rank - mk_world(t), mk_local_of(t, t->rank)); /* a node's sum */
    *bytes *= r->number == MK_FP32 ? 2 : 1;
}

static void reduce_scatter_work(const struct mk_plan *p, double *flop, uint64_t *nvlink_bytes,
                                uint64_t *network_bytes)
{
    const struct reduce_scatter_plan *r = reduce_scatter_plan_of(p);
    uint32_t wide = r->number == MK_FP32 ? 2 : 1;
    plan_move_work(p, (r->move.topo.nodes - 1) * wide, flop, nvlink_bytes, network_bytes);
}

const struct op_descriptor op_reduce_scatter = {
    .help = "adds A of all ranks; each rank gets its rows of the sum",
    .bits_vary =
        "adds in rank order what each rank has rounded, so bits follow from how many there are",
    OP_MOVES,
    .choose_shape = op_choose_move,
    .arguments = {{"A", OP_BF16, "M,K"}, {"C", OP_BF16, "M/W,K", .output = 1}},
    .build = reduce_scatter_build,
    .tables = reduce_scatter_tables,
    .describe_chunk = reduce_scatter_describe_chunk,
    .work = reduce_scatter_work,
};

/* AllGather, C = A of all ranks: what it is, and which shapes it takes. */
#include "core/ops/move.h"
#include "core/roles/all_gather_plan.h"

static const struct op_shape shape = {
    OP_MOVE_SHAPE,
    .about = "all_gather: the ranks hold rows of A [M,K]",
    .defaults = "on the host 256 rows per rank,512; on GPUs 8192,8192",
    .explored = "33 rows per rank,72",
    .dimensions = {OP_MOVE_DIMENSIONS("W")},
};

static uint64_t all_gather_moves(const struct mk_problem *q, uint64_t row)
{
    return row;
}

static void all_gather_work(const struct mk_plan *p, double *flop, uint64_t *nvlink_bytes,
                            uint64_t *network_bytes)
{
    plan_move_work(p, p->problem.topo.nodes - 1, flop, nvlink_bytes, network_bytes);
}

const struct op_descriptor op_all_gather = {
    .help = "gathers A from all ranks",
    OP_MOVES,
    .choose_shape = op_choose_move,
    .arguments = {{"A", OP_FACTOR, "M/W,K"}, {"C", OP_FACTOR, "M,K", .output = 1}},
    .moves = all_gather_moves,
    .fp8 = 1,
    .build = plan_build_move,
    .tables = plan_move_tables,
    .describe_chunk = plan_describe_move_chunk,
    .work = all_gather_work,
};

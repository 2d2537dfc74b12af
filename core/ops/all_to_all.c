/* All-to-all, C = block r of every rank's A: what it is, and which shapes it takes. */
#include "core/ops/move.h"
#include "core/roles/all_to_all_plan.h"

static const struct op_shape shape = {
    OP_MOVE_SHAPE,
    .about = "all_to_all: the ranks hold rows of A [M,K], equal parts of them for every rank",
    .defaults = "on the host 256 rows per rank,512; on GPUs 8192,8192; rounded up",
    .explored = "33 rows per rank,72, rounded up",
    .dimensions = {OP_MOVE_DIMENSIONS("W*W")},
};

/* Block s of C is of rank s's A the block that is this rank's. */
static uint64_t all_to_all_moves(const struct mk_problem *q, uint64_t row)
{
    uint64_t world = mk_world(&q->topo), block = q->m / (world * world), sender = row / block;
    return (sender * world + q->topo.rank) * block + row % block;
}

static void all_to_all_tables(struct mk_plan *p, struct op_tables *t)
{
    struct all_to_all_plan *a = all_to_all_plan_in(p);
    const struct mk_topo *topo = &a->move.topo;
    uint32_t nodes = topo->nodes > 1 ? topo->nodes : 0;
    plan_move_tables(p, t);
    t->flags[0].producer = 'q'; /* of what other nodes send, who puts it */
    OP_BUFFERS(t, {"staged", a->staged, 2, nodes * topo->gpus, a->move.block_pitch});
    OP_FLAGS(t, {"staged",
                 &a->flag_staged,
                 {{'n', nodes, 1}, {'l', topo->gpus, 1}, {'c', a->move.chunks, 1}},
                 "chunk %c of rank %l's A for rank %R",
                 .producer = 'l'});
}

static void all_to_all_work(const struct mk_plan *p, double *flop, uint64_t *nvlink_bytes,
                            uint64_t *network_bytes)
{
    const struct mk_topo *t = &p->problem.topo;
    plan_move_work(p, mk_world(t) - t->gpus, flop, nvlink_bytes, network_bytes);
}

const struct op_descriptor op_all_to_all = {
    .help = "gives each rank its part of every rank's A",
    OP_MOVES,
    .choose_shape = op_choose_move_square,
    .arguments = {{"A", OP_FACTOR, "M/W,K"}, {"C", OP_FACTOR, "M/W,K", .output = 1}},
    .moves = all_to_all_moves,
    .fp8 = 1,
    .build = plan_build_move,
    .tables = all_to_all_tables,
    .describe_chunk = plan_describe_move_chunk,
    .work = all_to_all_work,
};

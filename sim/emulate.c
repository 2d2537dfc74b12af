/* How a case of the explorer becomes one for emulated GPUs. */
#include "core/plan/epilogue.h"
#include "core/plan/gemm_tiles.h"
#include "core/ops/op.h"
#include "sim/emulated.h"
#include "sim/world.h"

#include <string.h>

enum { SMS = 4, MOST_RANKS = 4 };

/* One of the tiles that the operator's kernel is built for; none for numbers that it does not take,
 * which the plan then says. */
static struct mk_gemm_tile emulate_tile(const struct mk_problem *q, uint64_t seed)
{
    struct mk_gemm_tile tile = {0};
    uint32_t count = 0;
    while (op_gpu_tile(q, count, &tile))
        count++;
    if (count)
        op_gpu_tile(q, (uint32_t)(seed % count), &tile);
    return tile;
}

static int emulate_computes(enum mk_op op)
{
    return (op_of(op)->knobs & OP_TILE) != 0;
}

/* Two thread blocks that compute; the operator's other roles share their blocks where they can, or
 * have one block each. What only moves has as many blocks. */
static void emulate_choose_roles(struct mk_problem *q, uint64_t seed)
{
    uint32_t *ctas = q->tuning.split.ctas;
    memset(&q->tuning.split, 0, sizeof q->tuning.split);
    ctas[MK_COMPUTE] = emulate_computes(q->op) ? 2 : 0;
    int reduces = op_needs(q->op, &q->topo, MK_INTER_REDUCE);
    if (op_of(q->op)->own_blocks)
        ctas[MK_INTRA_COMM] = seed & 1 ? 3 : 1;
    else if (op_needs(q->op, &q->topo, MK_INTRA_COMM)) {
        ctas[MK_INTRA_COMM] = emulate_computes(q->op) || seed & 1 ? 1 : 2;
        /* one in a block of its own, which copies by TMA; or one beside each that computes; where
         * sums are gathered also two */
        mk_share_blocks(&q->tuning.split, !emulate_computes(q->op) ? 0
                                          : op_of(q->op)->sums     ? (uint32_t[]){1, 0, 2}[seed % 3]
                                                                   : !(seed & 1));
    }
    ctas[MK_INTER_SEND] = (uint32_t)op_needs(q->op, &q->topo, MK_INTER_SEND);
    if (reduces)
        ctas[MK_INTER_REDUCE] = q->topo.nodes > 1 ? 1 : op_of(q->op)->own_blocks ? 3 : 2;
}

void sim_world_emulate(struct sim_world_config *c, int drawn)
{
    struct mk_problem *q = &c->problem;
    q->exec = MK_EXEC_CUDA;
    /* now and then as on an SM that holds two blocks of engine mma */
    q->block_shared = q->engine == MK_ENGINE_MMA && c->seed % 3 == 0 ? EMULATED_BLOCK_SHARED : 0;
    c->emulated = q->sms = q->sms ? q->sms : op_of(q->op)->own_blocks ? SMS + 4 : SMS;
    /* what the seed drew for CTAs that are coroutines, no kernel is built for; and threads cost
     * more than these */
    if (drawn) {
        uint64_t rows = mk_ceil_div(q->m, mk_world(&q->topo)),
                 less = rows * mk_world(&q->topo) - q->m, /* of the last ranks */
            sequence = q->attention.sequence / mk_world(&q->topo);
        while (mk_world(&q->topo) > MOST_RANKS)
            q->topo.nodes > 1 && q->topo.nodes >= q->topo.gpus ? q->topo.nodes-- : q->topo.gpus--;
        q->m = rows * mk_world(&q->topo) - less % mk_world(&q->topo);
        /* now and then more than a tile's rows */
        q->attention.sequence = sequence * mk_world(&q->topo) * (c->seed % 5 ? 1 : 9);
        c->tracks = c->seed % 4 ? 0 : 64;
        uint32_t dim = q->attention.head_dim;
        op_fit(q);
        q->attention.head_dim = dim; /* a size of heads is what it is: others are refused */
        if (q->fp8 && !q->b_columns && q->epilogue & MK_EPILOGUE_GATED)
            q->n = mk_round_up(q->n, 256); /* half of them blocks of scales */
        memset(&q->tuning, 0, sizeof q->tuning);
        const struct mk_gemm_tile tile = emulate_tile(q, c->seed);
        q->tuning.tile_m = tile.tile_m;
        q->tuning.tile_n = tile.tile_n;
        q->tuning.cluster = tile.cluster;
        if (op_of(q->op)->knobs & OP_SHOTS && q->topo.nodes == 1)
            q->tuning.shots = q->tuning.tile_n > 128 || c->seed / 5 % 2
                                  ? MK_TWO_SHOT
                                  : sim_one_shot(q, c->seed / 10);
        sim_columns(q, c->seed / 3);
        if (!plan_no_split_k(q) && c->seed / 20 % 2)
            q->tuning = (struct mk_tuning){.shots = q->tuning.shots, .split_k = 2};
        if (!emulate_computes(q->op))
            q->tuning = (struct mk_tuning){.chunk_rows = c->seed / 3 % 2 ? 8 : 0};
        c->launches = c->launches > 3 ? 3 : c->launches;
        if (c->fault.kind == SIM_FAULT_MUTE)
            c->fault.kind = SIM_FAULT_DROP;
        if (c->fault.rank >= mk_world(&q->topo))
            c->fault.rank = 0;
        if (mk_world(&q->topo) == 1)
            c->fault.kind = SIM_FAULT_NONE;
    }
    if (drawn || !mk_total_ctas(&q->tuning.split))
        emulate_choose_roles(q, c->seed);
}

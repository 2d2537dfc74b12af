/* fp16 on emulated GPUs: every tile that the kernels of both engines are built for, in one shot and
 * two, with every epilogue, both layouts of B and both kinds of sums, on one node and two, ends with
 * the right bits; and what tells fp16 from bf16 there is seen. */
/* LIMIT=600 */
#include "core/plan/epilogue.h"
#include "core/ops/op.h"
#include "tests/helpers/hopper_ops.h"

static const uint64_t shapes[][3] = {{33, 40, 72}, {5, 8, 8}, {131, 136, 136}, {200, 264, 72}};

static void explore(enum mk_op op, enum mk_engine engine)
{
    struct coroutine_pool *pool;
    uint32_t one_shots = 0, exact = 0, behind = 0;
    assert_int_equal(coroutine_pool_create(&pool, 0), 0);
    for (uint64_t seed = 0; seed < 15; seed++) {
        const uint32_t nodes = 1 + (seed >= 12), gpus = nodes > 1 ? 1 + seed % 2 : 1 + seed % 3;
        struct sim_world_config c = hopper_ops_config(op, nodes, gpus, shapes[seed / 4 % 4], seed);
        struct mk_gemm_tile tile;
        uint32_t tiles = 0;
        c.problem.fp16 = 1;
        if (engine == MK_ENGINE_MMA)
            hopper_ops_on_mma(&c);
        c.problem.b_transposed = seed >> 1 & 1;
        c.problem.deterministic = op != MK_OP_AG_GEMM && seed % 5 == 4;
        c.problem.tuning.shots = nodes == 1 && seed % 4 > 1 ? 1 : 2;
        while (op_gpu_tile(&c.problem, tiles, &tile))
            tiles++;
        op_gpu_tile(&c.problem, (uint32_t)(seed % tiles), &tile);
        if (c.problem.tuning.shots == 1) /* the last, which has not too many columns */
            op_gpu_tile(&c.problem, tiles - 1, &tile);
        world_tile(&c, tile.tile_m, tile.tile_n, tile.cluster);
        op_fit(&c.problem);
        c.launches = 2;
        c.unwatched = seed % 4 != 1;
        c.pool = pool;
        world_right(&c);
        one_shots += c.problem.tuning.shots == 1;
        exact += c.problem.deterministic != 0;
        behind += c.problem.epilogue != 0;
    }
    coroutine_pool_destroy(pool);
    assert_true(one_shots > 4 && behind > 2 && (op == MK_OP_AG_GEMM || exact > 1));
}

CASE(test_gemms)
{
    explore(MK_OP_AG_GEMM, MK_ENGINE_WGMMA);
    explore(MK_OP_AG_GEMM, MK_ENGINE_MMA);
    explore(MK_OP_GEMM_RS, MK_ENGINE_WGMMA);
    explore(MK_OP_GEMM_RS, MK_ENGINE_MMA);
    explore(MK_OP_GEMM_AR, MK_ENGINE_WGMMA);
    explore(MK_OP_GEMM_AR, MK_ENGINE_MMA);
}

CASE(test_reduce_scatter)
{
    for (uint64_t seed = 0; seed < 12; seed++) {
        const uint32_t nodes = 1 + seed % 2, gpus = 1 + (uint32_t)(seed / 2 % 3);
        struct sim_world_config c =
            world_config(nodes, gpus, nodes * gpus * (seed % 3 ? 33 : 1), 0, 72 + 64 * (seed % 3));
        c.problem.op = MK_OP_REDUCE_SCATTER;
        c.problem.fp16 = 1;
        c.problem.engine = seed % 4 ? MK_ENGINE_WGMMA : MK_ENGINE_MMA;
        c.seed = seed;
        sim_world_emulate(&c, 1);
        world_right(&c);
    }
}

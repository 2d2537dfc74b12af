/* Ring attention, whole: its kernel's own device code on emulated GPUs, several ranks, proxies and
 * a network, in orders drawn from seeds; every result is right, and nobody reads what nothing says
 * is there. */
#include "core/ops/op.h"
#include "tests/helpers/hopper_ops.h"

static const uint32_t forms[][2] = {{1, 1}, {1, 2}, {2, 1}, {1, 3}, {2, 2}};
enum { FORMS = sizeof forms / sizeof *forms };

/* The same case on engine mma: one of its tiles, by the seed. */
static void on_mma(struct sim_world_config *c)
{
    struct mk_gemm_tile tile;
    uint32_t tiles = 0;
    c->problem.engine = MK_ENGINE_MMA;
    while (op_gpu_tile(&c->problem, tiles, &tile))
        tiles++;
    assert_true(tiles && op_gpu_tile(&c->problem, (uint32_t)(c->seed / 2 % tiles), &tile));
    c->problem.tuning.tile_m = c->problem.tuning.chunk_rows = tile.tile_m;
    c->problem.tuning.tile_n = tile.tile_n;
}

/* Rows of a rank (of a half, where causal) that are no multiple of tile or block, several heads and
 * batches, chunks of a tile's rows. */
static void explore(enum mk_engine engine)
{
    struct coroutine_pool *pool;
    uint64_t seed = 0;
    const int mma = engine == MK_ENGINE_MMA;
    assert_int_equal(coroutine_pool_create(&pool, 0), 0);
    for (uint32_t form = 0; form < FORMS; form++)
        for (int causal = 0; causal < 2; causal++)
            for (int i = 0; i < 2; i++, seed++) {
                if (mma && (form + causal + i) % 2)
                    continue;
                uint64_t pushing = mma ? seed / 2 : seed, heads = mma && i ? 1 : 2;
                uint32_t nodes = forms[form][0], gpus = forms[form][1], world = nodes * gpus;
                static const uint64_t unused[3] = {8, 8, 8};
                struct sim_world_config c =
                    hopper_ops_config(MK_OP_RING_ATTENTION, nodes, gpus, unused, seed);
                uint32_t *ctas = c.problem.tuning.split.ctas;
                c.problem.attention = (struct mk_attention){
                    1 + (mma ? !i : seed % 2),
                    (causal ? 2 : 1) * world * (i ? 137 : 33) - (seed % 3 ? seed % 5 * 9 : 0),
                    heads,
                    heads < 2 ? 1 : 1 + seed / 2 % 2,
                    i ? 128 : 64,
                    causal,
                    0,
                    causal && seed % 4 == 3};
                c.problem.tuning =
                    (struct mk_tuning){.split = c.problem.tuning.split, .chunk_rows = 128};
                if (!i && causal) /* heads of 64 have two tiles */
                    c.problem.tuning = (struct mk_tuning){.split = c.problem.tuning.split,
                                                          .chunk_rows = 192,
                                                          .tile_m = 192,
                                                          .tile_n = 96};
                if (mma)
                    on_mma(&c);
                /* intra_comm by a thread block of its own, or by one or two warps of each compute
                 * block (engine mma: by all of them, before); a chunk in up to four pieces, of
                 * which its last may have none */
                ctas[MK_COMPUTE] = 2;
                ctas[MK_INTRA_COMM] = gpus > 1;
                mk_share_blocks(&c.problem.tuning.split, gpus == 1 ? 0 : pushing % 3);
                c.problem.tuning.pieces = 1 + seed / 3 % 4;
                ctas[MK_INTER_SEND] = nodes > 1;
                ctas[MK_INTER_REDUCE] = 0;
                c.launches = 2;
                c.unwatched = i && !(mma && world == 1);
                c.pool = pool;
                world_right(&c);
            }
    coroutine_pool_destroy(pool);
}

CASE(test_orders)
{
    explore(MK_ENGINE_WGMMA);
    explore(MK_ENGINE_MMA);
}

/* Engine mma, a rank that stops or a put that fails: the kernels' waits end, and the sentence says
 * why. */
CASE(test_faults_on_mma)
{
    for (uint64_t seed = 0; seed < 4; seed++) {
        static const uint64_t unused[3] = {8, 8, 8};
        struct sim_world_config c =
            hopper_ops_config(MK_OP_RING_ATTENTION, 2 - seed % 2, 1 + seed % 2, unused, seed);
        c.problem.attention = (struct mk_attention){1, 2 * 33, 1, 1, 64, 0, 0, 0};
        c.problem.tuning = (struct mk_tuning){.tile_m = 0};
        on_mma(&c);
        c.fault = seed ? (struct sim_fault){SIM_FAULT_DROP, 1, 20}
                       : (struct sim_fault){SIM_FAULT_FAIL_PUT, 1, 1};
        world_ends_as_promised(&c);
    }
}

/* Three blocks of a rank's own keys: the producer then looks whether all others are here, and what
 * it loads without another wait is ordered behind what it saw. */
CASE(test_look)
{
    struct coroutine_pool *pool;
    assert_int_equal(coroutine_pool_create(&pool, 0), 0);
    for (uint64_t seed = 0; seed < 4; seed++) {
        static const uint64_t unused[3] = {8, 8, 8};
        struct sim_world_config c = hopper_ops_config(MK_OP_RING_ATTENTION, 1, 2, unused, seed);
        c.problem.attention = (struct mk_attention){1, 2 * 260, 2, 1, 128, 0, 0, 0};
        c.problem.tuning = (struct mk_tuning){.split = {{2, 2, 0, 0}, 1}, .pieces = 2};
        c.launches = 2;
        c.pool = pool;
        world_right(&c);
    }
    coroutine_pool_destroy(pool);
}

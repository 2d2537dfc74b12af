/* The GPU operators, whole: their kernels' own device code on emulated GPUs, several ranks, proxies
 * and a network, in orders drawn from seeds; every result is right, and nobody reads what nothing
 * says is there. */
/* LIMIT=900 */
#include "core/plan/gemm_tiles_fp8.h"
#include "core/ops/op.h"
#include "core/roles/ag_gemm_plan.h"
#include "sim/emulated.h"
#include "sim/hopper/hopper.h"
#include "tests/helpers/hopper_ops.h"
#include "core/plan/plan_fields.h"

static const uint32_t forms[][2] = {{1, 1}, {1, 2}, {2, 1}, {1, 3}, {2, 2}};
enum { FORMS = sizeof forms / sizeof *forms };

static const uint64_t shapes[][3] = {{33, 40, 72}, {1, 8, 8}, {65, 136, 136}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* Each form of cluster, each shape, a few orders; `watched`: by vector clocks, else by the results
 * alone. */
static void explore(enum mk_op op, enum mk_engine engine, uint64_t watched, uint64_t unwatched)
{
    struct coroutine_pool *pool;
    uint64_t seed = 0;
    assert_int_equal(coroutine_pool_create(&pool, 0), 0);
    for (uint32_t form = 0; form < FORMS; form++)
        for (uint32_t shape = 0; shape < SHAPES; shape++)
            for (uint64_t i = 0; i < watched + unwatched; i++, seed++) {
                struct sim_world_config c =
                    hopper_ops_config(op, forms[form][0], forms[form][1], shapes[shape], seed);
                if (engine == MK_ENGINE_MMA)
                    hopper_ops_on_mma(&c);
                c.problem.m -= seed % mk_world(&c.problem.topo); /* where M need not divide */
                op_fit(&c.problem);
                c.unwatched = i >= watched;
                c.pool = pool;
                world_right(&c);
            }
    coroutine_pool_destroy(pool);
}

CASE(test_gemms)
{
    explore(MK_OP_AG_GEMM, MK_ENGINE_WGMMA, 1, 3);
    explore(MK_OP_AG_GEMM, MK_ENGINE_MMA, 1, 0);
    explore(MK_OP_GEMM_RS, MK_ENGINE_WGMMA, 1, 3);
    explore(MK_OP_GEMM_RS, MK_ENGINE_MMA, 1, 0);
    explore(MK_OP_GEMM_AR, MK_ENGINE_WGMMA, 1, 3);
    explore(MK_OP_GEMM_AR, MK_ENGINE_MMA, 1, 0);
}

/* What only moves: forms, chunks and blocks as the explorer draws them. */
static void only_moves(enum mk_op op)
{
    struct coroutine_pool *pool;
    assert_int_equal(coroutine_pool_create(&pool, 0), 0);
    for (uint32_t form = 0; form < FORMS; form++)
        for (uint64_t seed = 0; seed < 12; seed++) { /* the last four on engine mma */
            uint32_t nodes = forms[form][0], gpus = forms[form][1];
            struct sim_world_config c = world_config(
                nodes, gpus, nodes * gpus * (seed % 2 ? 33 : 1), 0, 72 + 64 * (seed % 3));
            c.problem.op = op;
            if (op_has_bytes(op)) /* bf16, fp16, e4m3, bytes in turn */
                plan_set_dtype(&c.problem, (int)(seed % MK_PLAN_DTYPES));
            op_fit(&c.problem);
            c.seed = seed;
            c.pool = pool;
            c.problem.engine = seed < 8 ? MK_ENGINE_WGMMA : MK_ENGINE_MMA;
            sim_world_emulate(&c, 1);
            world_right(&c);
        }
    coroutine_pool_destroy(pool);
}

CASE(test_what_only_moves)
{
    only_moves(MK_OP_ALL_GATHER);
    only_moves(MK_OP_ALL_TO_ALL);
    only_moves(MK_OP_REDUCE_SCATTER);
}

/* One shot, or tiles that ranks share (`shots` is 3): tiles of few rows and others, rows that no tile and no group of
 * 16 divides, ranks whose rows share a group, more tiles of a CTA than one. */
static void joint_tiles(enum mk_op op, enum mk_engine engine, uint32_t shots)
{
    /* of all ranks; where M divides, at least */
    static const uint32_t rows[] = {1, 3, 16, 17, 65, 131};
    static const uint64_t columns[] = {72, 392, 8};
    struct mk_gemm_tile tile;
    struct coroutine_pool *pool;
    uint64_t seed = 0;
    uint32_t met[2] = {0};
    assert_int_equal(coroutine_pool_create(&pool, 0), 0);
    const int mma = engine == MK_ENGINE_MMA; /* which has no tiles of few rows */
    for (uint32_t gpus = mma && op == MK_OP_AG_GEMM ? 2 : 1; gpus <= 3; gpus++)
        for (uint32_t i = 0; i < 6; i++)
            for (uint32_t few = 0; few < (mma ? 1 : 2); few++, seed++) {
                const uint64_t shape[3] = {1, i < 5 ? columns[seed % 3] : 128, i % 2 ? 264 : 72};
                /* of four ranks the last adds three before its own, two at a time */
                struct sim_world_config c =
                    hopper_ops_config(op, 1, gpus == 3 && i == 3 ? 4 : gpus, shape, seed);
                /* a table's first tile has too many columns */
                if (few || c.problem.tuning.tile_n > PLAN_MOST_JOINT_COLUMNS) {
                    assert_true(mk_few_rows_tile(0, &tile));
                    world_tile(&c, tile.tile_m, tile.tile_n, tile.cluster);
                }
                if (i == 5 && !few) {
                    world_tile(&c, 128, 128, 1);
                }
                if (mma)
                    hopper_ops_on_mma(&c);
                c.problem.m = rows[i];
                op_fit(&c.problem);
                c.problem.tuning.shots = shots;
                c.problem.c_in_heap = shots == 3 && seed / 2 % 2;
                c.unwatched = seed % 2 && !few;
                c.pool = pool;
                world_right(&c);
                if (gpus > 2) /* with two, the first peer awaited is the last */
                    met[hopper_passes(&c)]++;
            }
    coroutine_pool_destroy(pool);
    assert_true(met[0]);
    if (op == MK_OP_GEMM_AR)
        assert_int_equal(met[1] > 0, !mma && shots == 1);
}

static void one_shot(enum mk_op op, enum mk_engine engine)
{
    joint_tiles(op, engine, 1);
}

CASE(test_gemm_ar_shared)
{
    joint_tiles(MK_OP_GEMM_AR, MK_ENGINE_WGMMA, 3);
}

/* The last tiles cut along K: on one rank and on several, slices of unequal K, rows and columns
 * that no group of 16 divides, three launches; a norm of C's rows behind them; others' last tiles
 * that come earlier. */
CASE(test_gemm_rs_cut)
{
    static const struct {
        uint32_t gpus, sms, slices;
        uint64_t shape[3]; /* M of a rank */
    } cases[] = {{2, 6, 3, {300, 200, 192}},  {2, 6, 3, {512, 256, 320}},
                 {1, 6, 3, {900, 256, 192}},  {3, 4, 2, {250, 72, 192}},
                 {2, 6, 2, {260, 256, 192}},  {2, 10, 2, {580, 72, 128}},
                 {2, 6, 3, {512, 1000, 192}}, {3, 4, 2, {250, 1200, 128}}};
    enum { CASES = sizeof cases / sizeof *cases };
    struct coroutine_pool *pool;
    assert_int_equal(coroutine_pool_create(&pool, 0), 0);
    for (uint64_t seed = 0; seed < CASES + 4; seed++) {
        const uint64_t of = seed % CASES;
        struct sim_world_config c =
            hopper_ops_config(MK_OP_GEMM_RS, 1, cases[of].gpus, cases[of].shape, seed);
        c.problem.b_transposed = (int)((seed + seed / CASES) & 1);
        c.problem.deterministic = seed % 3 == 1;
        c.problem.fp16 = seed >= CASES && !c.problem.deterministic;
        c.problem.epilogue = of == 1 ? MK_EPILOGUE_ROWS : 0;
        world_tile(&c, 256, 256, 2);
        c.problem.tuning.slices = cases[of].slices;
        c.problem.tuning.split.ctas[MK_COMPUTE] = c.emulated = c.problem.sms = cases[of].sms;
        c.unwatched = of > 5; /* many tiles */
        c.launches = of > 5 ? 1 : 3;
        c.pool = pool;
        assert_int_equal(hopper_slices(&c), cases[of].slices);
        world_right(&c);
    }
    coroutine_pool_destroy(pool);
}

CASE(test_one_shot)
{
    one_shot(MK_OP_AG_GEMM, MK_ENGINE_WGMMA);
    one_shot(MK_OP_AG_GEMM, MK_ENGINE_MMA);
    one_shot(MK_OP_GEMM_RS, MK_ENGINE_WGMMA);
    one_shot(MK_OP_GEMM_AR, MK_ENGINE_WGMMA);
    one_shot(MK_OP_GEMM_RS, MK_ENGINE_MMA);
    one_shot(MK_OP_GEMM_AR, MK_ENGINE_MMA);
}

/* ag_gemm's tiles of a last wave are halved, in tiles of one CTA and of two; others' last tiles have
 * half the rows, or fewer. gemm_ar on three ranks stores tiles at the peers straight from registers. */
CASE(test_halves_and_straight)
{
    for (uint64_t seed = 0; seed < 8; seed++) {
        const uint64_t whole[3] = {128 * (1 + (seed >> 1 & 1)), 520, 136},
                       rest[3] = {(seed & 4 ? 296 : 168), 136, 136}, summed[3] = {96, 264, 136};
        const int halved = seed < 4;
        struct sim_world_config c =
            hopper_ops_config(MK_OP_AG_GEMM, 1, 2, halved ? whole : rest, 1);
        struct mk_plan p;
        char error[256];
        c.problem.b_transposed = seed & 1;
        c.problem.tuning.cluster = 1 + (seed >> 1 & 1);
        c.problem.tuning.tile_m = 128 * c.problem.tuning.cluster;
        c.problem.tuning.tile_n = 128;
        c.problem.tuning.split.ctas[MK_COMPUTE] = 4 * c.problem.tuning.cluster;
        mk_share_blocks(&c.problem.tuning.split, 1);
        c.emulated = c.problem.sms = 8;
        c.launches = 2;
        c.unwatched = 1;
        assert_int_equal(plan_build(&p, &c.problem, 0, 0, error, sizeof error), 0);
        assert_int_equal(ag_gemm_plan_of(&p)->halved > 0, halved);
        world_right(&c);
        c = hopper_ops_config(MK_OP_GEMM_AR, 1, 3, summed, seed);
        c.problem.deterministic = 0;
        c.problem.epilogue = 0;
        c.problem.c_in_heap = seed & 1;
        world_tile(&c, 128, 128, 1);
        c.problem.tuning.split.ctas[MK_COMPUTE] = 4;
        mk_share_blocks(&c.problem.tuning.split, 1);
        c.launches = 2;
        c.unwatched = seed & 2;
        assert_int_equal(plan_build(&p, &c.problem, 0, 0, error, sizeof error), 0);
        assert_int_equal(gemm_ar_plan_of(&p)->rs.direct_store, 1);
        world_right(&c);
    }
}

/* ag_gemm with gated columns: both activations, with a bias and without, both layouts of B, one shot
 * and two, two nodes. What is let through begins in the middle of a tile and ends within one, and C may
 * be narrower than half of a tile; of FP8 on engine mma it begins in the middle of a block of scales,
 * which may be the gate's, and with scales of columns it begins anywhere. */
static void gated(enum mk_engine engine, int fp8, uint64_t seed)
{
    static const uint64_t of[][3] = {{132, 336, 144}, {4, 16, 16}, {200, 592, 72}, {3, 528, 656}},
                          of_fp8[][3] = {{132, 512, 144},
                                         {4, 256, 16},
                                         {200, 768, 80},
                                         {4, 512, 656}},
                          on_mma[][3] = {
                              {132, 320, 144}, {4, 64, 16}, {68, 448, 80}, {4, 576, 656}};
    const uint32_t nodes = 1 + (seed % 8 == 7), gpus = nodes > 1 ? 1 : 1 + seed / 4 % 3;
    const int mma = engine == MK_ENGINE_MMA;
    struct sim_world_config c = hopper_ops_config(
        MK_OP_AG_GEMM, nodes, gpus, (fp8 ? mma ? on_mma : of_fp8 : of)[seed % 4], seed);
    struct mk_gemm_tile tile;
    uint32_t tiles = 0;
    c.problem.fp8 = fp8;
    c.problem.b_columns = fp8 && seed / 4 % 2;
    if (c.problem.b_columns)
        c.problem.n = of[seed % 4][1];
    c.problem.fp16 = !fp8 && seed % 5 == 4 && (mma || seed % 3 < 2);
    c.problem.b_transposed = fp8 || (seed >> 1 & 1);
    c.problem.epilogue = MK_EPILOGUE_GATED | (seed & 4 ? MK_EPILOGUE_BIAS : 0) |
                         (seed % 3 ? MK_EPILOGUE_SILU : MK_EPILOGUE_GELU_TANH);
    if (mma)
        hopper_ops_on_mma(&c);
    while (op_gpu_tile(&c.problem, tiles, &tile))
        tiles++;
    assert_true(tiles > 0);
    op_gpu_tile(&c.problem, (uint32_t)(seed / 2 % tiles), &tile);
    c.problem.block_shared = mma && seed % 3 ? EMULATED_BLOCK_SHARED : 0; /* loads by TMA */
    c.problem.tuning.shots = nodes == 1 && seed & 1 ? 1 : 2;
    world_tile(&c, tile.tile_m, tile.tile_n, tile.cluster);
    c.launches = 2;
    c.unwatched = seed % 4 != 0;
    world_right(&c);
}

CASE(test_ag_gemm_gated)
{
    for (uint64_t seed = 0; seed < 24; seed++)
        for (int mma = 0; mma < 2; mma++) {
            gated(mma ? MK_ENGINE_MMA : MK_ENGINE_WGMMA, 0, seed);
            if (seed < 16)
                gated(mma ? MK_ENGINE_MMA : MK_ENGINE_WGMMA, 1, seed);
        }
}

/* FP8: every tile that it is built for, in one shot and two, with the ranks that push as warps
 * beside the engine and as blocks that copy by TMA; blocks of scales that are short, slices and
 * pieces that do not divide them; on two nodes, where scales have puts of their own. B has scales of
 * blocks, or of columns; of two shots ranks have rows that 4 does not divide. Scales come near 2^40 and
 * 2^-40. */
CASE(test_ag_gemm_fp8)
{
    static const uint64_t of[][3] = {{132, 72, 144}, {4, 8, 16}, {68, 136, 656}};
    const struct mk_gemm_tile few = {64, 64, 1};
    uint32_t tiles = 0, ran = 0;
    struct mk_gemm_tile tile;
    while (mk_fp8_tile(tiles, &tile))
        tiles++;
    for (uint64_t seed = 0; seed < 19; seed++) {
        uint32_t nodes = 1 + (seed >= 15), gpus = nodes > 1 ? 1 + seed % 2 : 1 + seed % 3;
        struct sim_world_config c =
            hopper_ops_config(MK_OP_AG_GEMM, nodes, gpus, of[seed / 3 % 3], seed);
        uint32_t one_shot = nodes == 1 && seed % 5 > 2;
        if (!mk_fp8_tile((uint32_t)(seed % (tiles + one_shot)), &tile))
            tile = few;
        c.problem.fp8 = c.problem.b_transposed = 1;
        c.problem.b_columns = seed / 4 % 2;
        c.problem.m -= one_shot ? 0 : nodes * gpus * (seed / 2 % 4);
        c.problem.tuning.shots = 2 - one_shot;
        world_tile(&c, tile.tile_m, tile.tile_n, tile.cluster);
        c.problem.tuning.slices = nodes > 1 ? 1 : 1 + (uint32_t)(seed / 2 % 4);
        c.problem.tuning.pieces = 1 + (uint32_t)(seed / 4 % 3);
        c.launches = 2;
        c.unwatched = seed % 4 != 1;
        world_right(&c);
        ran++;
    }
    assert_int_equal(ran, 19);
}

/* The same on engine mma. */
CASE(test_ag_gemm_fp8_on_mma)
{
    static const uint64_t of[][3] = {{132, 72, 144}, {4, 8, 16}, {68, 136, 656}};
    struct mk_gemm_tile tile;
    for (uint64_t seed = 0; seed < 12; seed++) {
        uint32_t nodes = 1 + (seed >= 9), gpus = nodes > 1 ? 1 + seed % 2 : 1 + seed % 3;
        struct sim_world_config c =
            hopper_ops_config(MK_OP_AG_GEMM, nodes, gpus, of[seed / 3 % 3], seed);
        c.problem.fp8 = c.problem.b_transposed = 1;
        c.problem.b_columns = seed / 4 % 2;
        hopper_ops_on_mma(&c);
        assert_int_equal(op_gpu_tile(&c.problem, (uint32_t)(seed / 2 % 2), &tile), 1);
        c.problem.tuning.tile_m = tile.tile_m;
        c.problem.tuning.tile_n = tile.tile_n;
        c.problem.tuning.shots = 2 - (nodes == 1 && seed % 5 > 2);
        c.problem.m -= c.problem.tuning.shots == 1 ? 0 : nodes * gpus * (seed / 2 % 4);
        c.problem.tuning.slices = nodes > 1 ? 1 : 1 + (uint32_t)(seed / 2 % 4);
        c.problem.tuning.pieces = 1 + (uint32_t)(seed / 4 % 3);
        c.launches = 2;
        c.unwatched = seed % 4 != 1;
        world_right(&c);
    }
}

/* FP8 of operators that add over ranks: every tile, in two shots and in one (there a tile for few
 * rows stands for the widest), deterministic too, on two nodes, B's scales of blocks and of columns;
 * rows that are no multiple of 4, so that rows of scales end in front of the next's 16 bytes. */
static void sums_of_fp8(enum mk_op op, enum mk_engine engine)
{
    static const uint64_t of[][3] = {
        {132, 72, 144}, {36, 8, 16}, {264, 136, 400}, {130, 72, 272}, {3, 136, 400}};
    const struct mk_gemm_tile few = {64, 64, 1};
    uint32_t one_shots = 0;
    for (uint64_t seed = 0; seed < 15; seed++) {
        uint32_t nodes = 1 + (seed >= 12), gpus = nodes > 1 ? 1 + seed % 2 : 1 + seed % 3,
                 tiles = 0, one_shot = nodes == 1 && seed % 4 > 1;
        struct sim_world_config c = hopper_ops_config(op, nodes, gpus, of[seed / 3 % 5], seed);
        struct mk_gemm_tile tile;
        c.problem.m -= op == MK_OP_GEMM_AR ? seed % 3 : 0;
        c.problem.epilogue = 0;
        c.problem.fp8 = c.problem.b_transposed = 1;
        c.problem.b_columns = seed / 4 % 2;
        if (engine == MK_ENGINE_MMA)
            hopper_ops_on_mma(&c);
        c.problem.deterministic = seed % 5 == 4;
        while (op_gpu_tile(&c.problem, tiles, &tile))
            tiles++;
        op_gpu_tile(&c.problem, (uint32_t)((seed + seed / 4 * one_shot) % tiles), &tile);
        if (one_shot && tile.tile_n > PLAN_MOST_JOINT_COLUMNS)
            tile = few;
        c.problem.tuning.shots = 2 - one_shot;
        world_tile(&c, tile.tile_m, tile.tile_n, tile.cluster);
        c.launches = 2;
        c.unwatched = seed % 3 != 1;
        world_right(&c);
        one_shots += one_shot;
    }
    assert_true(one_shots > 4);
}

CASE(test_sums_of_fp8)
{
    sums_of_fp8(MK_OP_GEMM_RS, MK_ENGINE_WGMMA);
    sums_of_fp8(MK_OP_GEMM_RS, MK_ENGINE_MMA);
    sums_of_fp8(MK_OP_GEMM_AR, MK_ENGINE_WGMMA);
    sums_of_fp8(MK_OP_GEMM_AR, MK_ENGINE_MMA);
}

/* Rows that the ranks do not share evenly, fewer than there are ranks, more than a tile's. Behind A
 * and C lies nobody's memory: who touches it is found. */
CASE(test_gemm_ar_any_rows)
{
    static const uint32_t of[][3] = {{1, 2, 257}, {1, 3, 131}, {1, 4, 3}, {2, 1, 1},
                                     {2, 2, 17},  {2, 1, 259}, {1, 4, 9}};
    static const uint64_t shape[3] = {1, 72, 72};
    const uint64_t count = sizeof of / sizeof *of;
    for (uint64_t i = 0; i < 2 * count; i++) {
        const uint32_t *which = of[i % count];
        struct sim_world_config c =
            hopper_ops_config(MK_OP_GEMM_AR, which[0], which[1], shape, i * 5);
        if (i >= count)
            hopper_ops_on_mma(&c);
        c.problem.m = which[2];
        c.launches = 2;
        world_right(&c);
    }
}

/* A residual and a norm in the registers of consumers, or a residual alone: rows and columns end with no tile, a row
 * has one tile or three, a warp several rows to add up; both kinds of sums. Where a CTA has several tiles, or one has
 * more rows, a norm stands behind all of them. */
CASE(test_norm_inside)
{
    static const uint32_t of[][3] = {{1, 1, 136}, {2, 17, 136}, {3, 64, 72}, {2, 70, 40},
                                     {4, 3, 136}, {2, 128, 64}, {2, 40, 264}};
    static const uint64_t shape[3] = {1, 72, 72};
    uint32_t inside = 0, behind = 0;
    for (uint64_t seed = 0; seed < 28; seed++) {
        const uint32_t *which = of[seed % 7];
        struct sim_world_config c = hopper_ops_config(MK_OP_GEMM_AR, 1, which[0], shape, seed * 5);
        struct mk_plan p;
        char error[256];
        c.problem.m = which[1];
        c.problem.n = which[2];
        c.problem.epilogue = seed / 7 % 2 ? MK_EPILOGUE_RESIDUAL : MK_EPILOGUE_ROWS;
        c.problem.deterministic = seed / 14 == 1;
        world_tile(&c, seed % 4 ? 64 : 128, 64, 1);
        c.problem.tuning.shots = 1;
        c.problem.tuning.split.ctas[MK_COMPUTE] = 3;
        c.problem.tuning.split.ctas[MK_INTRA_COMM] = 0;
        mk_share_blocks(&c.problem.tuning.split, which[0] > 1);
        assert_int_equal(plan_build(&p, &c.problem, 0, 0, error, sizeof error), 0);
        const struct gemm_rs_plan *r = &gemm_ar_plan_of(&p)->rs;
        assert_int_equal(r->norm_inside, r->tile_m == 64 && (!r->norm.normed || r->tiles <= 3));
        inside += r->norm_inside && r->norm.normed;
        behind += !r->norm_inside;
        world_right(&c);
    }
    assert_true(inside >= 6 && behind >= 3);
}

/* A norm whose rows become codes and scales: blocks of 128 columns, and last ones of fewer; rows of more words than a
 * block has threads for at a time; in registers, where two tiles share a block, and behind all tiles; both engines, every
 * type, both kinds of sums, one shot and two. And norms of FP8's sums. */
CASE(test_norm_quantized)
{
    enum { BF16, FP16, FP8 };
    static const struct {
        enum mk_op op;
        int mma, dtype, quantize;
        uint32_t gpus, m, n, shots;
    } cases[] = {
        {MK_OP_GEMM_AR, 0, BF16, 1, 2, 17, 144, 1},  {MK_OP_GEMM_AR, 0, FP16, 1, 3, 40, 272, 2},
        {MK_OP_GEMM_AR, 0, FP8, 1, 2, 20, 144, 1},   {MK_OP_GEMM_AR, 0, FP8, 1, 2, 132, 400, 2},
        {MK_OP_GEMM_RS, 0, BF16, 1, 2, 64, 272, 2},  {MK_OP_GEMM_RS, 0, FP8, 1, 2, 264, 272, 2},
        {MK_OP_GEMM_AR, 1, BF16, 1, 2, 9, 528, 2},   {MK_OP_GEMM_AR, 1, FP8, 1, 2, 36, 144, 1},
        {MK_OP_GEMM_RS, 1, FP8, 1, 2, 72, 272, 2},   {MK_OP_GEMM_RS, 1, FP16, 1, 2, 24, 16, 2},
        {MK_OP_GEMM_AR, 0, BF16, 1, 1, 2, 12304, 1}, {MK_OP_GEMM_AR, 0, BF16, 1, 4, 60, 192, 1},
        {MK_OP_GEMM_AR, 0, FP8, 0, 3, 24, 136, 1},   {MK_OP_GEMM_AR, 0, FP8, 0, 2, 76, 136, 1},
        {MK_OP_GEMM_AR, 0, FP8, 1, 2, 64, 128, 1}};
    uint32_t inside = 0;
    for (uint64_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint64_t shape[] = {cases[i].m, cases[i].n, 144};
        struct sim_world_config c = hopper_ops_config(cases[i].op, 1, cases[i].gpus, shape, i * 5);
        struct mk_plan p;
        char error[256];
        if (cases[i].mma)
            hopper_ops_on_mma(&c);
        c.problem.m = cases[i].m;
        c.problem.fp16 = cases[i].dtype == FP16;
        c.problem.fp8 = cases[i].dtype == FP8;
        c.problem.b_transposed |= c.problem.fp8;
        c.problem.epilogue = MK_EPILOGUE_ROWS | (cases[i].quantize ? MK_EPILOGUE_QUANTIZE : 0);
        c.problem.tuning.shots = cases[i].shots;
        world_tile(&c, 0, 0, 0);
        if (cases[i].shots == 1 && !cases[i].mma) {
            c.problem.tuning.split.ctas[MK_COMPUTE] = 3;
            c.problem.tuning.split.ctas[MK_INTRA_COMM] = 0;
            mk_share_blocks(&c.problem.tuning.split, cases[i].gpus > 1);
            world_tile(&c, 64, 64, 1);
        }
        c.launches = 2;
        if (plan_build(&p, &c.problem, 0, 0, error, sizeof error))
            fail_msg("case %u: %s", (uint32_t)i, error);
        inside += cases[i].op == MK_OP_GEMM_AR && gemm_ar_plan_of(&p)->rs.norm_inside;
        world_right(&c);
    }
    assert_int_equal(inside, 5);
}

/* Two CTAs that split K: halves of whole stages, of an odd number of them and of one that is short; last tiles of fewer rows,
 * of no rows of the second CTA, and of fewer columns; several tiles of a pair; both kinds of one shot; norms behind it. */
CASE(test_split_k)
{
    static const uint32_t of[][3] = {{128, 128, 256}, {260, 192, 200}, {200, 256, 72},
                                     {256, 248, 136}, {384, 256, 264}, {40, 512, 64}};
    for (uint64_t seed = 0; seed < 12; seed++) {
        const uint32_t *which = of[seed % 6];
        const uint64_t shape[3] = {which[0], which[1], which[2]};
        struct sim_world_config c = hopper_ops_config(seed % 5 == 2 ? MK_OP_GEMM_RS : MK_OP_GEMM_AR,
                                                      1, 2 + seed / 6 % 2, shape, seed * 5);
        const int all = c.problem.op == MK_OP_GEMM_AR;
        c.problem.m = all ? which[0] : mk_round_up(which[0], 6);
        c.problem.b_transposed = seed % 4 > 1;
        c.problem.deterministic = 0;
        c.problem.epilogue = all && seed % 4 == 1 ? MK_EPILOGUE_ROWS : 0;
        c.problem.tuning = (struct mk_tuning){
            .split_k = 2, .shots = all && seed % 3 == 0 ? 3 : 1, .split = {{4, all ? 4 : 0}, all}};
        c.emulated = c.problem.sms = 4;
        c.launches = 2;
        world_right(&c);
    }
}

/* Tiles of 192 columns, of one shot: whole, of fewer rows and columns, of less than a box; several of a CTA, whose sums pass
 * the outbox; both layouts; norms behind them; shards that come slice by slice. */
CASE(test_middle)
{
    static const uint32_t of[][3] = {{128, 192, 256}, {260, 400, 136}, {64, 8, 72}, {384, 768, 64}};
    for (uint64_t seed = 0; seed < 12; seed++) {
        static const enum mk_op ops[] = {MK_OP_GEMM_AR, MK_OP_GEMM_RS, MK_OP_AG_GEMM};
        const uint32_t *which = of[seed % 4];
        const uint64_t shape[3] = {which[0], which[1], which[2]};
        struct sim_world_config c =
            hopper_ops_config(ops[seed % 3], 1, 2 + seed / 6, shape, seed * 5);
        const int all = c.problem.op == MK_OP_GEMM_AR, rows = c.problem.op != MK_OP_AG_GEMM;
        c.problem.m = all ? which[0] : mk_round_up(which[0], 6);
        c.problem.b_transposed = seed / 3 % 2;
        c.problem.deterministic = 0;
        c.problem.epilogue = seed % 4 == 1 ? (rows ? MK_EPILOGUE_ROWS : MK_EPILOGUE_BIAS) : 0;
        c.problem.tuning = (struct mk_tuning){.tile_m = 128,
                                              .tile_n = 192,
                                              .shots = 1,
                                              .split = {{3, all || !rows ? 3 : 0}, all || !rows}};
        c.emulated = c.problem.sms = 4;
        c.launches = 2;
        world_right(&c);
    }
}

/* Blocks of columns: as many of each rank, whose last tile is short; or whole tiles, of which the last rank has fewer, or
 * none; fewer rows than a tile and more; between nodes and within one, where C lies in the heap; both engines, every type, norms. */
CASE(test_columns)
{
    static const uint32_t of[][2] = {{3, 192}, {70, 320}, {140, 512}, {1, 384}, {260, 576}};
    for (uint64_t seed = 0; seed < 18; seed++) {
        const int few = seed >= 15; /* tiles, so that ranks have none */
        const uint32_t nodes = 1 + (!few && seed % 3 > 0), gpus = few ? 3 : 1 + (seed % 3 < 2);
        const uint64_t shape[3] = {of[seed % 5][0], few ? 128 : of[seed % 5][1], 144};
        struct sim_world_config c = hopper_ops_config(MK_OP_GEMM_AR, nodes, gpus, shape, seed);
        struct mk_tuning *t = &c.problem.tuning;
        c.problem.m = shape[0];
        c.problem.fp8 = seed % 7 == 3;
        c.problem.b_columns = c.problem.fp8 && seed == 10;
        c.problem.fp16 = seed % 7 == 5;
        c.problem.b_transposed = c.problem.fp8 || seed % 4 > 1;
        c.problem.deterministic = seed % 7 == 1;
        c.problem.c_in_heap = nodes == 1;
        c.problem.epilogue = seed % 7 == 2 ? MK_EPILOGUE_ROWS : 0;
        if (c.problem.fp8) {
            c.problem.m = mk_round_up(c.problem.m, 4);
            c.problem.n = mk_round_up(c.problem.n, 128 * nodes * gpus);
        }
        memset(t, 0, sizeof *t);
        t->shots = 4;
        if (seed % 5 == 4)
            hopper_ops_on_mma(&c);
        t->shots = 4;
        if (few && seed % 2) {
            t->tile_m = 256;
            t->tile_n = 128;
            t->cluster = 2;
        }
        c.launches = 2;
        world_right(&c);
    }
}

/* More tiles of a CTA, and of a cluster, than the producer keeps what consumers need to know of:
 * its places are written again. And more tiles of its own than consumers of engine mma may be
 * ahead of the warp that pushes them. */
CASE(test_many_tiles)
{
    static const uint64_t shape[3] = {260, 520, 136};
    for (uint64_t seed = 0; seed < 3; seed++) {
        struct sim_world_config c =
            hopper_ops_config(seed ? MK_OP_GEMM_AR : MK_OP_GEMM_RS, 1, 2, shape, 3);
        world_tile(&c, 256, 256, 2);
        if (seed == 2) { /* tiles of 64 x 64 */
            hopper_ops_on_mma(&c);
            assert_int_equal(c.problem.tuning.tile_m, 64);
        }
        world_right(&c);
    }
}

/* So many tiles that a put takes two; neither rows nor columns end with a tile. */
CASE(test_large_puts)
{
    static const uint64_t shape[3] = {500, 504, 8};
    for (uint64_t seed = 3; seed < 5; seed++) { /* tiles of 128 x 64, then both layouts */
        struct sim_world_config c =
            hopper_ops_config(seed == 3 ? MK_OP_GEMM_RS : MK_OP_GEMM_AR, 2, 1, shape, seed);
        world_tile(&c, 128, 64, 1);
        c.launches = 2;
        /* more threads read words of a run than the watch over memory has room for */
        c.unwatched = c.problem.op == MK_OP_GEMM_AR;
        world_right(&c);
    }
}

/* A rank that stops, or a put that fails: the kernels' waits end, and the sentence says why. */
CASE(test_faults)
{
    static const enum mk_op ops[] = {MK_OP_AG_GEMM, MK_OP_GEMM_RS, MK_OP_GEMM_AR};
    for (uint32_t i = 0; i < 9; i++) {
        int joint = i >= 6; /* one shot, and tiles that ranks share */
        struct sim_world_config c =
            joint ? hopper_ops_config(ops[i < 8 ? i - 5 : 2], 1, 2, shapes[0], i)
                  : hopper_ops_config(ops[i % 3], 2, 1, shapes[0], 3 * i);
        if (joint) {
            world_tile(&c, 64, 64, 1);
            c.problem.tuning.shots = i < 8 ? 1 : 3;
        }
        c.fault = i < 3 || joint ? (struct sim_fault){SIM_FAULT_DROP, 1, 20}
                                 : (struct sim_fault){SIM_FAULT_FAIL_PUT, 1, 1};
        world_ends_as_promised(&c);
    }
}

CASE(test_what_cannot_be_emulated_is_refused)
{
    struct sim_world_result result;
    struct sim_world_config c = hopper_ops_config(MK_OP_AG_GEMM, 1, 2, shapes[0], 1);
    c.fault.kind = SIM_FAULT_MUTE;
    assert_int_equal(sim_world_run(&c, &result), -EINVAL);
}

/* Blocks wait for each other: a plan whose blocks a GPU does not run all at once is refused before
 * it is launched, though it was made for a GPU that would. */
CASE(test_blocks_that_do_not_fit_are_refused)
{
    static const enum mk_op ops[] = {
        MK_OP_AG_GEMM, MK_OP_GEMM_RS,        MK_OP_GEMM_AR,    MK_OP_MOE_DISPATCH_GEMM,
        MK_OP_MOE_FFN, MK_OP_RING_ATTENTION, MK_OP_ALL_GATHER, MK_OP_REDUCE_SCATTER};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (uint32_t sms = 19; sms <= 20; sms++) {
            const struct hopper_config config = {.ranks = 1, .sms = sms};
            struct mk_problem q = {.op = ops[i], .exec = MK_EXEC_CUDA, .sms = 20};
            struct hopper *machine;
            struct mk_plan p;
            uint64_t numbers[OP_DIMENSIONS] = {0};
            char error[512] = "";
            q.topo = (struct mk_topo){1, 2, 0};
            op_of(q.op)->choose_shape(OP_SIZE_GPU, 2, numbers);
            op_set_numbers(&q, numbers);
            assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
            assert_int_equal(mk_total_blocks(&p.problem.tuning.split), 20);
            assert_int_equal(hopper_create(&machine, &config), 0);
            hopper_use(machine, 0);
            int result = emulated_op_of(q.op)->prepare(&p, error, sizeof error);
            hopper_use(NULL, 0);
            hopper_destroy(machine);
            if (result != (sms < 20 ? -EINVAL : 0) ||
                (sms < 20 && !strstr(error, "at once, and all must: sms=1")))
                fail_msg("%s on %u SMs: %d, %s", plan_op_name(q.op), sms, result, error);
        }
}

/* Two ranks share the SMs of one GPU, half of them each, and rank 1 begins late: rank 0's second
 * launch, which is queued behind the first, leaves rank 1's half alone. */
CASE(test_late_ranks_find_their_sms)
{
    static const enum mk_op ops[] = {MK_OP_AG_GEMM,        MK_OP_GEMM_RS,     MK_OP_GEMM_AR,
                                     MK_OP_MOE_DISPATCH,   MK_OP_MOE_COMBINE, MK_OP_REDUCE_SCATTER,
                                     MK_OP_RING_ATTENTION, MK_OP_MOE_FFN};
    for (uint64_t seed = 0; seed < 2 * sizeof ops / sizeof *ops; seed++) {
        struct sim_world_config c = world_config(1, 2, 66, 40, 72);
        struct mk_plan p;
        char error[256];
        c.problem.op = ops[seed / 2];
        c.problem.moe = (struct mk_moe){33, 72, 72, 4, 2};
        c.problem.attention = (struct mk_attention){1, 2 * 2 * 33, 2, 1, 64, 1, 0, 0};
        c.problem.sms = 16;
        plan_field_set(plan_field_named("launch"), &c.problem,
                       op_has_halves(c.problem.op) && seed % 2);
        op_fit(&c.problem);
        c.seed = seed;
        sim_world_emulate(&c, 0);
        c.problem.sms_most = c.problem.sms / 2;
        if (plan_build(&p, &c.problem, 0, 0, error, sizeof error))
            fail_msg("%s: %s", plan_op_name(c.problem.op), error);
        c.together =
            2 * (uint32_t)mk_round_up(mk_total_blocks(&p.problem.tuning.split),
                                      p.problem.tuning.cluster + !p.problem.tuning.cluster);
        c.launches = 3;
        c.problem.timeout_ns = 200000000000; /* a wait looks at its bound every 64 s here */
        c.fault = (struct sim_fault){SIM_FAULT_LATE, 1, 1000000};
        c.unwatched = 1;
        world_right(&c);
    }
}

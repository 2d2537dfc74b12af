/* GEMM+AllReduce gives every rank the same right sum in every order of its steps, of any number of
 * rows, within the bounds of its arithmetic and with the fewest bytes; deterministic results have
 * the same bits in every order; broken variants are caught. */
#include "tests/helpers/ops.h"

#include "tests/helpers/broken_ops.h"
#define sim_op_gemm_ar broken_gemm_ar
#include "sim/ops/gemm_ar.c"
#include "tests/helpers/unbroken_ops.h"

CASE(test_orders)
{
    assert_true(ops_explore(MK_OP_GEMM_AR, 32) >= 768 / OPS_PART);
}

CASE(test_errors)
{
    ops_sum_errors(MK_OP_GEMM_AR, 1);
}

CASE(test_bits)
{
    ops_sum_bits(MK_OP_GEMM_AR, 1);
}

CASE(test_bytes)
{
    static const uint64_t rows[] = {0, 1, 3, 17, 101}; /* the last ranks have fewer, or none */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        ops_bytes_are_minimal(MK_OP_GEMM_AR, rows[i]);
}

/* Rows that the ranks do not share evenly, fewer than there are ranks, and one. */
static const uint64_t any_rows[] = {1, 2, 3, 5, 7, 17, 100, 251};
#define ANY_ROWS (sizeof any_rows / sizeof *any_rows)

CASE(test_any_rows)
{
    static const uint32_t forms[][2] = {{1, 1}, {1, 2}, {1, 3}, {1, 4}, {1, 5}, {1, 6},
                                        {1, 7}, {1, 8}, {2, 1}, {2, 2}, {3, 2}};
    static const uint64_t few[] = {1, 72, 24}, many[] = {1, 8, 8};
    struct coroutine_pool *pool;
    uint32_t one_shot = 0, shared = 0, columns = 0, deterministic = 0, in_heap = 0;
    assert_int_equal(coroutine_pool_create(&pool, 0), 0);
    for (size_t form = 0; form < sizeof forms / sizeof *forms; form++)
        for (size_t i = 0; i < ANY_ROWS + 2; i++)
            for (uint64_t seed = 0; seed < (OPS_PART == 1 ? 2 : 1); seed++) {
                struct sim_world_config c =
                    ops_config(MK_OP_GEMM_AR, forms[form], i < 6 ? few : many);
                c.problem.m = i < ANY_ROWS ? any_rows[i] : i == ANY_ROWS ? 1000 : 1025;
                c.seed = seed * 7919 + form * 10 + i;
                c.problem.b_transposed = (int)(seed & 1);
                sim_world_vary(&c);
                one_shot += c.problem.tuning.shots == 1;
                shared += c.problem.tuning.shots == 3;
                columns += c.problem.tuning.shots == 4;
                deterministic += c.problem.deterministic != 0;
                in_heap += c.problem.c_in_heap != 0;
                c.pool = pool;
                ops_right(&c);
            }
    coroutine_pool_destroy(pool);
    assert_true(OPS_PART > 1 || (one_shot > 15 && shared > 15 && columns > 30 &&
                                 deterministic > 20 && in_heap > 20));
}

/* Of any M each rank computes every element of C once, each unit that moves has rows of C and all
 * units have all of them once, and the layout is the same on every rank. */
CASE(test_plans_of_any_rows)
{
    struct sim_random r = {20261123};
    uint32_t columns = 0, even = 0; /* even: plans of whose tiles all ranks have as many columns */
    for (uint32_t round = 0; round < 200; round++) {
        struct mk_problem q = {
            .op = MK_OP_GEMM_AR,
            .exec = round & 1 ? MK_EXEC_CUDA : MK_EXEC_HOST,
            .sms = 132,
            .topo = {1 + sim_random_below(&r, 3), 1 + sim_random_below(&r, 6), 0},
            .m = round < 16 ? any_rows[round / 2] : 1 + sim_random_below(&r, round & 2 ? 30 : 900),
            .n = 8 + 8 * sim_random_below(&r, 40),
            .k = 8};
        uint64_t layout = 0;
        uint32_t shares[6] = {0};
        q.tuning.shots = q.topo.nodes > 1 || !(round & 4) ? 2 : round & 8 ? 3 : 1;
        sim_columns(&q, round >> 3);
        columns += q.tuning.shots == 4;
        for (q.topo.rank = 0; q.topo.rank < mk_world(&q.topo); q.topo.rank++) {
            struct mk_plan p;
            char error[300];
            if (plan_build(&p, &q, 0, 0, error, sizeof error))
                fail_msg("%s", error);
            const struct gemm_ar_plan *a = gemm_ar_plan_of(&p);
            uint8_t *seen = calloc(q.m * q.n, 2);
            assert_true(!q.topo.rank || layout == plan_layout(&p));
            layout = plan_layout(&p);
            for (uint32_t t = 0; t < p.tiles; t++) {
                struct mk_tile tile;
                gemm_rs_tile(&a->rs, t, &tile);
                uint64_t first = (uint64_t)tile.a_slab * a->rs.shard_rows + tile.row;
                assert_true(!tile.rows || first + tile.rows <= q.m);
                for (uint64_t i = 0; i < (uint64_t)tile.rows * tile.cols; i++)
                    seen[(first + i / tile.cols) * q.n + tile.col + i % tile.cols]++;
            }
            for (uint32_t id = 0; a->rs.shots == 2 && id < p.chunks; id++) {
                struct gemm_rs_area u = gemm_ar_area(a, id / a->rs.units, id % a->rs.units);
                struct mk_chunk c = gemm_ar_unit(a, id / a->rs.units, id % a->rs.units);
                uint64_t first = (uint64_t)(id / a->rs.units) * a->rs.shard_rows + u.row,
                         column = (uint64_t)(id / a->rs.units) * a->rs.shard_cols + u.col;
                assert_true(!u.rows || first + u.rows <= q.m);
                assert_int_equal(c.bytes, (uint64_t)u.rows * u.cols * 2);
                for (uint64_t i = 0; i < (uint64_t)u.rows * u.cols; i++)
                    seen[(q.m + first + i / u.cols) * q.n + column + i % u.cols]++;
            }
            for (uint32_t t = 0; a->rs.shared_columns && t < p.tiles;
                 t++) { /* whose columns are all someone's */
                struct mk_tile tile;
                gemm_rs_tile(&a->rs, t, &tile);
                uint32_t cols = 0;
                for (uint32_t share = 0; share < gemm_rs_shares(&a->rs, &tile); share++) {
                    cols += gemm_rs_share_cols(&a->rs, &tile, share);
                    shares[gemm_rs_sharer(&a->rs, &tile, share)] += !q.topo.rank;
                    assert_true(gemm_ar_shared_at(a, &tile, tile.rows) <=
                                a->whole + a->block_pitch);
                }
                assert_int_equal(cols, tile.cols);
            }
            for (uint64_t i = 0; i < q.m * q.n * a->rs.shots; i++)
                assert_int_equal(seen[i], 1);
            free(seen);
            even += a->rs.shared_columns && q.n % a->rs.tile_n == 0 && p.tiles % q.topo.gpus == 0;
            for (uint32_t g = 1;
                 g < q.topo.gpus && q.n % a->rs.tile_n == 0 && p.tiles % q.topo.gpus == 0; g++)
                assert_int_equal(shares[g], shares[0]);
        }
    }
    assert_true(even > 3 && columns > 50);
}

CASE(test_large_puts)
{
    ops_large_puts(MK_OP_GEMM_AR);
}

/* Of 2 nodes of 8 each unit that the network brings goes to each peer once, before it or another of
 * its number is delivered; and as many CTAs as there are peers share it, however many there are:
 * one that had it for all peers would be a launch's last. */
CASE(test_shares)
{
    struct mk_problem q = {.op = MK_OP_GEMM_AR,
                           .exec = MK_EXEC_CUDA,
                           .sms = 132,
                           .topo = {.nodes = 2, .gpus = 8, .rank = 3},
                           .m = 8192,
                           .n = 8192,
                           .k = 512};
    struct mk_plan plan;
    char error[300];
    assert_int_equal(plan_build(&plan, &q, 0, 0, error, sizeof error), 0);
    const struct gemm_ar_plan *p = gemm_ar_plan_of(&plan);
    uint32_t units = p->rs.units, world = 16, of_unit = gemm_ar_items(p) / units;
    uint8_t *seen = calloc((size_t)units * world, 8);
    assert_non_null(seen);
    for (uint32_t item = 0; item < gemm_ar_items(p); item++) {
        struct gemm_ar_item i = gemm_ar_item(p, item);
        uint8_t *there = &seen[(i.unit * world + i.owner) * 8];
        assert_true(i.owner != 3 && (i.to == 3 || i.owner == 11));
        assert_int_equal(there[i.to]++, 0);
        assert_int_equal(i.to == 3, item % of_unit >= 7);
    }
    assert_int_equal(gemm_ar_items(p), units * (15 + 7));
    free(seen);
    for (uint32_t count = 7; count <= 264; count++) {
        uint32_t last[264];
        memset(last, 0xff, sizeof last);
        for (uint32_t item = 0; item < gemm_ar_items(p); item++) {
            struct gemm_ar_item i = gemm_ar_item(p, item);
            if (i.to != 3 && last[item % count] == i.unit)
                fail_msg("one of %u CTAs passes unit %u on to several peers", count, i.unit);
            last[item % count] = i.to == 3 ? last[item % count] : i.unit;
        }
    }
}

CASE(test_refusals)
{
    struct mk_problem q = {
        .op = MK_OP_GEMM_AR, .topo = {.nodes = 2, .gpus = 2}, .m = 66, .n = 41, .k = 72};
    struct mk_plan p;
    char error[300];
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), -EINVAL);
    assert_non_null(strstr(error, "the next N that works is 48"));
    q.n = 40;
    q.m = 0;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), -EINVAL);
    assert_non_null(strstr(error, "M = 0: must be 1 to"));
    q.m = 66; /* no multiple of the ranks */
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    q.tuning.split = (struct mk_role_split){.ctas = {2, 0, 1, 0}};
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), -EINVAL);
    assert_non_null(
        strstr(error, "at least 1 intra_comm, at least 1 inter_send and no inter_reduce"));
    q.tuning = (struct mk_tuning){.shots = 4};
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), -EINVAL);
    assert_non_null(strstr(error, "N is 40: with shots=column_blocks it is a multiple of "
                                  "32, 8 for each rank, or of a tile's columns, 64"));
    q.tuning.shots = 1;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), -EINVAL);
    assert_non_null(strstr(error, "between nodes shots is two_shot or column_blocks"));
    q.tuning.shots = 0;
    q.topo = (struct mk_topo){.nodes = 1, .gpus = 1};
    q.tuning.split = (struct mk_role_split){.ctas = {2}};
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
}

/* Between nodes few rows are in blocks of columns where N lets them, many are not; within one node none is. */
CASE(test_columns_by_default)
{
    static const struct {
        uint64_t m, n;
        int fp8;
        uint32_t shots, columns;
    } cases[] = {{1, 8192, 0, 4, 512},    {64, 5120, 0, 4, 320}, {64, 5120, 1, 4, 384},
                 {64, 4160, 0, 4, 320},   {64, 4168, 0, 2, 0},   {64, 2240, 1, 2, 0},
                 {2048, 8192, 0, 4, 512}, {16384, 8192, 0, 2, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t nodes = 1; nodes <= 2; nodes++) {
            struct mk_problem q = {.op = MK_OP_GEMM_AR,
                                   .exec = MK_EXEC_CUDA,
                                   .engine = MK_ENGINE_WGMMA,
                                   .sms = 132,
                                   .topo = {.nodes = nodes, .gpus = 8},
                                   .m = cases[i].m,
                                   .n = cases[i].n,
                                   .k = 1024,
                                   .fp8 = cases[i].fp8,
                                   .b_transposed = 1};
            struct mk_plan p;
            char error[300];
            if (plan_build(&p, &q, 0, 0, error, sizeof error))
                fail_msg("case %zu: %s", i, error);
            if (nodes == 1)
                assert_int_not_equal(p.problem.tuning.shots, 4);
            else if (p.problem.tuning.shots != cases[i].shots ||
                     gemm_ar_plan_of(&p)->rs.shard_cols != cases[i].columns)
                fail_msg("case %zu: shots %u, %u columns", i, p.problem.tuning.shots,
                         gemm_ar_plan_of(&p)->rs.shard_cols);
        }
}

/* The random cases of the explorer and of emulated GPUs have such rows, and fewer than ranks. */
CASE(test_any_rows_are_drawn)
{
    for (int emulated = 0; emulated < 2; emulated++) {
        uint32_t uneven = 0, few = 0;
        for (uint64_t seed = 0; seed < 400; seed++) {
            struct sim_world_config c = {.problem = {.op = MK_OP_GEMM_AR}, .seed = seed};
            sim_world_draw(&c);
            if (emulated)
                sim_world_emulate(&c, 1);
            uint32_t world = mk_world(&c.problem.topo);
            assert_true(c.problem.m > 0);
            uneven += c.problem.m % world != 0;
            few += c.problem.m < world;
        }
        assert_true(uneven > 100 && few > 0);
    }
}

/* ---- mutants; those of the reduction are in test_ops_gemm_rs.c ---- */

static enum mutation {
    NOTHING,
    PUSHER_DOES_NOT_WAIT,
    FORWARDER_DOES_NOT_WAIT,
    SENDER_DOES_NOT_WAIT,
    EPOCH_REUSED,
    FLAG_BEFORE_COPY,
    STAGED_AFTER_ANNOUNCED,
    COPY_SHORT,
    LAST_UNIT_NOT_PUSHED,
    LAST_UNIT_NOT_DELIVERED,
    NO_DRAIN,
    LAST_PEER_NOT_AWAITED,
    OUTBOX_NOT_SETTLED,
    ONE_TERM_TOO_FEW,
    ROW_NOT_AWAITED,
    ROW_BUT_FOR_ONE_CTA,
    ROW_OF_THE_LAUNCH_BEFORE
} mutation;

int mutant_wait(struct mk_cta *cta, uint32_t flag, uint64_t target, enum mk_cause cause)
{
    int whole = flag >= gemm_ar_plan_of(mutant_plan(cta))->flag_whole;
    if ((mutation == PUSHER_DOES_NOT_WAIT && cta->role == MK_INTRA_COMM &&
         cause == MK_CAUSE_DATA) ||
        (mutation == FORWARDER_DOES_NOT_WAIT && cta->role == MK_INTRA_COMM &&
         cause == MK_CAUSE_NETWORK) ||
        (mutation == SENDER_DOES_NOT_WAIT && cta->role == MK_INTER_SEND && whole))
        return 0;
    const struct mk_topo *topo = &mutant_plan(cta)->problem.topo;
    uint32_t last = topo->gpus - 1 - (topo->rank == topo->gpus - 1);
    if (mutation == LAST_PEER_NOT_AWAITED &&
        (flag - gemm_ar_plan_of(mutant_plan(cta))->rs.flag_partial) % topo->gpus == last)
        return 0;
    const struct gemm_rs_plan *p = &gemm_ar_plan_of(mutant_plan(cta))->rs;
    if (p->norm.columns && flag == p->flag_ended) {
        if (mutation == ROW_NOT_AWAITED)
            return 0;
        target -= mutation == ROW_BUT_FOR_ONE_CTA;
        target -= mutation == ROW_OF_THE_LAUNCH_BEFORE ? gemm_rs_storers(p) : 0;
    } else if (mutation == EPOCH_REUSED && whole) {
        target /= cta->epoch;
    }
    return mk_cta_wait(cta, flag, target, cause);
}

void mutant_copy_rows(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk,
                      uint32_t rows, uint64_t source_pitch, uint64_t destination_pitch)
{
    struct mk_chunk c = *chunk;
    int staged =
        local == mk_local_of(&mutant_plan(cta)->problem.topo, mutant_plan(cta)->problem.topo.rank);
    if ((mutation == FLAG_BEFORE_COPY && !staged) ||
        (mutation == STAGED_AFTER_ANNOUNCED && staged)) {
        mutant_hold((struct mutant_held){cta, local, rows, 0, c, source_pitch, destination_pitch});
        return;
    }
    if (mutation == COPY_SHORT)
        c.bytes -= 16;
    mk_cta_copy_rows(cta, local, &c, rows, source_pitch, destination_pitch);
}

void mutant_copy(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk)
{
    mutant_copy_rows(cta, local, chunk, 1, 0, 0);
}

void mutant_deliver(struct mk_cta *cta, enum mk_space space, const struct mk_chunk *chunk,
                    uint32_t rows, uint64_t pitch)
{
    if (mutation == LAST_UNIT_NOT_DELIVERED && chunk->id % 3 == 2)
        return;
    mk_cta_deliver(cta, space, chunk, rows, pitch);
}

void mutant_add(struct mk_cta *cta, uint32_t local, uint32_t flag, uint64_t count)
{
    if (mutation == LAST_UNIT_NOT_PUSHED && flag >= gemm_ar_plan_of(mutant_plan(cta))->flag_whole &&
        flag % 3 == 2)
        return;
    mk_cta_add(cta, local, flag, count);
    mutant_release(cta);
}

int mutant_settle(struct mk_cta *cta)
{
    return mutation == OUTBOX_NOT_SETTLED ? 0 : mk_cta_settle(cta);
}

void mutant_combine(struct mk_cta *cta, const struct mk_combine *combine)
{
    struct mk_combine c = *combine;
    c.count -= mutation == ONE_TERM_TOO_FEW;
    mk_cta_combine(cta, &c);
}

int mutant_drain(struct mk_cta *cta)
{
    return mutation == NO_DRAIN ? 0 : mk_cta_drain(cta);
}

static struct sim_world_config config_on(const uint32_t form[2], uint64_t seed)
{
    struct sim_world_config c = ops_config(MK_OP_GEMM_AR, form, ops_shapes[0]);
    memset(mutant_held, 0, sizeof mutant_held);
    c.op = &broken_gemm_ar;
    c.seed = seed;
    c.launches = 5;
    /* three chunks, the last of one row */
    c.problem.tuning.tile_m = c.problem.tuning.chunk_rows = 16;
    c.problem.deterministic = (int)(seed & 1);
    return c;
}

static struct sim_world_config config_for(uint64_t seed)
{
    return config_on((const uint32_t[]){3, 2}, seed);
}

/* One node, and C in the heap, where peers store. */
static struct sim_world_config config_direct(uint64_t seed)
{
    struct sim_world_config c = config_on((const uint32_t[]){1, 3}, seed);
    c.problem.c_in_heap = 1;
    return c;
}

#define DIRECT(name, expected) (mutation = name, ops_hunt(config_direct, #name, expected))

CASE(test_mutants_with_c_in_the_heap)
{
    DIRECT(NOTHING, 0);
    DIRECT(LAST_UNIT_NOT_DELIVERED, 0); /* nothing is delivered */
    DIRECT(PUSHER_DOES_NOT_WAIT, -EBADMSG);
    DIRECT(EPOCH_REUSED, -EBADMSG);
    DIRECT(FLAG_BEFORE_COPY, -EBADMSG);
    DIRECT(COPY_SHORT, -EBADMSG);
    DIRECT(LAST_UNIT_NOT_PUSHED, -EIO);
}

/* Blocks of columns, three runs of rows of each; of two tiles, one short, or of whole tiles, of which the last rank has none. */
static struct sim_world_config config_columns(uint64_t seed)
{
    struct sim_world_config c = config_for(seed);
    c.problem.tuning.shots = 4;
    c.problem.m = 33;
    c.problem.tuning.tile_n = seed & 2 ? 16 : 8;
    c.problem.n = seed & 2 ? 6 * 24 : 40;
    return c;
}

static struct sim_world_config config_one_shot(uint64_t seed)
{
    struct sim_world_config c = config_on((const uint32_t[]){1, 3}, seed);
    c.problem.tuning.shots = 1;
    return c;
}

#define ONE_SHOT(name, expected) (mutation = name, ops_hunt(config_one_shot, #name, expected))

CASE(test_mutants_in_one_shot)
{
    ONE_SHOT(NOTHING, 0);
    ONE_SHOT(LAST_UNIT_NOT_DELIVERED, 0); /* nothing is delivered */
    ONE_SHOT(LAST_PEER_NOT_AWAITED, -EBADMSG);
    ONE_SHOT(OUTBOX_NOT_SETTLED, -EBADMSG);
    ONE_SHOT(ONE_TERM_TOO_FEW, -EBADMSG);
    ONE_SHOT(FLAG_BEFORE_COPY, -EBADMSG);
    ONE_SHOT(COPY_SHORT, -EBADMSG);
}

/* Tiles whose columns ranks share: with a C that is delivered, and with one that peers store in. */
static struct sim_world_config config_shared(uint64_t seed)
{
    struct sim_world_config c = config_on((const uint32_t[]){1, 3}, seed);
    c.problem.tuning.shots = 3;
    return c;
}

static struct sim_world_config config_shared_direct(uint64_t seed)
{
    struct sim_world_config c = config_shared(seed);
    c.problem.c_in_heap = 1;
    return c;
}

CASE(test_mutants_of_shared_tiles)
{
    for (int direct = 0; direct < 2; direct++) {
        struct sim_world_config (*const config)(uint64_t) =
            direct ? config_shared_direct : config_shared;
        mutation = NOTHING, ops_hunt(config, "NOTHING", 0);
        mutation = LAST_UNIT_NOT_DELIVERED;
        ops_hunt(config, "LAST_UNIT_NOT_DELIVERED", direct ? 0 : -EBADMSG);
        mutation = PUSHER_DOES_NOT_WAIT, ops_hunt(config, "PUSHER_DOES_NOT_WAIT", -EBADMSG);
        mutation = LAST_PEER_NOT_AWAITED, ops_hunt(config, "LAST_PEER_NOT_AWAITED", -EBADMSG);
        mutation = EPOCH_REUSED, ops_hunt(config, "EPOCH_REUSED", -EBADMSG);
        mutation = OUTBOX_NOT_SETTLED, ops_hunt(config, "OUTBOX_NOT_SETTLED", -EBADMSG);
        mutation = ONE_TERM_TOO_FEW, ops_hunt(config, "ONE_TERM_TOO_FEW", -EBADMSG);
        mutation = FLAG_BEFORE_COPY, ops_hunt(config, "FLAG_BEFORE_COPY", -EBADMSG);
        mutation = COPY_SHORT, ops_hunt(config, "COPY_SHORT", -EBADMSG);
        mutation = LAST_UNIT_NOT_PUSHED, ops_hunt(config, "LAST_UNIT_NOT_PUSHED", -EIO);
    }
}

/* A residual and a norm behind the sum: in one shot, in two with a C that peers store in, and in
 * two with one that is delivered. */
static struct sim_world_config config_normed_one_shot(uint64_t seed)
{
    struct sim_world_config c = config_one_shot(seed);
    c.problem.epilogue = MK_EPILOGUE_ROWS;
    return c;
}

static struct sim_world_config config_normed_shared(uint64_t seed)
{
    struct sim_world_config c = seed & 2 ? config_shared(seed) : config_shared_direct(seed);
    c.problem.epilogue = MK_EPILOGUE_ROWS;
    return c;
}

static struct sim_world_config config_normed_direct(uint64_t seed)
{
    struct sim_world_config c = config_direct(seed);
    c.problem.epilogue = MK_EPILOGUE_ROWS;
    return c;
}

static struct sim_world_config config_normed(uint64_t seed)
{
    struct sim_world_config c = config_on((const uint32_t[]){2, 2}, seed);
    c.problem.epilogue = seed & 2 ? MK_EPILOGUE_ROWS : MK_EPILOGUE_RESIDUAL;
    return c;
}

CASE(test_mutants_of_the_norm)
{
    struct sim_world_config (*const configs[])(uint64_t) = {
        config_normed, config_normed_direct, config_normed_one_shot, config_normed_shared};
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        mutation = NOTHING, ops_hunt(configs[i], "NOTHING", 0);
        mutation = ROW_NOT_AWAITED, ops_hunt(configs[i], "ROW_NOT_AWAITED", -EBADMSG);
        mutation = ROW_BUT_FOR_ONE_CTA, ops_hunt(configs[i], "ROW_BUT_FOR_ONE_CTA", -EBADMSG);
        mutation = ROW_OF_THE_LAUNCH_BEFORE;
        ops_hunt(configs[i], "ROW_OF_THE_LAUNCH_BEFORE", -EBADMSG);
    }
}

static void hunt_mutants(struct sim_world_config (*config)(uint64_t seed))
{
    MUTANT_OF(config, NOTHING, 0);
    MUTANT_OF(config, PUSHER_DOES_NOT_WAIT, -EBADMSG);
    MUTANT_OF(config, FORWARDER_DOES_NOT_WAIT, -EBADMSG);
    MUTANT_OF(config, SENDER_DOES_NOT_WAIT, -EBADMSG);
    MUTANT_OF(config, EPOCH_REUSED, -EBADMSG);
    MUTANT_OF(config, FLAG_BEFORE_COPY, -EBADMSG);
    MUTANT_OF(config, STAGED_AFTER_ANNOUNCED, -EBADMSG);
    MUTANT_OF(config, COPY_SHORT, -EBADMSG);
    MUTANT_OF(config, LAST_UNIT_NOT_PUSHED, -EIO);
    MUTANT_OF(config, LAST_UNIT_NOT_DELIVERED, -EBADMSG);
    MUTANT_OF(config, NO_DRAIN, -EBADMSG);
}

CASE(test_mutants)
{
    hunt_mutants(config_for);
}

CASE(test_mutants_of_columns)
{
    hunt_mutants(config_columns);
}

static void expect_mute(const struct sim_world_result *r)
{
    assert_true(r->failure.chunk != UINT32_MAX); /* it names a chunk, and who owes it */
}

CASE(test_faults)
{
    ops_faults(MK_OP_GEMM_AR, ops_shapes[0], 6, expect_mute);
}

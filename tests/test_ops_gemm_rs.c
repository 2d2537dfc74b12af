/* GEMM+ReduceScatter sums the right bytes in every order of its steps, within the bounds of its
 * arithmetic and with the fewest bytes; deterministic results have the same bits in every order;
 * broken variants of its schedule are caught. */
#include "tests/helpers/ops.h"

#include "tests/helpers/broken_ops.h"
#define sim_op_gemm_rs broken_gemm_rs
#include "sim/ops/gemm_rs.c"
#include "tests/helpers/unbroken_ops.h"

CASE(test_orders)
{
    assert_true(ops_explore(MK_OP_GEMM_RS, 40) >= 960 / OPS_PART);
}

CASE(test_errors)
{
    ops_sum_errors(MK_OP_GEMM_RS, 0);
}

CASE(test_bits)
{
    ops_sum_bits(MK_OP_GEMM_RS, 0);
}

CASE(test_bytes)
{
    ops_bytes_are_minimal(MK_OP_GEMM_RS, 0);
}

CASE(test_large_puts)
{
    ops_large_puts(MK_OP_GEMM_RS);
}

/* ---- the plan ---- */

CASE(test_refusals)
{
    struct mk_problem q = {
        .op = MK_OP_GEMM_RS, .topo = {.nodes = 2, .gpus = 2}, .m = 66, .n = 40, .k = 72};
    assert_non_null(
        strstr(ops_refusal(q), "M = 66 does not divide by 4 ranks; the next that does is 68"));
    q.m = 68;
    q.n = 41;
    assert_non_null(strstr(ops_refusal(q), "the next N that works is 48"));
    q.n = 40;
    q.k = 7;
    assert_non_null(strstr(ops_refusal(q), "the next K that works is 8"));
    q.k = 8;
    q.tuning.split = (struct mk_role_split){.ctas = {2, 1, 0, 1}};
    assert_non_null(
        strstr(ops_refusal(q), "no intra_comm, at least 1 inter_send and no inter_reduce"));
    q.tuning.split = (struct mk_role_split){.ctas = {2, 0, 40, 0}};
    assert_non_null(strstr(ops_refusal(q), "32 command rings"));
    q.tuning.split = (struct mk_role_split){.ctas = {0}};
    q.tuning.tile_m = 12;
    assert_non_null(strstr(ops_refusal(q), "multiples of 8"));
    q.tuning.tile_m = 0;
    q.tuning.slices = 2;
    assert_non_null(strstr(ops_refusal(q), "2 slices of K between nodes: slices is 1"));
    q.topo = (struct mk_topo){.nodes = 1, .gpus = 2};
    q.tuning.shots = 1;
    assert_non_null(strstr(ops_refusal(q), "2 slices of K in one shot: slices is 1"));
    q.tuning.shots = 2;
    q.deterministic = MK_EVERYWHERE;
    q.k = 512;
    assert_non_null(strstr(ops_refusal(q), "2 slices of K with the same bits everywhere"));
    q.deterministic = 0;
    q.exec = MK_EXEC_CUDA;
    q.sms = 132;
    q.engine = MK_ENGINE_MMA;
    q.tuning.tile_m = 0;
    assert_non_null(strstr(ops_refusal(q), "2 slices of K on engine mma: slices is 1"));
    q.engine = MK_ENGINE_WGMMA;
    q.tuning.tile_m = q.tuning.tile_n = 128;
    assert_non_null(
        strstr(ops_refusal(q), "in such tiles: a GPU has kernels for those of 256x256"));
    q = (struct mk_problem){.op = MK_OP_GEMM_RS, .topo = {.nodes = 2, .gpus = 2}, .n = 40, .k = 8};
    q.m = 4ull << 26;
    q.n = 1 << 20;
    assert_non_null(strstr(ops_refusal(q), "more than a command can name"));
}

/* Last tiles cut along K: every turn is a tile or a slice, slices are all of K once, their shares
 * all columns; no CTA has two, and an own tile stands behind peers' tiles of its place. */
static void check_cut(const struct mk_plan *p, uint64_t met[2])
{
    const struct gemm_rs_plan *r = gemm_rs_plan_of(p);
    const uint32_t gpus = r->topo.gpus, local = r->topo.rank, others = r->cut_from + r->cut_tiles;
    uint32_t *k = calloc(others, sizeof *k), *columns = calloc(others, sizeof *columns), from;
    uint32_t came[8] = {0}; /* tiles of each owner, so far */
    for (uint32_t t = 0; t < p->tiles; t++) {
        struct mk_tile tile;
        gemm_rs_cut_tile(r, t, &tile);
        assert_true(tile.id < others);
        if (!tile.stage) {
            assert_true(t < r->cut_from && !k[tile.id]);
            k[tile.id] = r->k;
            columns[tile.id] = tile.cols;
        } else {
            assert_true(tile.slab == local && t >= r->cut_from && tile.c_slab < r->cut_tiles);
            assert_int_equal(t / r->batch, r->cut_from / r->batch);
            uint32_t slice = gemm_rs_slice_k(r, &tile, &from);
            assert_true(slice && from == k[tile.id]);
            k[tile.id] += slice;
            slice = gemm_rs_cut_cols(r, &tile, &from);
            assert_int_equal(from, columns[tile.id]);
            columns[tile.id] += slice;
            assert_true(gemm_rs_cut_place(r, &tile, r->slices) <= r->cut + p->heap_bytes);
        }
        came[(tile.slab + gpus - local) % gpus] += tile.stage < 2;
        for (uint32_t peer = 1; peer < gpus && tile.slab == local; peer++)
            assert_true(came[peer] >= came[0]);
        plan_describe_tile(p, tile.id, &tile);
        assert_int_equal(columns[tile.id] <= tile.cols, 1);
    }
    for (uint32_t i = 0; i < others; i++)
        assert_int_equal(k[i], r->k);
    met[0] += r->slices > 1;
    met[1] += r->late > 0;
    free(k);
    free(columns);
}

CASE(test_cut)
{
    uint64_t met[2] = {0};
    for (uint32_t seed = 0; seed < 3000; seed++) {
        struct mk_problem q = {.op = MK_OP_GEMM_RS,
                               .topo = {.nodes = 1, .gpus = 1 + seed % 4},
                               .n = 72 + seed % 3 * 64};
        struct mk_plan p;
        char error[300];
        q.topo.rank = seed % q.topo.gpus;
        q.m = q.topo.gpus * (8 + seed % 97);
        q.k = 8 * (1 + seed % 23);
        q.tuning.tile_m = q.tuning.chunk_rows = 16;
        q.tuning.tile_n = 40;
        q.tuning.slices = 2 + seed % 15;
        q.tuning.split.ctas[MK_COMPUTE] = 1 + seed % 11;
        assert_int_equal(plan_build(&p, &q, 7, 1000, error, sizeof error), 0);
        check_cut(&p, met);
    }
    assert_true(met[0] > 500 && met[1] > 100);
}

/* Every tile of the product once, each to the reducer on its owner's rail; every element of a block
 * in one unit. */
CASE(test_cover)
{
    static const uint32_t forms[][2] = {{1, 1}, {1, 4}, {2, 1}, {2, 2}, {3, 2}, {4, 1}, {1, 12}};
    for (size_t form = 0; form < sizeof forms / sizeof *forms; form++)
        for (int deterministic = 0; deterministic < 2; deterministic++) {
            struct mk_problem q = {.op = MK_OP_GEMM_RS,
                                   .topo = {.nodes = forms[form][0], .gpus = forms[form][1]}};
            struct mk_plan p;
            char error[300];
            uint32_t world = mk_world(&q.topo);
            q.topo.rank = world - 1;
            q.m = world * 53;
            q.n = 72;
            q.k = 8;
            q.deterministic = deterministic;
            q.tuning.tile_m = 16;
            q.tuning.tile_n = 40;
            q.tuning.chunk_rows = 32;
            q.tuning.pieces = op_pieces(q.op, &q.topo) ? 5 : 1;
            assert_int_equal(plan_build(&p, &q, 7, 1000, error, sizeof error), 0);
            const struct gemm_rs_plan *r = gemm_rs_plan_of(&p);
            uint8_t *seen = calloc(q.m * q.n, 1), *ids = calloc(p.tiles, 1);
            for (uint32_t t = 0; t < p.tiles; t++) {
                struct mk_tile tile, described;
                gemm_rs_tile(r, t, &tile);
                plan_describe_tile(&p, tile.id, &described);
                assert_memory_equal(&tile, &described, sizeof tile);
                assert_int_equal(ids[tile.id]++, 0);
                assert_int_equal(tile.c_local, mk_local_of(&q.topo, tile.slab));
                assert_true(gemm_rs_kind_of(r, &tile) != GEMM_RS_PARTIAL ||
                            tile.c_slab < gemm_rs_slabs(r));
                for (uint32_t i = 0; i < tile.rows; i++)
                    for (uint32_t j = 0; j < tile.cols; j++)
                        assert_int_equal(
                            seen[(tile.slab * 53 + tile.row + i) * 72 + tile.col + j]++, 0);
            }
            for (uint64_t i = 0; i < q.m * q.n; i++)
                assert_int_equal(seen[i], 1);
            uint64_t next = 0;
            memset(seen, 0, 53 * 72);
            for (uint32_t unit = 0; unit < r->units; unit++) {
                struct gemm_rs_area a = gemm_rs_unit(r, unit);
                assert_true(!a.rows || a.first >= next);
                assert_true(!a.rows || (a.first * r->element_bytes % 128 == 0 && a.cols % 8 == 0));
                next = a.rows ? a.first + gemm_rs_elements(&a) : next;
                for (uint32_t i = 0; i < a.rows; i++)
                    for (uint32_t j = 0; j < a.cols; j++)
                        assert_int_equal(seen[(a.row + i) * 72 + a.col + j]++, 0);
            }
            assert_true(next * r->element_bytes <= r->slab_pitch);
            for (uint64_t i = 0; i < 53 * 72; i++)
                assert_int_equal(seen[i], 1);
            free(seen);
            free(ids);
        }
}

/* Puts of several tiles: each tile is in one run, whose tiles follow each other in memory without a
 * gap; runs come in the order of computation, and one put brings what its first flag says. */
CASE(test_runs)
{
    /* rows of a rank, N, rows and columns of a tile, rows of a chunk: tiles that end where chunks,
     * rows and columns do; not the rows, not the columns, neither; one tile; one chunk */
    static const uint32_t cases[][5] = {{128, 1024, 8, 8, 32},  {121, 1024, 8, 8, 48},
                                        {128, 1000, 8, 64, 32}, {121, 1000, 8, 64, 64},
                                        {9, 24, 16, 64, 16},    {256, 640, 64, 8, 256}};
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        const uint32_t *of = cases[i / 2], pieces = 1 + (uint32_t)i % 2;
        struct mk_problem q = {.op = MK_OP_GEMM_RS,
                               .topo = {.nodes = 2, .gpus = 1},
                               .m = 2ull * of[0],
                               .n = of[1],
                               .k = 8};
        struct mk_plan p;
        char error[300];
        q.tuning.tile_m = of[2];
        q.tuning.tile_n = of[3];
        q.tuning.chunk_rows = of[4];
        q.tuning.pieces = pieces;
        assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
        const struct gemm_rs_plan *r = gemm_rs_plan_of(&p);
        uint32_t *run_of = malloc(r->shard_tiles * sizeof *run_of), longest = 0, turn = 0;
        for (uint32_t t = 0; t < r->shard_tiles; t++)
            run_of[t] = UINT32_MAX;
        for (uint32_t j = 0; j < r->runs; j++) {
            uint32_t unit, each = r->put_tiles ? 1 : pieces;
            struct gemm_rs_run run = gemm_rs_put_at(r, j * each, &unit);
            struct mk_chunk c = gemm_rs_sum_chunk(r, 1, run, unit, 1);
            uint64_t bytes = 0;
            assert_int_equal(unit, run.tile * pieces);
            assert_true(run.tiles && run.tile + run.tiles <= r->shard_tiles);
            longest = run.tiles > longest ? run.tiles : longest;
            for (uint32_t t = run.tile; t < run.tile + run.tiles; t++) {
                struct gemm_rs_run again = gemm_rs_run_of(r, t);
                struct gemm_rs_area a = gemm_rs_tile_area(r, t);
                assert_memory_equal(&again, &run, sizeof run);
                assert_int_equal(run_of[t], UINT32_MAX);
                run_of[t] = j;
                assert_int_equal(c.source + bytes, r->sums + a.first * r->element_bytes);
                bytes += gemm_rs_bytes(r, &a);
                for (uint32_t piece = 0; piece < pieces; piece++)
                    assert_int_equal(gemm_rs_put_unit(r, t * pieces + piece),
                                     r->put_tiles ? unit : t * pieces + piece);
            }
            assert_true(!r->put_tiles || c.bytes == bytes);
            for (uint32_t t = 0; t < run.tiles; t++) /* those that are computed next */
                assert_int_equal(run_of[gemm_rs_order(r, turn++)], j);
        }
        assert_int_equal(turn, r->shard_tiles);
        assert_int_equal(gemm_rs_puts(r), r->runs * (pieces > 1 ? pieces : 1));
        assert_true(pieces > 1 || r->shard_tiles < 32 ? longest == 1 : longest > 1);
        assert_true(longest <= r->shard_tiles / 16 || longest == 1);
        free(run_of);
    }
}

/* ---- mutants ---- */

static enum mutation {
    NOTHING,
    FLAG_BEFORE_TILE,
    REDUCER_DOES_NOT_WAIT,
    OWNER_DOES_NOT_WAIT,
    EPOCH_REUSED,
    ONE_TILE_TOO_FEW,
    ONE_BUFFER,
    ONE_TERM_TOO_FEW,
    TERMS_OF_THE_OTHER_LAUNCH,
    NO_DRAIN,
    PUT_UNASKED,
    PUT_HALF_ASKED,
    PUT_SHORT,
    FLAG_WITHOUT_DATA,
    LAST_UNIT_NOT_SENT,
    SUM_OVER_FLAGS,
    ROW_NOT_AWAITED,
    ROW_BUT_FOR_ONE_CTA,
    ROW_OF_THE_LAUNCH_BEFORE,
    SLICES_NOT_AWAITED,
    ONE_SLICE_TOO_FEW,
    SLICES_OF_THE_LAUNCH_BEFORE,
    ONE_SLICE_NOT_ADDED
} mutation;

int mutant_wait(struct mk_cta *cta, uint32_t flag, uint64_t target, enum mk_cause cause)
{
    if ((mutation == REDUCER_DOES_NOT_WAIT && cause == MK_CAUSE_DATA && cta->role == MK_COMPUTE) ||
        (mutation == PUT_UNASKED && cta->role == MK_INTER_SEND) ||
        (mutation == PUT_HALF_ASKED && cta->role == MK_INTER_SEND && flag % 2) ||
        (mutation == OWNER_DOES_NOT_WAIT && cause == MK_CAUSE_NETWORK))
        return 0;
    const struct gemm_rs_plan *p = gemm_rs_plan_of(mutant_plan(cta));
    if (p->norm.columns && flag == p->flag_ended) {
        if (mutation == ROW_NOT_AWAITED)
            return 0;
        target -= mutation == ROW_BUT_FOR_ONE_CTA;
        target -= mutation == ROW_OF_THE_LAUNCH_BEFORE ? gemm_rs_storers(p) : 0;
    }
    if (p->slices > 1 && flag >= p->flag_cut && flag < p->flag_cut + p->cut_tiles) {
        if (mutation == SLICES_NOT_AWAITED)
            return 0;
        target -= mutation == ONE_SLICE_TOO_FEW             ? MK_TILE_PARTS
                  : mutation == SLICES_OF_THE_LAUNCH_BEFORE ? MK_TILE_PARTS * p->slices
                                                            : 0;
    }
    if (mutation == EPOCH_REUSED)
        target /= cta->epoch;
    if (mutation == ONE_TILE_TOO_FEW && cause == MK_CAUSE_DATA)
        target -= MK_TILE_PARTS;
    return mk_cta_wait(cta, flag, target, cause);
}

void mutant_copy(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk)
{
    mk_cta_copy(cta, local, chunk); /* of one shot alone, which is no plan of the host's */
}

int mutant_put(struct mk_cta *cta, uint32_t rank, const struct mk_chunk *chunk, uint32_t flag)
{
    struct mk_chunk c = *chunk;
    int last = c.id % 3 == 2;
    if (mutation == LAST_UNIT_NOT_SENT && last)
        return 0;
    if (mutation == FLAG_WITHOUT_DATA && last)
        c.bytes = 0;
    if (mutation == PUT_SHORT)
        c.bytes -= 16;
    return mk_cta_put(cta, rank, &c, flag);
}

void mutant_combine(struct mk_cta *cta, const struct mk_combine *combine)
{
    struct mk_combine c = *combine;
    c.count -= mutation == ONE_SLICE_NOT_ADDED && c.space == MK_SPACE_ARG2;
    mk_cta_combine(cta, &c);
}

int mutant_drain(struct mk_cta *cta)
{
    return mutation == NO_DRAIN ? 0 : mk_cta_drain(cta);
}

static int announces_early(const struct mk_plan *plan, struct mk_cta *cta, const struct mk_tile *t,
                           uint32_t slice)
{
    gemm_rs_after(gemm_rs_plan_of(plan), cta, t, MK_TILE_PARTS);
    return 0;
}

/* Both parities in one buffer: what launch e reads, e + 1 overwrites. Or a term that is left out,
 * or is the launch before's; or a sum that is stored over flags. */
static void broken_operands(const struct mk_plan *plan, const struct mk_tile *t, uint64_t epoch,
                            struct sim_operands *out)
{
    const struct gemm_rs_plan *p = gemm_rs_plan_of(plan);
    uint64_t apart = p->staged[1] - p->staged[0];
    broken_gemm_rs.operands(plan, t, epoch, out);
    enum gemm_rs_kind kind = gemm_rs_kind_of(p, t);
    if (mutation == ONE_BUFFER && epoch % 2 && kind == GEMM_RS_PARTIAL)
        out->c -= apart;
    if (mutation == SUM_OVER_FLAGS && kind == GEMM_RS_SUM)
        out->c = 0;
    for (uint32_t level = 0; level < SIM_LEVELS; level++) {
        struct sim_terms *terms = &out->added[level];
        if (terms->count && epoch % 2 &&
            (mutation == ONE_BUFFER || mutation == TERMS_OF_THE_OTHER_LAUNCH) && !level)
            terms->source -= apart;
        if (terms->count && mutation == ONE_TERM_TOO_FEW && terms->place < terms->count)
            terms->count--;
    }
}

static struct sim_world_config config_for(uint64_t seed)
{
    static struct sim_op op;
    static const uint32_t nodes[2] = {3, 2},
                          node[2] = {1, 2}; /* between nodes a rank seldom gets a launch ahead */
    struct sim_world_config c =
        ops_config(MK_OP_GEMM_RS, mutation == ONE_BUFFER ? node : nodes, ops_shapes[0]);
    op = broken_gemm_rs;
    op.operands = broken_operands;
    if (mutation == FLAG_BEFORE_TILE) {
        op.before = announces_early;
        op.publish = NULL;
    }
    c.op = &op;
    c.seed = seed;
    c.launches = 5;
    /* three chunks, the last of one row */
    c.problem.tuning.tile_m = c.problem.tuning.chunk_rows = 16;
    c.problem.deterministic = (int)(seed & 1);
    if (mutation == PUT_HALF_ASKED) /* several tiles in a put */
        ops_many_tiles(&c);
    return c;
}

/* The last tile is cut along K. */
static struct sim_world_config config_cut(uint64_t seed)
{
    static const uint32_t node[2] = {1, 2};
    static const uint64_t shape[3] = {44, 40, 72};
    const struct sim_world_config from = ops_config(MK_OP_GEMM_RS, node, shape);
    struct sim_world_config c = config_for(seed);
    c.problem.topo = from.problem.topo;
    c.problem.m = from.problem.m;
    c.problem.k = from.problem.k;
    c.problem.tuning.split = (struct mk_role_split){.ctas = {5, 0, 0, 0}};
    c.problem.tuning.slices = 2 + seed % 3;
    return c;
}

/* A residual and a norm behind the sum. */
static struct sim_world_config config_normed(uint64_t seed)
{
    struct sim_world_config c = config_for(seed);
    c.problem.epilogue = seed & 2 ? MK_EPILOGUE_ROWS : MK_EPILOGUE_RESIDUAL;
    return c;
}

CASE(test_mutants_of_the_norm)
{
    MUTANT_OF(config_normed, NOTHING, 0);
    MUTANT_OF(config_normed, ROW_NOT_AWAITED, -EBADMSG);
    MUTANT_OF(config_normed, ROW_BUT_FOR_ONE_CTA, -EBADMSG);
    MUTANT_OF(config_normed, ROW_OF_THE_LAUNCH_BEFORE, -EBADMSG);
}

CASE(test_mutants_of_slices)
{
    MUTANT_OF(config_cut, NOTHING, 0);
    MUTANT_OF(config_cut, SLICES_NOT_AWAITED, -EBADMSG);
    MUTANT_OF(config_cut, ONE_SLICE_TOO_FEW, -EBADMSG);
    MUTANT_OF(config_cut, SLICES_OF_THE_LAUNCH_BEFORE, -EBADMSG);
    MUTANT_OF(config_cut, REDUCER_DOES_NOT_WAIT, -EBADMSG);
    MUTANT_OF(config_cut, ONE_SLICE_NOT_ADDED, -EBADMSG);
}

CASE(test_mutants)
{
    MUTANT(NOTHING, 0);
    MUTANT(FLAG_BEFORE_TILE, -EBADMSG);
    MUTANT(REDUCER_DOES_NOT_WAIT, -EBADMSG);
    MUTANT(OWNER_DOES_NOT_WAIT, -EBADMSG);
    MUTANT(EPOCH_REUSED, -EBADMSG);
    MUTANT(ONE_TILE_TOO_FEW, -EBADMSG);
    MUTANT(ONE_BUFFER, -EBADMSG);
    MUTANT(ONE_TERM_TOO_FEW, -EBADMSG);
    MUTANT(TERMS_OF_THE_OTHER_LAUNCH, -EBADMSG);
    MUTANT(NO_DRAIN, -EBADMSG);
    MUTANT(PUT_UNASKED, -EBADMSG);
    MUTANT(PUT_HALF_ASKED, -EBADMSG);
    MUTANT(PUT_SHORT, -EBADMSG);
    MUTANT(FLAG_WITHOUT_DATA, -EBADMSG);
    MUTANT(LAST_UNIT_NOT_SENT, -EIO);
    MUTANT(SUM_OVER_FLAGS, -EIO);
}

static void expect_mute(const struct sim_world_result *r)
{
    assert_int_equal(r->failure.producer, 3);
    assert_non_null(strstr(r->sentence, "rank 3 should have produced it"));
}

CASE(test_faults)
{
    ops_faults(MK_OP_GEMM_RS, ops_shapes[0], 4, expect_mute);
}

/* Ring attention reads the right K and V in every order of its steps, gives every rank the same
 * work, refuses what it cannot do with the nearest shape that works, and moves the fewest bytes;
 * broken variants of its schedule are caught. */
#include "core/mkernel.h"
#include "tests/helpers/ops.h"

#include "tests/helpers/broken_ops.h"
#define sim_op_ring_attention broken_ring_attention
#include "sim/ops/ring_attention.c"
#include "tests/helpers/unbroken_ops.h"

CASE(test_orders)
{
    assert_true(ops_explore(MK_OP_RING_ATTENTION, 24) >= 576 / OPS_PART);
}

CASE(test_bytes)
{
    ops_bytes_are_minimal(MK_OP_RING_ATTENTION, 0);
}

/* ---- the plan ---- */

static struct mk_problem problem(uint32_t nodes, uint32_t gpus, uint64_t sequence, int causal)
{
    return (struct mk_problem){.op = MK_OP_RING_ATTENTION,
                               .topo = {.nodes = nodes, .gpus = gpus},
                               .attention = {2, sequence, 6, 2, 64, causal}};
}

CASE(test_refusals)
{
    struct mk_problem q = problem(2, 2, 71, 1);
    q.attention.head_dim = 96;
    assert_non_null(strstr(ops_refusal(q), "64 and 128"));
    q.attention.head_dim = 64;
    q.attention.kv_heads = 4;
    assert_non_null(
        strstr(ops_refusal(q), "heads = 6 does not divide by 4 (G); the next that does is 8"));
    q.attention.kv_heads = 2;
    q.tuning.pieces = 65;
    assert_non_null(strstr(ops_refusal(q), "65 pieces of a chunk: 1 to 64"));
    q.tuning.pieces = 0;
    q.tuning.split = (struct mk_role_split){.ctas = {2, 1, 1, 1}};
    assert_non_null(strstr(ops_refusal(q), "no inter_reduce"));
    q.attention.batch = 0;
    assert_non_null(strstr(ops_refusal(q), "batch = 0: must be 1 to"));
}

/* Every query tile meets every shard once and stays with its CTA; each pair of rows counts once
 * over all steps, and so do all rows of the sequence over all ranks, of any length; a causal mask
 * leaves every rank the same where a zigzag split has whole blocks. */
static void cover(uint32_t nodes, uint32_t gpus, uint64_t sequence, int causal, int contiguous)
{
    const uint32_t world = nodes * gpus;
    uint64_t work_of_first = 0, pairs_of_all = 0, rows_of_all = 0;
    for (uint32_t rank = 0; rank < world; rank++) {
        struct mk_problem q = problem(nodes, gpus, sequence, causal);
        struct mk_plan plan;
        char error[300];
        q.attention.contiguous = contiguous;
        q.topo.rank = rank;
        q.tuning.tile_m = q.tuning.chunk_rows = 16;
        q.tuning.split.ctas[MK_COMPUTE] = 5;
        q.tuning.split.ctas[MK_INTRA_COMM] = q.topo.gpus > 1;
        q.tuning.split.ctas[MK_INTER_SEND] = q.topo.nodes > 1;
        assert_int_equal(plan_build(&plan, &q, 3, 4096, error, sizeof error), 0);
        const struct ring_attention_plan *p = ring_attention_plan_of(&plan);
        uint64_t pairs = 0, rows = 0;
        for (uint32_t t = 0; t < p->tiles; t++) {
            struct mk_tile tile, first;
            ring_attention_tile(p, t, &tile);
            /* A query tile's steps follow each other in its CTA, its own rank's K and V first. */
            uint32_t step = t / 5 % world;
            ring_attention_tile(p, t - step * 5, &first);
            assert_int_equal(first.slab, rank);
            assert_int_equal(tile.row, first.row);
            assert_int_equal(tile.col, first.col);
            assert_int_equal(tile.rows, first.rows);
            rows += tile.rows;
            for (uint32_t half = 0; half < p->halves && tile.rows; half++) {
                enum ring_attention_mask mask =
                    ring_attention_mask(p, ring_attention_half_of(p, tile.row), tile.slab, half);
                uint32_t all = ring_attention_half_rows(p, tile.slab, half);
                for (uint32_t i = 0; i < tile.rows; i++)
                    pairs += mask == RING_ATTENTION_ALL        ? all
                             : mask == RING_ATTENTION_DIAGONAL ? tile.row % p->half + i + 1
                                                               : 0;
            }
        }
        uint64_t begin[2], count[2];
        assert_int_equal(
            mk_ring_attention_rows(sequence, world, rank, causal, contiguous, begin, count),
            p->halves);
        assert_int_equal(rows, 12 * (count[0] + count[1]) * world);
        assert_int_equal(p->rows, count[0] + count[1]);
        for (uint32_t half = 0; half < p->halves; half++)
            if (count[half])
                assert_int_equal(begin[half],
                                 (uint64_t)ring_attention_block(p, rank, half) * p->half);
        double flop;
        uint64_t bytes[2];
        plan_work(&plan, &flop, &bytes[0], &bytes[1]);
        assert_true(flop == 4.0 * 64 * (double)pairs);
        assert_int_equal(bytes[0] + bytes[1],
                         (sequence - p->rows) * 2 * 2 * 2 * 64 * 2); /* K, V, batches, heads */
        work_of_first = rank == 0 ? pairs : work_of_first;
        if (sequence % (world * p->halves) == 0 && !(causal && contiguous))
            assert_int_equal(pairs, work_of_first);
        pairs_of_all += pairs;
        rows_of_all += p->rows;
    }
    assert_int_equal(rows_of_all, sequence);
    assert_int_equal(pairs_of_all,
                     12 * (causal ? sequence * (sequence + 1) / 2 : sequence * sequence));
}

CASE(test_cover)
{
    static const uint32_t forms[][2] = {{1, 1}, {1, 4}, {2, 2}, {3, 2}};
    for (size_t form = 0; form < 4; form++)
        for (int split = 0; split < 4; split++) {
            const uint32_t nodes = forms[form][0], gpus = forms[form][1];
            const uint64_t lengths[] = {nodes * gpus * 54ull, 1, 17, 193, 1000};
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
                cover(nodes, gpus, lengths[i], split / 2, split % 2);
        }
}

/* Where CTAs take query tiles in turn, each is taken once; of a section of heads, those with most
 * keys first. */
CASE(test_order)
{
    for (int causal = 0; causal < 2; causal++) {
        struct mk_problem q = problem(2, 2, 4 * 90 - 20, causal);
        struct mk_plan plan;
        char error[300];
        q.topo.rank = 1;
        q.tuning.tile_m = q.tuning.chunk_rows = 16;
        assert_int_equal(plan_build(&plan, &q, 3, 4096, error, sizeof error), 0);
        struct ring_attention_plan p = *ring_attention_plan_of(&plan);
        for (p.section = 1; p.section <= p.batch * p.heads; p.section++) {
            uint8_t taken[200] = {0};
            uint32_t last = UINT32_MAX, head_tiles = p.tiles_of[0] + p.tiles_of[1];
            assert_in_range(p.query_tiles, 12 * head_tiles, sizeof taken);
            for (uint32_t i = 0; i < p.query_tiles; i++) {
                uint32_t query = ring_attention_order(&p, i);
                struct ring_attention_query at = ring_attention_query(&p, query);
                uint32_t keys = ring_attention_block(&p, 1, at.half) * p.half + at.row;
                assert_true(query < p.query_tiles && !taken[query]++);
                if (i % (p.section * head_tiles) && causal)
                    assert_true(keys <= last);
                last = keys;
            }
        }
    }
}

/* On GPUs: the tile that the kernel is built for, and every SM computes; what warps push goes in
 * pieces, at a pace where products take longer; what thread blocks of their own push goes whole. */
CASE(test_gpu_plan)
{
    struct mk_problem q = problem(1, 2, 4096, 1);
    struct mk_plan p;
    char error[300];
    q.exec = MK_EXEC_CUDA;
    q.sms = 132;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    assert_int_equal(p.problem.tuning.tile_m, 128);
    assert_int_equal(p.problem.tuning.tile_n, 176);
    assert_int_equal(p.problem.tuning.split.ctas[MK_COMPUTE], 132);
    assert_int_equal(mk_total_blocks(&p.problem.tuning.split), 132);
    assert_int_equal(p.problem.tuning.chunk_rows, 1024); /* a half */
    assert_int_equal(p.problem.tuning.pieces, 8);
    assert_in_range(p.problem.tuning.pace, 512 * 264 / 338 - 79, 512 * 264 / 290 - 78);
    q.attention.sequence = 512;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    assert_int_equal(p.problem.tuning.pace, 1);
    q.attention.sequence = 4096;
    q.tuning.split = (struct mk_role_split){.ctas = {124, 8, 0, 0}};
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    assert_int_equal(p.problem.tuning.pieces, 1);
    q.tuning.split = (struct mk_role_split){{66, 66, 0, 0}, 1};
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    assert_int_equal(mk_total_blocks(&p.problem.tuning.split), 66);
    q.tuning.split.intra_comm_warps = 0; /* as many blocks of their own */
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    assert_int_equal(mk_total_blocks(&p.problem.tuning.split), 132);
    q.tuning.tile_m = 64;
    assert_non_null(strstr(ops_refusal(q), "with heads of 64 192x96 and 128x176 and 128x128 are"));
    q.tuning = (struct mk_tuning){0};
    for (int i = 0; i < 4; i++) { /* three warpgroups, where their rows do not leave CTAs idle */
        static const struct {
            uint64_t sequence, heads;
            int causal;
            uint32_t tile_m, tile_n;
        } of[] = {{16384, 32, 0, 192, 96},
                  {16384, 32, 1, 192, 96},
                  {2 * 128, 66, 0, 128, 176},
                  {8192, 32, 0, 128, 176}}; /* six waves of 192 rows, or eight of 128 */
        q.attention = (struct mk_attention){1,  of[i].sequence, of[i].heads, of[i].heads,
                                            64, of[i].causal,   0,           0};
        assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
        if (p.problem.tuning.tile_m != of[i].tile_m || p.problem.tuning.tile_n != of[i].tile_n)
            fail_msg("case %d: %u x %u", i, p.problem.tuning.tile_m, p.problem.tuning.tile_n);
    }
    q.attention = (struct mk_attention){4, 1536, 16, 16, 128, 0, 0, 0};
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    assert_int_equal(p.problem.tuning.pieces, 6); /* of 32 KB: pushing is the longer part */
    assert_int_equal(p.problem.tuning.pace, 1);
    q.attention.sequence = 12288;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    assert_int_equal(p.problem.tuning.pieces, 32);
    q.topo = (struct mk_topo){.nodes = 2, .gpus = 1};
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    assert_int_equal(p.problem.tuning.split.ctas[MK_INTER_SEND], 2);
    assert_int_equal(p.problem.tuning.split.ctas[MK_COMPUTE], 130);
}

/* Engine mma: blocks of their own push and no SM is left over; where there are too few, and of one
 * GPU, none has another role. Tiles by what fills waves. */
CASE(test_mma_plan)
{
    struct mk_problem q = problem(1, 2, 8192, 0);
    struct mk_plan p;
    char error[300];
    q.exec = MK_EXEC_CUDA;
    q.engine = MK_ENGINE_MMA;
    for (q.sms = 1; q.sms <= 200; q.sms++)
        for (uint32_t form = 0; form < 4; form++) {
            const uint32_t *ctas = p.problem.tuning.split.ctas;
            q.topo = (struct mk_topo){.nodes = 1 + form / 2, .gpus = 1 + form % 2};
            if (q.sms == 1 && q.topo.nodes > 1)
                continue;
            assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
            assert_int_equal(mk_total_blocks(&p.problem.tuning.split), q.sms);
            if (q.sms > 4)
                assert_int_equal(p.problem.tuning.split.intra_comm_warps, 0);
            if (q.sms > 4 && q.topo.gpus > 1)
                assert_true(8 * ctas[MK_INTRA_COMM] <= q.sms + 8);
        }
    q.topo = (struct mk_topo){.nodes = 1, .gpus = 2};
    q.sms = 132;
    q.tuning.split = (struct mk_role_split){{132, 396, 0, 0}, 3};
    assert_non_null(strstr(
        ops_refusal(q), "intra_comm=3w: a compute block has 2 warps for it at most on engine mma"));
    q.tuning = (struct mk_tuning){.tile_m = 192, .tile_n = 96};
    assert_non_null(
        strstr(ops_refusal(q), "not built for engine mma; with heads of 64 256x64 are"));
    q.attention.head_dim = 128;
    assert_non_null(strstr(ops_refusal(q), "with heads of 128 256x32 and 128x64 are"));
    q.tuning = (struct mk_tuning){0};
    q.attention.sequence = 16384;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    assert_int_equal(p.problem.tuning.tile_m, 256);
    q.attention.sequence = 2 * 384; /* of 256 rows a second tile would be half empty */
    q.attention.batch = 7;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    assert_int_equal(p.problem.tuning.tile_m, 128);
}

/* ---- mutants ---- */

static enum mutation {
    NOTHING,
    COMPUTE_DOES_NOT_WAIT,
    ONE_CHUNK_TOO_FEW,
    ONE_PIECE_TOO_FEW,
    FORWARDER_DOES_NOT_WAIT,
    EPOCH_REUSED,
    ONE_BUFFER,
    FLAG_BEFORE_COPY,
    PUT_BEFORE_STAGING,
    COPY_SHORT,
    LAST_CHUNK_NOT_SENT,
    FLAG_WITHOUT_DATA,
    WRONG_SHARD,
    NO_DRAIN
} mutation;

static const struct ring_attention_plan *plan_of(const struct mk_cta *cta)
{
    return ring_attention_plan_of(mutant_plan(cta));
}

/* Both parities in one buffer. */
static uint64_t fold(const struct ring_attention_plan *p, uint64_t offset)
{
    if (mutation == ONE_BUFFER && offset >= p->gathered[1] && offset < p->state)
        return offset - (p->gathered[1] - p->gathered[0]);
    return offset;
}

int mutant_wait(struct mk_cta *cta, uint32_t flag, uint64_t target, enum mk_cause cause)
{
    const struct ring_attention_plan *p = plan_of(cta);
    uint32_t chunk = (flag - p->flag_arrival) % p->chunks;
    if ((mutation == COMPUTE_DOES_NOT_WAIT && cta->role == MK_COMPUTE) ||
        (mutation == FORWARDER_DOES_NOT_WAIT && cta->role == MK_INTRA_COMM) ||
        (mutation == ONE_CHUNK_TOO_FEW && cta->role == MK_COMPUTE && chunk == p->chunks - 1))
        return 0;
    if (mutation == ONE_PIECE_TOO_FEW && cta->role == MK_COMPUTE)
        target--;
    return mk_cta_wait(cta, flag, mutation == EPOCH_REUSED ? 1 : target, cause);
}

void mutant_copy_packed(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk,
                        uint32_t rows, uint64_t pitch)
{
    struct mk_chunk c = *chunk;
    c.destination = fold(plan_of(cta), c.destination);
    c.source = c.space == MK_SPACE_HEAP ? fold(plan_of(cta), c.source) : c.source;
    if ((mutation == FLAG_BEFORE_COPY && cta->role == MK_INTRA_COMM) ||
        (mutation == PUT_BEFORE_STAGING && cta->role == MK_INTER_SEND)) {
        mutant_hold((struct mutant_held){cta, local, rows ? rows : 1, rows > 0, c, pitch, 0});
        return;
    }
    if (mutation == COPY_SHORT && rows) { /* the last row not at all */
        c.bytes -= c.bytes / rows;
        if (!--rows)
            return;
    } else if (mutation == COPY_SHORT) {
        c.bytes -= 16;
    }
    if (rows)
        mk_cta_copy_packed(cta, local, &c, rows, pitch);
    else
        mk_cta_copy(cta, local, &c);
}

void mutant_copy(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk)
{
    mutant_copy_packed(cta, local, chunk, 0, 0);
}

void mutant_add(struct mk_cta *cta, uint32_t local, uint32_t flag, uint64_t count)
{
    mk_cta_add(cta, local, flag, count);
    mutant_release(cta);
}

int mutant_drain(struct mk_cta *cta)
{
    return mutation == NO_DRAIN ? 0 : mk_cta_drain(cta);
}

int mutant_put(struct mk_cta *cta, uint32_t rank, const struct mk_chunk *chunk, uint32_t flag)
{
    const struct ring_attention_plan *p = plan_of(cta);
    struct mk_chunk c = *chunk;
    int last = c.id % p->chunks == p->chunks - 1;
    c.source = fold(p, c.source);
    c.destination = fold(p, c.destination);
    if (mutation == LAST_CHUNK_NOT_SENT && last)
        return 0;
    if (mutation == FLAG_WITHOUT_DATA && last)
        c.bytes = 0;
    if (mutation == WRONG_SHARD)
        c.destination = ring_attention_gathered(p, rank, 0, cta->epoch);
    int result = mk_cta_put(cta, rank, &c, flag);
    mutant_release(cta);
    return result;
}

static void folded_math(struct sim_cta *cta, const struct mk_tile *tile, void (*between)(void))
{
    struct mk_plan plan = *cta->rank->plan;
    struct sim_rank rank = *cta->rank;
    struct sim_cta copy = *cta;
    ring_attention_plan_in(&plan)->gathered[1] = ring_attention_plan_of(&plan)->gathered[0];
    rank.plan = &plan;
    copy.rank = &rank;
    broken_ring_attention.math(&copy, tile, between);
}

static struct sim_world_config config_for(uint64_t seed)
{
    static struct sim_op op;
    static const uint32_t form[2] = {3, 2};
    struct sim_world_config c = ops_config(MK_OP_RING_ATTENTION, form, ops_shapes[1]);
    op = broken_ring_attention;
    if (mutation == ONE_BUFFER)
        op.math = folded_math;
    memset(mutant_held, 0, sizeof mutant_held);
    c.op = &op;
    c.seed = seed;
    c.launches = 4;
    c.problem.attention.head_dim = 64;
    c.problem.attention.causal = (int)(seed & 1);
    c.problem.tuning.tile_m = c.problem.tuning.tile_n = c.problem.tuning.chunk_rows = 8;
    if (mutation == ONE_PIECE_TOO_FEW || seed & 2) {
        c.problem.tuning.chunk_rows = 16;
        c.problem.tuning.pieces = 2;
    }
    return c;
}

/* Puts of two launches under way at once, in any order: small shards, so that launches follow each
 * other fast. */
static struct sim_world_config srd_config(uint64_t seed)
{
    struct sim_world_config c = config_for(seed);
    c.problem.topo = (struct mk_topo){.nodes = 2, .gpus = 1};
    c.problem.attention = (struct mk_attention){1, 2, 1, 1, 64, 0, 0, 0};
    c.order = SIM_ORDER_SRD;
    c.launches = 12;
    return c;
}

CASE(test_mutants)
{
    MUTANT(NOTHING, 0);
    MUTANT(COMPUTE_DOES_NOT_WAIT, -EBADMSG);
    MUTANT(ONE_CHUNK_TOO_FEW, -EBADMSG);
    MUTANT(ONE_PIECE_TOO_FEW, -EBADMSG);
    MUTANT(FORWARDER_DOES_NOT_WAIT, -EBADMSG);
    MUTANT(EPOCH_REUSED, -EBADMSG);
    MUTANT(ONE_BUFFER, -EBADMSG);
    MUTANT(FLAG_BEFORE_COPY, -EBADMSG);
    MUTANT(PUT_BEFORE_STAGING, -EBADMSG);
    MUTANT(COPY_SHORT, -EBADMSG);
    MUTANT(LAST_CHUNK_NOT_SENT, -EIO);
    MUTANT(FLAG_WITHOUT_DATA, -EBADMSG);
    MUTANT(WRONG_SHARD, -EBADMSG);
    mutation = NOTHING;
    ops_hunt(srd_config, "NOTHING, over SRD", 0);
    mutation = NO_DRAIN;
    ops_hunt(srd_config, "NO_DRAIN", -EBADMSG);
}

static void expect_mute(const struct sim_world_result *r)
{
    assert_int_equal(r->failure.producer, 3);
    assert_non_null(strstr(r->sentence, "of rank 3's "));
}

CASE(test_faults)
{
    ops_faults(MK_OP_RING_ATTENTION, ops_shapes[3], 4, expect_mute);
}

/* A plan covers the product exactly once, its chunks cover A exactly once, its ids mean what they
 * say, and what it cannot do it refuses with the nearest thing that it can. */
#define OWN_MAIN
#include "core/cta/ring_host.h"
#include "core/ops/op.h"
#include "core/plan/plan.h"
#include "core/roles/ag_gemm_plan.h"

#include <time.h>

#include "tests/helpers/test.h"

static unsigned seed;

static uint32_t pick(uint32_t least, uint32_t most)
{
    return least + (uint32_t)rand_r(&seed) % (most - least + 1);
}

static struct mk_problem random_problem(void)
{
    struct mk_problem q = {.op = MK_OP_AG_GEMM, .exec = MK_EXEC_HOST};
    q.topo.nodes = pick(1, 4);
    q.topo.gpus = pick(1, 4);
    q.topo.rank = pick(0, mk_world(&q.topo) - 1);
    q.m = (uint64_t)mk_world(&q.topo) * pick(1, 60);
    q.n = 8 * pick(1, 12);
    q.k = 8 * pick(1, 9);
    if (pick(0, 3) == 0)
        return q; /* everything chosen */
    struct mk_tuning *t = &q.tuning;
    t->cluster = pick(1, 2);
    t->tile_m = 8 * pick(1, 5);
    t->tile_n = 8 * pick(1, 5);
    t->chunk_rows = t->tile_m * pick(1, 4);
    t->pieces = pick(1, 7);
    t->slices = q.topo.nodes == 1 ? pick(1, 4) : 1;
    t->fanout = q.topo.gpus > 1 ? pick(1, q.topo.gpus - 1) : 1;
    t->split.ctas[MK_COMPUTE] = t->cluster * pick(1, 4);
    t->split.ctas[MK_INTRA_COMM] = q.topo.gpus > 1 ? pick(1, 3) : 0;
    t->split.ctas[MK_INTER_SEND] = q.topo.nodes > 1 ? pick(1, 3) : 0;
    return q;
}

static struct mk_plan built(const struct mk_problem *q, uint32_t flag_base, uint64_t heap_base)
{
    struct mk_plan p;
    char error[300] = "";
    int result = plan_build(&p, q, flag_base, heap_base, error, sizeof error);
    if (result)
        print_message("%s\n", error);
    assert_int_equal(result, 0);
    return p;
}

static void check_tiles(const struct mk_plan *p)
{
    const struct ag_gemm_plan *a = ag_gemm_plan_of(p);
    uint32_t world = mk_world(&a->topo);
    uint8_t *covered = calloc((uint64_t)a->m * a->n, 1), *seen = calloc(p->tiles, 1);
    uint32_t distance_before = 0, node = mk_node_of(&a->topo, a->topo.rank);
    int own = 1;
    double flop = 0, said;
    uint64_t nvlink, network;
    for (uint32_t t = 0; t < p->tiles; t++) {
        struct mk_tile tile, described;
        ag_gemm_tile(a, t, &tile);
        assert_true(tile.id < p->tiles && !seen[tile.id]++);
        assert_true(tile.slab < world && tile.rows && tile.cols);
        assert_true(tile.rows <= a->tile_m && tile.cols <= a->tile_n);
        assert_true(tile.row + tile.rows <= a->shard_rows && tile.col + tile.cols <= a->n);
        assert_int_equal(tile.row / a->chunk_rows,
                         (tile.row + tile.rows - 1) / a->chunk_rows); /* waits for one chunk */
        assert_int_equal(tile.a, tile.slab == a->topo.rank ? MK_SPACE_ARG0 : MK_SPACE_HEAP);
        plan_describe_tile(p, tile.id, &described);
        assert_memory_equal(&tile, &described, sizeof tile);
        /* Own shard, then the node's, then node after node as the rails bring them. */
        const int is_own = tile.slab == a->topo.rank;
        assert_true(own || !is_own);
        own = is_own;
        uint32_t distance =
            (mk_node_of(&a->topo, tile.slab) + a->topo.nodes - node) % a->topo.nodes;
        assert_true(distance >= distance_before);
        distance_before = distance;
        for (uint32_t row = tile.row; row < tile.row + tile.rows; row++)
            for (uint32_t col = tile.col; col < tile.col + tile.cols; col++)
                covered[((uint64_t)tile.slab * a->shard_rows + row) * a->n + col]++;
        flop += 2.0 * tile.rows * tile.cols * a->k;
    }
    for (uint64_t i = 0; i < (uint64_t)a->m * a->n; i++)
        assert_int_equal(covered[i], 1);
    plan_work(p, &said, &nvlink, &network);
    assert_true(said == flop);
    free(covered);
    free(seen);
}

/* Marks the 16-byte units of one transfer; each belongs to one piece of one slice of one chunk of
 * one shard of one buffer. Returns its bytes. */
static uint64_t mark(const struct mk_plan *p, uint8_t *units, const struct mk_chunk *c,
                     uint32_t rows)
{
    uint64_t pitch = ag_gemm_plan_of(p)->row_bytes;
    assert_true(c->bytes % 16 == 0 && c->destination % 16 == 0 && c->source % 16 == 0);
    assert_true(!rows ||
                (c->destination >= p->heap_base &&
                 c->destination + (rows - 1) * pitch + c->bytes <= p->heap_base + p->heap_bytes));
    for (uint32_t row = 0; row < rows; row++)
        for (uint64_t at = c->destination + row * pitch, end = at + c->bytes; at < end; at += 16)
            assert_int_equal(units[(at - p->heap_base) / 16]++, 0);
    return rows * c->bytes;
}

/* Every slice of every chunk has one step; those of chunks before the tail come chunk by chunk. */
static void check_steps(const struct ag_gemm_plan *a)
{
    uint8_t *seen = calloc((size_t)a->chunks * a->slices, 1);
    for (uint32_t step = 0; step < a->chunks * a->slices; step++) {
        uint32_t chunk, slice;
        ag_gemm_step(a, step, &chunk, &slice);
        assert_true(chunk < a->chunks && slice < a->slices && !seen[chunk * a->slices + slice]++);
        assert_true(chunk + a->tail >= a->chunks || chunk == step / a->slices);
        /* A tile takes its slices in order, so that is how they come. */
        assert_true(!slice || seen[chunk * a->slices + slice - 1]);
    }
    free(seen);
}

static void check_put(const struct mk_plan *p, uint32_t shard, uint32_t chunk, uint64_t epoch)
{
    const struct ag_gemm_plan *a = ag_gemm_plan_of(p);
    struct mk_chunk whole = ag_gemm_chunk(a, shard, chunk, MK_SPACE_HEAP, epoch);
    uint32_t flag = ag_gemm_arrival_flag(a, shard, chunk, 0), parity = epoch & 1;
    struct mk_command_fields f = mk_command_decode(
        mk_command_put(shard, whole.source, whole.destination, whole.bytes, flag, parity));
    assert_int_equal(f.kind, MK_CMD_PUT);
    assert_int_equal(f.peer, shard);
    assert_int_equal(f.flag, flag);
    assert_true(f.bytes == whole.bytes && f.source == whole.source &&
                f.destination == whole.destination);
}

static void check_chunks(const struct mk_plan *p)
{
    const struct ag_gemm_plan *a = ag_gemm_plan_of(p);
    uint32_t world = mk_world(&a->topo);
    uint8_t *units = calloc(p->heap_bytes / 16 + 1, 1);
    uint64_t shard_bytes = a->shard_rows * a->row_bytes, arrived = 0, nvlink, network;
    double flop;
    assert_int_equal(p->heap_base % MK_HEAP_UNIT, 0);
    check_steps(a);
    for (uint64_t epoch = 8; epoch < 10 && world > 1; epoch++)
        for (uint32_t shard = 0; shard < world; shard++) {
            uint64_t total = 0;
            for (uint32_t chunk = 0; chunk < a->chunks; chunk++) {
                struct mk_chunk whole = ag_gemm_chunk(a, shard, chunk, MK_SPACE_ARG0, epoch);
                uint64_t moved = 0, bytes;
                uint32_t rank, number, rows;
                for (uint32_t i = 0; i < a->slices * a->pieces; i++) {
                    struct mk_chunk c = ag_gemm_piece(a, shard, chunk, i / a->pieces, i % a->pieces,
                                                      MK_SPACE_ARG0, epoch, &rows);
                    assert_true(c.destination - whole.destination == c.source - whole.source);
                    moved += mark(p, units, &c, rows);
                }
                assert_true(whole.source == total &&
                            whole.destination == ag_gemm_gathered(a, shard, 0, epoch) + total);
                plan_describe_chunk(p, shard * a->chunks + chunk, &rank, &number, &bytes);
                assert_int_equal(rank, shard);
                assert_int_equal(number, chunk);
                assert_true(bytes == moved && bytes == whole.bytes &&
                            bytes == ag_gemm_chunk_rows(a, chunk) * a->row_bytes);
                total += moved;
                check_put(p, shard, chunk, epoch);
            }
            assert_true(total == shard_bytes);
            arrived += shard == a->topo.rank ? 0 : total;
        }
    plan_work(p, &flop, &nvlink, &network);
    assert_true(world == 1 || 2 * (nvlink + network) == arrived);
    assert_true(network == (a->topo.nodes - 1) * shard_bytes);
    uint32_t rank, number;
    uint64_t bytes;
    plan_describe_chunk(p, p->chunks, &rank, &number, &bytes);
    assert_int_equal(rank, UINT32_MAX);
    free(units);
}

static void check_flags(const struct mk_plan *p)
{
    const struct ag_gemm_plan *a = ag_gemm_plan_of(p);
    uint32_t world = mk_world(&a->topo);
    uint8_t *used = calloc(p->flags, 1);
    struct mk_flag_meaning m;
    char text[96];
    for (uint32_t shard = 0; shard < world; shard++) {
        for (uint32_t chunk = 0; chunk < a->chunks; chunk++) {
            for (uint32_t slice = 0; slice < a->slices; slice++) {
                uint32_t flag = ag_gemm_arrival_flag(a, shard, chunk, slice);
                assert_true(flag >= p->flag_base && flag - p->flag_base < p->flags &&
                            !used[flag - p->flag_base]++);
                plan_describe_flag(p, flag, &m);
                snprintf(text, sizeof text, "slice %u of chunk %u of rank %u's A", slice, chunk,
                         shard);
                assert_string_equal(m.text, a->slices > 1 ? text : strstr(text, "chunk"));
                assert_int_equal(m.producer, shard);
                assert_int_equal(m.chunk, chunk);
            }
        }
    }
    for (uint32_t i = 0; i < p->flags; i++)
        assert_int_equal(used[i], 1); /* none is wasted either */
    plan_describe_flag(p, p->flag_base + p->flags, &m);
    assert_non_null(strstr(m.text, "which this plan does not have"));
    free(used);
}

CASE(every_tile_chunk_and_flag_once)
{
    for (int round = 0; round < 400; round++) {
        struct mk_problem q = random_problem();
        struct mk_plan p = built(&q, pick(0, 1000), pick(0, 100000));
        check_tiles(&p);
        check_chunks(&p);
        check_flags(&p);
    }
}

CASE(the_ranks_agree)
{
    for (int round = 0; round < 50; round++) {
        struct mk_problem q = random_problem();
        q.topo.rank = 0;
        struct mk_plan first = built(&q, 5, 4096);
        for (uint32_t r = 1; r < mk_world(&q.topo); r++) {
            q.topo.rank = r;
            struct mk_plan p = built(&q, 5, 4096);
            p.problem.topo.rank = ag_gemm_plan_in(&p)->topo.rank = 0;
            assert_memory_equal(&p, &first, sizeof p);
        }
    }
}

CASE(planning_twice_changes_nothing)
{
    for (int round = 0; round < 50; round++) {
        struct mk_problem q = random_problem();
        struct mk_plan p = built(&q, 0, 0),
                       again = built(&p.problem, 0, 0); /* what was chosen is a choice that works */
        assert_memory_equal(&p, &again, sizeof p);
    }
}

static void refuses(struct mk_problem q, const char *says)
{
    struct mk_plan p;
    char error[300] = "";
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), -EINVAL);
    if (!strstr(error, says))
        print_message("%s\n", error);
    assert_non_null(strstr(error, says));
}

/* The number after `word` in the refusal is one that works. */
static uint64_t suggested(const struct mk_problem *q, const char *word)
{
    struct mk_plan p;
    char error[300] = "";
    unsigned long long n = 0;
    if (!plan_build(&p, q, 0, 0, error, sizeof error))
        return 0;
    const char *at = strstr(error, word);
    assert_non_null(at);
    assert_int_equal(sscanf(at + strlen(word), " is %llu", &n), 1);
    return n;
}

CASE(a_refused_shape_names_the_next_that_works)
{
    for (int round = 0; round < 300; round++) {
        struct mk_problem q = random_problem();
        memset(&q.tuning, 0, sizeof q.tuning);
        q.m += pick(0, 3);
        q.n += pick(0, 9);
        q.k += pick(0, 9);
        uint64_t m = q.m, n = q.n, k = q.k, next;
        if (m % mk_world(&q.topo)) {
            next = suggested(&q, "next that does");
            assert_true(next > m && next - m < mk_world(&q.topo));
            q.m = next;
        }
        if (n % 8) {
            next = suggested(&q, "next N that works");
            assert_true(next > n && next - n < 8);
            q.n = next;
        }
        if (k % 8) {
            next = suggested(&q, "next K that works");
            assert_true(next > k && next - k < 8);
            q.k = next;
        }
        built(&q, 0, 0);
    }
}

/* What is moved has the bytes of its type, and rows of whole 16 bytes. */
CASE(what_moves_has_the_bytes_of_its_dtype)
{
    static const enum mk_op ops[] = {MK_OP_ALL_GATHER, MK_OP_ALL_TO_ALL};
    for (int i = 0; i < 2; i++) {
        uint64_t nvlink[MK_PLAN_DTYPES], network[MK_PLAN_DTYPES];
        for (int dtype = 0; dtype < MK_PLAN_DTYPES; dtype++) {
            struct mk_problem q = {.op = ops[i], .topo = {2, 2, 1}, .m = 64, .k = 80};
            uint64_t bytes[MK_SPACES - 1];
            double flop;
            plan_set_dtype(&q, dtype);
            assert_int_equal(plan_dtype(&q), dtype);
            struct mk_plan p = built(&q, 0, 0);
            plan_work(&p, &flop, &nvlink[dtype], &network[dtype]);
            op_extents(&q, bytes);
            assert_int_equal(bytes[0], 16 * 80 * (dtype > 1 ? 1 : 2));
            q.k = 72;
            if (dtype > 1)
                refuses(q, "K = 72: rows must be 16-byte multiples; the next K that works is 80");
            else
                built(&q, 0, 0);
        }
        assert_true(nvlink[0] && network[0]);
        for (int dtype = 1; dtype < MK_PLAN_DTYPES; dtype++) {
            const uint64_t times = dtype > 1 ? 2 : 1; /* fp16 is as long as bf16 */
            assert_true(nvlink[0] == times * nvlink[dtype] && network[0] == times * network[dtype]);
        }
    }
}

CASE(fp16_is_refused_where_it_cannot_be)
{
    struct mk_problem ok = {.op = MK_OP_GEMM_RS,
                            .exec = MK_EXEC_CUDA,
                            .sms = 132,
                            .topo = {1, 2, 1},
                            .m = 512,
                            .n = 512,
                            .k = 512,
                            .fp16 = 1},
                      q;
    struct mk_plan p;
    char error[300];
    for (int op = 0; op < MK_OPS; op++)
        for (int engine = 0; engine < MK_ENGINES; engine++) { /* its tile is built */
            q = ok, q.op = (uint32_t)op, q.engine = (enum mk_engine)engine;
            q.attention = (struct mk_attention){1, 512, 2, 2, 64, 0, 0, 0};
            q.moe = (struct mk_moe){64, 512, 512, 8, 2};
            assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error),
                             op_has_fp16((enum mk_op)op) ? 0 : -EINVAL);
            if (!op_has_fp16((enum mk_op)op))
                assert_non_null(strstr(error, "fp16 is for ag_gemm, gemm_ar, gemm_rs, all_gather, "
                                              "all_to_all and reduce_scatter"));
        }
    q = ok, q.deterministic = MK_EVERYWHERE;
    refuses(q, "the same bits everywhere with dtype=fp16: of gemm_rs it is for bf16");
    q = ok, q.tuning.shots = 2, q.tuning.tile_m = q.tuning.tile_n = 128;
    refuses(q, "no GPU kernel is built for tiles of 128x128 on 1 CTAs; tiles that there are: "
               "256x256 on 2, 128x64 on 1");
    q = ok, q.m = 16384, q.deterministic = 1;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    assert_int_equal(p.problem.tuning.tile_n, 64);
    q.deterministic = 0;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    assert_int_equal(p.problem.tuning.tile_n, 256);
}

CASE(fp8_is_refused_where_it_cannot_be)
{
    struct mk_problem ok = {.op = MK_OP_AG_GEMM,
                            .topo = {1, 2, 1},
                            .m = 64,
                            .n = 64,
                            .k = 144,
                            .b_transposed = 1,
                            .fp8 = 1},
                      q;
    built(&ok, 0, 0);
    q = ok, q.fp8 = 0, q.bytes = 1;
    refuses(q, "dtype=bytes: ag_gemm computes; bytes are for ");
    q = ok, q.b_transposed = 0;
    refuses(q, "B has to be [N,K]");
    q = ok, q.k = 136;
    refuses(q, "the next K that works is 144");
    q = ok, q.m = 60; /* 30 rows of a rank, which 4 does not divide */
    built(&q, 0, 0);
    q.tuning.shots = 1;
    refuses(q, "4 rows of each of 2 ranks; two shots take it");
    q.tuning.shots = 0, q.m = 6, q.exec = MK_EXEC_CUDA, q.sms = 132;
    assert_int_equal(built(&q, 0, 0).problem.tuning.shots, 2);
    q.m = 8;
    assert_int_equal(built(&q, 0, 0).problem.tuning.shots, 1);
    q = ok, q.fp8 = 0, q.b_columns = 1;
    refuses(q, "b_scales=columns with dtype=bf16: scales are of dtype=fp8");
    q = ok, q.topo = (struct mk_topo){2, 1, 1};
    built(&q, 0, 0);
    q = ok, q.op = MK_OP_RING_ATTENTION;
    q.attention = (struct mk_attention){
        .batch = 1, .sequence = 64, .heads = 2, .kv_heads = 2, .head_dim = 64};
    refuses(q, "ring_attention takes bf16 alone; fp8 is for ");
    q = ok, q.exec = MK_EXEC_CUDA, q.sms = 132, q.engine = MK_ENGINE_MMA;
    built(&q, 0, 0);
    q.op = MK_OP_GEMM_RS;
    built(&q, 0, 0);
    q = ok, q.exec = MK_EXEC_CUDA, q.sms = 132, q.tuning.tile_m = 128, q.tuning.tile_n = 256;
    q.tuning.shots = 2;
    refuses(q, "no GPU kernel is built for tiles of 128x256 on 1 CTAs; tiles that there are: "
               "256x256 on 2, 256x128 on 2, 128x128 on 1, 128x64 on 1");
}

CASE(what_cannot_be_is_refused)
{
    struct mk_problem ok = {.op = MK_OP_AG_GEMM, .topo = {2, 2, 3}, .m = 64, .n = 64, .k = 64}, q;
    built(&ok, 0, 0);
    q = ok, q.m = 0;
    refuses(q, "must be 1 to");
    q = ok, q.k = (uint64_t)1 << 32;
    refuses(q, "must be 1 to");
    q = ok, q.topo.rank = 4;
    refuses(q, "2 nodes of 2 ranks");
    q = ok, q.topo.gpus = MK_MAX_LOCAL + 1;
    refuses(q, "1 to 16 ranks a node");
    q = ok, q.topo.nodes = 1u << 31, q.topo.gpus = 2;
    refuses(q, "at most 4096 in all");
    q = ok, q.op = MK_OPS;
    refuses(q, "unknown op has no schedule");
    q = ok, q.tuning.split.ctas[MK_COMPUTE] = 1;
    refuses(q, "at least 1 intra_comm");
    q = ok, q.tuning.split = (struct mk_role_split){.ctas = {1, 1, 33, 0}};
    refuses(q, "32 command rings");
    q = ok, q.tuning.split = (struct mk_role_split){.ctas = {1, 1, 1, 1}};
    refuses(q, "no inter_reduce");
    q = ok, q.topo.nodes = 1, q.topo.rank = 0,
    q.tuning.split = (struct mk_role_split){.ctas = {1, 1, 1, 0}};
    refuses(q, "no inter_send");
    q = ok, q.tuning.tile_m = 12;
    refuses(q, "tiles are multiples of 8");
    q = ok, q.tuning.tile_m = 16, q.tuning.chunk_rows = 24;
    refuses(q, "chunks of tiles");
    q = ok, q.tuning.pieces = 65;
    refuses(q, "1 to 64");
    q = ok, q.op = MK_OP_GEMM_RS, q.tuning.pieces = 2;
    built(&q, 0, 0);
    q.topo = (struct mk_topo){.nodes = 1, .gpus = 2};
    refuses(q, "gemm_rs puts pieces of tiles to other nodes, and there is one node: pieces is 1");
    q = ok, q.tuning.cluster = 3;
    refuses(q, "1 or 2");
    q = ok, q.tuning.split = (struct mk_role_split){.ctas = {1, 1, 1u << 31, 0}};
    refuses(q, "2147483648 inter_send CTAs: at most 65535");
    q = ok, q.op = MK_OP_GEMM_RS, q.tuning.tile_m = 1u << 31, q.tuning.tile_n = 1u << 31;
    refuses(q, "at most 16777216 each way"); /* 2^64 bytes are not none */
    q = ok, q.exec = MK_EXEC_CUDA, q.sms = 132, q.tuning.cluster = 1u << 25;
    refuses(q, "clusters of 33554432");
    q = ok, q.exec = MK_EXEC_CUDA, q.sms = 4;
    q.tuning.split = (struct mk_role_split){.ctas = {3, 1, 1, 0}};
    q.tuning.cluster = 1;
    refuses(q, "5 thread blocks in clusters of 1 on a GPU of 4 SMs");
    /* the sentence names the tiles of core/plan/gemm_tiles.h, all of them */
    for (int i = 0; i < 2; i++) {
        q = ok, q.op = i ? MK_OP_GEMM_RS : MK_OP_AG_GEMM, q.exec = MK_EXEC_CUDA, q.sms = 132;
        q.tuning.tile_m = q.tuning.tile_n = 64;
        refuses(q, "no GPU kernel is built for tiles of 64x64 on 1 CTAs; tiles that there are: "
                   "256x256 on 2, "
                   "256x128 on 2, 128x128 on 1, 128x64 on 1");
    }
    q = ok, q.op = MK_OP_GEMM_RS, q.exec = MK_EXEC_CUDA, q.sms = 132;
    q.tuning.split = (struct mk_role_split){.ctas = {16, 0, 2, 0}};
    built(&q, 0, 0);
    q.op = MK_OP_GEMM_AR;
    q.tuning.split = (struct mk_role_split){{16, 48, 2, 0}, 3}; /* one sends tiles */
    refuses(q, "3 CTAs beside each compute CTA: on a GPU gemm_ar has room for 2");
    q.tuning.split.intra_comm_warps = 2;
    refuses(q, "48 intra_comm CTAs, 2 in each of 16 compute blocks: not the same number");
    q.tuning.split = (struct mk_role_split){.ctas = {128, 128, 2, 0}};
    refuses(q, "at once; as warps of compute blocks they are intra_comm=1w");
    q.tuning.split = (struct mk_role_split){{16, 16, 2, 0}, 1};
    struct mk_plan p = built(&q, 0, 0);
    assert_int_equal(mk_total_blocks(&p.problem.tuning.split), 18);
    q.tuning.split.intra_comm_warps = 0; /* as many, in blocks of their own */
    p = built(&q, 0, 0);
    assert_int_equal(mk_total_blocks(&p.problem.tuning.split), 34);
    q.op = MK_OP_AG_GEMM, q.tuning.split = (struct mk_role_split){{16, 64, 2, 0}, 4};
    refuses(q, "intra_comm=4w: a compute block has 3 warps for it at most");
    q.op = MK_OP_MOE_DISPATCH_GEMM, q.moe = (struct mk_moe){64, 512, 512, 32, 2};
    q.tuning = (struct mk_tuning){.split = {{16, 16, 2, 0}, 1}};
    refuses(q, "intra_comm=1w: CTAs of moe_dispatch_gemm have thread blocks of their own");
}

/* Two CTAs that split K: a plan that has them, and each thing that does not go with them. */
CASE(split_k)
{
    const struct mk_problem q = {.op = MK_OP_GEMM_AR,
                                 .exec = MK_EXEC_CUDA,
                                 .engine = MK_ENGINE_WGMMA,
                                 .sms = 132,
                                 .topo = {.nodes = 1, .gpus = 2},
                                 .m = 256,
                                 .n = 4096,
                                 .k = 4096,
                                 .b_transposed = 1,
                                 .tuning = {.split_k = 2}};
    struct mk_problem other = q;
    struct mk_plan p = built(&q, 0, 0);
    assert_int_equal(p.problem.tuning.cluster, 2);
    assert_int_equal(p.problem.tuning.tile_m, 128);
    assert_int_equal(p.problem.tuning.tile_n, 128);
    assert_int_equal(p.problem.tuning.split.ctas[MK_COMPUTE], 132);
    other.op = MK_OP_GEMM_RS;
    p = built(&other, 0, 0);
    assert_int_equal(p.problem.tuning.cluster, 2);
#define REFUSED(field, value, says)                                                                \
    other = q;                                                                                     \
    other.field = value;                                                                           \
    refuses(other, says)
    REFUSED(op, MK_OP_AG_GEMM, "of an operator that has none: split-k is 1");
    REFUSED(fp8, 1, "of FP8: split-k is 1");
    REFUSED(fp16, 1, "of fp16: split-k is 1");
    REFUSED(engine, MK_ENGINE_MMA, "on engine mma: split-k is 1");
    REFUSED(deterministic, 1, "with sums in a fixed order: split-k is 1");
    REFUSED(tuning.shots, 2, "in two shots: split-k is 1");
    REFUSED(tuning.tile_n, 64, "tiles of 128x64 on 2 CTAs");
    REFUSED(tuning.split, ((struct mk_role_split){.ctas = {5, 5, 0, 0}}),
            "compute CTAs and tile rows");
#undef REFUSED
    other = q;
    other.exec = MK_EXEC_HOST;
    other.engine = MK_ENGINE_DEVICE;
    other.sms = 0;
    refuses(other, "(split-k) on the host: split-k is 1");
}

/* Tiles of 192 columns: the default of one shot where they are one wave and tiles of 128 are more; refused with whatever has no
 * kernel of them. */
CASE(middle_tile)
{
    const struct mk_problem q = {.op = MK_OP_GEMM_AR,
                                 .exec = MK_EXEC_CUDA,
                                 .engine = MK_ENGINE_WGMMA,
                                 .sms = 132,
                                 .topo = {.nodes = 1, .gpus = 2},
                                 .m = 768,
                                 .n = 4096,
                                 .k = 4096};
    static const struct {
        uint32_t op, m, n, tile_n;
    } of[] = {{MK_OP_GEMM_AR, 768, 4096, 192},  {MK_OP_GEMM_AR, 384, 8192, 192},
              {MK_OP_GEMM_AR, 640, 4096, 192},  {MK_OP_GEMM_AR, 512, 4096, 128},
              {MK_OP_GEMM_AR, 1024, 4096, 128}, {MK_OP_GEMM_AR, 768, 8192, 128},
              {MK_OP_AG_GEMM, 384, 8192, 192},  {MK_OP_GEMM_RS, 640, 4096, 192},
              {MK_OP_GEMM_RS, 384, 8192, 192},  {MK_OP_GEMM_RS, 512, 4096, 128}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct mk_problem one = q;
        one.op = of[i].op;
        one.m = of[i].m;
        one.n = of[i].n;
        assert_int_equal(built(&one, 0, 0).problem.tuning.tile_n, of[i].tile_n);
        one.deterministic = MK_DETERMINISTIC;
        assert_int_not_equal(built(&one, 0, 0).problem.tuning.tile_n, 192);
    }
    struct mk_problem other = q;
    other.m = 384, other.n = 8192; /* 129 tiles of 192 columns: two waves of 128 CTAs */
    other.tuning.split = (struct mk_role_split){{128, 128}, 1};
    assert_int_equal(built(&other, 0, 0).problem.tuning.tile_n, 128);
    other.m = 256; /* one wave of tiles of 128 columns on 132 SMs, but not of 100 CTAs */
    assert_int_equal(built(&q, 0, 0).problem.tuning.tile_n, 192);
    other.tuning.split = (struct mk_role_split){{100, 100}, 1};
    assert_int_equal(built(&other, 0, 0).problem.tuning.tile_n, 192);
    other = q;
    other.op = MK_OP_GEMM_RS; /* its shots are asked for, or its tile */
    other.tuning.shots = 2;
    assert_int_not_equal(built(&other, 0, 0).problem.tuning.tile_n, 192);
#define REFUSED(field, value)                                                                      \
    other = q;                                                                                     \
    other.tuning.tile_m = 128;                                                                     \
    other.tuning.tile_n = 192;                                                                     \
    other.field = value;                                                                           \
    refuses(other, "no GPU kernel is built for tiles of 128x192 on 1 CTAs")
    REFUSED(deterministic, MK_DETERMINISTIC);
    REFUSED(fp16, 1);
    REFUSED(engine, MK_ENGINE_MMA);
    REFUSED(tuning.shots, 2);
    REFUSED(tuning.shots, 3);
#undef REFUSED
}

/* Columns of moe_dispatch_gemm's tiles by default, as two H200s say (docs/FIGURES.md): 128 where few rows leave a second wave of
 * 256 nearly empty. */
CASE(moe_columns)
{
    static const struct {
        uint64_t tokens, hidden, inner, experts, k;
        uint32_t tile_n;
    } of[] = {{1, 7168, 2048, 32, 8, 256},   {4, 7168, 2048, 32, 8, 128},
              {128, 7168, 2048, 32, 8, 128}, {256, 7168, 2048, 32, 8, 256},
              {16, 7168, 2048, 64, 8, 256},  {16, 4096, 14336, 8, 2, 256},
              {16, 4096, 1536, 64, 8, 128},  {512, 4096, 1536, 64, 8, 256}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        const struct mk_problem q = {.op = MK_OP_MOE_DISPATCH_GEMM,
                                     .exec = MK_EXEC_CUDA,
                                     .engine = MK_ENGINE_WGMMA,
                                     .sms = 132,
                                     .topo = {.nodes = 1, .gpus = 2},
                                     .moe = {.tokens = of[i].tokens,
                                             .hidden = of[i].hidden,
                                             .inner = of[i].inner,
                                             .experts = of[i].experts,
                                             .k = of[i].k}};
        assert_int_equal(built(&q, 0, 0).problem.tuning.tile_n, of[i].tile_n);
    }
}

/* At the edge of what a command can name: in, or refused; never narrowed. */
/* Between nodes: pieces have rows, warps without one do not slow the others' pace, and one block
 * stages where NVLink takes longer than it. */
CASE(few_rows_between_nodes)
{
    struct mk_problem q = {.op = MK_OP_AG_GEMM,
                           .exec = MK_EXEC_CUDA,
                           .sms = 132,
                           .topo = {.nodes = 4, .gpus = 8},
                           .m = 6 * 32,
                           .n = 128,
                           .k = 16384};
    struct mk_plan p = built(&q, 0, 0);
    assert_int_equal(p.problem.tuning.pieces, 6);
    assert_int_equal(p.problem.tuning.pace, 512 * 7 * 6 / 375);
    assert_int_equal(p.problem.tuning.split.ctas[MK_INTER_SEND], 1);
    q.topo.gpus = 1;
    p = built(&q, 0, 0);
    assert_int_equal(p.problem.tuning.split.ctas[MK_INTER_SEND], 2);
    q.topo = (struct mk_topo){.nodes = 1, .gpus = 4};
    q.m = 16384;
    p = built(&q, 0, 0);
    assert_in_range(p.problem.tuning.pace, 512 * 264 / 375, 512 * 264 / 375 + 1);
}

CASE(encoding_limits)
{
    struct mk_problem q = {.op = MK_OP_AG_GEMM, .topo = {2, 1, 0}, .m = 128, .n = 64, .k = 64};
    struct mk_plan p = built(&q, 0, 0), edge;
    char error[300];
    uint32_t flags = p.flags;
    uint64_t heap = p.heap_bytes;
    assert_int_equal(plan_build(&edge, &q, MK_CMD_MAX_FLAG - flags, 0, error, sizeof error), 0);
    assert_int_equal(plan_build(&edge, &q, MK_CMD_MAX_FLAG - flags + 1, 0, error, sizeof error),
                     -EINVAL);
    assert_non_null(strstr(error, "more than a command can name"));
    assert_int_equal(plan_build(&edge, &q, 0, MK_CMD_MAX_OFFSET - heap, error, sizeof error), 0);
    check_put(&edge, 1, 0, 7);
    assert_int_equal(plan_build(&edge, &q, 0, MK_CMD_MAX_OFFSET - heap + 128, error, sizeof error),
                     -EINVAL);
    assert_int_equal(plan_build(&edge, &q, 0, UINT64_MAX - 64, error, sizeof error), -EINVAL);
    /* A chunk may be asked for larger than the shard: it is as large as the shard then. */
    struct mk_problem wide = {
        .op = MK_OP_AG_GEMM, .topo = {2, 1, 0}, .m = 16, .n = (1u << 30) - 8, .k = 8};
    wide.tuning.tile_m = wide.tuning.tile_n = 8;
    wide.tuning.chunk_rows = 8u << 20;
    p = built(&wide, 0, 0);
    assert_true((uint64_t)ag_gemm_plan_of(&p)->chunk_tiles == mk_ceil_div(wide.n, 8));
    assert_int_equal(ag_gemm_plan_of(&p)->chunks, 1);
    /* Chunks of 2^32 tiles. */
    wide = (struct mk_problem){
        .op = MK_OP_AG_GEMM, .topo = {1, 2, 0}, .m = 1u << 20, .n = 1u << 19, .k = 128};
    wide.tuning.tile_m = wide.tuning.tile_n = 8;
    wide.tuning.chunk_rows = 1u << 19;
    refuses(wide, "more than a command can name");
    /* One chunk of 8 rows: 2^24 - 1 units of 16 bytes are the most. */
    q.tuning.tile_m = q.tuning.chunk_rows = 8;
    q.k = MK_CMD_MAX_BYTES / 2 / 8 / 8 * 8;
    built(&q, 0, 0);
    q.k += 8;
    refuses(q, "more than a command can name");
}

/* Shapes of any size are planned or refused; what is planned is consistent. (Undefined behaviour is
 * the sanitizer's.) */
CASE(huge_shapes)
{
    for (int round = 0; round < 3000; round++) {
        struct mk_problem q = random_problem();
        uint32_t world = mk_world(&q.topo), shift = pick(0, 30);
        q.m = (uint64_t)world * pick(1, (1u << 30) / world) >> shift;
        q.m = mk_round_up(q.m + 1, world);
        q.n = mk_round_up(pick(1, 1u << 30) >> pick(0, 27), 8);
        q.k = mk_round_up(pick(1, 1u << 30) >> pick(0, 30), 8);
        if (q.tuning.tile_m && pick(0, 1))
            q.tuning.chunk_rows = q.tuning.tile_m * pick(1, UINT32_MAX / 2 / q.tuning.tile_m);
        struct mk_plan p;
        char error[300] = "";
        if (plan_build(&p, &q, 0, 0, error, sizeof error)) {
            assert_int_not_equal(strlen(error), 0);
            continue;
        }
        const struct ag_gemm_plan *a = ag_gemm_plan_of(&p);
        assert_true(a->chunk_tiles > 0 && a->shard_tiles > 0);
        assert_true((uint64_t)a->shard_tiles * world + a->halved == p.tiles);
        for (uint32_t i = 0; i < 20; i++) {
            uint32_t t = i < 10 ? p.tiles - 1 - i % p.tiles : pick(0, p.tiles - 1);
            struct mk_tile tile, described;
            ag_gemm_tile(a, t, &tile);
            assert_true(tile.id < p.tiles && tile.slab < world);
            assert_true(tile.rows && tile.row + tile.rows <= a->shard_rows);
            assert_true(tile.cols && tile.col + tile.cols <= a->n);
            plan_describe_tile(&p, tile.id, &described);
            assert_memory_equal(&tile, &described, sizeof tile);
        }
        if (q.topo.nodes > 1)
            check_put(&p, world - 1, a->chunks - 1, 3);
    }
}

CASE(names)
{
    for (int op = 0; op < MK_OPS; op++)
        assert_int_equal(plan_op_by_name(plan_op_name((enum mk_op)op)), op);
    assert_int_equal(plan_op_by_name("gemm"), -EINVAL);
    assert_string_equal(plan_role_name(MK_INTER_SEND), "inter_send");
    assert_string_equal(plan_role_name((enum mk_role)99), "unknown role");
    assert_string_equal(plan_cause_name(MK_CAUSE_BACKPRESSURE), "back-pressure");
    assert_string_equal(plan_cause_name((enum mk_cause)99), "unknown cause");
}

static void more_buffers(struct mk_plan *p, struct op_tables *t)
{
    static uint64_t at[2];
    for (uint32_t i = 0; i <= OP_MOST_BUFFERS; i++)
        OP_BUFFERS(t, {"a buffer", at, 2, 1, 1});
}

static void more_flags(struct mk_plan *p, struct op_tables *t)
{
    static uint32_t first;
    for (uint32_t i = 0; i <= OP_MOST_FLAGS; i++)
        OP_FLAGS(t, {.first = &first, .text = "a flag"});
}

/* An operator's tables that do not fit end the plan, and not the program. */
CASE(tables_too_long_are_refused)
{
    struct op_descriptor op = {.tables = more_buffers};
    struct mk_plan p = {.problem = {.op = MK_OP_AG_GEMM}};
    char error[300];
    assert_int_equal(plan_lay_out(&op, &p, 1, 0, error, sizeof error), -EINVAL);
    assert_string_equal(error, "ag_gemm lists 41 buffers and 0 arrays of flags: at most 40 and 16");
    op.tables = more_flags;
    assert_int_equal(plan_lay_out(&op, &p, 1, 0, error, sizeof error), -EINVAL);
    assert_string_equal(error, "ag_gemm lists 0 buffers and 17 arrays of flags: at most 40 and 16");
}

int main(void)
{
    seed = (unsigned)time(NULL);
    if (getenv("SEED"))
        seed = (unsigned)strtoul(getenv("SEED"), NULL, 10);
    print_message("SEED=%u repeats this run\n", seed);
    return cmocka_run_group_tests(test_cases, NULL, NULL);
}

/* Ring attention, O = softmax(Q K^T / sqrt(D)) V over the K and V of all ranks: what it is, which
 * shapes it takes, and where everything lies. */
#include "core/plan/attention_shards.h"
#include "core/plan/attention_tiles.h"
#include "core/cta/command.h"
#include "core/plan/gemm_tiles.h"
#include "core/mkernel.h"
#include "core/ops/op.h"
#include "core/plan/pipeline.h"
#include "core/roles/ring_attention_plan.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* What the GPU's kernels multiply at a time; and what a block could have of shared memory where a
 * CTA is two blocks of such tiles: 0: it is one. */
struct tile {
    uint32_t rows, keys, pair;
};

static const struct {
    uint32_t dim;
    struct tile tile;
    enum mk_engine engine;
} gpu_tiles[] = {
#define TILE(most, keys, groups, stages, own) {most, {64 * groups, keys, 0}, MK_ENGINE_WGMMA},
    MK_RING_ATTENTION_TILES(TILE)
#undef TILE
#define PAIR(most, keys, warps, blocks, held)                                                      \
    {most,                                                                                         \
     {16 * warps * blocks, keys, MK_MMA_ATTENTION_PAIR(most, keys, warps, blocks)},                \
     MK_ENGINE_MMA},
#define TILE(most, keys, warps, blocks, held) {most, {16 * warps * blocks, keys, 0}, MK_ENGINE_MMA},
        MK_MMA_ATTENTION_PAIRS(PAIR) MK_MMA_ATTENTION_TILES(TILE)
#undef TILE
#undef PAIR
};

/* Keys that are multiplied at a time where a row's bits are the same everywhere. */
static uint32_t ring_attention_same_keys(const struct mk_problem *q)
{
    return q->engine == MK_ENGINE_MMA ? MK_SAME_KEYS_MMA : MK_SAME_KEYS;
}

/* The i-th for the problem's heads on its engine and GPU, of the keys that its sums take; NULL:
 * there are fewer. A tile is paired where it can be: where there is shared memory, and no others
 * have SMs of the GPU, which all would hold one of the blocks. */
static const struct tile *ring_attention_tile_of(const struct mk_problem *q, uint32_t i)
{
    int mma = q->engine == MK_ENGINE_MMA;
    const struct tile *pair = NULL;
    for (size_t at = 0; at < sizeof gpu_tiles / sizeof *gpu_tiles; at++) {
        const struct tile *tile = &gpu_tiles[at].tile;
        if (gpu_tiles[at].dim != q->attention.head_dim ||
            (gpu_tiles[at].engine == MK_ENGINE_MMA) != mma ||
            (q->deterministic == MK_EVERYWHERE && tile->keys != ring_attention_same_keys(q)) ||
            (tile->pair && (q->sms_most || q->block_shared < tile->pair)) ||
            (pair && pair->rows == tile->rows && pair->keys == tile->keys))
            continue;
        if (!i--)
            return tile;
        if (tile->pair)
            pair = tile;
    }
    return NULL;
}

static int ring_attention_built(const struct mk_problem *q, uint32_t i, struct mk_gemm_tile *out)
{
    const struct tile *tile = ring_attention_tile_of(q, i);
    if (tile)
        *out = (struct mk_gemm_tile){tile->rows, tile->keys, 1};
    return tile != NULL;
}

/* How long a GPU's tiles take in all, as rows of one after the other. Tiles of more rows hide
 * softmax better. Of engine wgmma three warpgroups: it was 1.07 of cuDNN with three and .96 at best
 * with two (heads of 64, 8192 rows). Of engine mma those of which a warp has 32 rows: .975 of
 * FlashAttention-2 where 16 had .915 (heads of 128), and pairs of blocks of such 1.126. With a mask
 * the last tiles are short ones, and fill waves. */
static double ring_attention_rows_in_turn(const struct mk_problem *q, const struct tile *tile)
{
    const struct mk_attention *a = &q->attention;
    uint64_t halves = mk_attention_halves(a),
             half = mk_ceil_div(a->sequence, mk_world(&q->topo) * halves),
             tiles = a->batch * a->heads * halves * mk_ceil_div(half, tile->rows);
    const uint32_t blocks = tile->pair ? 2 : 1; /* share the tensor cores */
    double waves = (double)tiles / ((q->sms ? q->sms : 1) * blocks), rows = tile->rows * blocks;
    return (a->causal && waves > 1 ? waves : ceil(waves)) * rows *
           (tile->pair         ? .87
            : tile->rows > 128 ? 1
                               : 1.08);
}

static struct tile ring_attention_gpu_tile(const struct mk_problem *q)
{
    struct tile best = {0};
    const struct tile *tile;
    for (uint32_t i = 0; (tile = ring_attention_tile_of(q, i)); i++)
        if (!best.rows ||
            ring_attention_rows_in_turn(q, tile) < ring_attention_rows_in_turn(q, &best))
            best = *tile;
    return best;
}

static int ring_attention_paired(const struct mk_problem *q)
{
    const struct tile *tile;
    for (uint32_t i = 0; q->exec == MK_EXEC_CUDA && (tile = ring_attention_tile_of(q, i)); i++)
        if (q->tuning.tile_m == tile->rows && q->tuning.tile_n == tile->keys)
            return tile->pair != 0;
    return 0;
}

static int ring_attention_check_gpu(const struct mk_problem *q, char *error, size_t size)
{
    const struct mk_tuning *t = &q->tuning;
    const struct tile *tile;
    char built[64] = "";
    for (uint32_t i = 0; (tile = ring_attention_tile_of(q, i)); i++) {
        if (t->tile_m == tile->rows && t->tile_n == tile->keys)
            return 0;
        mk_append(built, sizeof built, "%s%ux%u", i ? " and " : "", tile->rows, tile->keys);
    }
    return plan_refuse(error, size,
                       "tiles of %u x %u are not built for %s; with heads of %lu %s are", t->tile_m,
                       t->tile_n, q->engine == MK_ENGINE_MMA ? "engine mma" : "the GPU",
                       q->attention.head_dim, built);
}

/* Of a head and K or V: half a megabyte with heads of 128. A flag for each, and warps that push
 * pieces of it: larger ones where pushing is the longer part, since a warp pushes nothing while a
 * piece's flag settles. (The simulator: 97 us where 16 KB take 104, 2 GPUs, 768 rows a rank, and
 * less at each of 18 such cases. No GPU has measured it.) */
enum { GPU_CHUNK_ROWS = 2048, GPU_PIECE_BYTES = 16384, GPU_LONG_PIECE_BYTES = 32768 };

/* Heads whose tiles CTAs take at one time: those that share K and V, times as many as keep all CTAs
 * busy, since more would want what has not come yet; and no more than fit in L2 (50 MB, which Q and
 * O pass through too). */
static uint32_t ring_attention_section_of(const struct mk_attention *a, uint32_t ctas,
                                          uint32_t head_tiles)
{
    uint64_t group = a->heads / a->kv_heads, fit = (32u << 20) / (4 * a->sequence * a->head_dim),
             n = mk_ceil_div(ctas, group * head_tiles);
    n = n < fit ? n : fit;
    n = group * (n ? n : 1);
    return (uint32_t)(n < a->batch * a->heads ? n : a->batch * a->heads);
}

/* Bytes that a rank pushes, and ns that its products take on a GPU. */
static double ring_attention_pushed_bytes(const struct mk_problem *q)
{
    const struct mk_attention *a = &q->attention;
    return 4 * (double)a->batch * (double)a->sequence / mk_world(&q->topo) * (double)a->kv_heads *
           (double)a->head_dim * q->topo.nodes * (q->topo.gpus - 1);
}

static double ring_attention_multiply_ns(const struct mk_problem *q)
{
    const struct mk_attention *a = &q->attention;
    double rows = (double)a->sequence / mk_world(&q->topo);
    return 4 * (double)a->batch * (double)a->heads * rows * (double)a->sequence *
           (double)a->head_dim / (a->causal ? 2 : 1) / 600e3;
}

static int ring_attention_communication_bound(const struct mk_problem *q)
{
    return ring_attention_pushed_bytes(q) / PLAN_NVLINK_RATE > ring_attention_multiply_ns(q);
}

/* What is pushed slows the engine's loads, the more the faster it goes: at 3072 rows a rank two
 * H200s were fastest where all warps together were asked for 290 bytes per ns, of which they move
 * five sixths. More where all would else not be out in time, and as much as they can where pushing
 * is the longer part. A piece's flag takes PIECE_FLAG_NS more, in which its warp pushes nothing. */
static uint32_t ring_attention_choose_pace(const struct mk_problem *q)
{
    enum { PIECE_FLAG_NS = 2500 };
    const struct mk_role_split *split = &q->tuning.split;
    double rate = ring_attention_pushed_bytes(q) / (0.8 * ring_attention_multiply_ns(q));
    rate = rate < PLAN_PUSH_LEAST ? PLAN_PUSH_LEAST : rate > PLAN_PUSH_RATE ? PLAN_PUSH_RATE : rate;
    double pace =
        512.0 * (split->ctas[MK_INTRA_COMM] / rate - (double)PIECE_FLAG_NS / GPU_PIECE_BYTES);
    return !split->intra_comm_warps || ring_attention_communication_bound(q) || pace < 1
               ? MK_PACE_NONE
               : (uint32_t)pace;
}

/* Engine mma leaves no warp to push: thread blocks of their own do, and take tiles after that. An
 * eighth of all, 16 of 132, each of whose 256 threads store 16 bytes, fill NVLink. On SMs too few
 * to be shared out each block pushes first. */
static void ring_attention_choose_mma_roles(struct mk_problem *q)
{
    uint32_t *ctas = q->tuning.split.ctas, sms = q->sms ? q->sms : 1;
    ctas[MK_INTER_SEND] = q->topo.nodes == 1 ? 0 : sms > 4 ? 2 : 1;
    sms -= sms > ctas[MK_INTER_SEND] ? ctas[MK_INTER_SEND] : 0;
    const int each = q->topo.gpus > 1 && sms < 3;
    ctas[MK_INTRA_COMM] = q->topo.gpus == 1 || each ? 0 : sms < 16 ? 1 : sms / 8;
    ctas[MK_COMPUTE] = sms - ctas[MK_INTRA_COMM];
    mk_share_blocks(&q->tuning.split, each);
}

static void ring_attention_choose(struct mk_problem *q)
{
    struct mk_tuning *t = &q->tuning;
    int cuda = q->exec == MK_EXEC_CUDA;
    if (!t->cluster)
        t->cluster = 1;
    struct tile tile = {
        .rows = 32, .keys = q->deterministic == MK_EVERYWHERE ? ring_attention_same_keys(q) : 32};
    if (cuda)
        tile = ring_attention_gpu_tile(q);
    if (!t->tile_m)
        t->tile_m = tile.rows;
    if (!t->tile_n)
        t->tile_n = tile.keys;
    uint64_t half =
        mk_ceil_div(q->attention.sequence, mk_world(&q->topo) * mk_attention_halves(&q->attention));
    if (!t->chunk_rows) {
        uint64_t whole = mk_round_up(half, t->tile_m), most = cuda ? GPU_CHUNK_ROWS : t->tile_m;
        most = mk_round_up(most, t->tile_m);
        t->chunk_rows = (uint32_t)(cuda && whole && whole < most ? whole : most);
    }
    uint32_t *ctas = t->split.ctas;
    if (!mk_total_ctas(&t->split) && q->engine == MK_ENGINE_MMA) {
        ring_attention_choose_mma_roles(q);
    } else if (!mk_total_ctas(&t->split)) {
        /* One stages 31 GB/s (ag_gemm, a block of all its threads): less than a NIC of 50 takes. */
        ctas[MK_INTER_SEND] = q->topo.nodes == 1 ? 0 : cuda && q->sms > 4 ? 2 : 1;
        ctas[MK_COMPUTE] = cuda && q->sms > ctas[MK_INTER_SEND] ? q->sms - ctas[MK_INTER_SEND] : 2;
        ctas[MK_INTRA_COMM] = q->topo.gpus > 1;
        mk_share_blocks(&t->split, cuda && q->topo.gpus > 1 ? 2 : 0);
    }
    if (!t->pieces) {
        uint64_t piece =
                     ring_attention_communication_bound(q) ? GPU_LONG_PIECE_BYTES : GPU_PIECE_BYTES,
                 pieces = t->chunk_rows * q->attention.head_dim * 2 / piece;
        t->pieces = !t->split.intra_comm_warps || !cuda || !pieces ? 1
                    : pieces > PLAN_MOST_PIECES                    ? PLAN_MOST_PIECES
                                                                   : (uint32_t)pieces;
    }
    if (!t->pace)
        t->pace = cuda ? ring_attention_choose_pace(q) : MK_PACE_NONE;
}

/* Blocks of keys begin at fixed places of the sequence: so does each rank's part. */
static int ring_attention_check_ordered(const struct mk_problem *q, char *error, size_t size)
{
    const struct mk_attention *a = &q->attention;
    const uint64_t parts = (uint64_t)mk_world(&q->topo) * mk_attention_halves(a),
                   half = mk_ceil_div(a->sequence, parts), keys = ring_attention_same_keys(q);
    if (q->deterministic != MK_EVERYWHERE)
        return 0;
    if (q->tuning.tile_n != keys)
        return plan_refuse(error, size,
                           "the same bits everywhere with tiles of %u keys: keys come in blocks of "
                           "%lu%s",
                           q->tuning.tile_n, keys,
                           q->engine == MK_ENGINE_MMA ? " on engine mma" : "");
    if (parts > 1 && half % MK_SAME_KEYS)
        return plan_refuse(error, size,
                           "the same bits everywhere with a sequence of %lu in %lu parts of %lu "
                           "rows: parts are multiples of %u rows; the next sequence that works is "
                           "%lu",
                           a->sequence, parts, half, MK_SAME_KEYS,
                           (mk_round_up(half, MK_SAME_KEYS) - 1) * parts + 1);
    return 0;
}

static int ring_attention_build(const struct op_descriptor *op, struct mk_plan *p, char *error,
                                size_t size)
{
    struct mk_problem *q = &p->problem;
    const struct mk_attention *a = &q->attention;
    struct ring_attention_plan *r = ring_attention_plan_in(p);
    if (a->batch * a->heads > OP_MOST / 128)
        return plan_refuse(error, size, "%lu heads in %lu batches: at most %u in all", a->heads,
                           a->batch, OP_MOST / 128);
    ring_attention_choose(q);
    int result = plan_check_tuning(q, error, size);
    result = result ? result : ring_attention_check_ordered(q, error, size);
    if (!result && q->exec == MK_EXEC_CUDA)
        result = ring_attention_check_gpu(q, error, size);
    if (result)
        return result;
    q->m = a->batch * a->heads * a->sequence;
    q->n = a->sequence;
    q->k = a->head_dim;
    uint32_t world = mk_world(&q->topo);
    r->topo = q->topo;
    r->split = q->tuning.split;
    r->batch = (uint32_t)a->batch;
    r->heads = (uint32_t)a->heads;
    r->kv_heads = (uint32_t)a->kv_heads;
    r->head_dim = (uint32_t)a->head_dim;
    r->causal = a->causal != 0;
    r->ordered = q->deterministic == MK_EVERYWHERE;
    r->rows = (uint32_t)mk_attention_rows(a, world, r->topo.rank);
    r->halves = mk_attention_halves(a);
    r->half = (uint32_t)mk_ceil_div(a->sequence, (uint64_t)world * r->halves);
    r->whole = (uint32_t)(a->sequence / r->half);
    r->last = (uint32_t)(a->sequence % r->half);
    r->sequence = (uint32_t)a->sequence;
    r->pitch_rows = r->halves * r->half;
    r->meets = (r->causal && r->halves == 1) || r->whole < world * r->halves;
    r->tile_rows = q->tuning.tile_m;
    r->block_rows = q->tuning.tile_n;
    r->chunk_rows = q->tuning.chunk_rows;
    r->pieces = q->tuning.pieces;
    r->piece_rows = (uint32_t)mk_round_up(mk_ceil_div(r->chunk_rows, r->pieces), 8);
    r->pace = q->tuning.pace;
    r->half_tiles = (uint32_t)mk_ceil_div(r->half, r->tile_rows);
    for (uint32_t half = 0; half < 2; half++)
        r->tiles_of[half] = half < r->halves
                                ? (uint32_t)mk_ceil_div(
                                      ring_attention_half_rows(r, r->topo.rank, half), r->tile_rows)
                                : 0;
    r->half_chunks = (uint32_t)mk_ceil_div(r->half, r->chunk_rows);
    r->paired = (uint32_t)ring_attention_paired(q);
    r->section = ring_attention_section_of(a, r->split.ctas[MK_COMPUTE] * (1 + r->paired),
                                           r->halves * r->half_tiles);
    uint64_t tiles = (uint64_t)r->batch * r->heads * r->halves * r->half_tiles,
             ctas = r->split.ctas[MK_COMPUTE];
    uint64_t turns = mk_ceil_div(tiles, ctas);
    r->head_bytes = (uint64_t)r->head_dim * 2;
    r->row_bytes = r->kv_heads * r->head_bytes;
    r->tensor_bytes = mk_round_up((uint64_t)r->batch * r->pitch_rows * r->row_bytes, MK_HEAP_UNIT);
    r->state_pitch = (uint64_t)r->tile_rows * (r->head_dim + 4) * 4;
    r->chunks = 2 * r->batch * r->kv_heads * r->halves * r->half_chunks;
    result = plan_lay_out(op, p, turns * ctas * world, r->chunk_rows * r->head_bytes, error, size);
    if (result)
        return result;
    r->query_tiles = a->gather_only ? 0 : r->batch * r->heads * (r->tiles_of[0] + r->tiles_of[1]);
    r->tiles = p->tiles;
    p->chunks = world * r->chunks;
    return 0;
}

/* A chunk's pieces are announced together. */
static void ring_attention_pipeline(const struct mk_plan *p, struct mk_pipeline *out)
{
    out->together = ring_attention_plan_of(p)->pieces;
}

static void ring_attention_tables(struct mk_plan *p, struct op_tables *t)
{
    struct ring_attention_plan *r = ring_attention_plan_in(p);
    uint64_t world = mk_world(&r->topo), others = world > 1 ? world : 0;
    OP_BUFFERS(t, {"gathered", r->gathered, 2, 2 * others, r->tensor_bytes},
               {"state", &r->state, 1, r->split.ctas[MK_COMPUTE], r->state_pitch});
    OP_FLAGS(t, {"arrival",
                 &r->flag_arrival,
                 {{'r', others, 1},
                  {'b', r->batch, 1},
                  {'h', r->kv_heads, 1},
                  {'x', (uint64_t)r->halves * r->half_chunks, 1},
                  {'k', 2, 1}},
                 "chunk %c (head %h of batch %b) of rank %r's %k{KV}",
                 .producer = 'r',
                 .chunks = r->chunks});
}

static void ring_attention_describe_tile(const struct mk_plan *p, uint32_t id, struct mk_tile *out)
{
    ring_attention_tile(ring_attention_plan_of(p), id, out);
}

static void ring_attention_describe_chunk(const struct mk_plan *p, uint32_t id, uint32_t *rank,
                                          uint32_t *number, uint64_t *bytes)
{
    const struct ring_attention_plan *r = ring_attention_plan_of(p);
    *rank = id / r->chunks;
    *number = id % r->chunks;
    uint32_t rows;
    *bytes = ring_attention_move(r, *rank, *number, 1, 0, &rows).bytes;
}

static void ring_attention_work(const struct mk_plan *p, double *flop, uint64_t *nvlink_bytes,
                                uint64_t *network_bytes)
{
    const struct ring_attention_plan *r = ring_attention_plan_of(p);
    const struct mk_attention *a = &p->problem.attention;
    uint64_t row = 2ull * r->batch * r->row_bytes;
    *nvlink_bytes = *network_bytes = 0;
    for (uint32_t rank = 0; rank < mk_world(&r->topo); rank++)
        if (rank != r->topo.rank)
            *(mk_by_network(&r->topo, rank) ? network_bytes : nvlink_bytes) +=
                row * ring_attention_rows_of(r, rank);
    *flop = 4.0 * r->batch * r->heads * r->head_dim *
            mk_attention_pairs(a, mk_world(&r->topo), r->topo.rank);
}

static uint64_t ring_attention_shard(const struct mk_problem *q)
{
    return mk_attention_rows(&q->attention, mk_world(&q->topo), q->topo.rank);
}

#define AT(field) offsetof(struct mk_problem, attention.field)
static const struct op_shape shape = {
    .option = "attention",
    .letters = "B,S,H,G,D",
    .heading = "B,S,heads,kv_heads,D",
    .about =
        "of the global problem: batch, sequence length, heads of Q, heads of K and V, elements "
        "per head (64 or 128)",
    .defaults = "on the host 1,128 rows per rank,4,2,64; on GPUs 1,4096 rows per rank,16,16,128",
    .explored = "2,18 rows per rank,2,1,64",
    .dimensions = {{"B", "batch", AT(batch), OP_MOST, .divides = NULL},
                   {"S", "sequence", AT(sequence), OP_MOST, .divides = NULL},
                   {"H", "heads", AT(heads), 65536, .divides = "G"},
                   {"G", "kv_heads", AT(kv_heads), 65536, .divides = NULL},
                   {"D", "head_dim", AT(head_dim), 128, .multiple = 64,
                    .why = "the dimensions that work are 64 and 128"}},
};

static void ring_attention_choose_shape(enum op_size size, uint64_t world, uint64_t *numbers)
{
    static const uint64_t sizes[][5] = {[OP_SIZE_HOST] = {1, 128, 4, 2, 64},
                                        [OP_SIZE_GPU] = {1, 4096, 16, 16, 128},
                                        [OP_SIZE_EXPLORE] = {2, 18, 2, 1, 64}};
    memcpy(numbers, sizes[size], sizeof sizes[size]);
    numbers[1] *= world;
}

int mk_ring_attention(struct mk_plan *plan, const void *q, const void *k, const void *v, void *o,
                      float *lse, void *stream)
{
    void *const arguments[MK_SPACES - 1] = {OP_ARGUMENT(q), OP_ARGUMENT(k), OP_ARGUMENT(v), o, lse};
    return op_launch(plan, MK_OP_RING_ATTENTION, arguments, stream);
}

int mk_ring_attention_rows(uint64_t sequence, uint32_t world, uint32_t rank, int causal,
                           int contiguous, uint64_t begin[2], uint64_t count[2])
{
    const struct mk_attention a = {
        .sequence = sequence, .causal = causal != 0, .contiguous = contiguous != 0};
    const uint32_t halves = mk_attention_halves(&a);
    if (rank >= world)
        return -EINVAL;
    for (uint32_t half = 0; half < 2; half++) {
        struct mk_attention_half h = {0, 0};
        if (half < halves)
            h = mk_attention_half_of(&a, world, rank, half);
        begin[half] = h.begin;
        count[half] = h.rows;
    }
    return (int)halves;
}

const struct op_descriptor op_ring_attention = {
    .shard = ring_attention_shard,
    .help = "attention over a sequence that is spread over the ranks",
    .shape = &shape,
    .choose_shape = ring_attention_choose_shape,
    .arguments = {{"Q", OP_BF16, "B,S/W,H,D"},
                  {"K", OP_BF16, "B,S/W,G,D"},
                  {"V", OP_BF16, "B,S/W,G,D"},
                  {"O", OP_BF16, "B,S/W,H,D", .output = 1},
                  {"lse", OP_FP32, "B,H,S/W", .output = 1}},
    .needs =
        {[MK_COMPUTE] = OP_ALWAYS, [MK_INTRA_COMM] = OP_IF_GPUS, [MK_INTER_SEND] = OP_IF_NODES},
    .knobs = OP_TILE | OP_ROLES | OP_CHUNK_ROWS | OP_PIECES | OP_PACE,
    .tuned = 1,
    .mma = 1,
    .causal = 1,
    .build = ring_attention_build,
    .tables = ring_attention_tables,
    .pipeline = ring_attention_pipeline,
    .describe_tile = ring_attention_describe_tile,
    .describe_chunk = ring_attention_describe_chunk,
    .work = ring_attention_work,
    .gpu_tile = ring_attention_built,
};

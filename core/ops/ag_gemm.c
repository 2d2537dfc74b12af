/* AllGather+GEMM, C = gather(A) * B: what it is, which shapes it takes, and where everything
 * lies. */
#include "core/plan/epilogue.h"
#include "core/cta/command.h"
#include "core/mkernel.h"
#include "core/model/gemm.h"
#include "core/ops/gemm.h"
#include "core/plan/pipeline.h"
#include "core/base/quantize.h"
#include "core/roles/ag_gemm_plan.h"

/* Rows of the gathered A that one shot suits best: more are two. */
#define AG_GEMM_FEW_ROWS 512

/* Up to so many one CTA's tiles are as fast. With a pair's 384 and 512 rows of 8192,4096 take 53.9
 * and 56.9 us, and else 57.1 and 61.9 (two H200s). */
#define AG_GEMM_ROWS_OF_PAIR 256

#define SLICE_UNIT 128u /* bytes: a stage of the GEMM engine, and of FP8 a block of scales */

/* What this rank pushes to its node's others over NVLink, bytes. */
static double ag_gemm_pushed_bytes(const struct mk_problem *q)
{
    return op_factor_bytes(q) * (double)q->m * (double)q->k * (q->topo.gpus - 1) / q->topo.gpus;
}

static int ag_gemm_communication_bound(const struct mk_problem *q)
{
    return ag_gemm_pushed_bytes(q) / PLAN_NVLINK_RATE > 1.2 * plan_multiply_ns(q);
}

/* Between nodes a chunk is a put, and nothing comes after the last but what it holds: the smaller,
 * the sooner all is done. */
static int ag_gemm_network_bound(const struct mk_problem *q)
{
    double arrives =
        op_factor_bytes(q) * (double)q->m * (double)q->k * (q->topo.nodes - 1) / mk_world(&q->topo);
    return arrives / PLAN_NETWORK_RATE > 1.2 * plan_multiply_ns(q);
}

/* Stores to peers that NVLink does not take yet stand in an SM's way to memory before the loads of
 * the GEMM. So all warps that push together stay just below what it takes; and where multiplying is
 * the longer part, they take two thirds of it. (Of few rows not every warp has a piece.) */
static uint32_t ag_gemm_choose_pace(const struct mk_problem *q)
{
    const struct mk_tuning *t = &q->tuning;
    uint64_t chunks = mk_ceil_div(q->m / mk_world(&q->topo), t->chunk_rows),
             turns = (q->topo.gpus - 1) * chunks * t->slices * t->pieces,
             pushers = t->split.ctas[MK_INTRA_COMM];
    pushers = turns < pushers ? turns : pushers;
    double rate = ag_gemm_communication_bound(q) ? PLAN_PUSH_MOST : PLAN_PUSH_RATE,
           enough = ag_gemm_pushed_bytes(q) / (0.65 * plan_multiply_ns(q)); /* bytes per ns */
    if (enough < rate)
        rate = enough;
    double pace = 512.0 * (double)pushers / rate;
    return !q->tuning.split.intra_comm_warps || pace < 1 ? MK_PACE_NONE
           : pace > PLAN_MOST_PACE                       ? PLAN_MOST_PACE
                                                         : (uint32_t)pace;
}

/* A CTA stages 40 GB/s: one is less than a NIC. But of two each posts puts of its chunks to all
 * nodes as soon as it has staged them, some before the other's to the first node, which pushing
 * warps wait for in order. One is enough where NVLink takes longer to push what all nodes bring:
 * 4x8 H200s, simulated, 7808,320,8192: 0.428 ms, and 0.569 of two. */
static uint32_t ag_gemm_choose_senders(const struct mk_problem *q)
{
    double pushes = (q->topo.gpus - 1.0) * q->topo.nodes / PLAN_PUSH_RATE,
           puts = (q->topo.nodes - 1.0) / PLAN_STAGE_RATE;
    return pushes > puts ? 1 : 2;
}

/* The defaults. The host's are small, so that a test has many tiles and chunks; the GPU's were
 * chosen by measurement (docs/FIGURES.md). */
static void ag_gemm_choose(struct mk_problem *q)
{
    struct mk_tuning *t = &q->tuning;
    int cuda = q->exec == MK_EXEC_CUDA;
    uint64_t shard_rows = q->m / mk_world(&q->topo), row_bytes = q->k * op_factor_bytes(q);
    int joint = t->shots == MK_ONE_SHOT;
    plan_choose_gemm_tile(q, plan_gemm_tile, shard_rows > 128 && !ag_gemm_network_bound(q),
                          ag_gemm_communication_bound(q) || shard_rows <= 512);
    if (!t->chunk_rows)
        t->chunk_rows = joint ? (uint32_t)mk_round_up(shard_rows, t->tile_m) : t->tile_m;
    if (joint && !t->pace)
        t->pace = MK_PACE_NONE;
    /* One chunk at most is the whole shard; more rows would only overflow the count of its
     * tiles. */
    uint64_t most = mk_round_up(shard_rows, t->tile_m);
    if (t->chunk_rows > most && t->chunk_rows % t->tile_m == 0)
        t->chunk_rows = (uint32_t)most;
    if (!t->fanout) /* few chunks a shard: let some shards be whole early */
        t->fanout = q->topo.gpus <= 2                         ? 1
                    : cuda && shard_rows <= 2 * t->chunk_rows ? 2
                                                              : q->topo.gpus - 1;
    uint32_t *ctas = t->split.ctas;
    if (!mk_total_ctas(&t->split)) {
        ctas[MK_INTER_SEND] = q->topo.nodes == 1 ? 0 : cuda ? ag_gemm_choose_senders(q) : 1;
        ctas[MK_COMPUTE] = 2;
        if (cuda && q->sms > ctas[MK_INTER_SEND] + t->cluster) {
            uint32_t rest = q->sms - ctas[MK_INTER_SEND];
            ctas[MK_COMPUTE] = rest - rest % t->cluster;
        }
        ctas[MK_INTRA_COMM] = q->topo.gpus > 1;
        mk_share_blocks(&t->split, cuda && q->topo.gpus > 1 ? 2 : 0);
    }
    if (joint) { /* as many warps as there are share what moves, down to a KB each */
        if (!t->pieces)
            t->pieces = shard_rows > PLAN_MOST_PIECES ? PLAN_MOST_PIECES : (uint32_t)shard_rows;
        uint64_t slices = row_bytes / 1024,
                 movers = ctas[MK_INTRA_COMM] / (t->pieces * q->topo.gpus);
        slices = slices < movers ? slices : movers;
        if (!t->slices)
            t->slices = !slices                     ? 1
                        : slices > PLAN_MOST_SLICES ? PLAN_MOST_SLICES
                                                    : (uint32_t)slices;
    }
    /* on a GPU at least 2 KB of a row each: while they multiply, the next slice comes */
    if (!t->slices) {
        uint64_t slices = !cuda ? 2 : t->split.intra_comm_warps ? row_bytes / 2048 : 1;
        t->slices = q->topo.nodes > 1 || q->topo.gpus == 1 || !slices ? 1
                    : slices > 8                                      ? 8
                                                                      : (uint32_t)slices;
    }
    /* on a GPU 16 to 64 KB: many CTAs share a chunk, so that it arrives soon, and each has
     * several */
    if (!t->pieces) {
        double fair =
            ctas[MK_INTRA_COMM] ? ag_gemm_pushed_bytes(q) / (8.0 * ctas[MK_INTRA_COMM]) : 65536;
        uint64_t piece = fair < 16384 ? 16384 : fair > 65536 ? 65536 : (uint64_t)fair;
        uint64_t pieces = t->chunk_rows * row_bytes / t->slices / piece;
        if (pieces > shard_rows) /* a row each; more would be empty, and turns of some warps */
            pieces = shard_rows;
        t->pieces = !cuda || !pieces            ? 1
                    : pieces > PLAN_MOST_PIECES ? PLAN_MOST_PIECES
                                                : (uint32_t)pieces;
    }
    if (!t->pace)
        t->pace = cuda ? ag_gemm_choose_pace(q) : MK_PACE_NONE;
}

static int ag_gemm_check_tuning(const struct mk_problem *q, char *error, size_t size)
{
    const struct mk_tuning *t = &q->tuning;
    if (t->shots == MK_ONE_SHOT && t->chunk_rows < q->m / mk_world(&q->topo))
        return plan_refuse(error, size,
                           "one shot in chunks of %u rows: the %lu rows of a rank are one chunk",
                           t->chunk_rows, q->m / mk_world(&q->topo));
    if (t->fanout > (q->topo.gpus > 1 ? q->topo.gpus - 1 : 1))
        return plan_refuse(error, size, "pushes to %u peers at once: a rank has %u in its node",
                           t->fanout, q->topo.gpus - 1);
    if (t->slices > PLAN_MOST_SLICES || (t->slices > 1 && q->topo.nodes > 1))
        return plan_refuse(
            error, size,
            "%u slices of a chunk on %u x %u ranks: 1 to 16 in one node, 1 between nodes",
            t->slices, q->topo.nodes, q->topo.gpus);
    int result = plan_check_tuning(q, error, size);
    return result ? result : plan_check_gemm_tile(q, plan_gemm_tile, error, size);
}

/* Of `tiles` on so many CTAs or clusters, those of the last wave where they are to be halved:
 * halves keep all of them busy at most once. A kernel's consumers have 64 rows each, or all of a
 * tile's. */
static uint32_t ag_gemm_halved(const struct mk_problem *q, const struct ag_gemm_plan *a,
                               uint64_t tiles)
{
    const struct mk_tuning *t = &q->tuning;
    const uint32_t engines = t->split.ctas[MK_COMPUTE] / t->cluster;
    const int can = q->exec == MK_EXEC_CUDA ? q->engine != MK_ENGINE_MMA && ag_gemm_halves(a)
                                            : !a->blocks && t->tile_m % 2 == 0;
    if (!can || a->shots == 1 || a->shard_rows % t->tile_m || tiles < engines)
        return 0;
    const uint32_t last = (uint32_t)(tiles % engines);
    return last <= engines / 2 ? last : 0;
}

static int ag_gemm_build(const struct op_descriptor *op, struct mk_plan *p, char *error,
                         size_t size)
{
    struct mk_problem *q = &p->problem;
    struct ag_gemm_plan *a = ag_gemm_plan_in(p);
    int result =
        plan_choose_shots(q, plan_gemm_tile, 2, plan_ragged_scales(q) ? 0 : AG_GEMM_FEW_ROWS,
                          q->m > AG_GEMM_ROWS_OF_PAIR, error, size);
    if (result)
        return result;
    ag_gemm_choose(q);
    result = ag_gemm_check_tuning(q, error, size);
    if (result)
        return result;

    uint32_t world = mk_world(&q->topo);
    a->topo = q->topo;
    a->split = q->tuning.split;
    a->m = (uint32_t)q->m;
    a->n = (uint32_t)epilogue_columns(q->epilogue, q->n);
    a->up = a->n < q->n ? a->n : 0;
    a->k = (uint32_t)q->k;
    a->shots = q->tuning.shots;
    a->shard_rows = a->m / world;
    a->tile_m = q->tuning.tile_m;
    a->tile_n = q->tuning.tile_n;
    a->cluster = q->tuning.cluster;
    a->chunk_rows = q->tuning.chunk_rows;
    a->chunks = (uint32_t)mk_ceil_div(a->shard_rows, a->chunk_rows);
    a->full_chunks = a->shard_rows / a->chunk_rows;
    a->pieces = q->tuning.pieces;
    a->fanout = q->tuning.fanout;
    a->pace = q->tuning.pace;
    a->tile_columns = (uint32_t)epilogue_columns(q->epilogue, a->tile_n);
    a->col_tiles = (uint32_t)mk_ceil_div(a->n, a->tile_columns);
    uint64_t chunk_tiles = (uint64_t)(a->chunk_rows / a->tile_m) * a->col_tiles,
             shard_tiles = mk_ceil_div(a->shard_rows, a->tile_m) * a->col_tiles;
    a->row_bytes = (uint64_t)a->k * op_factor_bytes(q);
    a->blocks = q->fp8 ? (uint32_t)mk_ceil_div(a->k, MK_SCALE_BLOCK) : 0;
    a->scales_chunk = a->shots == 1 ? a->shard_rows * 4ull
                                    : mk_round_up(a->chunk_rows * a->blocks * 4ull, MK_HEAP_UNIT);
    a->slice_bytes = mk_round_up(mk_ceil_div(a->row_bytes, q->tuning.slices), SLICE_UNIT);
    a->slices = q->tuning.slices = (uint32_t)mk_ceil_div(a->row_bytes, a->slice_bytes);
    if (a->slices == 1)
        a->slice_bytes = a->row_bytes;
    /* As many tiles as run at once end together. */
    uint64_t tail = a->split.ctas[MK_COMPUTE] / a->cluster / (a->fanout * chunk_tiles);
    a->tail = !tail || a->slices == 1 ? 1 : tail > a->chunks ? a->chunks : (uint32_t)tail;
    uint64_t blocks = a->shots == 1 ? 1 : world; /* that tiles are cut from */
    if (a->shots == 1)
        shard_tiles = mk_ceil_div(a->m, a->tile_m) * a->col_tiles;
    a->shard_pitch = a->shard_rows * a->row_bytes;
    if (a->shots == 2)
        a->shard_pitch = mk_round_up(a->shard_pitch, MK_HEAP_UNIT);
    a->halved = ag_gemm_halved(q, a, shard_tiles * blocks);
    result = plan_lay_out(op, p, shard_tiles * blocks + a->halved, a->chunk_rows * a->row_bytes,
                          error, size);
    if (result)
        return result;
    a->chunk_tiles = (uint32_t)chunk_tiles; /* no more than those of the shard */
    a->shard_tiles = (uint32_t)shard_tiles;
    a->tiles = (uint32_t)(a->shard_tiles * blocks) + a->halved;
    a->epilogue = q->epilogue;
    a->bias_space = MK_SPACE_ARG0 + op_bias_of(op, q);
    a->staged = !q->a_in_heap;
    a->a_offset = q->a_offset;
    p->chunks = world * a->chunks;
    return 0;
}

static void ag_gemm_tables(struct mk_plan *p, struct op_tables *t)
{
    struct ag_gemm_plan *a = ag_gemm_plan_in(p);
    uint32_t world = mk_world(&a->topo);
    OP_BUFFERS(t, {"gathered", a->gathered, 2, world > 1 ? world : 0, a->shard_pitch},
               {"scales", a->scales, 2, world > 1 && a->blocks ? world : 0,
                (a->shots == 1 ? a->blocks : a->chunks) * a->scales_chunk});
    OP_FLAGS(t,
             {"arrival",
              &a->flag_arrival,
              {{'r', world, 1}, {'c', a->chunks, 1}, {'s', a->slices, 1}},
              a->slices > 1 ? "slice %s of chunk %c of rank %r's A" : "chunk %c of rank %r's A",
              .producer = 'r'},
             {"scales",
              &a->flag_scales,
              {{'r', a->blocks && a->topo.nodes > 1 ? world : 0, 1}, {'c', a->chunks, 1}},
              "the scales of chunk %c of rank %r's A",
              .producer = 'r'});
}

static void ag_gemm_pipeline(const struct mk_plan *p, struct mk_pipeline *out)
{
    const struct ag_gemm_plan *a = ag_gemm_plan_of(p);
    int joint = a->shots == 1; /* a tile's rows come whole */
    out->slices = joint ? 1 : a->slices;
    out->slice_stages = (uint32_t)mk_ceil_div(joint ? a->row_bytes : a->slice_bytes, 128);
    out->by_thread = p->problem.engine != MK_ENGINE_MMA;
    out->halves = out->by_thread && ag_gemm_halves(a);
}

static void ag_gemm_describe_tile(const struct mk_plan *p, uint32_t id, struct mk_tile *out)
{
    const struct ag_gemm_plan *a = ag_gemm_plan_of(p);
    const uint32_t halves = a->tiles - 2 * a->halved; /* tiles before them */
    if (a->shots == 1) {
        ag_gemm_joint_tile(a, id, out);
        return;
    }
    for (uint32_t t = halves; t < a->tiles; t++) {
        ag_gemm_tile(a, t, out);
        if (out->id == id)
            return;
    }
    uint32_t rest = id % a->shard_tiles, chunk = rest / a->chunk_tiles;
    ag_gemm_tile_of_chunk(a, id / a->shard_tiles, chunk, rest - chunk * a->chunk_tiles, out);
}

static void ag_gemm_describe_chunk(const struct mk_plan *p, uint32_t id, uint32_t *rank,
                                   uint32_t *number, uint64_t *bytes)
{
    const struct ag_gemm_plan *a = ag_gemm_plan_of(p);
    *rank = id / a->chunks;
    *number = id % a->chunks;
    const uint32_t rows = ag_gemm_chunk_rows(a, *number);
    *bytes = rows * a->row_bytes + a->blocks * ag_gemm_scales_bytes(rows);
}

static void ag_gemm_work(const struct mk_plan *p, double *flop, uint64_t *nvlink_bytes,
                         uint64_t *network_bytes)
{
    const struct ag_gemm_plan *a = ag_gemm_plan_of(p);
    uint64_t shard = a->shard_rows * a->row_bytes + a->blocks * ag_gemm_scales_bytes(a->shard_rows);
    *flop = 2.0 * a->m * (double)p->problem.n * a->k;
    *network_bytes = (a->topo.nodes - 1) * shard;
    *nvlink_bytes = (uint64_t)a->topo.nodes * (a->topo.gpus - 1) * shard;
}

static void ag_gemm_choose_shape(enum op_size size, uint64_t world, uint64_t *numbers)
{
    op_choose_gemm(size, world, 0, numbers);
}

int mk_ag_gemm(struct mk_plan *plan, const void *a, const void *b, void *c, void *stream)
{
    void *const arguments[MK_SPACES - 1] = {OP_ARGUMENT(a), OP_ARGUMENT(b), c};
    return op_launch(plan, MK_OP_AG_GEMM, arguments, stream);
}

static void ag_gemm_model(struct model_walk *w, const struct mk_plan *p)
{
    model_ag_gemm(w, &p->problem, ag_gemm_plan_of(p));
}

const struct op_descriptor op_ag_gemm = {
    .help = "gathers A from all ranks and multiplies it by this rank's B",
    .shape = &op_shape_gemm,
    .choose_shape = ag_gemm_choose_shape,
    .arguments = {{"A", OP_FACTOR, "M/W,K"},
                  {"B", OP_FACTOR, "K,N"},
                  {"C", OP_BF16, "M,N/runs", .output = 1},
                  {"A_scales", OP_SCALES, "K:128,M/W:4*4"},
                  {"B_scales", OP_BLOCK_SCALES, "N:128,K:128:4*4"},
                  {"B_scales", OP_COLUMN_SCALES, "N"},
                  {"bias", OP_BIAS, "N"}},
    .needs =
        {[MK_COMPUTE] = OP_ALWAYS, [MK_INTRA_COMM] = OP_IF_GPUS, [MK_INTER_SEND] = OP_IF_NODES},
    .knobs = OP_GEMM_KNOBS | OP_SLICES | OP_FANOUT | OP_SHOTS,
    .tuned = 1,
    .well_known = 1,
    .shots_measured = 1 << 2,
    .fp8_plans_measured = 1 << 2,
    .most_shots = MK_TWO_SHOT,
    .a_in_heap = 1,
    .b_layout = 1,
    .fp16 = 1,
    .fp8 = 1,
    .b_columns = 1,
    .epilogue = MK_EPILOGUE_ELEMENTS,
    .mma = 1,
    .build = ag_gemm_build,
    .tables = ag_gemm_tables,
    .pipeline = ag_gemm_pipeline,
    .describe_tile = ag_gemm_describe_tile,
    .describe_chunk = ag_gemm_describe_chunk,
    .model = ag_gemm_model,
    .work = ag_gemm_work,
};

/* GEMM+ReduceScatter, C = this rank's rows of the sum over ranks of A * B. Its plan, which
 * GEMM+AllReduce's begins with: which shapes it takes, and where everything lies. */
#include "core/cta/command.h"
#include "core/plan/epilogue.h"
#include "core/mkernel.h"
#include "core/model/gemm.h"
#include "core/plan/gemm_tiles_cut.h"
#include "core/ops/gemm.h"
#include "core/plan/pipeline.h"
#include "core/roles/gemm_rs_cut.h"

/* Tiles of a CTA whose sums go to peers straight from registers, on more than two ranks where the
 * sum goes to all. gemm_ar on four H200s: 1024,8192,4096 (tiles of 256x128) 170 us and 180 by
 * senders, 512,4096,8192 90.2 and 94.3, 1500,8192,4096 (5.8 tiles of 128x128) 250 and 253,
 * 1024,8192,4096 (3.9 of these) 181 and 179. On two senders are faster: gemm_rs 768,8192,4096 90.9
 * us and 100, gemm_ar 1500,4096,8192 175 and 179. */
#define STRAIGHT_TILES 4

/* Columns of a shared tile that a rank adds, on a GPU: two fragments of a warp's rows
 * (kernels/sums/gemm_joint.cuh), so that lanes store 64 bytes of a row together, and on four ranks
 * all warps have some of a tile of 128. */
#define SHARE_COLUMNS 32

/* What one put takes, bytes, but no more than a sixteenth of a block, behind whose last product the
 * last put still has to go. softnic takes some 6 us for a put however small (16384,16384,2048 on
 * two emulated nodes: 11.7 ms in puts of 128 KB, where the bytes take 5.4), and 50 GB/s are 12 KB a
 * us.
 */
#define PUT_BYTES (1u << 20)
#define PUTS_OF_BLOCK 16

/* One of the warps beside the engine takes tiles to their reducers or, on engine mma, to all. */
static int gemm_rs_check_auxiliary(const struct mk_problem *q, char *error, size_t size)
{
    uint32_t auxiliary = q->tuning.split.intra_comm_warps,
             most = (q->engine == MK_ENGINE_MMA ? MK_MMA_AUXILIARY_WARPS : MK_AUXILIARY_WARPS) - 1;
    if (q->exec == MK_EXEC_CUDA && auxiliary > most)
        return plan_refuse(error, size,
                           "%u CTAs beside each compute CTA: on a GPU %s has room for %u",
                           auxiliary, plan_op_name(q->op), most);
    return 0;
}

/* What follows the sum. */
static struct mk_norm gemm_rs_norm(const struct op_descriptor *op, struct mk_problem *q,
                                   uint32_t rows)
{
    const int quantized = (q->epilogue & MK_EPILOGUE_QUANTIZE) != 0;
    const uint32_t residual = MK_SPACE_ARG0 + op_place_of(op, q, OP_RESIDUAL);
    if (!(q->epilogue & MK_EPILOGUE_ROWS))
        return (struct mk_norm){.columns = 0};
    if (q->epilogue & MK_EPILOGUE_RMSNORM && !(q->eps > 0))
        q->eps = EPILOGUE_EPS;
    return (struct mk_norm){.columns = (uint32_t)q->n,
                            .element = plan_element(q),
                            .normed = (q->epilogue & MK_EPILOGUE_RMSNORM) != 0,
                            .eps = q->eps,
                            .c = MK_SPACE_ARG2,
                            .residual = residual,
                            .weight = residual + 1,
                            .sum = quantized ? MK_SPACE_ARG2 : residual + 2,
                            .rows = quantized ? rows : 0,
                            .codes = residual + 2,
                            .scales = residual + 3};
}

/* The blocks of K that are added in a tree. 0, or -EINVAL with a sentence. */
static int gemm_rs_cut_k(const struct mk_problem *q, struct gemm_rs_plan *r, char *error,
                         size_t size)
{
    const uint32_t world = mk_world(&q->topo);
    if (q->deterministic != MK_EVERYWHERE)
        return 0;
    if (q->exec == MK_EXEC_CUDA && q->engine == MK_ENGINE_MMA && q->epilogue & MK_EPILOGUE_RMSNORM)
        return plan_refuse(error, size,
                           "the same bits everywhere with a norm on engine mma: a block's threads, "
                           "which share a row's squares, are more or fewer by the tile");
    if (world > MK_SUM_BLOCKS || MK_SUM_BLOCKS % world)
        return plan_refuse(
            error, size,
            "the same bits everywhere on %u ranks: K is cut in %u blocks, for 1, 2, 4 or 8 ranks",
            world, MK_SUM_BLOCKS);
    if (q->k % MK_SUM_STAGE || q->k * world < MK_SUM_BLOCKS * MK_SUM_STAGE) {
        uint64_t k = mk_round_up(q->k, MK_SUM_STAGE), least = MK_SUM_BLOCKS * MK_SUM_STAGE / world;
        return plan_refuse(error, size,
                           "the same bits everywhere with a K of %llu on each of %u ranks: K of a "
                           "rank is a multiple of "
                           "%u, and of all at least %u: %llu",
                           (unsigned long long)q->k, world, MK_SUM_STAGE,
                           MK_SUM_BLOCKS * MK_SUM_STAGE,
                           (unsigned long long)(k > least ? k : least));
    }
    r->blocks = MK_SUM_BLOCKS / world;
    r->first_block = q->topo.rank * r->blocks;
    r->first_stage = (uint32_t)(q->k / MK_SUM_STAGE * q->topo.rank);
    r->all_stages = (uint32_t)(q->k / MK_SUM_STAGE * world);
    return 0;
}

/* Elements of K that slices are multiples of: a stage, and on the host 16 bytes. */
#define CUT_K 64u
#define CUT_HOST_K 8u
/* Where nothing is said, two H200s: stages of a slice, at least (5120,5120,2048: 8 slices of four
 * 177 us, 4 of eight 181); stages that a CTA must be spared, since slices cost 8 to 20 us
 * (5120,5120,1024: 144 us, and 139 whole); and waves of tiles, at most, as of more the last is too
 * small a part (8192,16384,2048, of 31: 800 and 801 us). */
#define CUT_STAGES 4u
#define CUT_SPARED 20u
#define CUT_WAVES 24u

/* Why a plan's tiles are not cut along K; NULL: they may be. */
static const char *gemm_rs_whole(const struct mk_problem *q)
{
    struct mk_gemm_tile tile;
    const struct mk_tuning *t = &q->tuning;
    if (q->deterministic == MK_EVERYWHERE)
        return "with the same bits everywhere, which are sums of fixed blocks of K";
    if (!plan_two_shots(t) || q->topo.nodes > 1)
        return !plan_two_shots(t) ? "in one shot" : "between nodes";
    if (q->exec != MK_EXEC_CUDA)
        return q->fp8 ? "of FP8" : NULL;
    if (q->engine == MK_ENGINE_MMA || q->fp8)
        return q->engine == MK_ENGINE_MMA ? "on engine mma" : "of FP8";
    for (uint32_t i = 0; mk_cut_tile(i, &tile); i++)
        if (tile.tile_m == t->tile_m && tile.tile_n == t->tile_n && tile.cluster == t->cluster)
            return NULL;
    return "in such tiles: a GPU has kernels for those of 256x256";
}

/* Cuts the last wave's own tiles in slices of K, at most `most` (0: where and as it helps), so that
 * each CTA or cluster has one slice at most. */
static void gemm_rs_cut_last(const struct mk_problem *q, struct gemm_rs_plan *r, uint32_t most)
{
    const uint32_t last = r->tiles % r->batch, unit = q->exec == MK_EXEC_CUDA ? CUT_K : CUT_HOST_K,
                   units = (uint32_t)mk_ceil_div(r->k, unit);
    const uint32_t few = most ? units : units / CUT_STAGES;
    uint32_t own = 0, distance = 0, room,
             slices = most && most < PLAN_MOST_SLICES ? most : PLAN_MOST_SLICES;
    r->slices = 1;
    r->cut_from = r->tiles;
    if (r->tiles < r->batch || gemm_rs_whole(q) || (q->exec == MK_EXEC_CUDA && r->k % CUT_K))
        return;
    while (own < last && (gemm_rs_turn(r, r->tiles - 1 - own, &distance), !distance))
        own++;
    room = own ? (r->batch - (last - own)) / own : 0;
    slices = slices < room ? slices : room;
    slices = slices < few ? slices : few;
    if (slices < 2 || (!most && (q->exec != MK_EXEC_CUDA || r->tiles / r->batch >= CUT_WAVES ||
                                 units - units / slices < CUT_SPARED)))
        return;
    if (r->shard_tiles / r->batch > r->lag) { /* a batch of own ones stands before it */
        r->late = r->shard_tiles % r->batch * (r->topo.gpus - 1);
        r->late_from = r->tiles - r->lag * r->batch - r->shard_tiles % r->batch - r->late;
    }
    r->cut_k = (uint32_t)mk_ceil_div(units, slices) * unit;
    r->slices = (uint32_t)mk_ceil_div(r->k, r->cut_k);
    r->cut_tiles = own;
    r->cut_from -= own;
    r->tiles += own * (r->slices - 1);
}

int plan_build_gemm_rs(const struct op_descriptor *op, struct mk_plan *p, struct gemm_rs_plan *r,
                       int gathers, char *error, size_t size)
{
    struct mk_problem *q = &p->problem;
    const uint32_t world = mk_world(&q->topo);
    int mma = q->exec == MK_EXEC_CUDA && q->engine == MK_ENGINE_MMA;
    int result = gemm_rs_cut_k(q, r, error, size);
    if (!result)
        result = plan_choose_gemm_rs_shots(q, op->most_shots, gathers, error, size);
    if (result)
        return result;
    plan_choose_gemm_rs(q, gathers);
    result = gemm_rs_check_auxiliary(q, error, size);
    if (!result)
        result = plan_check_tuning(q, error, size);
    if (!result)
        result = plan_check_gemm_tile(q, plan_gemm_sum_tile, error, size);
    if (!result && !plan_two_shots(&q->tuning) && q->tuning.tile_n > PLAN_MOST_JOINT_COLUMNS)
        result = plan_refuse(error, size, "tiles of %u columns in one shot: at most %u",
                             q->tuning.tile_n, PLAN_MOST_JOINT_COLUMNS);
    if (!result && q->tuning.shots == MK_SHARED_COLUMNS &&
        (mma || q->fp8 || q->deterministic == MK_EVERYWHERE))
        result = plan_refuse(
            error, size, "shots=shared_columns %s: shots is one_shot, two_shot or column_blocks",
            mma      ? "on engine mma"
            : q->fp8 ? "of FP8"
                     : "with the same bits everywhere");
    const uint32_t columns = q->tuning.shots == MK_COLUMN_BLOCKS && world > 1
                                 ? plan_gemm_rs_columns(q, q->tuning.tile_n)
                                 : 0;
    if (!result && q->tuning.shots == MK_COLUMN_BLOCKS && world > 1 && !columns)
        result = plan_refuse(error, size,
                             "N is %llu: with shots=column_blocks it is a multiple of %u, %u "
                             "for each rank, or of a tile's columns, %u%s",
                             (unsigned long long)q->n, plan_gemm_rs_columns_unit(q) * world,
                             plan_gemm_rs_columns_unit(q), q->tuning.tile_n,
                             q->fp8 ? ", of which a rank has a multiple of 128" : "");
    if (!result && q->tuning.slices > 1 && gemm_rs_whole(q))
        result = plan_refuse(error, size, "%u slices of K %s: slices is 1", q->tuning.slices,
                             gemm_rs_whole(q));
    if (result)
        return result;

    int cuda = q->exec == MK_EXEC_CUDA;
    r->topo = q->topo;
    r->split = q->tuning.split;
    r->m = (uint32_t)q->m;
    r->n = (uint32_t)q->n;
    r->k = (uint32_t)q->k;
    r->shots = plan_two_shots(&q->tuning) ? 2 : 1;
    r->shared_columns = q->tuning.shots == MK_SHARED_COLUMNS && world > 1;
    r->share_cols = cuda ? SHARE_COLUMNS : 8;
    r->gathers = gathers && world > 1;
    r->tile_m = q->tuning.tile_m;
    r->tile_n = q->tuning.tile_n;
    r->shard_rows = columns ? 0 : (uint32_t)mk_ceil_div(r->m, world);
    r->shard_cols = columns;
    r->block_rows = r->shots == 1 || columns ? r->m : r->shard_rows;
    r->block_cols = columns ? columns : r->n;
    r->cluster = q->tuning.cluster;
    r->chunk_rows = q->tuning.chunk_rows;
    r->chunks = (uint32_t)mk_ceil_div(r->block_rows, r->chunk_rows);
    r->full_chunks = r->block_rows / r->chunk_rows;
    if (!q->tuning.pace)
        q->tuning.pace = plan_choose_gemm_rs_pace(q, gathers);
    r->pace = q->tuning.pace;
    r->pieces = q->tuning.pieces;
    r->grain_rows =
        cuda ? 16 : 1; /* what a warp holds of a tile, and 16 bytes of each of its lanes */
    r->grain_cols = cuda ? 16 : 1;
    r->piece_rows =
        (uint32_t)mk_round_up(mk_ceil_div(r->tile_m, r->pieces), cuda ? r->grain_rows : 8);
    r->col_tiles = (uint32_t)mk_ceil_div(r->block_cols, r->tile_n);
    r->element = plan_element(q);
    r->number = !q->deterministic ? r->element : cuda ? MK_FP24 : MK_FP32;
    r->element_bytes = plan_gemm_rs_element_bytes(q);
    uint64_t tiles = mk_ceil_div(r->block_rows, r->tile_m) * r->col_tiles;
    uint32_t blocks = r->shots == 1 ? 1 : world;
    r->slab_pitch = tiles * r->tile_m * r->tile_n * r->element_bytes;
    if (tiles * world > UINT32_MAX / 2) /* numbers of tiles have 32 bits */
        return plan_take(p, tiles * world, 0, 0, 0, error, size);
    r->via_outbox = r->shots == 1 && world > 1 &&
                    (!cuda || (gathers && !mma && !r->shared_columns && !(r->blocks && world > 2) &&
                               tiles > r->split.ctas[MK_COMPUTE] / r->cluster));
    r->shard_tiles = (uint32_t)tiles;
    r->units = r->shard_tiles * r->pieces;
    r->chunk_tiles = r->chunk_rows / r->tile_m * r->col_tiles;
    uint64_t together = PUT_BYTES / ((uint64_t)r->tile_m * r->tile_n * r->element_bytes);
    if (together > tiles / PUTS_OF_BLOCK)
        together = tiles / PUTS_OF_BLOCK;
    r->put_tiles = !gathers && r->pieces > 1 ? 0 : together ? (uint32_t)together : 1;
    r->full_cols = r->block_cols / r->tile_n;
    r->chunk_runs = gemm_rs_chunk_runs(r, 0);
    r->runs = r->full_chunks * r->chunk_runs;
    if (r->chunks > r->full_chunks)
        r->runs += gemm_rs_chunk_runs(r, r->full_chunks);
    r->tiles = r->shard_tiles * blocks;
    r->batch = r->split.ctas[MK_COMPUTE] / r->cluster;
    r->batch = r->batch ? r->batch : 1;
    r->direct_store = cuda && !mma && gathers && !q->deterministic && r->shots == 2 &&
                      r->topo.nodes == 1 && world > 2 && r->tile_n <= PLAN_MOST_JOINT_COLUMNS &&
                      r->tiles <= STRAIGHT_TILES * r->batch;
    r->lag = 1;
    gemm_rs_cut_last(q, r, gathers ? 1 : q->tuning.slices);
    if (!gathers)
        q->tuning.slices = r->slices;
    p->chunks = blocks * r->units;
    r->norm = gemm_rs_norm(op, q, (uint32_t)(gathers ? q->m : q->m / world));
    r->norm_inside = cuda && !mma && gathers && r->norm.columns && r->shots == 1 &&
                     !r->shared_columns && !r->blocks && r->tile_m <= PLAN_MOST_NORM_ROWS &&
                     (!r->norm.normed || r->tiles <= r->batch);
    return 0;
}

static int gemm_rs_build(const struct op_descriptor *op, struct mk_plan *p, char *error,
                         size_t size)
{
    struct gemm_rs_plan *r = gemm_rs_plan_in(p);
    int result = plan_build_gemm_rs(op, p, r, 0, error, size);
    return result ? result : plan_lay_out(op, p, r->tiles, plan_gemm_rs_put_bytes(r), error, size);
}

void plan_gemm_rs_tables(const struct mk_problem *q, struct gemm_rs_plan *r, struct op_tables *t)
{
    uint64_t slabs = gemm_rs_slabs(r), nodes = r->topo.nodes;
    int boxes = (q->exec == MK_EXEC_CUDA && q->engine != MK_ENGINE_MMA && r->shots == 2) ||
                r->via_outbox || r->shared_columns;
    OP_BUFFERS(t,
               {"squares", &r->squares, 1, r->norm_inside && r->norm.normed ? r->m : 0,
                (r->col_tiles * (r->norm.rows ? 2 : 1) + 1) * 8ull},
               {"staged", r->staged, 2, slabs, r->slab_pitch},
               {"sums", &r->sums, 1, nodes - 1, r->slab_pitch},
               {"outbox", &r->outbox, 1, boxes ? r->split.ctas[MK_COMPUTE] * GEMM_RS_OUTBOX : 0,
                (uint64_t)r->tile_m / r->cluster * r->tile_n * r->element_bytes},
               {"cut", &r->cut, 1, r->cut_tiles * (r->slices + 1),
                (uint64_t)r->tile_m * r->tile_n * sizeof(float)});
    t->zero_buffers = 1; /* words that carry the number of a launch */
    OP_FLAGS(
        t,
        {"partial",
         &r->flag_partial,
         {{'n', nodes, 1}, {'c', r->shard_tiles, r->pieces}, {'l', r->topo.gpus, 1}},
         r->shots == 1   ? "rank %l's part of tile %c"
         : r->shard_cols ? "rank %l's part of chunk %c of rank %R's columns"
                         : "rank %l's part of chunk %c of rank %R's rows",
         .producer = 'l'},
        {"sum",
         &r->flag_sum,
         {{'n', r->shots == 1 ? 0 : nodes, 1}, {'c', r->units, 1}},
         r->shard_cols ? "node %n's sum of chunk %c of rank %m's columns"
                       : "node %n's sum of chunk %c of rank %m's rows",
         .producer = 'R'},
        {"cut", &r->flag_cut, {{'t', r->cut_tiles, 1}}, "slices of cut tile %t", .producer = 'm'});
    if (r->norm.columns)
        OP_FLAGS(
            t,
            {"ended", &r->flag_ended, {{'e', 1, 1}}, "all rows of this rank's C", .producer = 'm'});
}

void plan_gemm_rs_pipeline(const struct mk_problem *q, const struct gemm_rs_plan *r,
                           struct mk_pipeline *out)
{
    /* the host's compute CTA is its own sender, and so are the consumers of engine mma */
    if (q->exec != MK_EXEC_CUDA || q->engine == MK_ENGINE_MMA)
        return;
    out->load_addends = 1;
    out->outbox = GEMM_RS_OUTBOX;
    out->senders = mk_pipeline_senders(&r->split);
    out->direct_store = r->shots == 1 || r->direct_store;
    out->owned_pass = r->shots == 1;
    out->grain_rows = r->grain_rows;
    out->grain_cols = r->grain_cols;
    out->element_bytes = r->element_bytes;
}

static void gemm_rs_pipeline(const struct mk_plan *p, struct mk_pipeline *out)
{
    plan_gemm_rs_pipeline(&p->problem, gemm_rs_plan_of(p), out);
}

static void gemm_rs_tables(struct mk_plan *p, struct op_tables *t)
{
    plan_gemm_rs_tables(&p->problem, gemm_rs_plan_in(p), t);
}

void plan_describe_gemm_rs_tile(const struct gemm_rs_plan *r, uint32_t id, struct mk_tile *out)
{
    gemm_rs_describe(r, r->shots == 1 ? r->topo.rank : id / r->shard_tiles, id % r->shard_tiles,
                     out);
}

/* Slices have the number of their tile; those behind all tiles' are turns without one. */
static void gemm_rs_describe_tile(const struct mk_plan *p, uint32_t id, struct mk_tile *out)
{
    const struct gemm_rs_plan *r = gemm_rs_plan_of(p);
    if (r->slices > 1 && id >= r->cut_from + r->cut_tiles)
        gemm_rs_cut_tile(r, id, out);
    else
        plan_describe_gemm_rs_tile(r, id, out);
}

uint64_t plan_gemm_rs_put_bytes(const struct gemm_rs_plan *r)
{
    return (uint64_t)r->tile_m * r->tile_n * r->element_bytes * (r->put_tiles ? r->put_tiles : 1);
}

/* One shot: rows move in the groups that a warp holds of a tile. */
uint64_t plan_gemm_rs_joint_bytes(const struct gemm_rs_plan *r)
{
    uint64_t first = r->gathers ? 0 : (uint64_t)r->topo.rank * r->shard_rows,
             rows = r->gathers ? r->m : r->shard_rows;
    rows = mk_round_up(first + rows, r->grain_rows) - first / r->grain_rows * r->grain_rows;
    return rows * gemm_rs_grained_cols(r, r->n) * r->element_bytes;
}

static void gemm_rs_describe_chunk(const struct mk_plan *p, uint32_t id, uint32_t *rank,
                                   uint32_t *number, uint64_t *bytes)
{
    const struct gemm_rs_plan *r = gemm_rs_plan_of(p);
    *rank = id / r->units;
    *number = id % r->units;
    struct gemm_rs_area a = gemm_rs_unit(r, *number);
    *bytes = gemm_rs_elements(&a) * r->element_bytes;
}

static void gemm_rs_work(const struct mk_plan *p, double *flop, uint64_t *nvlink_bytes,
                         uint64_t *network_bytes)
{
    const struct gemm_rs_plan *r = gemm_rs_plan_of(p);
    const struct gemm_rs_area rows = {.rows = r->shard_rows, .cols = r->n};
    uint64_t block = r->shots == 1 ? plan_gemm_rs_joint_bytes(r) : gemm_rs_bytes(r, &rows);
    *flop = 2.0 * r->m * r->n * r->k;
    *network_bytes = (r->topo.nodes - 1) * block;
    *nvlink_bytes = (uint64_t)r->topo.nodes * (r->topo.gpus - 1) * block;
}

static void gemm_rs_choose_shape(enum op_size size, uint64_t world, uint64_t *numbers)
{
    op_choose_gemm(size, world, 1, numbers);
}

int mk_gemm_rs(struct mk_plan *plan, const void *a, const void *b, void *c, void *stream)
{
    void *const arguments[MK_SPACES - 1] = {OP_ARGUMENT(a), OP_ARGUMENT(b), c};
    return op_launch(plan, MK_OP_GEMM_RS, arguments, stream);
}

static void gemm_rs_model(struct model_walk *w, const struct mk_plan *p)
{
    model_gemm_rs(w, &p->problem, gemm_rs_plan_of(p), 0);
}

const struct op_descriptor op_gemm_rs = {
    .help = "adds the products A B of all ranks; each rank gets its rows of the sum",
    .shape = &op_shape_gemm,
    .choose_shape = gemm_rs_choose_shape,
    .arguments = GEMM_SUM_ARGUMENTS("M/W"),
    .needs = {[MK_COMPUTE] = OP_ALWAYS, [MK_INTER_SEND] = OP_IF_NODES},
    .knobs = OP_GEMM_KNOBS | OP_SLICES | OP_SHOTS | OP_SPLIT_K,
    .pieces_are_put = 1,
    .shots_measured = 1 << 2,
    .most_shots = MK_TWO_SHOT,
    GEMM_SUM_HAS,
    .build = gemm_rs_build,
    .tables = gemm_rs_tables,
    .pipeline = gemm_rs_pipeline,
    .describe_tile = gemm_rs_describe_tile,
    .describe_chunk = gemm_rs_describe_chunk,
    .model = gemm_rs_model,
    .work = gemm_rs_work,
};

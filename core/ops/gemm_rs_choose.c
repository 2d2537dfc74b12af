/* What is chosen for a sum over ranks (gemm_rs, gemm_ar) where a plan leaves it open: how ranks
 * exchange what they have, tiles, roles and pace. */
#include "core/plan/gemm_tiles.h"
#include "core/ops/gemm.h"

/* Rows of A that one shot suits best: more are two. On two ranks and engine wgmma as 177 shapes say
 * that were measured on two H200s (docs/FIGURES.md). Where the sum goes to both, one shot sends no
 * more bytes than two do, and all of it but the last tile's goes behind products: 1280 rows are
 * 1.07 times as fast so, in bursts 1536 of 8192,4096 are .95. Where it does not, by the elements of
 * C: 512 rows of 4096 columns are 1.08 times as fast, of 5120 and more .86 to .91. */
#define GEMM_RS_FEW_ROWS 512
/* On four, where the sum goes to all: one shot sends twice the bytes; two have tiles of one rank's
 * rows, which must fill one of 128. On four H200s 256 rows are 1.21 and 1.28 times as fast in one
 * shot, 384 and 512 .90 to .97. */
#define GEMM_AR_FEW_ROWS_OF_FOUR 320
#define GEMM_RS_FEW_ROWS_OF_TWO 1024
#define GEMM_RS_FEW_ELEMENTS_OF_TWO (512ull * 4096)
#define GEMM_AR_FEW_ROWS_OF_TWO 1280 /* of FP8 beyond 1024 as simulated: 1.2 to 1.4 times */

static uint64_t gemm_rs_few_rows(const struct mk_problem *q, int gathers)
{
    if (q->engine != MK_ENGINE_MMA && q->topo.gpus == 4 && gathers && !q->fp8)
        return GEMM_AR_FEW_ROWS_OF_FOUR;
    if (q->engine == MK_ENGINE_MMA || q->topo.gpus != 2)
        return GEMM_RS_FEW_ROWS;
    if (gathers)
        return GEMM_AR_FEW_ROWS_OF_TWO;
    if (q->fp8)
        return GEMM_RS_FEW_ROWS;
    const uint64_t rows = GEMM_RS_FEW_ELEMENTS_OF_TWO / (q->n ? q->n : 1);
    return rows < 256                       ? 256 /* fewer were not measured in two shots */
           : rows < GEMM_RS_FEW_ROWS_OF_TWO ? rows
                                            : GEMM_RS_FEW_ROWS_OF_TWO;
}

/* On four, where ranks share tiles: from so many rows on (with a C that a warp delivers, as the
 * simulator says), to so many. Four H200s, C in the heap, 8192,4096 and 4096,8192: 128 to 2048 rows
 * are 1.02 to 1.26 times as fast so, 64 1.04 and .96; more were not measured. */
#define GEMM_AR_SHARED_FROM 65
#define GEMM_AR_SHARED_DELIVERED_FROM 513
#define GEMM_AR_SHARED_ROWS 2048

static int gemm_rs_shares_tiles(const struct mk_problem *q, int gathers)
{
    return gathers && q->exec == MK_EXEC_CUDA && q->engine != MK_ENGINE_MMA && q->topo.nodes == 1 &&
           q->topo.gpus == 4 && !q->fp8 && q->deterministic != MK_EVERYWHERE &&
           q->m >= (q->c_in_heap ? GEMM_AR_SHARED_FROM : GEMM_AR_SHARED_DELIVERED_FROM) &&
           q->m <= GEMM_AR_SHARED_ROWS;
}

/* Whether tiles of one shot are better a pair of CTAs': gemm_ar on two H200s, 512, 768, 1024 rows
 * of 8192,4096 and 4096,8192 1.01, 1.03 and 1.05, 1.04 times as fast; 384, which fill one and a
 * half, .95 and .985. */
#define GEMM_AR_ROWS_OF_PAIR 512

static int gemm_rs_in_pairs(const struct mk_problem *q, int gathers)
{
    return gathers && (q->topo.gpus == 2 || q->tuning.shots == MK_SHARED_COLUMNS) &&
           q->m >= GEMM_AR_ROWS_OF_PAIR && 2 * mk_ceil_div(q->m, 256) == mk_ceil_div(q->m, 128);
}

/* Rows of a block whose tiles a GPU computes column by column: a wave of tiles is then about as
 * high as it is wide, so that little of A and B is read more than once. 32768,32768,4096 on two
 * H200s: 12.9 ms, and 15.3 where a wave was a row of tiles. */
#define ROWS_TOGETHER 2048

/* Of partial sums. GPUs send fp32 sums in 3 bytes (MK_FP24): a deterministic sum is then off by
 * 2^-15 for each part, where rounding it to bf16 costs 2^-9, and 8192,8192,1024 on two H200s sends
 * 101 MB in place of 134, which at NVLink's rate were 0.35 of 0.48 ms. */
uint32_t plan_gemm_rs_element_bytes(const struct mk_problem *q)
{
    return !q->deterministic ? 2 : q->exec == MK_EXEC_CUDA ? 3 : 4;
}

/* On a GPU: what leaves this rank for its node's others, bytes. `gathers`: the sum goes to them,
 * too; in one shot each part goes to all of them, which is as much on two GPUs. */
static double gemm_rs_pushed_bytes(const struct mk_problem *q, int gathers)
{
    if (gathers && q->tuning.shots == MK_ONE_SHOT && q->topo.gpus > 2)
        return (double)q->m * (double)q->n * plan_gemm_rs_element_bytes(q) * (q->topo.gpus - 1.0);
    return (double)q->m * (double)q->n * (plan_gemm_rs_element_bytes(q) + (gathers ? 2 : 0)) *
           (q->topo.gpus - 1.0) / q->topo.gpus;
}

/* Blocks of columns (gemm_ar) have multiples of 16 bytes of C, and of FP8 of blocks of scales. */
uint32_t plan_gemm_rs_columns_unit(const struct mk_problem *q)
{
    return q->fp8 ? 128 : 8;
}

/* How many a rank's has. All have as many where N can be divided, else whole tiles, of which the
 * last ranks have fewer, or none. 0: neither can be. */
uint32_t plan_gemm_rs_columns(const struct mk_problem *q, uint32_t tile_n)
{
    const uint64_t world = mk_world(&q->topo),
                   whole = q->n % tile_n ? 0 : mk_ceil_div(q->n / tile_n, world) * tile_n;
    if (q->n % (plan_gemm_rs_columns_unit(q) * world) == 0)
        return (uint32_t)(q->n / world);
    return whole % plan_gemm_rs_columns_unit(q) ? 0 : (uint32_t)whole;
}

/* The tile with which CTAs have least to do, of those that the plan may have, where blocks are of
 * columns or of rows, and how much that is: in columns of the widest tile, of which 64 take as long
 * as 115 and 128 as 150, of a pair of CTAs as 145; the sum of the last tile passes on behind it (as
 * the simulator says of 16 H200s). UINT64_MAX: there is none. */
static uint64_t gemm_rs_least_work(const struct mk_problem *q, int columns,
                                   struct mk_gemm_tile *best)
{
    const struct mk_tuning *t = &q->tuning;
    const uint64_t world = mk_world(&q->topo), rows = columns ? q->m : mk_ceil_div(q->m, world);
    uint64_t least = UINT64_MAX;
    struct mk_gemm_tile tile;
    for (uint32_t i = 0; plan_gemm_sum_tile(q, i, &tile); i++) {
        const uint64_t n = columns ? plan_gemm_rs_columns(q, tile.tile_n) : q->n,
                       tiles = world * mk_ceil_div(rows, tile.tile_m) * mk_ceil_div(n, tile.tile_n),
                       wave = tile.tile_n <= 64   ? 115
                              : tile.tile_n > 128 ? tile.tile_n
                              : tile.cluster == 2 ? 145
                                                  : 150,
                       engines = q->sms / tile.cluster,
                       work = mk_ceil_div(tiles, engines ? engines : 1) * wave + tile.tile_n;
        if (n && work < least && (!t->tile_m || t->tile_m == tile.tile_m) &&
            (!t->tile_n || t->tile_n == tile.tile_n) &&
            (!t->cluster || t->cluster == tile.cluster)) {
            least = work;
            *best = tile;
        }
    }
    return least;
}

/* Whether blocks are better of columns: between nodes, where there is no one shot, blocks of few
 * rows fill no tile, and for each of W all of B is read again. */
static int gemm_rs_in_columns(const struct mk_problem *q)
{
    struct mk_gemm_tile tile;
    return q->exec == MK_EXEC_CUDA && q->topo.nodes > 1 &&
           gemm_rs_least_work(q, 1, &tile) < gemm_rs_least_work(q, 0, &tile);
}

/* Whether a sum that stays with its owner is better in one shot of tiles of 192 columns, beyond
 * gemm_rs_few_rows: on two H200s 384,8192,4096 56 us in place of 65, 640,4096,8192 82 and 112, 768
 * rows 94 and 113, 400,5120,5120 58 and 73. */
static int gemm_rs_middle(const struct mk_problem *q, int gathers)
{
    struct mk_problem joint = *q;
    struct mk_gemm_tile tile;
    joint.tuning.shots = MK_ONE_SHOT;
    return !gathers && q->exec == MK_EXEC_CUDA && q->topo.nodes == 1 && q->topo.gpus == 2 &&
           !q->tuning.tile_m && !q->tuning.tile_n && !q->tuning.cluster &&
           plan_in_the_middle(&joint, &tile);
}

int plan_choose_gemm_rs_shots(struct mk_problem *q, uint32_t most, int gathers, char *error,
                              size_t size)
{
    if (!q->tuning.shots && gemm_rs_middle(q, gathers))
        q->tuning.shots = MK_ONE_SHOT;
    if (!q->tuning.shots && gemm_rs_shares_tiles(q, gathers))
        q->tuning.shots = MK_SHARED_COLUMNS;
    if (!q->tuning.shots && gathers && gemm_rs_in_columns(q))
        q->tuning.shots = MK_COLUMN_BLOCKS;
    return plan_choose_shots(q, plan_gemm_sum_tile, most, gemm_rs_few_rows(q, gathers),
                             gemm_rs_in_pairs(q, gathers), error, size);
}

/* The defaults. The host's are small, so that a test has many tiles and chunks. */
void plan_choose_gemm_rs(struct mk_problem *q, int gathers)
{
    struct mk_tuning *t = &q->tuning;
    struct mk_gemm_tile tile;
    int cuda = q->exec == MK_EXEC_CUDA;
    uint64_t shard_rows = mk_ceil_div(q->m, t->shots == MK_TWO_SHOT ? mk_world(&q->topo) : 1);
    if (cuda && t->shots == MK_COLUMN_BLOCKS && gemm_rs_least_work(q, 1, &tile) < UINT64_MAX) {
        t->tile_m = tile.tile_m;
        t->tile_n = tile.tile_n;
        t->cluster = tile.cluster;
    }
    plan_choose_gemm_tile(q, plan_gemm_sum_tile, shard_rows > 128, 0);
    if (!t->chunk_rows)
        t->chunk_rows = cuda ? (uint32_t)mk_round_up(ROWS_TOGETHER, t->tile_m) : t->tile_m;
    uint64_t most = mk_round_up(shard_rows, t->tile_m);
    if (t->chunk_rows > most && t->chunk_rows % t->tile_m == 0)
        t->chunk_rows = (uint32_t)most;
    t->pieces = t->pieces ? t->pieces : 1;
    uint32_t *ctas = t->split.ctas, world = mk_world(&q->topo);
    if (mk_total_ctas(&t->split))
        return;
    /* On a GPU who posts to the network needs a thread block of its own; it does nothing but post.
     */
    ctas[MK_INTER_SEND] = q->topo.nodes == 1 ? 0 : cuda && q->sms > 4 ? 2 : 1;
    ctas[MK_COMPUTE] = 2;
    if (cuda && q->sms > ctas[MK_INTER_SEND] + t->cluster)
        ctas[MK_COMPUTE] =
            q->sms - ctas[MK_INTER_SEND] - (q->sms - ctas[MK_INTER_SEND]) % t->cluster;
    ctas[MK_INTRA_COMM] = gathers && world > 1;
    mk_share_blocks(&t->split, cuda && gathers && world > 1);
}

/* Stores to peers that NVLink does not take yet stand in an SM's way to memory before the loads of
 * the GEMM. So the warps that push stay together just below what it takes; and where multiplying is
 * the longer part, below that: at two thirds of what it leaves, but a tile is gone in half the time
 * that one takes, since who adds it waits for it. (2048,8192,4096 on two H200s: 0.202 ms, and 0.219
 * without the latter.) Where the sum goes to all and NVLink is the longer part, warps that also
 * read C from memory do not keep a pace (8192,8192,1024: 0.462 ms, and 0.536 at that of NVLink). */
uint32_t plan_choose_gemm_rs_pace(const struct mk_problem *q, int gathers)
{
    const struct mk_tuning *t = &q->tuning;
    double ctas = t->split.ctas[MK_COMPUTE], pushed = gemm_rs_pushed_bytes(q, gathers),
           multiply = plan_multiply_ns(q), rate = pushed / (0.65 * multiply),
           tiles = (double)mk_ceil_div(q->m, t->tile_m) * (double)mk_ceil_div(q->n, t->tile_n),
           tile_bytes = (double)t->tile_m / t->cluster * t->tile_n * plan_gemm_rs_element_bytes(q),
           tile_ns = multiply * ctas / t->cluster / tiles;
    if (q->exec != MK_EXEC_CUDA || q->topo.gpus == 1 || t->shots == MK_COLUMN_BLOCKS ||
        (gathers && rate > PLAN_SUMS_RATE))
        return MK_PACE_NONE;
    if (rate < ctas * tile_bytes / (0.5 * tile_ns))
        rate = ctas * tile_bytes / (0.5 * tile_ns);
    double most = q->deterministic ? PLAN_SUMS_RATE_OF_RESTS : PLAN_SUMS_RATE;
    if (rate > most)
        rate = most;
    double pace = 512.0 * ctas / rate;
    return pace > PLAN_MOST_PACE ? PLAN_MOST_PACE : (uint32_t)pace;
}

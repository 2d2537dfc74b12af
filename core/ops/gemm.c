/* What all GEMM operators share: their problem, its defaults and its checks. */
#include "core/ops/gemm.h"
#include "core/plan/plan_fields.h"
#include "core/plan/epilogue.h"
#include "core/plan/gemm_tiles_fp16.h"
#include "core/plan/gemm_tiles_fp8.h"
#include "core/base/sentence.h"

#define SPLIT_K                                                                                    \
    4096 /* elements, from which on two CTAs that split K are faster than tiles of 128x64 */

/* The rest of M's dimension is the operator's. */
#define GEMM_SHAPE(...)                                                                            \
    {                                                                                              \
        .option = "shape", .letters = "M,N,K", .heading = "M,N,K",                                 \
        .about = "sizes in elements. If A is gathered, the ranks hold rows of A [M,K], and each "  \
                 "rank has its own B [K,N]. If products are added, each rank has its own A [M,K] " \
                 "and B [K,N]",                                                                    \
        .defaults = "on the host 256 rows per rank,512,512; on GPUs 8192,8192,8192, where the "    \
                    "ranks divide N (A is gathered) or K (products are added)",                    \
        .explored = "33 rows per rank,40,72",                                                      \
        .dimensions = {{"M", "M", offsetof(struct mk_problem, m), OP_MOST, __VA_ARGS__},           \
                       {"N", "N", offsetof(struct mk_problem, n), OP_MOST, .multiple = 8,          \
                        .why = "rows of C must be 16-byte multiples"},                             \
                       {"K", "K", offsetof(struct mk_problem, k), OP_MOST, .multiple = 8,          \
                        .why = "rows of A must be 16-byte multiples"}},                            \
    }

const struct op_shape op_shape_gemm = GEMM_SHAPE(.divides = "W"),
                      op_shape_gemm_whole = GEMM_SHAPE(.divides = NULL);

void op_choose_gemm(enum op_size size, uint64_t world, int shared_k, uint64_t *numbers)
{
    uint64_t part = mk_round_up(8192 / world ? 8192 / world : 8, 8);
    numbers[0] = size == OP_SIZE_GPU    ? mk_round_up(8192, world)
                 : size == OP_SIZE_HOST ? 256 * world
                                        : 33 * world;
    numbers[1] = size == OP_SIZE_GPU ? (shared_k ? 8192 : part) : size == OP_SIZE_HOST ? 512 : 40;
    numbers[2] = size == OP_SIZE_GPU ? (shared_k ? part : 8192) : size == OP_SIZE_HOST ? 512 : 72;
}

double plan_multiply_ns(const struct mk_problem *q)
{
    return 2.0 * (double)q->m * (double)q->n * (double)q->k / (q->fp8 ? 1100e3 : 750e3);
}

static int plan_mma_tile(const struct mk_problem *q, uint32_t i, struct mk_gemm_tile *out)
{
    return q->fp8    ? mk_mma_fp8_tile(i, out)
           : q->fp16 ? mk_mma_fp16_tile(i, out)
                     : mk_mma_tile(i, out);
}

static int plan_any_gemm_tile(const struct mk_problem *q, uint32_t i, struct mk_gemm_tile *out)
{
    return q->engine == MK_ENGINE_MMA ? plan_mma_tile(q, i, out)
           : q->fp8                   ? mk_fp8_tile(i, out)
           : q->fp16                  ? mk_fp16_tile(i, out)
                                      : mk_gemm_tile(i, out);
}

/* Whether a GPU's tile may be of columns that are gated: two runs of B, of 64 columns or more. Of
 * FP8 each lies in one block of scales: runs are 128, or on engine mma 32. */
static int plan_gates(const struct mk_problem *q, const struct mk_gemm_tile *tile)
{
    const uint32_t run = tile->tile_n / 2;
    if (!(q->epilogue & MK_EPILOGUE_GATED) || q->exec != MK_EXEC_CUDA)
        return 1;
    return q->fp8 ? run == 128 || q->engine == MK_ENGINE_MMA : run % 64 == 0;
}

int plan_gemm_tile(const struct mk_problem *q, uint32_t i, struct mk_gemm_tile *out)
{
    struct mk_gemm_tile tile;
    for (uint32_t at = 0; plan_any_gemm_tile(q, at, &tile); at++)
        if (plan_gates(q, &tile) && !i--) {
            *out = tile;
            return 1;
        }
    return 0;
}

int plan_gemm_sum_tile(const struct mk_problem *q, uint32_t i, struct mk_gemm_tile *out)
{
    if (q->engine != MK_ENGINE_MMA && q->deterministic == MK_EVERYWHERE)
        return mk_tree_tile(i, out);
    if (q->engine == MK_ENGINE_MMA || !(q->fp8 || q->fp16))
        return plan_gemm_tile(q, i, out);
    if (q->fp16)
        return q->deterministic ? mk_fp16_part_tile(i, out) : mk_fp16_sum_tile(i, out);
    /* kernels of 256 columns whose sum is gathered have no registers for what follows it */
    return q->epilogue && q->op == MK_OP_GEMM_AR ? mk_fp8_narrow_tile(i, out)
                                                 : mk_fp8_sum_tile(i, out);
}

/* Of engine mma, for products whose rows lie in so many shards: the largest of which there are as
 * many as SMs, and that has rows to fill it, else the smallest. Where its rows are given, one with
 * these. */
static struct mk_gemm_tile plan_choose_mma_tile(const struct mk_problem *q, uint64_t shards)
{
    uint64_t rows = q->m / shards;
    struct mk_gemm_tile tile;
    for (uint32_t i = 0; plan_gemm_tile(q, i, &tile); i++) {
        uint64_t tiles = shards * mk_ceil_div(rows, tile.tile_m) * mk_ceil_div(q->n, tile.tile_n);
        if (q->tuning.tile_m ? tile.tile_m == q->tuning.tile_m
                             : tile.tile_m < rows + 64 && tiles >= q->sms)
            break;
    }
    return tile;
}

void plan_choose_gemm_tile(struct mk_problem *q, plan_tiles *tiles, int pair, int narrow)
{
    const struct mk_gemm_tile on_host = {64, 64, 1};
    struct mk_tuning *t = &q->tuning;
    struct mk_gemm_tile tile, chosen;
    int cuda = q->exec == MK_EXEC_CUDA, found = 0, given = t->cluster != 0;
    if (q->engine == MK_ENGINE_MMA) {
        tile = plan_choose_mma_tile(q, mk_world(&q->topo));
        t->tile_m = t->tile_m ? t->tile_m : tile.tile_m;
        t->tile_n = t->tile_n ? t->tile_n : tile.tile_n;
        t->cluster = t->cluster ? t->cluster : tile.cluster;
        return;
    }
    for (uint32_t i = 0; cuda && !t->cluster && t->tile_m && tiles(q, i, &tile); i++)
        if (tile.tile_m == t->tile_m)
            t->cluster = tile.cluster;
    if (!t->cluster)
        t->cluster = cuda && !t->tile_m && pair && !(narrow && q->fp16) ? 2 : 1;
    tiles(q, 0, &chosen);
    for (uint32_t i = 0; !found && tiles(q, i, &tile); i++)
        if (tile.cluster == t->cluster && (!narrow || tile.tile_n <= tile.tile_m / tile.cluster)) {
            chosen = tile;
            found = 1;
        }
    if (!found && !given)
        t->cluster = chosen.cluster;
    if (!cuda)
        chosen = on_host;
    t->tile_m = t->tile_m ? t->tile_m : chosen.tile_m;
    t->tile_n = t->tile_n ? t->tile_n : chosen.tile_n;
}

/* Whether a plan of one shot may have the tiles of few rows, of which either consumer has half of
 * K: where bits are the same everywhere, two nodes of a tree. */
static int plan_few_rows(const struct mk_problem *q)
{
    return !plan_two_shots(&q->tuning) && q->engine != MK_ENGINE_MMA && !q->fp16 &&
           !(q->epilogue & MK_EPILOGUE_GATED) &&
           (q->deterministic != MK_EVERYWHERE ||
            (q->op != MK_OP_AG_GEMM && mk_world(&q->topo) < MK_SUM_BLOCKS));
}

/* Whether a plan of one shot may have tiles of 192 columns, of which there are kernels of bf16
 * without parts of three bytes. */
static int plan_middle(const struct mk_problem *q, struct mk_gemm_tile *out)
{
    return q->tuning.shots == MK_ONE_SHOT && q->engine != MK_ENGINE_MMA && !q->fp16 && !q->fp8 &&
           !q->deterministic && !(q->epilogue & MK_EPILOGUE_GATED) && mk_middle_tile(0, out);
}

int plan_in_the_middle(const struct mk_problem *q, struct mk_gemm_tile *tile)
{
    const uint64_t rows = mk_ceil_div(q->m, 128), asked = q->tuning.split.ctas[MK_COMPUTE],
                   ctas = asked ? asked : q->sms;
    return plan_middle(q, tile) && rows * mk_ceil_div(q->n, 128) > ctas &&
           rows * mk_ceil_div(q->n, tile->tile_n) <= ctas;
}

/* Of one shot on wgmma: all rows in one tile or as many small tiles as there are SMs, else as many
 * of the next size (by pairs of CTAs that split K, where it is long), else large ones. 177 shapes
 * of 192 to 3072 rows on two H200s (docs/FIGURES.md): 64x64 is up to 1.3 times as fast as 128x64
 * where it still fits. Of fp16 one is built; of e4m3 and the same bits everywhere, which have other
 * tiles, nothing of the kind was measured. */
static struct mk_gemm_tile plan_choose_joint_tile(const struct mk_problem *q, plan_tiles *tiles,
                                                  int pairs)
{
    const uint64_t small = mk_ceil_div(q->m, 64) * mk_ceil_div(q->n, 64),
                   narrow = mk_ceil_div(q->m, 128) * mk_ceil_div(q->n, 64);
    int wide = 0;
    struct mk_gemm_tile tile;
    for (uint32_t i = 0; tiles(q, i, &tile); i++)
        wide |= tile.tile_m == 128 && tile.tile_n == 128;
    if (q->fp16)
        return tile; /* the last of the table */
    if (q->epilogue & MK_EPILOGUE_GATED && q->fp8)
        return tile;                     /* and the only one */
    if (q->epilogue & MK_EPILOGUE_GATED) /* runs of 64 columns at least */
        return (struct mk_gemm_tile){pairs ? 256 : 128, 128, pairs ? 2 : 1};
    mk_few_rows_tile(0, &tile);
    if (plan_few_rows(q) && (q->m <= tile.tile_m || (!q->fp8 && small <= q->sms)))
        return tile;
    if (q->tuning.shots == MK_ONE_SHOT && q->tuning.split_k != 1 && q->k >= SPLIT_K &&
        !plan_no_split_k(q) && mk_split_tile(0, &tile) &&
        mk_ceil_div(q->m, tile.tile_m) * mk_ceil_div(q->n, tile.tile_n) <= q->sms / tile.cluster)
        return tile;
    if (narrow <= q->sms || !wide)
        return (struct mk_gemm_tile){128, 64, 1};
    if (plan_in_the_middle(q, &tile))
        return tile;
    pairs = pairs && !q->fp8 && !q->deterministic;
    return (struct mk_gemm_tile){pairs ? 256 : 128, 128, pairs ? 2 : 1};
}

int plan_choose_shots(struct mk_problem *q, plan_tiles *tiles, uint32_t most, uint64_t most_rows,
                      int pairs, char *error, size_t size)
{
    struct mk_tuning *t = &q->tuning;
    int cuda = q->exec == MK_EXEC_CUDA;
    struct mk_gemm_tile tile;
    char said[PLAN_FIELD_TEXT];
    if (!t->shots)
        t->shots = cuda && q->topo.nodes == 1 && q->m <= most_rows ? MK_ONE_SHOT : MK_TWO_SHOT;
    if (!plan_two_shots(t) && q->topo.nodes > 1)
        return plan_refuse(error, size, "shots=%s over %u nodes: between nodes shots is two_shot%s",
                           plan_field_text(plan_field_named("shots"), t->shots, said),
                           q->topo.nodes, most >= MK_COLUMN_BLOCKS ? " or column_blocks" : "");
    if (t->shots == MK_ONE_SHOT && plan_ragged_scales(q))
        return plan_refuse(error, size,
                           "one shot of FP8 with M = %lu: its ranks' rows of scales follow each "
                           "other in whole 16 bytes, 4 rows of each of %u ranks; two shots take it",
                           q->m, mk_world(&q->topo));
    if (t->shots > most)
        return plan_refuse(error, size, "%s: shots is one_shot or two_shot, not %s",
                           plan_op_name(q->op),
                           plan_field_text(plan_field_named("shots"), t->shots, said));
    if (t->split_k == 2 && !plan_no_split_k(q) && mk_split_tile(0, &tile)) {
        t->tile_m = t->tile_m ? t->tile_m : tile.tile_m;
        t->tile_n = t->tile_n ? t->tile_n : tile.tile_n;
        t->cluster = tile.cluster;
    }
    if (plan_two_shots(t) || !cuda || t->tile_m || t->tile_n || t->cluster)
        return 0;
    tile = q->engine == MK_ENGINE_MMA ? plan_choose_mma_tile(q, 1)
                                      : plan_choose_joint_tile(q, tiles, pairs);
    t->tile_m = tile.tile_m;
    t->tile_n = tile.tile_n;
    t->cluster = tile.cluster;
    if (tile.cluster == 2 && tile.tile_m == 128)
        t->split_k = 2;
    return 0;
}

int plan_joint_tile(const struct mk_problem *q, uint32_t i, struct mk_gemm_tile *out)
{
    if (plan_few_rows(q) && !i--)
        return mk_few_rows_tile(0, out);
    if (q->tuning.split_k == 2 && mk_split_tile(0, out) && !i--)
        return 1;
    return plan_middle(q, out) && !i;
}

int plan_check_gemm_tile(const struct mk_problem *q, plan_tiles *tiles, char *error, size_t size)
{
    const struct mk_tuning *t = &q->tuning;
    const int cuda = q->exec == MK_EXEC_CUDA;
    struct mk_gemm_tile tile;
    char built[256] = "";
    uint32_t count = 0;
    while (tiles(q, count, &tile))
        count++;
    for (uint32_t i = 0;
         cuda && (i < count ? tiles(q, i, &tile) : plan_joint_tile(q, i - count, &tile)); i++) {
        if (tile.tile_m == t->tile_m && tile.tile_n == t->tile_n && tile.cluster == t->cluster)
            return 0;
        mk_append(built, sizeof built, "%s%ux%u on %u", *built ? ", " : "", tile.tile_m,
                  tile.tile_n, tile.cluster);
    }
    if (!cuda)
        return 0;
    return plan_refuse(
        error, size,
        "no GPU kernel is built for tiles of %ux%u on %u CTAs%s; tiles that there are: %s",
        t->tile_m, t->tile_n, t->cluster,
        q->deterministic == MK_EVERYWHERE ? " with the same bits everywhere"
        : q->epilogue & MK_EPILOGUE_GATED ? " with gated columns"
                                          : "",
        built);
}

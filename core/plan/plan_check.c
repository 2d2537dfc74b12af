/* What the plans of all operators check in the same way. */
#include "core/cta/command.h"
#include "core/plan/epilogue.h"
#include "core/cta/halves.h"
#include "core/ops/op.h"
#include "core/base/quantize.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Why a number that is in its range does not fit. */
static int plan_refuse_number(const struct mk_problem *q, const struct op_dimension *d, uint64_t n,
                              uint64_t unit, char *error, size_t size)
{
    unsigned long long world = mk_world(&q->topo), by = unit, next = mk_round_up(n, unit);
    char shares[64] = "";
    if (!d->divides)
        return plan_refuse(error, size, "%s = %llu: %s; the next %s that works is %llu", d->name,
                           (unsigned long long)n, d->why, d->name, next);
    if (!strchr(d->divides, 'W'))
        snprintf(shares, sizeof shares, " (%s)", d->divides);
    else if (by == world)
        snprintf(shares, sizeof shares, " ranks");
    else if (world > 1)
        snprintf(shares, sizeof shares, ", %llu for each of %llu ranks", by / world, world);
    return plan_refuse(error, size,
                       "%s = %llu does not divide by %llu%s; the next that does is %llu", d->name,
                       (unsigned long long)n, by, shares, next);
}

int plan_check_shape(const struct mk_problem *q, char *error, size_t size)
{
    const struct op_dimension *d = op_of(q->op)->shape->dimensions;
    uint64_t numbers[OP_DIMENSIONS];
    uint32_t count = op_numbers(q, numbers);
    for (uint32_t i = 0; i < count; i++)
        if (!numbers[i] || numbers[i] > d[i].most)
            return plan_refuse(error, size, "%s = %lu: must be 1 to %lu%s%s", d[i].name, numbers[i],
                               d[i].most, d[i].why ? "; " : "", d[i].why ? d[i].why : "");
    for (uint32_t i = 0; i < count; i++)
        if (numbers[i] % op_unit(q, i))
            return plan_refuse_number(q, &d[i], numbers[i], op_unit(q, i), error, size);
    return 0;
}

int plan_check_dtype(const struct mk_problem *q, char *error, size_t size)
{
    char list[OP_LIST_TEXT];
    unsigned long long k = q->k;
    if (q->bytes && !op_has_bytes(q->op))
        return plan_refuse(error, size, "dtype=bytes: %s %s; bytes are for %s", plan_op_name(q->op),
                           op_has_fp8(q->op) && !op_of(q->op)->b_layout
                               ? "moves bf16, and tokens of fp8 with their scales"
                               : "computes",
                           op_list(list, sizeof list, op_has_bytes, ", ", " and "));
    if (q->fp16 && !op_has_fp16(q->op))
        return plan_refuse(error, size, "dtype=fp16: %s takes bf16%s; fp16 is for %s",
                           plan_op_name(q->op), op_has_fp8(q->op) ? " or fp8" : " alone",
                           op_list(list, sizeof list, op_has_fp16, ", ", " and "));
    if (q->b_columns && !op_has_b_columns(q->op))
        return plan_refuse(
            error, size, "b_scales=columns: %s takes no scales of columns; they are of FP8 of %s",
            plan_op_name(q->op), op_list(list, sizeof list, op_has_b_columns, ", ", " and "));
    if (q->b_columns && !q->fp8)
        return plan_refuse(error, size, "b_scales=columns with dtype=%s: scales are of dtype=fp8",
                           plan_dtypes[plan_dtype(q)]);
    if (!q->fp8 || op_has_bytes(q->op))
        return 0;
    if (!op_has_fp8(q->op))
        return plan_refuse(error, size, "dtype=fp8: %s takes bf16 alone; fp8 is for %s",
                           plan_op_name(q->op),
                           op_list(list, sizeof list, op_has_fp8, ", ", " and "));
    if (!op_of(q->op)->b_layout) /* it moves records, and multiplies nothing */
        return 0;
    if (!q->b_transposed)
        return plan_refuse(error, size,
                           "dtype=fp8 and B [K,N]: FP8 is multiplied along rows of K; B has to be "
                           "[N,K] (--b-layout nk, b_transposed)");
    if (op_of(q->op)->arguments[0].type != OP_FACTOR) /* records: its dimensions say it all */
        return 0;
    if (k % 16)
        return plan_refuse(error, size,
                           "K = %llu with dtype=fp8: rows of A must be 16-byte multiples; the next "
                           "K that works is %llu",
                           k, (unsigned long long)mk_round_up(k, 16));
    return 0;
}

int plan_check_sums(const struct mk_problem *q, char *error, size_t size)
{
    const struct op_descriptor *op = op_of(q->op);
    if (q->deterministic != MK_EVERYWHERE)
        return 0;
    if (op->bits_vary)
        return plan_refuse(error, size, "the same bits everywhere: %s %s", plan_op_name(q->op),
                           op->bits_vary);
    if (plan_dtype(q) && !op->moves)
        return plan_refuse(error, size,
                           "the same bits everywhere with dtype=%s: of %s it is for bf16",
                           plan_dtypes[plan_dtype(q)], plan_op_name(q->op));
    return 0;
}

int plan_check_back(const struct mk_problem *q, char *error, size_t size)
{
    char list[OP_LIST_TEXT];
    if (!q->back_fp8)
        return 0;
    if (!op_has_back(q->op))
        return plan_refuse(error, size, "back=fp8: %s does not take it; it is of %s",
                           plan_op_name(q->op),
                           op_list(list, sizeof list, op_has_back, ", ", " and "));
    if (q->deterministic)
        return plan_refuse(error, size,
                           "back=fp8 with %s sums: what travels back is rounded to 4 bits, and "
                           "those are not rounded on their way; it is for fast sums",
                           plan_sums[q->deterministic]);
    return 0;
}

/* Of half of B's columns each: rows of C are N / 2 long. */
static int plan_check_gated(const struct mk_problem *q, char *error, size_t size)
{
    char words[EPILOGUE_TEXT];
    if (!(q->epilogue & MK_EPILOGUE_GATED))
        return 0;
    if (!(q->epilogue & MK_EPILOGUE_ACTIVATION))
        return plan_refuse(error, size,
                           "epilogue=%s: gated says what an activation is multiplied by, as in "
                           "silu+gated",
                           epilogue_text(q->epilogue, words));
    const uint64_t run = q->engine == MK_ENGINE_MMA ? 32 : 128;
    if (q->fp8 && !q->b_columns && q->exec == MK_EXEC_CUDA && q->n / 2 % run)
        return plan_refuse(error, size,
                           "epilogue=%s with dtype=fp8: half of N is %lu, and should be a multiple "
                           "of %lu, so that each tile's columns of what is let through lie in one "
                           "block of B's scales",
                           epilogue_text(q->epilogue, words), q->n / 2, run);
    if (q->n % 16)
        return plan_refuse(error, size,
                           "epilogue=%s: N is %lu, and should be a multiple of 16, half of it gate "
                           "and half what it lets through (rows of C must be 16-byte multiples)",
                           epilogue_text(q->epilogue, words), q->n);
    return 0;
}

int plan_check_epilogue(const struct mk_problem *q, char *error, size_t size)
{
    char words[EPILOGUE_TEXT], list[OP_LIST_TEXT];
    if (q->epilogue && !op_has_epilogue(q->op))
        return plan_refuse(error, size, "epilogue=%s: %s has none; it is of %s",
                           epilogue_text(q->epilogue, words), plan_op_name(q->op),
                           op_list(list, sizeof list, op_has_epilogue, ", ", " and "));
    if (q->epilogue & ~(uint32_t)op_of(q->op)->epilogue)
        return plan_refuse(error, size, "epilogue=%s: of %s it is %s",
                           epilogue_text(q->epilogue, words), plan_op_name(q->op),
                           op_of(q->op)->epilogue & MK_EPILOGUE_ROWS
                               ? "residual, residual+rmsnorm or residual+rmsnorm+quantize"
                               : "bias, silu or gelu_tanh, bias+ one of these, and these +gated");
    if ((q->epilogue & MK_EPILOGUE_ROWS) == MK_EPILOGUE_RMSNORM)
        return plan_refuse(error, size,
                           "epilogue=rmsnorm: it follows a residual, as in "
                           "residual+rmsnorm");
    if (q->epilogue & MK_EPILOGUE_QUANTIZE && !(q->epilogue & MK_EPILOGUE_RMSNORM))
        return plan_refuse(error, size,
                           "epilogue=%s: quantize follows an rmsnorm, as in "
                           "residual+rmsnorm+quantize",
                           epilogue_text(q->epilogue, words));
    if (q->epilogue & MK_EPILOGUE_QUANTIZE && q->n % MK_QUANTIZE_DEPTH)
        return plan_refuse(error, size,
                           "epilogue=%s: N is %lu, and should be a multiple of %d: codes of a row "
                           "lie in whole 16 bytes",
                           epilogue_text(q->epilogue, words), q->n, MK_QUANTIZE_DEPTH);
    if (q->eps != 0 && !(q->epilogue & MK_EPILOGUE_RMSNORM))
        return plan_refuse(error, size, "eps=%g: it is of an rmsnorm", (double)q->eps);
    if (!(q->eps >= 0 && q->eps <= 1))
        return plan_refuse(error, size, "eps=%g: it is above 0, and 1 at most", (double)q->eps);
    if ((q->epilogue & MK_EPILOGUE_ACTIVATION) == MK_EPILOGUE_ACTIVATION)
        return plan_refuse(error, size, "epilogue=%s: one activation at most",
                           epilogue_text(q->epilogue, words));
    return plan_check_gated(q, error, size);
}

/* "roles compute=2,...: on 2 x 2 ranks ag_gemm takes at least 1 compute, ... and no inter_reduce
 * CTAs" */
static int plan_check_roles(const struct mk_problem *q, char *error, size_t size)
{
    const uint32_t *ctas = q->tuning.split.ctas;
    int fit = 1;
    for (int role = 0; role < MK_ROLES; role++)
        fit &= (ctas[role] > 0) == op_needs(q->op, &q->topo, role);
    if (fit)
        return 0;
    char takes[160] = "";
    for (int role = 0; role < MK_ROLES; role++)
        mk_append(takes, sizeof takes, "%s%s %s",
                  !role                 ? ""
                  : role + 1 < MK_ROLES ? ", "
                                        : " and ",
                  op_needs(q->op, &q->topo, role) ? "at least 1" : "no", plan_role_name(role));
    return plan_refuse(error, size,
                       "roles compute=%u,intra_comm=%u,inter_send=%u,inter_reduce=%u: on %u x %u "
                       "ranks %s takes %s CTAs",
                       ctas[0], ctas[1], ctas[2], ctas[3], q->topo.nodes, q->topo.gpus,
                       plan_op_name(q->op), takes);
}

/* CTAs of intra_comm that are warps of compute blocks. */
static int plan_check_warps(const struct mk_problem *q, char *error, size_t size)
{
    const struct mk_role_split *s = &q->tuning.split;
    const uint32_t warps = s->intra_comm_warps,
                   most = q->engine == MK_ENGINE_MMA ? MK_MMA_AUXILIARY_WARPS : MK_AUXILIARY_WARPS;
    if (!warps)
        return 0;
    if (op_of(q->op)->own_blocks || !s->ctas[MK_COMPUTE])
        return plan_refuse(error, size,
                           "roles intra_comm=%uw: CTAs of %s have thread blocks of their own; say "
                           "how many there are, as in intra_comm=8",
                           warps, plan_op_name(q->op));
    if (warps > most)
        return plan_refuse(error, size,
                           "roles intra_comm=%uw: a compute block has %u warps for it at most%s",
                           warps, most, q->engine == MK_ENGINE_MMA ? " on engine mma" : "");
    if (s->ctas[MK_INTRA_COMM] != warps * s->ctas[MK_COMPUTE])
        return plan_refuse(error, size,
                           "%u intra_comm CTAs, %u in each of %u compute blocks: not the same "
                           "number; mk_share_blocks counts them",
                           s->ctas[MK_INTRA_COMM], warps, s->ctas[MK_COMPUTE]);
    return 0;
}

/* Behind "all must run at once": how roles are written whose CTAs share blocks, where the counts
 * look like it. Until 2026-11-28 so many CTAs did. */
static const char *plan_say_warps(const struct mk_problem *q, char text[96])
{
    const struct mk_role_split *s = &q->tuning.split;
    const uint32_t compute = s->ctas[MK_COMPUTE], pushing = s->ctas[MK_INTRA_COMM];
    text[0] = '\0';
    if (!s->intra_comm_warps && !op_of(q->op)->own_blocks && compute && pushing &&
        pushing % compute == 0 && pushing / compute <= MK_AUXILIARY_WARPS)
        snprintf(text, 96, "; as warps of compute blocks they are intra_comm=%uw",
                 pushing / compute);
    return text;
}

int plan_choose_engine(struct mk_problem *q, char *error, size_t size)
{
    char ops[OP_LIST_TEXT];
    if (q->exec != MK_EXEC_CUDA && q->engine != MK_ENGINE_DEVICE)
        return plan_refuse(error, size,
                           "engine=%s: CTAs on the host have no engine; it is for --exec cuda and "
                           "emulated",
                           plan_engines[q->engine]);
    if (q->exec == MK_EXEC_CUDA && q->engine == MK_ENGINE_DEVICE)
        q->engine = MK_ENGINE_WGMMA;
    if (q->engine != MK_ENGINE_MMA || op_of(q->op)->mma)
        return 0;
    return plan_refuse(
        error, size,
        "engine=mma: %s has no kernel on it yet, %s have; engine=wgmma runs it on Hopper GPUs",
        plan_op_name(q->op), op_list(ops, sizeof ops, op_on_mma, ", ", " and "));
}

const char *plan_no_split_k(const struct mk_problem *q)
{
    const struct mk_tuning *t = &q->tuning;
    return !(op_of(q->op)->knobs & OP_SPLIT_K) ? "of an operator that has none"
           : q->exec != MK_EXEC_CUDA           ? "on the host"
           : q->engine == MK_ENGINE_MMA        ? "on engine mma"
           : q->fp8                            ? "of FP8"
           : q->fp16                           ? "of fp16"
           : q->deterministic                  ? "with sums in a fixed order"
           : !t->shots || plan_two_shots(t)    ? "in two shots"
                                               : NULL;
}

int plan_ragged_scales(const struct mk_problem *q)
{
    const struct op_descriptor *op = op_of(q->op);
    return q->fp8 && op->knobs & OP_SHOTS && strstr(op->arguments[0].shape, "M/W") &&
           q->m % (4ull * mk_world(&q->topo));
}

/* Thread blocks that must run at once. */
static uint32_t plan_blocks_at_once(const struct mk_problem *q)
{
    const struct mk_role_split *s = &q->tuning.split, first = mk_half_split(s, MK_BEGIN),
                               second = mk_half_split(s, MK_END);
    const uint32_t begin = mk_total_blocks(&first), end = mk_total_blocks(&second);
    return !op_halves(q) ? mk_total_blocks(s) : begin > end ? begin : end;
}

int plan_check_tuning(const struct mk_problem *q, char *error, size_t size)
{
    const struct op_descriptor *op = op_of(q->op);
    const struct mk_tuning *t = &q->tuning;
    const uint32_t *ctas = t->split.ctas;
    char warps[96];
    if (q->sms_most && q->exec != MK_EXEC_CUDA)
        return plan_refuse(error, size,
                           "sms=%u: CTAs on the host take no SMs; roles= says how many there are",
                           q->sms_most);
    if (plan_check_roles(q, error, size))
        return -EINVAL;
    if (plan_check_warps(q, error, size))
        return -EINVAL;
    if (op->knobs & OP_PIECES && t->pieces != 1 && !op_pieces(q->op, &q->topo))
        return plan_refuse(error, size,
                           "%s puts pieces of tiles to other nodes, and there is one node: pieces "
                           "is 1",
                           plan_op_name(q->op));
    if (!(op->knobs & OP_PIECES) && (t->pieces != 1 || t->cluster != 1))
        return plan_refuse(
            error, size,
            "%s moves whole chunks and computes tiles of one CTA: pieces and cluster are 1",
            plan_op_name(q->op));
    for (int role = 0; role < MK_ROLES; role++)
        if (ctas[role] > PLAN_MOST_CTAS)
            return plan_refuse(error, size, "%u %s CTAs: at most %u", ctas[role],
                               plan_role_name(role), PLAN_MOST_CTAS);
    if (t->tile_m > PLAN_MOST_TILE || t->tile_n > PLAN_MOST_TILE)
        return plan_refuse(error, size, "tiles of %u x %u: at most %u each way", t->tile_m,
                           t->tile_n, PLAN_MOST_TILE);
    uint32_t posting = q->topo.nodes > 1 ? ctas[MK_INTER_SEND] + ctas[MK_INTER_REDUCE] : 0;
    if (posting > MK_MAX_RINGS)
        return plan_refuse(error, size,
                           "%u CTAs that post to the network: a rank has %u command rings", posting,
                           MK_MAX_RINGS);
    if (q->exec == MK_EXEC_CUDA && t->cluster &&
        mk_round_up(plan_blocks_at_once(q), t->cluster) > q->sms)
        return plan_refuse(
            error, size, "%u thread blocks in clusters of %u on %s%u SMs: all must run at once%s",
            plan_blocks_at_once(q), t->cluster,
            q->sms_most ? "what sms= or other ranks on the GPU leave to the plan, " : "a GPU of ",
            q->sms, plan_say_warps(q, warps));
    if (!t->cluster || t->cluster > 2 || ctas[MK_COMPUTE] % t->cluster || t->tile_m % t->cluster)
        return plan_refuse(
            error, size, "clusters of %u CTAs: 1 or 2, and compute CTAs and tile rows divide by it",
            t->cluster);
    if (plan_parts_of_k(t) > 1 && plan_no_split_k(q))
        return plan_refuse(error, size, "two CTAs that split K (split-k) %s: split-k is 1",
                           plan_no_split_k(q));
    if (t->pieces > PLAN_MOST_PIECES)
        return plan_refuse(error, size, "%u pieces of a chunk: 1 to %u", t->pieces,
                           PLAN_MOST_PIECES);
    if (!(op->knobs & OP_TILE)) /* it computes nothing */
        return 0;
    if (!t->tile_m || !t->tile_n || t->tile_m % 8 || t->tile_n % 8 ||
        (!op->loose_chunks && t->chunk_rows % t->tile_m))
        return plan_refuse(
            error, size,
            "tiles of %u x %u in chunks of %u rows: tiles are multiples of 8, chunks of tiles",
            t->tile_m, t->tile_n, t->chunk_rows);
    return 0;
}

/* Adds what is too much of: " 4294967296 flags (at most 1048575)". */
static void plan_check_say_excess(char *text, size_t size, const char *what, uint64_t needed,
                                  uint64_t most)
{
    const char *comma = *text ? "," : "";
    if (needed == UINT64_MAX)
        mk_append(text, size, "%s more %s than can be counted", comma, what);
    else if (needed > most)
        mk_append(text, size, "%s %lu %s (at most %lu)", comma, needed, what, most);
}

int plan_take(struct mk_plan *p, uint64_t tiles, uint64_t flags, uint64_t heap_bytes,
              uint64_t put_bytes, char *error, size_t size)
{
    const struct mk_problem *q = &p->problem;
    char excess[256] = "";
    uint64_t heap_left = p->heap_base > MK_CMD_MAX_OFFSET ? 0 : MK_CMD_MAX_OFFSET - p->heap_base;
    plan_check_say_excess(excess, sizeof excess, "tiles", tiles, UINT32_MAX / 2);
    plan_check_say_excess(excess, sizeof excess, "flags", flags,
                          p->flag_base > MK_CMD_MAX_FLAG ? 0 : MK_CMD_MAX_FLAG - p->flag_base);
    plan_check_say_excess(excess, sizeof excess, "heap bytes", heap_bytes, heap_left);
    if (q->topo.nodes > 1)
        plan_check_say_excess(excess, sizeof excess, "bytes in a put", put_bytes, MK_CMD_MAX_BYTES);
    if (*excess)
        return plan_refuse(error, size,
                           "%s of this size, in tiles of %u x %u and chunks of %u rows, needs%s: "
                           "more than a command can name",
                           plan_op_name(q->op), q->tuning.tile_m, q->tuning.tile_n,
                           q->tuning.chunk_rows, excess);
    p->flags = (uint32_t)flags;
    p->heap_bytes = heap_bytes;
    p->tiles = (uint32_t)tiles;
    return 0;
}

/* What the walks through the GEMM operators' schedules share: a wave of tiles, and what they draw.
 */
#include "core/model/gemm.h"
#include "core/ops/op.h"

#include <math.h>

/* Of a tile, 128 bytes of K each. */
static uint64_t model_stages(const struct mk_problem *q)
{
    return mk_ceil_div(q->k * op_factor_bytes(q),
                       MACHINE_STAGE_BYTES * plan_parts_of_k(&q->tuning));
}

/* In each stage of a wave of tiles, where `rows` of A and `columns` of B are loaded once. */
static double model_fetched_once(double engines, double rows, double columns, double tiles)
{
    double waves = engines > 0 && tiles > engines ? tiles / engines : 1;
    return MACHINE_STAGE_BYTES * (rows + columns) / waves;
}

double model_fetched(const struct mk_machine *m, const struct mk_problem *q)
{
    const struct mk_tuning *t = &q->tuning;
    if (!t->cluster || !t->tile_m || !t->tile_n)
        return 0;
    double engines = t->split.ctas[MK_COMPUTE] / t->cluster, columns = mk_ceil_div(q->n, t->tile_n),
           high = t->chunk_rows > t->tile_m ? t->chunk_rows / t->tile_m : 1,
           once = model_fetched_once(engines, (double)q->m, (double)q->n,
                                     (double)mk_ceil_div(q->m, t->tile_m) * columns);
    high = high < engines ? high : engines;
    double wide = engines / high < columns ? engines / high : columns;
    return model_later(once,
                       MACHINE_STAGE_BYTES * wide * t->tile_n *
                           machine_spilled(m, op_factor_bytes(q) * (double)q->n * (double)q->k));
}

double model_row_tiles(double mean, double tile)
{
    double tiles = 1 - exp(-mean), spread = sqrt(mean) * 1.41421356;
    for (double rows = tile; rows < mean + 4 * spread + tile; rows += tile)
        tiles += spread > 0 ? 0.5 * erfc((rows - mean) / spread) : 0;
    return tiles;
}

/* All blocks take tiles once they have nothing to move. An expert that no token has chosen is not
 * loaded. */
double model_fetched_groups(const struct mk_problem *q)
{
    const struct mk_tuning *t = &q->tuning;
    double rows = (double)q->moe.tokens * (double)q->moe.k,
           groups = (double)q->moe.experts / mk_world(&q->topo);
    if (!t->tile_m || !t->tile_n)
        return 0;
    return model_fetched_once(
        mk_total_ctas(&t->split), rows, groups * (1 - exp(-rows / groups)) * (double)q->n,
        groups * model_row_tiles(rows / groups, t->tile_m) * (double)mk_ceil_div(q->n, t->tile_n));
}

struct model_engine model_engine_of(const struct model_walk *w, const struct mk_problem *q,
                                    double beside)
{
    const struct mk_tuning *t = &q->tuning;
    const struct machine_tile *tile =
        machine_tile_of(w->machine, t->tile_m, t->tile_n, plan_row_ctas(t));
    struct machine_load load = {.sms = t->split.ctas[MK_COMPUTE],
                                .slower = w->slower,
                                .beside = beside,
                                .fp8 = q->fp8,
                                .summed = op_of(q->op)->sums,
                                .b_kn = !q->b_transposed};
    struct model_engine e = {.engines = t->split.ctas[MK_COMPUTE] / t->cluster,
                             .stages = model_stages(q),
                             .begin = tile->begin,
                             .end = tile->end};
    if (!e.engines)
        e.engines = 1;
    double fetched = model_fetched(w->machine, q);
    e.stage = machine_stage_ns(w->machine, tile, &load, fetched);
    load.beside_peer = 1;
    e.busy = machine_stage_ns(w->machine, tile, &load, fetched) / e.stage;
    return e;
}

void model_draw(struct model_walk *w, const struct mk_problem *q, double tiles)
{
    const struct mk_tuning *t = &q->tuning;
    /* a product of FP8 counts half: so much of the tensor core's time it takes */
    w->flop = (double)op_factor_bytes(q) * (double)q->m * (double)q->n * (double)q->k;
    w->l2_bytes = tiles * (t->tile_m + (double)t->tile_n) * (double)q->k * op_factor_bytes(q);
    double engines = t->cluster ? t->split.ctas[MK_COMPUTE] / t->cluster : 0, /* at a time */
        from_memory = engines > 0
                          ? model_fetched(w->machine, q) * (double)model_stages(q) * tiles / engines
                          : 0;
    if (w->machine->joule_byte > 0)
        w->l2_bytes += from_memory * w->machine->joule_hbm / w->machine->joule_byte;
}

double model_beside(const struct model_walk *w, double ns, uint32_t ctas)
{
    double beside = w->guess > 0 && ctas ? ns / w->guess / ctas : 0;
    return beside > MK_AUXILIARY_WARPS ? MK_AUXILIARY_WARPS : beside;
}

double model_spend(const struct model_walk *w, double at, double ns, int coresident)
{
    double factor = 1 + (coresident ? w->machine->under : 0), left = w->compute - at;
    if (left <= 0)
        return at + ns;
    return ns * factor <= left ? at + ns * factor : w->compute + ns - left / factor;
}

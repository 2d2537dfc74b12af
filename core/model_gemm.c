/* What the walks through the GEMM operators' schedules share: a wave of tiles, and what they draw.
 */
#include "core/model_gemm.h"

struct model_engine model_engine_of(const struct model_walk *w, const struct mk_problem *q,
                                    double beside)
{
    const struct mk_tuning *t = &q->tuning;
    const struct machine_tile *tile = machine_tile_of(w->machine, t->tile_m, t->tile_n, t->cluster);
    struct machine_load load = {.sms = t->split.ctas[MK_COMPUTE],
                                .slower = w->slower,
                                .beside = beside,
                                .b_kn = !q->b_transposed};
    struct model_engine e = {.engines = t->split.ctas[MK_COMPUTE] / t->cluster,
                             .stages = mk_ceil_div(q->k, 64),
                             .begin = tile->begin,
                             .end = tile->end};
    if (!e.engines)
        e.engines = 1;
    e.stage = machine_stage_ns(w->machine, tile, &load, 0);
    load.beside_peer = 1;
    e.busy = machine_stage_ns(w->machine, tile, &load, 0) / e.stage;
    return e;
}

void model_draw(struct model_walk *w, const struct mk_problem *q, double tiles)
{
    const struct mk_tuning *t = &q->tuning;
    w->flop = 2.0 * (double)q->m * (double)q->n * (double)q->k;
    w->l2_bytes = tiles * (t->tile_m + (double)t->tile_n) * (double)q->k * 2;
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

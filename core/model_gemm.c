/* What the walks through the GEMM operators' schedules share: a wave of tiles, and what they draw.
 */
#include "core/model_gemm.h"

#define STAGE_BYTES (64 * 2) /* of a row or column */

/* Rows of A, columns of B (of all groups) and tiles of a rank's launch. */
struct extent {
    double rows, columns, tiles;
};

static struct extent model_extent(const struct mk_problem *q)
{
    const struct mk_tuning *t = &q->tuning;
    double ranks = mk_world(&q->topo), m = (double)q->m, n = (double)q->n;
    struct extent e = {.rows = m, .columns = n};
    if (q->moe.tokens) { /* about: tokens choose evenly, and each expert's rows begin a tile */
        double groups = (double)q->moe.experts / ranks;
        e.rows = (double)q->moe.tokens * (double)q->moe.k;
        e.columns = groups * n;
        e.tiles = (e.rows / t->tile_m + groups / 2) * (double)mk_ceil_div(q->n, t->tile_n);
    } else {
        e.tiles = (double)mk_ceil_div(q->m, t->tile_m) * (double)mk_ceil_div(q->n, t->tile_n);
    }
    return e;
}

double model_fetched(const struct mk_machine *m, const struct mk_problem *q)
{
    const struct mk_tuning *t = &q->tuning;
    if (!t->cluster || !t->tile_m || !t->tile_n || !q->k || q->attention.sequence)
        return 0;
    double engines = t->split.ctas[MK_COMPUTE] / t->cluster;
    struct extent e = model_extent(q);
    double waves = e.tiles > engines ? e.tiles / engines : 1;
    double once = STAGE_BYTES * (e.rows + e.columns) / waves; /* everything, in all stages */
    if (q->moe.tokens)
        return once;
    /* and columns of B again for each chunk of rows, as far as B does not fit into L2 */
    double columns = (double)mk_ceil_div(q->n, t->tile_n),
           high = t->chunk_rows > t->tile_m ? t->chunk_rows / t->tile_m : 1;
    high = high < engines ? high : engines;
    double wide = engines / high < columns ? engines / high : columns;
    double again =
        STAGE_BYTES * wide * t->tile_n * machine_spilled(m, 2.0 * (double)q->n * (double)q->k);
    return once > again ? once : again;
}

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
    double fetched = model_fetched(w->machine, q);
    e.stage = machine_stage_ns(w->machine, tile, &load, fetched);
    load.beside_peer = 1;
    e.busy = machine_stage_ns(w->machine, tile, &load, fetched) / e.stage;
    return e;
}

void model_draw(struct model_walk *w, const struct mk_problem *q, double tiles)
{
    const struct mk_tuning *t = &q->tuning;
    w->flop = 2.0 * (double)q->m * (double)q->n * (double)q->k;
    w->l2_bytes = tiles * (t->tile_m + (double)t->tile_n) * (double)q->k * 2;
    double engines = t->cluster ? t->split.ctas[MK_COMPUTE] / t->cluster : 0, /* at a time */
        from_memory = engines > 0 ? model_fetched(w->machine, q) * (double)mk_ceil_div(q->k, 64) *
                                        tiles / engines
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

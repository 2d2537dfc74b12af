/* What things take on a machine. */
#include "core/model/machine.h"
#include "core/plan/pipeline.h"

#include <math.h>

#define CTA_ROWS 128
static double machine_cta_rows(const struct machine_tile *t)
{
    return t->tile_m > CTA_ROWS ? CTA_ROWS : t->tile_m;
}

const struct machine_tile *machine_tile_of(const struct mk_machine *m, uint32_t tile_m,
                                           uint32_t tile_n, uint32_t cluster)
{
    const struct machine_tile *best = &m->tiles[0];
    double rows = (double)tile_m / (cluster ? cluster : 1), nearest = 1e300;
    for (uint32_t i = 0; i < MACHINE_TILES && m->tiles[i].tile_m > 0; i++) {
        const struct machine_tile *t = &m->tiles[i];
        double ratio = machine_cta_rows(t) * t->tile_n / (rows * tile_n);
        double away = (ratio < 1 ? 1 / ratio : ratio) + (t->tile_n != tile_n) * 0.5 +
                      (t->tile_m != tile_m) * 0.25;
        if (away < nearest) {
            nearest = away;
            best = t;
        }
    }
    return best;
}

/* What a stage of so many rows and columns takes of L2: an SM's share of its rate; or, of all that
 * multiply, what they load and store and a part of what comes into it from HBM. */
static double machine_cache_ns(const struct mk_machine *m, const struct machine_load *load,
                               double lines, double fetched)
{
    const double loaded = MACHINE_STAGE_BYTES * lines + load->stored, alone = m->sms * loaded,
                 all = (load->engines > 0 ? load->engines : m->sms) * loaded + m->fill * fetched;
    return m->grouped_rate > 0 ? (alone > all ? alone : all) / m->grouped_rate : 0;
}

double machine_stage_ns(const struct mk_machine *m, const struct machine_tile *t,
                        const struct machine_load *load, double fetched)
{
    const double promoted = load->fp8 && load->grouped ? m->promote_moe : 0,
                 wide = load->summed && m->stage_fp8_sums > 0 ? m->stage_fp8_sums : m->stage_fp8,
                 narrow = t->tile_n == 128 ? m->fp8_narrow : 0,
                 fp8 = promoted > 0    ? 1
                       : wide < narrow ? narrow
                                       : wide;
    const double most = machine_cta_rows(t),
                 rows = load->rows > 0 && load->rows < most ? load->rows : most;
    double ns = (t->stage * (load->b_kn ? m->stage_kn : 1) * (load->fp8 && fp8 > 0 ? fp8 : 1) *
                     (rows <= most / 2 ? MK_HALF_TILE : 1) + /* a consumer has none */
                 promoted) *
                load->slower * (1 + m->beside * load->beside + m->beside_peer * load->beside_peer);
    double memory = m->hbm_rate > 0 ? fetched / m->hbm_rate : 0;
    /* loads are ahead of the products: the longer of both counts, near each other somewhat more */
    ns = memory <= 0 ? ns : pow(pow(ns, 4) + pow(memory, 4), 0.25);
    double cache = load->grouped ? machine_cache_ns(m, load, rows + t->tile_n, fetched) : 0;
    return ns > cache ? ns : cache;
}

double machine_tile_ns(const struct mk_machine *m, const struct machine_tile *t,
                       const struct machine_load *load, uint64_t k, double fetched)
{
    return t->begin + (double)mk_ceil_div(k, 64) * machine_stage_ns(m, t, load, fetched) +
           t->end * (load->fp32 ? m->end_fp32 : 1);
}

/* One of `movers`: what it takes alone, and its share of what all of them take. Both add up, as a
 * mover waits for what it has under way. 0 is no limit. */
static double machine_bytes_ns(double start, double bytes, double alone, double all,
                               uint32_t movers)
{
    return start + (alone > 0 ? bytes / alone : 0) + (all > 0 ? movers * bytes / all : 0);
}

/* A warp's stores to peers go on while it loads: it pays for what NVLink takes only where that is
 * longer. A pace that NVLink just about takes meets both limits at times, so that near each other
 * they add up to somewhat more than either. */
#define LIMITS_MEET 8

double machine_copy_ns(const struct mk_machine *m, enum machine_mover mover, uint32_t movers,
                       int to_peer, uint32_t pace, double bytes)
{
    const struct machine_rate *r = &m->movers[mover];
    if (!to_peer)
        return machine_bytes_ns(r->start, bytes, r->own, r->room, movers);
    if (mover == MACHINE_TMA)
        return machine_bytes_ns(r->start, bytes, r->peer, m->nvlink_out, movers);
    double ns = machine_bytes_ns(r->start, bytes, r->peer, 0, movers),
           shared = machine_bytes_ns(0, bytes, 0, m->nvlink_out, movers),
           paced = pace != MK_PACE_NONE ? r->start + m->paced + bytes * pace / 512 : 0;
    if (paced > ns && shared > 0)
        return pow(pow(paced, LIMITS_MEET) + pow(shared, LIMITS_MEET), 1.0 / LIMITS_MEET);
    return shared > ns ? shared : ns;
}

double machine_send_ns(const struct mk_machine *m, int beside, double bytes)
{
    const struct machine_rate *r = &m->movers[MACHINE_WARP];
    double alone = r->start + (r->peer > 0 ? bytes / r->peer : 0),
           slowed = m->send > 0 ? r->start + bytes / m->send : alone * (1 + m->under);
    return beside && slowed > alone ? slowed : alone;
}

double machine_add_ns(const struct mk_machine *m, enum machine_mover mover, uint32_t movers,
                      double bytes)
{
    const struct machine_rate *r = &m->movers[mover];
    return machine_bytes_ns(r->start, bytes, r->add, r->add_room, movers);
}

double machine_spilled(const struct mk_machine *m, double bytes)
{
    return m->l2 > 0 && bytes > m->l2 ? 1 - m->l2 / bytes : 0;
}

double machine_wanted(const struct mk_machine *m, uint32_t movers, uint32_t pace)
{
    double each = m->movers[MACHINE_WARP].peer;
    if (pace != MK_PACE_NONE && 512.0 / pace < each)
        each = 512.0 / pace;
    double over = m->nvlink_out > 0 ? movers * each / m->nvlink_out - 1 : 0;
    return over <= 0 ? 0 : over / (over + 0.3);
}

double machine_slower(const struct mk_machine *m, double ns, double flop, double bytes)
{
    if (m->watts <= m->watts_idle || ns <= 0)
        return 1;
    double drawn = (flop * m->joule_flop + bytes * m->joule_byte) / ns * 1e-3;
    double over = drawn / (m->watts - m->watts_idle);
    double slower = over <= 1 ? 1 : 1 + (over - 1) * ns / (ns + m->heat);
    return m->clock_low > 0 && slower > m->clock / m->clock_low ? m->clock / m->clock_low : slower;
}

struct mk_machine machine_rested(const struct mk_machine *m)
{
    struct mk_machine rested = *m;
    rested.heat = m->heat_rested;
    return rested;
}

static double machine_pcie_ns(const struct mk_machine *m, double bytes)
{
    return m->staged > 0 && m->pcie > 0 ? bytes / m->pcie : 0;
}

double machine_wire_ns(const struct mk_machine *m, double bytes)
{
    double nic = m->nic_rate > 0 ? bytes / m->nic_rate : 0, host = machine_pcie_ns(m, bytes);
    return nic > host ? nic : host;
}

double machine_through_host_ns(const struct mk_machine *m, double bytes)
{
    return m->staged > 0 ? 2 * (machine_pcie_ns(m, bytes) + m->pcie_latency) : 0;
}

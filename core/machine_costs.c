/* What things take on a machine. */
#include "core/machine.h"

const struct machine_tile *machine_tile_of(const struct mk_machine *m, uint32_t tile_m,
                                           uint32_t tile_n)
{
    const struct machine_tile *best = &m->tiles[0];
    double elements = (double)tile_m * tile_n, nearest = 1e300;
    for (uint32_t i = 0; i < MACHINE_TILES && m->tiles[i].tile_m > 0; i++) {
        const struct machine_tile *t = &m->tiles[i];
        double ratio = t->tile_m * t->tile_n / elements,
               away = (ratio < 1 ? 1 / ratio : ratio) + (t->tile_m != tile_m);
        if (away < nearest) {
            nearest = away;
            best = t;
        }
    }
    return best;
}

double machine_stage_ns(const struct mk_machine *m, const struct machine_tile *t,
                        const struct machine_load *load, double fetched)
{
    double ns = t->stage * (load->b_kn ? m->stage_kn : 1) * load->slower *
                (1 + m->beside * load->beside + m->beside_peer * load->beside_peer);
    double memory = m->hbm_rate > 0 ? fetched / m->hbm_rate : 0;
    return memory > ns ? memory : ns;
}

double machine_tile_ns(const struct mk_machine *m, const struct machine_tile *t,
                       const struct machine_load *load, uint64_t k, double fetched)
{
    return t->begin + (double)mk_ceil_div(k, 64) * machine_stage_ns(m, t, load, fetched) +
           t->end * (load->fp32 ? m->end_fp32 : 1);
}

/* A mover's share of what all together are given; 0 is no limit. */
static double machine_share(double rate, double all, uint32_t movers)
{
    double share = movers ? all / movers : all;
    return rate <= 0 || (all > 0 && share < rate) ? share : rate;
}

static double machine_bytes_ns(double start, double bytes, double rate)
{
    return start + (rate > 0 ? bytes / rate : 0);
}

double machine_copy_ns(const struct mk_machine *m, enum machine_mover mover, uint32_t movers,
                       int to_peer, uint32_t pace, double bytes)
{
    const struct machine_rate *r = &m->movers[mover];
    double rate = to_peer ? machine_share(r->peer, m->nvlink_out, movers)
                          : machine_share(r->own, r->room, movers);
    if (to_peer && pace > 1 && 512.0 / pace < rate)
        rate = 512.0 / pace;
    return machine_bytes_ns(r->start, bytes, rate);
}

double machine_add_ns(const struct mk_machine *m, enum machine_mover mover, uint32_t movers,
                      double bytes)
{
    const struct machine_rate *r = &m->movers[mover];
    return machine_bytes_ns(r->start, bytes, machine_share(r->add, r->room, movers));
}

/* Of 1 and more. Without libm, whose last bit is not the same everywhere: all ranks must choose the
 * same plan. */
static double machine_cube_root(double x)
{
    double root = 1 + (x - 1) / 3; /* above the root, from where Newton's steps fall */
    for (int i = 0; i < 30; i++)
        root -= (root - x / (root * root)) / 3;
    return root;
}

/* What of the power goes with the clock goes with about its third power (voltage falls along). */
double machine_slower(const struct mk_machine *m, double ns, double flop, double bytes)
{
    if (m->watts <= m->watts_idle || ns <= 0)
        return 1;
    double drawn = (flop * m->joule_flop + bytes * m->joule_byte) / ns * 1e-3;
    double over = drawn / (m->watts - m->watts_idle);
    return over <= 1 ? 1 : 1 + (machine_cube_root(over) - 1) * ns / (ns + m->heat);
}

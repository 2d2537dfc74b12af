/* Lower bounds of a plan's time on a machine: of its products, memory and wires; the clock under
 * the power limit; and the random spread of times. */
#include "core/plan/gemm_tiles.h"
#include "core/model/model.h"
#include "sim/timed/state.h"

double timed_peak(const struct mk_machine *m)
{
    double best = 0;
    struct mk_gemm_tile tile;
    for (uint32_t i = 0; mk_gemm_tile(i, &tile); i++) {
        const struct machine_tile *t = machine_tile_of(m, tile.tile_m, tile.tile_n, tile.cluster);
        double rate = 2.0 * tile.tile_m / tile.cluster * tile.tile_n * 64 / t->stage * m->sms;
        best = rate > best ? rate : best;
    }
    return best;
}

static double ideal_larger(double a, double b)
{
    return a > b ? a : b;
}

/* flop/ns of a GPU, if the operator has an engine of its own; 0: it uses the GEMM engine. */
static double ideal_engine_rate(const struct mk_machine *m, const struct mk_plan *plan)
{
    const struct mk_problem *q = &plan->problem;
    if (q->exec != MK_EXEC_CUDA || !sim_op_of(q->op)->flop || !q->attention.head_dim)
        return 0;
    return (q->attention.head_dim <= 64 ? m->attention64 : m->attention128) * m->sms;
}

/* Bytes that tiles load through L2. Attention loads K and V once for each tile of queries. */
static double ideal_loaded(const struct mk_machine *m, const struct mk_plan *plan, double flop)
{
    const struct mk_tuning *t = &plan->problem.tuning;
    if (!t->tile_m || !t->tile_n)
        return 0;
    return flop / t->tile_m + (ideal_engine_rate(m, plan) > 0 ? 0 : flop / t->tile_n);
}

double timed_products(const struct mk_machine *m, const struct mk_plan *plan)
{
    double flop, rate = ideal_engine_rate(m, plan);
    uint64_t nvlink, network;
    plan_work(plan, &flop, &nvlink, &network);
    if (rate <= 0 && plan->problem.fp8) /* a stage has twice the products */
        return flop / 2 * (m->stage_fp8 > 0 ? m->stage_fp8 : 1) / timed_peak(m);
    if (rate <= 0)
        return flop / timed_peak(m);
    return flop / rate * machine_slower(m, flop / rate, flop, ideal_loaded(m, plan, flop));
}

double timed_memory(const struct mk_machine *m, const struct mk_plan *plan)
{
    double beyond = plan_memory_bytes(plan) - m->l2;
    return beyond > 0 && m->hbm_rate > 0 ? beyond / m->hbm_rate : 0;
}

/* ns of the longer of NVLink and network. */
static double ideal_wires(const struct mk_machine *m, uint64_t nvlink, uint64_t network)
{
    return ideal_larger((double)nvlink / m->nvlink_in,
                        m->nic_rate > 0 ? (double)network / m->nic_rate : 0);
}

double timed_ideal(const struct mk_machine *m, const struct mk_plan *plan)
{
    double flop;
    uint64_t nvlink, network;
    plan_work(plan, &flop, &nvlink, &network);
    return ideal_larger(ideal_larger(timed_products(m, plan), timed_memory(m, plan)),
                        ideal_wires(m, nvlink, network));
}

/* The factor of the power limit on the clock. It comes from core/model's formula; for an operator
 * without one, from a launch assumed to take 5 % more than its products, or its wires, at full
 * clock. (Of ring attention on two H200s the median error of 32 plans' times is then 2.1 % for
 * held-out ones and 3.3 % for the others.) */
double timed_clock(const struct mk_machine *m, const struct mk_plan *plan)
{
    struct model_time time;
    double flop, rate = ideal_engine_rate(m, plan);
    uint64_t nvlink, network;
    if (plan->problem.exec == MK_EXEC_CUDA && !model_plan(m, plan, &time))
        return time.slower;
    plan_work(plan, &flop, &nvlink, &network);
    double bytes = ideal_loaded(m, plan, flop),
           ns = ideal_larger(flop / (rate > 0 ? rate : timed_peak(m)),
                             ideal_wires(m, nvlink, network));
    if (m->joule_byte > 0)
        bytes += (double)nvlink * m->joule_link / m->joule_byte;
    return machine_slower(m, 1.05 * ns, flop, bytes);
}

double timed_scatter(struct timed_world *w)
{
    if (w->config.jitter <= 0)
        return 1;
    /* the sum of four uniform numbers (Irwin-Hall): nearly normal, and bounded */
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (double)(sim_random(&w->random) >> 40) / (1 << 24);
    double factor = 1 + w->config.jitter * (sum - 2) * 1.7320508;
    return factor > 0.1 ? factor : 0.1;
}

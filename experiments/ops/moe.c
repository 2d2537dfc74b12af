/* What the MoE operators share: which experts tokens name, and with what weights. */
#include "experiments/common/inputs.h"
#include "experiments/job/op.h"

void run_data_ids(const struct run_data *d, uint32_t rank, uint64_t launch, uint32_t *ids)
{
    const struct mk_moe *m = &d->job->problem.moe;
    uint32_t k = (uint32_t)m->k, experts = (uint32_t)m->experts,
             world = mk_world(&d->job->problem.topo);
    int routing = d->job->options.routing, few = routing == RUN_ROUTING_FEW && experts / 2 >= k;
    uint64_t tokens = routing == RUN_ROUTING_NONE
                          ? (rank == world - 1 ? 0 : m->tokens - m->tokens / 8)
                          : m->tokens;
    for (uint64_t token = 0; token < m->tokens; token++) {
        uint64_t bits = inputs_mix(run_data_key(d, 1000 + rank, launch) ^ token),
                 step = 1 + (bits >> 32) % 7;
        uint32_t used = few ? experts / 2 : experts;
        if (used % step == 0 || k * step > used) /* a token names an expert once */
            step = 1;
        for (uint32_t place = 0; place < k; place++) {
            uint32_t expert = (uint32_t)((bits % used + place * step) % used) * (few ? 2 : 1);
            ids[token * k + place] = token >= tokens              ? UINT32_MAX
                                     : routing == RUN_ROUTING_ONE ? (place ? UINT32_MAX : 0)
                                                                  : expert;
        }
    }
}

static void moe_make_weights(const struct run_data *d, uint32_t rank, uint64_t launch,
                             float *weights)
{
    const struct mk_moe *m = &d->job->problem.moe;
    for (uint64_t token = 0; token < m->tokens; token++) {
        float sum = 0;
        for (uint64_t i = token * m->k; i < (token + 1) * m->k; i++)
            sum += weights[i] =
                1 + (float)(inputs_mix(run_data_key(d, 2000 + rank, launch) ^ i) >> 40) * 0x1p-24f;
        for (uint64_t i = token * m->k; i < (token + 1) * m->k; i++)
            weights[i] /= sum; /* as a router's: they add up to 1 */
    }
}

void run_make_moe(const struct run_data *d, uint32_t argument, uint64_t launch, void *to)
{
    if (op_of(d->job->problem.op)->arguments[argument].type == OP_UINT32)
        run_data_ids(d, d->job->identity.rank, launch, to);
    else
        moe_make_weights(d, d->job->identity.rank, launch, to);
}

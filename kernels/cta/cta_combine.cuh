/* Weighted sums (core/cta/cta_combine.h) on a GPU: each thread of a block adds 16 bytes of every term,
 * with as many loads in flight as it has registers for. */
#pragma once

#include "kernels/cta/cta_sums.cuh"

/* One lane's shares of the sum. */
template <int from>
PTX_FN void combine_add(const struct mk_cta *cta, const struct mk_combine *c, char *to)
{
    constexpr uint32_t units = SUMS_LOADS / sums_unit<from>::loads;
    const uint32_t all = (uint32_t)(c->elements / 8);
    const auto term_of = [=](uint32_t term, float *weight) {
        *weight = c->terms[term].weight;
        return (const char *)cta->launch->arguments[c->terms[term].space] + c->terms[term].source;
    };
#pragma unroll 1
    for (uint32_t first = cta_lane(cta); first < all; first += cta->lanes * units)
        sums_add_units<from>(term_of, c->count, first, cta->lanes, all, to, c->to);
}

PTX_SHARED(struct mk_combine, combine_shared, 1);

/* The terms lie in shared memory meanwhile: which one is loaded next is no constant. */
MK_ROLE_CALL void mk_cta_combine(struct mk_cta *cta, const struct mk_combine *of)
{
    const struct gpu_launch *l = cta->launch;
    const struct mk_combine *c = combine_shared;
    cta_meet(cta); /* nobody reads the one before any more */
    if (cta_leads(cta))
        *combine_shared = *of;
    cta_meet(cta);
    char *to = (c->space == MK_SPACE_HEAP ? l->peers[c->local] : (char *)l->arguments[c->space]) +
               c->destination;
    uint64_t start = cta_time(cta);
    if (c->from == MK_FP32)
        combine_add<MK_FP32>(cta, c, to);
    else if (SUMS_FP16 && c->from == MK_FP16)
        combine_add<MK_FP16>(cta, c, to);
    else
        combine_add<MK_BF16>(cta, c, to);
    cta_record(cta, MK_EV_REDUCE, MK_CAUSE_NONE, c->id, start, cta_time(cta));
}

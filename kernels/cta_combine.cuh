/* Weighted sums (core/cta_combine.h) on a GPU: each thread of a block adds 16 bytes of every term,
 * with as many loads in flight as it has registers for. */
#ifndef MK_KERNELS_CTA_COMBINE_CUH
#define MK_KERNELS_CTA_COMBINE_CUH

#include "kernels/cta_sums.cuh"

/* One lane's shares of the sum. */
template <int from>
PTX_FN void combine_add(const struct mk_cta *cta, const struct mk_combine *c, char *to)
{
    constexpr int units = SUMS_LOADS / sums_unit<from>::loads,
                  unit_bytes = from == MK_FP32 ? 32 : 16;
    const uint64_t all = c->elements / 8;
    for (uint64_t first = cta_lane(cta); first < all; first += (uint64_t)cta->lanes * units) {
        float sum[units][8] = {};
        for (uint32_t term = 0; term < c->count; term += SUMS_TERMS) {
            struct sums_unit<from> v[SUMS_TERMS][units];
#pragma unroll
            for (uint32_t i = 0; i < SUMS_TERMS; i++)
#pragma unroll
                for (uint32_t j = 0; j < units; j++) {
                    uint64_t unit = first + j * cta->lanes;
                    if (term + i < c->count && unit < all)
                        v[i][j].load(cta->launch->arguments[c->terms[term + i].space] +
                                     c->terms[term + i].source + unit * unit_bytes);
                    else
                        v[i][j].clear();
                }
#pragma unroll
            for (uint32_t i = 0; i < SUMS_TERMS; i++)
                if (term + i < c->count)
#pragma unroll
                    for (uint32_t j = 0; j < units; j++)
                        v[i][j].add(sum[j], c->terms[term + i].weight);
        }
#pragma unroll
        for (uint32_t j = 0; j < units; j++) {
            uint64_t unit = first + j * cta->lanes;
            if (unit < all)
                sums_store(to + unit * (c->to == MK_FP32 ? 32 : 16), c->to, sum[j]);
        }
    }
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
    else
        combine_add<MK_BF16>(cta, c, to);
    cta_record(cta, MK_EV_REDUCE, MK_CAUSE_NONE, c->id, start, cta_time(cta));
}

#endif

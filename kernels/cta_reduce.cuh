/* mk_cta_reduce (core/cta_reduce.h) on a Hopper GPU, by the lanes of a warp or of a thread block: of one source, as it is. What comes
 * from several is added where it is multiplied (kernels/fragments.cuh), so no plan for a GPU asks for more; one that did would end
 * its launch with an error. */
#ifndef MK_KERNELS_CTA_REDUCE_CUH
#define MK_KERNELS_CTA_REDUCE_CUH

#include "core/cta_reduce.h"
#include "kernels/cta.cuh"

enum { LANES_AHEAD = 8, LANES_BEHIND = 4 };

MK_ROLE_CALL void mk_cta_reduce(struct mk_cta *cta, const struct mk_sum *s)
{
    uint64_t start = cta_time(cta), size = s->from == MK_FP32 ? 4 : 2;
    if (s->sources != 1 || s->from != s->to)
        ptx_fail();
    lanes_copy_rows<LANES_AHEAD, LANES_BEHIND>(
        cta_lane(cta), cta->lanes, cta->launch->heap + s->source, s->columns * size,
        (char *)cta->launch->arguments[s->space] + s->destination, s->row_pitch, (uint32_t)s->elements / s->columns,
        (uint32_t)(s->columns * size / 16), 0);
    cta_record(cta, MK_EV_REDUCE, MK_CAUSE_NONE, s->id, start, cta_time(cta));
}

#endif

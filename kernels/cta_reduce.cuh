/* mk_cta_reduce (core/cta_reduce.h) on a Hopper GPU, by the lanes of a warp or of a thread
 * block. */
#ifndef MK_KERNELS_CTA_REDUCE_CUH
#define MK_KERNELS_CTA_REDUCE_CUH

#include "core/cta_reduce.h"
#include "kernels/cta.cuh"

enum { LANES_AHEAD = 12, LANES_BEHIND = 4 };

/* Adds what one or two 16-byte loads have brought, eight numbers, to `sum`. */
template <int number> PTX_FN void cta_add_8(float (&sum)[8], const uint4 *v)
{
    const uint32_t w[4] = {v[0].x, v[0].y, v[0].z, v[0].w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (number == MK_FP32) {
            const uint32_t behind[4] = {v[1].x, v[1].y, v[1].z, v[1].w};
            sum[i] += __uint_as_float(w[i]);
            sum[4 + i] += __uint_as_float(behind[i]);
        } else {
            sum[2 * i] += __uint_as_float(w[i] << 16);
            sum[2 * i + 1] += __uint_as_float(w[i] & 0xffff0000);
        }
    }
}

PTX_FN void cta_store_8(char *destination, const float (&sum)[8], uint32_t number)
{
    if (number == MK_FP32) {
        *(float4 *)destination = make_float4(sum[0], sum[1], sum[2], sum[3]);
        *(float4 *)(destination + 16) = make_float4(sum[4], sum[5], sum[6], sum[7]);
    } else {
        *(uint4 *)destination =
            make_uint4(ptx_pack_bf16(sum[0], sum[1]), ptx_pack_bf16(sum[2], sum[3]),
                       ptx_pack_bf16(sum[4], sum[5]), ptx_pack_bf16(sum[6], sum[7]));
    }
}

/* Eight numbers of a lane at a time, at `places` places, `ahead` sources of each under way: what a
 * reducer gets done is what it has under way, and that is what registers there are for it. */
template <int number, uint32_t places>
PTX_FN void cta_reduce_lanes(const struct mk_cta *cta, const struct mk_sum *s)
{
    constexpr uint32_t loads = number == MK_FP32 ? 2 : 1, ahead = 4 / loads;
    constexpr uint32_t size = number == MK_FP32 ? 4 : 2;
    const uint32_t elements = (uint32_t)s->elements, step = cta->lanes * 8;
    char *destination = (char *)cta->launch->arguments[s->space] + s->destination;
    for (uint32_t at = cta_lane(cta) * 8; at < elements; at += places * step) {
        const char *from = cta->launch->heap + s->source + (uint64_t)at * size;
        float sum[places][8] = {};
        for (uint32_t source = 0; source < s->sources; source += ahead) {
            uint4 v[ahead][places][loads] = {};
#pragma unroll
            for (uint32_t j = 0; j < ahead; j++, from += s->pitch)
#pragma unroll
                for (uint32_t i = 0; i < places * loads; i++)
                    if (source + j < s->sources && at + i / loads * step < elements)
                        v[j][i / loads][i % loads] =
                            ptx_load_16_l2(from + i / loads * step * size + i % loads * 16);
#pragma unroll
            /* in the order of the sources; a source too many is 0 */
            for (uint32_t i = 0; i < ahead * places; i++)
                cta_add_8<number>(sum[i % places], v[i / places][i % places]);
        }
#pragma unroll
        for (uint32_t place = 0; place < places; place++) {
            uint32_t e = at + place * step, row = e / s->columns;
            if (e < elements)
                cta_store_8(destination + row * s->row_pitch +
                                (e - row * s->columns) * (s->to == MK_FP32 ? 4 : 2),
                            sum[place], s->to);
        }
    }
}

/* Sources that are added have the kernel's kind of numbers. Plans for a GPU never ask to clear. */
MK_ROLE_CALL void mk_cta_reduce(struct mk_cta *cta, const struct mk_sum *s)
{
    uint64_t start = cta_time(cta), size = s->from == MK_FP32 ? 4 : 2;
    if (s->sources == 1 && s->from == s->to)
        lanes_copy_rows<LANES_AHEAD, LANES_BEHIND>(
            cta_lane(cta), cta->lanes, cta->launch->heap + s->source, s->columns * size,
            (char *)cta->launch->arguments[s->space] + s->destination, s->row_pitch,
            (uint32_t)s->elements / s->columns, (uint32_t)(s->columns * size / 16), 0);
    else if (cta->number == MK_FP32)
        cta_reduce_lanes<MK_FP32, 2>(cta, s);
    else if (cta->lanes == 32) /* beside the engine */
        cta_reduce_lanes<MK_BF16, 2>(cta, s);
    else
        cta_reduce_lanes<MK_BF16, 3>(cta, s);
    cta_record(cta, MK_EV_REDUCE, MK_CAUSE_NONE, s->id, start, cta_time(cta));
}

#endif

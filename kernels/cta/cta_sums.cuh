/* Sums of tokens (core/cta/cta_sums.h) on a GPU: by all threads of a block, whose warps take tokens
 * side by side, or share them where they are fewer. A lane finds the term of one of the token's
 * places; in order, 32 lanes then add 16 bytes each of every term, as many loads under way as they
 * have registers for. */
#pragma once

#include "core/cta/cta_sums.h"
#include "kernels/cta/cta_route.cuh"
#include "kernels/cta/cta_rows.cuh"
#include "kernels/engine/half.cuh"
#include "kernels/engine/quantize.cuh"

enum {
    SUMS_TERMS = 4,
    SUMS_LOADS = 2
}; /* that a lane loads at once: terms, 16 bytes of each; at most */
/* And where terms are added each in its way: fewer, by a file before this one whose kernels have no registers for them. */
#ifndef SUMS_EACH_TERMS
#define SUMS_EACH_TERMS SUMS_TERMS
#endif
enum { SUMS_SHARE = MK_SCALE_BLOCK / 8 }; /* lanes of eight numbers each that share a scale */
/* 1, by a file before this one: its operator brings back no records (core/plan/plan.h, back_fp8), and adds
 * in no tree. */
#ifndef SUMS_PLAIN
#define SUMS_PLAIN 0
#endif
/* 1, by a file before this one: sums may be added from shared memory (mk_sums.staged). */
#ifndef SUMS_STAGED
#define SUMS_STAGED 0
#endif
/* 1, by a file before this one: terms and sums may be MK_FP16. */
#ifndef SUMS_FP16
#define SUMS_FP16 0
#endif

/* Lane n has the n-th term. The same count in all, and bits of those that are records. */
struct sums_terms {
    const char *source;
    float weight;
    uint32_t leaf; /* of a tree */
    uint32_t count, records;
};

/* The terms of the lanes that `has` names, in the order of their keys. */
PTX_FN struct sums_terms sums_sort(bool has, uint32_t key, const char *source, float weight,
                                   uint32_t leaf, bool record)
{
    const uint32_t lane = threadIdx.x % 32, all = __ballot_sync(0xffffffff, has);
    uint32_t number = 0, from = 0;
    for (uint32_t left = all; left; left &= left - 1)
        number += __shfl_sync(0xffffffff, key, __ffs(left) - 1) < key;
    for (uint32_t left = all; left; left &= left - 1) {
        uint32_t other = __ffs(left) - 1;
        if (__shfl_sync(0xffffffff, number, other) == lane)
            from = other;
    }
    uint64_t at = __shfl_sync(0xffffffff, (unsigned long long)source, from);
    weight = __shfl_sync(0xffffffff, weight, from);
    if (SUMS_PLAIN)
        return {(const char *)at, weight, 0, (uint32_t)__popc(all), 0};
    const uint32_t records = __ballot_sync(0xffffffff, record);
    return {(const char *)at, weight, __shfl_sync(0xffffffff, leaf, from), (uint32_t)__popc(all),
            __ballot_sync(0xffffffff, (records >> from & 1) && lane < (uint32_t)__popc(all))};
}

/* What adds the rows of an expert that a place of token `i` of the list names (core/cta/cta_sums.h says it
 * of the host). */
struct sums_place {
    uint32_t expert, rank, node, at;
    float weight;
    bool row, part, whole;
};

PTX_FN struct sums_place sums_place_of(const struct gpu_launch *l, const struct mk_sums *s,
                                       uint32_t i, uint32_t place)
{
    const uint64_t at = (uint64_t)i * s->k + place;
    const uint4 record = ptx_load_16_l2((const uint4 *)(l->heap + s->records) + at);
    const bool is = record.x != UINT32_MAX;
    struct sums_place p;
    p.expert = record.x;
    p.rank = is ? record.x / s->rank_experts : 0;
    p.node = mk_node_of(&s->topo, p.rank);
    p.weight = __uint_as_float(record.w);
    const bool near = p.node == mk_node_of(&s->topo, s->topo.rank);
    p.row = is && p.rank == s->topo.rank;
    p.part = is && near && !p.row && s->reach >= MK_REACH_NODE && record.z != UINT32_MAX;
    p.at = record.z;
    p.whole = is && !near && s->reach == MK_REACH_ALL;
    if (p.whole) {
        p.at = ((const uint32_t *)(l->heap + s->whole_at))[at];
        p.whole = p.at != UINT32_MAX;
    }
    return p;
}

/* The terms of token `i` of the list. */
PTX_FN struct sums_terms sums_find(const struct gpu_launch *l, const struct mk_sums *s, uint32_t i)
{
    const char *const heap = l->heap;
    const uint32_t lane = threadIdx.x % 32;
    const uint64_t bytes = mk_sums_bytes(s, s->from);
    uint32_t key = UINT32_MAX;
    const char *source = heap;
    float weight = 1;
    bool has = false, record = false;
    if (lane < s->k) {
        const uint32_t row = ((const uint32_t *)(heap + s->position))[(uint64_t)i * s->k + lane];
        const struct sums_place p = sums_place_of(l, s, i, lane);
        const uint32_t local = mk_local_of(&s->topo, p.rank);
        has = p.row || p.part || p.whole;
        record = !SUMS_PLAIN && has && !p.row && s->carried == MK_E4M3;
        if (p.row) {
            key = p.expert * MK_TERMS + lane;
            source = l->arguments[s->rows_space] + s->rows + row * bytes;
            weight = p.weight;
        } else if (p.part) {
            key = p.rank * s->rank_experts * MK_TERMS;
            source +=
                mk_sums_part(s, local, ((const uint32_t *)(heap + s->parts_first))[local] + p.at);
        } else if (p.whole) {
            key = p.node * s->topo.gpus * s->rank_experts * MK_TERMS;
            source += mk_sums_whole(s, p.node, p.at);
        }
    }
    return sums_sort(has, key, source, weight,
                     has && !SUMS_PLAIN ? mk_sums_leaf(s, key / MK_TERMS) : 0, record);
}

/* Each thread looks at the flags of some places; the lead then waits for the last that was not there,
 * behind which few others are missing. */
MK_ROLE_CALL int mk_cta_wait_sums(struct mk_cta *cta, const struct mk_sums *s,
                                  const struct mk_sums_flags *f)
{
    const struct gpu_launch *l = cta->launch;
    for (;;) {
        uint32_t late = 0;
        for (uint32_t i = cta_lane(cta); i < s->count * s->k; i += cta->lanes) {
            const struct sums_place p = sums_place_of(l, s, s->first + i / s->k, i % s->k);
            const uint32_t flag = p.part ? mk_sums_part_flag(f, mk_local_of(&s->topo, p.rank), p.at)
                                  : p.whole ? mk_sums_whole_flag(f, p.node, p.at)
                                            : 0;
            if ((p.part || p.whole) && flag >= late &&
                ptx_load_relaxed(cta_flag(l->heap, flag)) < cta->epoch)
                late = flag + 1;
        }
        if (cta_lane(cta) < s->count * s->k) /* who has looked */
            ptx_fence_acquire();
        late = rows_max(late);
        if (!late)
            return 0;
        if (mk_cta_wait(cta, late - 1, cta->epoch,
                        late - 1 >= f->whole ? MK_CAUSE_NETWORK : MK_CAUSE_DATA))
            return 1;
    }
}

/* Elements that a unit's loads have: 8, which fp32 takes two loads for. */
template <int number> struct sums_unit {
    static constexpr int loads = number == MK_FP32 ? 2 : 1;
    uint4 v[loads];

    __device__ __forceinline__ void load(const char *from)
    {
#pragma unroll
        for (int i = 0; i < loads; i++)
            v[i] = ptx_load_16_l2(from + i * 16);
    }

    /* Of a record of so many elements unit number `unit`: eight codes, and their scale. */
    __device__ __forceinline__ void load_record(const char *record, uint64_t elements,
                                                uint32_t unit)
    {
        const uint32_t block = unit / SUMS_SHARE;
        const uint2 codes = ptx_load_8_l2(record + unit * 8ull),
                    scales = ptx_load_8_l2(record + elements + block / 2 * 8ull);
        v[0] = make_uint4(codes.x, codes.y, block % 2 ? scales.y : scales.x, 0);
    }

    __device__ __forceinline__ void add_record(float (&sum)[8]) const
    {
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum[j] = __fmaf_rn(quantize_decode((j < 4 ? v[0].x : v[0].y) >> j % 4 * 8),
                               __uint_as_float(v[0].z), sum[j]);
    }

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < loads; i++)
            v[i] = make_uint4(0, 0, 0, 0);
    }

    /* fused: a product is not rounded before it is added. */
    template <bool fused = true>
    __device__ __forceinline__ void add(float (&sum)[8], float weight) const
    {
#pragma unroll
        for (int i = 0; i < loads; i++) {
            const uint32_t w[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (number == MK_FP32) {
                    const float x = __uint_as_float(w[j]);
                    sum[i * 4 + j] = fused ? __fmaf_rn(weight, x, sum[i * 4 + j])
                                           : __fadd_rn(sum[i * 4 + j], __fmul_rn(weight, x));
                } else {
                    sum[2 * j] = __fmaf_rn(weight, half_low<number>(w[j]), sum[2 * j]);
                    sum[2 * j + 1] = __fmaf_rn(weight, half_high<number>(w[j]), sum[2 * j + 1]);
                }
            }
        }
    }
};

/* Eight elements of a sum whose terms are added in turn. */
struct sums_in_turn {
    static constexpr bool fused = true;
    float sum[8] = {};

    __device__ __forceinline__ void go_to(uint32_t)
    {
    }
};

/* Of one whose terms are in leaves of a tree (core/cta/sum_tree.h), from the left: the sums of the leaf, and on each level of the node
 * that waits for its right sibling; 0 where there is none, which adds nothing. All lanes are at the same leaf. */
struct sums_in_tree {
    static constexpr bool fused = false;
    float sum[8] = {}, left[3][8] = {};
    uint32_t at = 0;

    /* From leaf `at` to a later one: the sums of the highest node that ends between them are made. (Leaf by leaf, with zeros for
     * those without terms, moe_ffn of 4096 tokens took 1.8 times as long on two H200s.) */
    __device__ __forceinline__ void go_to(uint32_t leaf)
    {
        const uint32_t passed = at ^ leaf;
        at = leaf;
        if (passed >= 2)
            add_left<0>();
        if (passed >= 4)
            add_left<1>();
        if (passed >= MK_SUM_BLOCKS)
            add_left<2>(); /* the root */
        else if (passed >= 4)
            wait<2>();
        else if (passed >= 2)
            wait<1>();
        else if (passed)
            wait<0>();
    }

  private:
    template <int level> __device__ __forceinline__ void add_left()
    {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum[i] = __fadd_rn(left[level][i], sum[i]);
            left[level][i] = 0;
        }
    }

    template <int level> __device__ __forceinline__ void wait()
    {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            left[level][i] = sum[i];
            sum[i] = 0;
        }
    }
};

template <int element> PTX_FN uint4 sums_pack(const float (&sum)[8])
{
    return make_uint4(half_pack<element>(sum[0], sum[1]), half_pack<element>(sum[2], sum[3]),
                      half_pack<element>(sum[4], sum[5]), half_pack<element>(sum[6], sum[7]));
}

PTX_FN void sums_store(char *to, uint32_t number, const float (&sum)[8])
{
    if (number == MK_FP32) {
        *(uint4 *)to = ptx_copy_4(&sum[0]);
        *(uint4 *)(to + 16) = ptx_copy_4(&sum[4]);
    } else if (SUMS_FP16 && number == MK_FP16) {
        *(uint4 *)to = sums_pack<MK_FP16>(sum);
    } else {
        *(uint4 *)to = sums_pack<MK_BF16>(sum);
    }
}

/* The same of unit number `unit` of a record of so many elements, by all lanes of a warp; `there`:
 * it has the unit. */
PTX_FN void sums_store_record(char *record, uint64_t elements, uint32_t unit, bool there,
                              const float (&sum)[8])
{
    float amax = 0;
#pragma unroll
    for (int j = 0; j < 8; j++)
        amax = quantize_larger(amax, sum[j]);
    amax = quantize_largest_of(amax, SUMS_SHARE);
    const float up = quantize_up(amax);
    if (!there)
        return;
    *(uint2 *)(record + unit * 8ull) =
        make_uint2(quantize_pair(sum[0], sum[1], up) | quantize_pair(sum[2], sum[3], up) << 16,
                   quantize_pair(sum[4], sum[5], up) | quantize_pair(sum[6], sum[7], up) << 16);
    if (unit % SUMS_SHARE == 0)
        ((float *)(record + elements))[unit / SUMS_SHARE] = quantize_scale(amax);
}

/* Terms `term` and following, of which term_of says source and weight, are added to the sums of units
 * unit[]. All are there, so that no load waits for the one before it: behind a condition it would. */
template <int from, int terms, int units, class function>
PTX_FN void sums_add_terms(function term_of, uint32_t term, const uint32_t (&unit)[units],
                           float (&sum)[units][8])
{
    constexpr int unit_bytes = from == MK_FP32 ? 32 : 16;
    struct sums_unit<from> v[terms][units];
    float weight[terms];
#pragma unroll
    for (uint32_t i = 0; i < terms; i++) {
        const char *source = term_of(term + i, &weight[i]);
#pragma unroll
        for (uint32_t j = 0; j < units; j++)
            v[i][j].load(source + (uint64_t)unit[j] * unit_bytes);
    }
#pragma unroll
    for (uint32_t i = 0; i < terms; i++)
#pragma unroll
        for (uint32_t j = 0; j < units; j++)
            v[i][j].add(sum[j], weight[i]);
}

/* Units first, first + step, ... below `all`, of `count` terms, to `to`. */
template <int from, class function>
PTX_FN void sums_add_units(function term_of, uint32_t count, uint32_t first, uint32_t step,
                           uint32_t all, char *to, uint32_t number)
{
    constexpr int units = SUMS_LOADS / sums_unit<from>::loads;
    float sum[units][8] = {};
    uint32_t unit[units], term = 0;
#pragma unroll
    for (uint32_t j = 0; j < units; j++) { /* who has none adds up the last, for nobody */
        unit[j] = first + j * step;
        unit[j] = unit[j] < all ? unit[j] : all - 1;
    }
#pragma unroll 1
    for (; term + SUMS_TERMS <= count; term += SUMS_TERMS)
        sums_add_terms<from, SUMS_TERMS>(term_of, term, unit, sum);
    if (count - term >= 2) {
        sums_add_terms<from, 2>(term_of, term, unit, sum);
        term += 2;
    }
    if (count - term)
        sums_add_terms<from, 1>(term_of, term, unit, sum);
#pragma unroll
    for (uint32_t j = 0; j < units; j++)
        if (first + j * step < all)
            sums_store(to + (uint64_t)unit[j] * (number == MK_FP32 ? 32 : 16), number, sum[j]);
}

/* A warp: the sum of a token's terms, of which `shares` warps make one share each. */
template <int from>
PTX_FN void sums_add(const struct sums_terms *t, uint64_t elements, char *to, uint32_t number,
                     uint32_t share, uint32_t shares)
{
    constexpr uint32_t each = 32 * (SUMS_LOADS / sums_unit<from>::loads);
    const uint32_t all = (uint32_t)(elements / 8);
    const auto term_of = [=](uint32_t term, float *weight) {
        *weight = __shfl_sync(0xffffffff, t->weight, term);
        return (const char *)__shfl_sync(0xffffffff, (unsigned long long)t->source, term);
    };
#pragma unroll 1
    for (uint32_t first = share * each; first < all; first += shares * each)
        sums_add_units<from>(term_of, t->count, first + threadIdx.x % 32, 32, all, to, number);
}

/* The same of terms that are not added one like the other. adder: in what order. carried: some terms are
 * records, and the sum where `number` says so. */
template <int from, class adder, bool carried>
PTX_FN void sums_add_each(const struct sums_terms *t, uint64_t elements, char *to, uint32_t number,
                          uint32_t share, uint32_t shares)
{
    constexpr int units = SUMS_LOADS / sums_unit<from>::loads,
                  unit_bytes = from == MK_FP32 ? 32 : 16;
    const uint32_t all = (uint32_t)(elements / 8), lane = threadIdx.x % 32;
    for (uint32_t first = share * 32 * units; first < all; first += shares * 32 * units) {
        adder sum[units];
        for (uint32_t term = 0; term < t->count; term += SUMS_EACH_TERMS) {
            struct sums_unit<from> v[SUMS_EACH_TERMS][units];
            float weight[SUMS_EACH_TERMS];
            uint32_t leaf[SUMS_EACH_TERMS];
#pragma unroll
            for (uint32_t i = 0; i < SUMS_EACH_TERMS; i++) {
                const char *source =
                    (const char *)__shfl_sync(0xffffffff, (unsigned long long)t->source, term + i);
                weight[i] = __shfl_sync(0xffffffff, t->weight, term + i);
                leaf[i] = __shfl_sync(0xffffffff, t->leaf, term + i);
#pragma unroll
                for (uint32_t j = 0; j < units; j++) {
                    uint32_t unit = first + j * 32 + lane;
                    if (carried && t->records >> (term + i) % 32 & 1 && unit < all)
                        v[i][j].load_record(source, elements, unit);
                    else if (term + i < t->count && unit < all)
                        v[i][j].load(source + (uint64_t)unit * unit_bytes);
                    else
                        v[i][j].clear();
                }
            }
#pragma unroll
            for (uint32_t i = 0; i < SUMS_EACH_TERMS; i++)
                if (term + i < t->count)
#pragma unroll
                    for (uint32_t j = 0; j < units; j++) {
                        sum[j].go_to(leaf[i]);
                        if (carried && t->records >> (term + i) & 1)
                            v[i][j].add_record(sum[j].sum);
                        else
                            v[i][j].template add<adder::fused>(sum[j].sum, weight[i]);
                    }
        }
#pragma unroll
        for (uint32_t j = 0; j < units; j++) {
            uint32_t unit = first + j * 32 + lane;
            sum[j].go_to(MK_SUM_BLOCKS);
            if (carried && number == MK_E4M3)
                sums_store_record(to, elements, unit, unit < all, sum[j].sum);
            else if (unit < all)
                sums_store(to + (uint64_t)unit * (number == MK_FP32 ? 32 : 16), number, sum[j].sum);
        }
    }
}

#if SUMS_STAGED
/* Terms by way of shared memory, where a warp's next stage fills while it adds up one. What is under way
 * costs no registers, and so is twice what lanes have, and no load waits for a sum. */
enum { SUMS_STAGES = 2, SUMS_STAGE_TERMS = 16 };
PTX_SHARED(uint64_t, sums_barriers, MK_ROUTE_WARPS *SUMS_STAGES);

/* A warp's share of a token's pieces, each of so many bytes of every term. */
struct sums_stages {
    uint32_t memory, barriers, bytes; /* of a stage */
    uint32_t piece, row_bytes, first, step;
};

PTX_FN struct sums_stages sums_stages_of(struct mk_cta *cta, const struct mk_sums *s,
                                         uint32_t terms, uint32_t share, uint32_t shares)
{
    const uint32_t warps = cta->lanes / 32, warp = cta_lane(cta) / 32;
    struct sums_stages g;
    g.bytes = s->staged / warps / SUMS_STAGES & ~511u;
    g.memory = ptx_shared(cta->scratch) + warp * SUMS_STAGES * g.bytes;
    g.barriers = ptx_shared(sums_barriers) + warp * SUMS_STAGES * 8;
    g.piece = g.bytes / terms & ~511u; /* 16 bytes a lane */
    g.row_bytes = (uint32_t)s->elements * 2;
    g.first = share * g.piece;
    g.step = shares * g.piece;
    if (!cta->stages && threadIdx.x % 32 == 0) {
        for (uint32_t i = 0; i < SUMS_STAGES; i++)
            ptx_mbar_init(g.barriers + i * 8, 1);
        ptx_mbar_init_fence();
    }
    cta->stages = 1;
    return g;
}

/* All lanes: loads piece number `i` of the share, if there is one, a lane each term. Barriers are there before a lane's load, and
 * nobody reads the stage any more. */
PTX_FN void sums_load_piece(const struct mk_cta *cta, const struct sums_stages *g,
                            const struct sums_terms *t, uint32_t i)
{
    const uint32_t at = g->first + i * g->step, stage = (cta->next_stage + i) % SUMS_STAGES,
                   lane = threadIdx.x % 32, bar = g->barriers + stage * 8;
    if (at >= g->row_bytes)
        return;
    const uint32_t left = g->row_bytes - at, bytes = left < g->piece ? left : g->piece;
    if (lane == 0)
        ptx_mbar_expect(bar, bytes * t->count);
    __syncwarp();
    if (lane < t->count)
        ptx_bulk_load(g->memory + stage * g->bytes + lane * g->piece, t->source + at, bytes, bar);
}

/* A token of 1 to SUMS_STAGE_TERMS terms of 16-bit numbers. */
PTX_FN void sums_add_staged(struct mk_cta *cta, const struct mk_sums *s, const struct sums_terms *t,
                            char *to, uint32_t share, uint32_t shares)
{
    const struct barrier_watch watch = {cta->launch->report->stuck, cta->launch->timeout_ns};
    const struct sums_stages g = sums_stages_of(cta, s, t->count, share, shares);
    uint32_t i = 0;
    for (; i < SUMS_STAGES; i++)
        sums_load_piece(cta, &g, t, i);
    for (i = 0; g.first + i * g.step < g.row_bytes; i++) {
        const uint32_t at = g.first + i * g.step, number = cta->next_stage + i,
                       stage = number % SUMS_STAGES, left = g.row_bytes - at,
                       bytes = left < g.piece ? left : g.piece;
        barrier_wait(&watch, g.barriers + stage * 8, mbar_phase_of_ring<SUMS_STAGES>(number),
                     GPU_BARRIER_COPY, stage, number);
        for (uint32_t first = 0; first < bytes; first += 512) {
            const uint32_t mine = first + threadIdx.x % 32 * 16,
                           unit = mine < bytes ? mine : bytes - 16;
            float sum[8] = {};
            for (uint32_t term = 0; term < t->count; term++) {
                const float weight = __shfl_sync(0xffffffff, t->weight, term);
                struct sums_unit<MK_BF16> u;
                u.v[0] = ptx_load_shared_4(g.memory + stage * g.bytes + term * g.piece + unit);
                u.add(sum, weight);
            }
            if (mine < bytes)
                sums_store(to + at + unit, MK_BF16, sum);
        }
        sums_load_piece(cta, &g, t, i + SUMS_STAGES);
    }
    cta->next_stage += i;
}
#endif

PTX_SHARED(struct mk_sums, sums_shared, 1);

/* What is to be added lies in shared memory meanwhile: registers are for what is loaded. */
MK_ROLE_CALL void mk_cta_add_up(struct mk_cta *cta, const struct mk_sums *of)
{
    const struct gpu_launch *l = cta->launch;
    const struct mk_sums *s = sums_shared;
    cta_meet(cta); /* nobody reads the one before any more */
    if (cta_leads(cta)) {
        *sums_shared = *of;
        if (SUMS_STAGED)
            ptx_fence_async(); /* what waits have acquired is loaded by the TMA unit: for all lanes */
    }
    cta_meet(cta);
    const bool away = s->space == MK_SPACE_HEAP && s->local != l->local;
    char *to = (s->space == MK_SPACE_HEAP ? l->peers[s->local] : (char *)l->arguments[s->space]) +
               s->destination;
    uint64_t start = cta_time(cta);
    if (away)
        cta_copy_open(cta, s->local, s->id); /* it is the sums' way, too */
    /* a row's loads, one after the other, take tens of us: fewer tokens than warps share them */
    const uint32_t warps = cta->lanes / 32,
                   shares = s->count && s->count < warps ? warps / s->count : 1;
    for (uint32_t turn = cta_lane(cta) / 32; turn < s->count * shares; turn += warps) {
        const uint32_t i = turn / shares, share = turn % shares;
        struct sums_terms terms = sums_find(l, s, s->first + i);
        char *at = to + i * mk_sums_bytes(s, s->to);
#if SUMS_STAGED
        if (PTX_HOPPER && s->staged && terms.count - 1 < SUMS_STAGE_TERMS) {
            sums_add_staged(cta, s, &terms, at, share, shares);
            continue;
        }
#endif
        if (!SUMS_PLAIN && s->tree_experts)
            sums_add_each<MK_FP32, struct sums_in_tree, false>(&terms, s->elements, at, s->to,
                                                               share, shares);
        else if (!SUMS_PLAIN && s->carried == MK_E4M3)
            sums_add_each<MK_BF16, struct sums_in_turn, true>(&terms, s->elements, at, s->to, share,
                                                              shares);
        else if (s->from == MK_FP32)
            sums_add<MK_FP32>(&terms, s->elements, at, s->to, share, shares);
        else
            sums_add<MK_BF16>(&terms, s->elements, at, s->to, share, shares);
    }
    if (!away)
        cta_record(cta, MK_EV_REDUCE, MK_CAUSE_NONE, s->id, start, cta_time(cta));
}

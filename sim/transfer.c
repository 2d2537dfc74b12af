/* What the transfers of the CTA interface do to memory: copies, sums, tiles and flags. */
#include "sim/transfer.h"

#include "core/bf16.h"
#include "sim/route.h"

#include <string.h>

/* gcc 12 vectorises these only when asked. */
#if defined(__GNUC__) && !defined(__clang__)
#define VECTORISED __attribute__((optimize("O3")))
#else
#define VECTORISED
#endif

#define LANES 256 /* elements that a sum holds at a time */

VECTORISED static void narrow(uint16_t *to, const float *from, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        to[i] = mk_bf16_from_float(from[i]);
}

void sim_store_part(const struct sim_transfer *t, uint8_t *destination, uint64_t first, uint64_t count)
{
    for (uint64_t i = first / 2, end = (first + count) / 2; i < end;) {
        uint64_t row = i / t->cols, col = i % t->cols,
                 run = t->cols - col < end - i ? t->cols - col : end - i;
        uint64_t at = row * t->pitch + col;
        if (t->number == MK_FP32)
            memcpy(destination + at * 4, t->values + i, run * 4);
        else
            narrow((uint16_t *)(void *)destination + at, t->values + i, run);
        i += run;
    }
}

VECTORISED static void accumulate(float *sum, const uint8_t *from, enum mk_number number, uint64_t count,
                                  int first)
{
    const uint16_t *half = (const uint16_t *)(const void *)from;
    const float *whole = (const float *)(const void *)from;
    if (first)
        for (uint64_t i = 0; i < count; i++)
            sum[i] = number == MK_FP32 ? whole[i] : mk_bf16_to_float(half[i]);
    else
        for (uint64_t i = 0; i < count; i++)
            sum[i] += number == MK_FP32 ? whole[i] : mk_bf16_to_float(half[i]);
}

static void sum_part(const struct sim_rank *r, const struct mk_sum *s, uint64_t first, uint64_t count)
{
    float sum[LANES];
    uint64_t size = s->from == MK_FP32 ? 4 : 2;
    for (uint64_t i = first, n; i < first + count; i += n) {
        uint64_t row = i / s->columns, col = i % s->columns, rest = s->columns - col;
        n = first + count - i < LANES ? first + count - i : LANES;
        n = n < rest ? n : rest;
        for (uint32_t source = 0; source < s->sources; source++) {
            const uint8_t *from = r->spaces[MK_SPACE_HEAP] + s->source + source * s->pitch + i * size;
            accumulate(sum, from, (enum mk_number)s->from, n, source == 0);
        }
        uint8_t *to = r->spaces[s->space] + s->destination + row * s->row_pitch;
        if (s->to == MK_FP32)
            memcpy(to + col * 4, sum, n * 4);
        else
            narrow((uint16_t *)(void *)to + col, sum, n);
    }
}

VECTORISED static void add_weighted(float *sum, const uint8_t *from, enum mk_number number, float weight,
                                    uint64_t count)
{
    const uint16_t *half = (const uint16_t *)(const void *)from;
    const float *whole = (const float *)(const void *)from;
    for (uint64_t i = 0; i < count; i++)
        sum[i] += weight * (number == MK_FP32 ? whole[i] : mk_bf16_to_float(half[i]));
}

static void combine_part(const struct sim_rank *r, const struct mk_combine *c, uint64_t first, uint64_t count)
{
    uint64_t size = c->from == MK_FP32 ? 4 : 2;
    uint8_t *to = r->spaces[c->space] + c->destination;
    for (uint64_t i = first, n; i < first + count; i += n) {
        float sum[LANES] = {0};
        n = first + count - i < LANES ? first + count - i : LANES;
        for (uint32_t term = 0; term < c->count; term++)
            add_weighted(sum, r->spaces[MK_SPACE_HEAP] + c->terms[term].source + i * size,
                         (enum mk_number)c->from, c->terms[term].weight, n);
        if (c->to == MK_FP32)
            memcpy(to + i * 4, sum, n * 4);
        else
            narrow((uint16_t *)(void *)to + i, sum, n);
    }
}

/* Bytes [first, first + count) of a copy, counted over its rows. */
static void copy_part(const struct sim_transfer *t, uint8_t *destination, uint64_t first, uint64_t count)
{
    uint64_t row_bytes = t->row_bytes ? t->row_bytes : t->bytes;
    for (uint64_t i = first, run; i < first + count; i += run) {
        uint64_t row = i / row_bytes, within = i % row_bytes, left = first + count - i;
        run = row_bytes - within < left ? row_bytes - within : left;
        memcpy(destination + row * t->row_pitch + within, t->source + row * t->source_pitch + within, run);
    }
}

void sim_transfer_part(const struct sim_rank *r, const struct sim_transfer *t, uint64_t first, uint64_t count)
{
    if (t->kind == SIM_ROUTE)
        route_make(t->route, r->spaces[MK_SPACE_HEAP], r->spaces[t->route->summary_space]);
    else if (t->kind == SIM_SUM)
        sum_part(r, &t->sum, first / 2, count / 2);
    else if (t->kind == SIM_COMBINE)
        combine_part(r, t->combine, first / 2, count / 2);
    else if (t->kind == SIM_TILE)
        sim_store_part(t, r->peers[t->local] + t->offset, first, count);
    else
        copy_part(t, r->peers[t->local] + t->offset, first, count);
}

void sim_transfer_land(const struct sim_rank *r, const struct sim_transfer *t)
{
    uint64_t *flag = (uint64_t *)(void *)(r->peers[t->local] + t->offset);
    switch (t->kind) {
    case SIM_SET:
        __atomic_store_n(flag, t->value, __ATOMIC_RELEASE);
        break;
    case SIM_ADD:
        __atomic_fetch_add(flag, t->value, __ATOMIC_ACQ_REL);
        break;
    default:
        sim_transfer_part(r, t, 0, t->bytes);
        break;
    }
}

/* What the transfers of the CTA interface do to memory: copies, weighted sums, tiles and flags. */
#include "sim/transfer.h"

#include "core/cta/half.h"
#include "core/base/quantize.h"
#include "core/cta/sum_tree.h"
#include "sim/route.h"
#include "sim/vectorised.h"

#include <string.h>

#define LANES 256 /* elements that a sum holds at a time */

/* number: MK_BF16 or MK_FP16, as of all that has 16 bits below. */
VECTORISED static void narrow(uint16_t *to, const float *from, enum mk_dtype number, uint64_t count)
{
    if (number == MK_FP16)
        for (uint64_t i = 0; i < count; i++)
            to[i] = mk_fp16_from_float(from[i]);
    else
        for (uint64_t i = 0; i < count; i++)
            to[i] = mk_bf16_from_float(from[i]);
}

static void encode(uint8_t *to, const float *from, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        to[i] = mk_e4m3_from_float(from[i]);
}

void sim_store_part(const struct sim_transfer *t, uint8_t *destination, uint64_t first,
                    uint64_t count)
{
    for (uint64_t i = first / 2, end = (first + count) / 2; i < end;) {
        uint64_t row = i / t->cols, col = i % t->cols,
                 run = t->cols - col < end - i ? t->cols - col : end - i;
        uint64_t at = row * t->pitch + col;
        if (t->number == MK_FP32)
            memcpy(destination + at * 4, t->values + i, run * 4);
        else if (t->number == MK_E4M3)
            encode(destination + at, t->values + i, run);
        else
            narrow((uint16_t *)(void *)destination + at, t->values + i, t->number, run);
        i += run;
    }
}

VECTORISED static void add_weighted(float *sum, const uint8_t *from, enum mk_dtype number,
                                    float weight, uint64_t count)
{
    const uint16_t *half = (const uint16_t *)(const void *)from;
    const float *whole = (const float *)(const void *)from;
    for (uint64_t i = 0; i < count; i++)
        sum[i] += weight * (number == MK_FP32   ? whole[i]
                            : number == MK_FP16 ? mk_fp16_to_float(half[i])
                                                : mk_bf16_to_float(half[i]));
}

/* The terms are nodes of a level of a tree: of 2, 4 or 8 pairs are added until one is left. */
static void transfer_add_nodes(const struct sim_rank *r, const struct mk_combine *c, uint64_t at,
                               uint64_t count, float *sum)
{
    for (uint64_t i = 0; i < count; i++) {
        float node[MK_SUM_BLOCKS] = {0};
        for (uint32_t term = 0; term < c->count; term++)
            node[term] = ((const float *)(const void *)(r->spaces[c->terms[term].space] +
                                                        c->terms[term].source))[at + i];
        sum[i] = mk_sum_root(node, c->count);
    }
}

/* Each term is added to its leaf of a tree, in turn. */
static void transfer_add_leaves(const struct sim_rank *r, const struct mk_combine *c, uint64_t at,
                                uint64_t count, float *sum)
{
    for (uint64_t i = 0; i < count; i++) {
        float leaf[MK_SUM_BLOCKS] = {0};
        for (uint32_t term = 0; term < c->count; term++) {
            const struct mk_term *t = &c->terms[term];
            leaf[t->leaf] +=
                t->weight *
                ((const float *)(const void *)(r->spaces[t->space] + t->source))[at + i];
        }
        sum[i] = mk_sum_leaves(leaf);
    }
}

/* Numbers [at, at + count) of a record. */
static void add_record(float *sum, const uint8_t *record, uint64_t elements, uint64_t at,
                       uint64_t count)
{
    const float *scales = (const float *)(const void *)(record + elements);
    for (uint64_t i = 0; i < count; i++)
        sum[i] += mk_e4m3_to_float(record[at + i]) * scales[(at + i) / MK_SCALE_BLOCK];
}

/* How many numbers from `at` on are added at a time: of those before `end`, or a block of a
 * record. */
static uint64_t transfer_run(const struct mk_combine *c, uint64_t at, uint64_t end)
{
    const uint64_t most = c->to == MK_E4M3 ? MK_SCALE_BLOCK : LANES,
                   left = (c->to == MK_E4M3 ? c->elements : end) - at;
    return left < most ? left : most;
}

static void transfer_combine_part(const struct sim_rank *r, const struct mk_combine *c,
                                  uint64_t first, uint64_t count)
{
    uint64_t size = c->from == MK_FP32 ? 4 : 2, end = first + count;
    uint8_t *to =
        (c->space == MK_SPACE_HEAP ? r->peers[c->local] : r->spaces[c->space]) + c->destination;
    /* of a record blocks that end in this part, whole */
    for (uint64_t i = c->to == MK_E4M3 ? first - first % MK_SCALE_BLOCK : first, n; i < end;
         i += n) {
        float sum[LANES] = {0};
        n = transfer_run(c, i, end);
        if (i + n > end)
            break;
        if (c->tree == MK_COMBINE_NODES)
            transfer_add_nodes(r, c, i, n, sum);
        else if (c->tree == MK_COMBINE_LEAVES)
            transfer_add_leaves(r, c, i, n, sum);
        for (uint32_t term = 0; term < c->count && !c->tree; term++) {
            const uint8_t *from = r->spaces[c->terms[term].space] + c->terms[term].source;
            if (c->records >> term & 1)
                add_record(sum, from, c->elements, i, n);
            else
                add_weighted(sum, from + i * size, (enum mk_dtype)c->from, c->terms[term].weight,
                             n);
        }
        if (c->to == MK_FP32)
            memcpy(to + i * 4, sum, n * 4);
        else if (c->to == MK_E4M3)
            ((float *)(void *)(to + c->elements))[i / MK_SCALE_BLOCK] =
                quantize_row_block(sum, n, to + i);
        else
            narrow((uint16_t *)(void *)to + i, sum, (enum mk_dtype)c->to, n);
    }
}

/* Bytes [first, first + count) of a copy, counted over its rows. */
static void transfer_copy_part(const struct sim_transfer *t, uint8_t *destination, uint64_t first,
                               uint64_t count)
{
    uint64_t row_bytes = t->row_bytes ? t->row_bytes : t->bytes;
    for (uint64_t i = first, run; i < first + count; i += run) {
        uint64_t row = i / row_bytes, within = i % row_bytes, left = first + count - i;
        run = row_bytes - within < left ? row_bytes - within : left;
        memcpy(destination + row * t->to_pitch + within, t->source + row * t->row_pitch + within,
               run);
    }
}

static void transfer_keep(const struct sim_rank *r, const struct mk_route *route)
{
    uint8_t *heap = r->spaces[MK_SPACE_HEAP];
    uint64_t *dropped = (uint64_t *)(void *)(heap + route->dropped);
    *dropped += route_keep(route, (const uint32_t *)(const void *)(heap + route->map),
                           (const uint32_t *)(const void *)r->spaces[route->named_space],
                           (uint32_t *)(void *)(heap + route->ids));
}

void sim_transfer_part(const struct sim_rank *r, const struct sim_transfer *t, uint64_t first,
                       uint64_t count)
{
    if (t->kind == SIM_ROUTE && t->route->step == MK_ROUTE_KEEP)
        transfer_keep(r, t->route);
    else if (t->kind == SIM_ROUTE)
        route_make(t->route, r->spaces[MK_SPACE_HEAP],
                   (const uint32_t *)(const void *)(r->spaces[t->route->ids_space] + t->route->ids),
                   t->route->weights_space == MK_SPACE_HEAP
                       ? NULL
                       : (const float *)(const void *)r->spaces[t->route->weights_space],
                   r->spaces[t->route->summary_space]);
    else if (t->kind == SIM_COMBINE)
        transfer_combine_part(r, t->combine, first / 2, count / 2);
    else if (t->kind == SIM_TILE)
        sim_store_part(t, r->peers[t->local] + t->offset, first, count);
    else
        transfer_copy_part(
            t, (t->space == MK_SPACE_HEAP ? r->peers[t->local] : r->spaces[t->space]) + t->offset,
            first, count);
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

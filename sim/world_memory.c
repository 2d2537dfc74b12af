/* How a CTA's stores land, and how its tiles read: as late and in as many pieces as the CTA
 * interface allows.
 */
#include "core/base/quantize.h"
#include "sim/world_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW 8 /* stores of one CTA that may overtake each other */

static struct sim_world_rank *world_memory_rank_of(const struct sim_cta *cta)
{
    return cta->rank->context;
}

static int world_memory_within(uint64_t offset, uint64_t bytes, uint64_t first, uint64_t end)
{
    return offset >= first && bytes <= end && offset <= end - bytes;
}

static int world_memory_combine_in_bounds(const struct sim_world_rank *r,
                                          const struct mk_combine *c, uint64_t first)
{
    uint64_t bytes[MK_SPACES - 1] = {0}, to = mk_combine_bytes(c->elements, c->to);
    op_extents(&r->plan.problem, bytes);
    if (c->count > MK_TERMS || c->space >= MK_SPACES)
        return 0;
    for (uint32_t i = 0; i < c->count; i++) {
        const struct mk_term *t = &c->terms[i];
        int heap = t->space == MK_SPACE_HEAP;
        uint64_t from =
            mk_combine_bytes(c->elements, c->records >> i & 1 ? (uint32_t)MK_E4M3 : c->from);
        if (t->space >= MK_SPACES ||
            !world_memory_within(t->source, from, heap ? first : 0,
                                 heap ? r->heap_bytes : bytes[t->space - MK_SPACE_ARG0]))
            return 0;
    }
    return c->space == MK_SPACE_HEAP
               ? world_memory_within(c->destination, to, first, r->heap_bytes)
               : world_memory_within(c->destination, to, 0, bytes[c->space - MK_SPACE_ARG0]);
}

static int world_memory_in_bounds(const struct sim_world_rank *r, const struct sim_transfer *t)
{
    uint64_t plan_flags = r->plan.flag_base * 8ull, data = plan_flags + r->plan.flags * 8ull,
             bytes = t->bytes;
    if (t->kind == SIM_ROUTE)
        return 1;
    if (t->kind == SIM_COMBINE)
        return world_memory_combine_in_bounds(r, t->combine, data);
    if (t->local >= r->plan.problem.topo.gpus)
        return 0;
    if (t->kind == SIM_TILE) {
        uint64_t rows = t->bytes / 2 / t->cols;
        bytes = ((rows - 1) * t->pitch + t->cols) * (t->number == MK_FP32   ? 4
                                                     : t->number == MK_E4M3 ? 1
                                                                            : 2);
    }
    if (t->kind == SIM_COPY && t->row_bytes && bytes)
        bytes = (bytes / t->row_bytes - 1) * t->to_pitch + t->row_bytes;
    if (t->space != MK_SPACE_HEAP) {
        uint64_t arguments[MK_SPACES - 1] = {0};
        op_extents(&r->plan.problem, arguments);
        return world_memory_within(t->offset, bytes, 0, arguments[t->space - MK_SPACE_ARG0]);
    }
    return SIM_IS_DATA(t->kind) ? world_memory_within(t->offset, bytes, data, r->heap_bytes)
                                : world_memory_within(t->offset, bytes, plan_flags, data);
}

void sim_world_transfer(struct sim_cta *cta, const struct sim_transfer *t)
{
    struct sim_world_rank *r = world_memory_rank_of(cta);
    struct sim_world *w = r->world;
    struct sim_outbox *o = &r->outboxes[cta->grid];
    const struct sim_costs *costs = w->config.costs;
    if (!world_memory_in_bounds(r, t)) {
        sim_cta_internal(cta, SIM_IS_DATA(t->kind) ? "a copy to outside the heap"
                                                   : "a flag outside the plan's");
        return;
    }
    if (o->first + o->count == o->capacity) {
        if (o->first)
            memmove(o->flights, o->flights + o->first, o->count * sizeof *o->flights);
        o->first = 0;
        if (o->count == o->capacity) {
            uint32_t capacity = o->capacity ? 2 * o->capacity : 16;
            struct sim_flight *grown = realloc(o->flights, capacity * sizeof *grown);
            if (!grown) {
                sim_world_error(w, -ENOMEM, "no memory for what is on its way");
                return;
            }
            o->flights = grown;
            o->capacity = capacity;
        }
    }
    uint32_t from = r->plan.problem.topo.rank,
             to = from - mk_local_of(&r->plan.problem.topo, from) + t->local;
    struct sim_flight *f = &o->flights[o->first + o->count++];
    *f = (struct sim_flight){.transfer = *t, .due = w->now};
    if (t->kind == SIM_COMBINE) {
        f->combine = malloc(sizeof *f->combine);
        if (!f->combine) {
            o->count--;
            sim_world_error(w, -ENOMEM, "no memory for what is on its way");
            return;
        }
        *f->combine = *t->combine;
        f->transfer.combine = f->combine;
    }
    if (t->kind == SIM_TILE) {
        f->values = malloc(t->bytes / 2 * sizeof *f->values);
        if (!f->values) {
            o->count--;
            sim_world_error(w, -ENOMEM, "no memory for what is on its way");
            return;
        }
        memcpy(f->values, t->values, t->bytes / 2 * sizeof *f->values);
        f->transfer.values = f->values;
    }
    if (costs && SIM_IS_DATA(t->kind) && costs->copy) {
        uint64_t bytes = t->kind == SIM_COMBINE
                             ? mk_combine_bytes(t->combine->elements, t->combine->to)
                         : t->kind == SIM_TILE && t->number == MK_FP32 ? 2 * t->bytes
                                                                       : t->bytes;
        if (t->kind == SIM_ROUTE || (t->kind == SIM_COMBINE && t->combine->space != MK_SPACE_HEAP))
            to = from;
        else if (t->kind == SIM_COMBINE)
            to = from - mk_local_of(&r->plan.problem.topo, from) + t->combine->local;
        f->due = costs->copy(costs->context, w->now, from, to, bytes);
    }
}

/* Store number `i` of the outbox may land: a flag follows everything before it, bytes follow
 * nothing. */
static int world_memory_may_land(const struct sim_outbox *o, uint32_t i)
{
    const struct sim_flight *f = &o->flights[o->first + i];
    return !f->landed && (i == 0 || SIM_IS_DATA(f->transfer.kind));
}

int sim_outbox_ready(const struct sim_world *w, const struct sim_outbox *o)
{
    for (uint32_t i = 0; i < o->count && i < WINDOW; i++)
        if (o->flights[o->first + i].due <= w->now && world_memory_may_land(o, i))
            return 1;
    return 0;
}

uint64_t sim_outbox_due(const struct sim_outbox *o)
{
    uint64_t due = SIM_NEVER;
    for (uint32_t i = 0; i < o->count && i < WINDOW; i++)
        if (o->flights[o->first + i].due < due && world_memory_may_land(o, i))
            due = o->flights[o->first + i].due;
    return due;
}

/* How much of what is left moves in this step: all, or a multiple of 16 bytes. */
static uint64_t world_memory_part_of(struct sim_world *w, uint64_t left)
{
    if (!w->config.costs && left > 16 && sim_random_below(&w->random, 2))
        return 16 * (1 + sim_random(&w->random) % (left / 16));
    return left;
}

int sim_world_move(struct sim_world *w, uint8_t *destination, const uint8_t *source, uint64_t bytes,
                   uint64_t *moved)
{
    uint64_t part = world_memory_part_of(w, bytes - *moved);
    memcpy(destination + *moved, source + *moved, part);
    *moved += part;
    return *moved == bytes;
}

static void world_memory_land(struct sim_world_rank *r, struct sim_cta *cta, struct sim_flight *f)
{
    const struct sim_transfer *t = &f->transfer;
    struct sim_world *w = r->world;
    if (SIM_IS_DATA(t->kind)) {
        uint64_t part = world_memory_part_of(w, t->bytes - f->moved);
        sim_transfer_part(&r->rank, t, f->moved, part);
        f->moved += part;
        if (f->moved < t->bytes)
            return;
        cta->landed++;
        free(f->values);
        free(f->combine);
        f->values = NULL;
        f->combine = NULL;
    } else {
        const uint64_t *flag =
            (const uint64_t *)(const void *)(r->rank.peers[t->local] + t->offset);
        if (t->kind == SIM_SET && *flag > t->value)
            sim_world_error(w, -EBADMSG,
                            "rank %u set flag %u of local rank %u from %lu back to %lu",
                            r->plan.problem.topo.rank, t->id, t->local, *flag, t->value);
        sim_transfer_land(&r->rank, t);
    }
    f->landed = 1;
}

void sim_outbox_step(struct sim_world_rank *r, uint32_t cta)
{
    struct sim_outbox *o = &r->outboxes[cta];
    uint32_t able = 0, chosen = 0;
    for (uint32_t i = 0; i < o->count && i < WINDOW; i++)
        if (o->flights[o->first + i].due <= r->world->now && world_memory_may_land(o, i) &&
            sim_random_below(&r->world->random, ++able) == 0)
            chosen = i;
    if (able)
        world_memory_land(r, &r->rank.ctas[cta], &o->flights[o->first + chosen]);
    while (o->count && o->flights[o->first].landed) {
        o->first++;
        o->count--;
    }
}

void sim_outbox_free(struct sim_outbox *o)
{
    for (uint32_t i = 0; i < o->count; i++) {
        free(o->flights[o->first + i].values);
        free(o->flights[o->first + i].combine);
    }
    free(o->flights);
}

/* A tile reads its A in two parts, between which everything may happen. */
void sim_world_math(struct sim_cta *cta, const struct mk_tile *tile)
{
    struct sim_world_rank *r = world_memory_rank_of(cta);
    const struct sim_costs *costs = r->world->config.costs;
    float *a =
        r->scratch + (uint64_t)cta->cta.index * r->plan.problem.tuning.tile_m * r->plan.problem.k;
    uint32_t half = tile->rows / 2;
    uint64_t done =
        costs && costs->tile ? costs->tile(costs->context, r->world->now, &r->plan, tile) : 0;
    if (r->world->op->math) {
        cta->ready = done;
        coroutine_yield();
        r->world->op->math(cta, tile, r->world->config.costs ? NULL : coroutine_yield);
        return;
    }
    compute_load_a(&r->rank, tile, 0, half, a);
    coroutine_yield();
    compute_load_a(&r->rank, tile, half, tile->rows - half, a);
    cta->ready = done;
    coroutine_yield();
    compute_store_c(r->compute, cta, tile, a);
}

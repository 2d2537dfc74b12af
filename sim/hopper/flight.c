/* Asynchronous copies between shared and global memory: what is checked where one is issued, and
 * how it goes on later, in pieces and in any order. PTX ISA, cp.async.bulk and
 * cp.async.bulk.tensor. */
#include "sim/hopper/machine.h"
#include "core/base/grow.h"

#include <stdlib.h>
#include <string.h>

struct flight *flight_issue(struct hopper_thread *t, const struct region *r, uint32_t shared,
                            uint32_t data)
{
    struct hopper *h = t->block->machine;
    struct flight *f = calloc(1, sizeof *f + data);
    if (!f || mk_grow(&h->flights, h->flight_count, sizeof *h->flights))
        abort();
    f->block = f->target = t->block;
    f->region = *r;
    f->shared = shared;
    f->where = hopper_where();
    f->issuer = -1;
    h->flights[h->flight_count++] = f;
    return f;
}

static void region_of_run(const void *run, uint32_t bytes, struct region *out)
{
    memset(out, 0, sizeof *out);
    if ((uintptr_t)run % 16 || bytes % 16 || !bytes)
        hopper_mistake("copies %u bytes at %p by a bulk copy: both have to be multiples of 16",
                       bytes, run);
    out->run = (uint8_t *)(uintptr_t)run;
    out->bytes = bytes;
    out->row_bytes = bytes < 128 ? bytes : 128;
    out->rows = (bytes + 127) / 128;
}

/* Checks and notes the global side. */
static void check_global(struct hopper_thread *t, const struct region *r, uint32_t kind,
                         uint32_t entry, uint32_t clock)
{
    uint64_t where = hopper_where();
    for (uint32_t row = 0; row < r->rows; row++) {
        uint8_t *at = NULL;
        uint32_t before, bytes;
        region_row(r, row, &at, &before, &bytes);
        if (bytes && access_async(t, at, bytes, kind, entry, clock, where))
            hopper_stop();
    }
}

/* ---- loads ---- */

/* Of what lands in the target's shared memory and then completes its bytes of the barrier. */
static struct flight *load_issue(struct hopper_thread *t, const struct region *r,
                                 struct hopper_block *target, uint32_t dst, struct mbarrier *m,
                                 uint32_t data)
{
    struct flight *f = flight_issue(t, r, dst, data);
    f->target = target;
    f->grid = target->grid;
    f->mbarrier = m;
    f->phase = m->phase;
    target->loads++;
    return f;
}

static void load_into(struct hopper_thread *t, const struct region *r, struct hopper_block *target,
                      uint32_t dst, uint32_t bar, uint32_t align)
{
    uint8_t *at = shared_at(target, dst, r->bytes, align, "a bulk load");
    struct mbarrier *m = mbarrier_find(target, bar, "a bulk load's barrier");
    uint32_t entry = mbarrier_entry(target, m), clock = m->phase + 1;
    if (!m->fenced)
        hopper_mistake("gives a bulk load the mbarrier at 0x%x, which was initialised without a "
                       "fence for the asynchronous proxy",
                       bar);
    if (access_async(t, at, r->bytes, ACCESS_WRITE | ACCESS_SHARED, entry, clock, hopper_where()))
        hopper_stop();
    check_global(t, r, 0, entry, clock);
    load_issue(t, r, target, dst, m, 0);
    hopper_point();
}

static void load_into_all(struct hopper_thread *t, const struct region *r, uint32_t dst,
                          uint32_t bar, uint32_t align, int to_cluster, uint32_t ranks)
{
    if (!to_cluster) {
        load_into(t, r, t->block, dst, bar, align);
        return;
    }
    if (!ranks)
        hopper_mistake("multicasts a load to no CTA of its cluster");
    for (uint32_t rank = 0; rank < 16; rank++)
        if (ranks >> rank & 1)
            load_into(t, r, block_of_cluster(t->block, rank), dst, bar, align);
}

void hopper_tma_load(uint32_t dst, const struct hopper_box *box, uint32_t bar, int to_cluster,
                     uint32_t ranks)
{
    struct hopper_thread *t = hopper_thread();
    struct region r;
    uint32_t variant = mutated(HOPPER_P_LOAD);
    region_of_box(box, &r);
    if (variant == 1)
        return;
    r.at[1] += variant == 2;
    dst += variant == 3 ? 128 : 0;
    load_into_all(t, &r, dst, bar, 128, to_cluster, ranks);
}

void hopper_bulk_load(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar, int to_cluster,
                      uint32_t ranks)
{
    struct hopper_thread *t = hopper_thread();
    struct region r;
    uint32_t variant = mutated(HOPPER_P_LOAD);
    if (variant == 1)
        return;
    region_of_run(variant == 2 ? (const uint8_t *)src + 16 : src, bytes, &r);
    dst += variant == 3 ? 128 : 0;
    load_into_all(t, &r, dst, bar, 16, to_cluster, ranks);
}

void hopper_store_async(uint32_t dst, const void *from, uint32_t bytes, uint32_t bar, uint32_t rank)
{
    struct hopper_thread *t = hopper_thread();
    struct hopper_block *target = block_of_cluster(t->block, rank);
    uint32_t variant = mutated(HOPPER_P_LOAD);
    hopper_point();
    if (variant == 1)
        return;
    dst += variant == 3 ? 128 : 0;
    uint8_t *at = shared_at(target, dst, bytes, bytes, "an asynchronous store");
    struct mbarrier *m = mbarrier_find(target, bar, "an asynchronous store's barrier");
    if (access_late(t, at, bytes, ACCESS_WRITE, mbarrier_entry(target, m), m->phase + 1,
                    hopper_where()))
        hopper_stop();
    const struct region of = {.rows = 1, .bytes = bytes, .row_bytes = bytes};
    struct flight *f = load_issue(t, &of, target, dst, m, bytes);
    memcpy(f->data, variant == 2 ? (const uint8_t *)t : from, bytes);
    f->region.run = f->data;
    hopper_point();
}

/* Some of the rows that are left. */
static uint32_t portion(struct hopper *h, const struct flight *f)
{
    uint32_t left = f->region.rows - f->moved;
    return left > 1 && !f->moved && sim_random_below(&h->random, 2)
               ? 1 + sim_random_below(&h->random, left - 1)
               : left;
}

/* Rows land, then the barrier is told of their bytes, those outside the tensor included. */
static int step_load(struct hopper *h, struct flight *f)
{
    const struct region *r = &f->region;
    uint32_t rows = portion(h, f), landed = 0;
    uint8_t row[4096], *shared = f->target->shared;
    if (f->target->grid != f->grid) {
        hopper_fail(h, "rank %u: a load lands in a block that has left", rank_of(f->block));
        return 1;
    }
    for (; rows; rows--, f->moved++) {
        uint8_t *from = NULL;
        uint32_t before, bytes, all = r->row_bytes;
        if (r->run && r->bytes - f->moved * r->row_bytes < all)
            all = r->bytes - f->moved * r->row_bytes;
        region_row(r, f->moved, &from, &before, &bytes);
        memset(row, r->tensor.fill && !r->run ? 0x7f : 0, all);
        if (bytes)
            memcpy(row + before, from, bytes);
        for (uint32_t i = 0; i < all; i += 16)
            memcpy(shared + region_swizzle(r, f->shared + f->moved * r->row_bytes + i) -
                       SHARED_WINDOW,
                   row + i, 16);
        landed += all;
    }
    mbarrier_bytes(f->target, f->mbarrier, landed, f->phase, f->where);
    if (f->moved < r->rows)
        return 0;
    f->target->loads--;
    return 1;
}

/* ---- stores ---- */

static struct issuer *issuer_of(struct hopper_thread *t)
{
    struct hopper_block *b = t->block;
    for (int i = 0; t->issuer < 0 && i < KNOWN_ISSUERS; i++)
        if (!b->issuers[i].thread) {
            t->issuer = i;
            b->issuers[i].thread = t;
        }
    if (t->issuer < 0)
        hopper_mistake(
            "issues bulk stores; more than %d threads of a block that do are beyond this model",
            KNOWN_ISSUERS);
    return &b->issuers[t->issuer];
}

static void store_from(struct hopper_thread *t, const struct region *r, uint32_t src,
                       uint32_t align, enum hopper_reduction reduction, enum hopper_number number)
{
    struct hopper_block *b = t->block;
    uint8_t *at = shared_at(b, src, r->bytes, align, "a bulk store");
    struct issuer *i = issuer_of(t);
    uint32_t first = b->global_sm * KNOWN_ENTRIES + (uint32_t)t->issuer, group = i->committed + 1;
    if (access_async(t, at, r->bytes, ACCESS_SHARED, first + KNOWN_STORE_READ, group,
                     hopper_where()))
        hopper_stop();
    check_global(t, r, ACCESS_WRITE | (reduction ? ACCESS_STRONG : 0), first + KNOWN_STORE_WRITE,
                 group);
    struct flight *f = flight_issue(t, r, src, r->bytes);
    f->issuer = t->issuer;
    f->group = group;
    f->reduction = reduction;
    f->number = number;
    i->open++;
    hopper_point();
}

void hopper_tma_store(const struct hopper_box *box, uint32_t src, enum hopper_reduction reduction)
{
    static const uint8_t numbers[] = {HOPPER_BYTES, HOPPER_BYTES, HOPPER_U32, HOPPER_S32,
                                      HOPPER_U64,   HOPPER_BYTES, HOPPER_F16, HOPPER_F32,
                                      HOPPER_BYTES, HOPPER_BF16};
    struct region r;
    uint32_t variant = mutated(HOPPER_P_STORE);
    region_of_box(box, &r);
    if (variant == 1)
        return;
    r.at[1] += variant == 2;
    /* Seen on an H200 (docs/EMULATION.md); loads may begin below 0. */
    for (uint32_t i = 0; i < r.tensor.rank; i++)
        if (r.at[i] < 0)
            hopper_mistake("stores a box that begins at %d of dimension %u: an H200 takes a tensor "
                           "store that begins below 0 for an illegal instruction",
                           r.at[i], i);
    src += variant == 3 ? 128 : 0;
    enum hopper_number number = (enum hopper_number)numbers[r.tensor.type];
    if (reduction && number == HOPPER_BYTES)
        hopper_mistake("reduces into a tensor of a type that has no reductions");
    store_from(hopper_thread(), &r, src, 128, reduction, number);
}

void hopper_bulk_store(void *dst, uint32_t src, uint32_t bytes, enum hopper_reduction reduction,
                       enum hopper_number number)
{
    struct region r;
    uint32_t variant = mutated(HOPPER_P_STORE);
    if (variant == 1)
        return;
    region_of_run(variant == 2 ? (uint8_t *)dst + 16 : dst, bytes, &r);
    src += variant == 3 ? 128 : 0;
    store_from(hopper_thread(), &r, src, 16, reduction, number);
}

static int step_store(struct hopper *h, struct flight *f)
{
    const struct region *r = &f->region;
    if (!f->read) {
        for (uint32_t i = 0; i < r->bytes; i += 16)
            memcpy(f->data + i, f->block->shared + region_swizzle(r, f->shared + i) - SHARED_WINDOW,
                   16);
        f->read = 1;
        return 0;
    }
    for (uint32_t rows = portion(h, f); rows; rows--, f->moved++) {
        uint8_t *to = NULL;
        uint32_t before, bytes;
        region_row(r, f->moved, &to, &before, &bytes);
        if (bytes)
            reduce_row(to, f->data + f->moved * r->row_bytes + before, bytes, f->reduction,
                       f->number);
    }
    return f->moved == r->rows;
}

void hopper_bulk_commit(void)
{
    struct hopper_thread *t = hopper_thread();
    if (mutated(HOPPER_P_COMMIT))
        return;
    struct issuer *i = issuer_of(t);
    i->committed++;
    i->open = 0;
}

static int done_up_to(const struct hopper *h, const struct hopper_thread *t, uint32_t group,
                      int only_read)
{
    for (uint32_t i = 0; i < h->flight_count; i++) {
        const struct flight *f = h->flights[i];
        if (f->block == t->block && f->issuer == t->issuer && !f->mbarrier && f->group <= group &&
            !(only_read && f->read))
            return 0;
    }
    return 1;
}

void hopper_bulk_wait(uint32_t pending, int only_read)
{
    struct hopper_thread *t = hopper_thread();
    struct hopper_block *b = t->block;
    uint32_t variant = mutated(HOPPER_P_BULK_WAIT);
    hopper_point();
    if (t->issuer < 0 || variant == 1)
        return;
    if (variant == 2 && only_read)
        pending++;
    only_read |= variant == 2;
    uint32_t group = b->issuers[t->issuer].committed,
             entry = b->global_sm * KNOWN_ENTRIES + (uint32_t)t->issuer;
    if (group <= pending)
        return;
    group -= pending;
    while (!done_up_to(b->machine, t, group, only_read))
        hopper_wait(t, THREAD_BULK);
    thread_learn_event(t, entry + KNOWN_STORE_READ, group);
    if (!only_read)
        thread_learn_event(t, entry + KNOWN_STORE_WRITE, group);
}

/* ---- going on ---- */

static void drop(struct hopper *h, uint32_t i)
{
    free(h->flights[i]);
    h->flights[i] = h->flights[--h->flight_count];
}

void flights_step(struct hopper *h)
{
    uint32_t i = sim_random_below(&h->random, h->flight_count);
    struct flight *f = h->flights[i];
    struct hopper_thread *t = f->issuer >= 0 ? f->block->issuers[f->issuer].thread : NULL;
    if (f->copier ? copies_land(h, f) : f->mbarrier ? step_load(h, f) : step_store(h, f))
        drop(h, i);
    if (t && t->state == THREAD_BULK)
        thread_wake(t);
}

void flights_drop(struct hopper *h, uint32_t rank)
{
    for (uint32_t i = 0; i < h->flight_count;)
        if (h->flights[i]->block->rank == rank)
            drop(h, i);
        else
            i++;
}

/* A block's shared memory must outlive what reads or writes it; what it has read is written before
 * its kernel ends, and the next kernel sees it, whether anybody has waited for that or not. */
void flights_of_block_ended(struct hopper_block *b)
{
    struct hopper *h = b->machine;
    char line[200];
    if (b->loads)
        hopper_fail(
            h, "rank %u, block %u: ended while %u loads into its shared memory were on their way",
            rank_of(b), b->number, b->loads);
    for (uint32_t i = 0; i < h->flight_count && !h->failed;) {
        struct flight *f = h->flights[i];
        if (f->block != b || f->mbarrier) {
            i++;
            continue;
        }
        if (!f->read) {
            where_text(f->where, line, sizeof line);
            hopper_fail(
                h,
                "rank %u, block %u: ended while the bulk store of %s still reads its shared memory",
                rank_of(b), b->number, line);
            return;
        }
        while (!step_store(h, f))
            ;
        uint32_t entry = b->global_sm * KNOWN_ENTRIES + KNOWN_STORE_WRITE + (uint32_t)f->issuer;
        b->grid->done = known_event(h, b->grid->done, entry, f->group);
        drop(h, i);
    }
    for (uint32_t i = 0; i < KNOWN_ISSUERS; i++)
        if (b->issuers[i].thread)
            b->grid->done =
                known_event(h, b->grid->done, b->global_sm * KNOWN_ENTRIES + KNOWN_STORE_WRITE + i,
                            b->issuers[i].committed);
}

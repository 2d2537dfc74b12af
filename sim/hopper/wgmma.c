/* Tensor cores. A product is issued by the lanes of four warps; here each warp's part, 16 of the 64
 * rows, is executed by itself, at any time up to the wait for it. Until then accumulators hold a
 * pattern that is no number. PTX ISA, asynchronous warpgroup level matrix instructions; layouts
 * after CUTLASS's mma_traits_sm90_gmma.hpp. */
#include "core/cta/half.h"
#include "sim/hopper/machine.h"

#include <stdlib.h>
#include <string.h>

#define POISON 0x7fc0dead

/* A matrix in shared memory, taken from its descriptor. */
struct operand {
    uint32_t start, leading, stride, row; /* row: bytes of a swizzled row; 16: no swizzle */
    int mn_major;
};

static struct operand operand_of(uint64_t d, uint32_t mn_major, const char *which)
{
    /* by the layout field, whose order is not TMA's */
    static const uint32_t rows[] = {16, 128, 64, 32};
    struct operand o = {(uint32_t)(d & 0x3fff) << 4, (uint32_t)(d >> 16 & 0x3fff) << 4,
                        (uint32_t)(d >> 32 & 0x3fff) << 4, rows[d >> 62], (int)mn_major};
    if (d >> 49 & 7)
        hopper_mistake(
            "multiplies a descriptor of %s with a base offset, which this model does not have",
            which);
    if (d & ~0xc000000000000000ull & ~0x00003fff3fff3fffull)
        hopper_mistake("multiplies a descriptor of %s that has bits outside its fields: 0x%lx",
                       which, d);
    if (o.row > 16 && o.start % (8 * o.row) >= o.row)
        hopper_mistake("multiplies a descriptor of %s at 0x%x that begins in the middle of a "
                       "swizzle pattern of %u bytes",
                       which, o.start, 8 * o.row);
    return o;
}

/* Address of the 16 bytes that hold elements [8 unit, 8 unit + 8) of `row`: of K where K runs along
 * rows, else of M or N in row k. (Of e4m3, which is half as large, twice as many.) */
static uint32_t unit_at(const struct operand *o, uint32_t row, uint32_t unit)
{
    uint32_t units = o->row / 16, at = o->start;
    if (o->row == 16)
        at += o->mn_major ? unit * o->stride + row % 8 * 16 + row / 8 * o->leading
                          : row % 8 * 16 + row / 8 * o->stride + unit * o->leading;
    else if (o->mn_major)
        at +=
            unit % units * 16 + unit / units * o->leading + row % 8 * o->row + row / 8 * o->stride;
    else
        at += row % 8 * o->row + row / 8 * o->stride + unit * 16;
    return at ^ ((at >> 7 & (units - 1)) << 4);
}

/* Calls for each 16 bytes of 16 elements of K times `count` of M or N from `first` on. */
static void operand_units(const struct operand *o, uint32_t first, uint32_t count,
                          void (*unit)(void *context, uint32_t address, uint32_t mn, uint32_t k),
                          void *context)
{
    if (o->mn_major) {
        for (uint32_t k = 0; k < 16; k++)
            for (uint32_t i = first / 8; i < (first + count) / 8; i++)
                unit(context, unit_at(o, k, i), i * 8 - first, k);
        return;
    }
    for (uint32_t r = first; r < first + count; r++)
        for (uint32_t k = 0; k < 16; k += 8)
            unit(context, unit_at(o, r, k / 8), r - first, k);
}

/* ---- issuing ---- */

struct check {
    struct hopper_thread *thread;
    struct shadow_actor actor;
    struct shadow_event event;
};

static void check_unit(void *context, uint32_t address, uint32_t mn, uint32_t k)
{
    const struct check *c = context;
    struct hopper *h = c->thread->block->machine;
    uint8_t *at = shared_at(c->thread->block, address, 16, 16, "wgmma reads");
    if (h->config.races && shadow_access(&h->shadow, &c->actor, &c->event, at, 16) && h->failed)
        hopper_stop();
}

static uint32_t entry_of(const struct hopper_warp *w)
{
    return w->block->global_sm * KNOWN_ENTRIES + KNOWN_WGMMA + w->number;
}

/* What the product will read is there, and this lane knows. */
static void check_operands(struct hopper_thread *t, const struct hopper_product *p, uint32_t number)
{
    struct check c = {.thread = t,
                      .event = {entry_of(t->warp), t->warp->products_clock + number + 1,
                                hopper_where(), ACCESS_ASYNC | ACCESS_SHARED}};
    actor_of(t, &c.actor);
    struct operand b = operand_of(p->b_descriptor, p->b_mn_major, "B");
    operand_units(&b, 0, p->n, check_unit, &c);
    if (p->a)
        return;
    struct operand a = operand_of(p->a_descriptor, p->a_mn_major, "A");
    operand_units(&a, t->warp->number % 4 * 16, 16, check_unit, &c);
}

static int same(const struct hopper_product *a, const struct hopper_product *b)
{
    return a->a_descriptor == b->a_descriptor && a->b_descriptor == b->b_descriptor &&
           a->n == b->n && !a->accumulate == !b->accumulate && a->a_mn_major == b->a_mn_major &&
           a->b_mn_major == b->b_mn_major && !a->a == !b->a && a->e4m3 == b->e4m3 &&
           a->f16 == b->f16;
}

static void make_queue(struct hopper_warp *w)
{
    if (w->products)
        return;
    w->products = calloc(PRODUCTS, sizeof *w->products);
    w->accumulators = calloc(ACCUMULATORS, sizeof *w->accumulators);
    if (!w->products || !w->accumulators)
        abort();
}

/* The four warps of a warpgroup multiply the same matrices in the same order. */
static void compare_warps(struct hopper_warp *w, uint32_t number)
{
    struct hopper_warp *first = &w->block->warp[w->number / 4 * 4];
    for (uint32_t i = 0; i < 4; i++) {
        const struct hopper_warp *other = &first[i];
        if (other == w || other->formed <= number || other->formed - number > PRODUCTS)
            continue;
        if (!same(&other->products[number % PRODUCTS].of, &w->products[number % PRODUCTS].of))
            hopper_mistake("issues another product than warp %u of its warpgroup did as number %u",
                           other->number, number);
    }
}

static uint32_t fragment_row(uint32_t lane, uint32_t i)
{
    return lane / 4 + 8 * (i >> 1 & 1);
}

static uint32_t fragment_column(uint32_t lane, uint32_t i)
{
    return 8 * (i >> 2) + 2 * (lane % 4) + (i & 1);
}

/* The accumulators that this lane's registers are: under way already, or taken out of the registers
 * now. All lanes of a product have the same. */
static void take_accumulators(struct hopper_thread *t, const struct hopper_product *p,
                              struct product *q, uint32_t number)
{
    struct accumulators *all = t->warp->accumulators;
    uint32_t poison = POISON, bit = 1u << t->lane;
    for (int i = 0; i < ACCUMULATORS && !q->accumulators; i++)
        if (all[i].last && all[i].of[t->lane] == p->d && (all[i].poisoned & bit))
            q->accumulators = &all[i];
    for (int i = 0; i < ACCUMULATORS && !q->accumulators; i++)
        if (!all[i].last) {
            q->accumulators = &all[i];
            memset(&all[i], 0, sizeof all[i]);
            all[i].n = p->n;
        }
    struct accumulators *a = q->accumulators;
    if (!a)
        hopper_mistake("has products under way on more than %d sets of accumulators, which is this "
                       "model's limit",
                       ACCUMULATORS);
    if (a->n != p->n)
        hopper_mistake("issues a product of another shape on accumulators that are under way");
    a->last = number + 1 > a->last ? number + 1 : a->last;
    if (a->of[t->lane] && (a->of[t->lane] != p->d || !(a->poisoned & bit)))
        hopper_mistake(
            "issues a product on other accumulators than the lanes of its warp before it");
    if (a->of[t->lane])
        return;
    if (!t->fenced_registers)
        hopper_mistake(
            "issues a product on registers that it may have touched, without wgmma.fence");
    a->of[t->lane] = p->d;
    a->poisoned |= bit;
    for (uint32_t i = 0; i < p->n / 2; i++) {
        a->v[fragment_row(t->lane, i)][fragment_column(t->lane, i)] = p->d[i];
        memcpy(&p->d[i], &poison, 4);
    }
}

static void mutate(struct hopper_product *p, uint32_t variant, uint32_t swapped[4])
{
    uint64_t d = p->b_descriptor;
    switch (variant) {
    case 1:
        p->b_descriptor = (d & ~(3ull << 62)) | 2ull << 62;
        break;
    case 2:
        p->a_descriptor += 1;
        if (!p->a)
            break;
        memcpy(swapped, (const uint32_t[]){p->a[0], p->a[2], p->a[1], p->a[3]}, 16);
        p->a = swapped;
        break;
    case 3:
        p->b_descriptor =
            (d & ~0x3fff3fff0000ull) | (d >> 16 & 0x3fff) << 32 | (d >> 32 & 0x3fff) << 16;
        break;
    case 4:
        p->b_mn_major ^= 1;
    }
}

void hopper_wgmma(const struct hopper_product *given)
{
    struct hopper_product changed = *given;
    const struct hopper_product *p = &changed;
    struct hopper_thread *t = hopper_thread();
    mutate(&changed, mutated(HOPPER_P_WGMMA), t->swapped);
    struct hopper_warp *w = t->warp;
    uint32_t number = t->products;
    if (p->e4m3 && p->b_mn_major)
        hopper_mistake("issues a product of 8-bit elements with N along B's rows, which is none");
    if (p->n % 8 || !p->n || p->n > 256)
        hopper_mistake("issues a product with N = %u; 8 to 256 in steps of 8 there are", p->n);
    if (w->lanes != UINT32_MAX || w->ended || w->number / 4 * 4 + 4 > w->block->warps)
        hopper_mistake("issues a product outside a whole warpgroup");
    make_queue(w);
    struct product *q = &w->products[number % PRODUCTS];
    if (number - w->executed >= PRODUCTS)
        hopper_mistake("has %d products under way, which is this model's limit", PRODUCTS);
    if (!q->lanes) {
        memset(q, 0, sizeof *q);
        q->of = *p;
        q->where = hopper_where();
    } else if (!same(&q->of, p)) {
        hopper_mistake("issues another product than other lanes of its warp");
    }
    if (!q->lanes || q->checked != t->known) {
        check_operands(t, p, number);
        q->checked = t->known; /* held by this thread as long as it is compared */
    }
    if (p->a && !t->fenced_registers)
        hopper_mistake(
            "issues a product with A in registers that it may have touched, without wgmma.fence");
    take_accumulators(t, p, q, number);
    q->a[t->lane] = p->a;
    q->lanes |= 1u << t->lane;
    t->products++;
    if (q->lanes != w->lanes)
        return;
    w->formed++;
    compare_warps(w, number);
    unit_ready(w);
}

void hopper_wgmma_fence(void)
{
    if (!mutated(HOPPER_P_WGMMA_FENCE))
        hopper_thread()->fenced_registers = 1;
}

void hopper_wgmma_commit(void)
{
    struct hopper_thread *t = hopper_thread();
    if (mutated(HOPPER_P_WGMMA_COMMIT))
        return;
    t->products_at[t->commits++ % COMMITS] = t->products;
}

/* ---- executing ---- */

struct fetch {
    const struct hopper_block *block;
    float (*to)[256]; /* [k][mn], or */
    int by_row;       /* the units run along K */
    struct e4m3_matrix *bytes;
    uint32_t element; /* of 16 bits: MK_BF16 or MK_FP16 */
};

static void fetch_unit(void *context, uint32_t address, uint32_t mn, uint32_t k)
{
    const struct fetch *f = context;
    const uint8_t *at = f->block->shared + (address - SHARED_WINDOW);
    uint16_t unit[8];
    for (uint32_t i = 0; f->bytes && i < 16; i++)
        e4m3_set(f->bytes, 2 * k + i, mn, at[i]);
    if (f->bytes)
        return;
    memcpy(unit, at, 16);
    for (uint32_t i = 0; i < 8; i++)
        f->to[f->by_row ? k + i : k][f->by_row ? mn : mn + i] =
            mk_half_to_float(f->element, unit[i]);
}

static void fetch(struct hopper_warp *w, uint64_t descriptor, uint32_t mn_major, uint32_t first,
                  uint32_t count, float (*to)[256], struct e4m3_matrix *bytes, uint32_t element)
{
    struct operand o = operand_of(descriptor, mn_major, "");
    struct fetch f = {w->block, to, !mn_major, bytes, element};
    operand_units(&o, first, count, fetch_unit, &f);
}

/* Registers i of lane l: rows l / 4 and 8 on, k 2 (l % 4) and the next, and 8 on. */
static void fetch_registers(const struct product *p, float (*to)[256], uint32_t element)
{
    for (uint32_t lane = 0; lane < 32; lane++)
        for (uint32_t i = 0; i < 8; i++) {
            uint32_t pair = p->a[lane][i / 2], row = lane / 4 + 8 * (i >> 1 & 1),
                     k = 2 * (lane % 4) + (i & 1) + 8 * (i >> 2);
            to[k][row] = mk_half_to_float(element, (uint16_t)(i & 1 ? pair >> 16 : pair));
        }
}

/* Registers i of lane l: rows l / 4 and 8 on, k 4 (l % 4) and the next three, and 16 on. */
static void fetch_bytes(const struct product *p, struct e4m3_matrix *to)
{
    for (uint32_t k = 0; k < E4M3_K; k++)
        for (uint32_t row = 0; row < 16; row++) {
            uint32_t lane = row % 8 * 4 + k % 16 / 4, i = row / 8 + k / 16 * 2;
            e4m3_set(to, k, row, (uint8_t)(p->a[lane][i] >> k % 4 * 8));
        }
}

typedef float eight __attribute__((vector_size(32), aligned(4)));

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx2", "default")))
#endif
static void
multiply(float (*d)[256], float (*a)[256], float (*b)[256], uint32_t n)
{
    for (uint32_t row = 0; row < 16; row++)
        for (uint32_t j = 0; j < n; j += 8) {
            eight sum = *(eight *)&d[row][j];
            for (uint32_t k = 0; k < 16; k++)
                sum += a[k][row] * *(eight *)&b[k][j];
            *(eight *)&d[row][j] = sum;
        }
}

void wgmma_execute(struct hopper_warp *w)
{
    struct product *p = &w->products[w->executed % PRODUCTS];
    struct hopper *h = w->block->machine;
    float(*a)[256] = h->a, (*b)[256] = h->b;
    const uint32_t element = p->of.f16 ? MK_FP16 : MK_BF16;
    struct e4m3_matrix *bytes_a = p->of.e4m3 ? &h->e4m3_a : NULL,
                       *bytes_b = p->of.e4m3 ? &h->e4m3_b : NULL;
    fetch(w, p->of.b_descriptor, p->of.b_mn_major, 0, p->of.n, b, bytes_b, element);
    if (p->of.a && bytes_a)
        fetch_bytes(p, bytes_a);
    else if (p->of.a)
        fetch_registers(p, a, element);
    else
        fetch(w, p->of.a_descriptor, p->of.a_mn_major, w->number % 4 * 16, 16, a, bytes_a, element);
    struct accumulators *acc = p->accumulators;
    if (!p->of.accumulate)
        for (int row = 0; row < 16; row++)
            memset(acc->v[row], 0, sizeof acc->v[row]);
    if (p->of.e4m3)
        e4m3_multiply(acc->v, &h->e4m3_a, &h->e4m3_b, p->of.n);
    else
        multiply(acc->v, a, b, p->of.n);
    p->lanes = 0;
    w->executed++;
    if (w->executed == w->formed)
        unit_idle(w);
    for (uint32_t i = 0; i < 32; i++) {
        struct hopper_thread *t = &w->block->thread[w->number * 32 + i];
        if (t->state == THREAD_WGMMA && t->products_wanted <= w->executed)
            thread_wake(t);
    }
}

/* The registers of this lane are its own again. */
static void give_back(struct hopper_thread *t, uint32_t executed)
{
    for (int i = 0; t->warp->accumulators && i < ACCUMULATORS; i++) {
        struct accumulators *a = &t->warp->accumulators[i];
        if (!a->last || a->last > executed || !(a->poisoned >> t->lane & 1))
            continue;
        for (uint32_t j = 0; j < a->n / 2; j++) {
            uint32_t bits;
            memcpy(&bits, &a->of[t->lane][j], 4);
            if (bits != POISON)
                hopper_mistake("has written accumulators while products were under way on them");
            a->of[t->lane][j] = a->v[fragment_row(t->lane, j)][fragment_column(t->lane, j)];
        }
        a->poisoned &= ~(1u << t->lane);
        t->fenced_registers = 0;
        if (!a->poisoned)
            a->last = 0;
    }
}

void hopper_wgmma_wait(uint32_t pending)
{
    struct hopper_thread *t = hopper_thread();
    struct hopper_warp *w = t->warp;
    uint32_t variant = mutated(HOPPER_P_WGMMA_WAIT);
    hopper_point();
    if (variant == 1)
        return;
    pending += variant == 2;
    if (pending >= COMMITS / 2)
        hopper_mistake("leaves %u groups of products open, which is beyond this model", pending);
    if (t->commits <= pending)
        return;
    uint32_t wanted = t->products_at[(t->commits - pending - 1) % COMMITS];
    t->products_wanted = wanted;
    while (w->executed < wanted)
        hopper_wait(t, THREAD_WGMMA);
    if (wanted)
        thread_learn_event(t, entry_of(w), w->products_clock + wanted);
    give_back(t, wanted);
}

int wgmma_open(const struct hopper_warp *w)
{
    for (int i = 0; w->accumulators && i < ACCUMULATORS; i++)
        if (w->accumulators[i].last)
            return 1;
    return w->formed != w->executed;
}

void wgmma_forget(struct hopper_warp *w)
{
    w->products_clock += w->formed;
    w->formed = w->executed = 0;
    for (int i = 0; w->accumulators && i < ACCUMULATORS; i++)
        w->accumulators[i].last = 0;
    if (w->products)
        memset(w->products, 0, PRODUCTS * sizeof *w->products);
}

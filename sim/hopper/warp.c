/* What the lanes of a warp do together: the last to come does it for all. */
#include "sim/hopper/machine.h"

#include "core/cta/half.h"

#include <string.h>

static const char *name_of(enum hopper_collective what)
{
    static const char *const names[] = {
        "__syncwarp",  "a shuffle",   "a shuffle",   "a shuffle",   "a shuffle",   "a vote",
        "a reduction", "a reduction", "a reduction", "a reduction", "a reduction", "a match",
        "elect.sync",  "stmatrix",    "ldmatrix",    "mma.sync",    "setmaxnreg"};
    return names[what];
}

/* Matrix m of an stmatrix or ldmatrix: lane 8 m + r has the address of row r; registers hold
 * elements of lane 4 r + c / 2. */
static void matrices(struct hopper_warp *w, int store)
{
    struct hopper_block *b = w->block;
    struct hopper_thread *lane = &b->thread[w->number * 32];
    uint32_t count = lane->argument & 7;
    int transposed = lane->argument >> 3 & 1;
    for (uint32_t m = 0; m < count; m++)
        for (uint32_t row = 0; row < 8; row++) {
            struct hopper_thread *owner = &lane[8 * m + row];
            uint8_t *at =
                shared_at(b, (uint32_t)owner->value, 16, 16, store ? "stmatrix" : "ldmatrix");
            uint16_t elements[8];
            access_check(owner, at, 16, store ? ACCESS_WRITE : 0, hopper_where());
            if (!store)
                memcpy(elements, at, 16);
            for (uint32_t c = 0; c < 8; c++) {
                uint32_t of = transposed ? c * 4 + row / 2 : row * 4 + c / 2,
                         half = transposed ? row % 2 : c % 2;
                uint16_t *element = (uint16_t *)((uint32_t *)lane[of].data + m) + half;
                if (store)
                    elements[c] = *element;
                else
                    *element = elements[c];
            }
            if (store)
                memcpy(at, elements, 16);
        }
}

/* What a mma.sync multiplies, its argument. */
enum { MULTIPLY_BF16, MULTIPLY_E4M3, MULTIPLY_F16 };

struct mma_registers {
    float *d;
    const uint32_t *a, *b;
};

static float element_of(uint32_t element, const uint32_t *registers, uint32_t number)
{
    return mk_half_to_float(element, (uint16_t)(registers[number / 2] >> number % 2 * 16));
}

/* D += A B, in order of K, in fp32. Lane 4 g + q has of D rows g and g + 8, columns 2 q and 2 q +
 * 1; of A the same rows at K 2 q, and at K 8 + 2 q; of B column g, at the same K. */
static void multiply(struct hopper_warp *w)
{
    struct hopper_thread *lane = &w->block->thread[w->number * 32];
    const uint32_t element = lane->argument == MULTIPLY_F16 ? MK_FP16 : MK_BF16;
    float a[16][16], b[16][8];
    for (uint32_t l = 0; l < 32; l++) {
        const struct mma_registers *r = lane[l].data;
        uint32_t g = l / 4, k = l % 4 * 2;
        for (uint32_t i = 0; i < 8; i++)
            a[g + i / 2 % 2 * 8][k + i / 4 * 8 + i % 2] = element_of(element, r->a, i);
        for (uint32_t i = 0; i < 4; i++)
            b[k + i / 2 * 8 + i % 2][g] = element_of(element, r->b, i);
    }
    for (uint32_t l = 0; l < 32; l++) {
        const struct mma_registers *r = lane[l].data;
        for (uint32_t i = 0; i < 4; i++)
            for (uint32_t k = 0; k < 16; k++)
                r->d[i] += a[l / 4 + i / 2 * 8][k] * b[k][l % 4 * 2 + i % 2];
    }
}

/* The same of e4m3, 32 of K: four follow each other in a register, where bf16 has two. */
static void multiply_e4m3(struct hopper_warp *w)
{
    struct hopper *h = hopper_machine;
    struct hopper_thread *lane = &w->block->thread[w->number * 32];
    float(*d)[256] = h->a; /* which nothing else uses meanwhile */
    for (uint32_t k = 0; k < E4M3_K; k++)
        for (uint32_t l = k % 16 / 4; l < 32; l += 4) {
            const struct mma_registers *r = lane[l].data;
            uint32_t shift = k % 4 * 8, upper = k / 16;
            for (uint32_t i = 0; i < 2; i++)
                e4m3_set(&h->e4m3_a, k, l / 4 + i * 8, (uint8_t)(r->a[upper * 2 + i] >> shift));
            e4m3_set(&h->e4m3_b, k, l / 4, (uint8_t)(r->b[upper] >> shift));
        }
    for (uint32_t i = 0; i < 128; i++) {
        const struct mma_registers *r = lane[i / 4].data;
        d[i / 16 + i % 4 / 2 * 8][i / 4 % 4 * 2 + i % 2] = r->d[i % 4];
    }
    e4m3_multiply_halves(d, &h->e4m3_a, &h->e4m3_b, 8, 25);
    for (uint32_t i = 0; i < 128; i++) {
        const struct mma_registers *r = lane[i / 4].data;
        r->d[i % 4] = d[i / 16 + i % 4 / 2 * 8][i / 4 % 4 * 2 + i % 2];
    }
}

static uint32_t source_of(enum hopper_collective what, uint32_t lane, uint32_t argument)
{
    uint32_t delta = argument & 0xffff, width = argument >> 16, base = lane / width * width,
             at = lane - base;
    switch (what) {
    case HOPPER_SHUFFLE:
        return base + delta % width;
    case HOPPER_SHUFFLE_XOR:
        return base + ((at ^ delta) < width ? at ^ delta : at);
    case HOPPER_SHUFFLE_UP:
        return at >= delta ? lane - delta : lane;
    default:
        return at + delta < width ? lane + delta : lane;
    }
}

static uint64_t fold(enum hopper_collective what, uint64_t a, uint64_t b)
{
    switch (what) {
    case HOPPER_REDUCE_MAX:
        return a > b ? a : b;
    case HOPPER_REDUCE_MIN:
        return a < b ? a : b;
    default:
        return (uint32_t)(a + b);
    }
}

static void perform(struct hopper_warp *w, enum hopper_collective what, uint32_t mask)
{
    struct hopper_thread *lane = &w->block->thread[w->number * 32], *lanes[32];
    uint32_t first = (uint32_t)__builtin_ctz(mask), count = 0;
    uint64_t all = lane[first].value, votes = 0;
    for (uint32_t i = 0; i < 32; i++) {
        if (!(mask >> i & 1))
            continue;
        lanes[count++] = &lane[i];
        votes |= (uint64_t)(lane[i].value != 0) << i;
        if (i != first)
            all = fold(what, all, lane[i].value);
    }
    if (what == HOPPER_SYNCWARP)
        threads_meet(lanes, count);
    if (what == HOPPER_STMATRIX || what == HOPPER_LDMATRIX)
        matrices(w, what == HOPPER_STMATRIX);
    if (what == HOPPER_MMA)
        (lane[first].argument == MULTIPLY_E4M3 ? multiply_e4m3 : multiply)(w);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t number = lanes[i]->lane, from;
        uint64_t matches = 0;
        switch (what) {
        case HOPPER_SHUFFLE:
        case HOPPER_SHUFFLE_XOR:
        case HOPPER_SHUFFLE_UP:
        case HOPPER_SHUFFLE_DOWN:
            from = source_of(what, number, lanes[i]->argument);
            if (!(mask >> from & 1))
                hopper_mistake(
                    "takes the value of lane %u by a shuffle, which is not in the mask 0x%x", from,
                    mask);
            lanes[i]->result = lane[from].value;
            break;
        case HOPPER_BALLOT:
            lanes[i]->result = votes;
            break;
        case HOPPER_MATCH:
            for (uint32_t j = 0; j < count; j++)
                matches |= (uint64_t)(lanes[j]->value == lanes[i]->value) << lanes[j]->lane;
            lanes[i]->result = matches;
            break;
        case HOPPER_ELECT:
            lanes[i]->result = number == first;
            break;
        default:
            lanes[i]->result = all;
        }
    }
}

/* All lanes of `mask` that have not ended have come for the same thing. */
static int complete(struct hopper_warp *w, const struct hopper_thread *last, uint32_t mask)
{
    const struct hopper_thread *lane = &w->block->thread[w->number * 32];
    for (uint32_t i = 0; i < 32; i++) {
        if (!(mask >> i & 1) || &lane[i] == last)
            continue;
        if (lane[i].state != THREAD_WARP)
            return 0;
        if (lane[i].mask == mask && lane[i].collective == last->collective)
            continue;
        if (lane[i].mask & mask)
            hopper_mistake("came to %s while lane %u of its warp waits at %s (%s:%d) for it",
                           name_of(last->collective), i, name_of(lane[i].collective),
                           lane[i].place.file, lane[i].place.line);
        return 0;
    }
    return 1;
}

static uint64_t meet(enum hopper_collective what, uint32_t mask, uint64_t value, uint32_t argument,
                     void *data)
{
    struct hopper_thread *t = hopper_thread();
    struct hopper_warp *w = t->warp;
    if (!(mask >> t->lane & 1))
        hopper_mistake("calls %s with the mask 0x%x, in which it is not", name_of(what), mask);
    mask &= w->lanes & ~w->ended;
    t->collective = what;
    t->mask = mask;
    t->value = value;
    t->argument = argument;
    t->data = data;
    while (!complete(w, t, mask)) {
        hopper_wait(t, THREAD_WARP);
        if (!t->retry)
            return t->result;
        t->retry = 0;
        mask = t->mask;
    }
    perform(w, what, mask);
    for (uint32_t i = 0; i < 32; i++)
        if ((mask >> i & 1) && i != t->lane)
            thread_wake(&w->block->thread[w->number * 32 + i]);
    return t->result;
}

/* Who has ended is not waited for. */
void warp_thread_ended(struct hopper_thread *t)
{
    struct hopper_thread *first = NULL;
    for (uint32_t i = 0; i < 32; i++) {
        struct hopper_thread *other = &t->block->thread[t->warp->number * 32 + i];
        if (!(t->warp->lanes >> i & 1) || other->state != THREAD_WARP ||
            !(other->mask >> t->lane & 1))
            continue;
        other->mask &= ~(1u << t->lane);
        first = first ? first : other;
    }
    if (!first)
        return;
    first->retry = 1;
    thread_wake(first);
}

uint64_t hopper_warp(enum hopper_collective what, uint32_t mask, uint64_t value, uint32_t argument)
{
    if (what == HOPPER_SYNCWARP && mutated(HOPPER_P_SYNCWARP))
        return 0;
    return meet(what, mask, value, argument, NULL);
}

uint32_t hopper_elect(void)
{
    return (uint32_t)meet(HOPPER_ELECT, UINT32_MAX, 0, 0, NULL);
}

static void whole_warp(struct hopper_warp *w, const char *what)
{
    if (w->lanes != UINT32_MAX || w->ended)
        hopper_mistake("calls %s in a warp that has not all its 32 lanes", what);
}

void hopper_stmatrix(uint32_t address, const uint32_t *registers, uint32_t count, int transposed)
{
    whole_warp(hopper_thread()->warp, "stmatrix");
    if (mutated(HOPPER_P_STMATRIX))
        address ^= 16;
    meet(HOPPER_STMATRIX, UINT32_MAX, address, count | (transposed ? 8 : 0), (void *)registers);
}

void hopper_ldmatrix(uint32_t address, uint32_t *registers, uint32_t count, int transposed)
{
    whole_warp(hopper_thread()->warp, "ldmatrix");
    meet(HOPPER_LDMATRIX, UINT32_MAX, address, count | (transposed ? 8 : 0), registers);
}

void hopper_mma(float *d, const uint32_t *a, const uint32_t *b, int f16)
{
    struct mma_registers r = {d, a, b};
    whole_warp(hopper_thread()->warp, "mma.sync");
    meet(HOPPER_MMA, UINT32_MAX, 0, f16 ? MULTIPLY_F16 : MULTIPLY_BF16, &r);
}

void hopper_mma_e4m3(float *d, const uint32_t *a, const uint32_t *b)
{
    struct mma_registers r = {d, a, b};
    whole_warp(hopper_thread()->warp, "mma.sync");
    meet(HOPPER_MMA, UINT32_MAX, 0, MULTIPLY_E4M3, &r);
}

/* A warp's registers come out of the block's: what others have given back first. */
void hopper_registers(uint32_t count, int more)
{
    struct hopper_thread *t = hopper_thread();
    struct hopper_warp *w = t->warp;
    struct hopper_block *b = t->block;
    if (mutated(HOPPER_P_REGISTERS))
        return;
    if (count < 24 || count > 256 || count % 8)
        hopper_mistake("asks setmaxnreg for %u registers; 24 to 256 in steps of 8 there are",
                       count);
    if (meet(HOPPER_REGISTERS, UINT32_MAX, t->lane == 0, more, NULL) && t->lane == 0) {
        if (!more && count > w->registers)
            hopper_mistake("gives back registers by setmaxnreg.dec %u of a warp that has %u", count,
                           w->registers);
        if (more && count < w->registers)
            hopper_mistake("takes registers by setmaxnreg.inc %u of a warp that has %u", count,
                           w->registers);
        while (more && b->registers < count - w->registers)
            hopper_wait(t, THREAD_REGISTERS);
        b->registers += w->registers;
        b->registers -= count;
        w->registers = count;
        for (uint32_t i = 0; !more && i < b->threads; i++)
            if (b->thread[i].state == THREAD_REGISTERS)
                thread_wake(&b->thread[i]);
    }
    meet(HOPPER_REGISTERS, UINT32_MAX, 0, 2, NULL);
}

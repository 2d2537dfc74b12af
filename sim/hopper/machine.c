/* The machine's life and its scheduler: which lane of which warp, which copy or which product goes
 * on. */
#include "sim/hopper/machine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SCAN = 24 }; /* steps between looks at what pollers poll */

/* ---- life ---- */

static void free_block(struct hopper *h, struct hopper_block *b)
{
    for (uint32_t i = 0; b->thread && i < KNOWN_THREADS; i++) {
        coroutine_destroy(b->thread[i].coroutine);
        free(b->thread[i].copies);
    }
    for (uint32_t i = 0; i < KNOWN_WARPS; i++) {
        free(b->warp[i].products);
        free(b->warp[i].accumulators);
    }
    free(b->thread);
}

void hopper_destroy(struct hopper *h)
{
    if (!h)
        return;
    for (uint32_t r = 0; h->ranks && r < h->config.ranks; r++) {
        struct hopper_rank *rank = &h->ranks[r];
        for (uint32_t i = 0; rank->blocks && i < h->config.sms; i++)
            free_block(h, &rank->blocks[i]);
        free(rank->blocks);
        while (rank->grid) {
            struct hopper_grid *g = rank->grid;
            rank->grid = g->next;
            grid_drop(h, g);
        }
    }
    free(h->ranks);
    for (uint32_t i = 0; i < h->flight_count; i++)
        free(h->flights[i]);
    free(h->flights);
    free(h->ready);
    free(h->units);
    free(h->words);
    free(h->lines);
    shadow_close(&h->shadow);
    /* Objects of knowledge that threads still held go with the table's memory: they are all on its
     * books. */
    known_table_destroy(h->known);
    coroutine_pool_destroy(h->own_pool);
    if (hopper_machine == h)
        hopper_machine = NULL;
    free(h);
}

/* One habit of each kind by the seed: orders that one habit never tries, another tries soon. */
static void choose_habits(struct hopper *h)
{
    static const uint32_t preempt[] = {2, 8, 64, 1u << 20};
    uint64_t r = sim_random(&h->random);
    h->async = (enum async_habit)(r % ASYNC_HABITS);
    h->preempt = preempt[r >> 8 & 3];
    h->lanes = (uint32_t)(r >> 16) % 3;
    h->starved = (uint32_t)(r >> 24) % 32;
    h->skew = r >> 32 & 1 ? 16 : 0;
    if (h->config.calm) {
        h->async = ASYNC_UNIFORM;
        h->preempt = 64;
        h->lanes = h->skew = 0;
        h->starved = 31;
    }
}

static int make_blocks(struct hopper *h)
{
    uint32_t warps = h->config.ranks * h->config.sms * KNOWN_WARPS;
    h->ready = malloc(warps * sizeof *h->ready);
    h->units = malloc(warps * sizeof *h->units);
    h->ranks = calloc(h->config.ranks, sizeof *h->ranks);
    if (!h->ready || !h->units || !h->ranks)
        return -ENOMEM;
    for (uint32_t r = 0; r < h->config.ranks; r++) {
        h->ranks[r].blocks = calloc(h->config.sms, sizeof *h->ranks[r].blocks);
        if (!h->ranks[r].blocks)
            return -ENOMEM;
        for (uint32_t i = 0; i < h->config.sms; i++) {
            struct hopper_block *b = &h->ranks[r].blocks[i];
            b->machine = h;
            b->rank = r;
            b->sm = i;
            b->global_sm = r * (h->config.sms + 1) + i;
        }
    }
    return 0;
}

int hopper_create(struct hopper **out, const struct hopper_config *config)
{
    struct hopper *h = calloc(1, sizeof *h);
    if (!h)
        return -ENOMEM;
    h->config = *config;
    h->config.sms += config->spare;
    h->random.state = sim_mix(config->seed * 3 + 1);
    h->now = config->now ? config->now : &h->own_now;
    h->sms = config->ranks * (h->config.sms + 1);
    h->jump = 1000;
    h->known = known_table_create(h->sms);
    int result = h->known ? 0 : -ENOMEM;
    if (!result && !config->pool)
        result = coroutine_pool_create(&h->own_pool, 128 << 10);
    h->pool = config->pool ? config->pool : h->own_pool;
    if (!result)
        result = shadow_open(&h->shadow, config->memory ? config->memory : (size_t)4 << 30, h->sms);
    if (!result)
        result = make_blocks(h);
    if (result) {
        hopper_destroy(h);
        return result;
    }
    h->shadow.fault = hopper_shadow_fault;
    h->shadow.context = h;
    choose_habits(h);
    hopper_use(h, 0);
    *out = h;
    return 0;
}

void *hopper_memory(struct hopper *h, size_t bytes)
{
    return shadow_allocate(&h->shadow, bytes, SHADOW_INITIAL);
}

uint64_t hopper_hash(const struct hopper *h)
{
    return h->hash;
}

uint64_t hopper_work(const struct hopper *h)
{
    return h->work;
}

int hopper_busy(const struct hopper *h, uint32_t rank)
{
    for (uint32_t r = 0; r < h->config.ranks; r++)
        if ((rank == UINT32_MAX || rank == r) && h->ranks[r].grid)
            return 1;
    return 0;
}

uint64_t hopper_over(const struct hopper *h, uint32_t rank)
{
    return h->ranks[rank].over;
}

uint64_t hopper_forgotten(const struct hopper *h)
{
    return h->shadow.cut;
}

/* ---- choosing ---- */

/* Lanes of a warp, one after the other, until one is interrupted where others may run. */
static void run_warp(struct hopper *h, struct hopper_warp *w)
{
    uint32_t first = h->lanes == 2 ? sim_random_below(&h->random, 32) : 0;
    for (uint32_t i = 0; i < 32 && w->runs && !h->failed; i++) {
        uint32_t lane = h->lanes == 1 ? 31 - i : (first + i) % 32;
        if (!(w->runs >> lane & 1))
            continue;
        struct hopper_thread *t = &w->block->thread[w->number * 32 + lane];
        hopper_self = &t->place;
        int alive = coroutine_resume(t->coroutine);
        hopper_self = NULL;
        h->work += t->state != THREAD_POLL && t->polls_again < 2;
        if (!alive) {
            w->runs &= ~(1u << lane);
            thread_ended(t);
        } else if (t->state == THREAD_RUNS) {
            break; /* at a point */
        }
    }
    if (!w->runs && w->ready)
        warp_idle(w);
}

/* Sorts of warps: by their number in the block, and by rank. */
static int is_starved(const struct hopper *h, const struct hopper_warp *w)
{
    if (h->starved < 16)
        return w->number == h->starved;
    return h->starved < 24 && w->block->rank == h->starved - 16 && h->config.ranks > 1;
}

static struct hopper_warp *choose_warp(struct hopper *h)
{
    if (h->sticky && h->sticky->ready && sim_random_below(&h->random, 4))
        return h->sticky;
    struct hopper_warp *w = h->ready[sim_random_below(&h->random, h->ready_count)];
    for (int tries = 0; tries < 8 && is_starved(h, w) && sim_random_below(&h->random, 64); tries++)
        w = h->ready[sim_random_below(&h->random, h->ready_count)];
    h->sticky = w;
    return w;
}

static int async_turn(struct hopper *h)
{
    if (!h->flight_count && !h->unit_count)
        return 0;
    if (!h->ready_count)
        return 1;
    switch (h->async) {
    case ASYNC_LAZY:
        return !sim_random_below(&h->random, 256);
    case ASYNC_UNIFORM:
        return sim_random_below(&h->random, h->ready_count + h->flight_count + h->unit_count) >=
               h->ready_count;
    default:
        return sim_random_below(&h->random, 8) > 0;
    }
}

static uint64_t word_at(const void *p, uint32_t bytes)
{
    if (bytes == 8)
        return __atomic_load_n((const uint64_t *)p, __ATOMIC_ACQUIRE);
    if (bytes == 4)
        return __atomic_load_n((const uint32_t *)p, __ATOMIC_ACQUIRE);
    uint64_t v = 0;
    memcpy(&v, p, bytes);
    return v;
}

/* Wakes those of a block's polling threads whose word has changed, or all of them. How many. */
static uint32_t wake_pollers(struct hopper_block *b, int all)
{
    uint32_t woken = 0;
    for (uint32_t n = 0; b->grid && n < b->warps; n++)
        for (uint32_t left = b->warp[n].polls; left; left &= left - 1) {
            struct hopper_thread *t = &b->thread[32 * n + (uint32_t)__builtin_ctz(left)];
            if (!all && word_at(t->poll, t->poll_bytes) == t->polled)
                continue;
            thread_wake(t);
            woken++;
        }
    return woken;
}

static uint32_t wake_tries(struct hopper_block *b)
{
    uint32_t woken = 0;
    for (uint32_t n = 0; b->grid && n < b->threads; n++)
        if (b->thread[n].state == THREAD_MBARRIER) {
            b->thread[n].tried = 1;
            thread_wake(&b->thread[n]);
            woken++;
        }
    return woken;
}

static uint32_t scan_pollers(struct hopper *h, int all)
{
    uint32_t woken = 0;
    h->since_scan = 0;
    for (uint32_t r = 0; h->pollers && r < h->config.ranks; r++)
        for (uint32_t i = 0; i < h->config.sms; i++)
            woken += wake_pollers(&h->ranks[r].blocks[i], all);
    return woken;
}

static uint32_t scan_tries(struct hopper *h)
{
    uint32_t woken = 0;
    for (uint32_t r = 0; h->config.tries_end && r < h->config.ranks; r++)
        for (uint32_t i = 0; i < h->config.sms; i++)
            woken += wake_tries(&h->ranks[r].blocks[i]);
    return woken;
}

int hopper_step(struct hopper *h)
{
    hopper_machine = h;
    if (h->failed)
        return 0;
    /* Whoever looks again because time has passed is no progress: the next jump is longer. */
    if (h->pollers &&
        (++h->since_scan >= SCAN || (!h->ready_count && !h->flight_count && !h->unit_count)))
        if (scan_pollers(h, 0))
            h->jump = 1000;
    if (!h->ready_count && !h->flight_count && !h->unit_count)
        return 0;
    h->steps++;
    if (!h->config.now && !h->config.clock)
        *h->now += sim_random_below(&h->random, 32);
    if (!async_turn(h)) {
        struct hopper_warp *w = choose_warp(h);
        h->hash = sim_mix(h->hash ^ (w->block->global_sm << 8 | w->number));
        run_warp(h, w);
        return 1;
    }
    uint32_t which = sim_random_below(&h->random, h->flight_count + h->unit_count);
    h->jump = 1000;
    h->work++;
    h->hash = sim_mix(h->hash ^ (which + 1) << 24);
    if (which < h->flight_count)
        flights_step(h);
    else
        wgmma_execute(h->units[which - h->flight_count]);
    return 1;
}

/* Times double, up to a second: who polls with a bound comes to it soon. */
int hopper_tick(struct hopper *h)
{
    if (h->failed || (!h->pollers && !h->config.tries_end))
        return 0;
    if (!h->config.clock) {
        *h->now += h->jump;
        h->jump = h->jump < 500000000 ? h->jump * 2 : 1000000000;
    }
    return scan_pollers(h, 1) + scan_tries(h) > 0;
}

int hopper_run(struct hopper *h)
{
    while (!h->failed && hopper_busy(h, UINT32_MAX)) {
        if (h->config.max_steps && h->steps >= h->config.max_steps) {
            hopper_fail(h, "incomplete: not over after %lu steps", h->steps);
            return -ETIMEDOUT;
        }
        if (hopper_step(h))
            continue;
        if (!hopper_tick(h)) {
            if (h->failed)
                break;
            hopper_deadlock(h);
            return -EDEADLK;
        }
    }
    return h->failed ? -EIO : 0;
}

void hopper_drop(struct hopper *h, uint32_t rank)
{
    for (uint32_t i = 0; i < h->config.sms; i++) {
        struct hopper_block *b = &h->ranks[rank].blocks[i];
        for (uint32_t n = 0; b->grid && n < b->threads; n++) {
            if (b->thread[n].state == THREAD_POLL)
                h->pollers--;
            b->thread[n].state = THREAD_STOPPED;
        }
        for (uint32_t n = 0; b->grid && n < b->warps; n++) {
            b->warp[n].runs = b->warp[n].polls = 0;
            if (b->warp[n].ready)
                warp_idle(&b->warp[n]);
            unit_idle(&b->warp[n]);
        }
    }
    flights_drop(h, rank);
}

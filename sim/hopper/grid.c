/* Launches: grids are queued rank by rank, blocks begin on SMs as these are free, threads begin and
 * end.
 *
 * A launch of programmatic stream serialization begins as early as a GPU may begin it: once every
 * block of the one before it has let it come or has ended, on SMs that are free. Until its wait it
 * knows no more than the one before it knew when that began, however late it really begins: so what
 * it touches too soon is found in every order. */
#include "sim/hopper/machine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t count_of(struct hopper_xyz v)
{
    return v.x * v.y * v.z;
}

int hopper_enqueue(void (*run)(void *arguments), const void *arguments, size_t bytes,
                   struct hopper_xyz size, struct hopper_xyz block, uint32_t dynamic_shared,
                   uint32_t cluster, int early, const char *name)
{
    struct hopper *h = hopper_machine;
    cluster = cluster ? cluster : 1;
    if (!h || !count_of(size) || !count_of(block) || count_of(block) > KNOWN_THREADS ||
        cluster > CLUSTER_MOST || size.x % cluster || cluster > h->config.sms ||
        dynamic_shared > SHARED_MOST)
        return -EINVAL;
    struct hopper_grid *g = calloc(1, sizeof *g);
    size_t room = (bytes + 127) / 64 * 64;
    void *copy = aligned_alloc(64, room);
    if (!g || !copy) {
        free(g);
        free(copy);
        return -ENOMEM;
    }
    memcpy(copy, arguments, bytes);
    *g = (struct hopper_grid){.run = run,
                              .arguments = copy,
                              .size = size,
                              .block = block,
                              .cluster = cluster,
                              .dynamic_shared = dynamic_shared,
                              .early = early,
                              .blocks = count_of(size)};
    snprintf(g->name, sizeof g->name, "%s", name);
    struct hopper_rank *r = &h->ranks[h->host_rank];
    g->from = r->asked++ & 1 ? hopper_sms() % h->config.sms : 0;
    if (r->grid)
        r->last->next = g;
    else
        r->grid = g;
    r->last = g;
    grid_begin_blocks(h, h->host_rank);
    return 0;
}

void grid_drop(struct hopper *h, struct hopper_grid *g)
{
    known_drop(h->known, g->begins);
    known_drop(h->known, g->done);
    free(g->arguments);
    free(g);
}

void hopper_stream_write(struct hopper *h, uint32_t rank, const void *p, size_t bytes)
{
    struct hopper_rank *r = &h->ranks[rank];
    struct known **known = r->grid ? &r->last->done : &r->stream;
    uint32_t entry = sm_of_host(h, rank) * KNOWN_ENTRIES + 1;
    struct shadow_actor a = {.known = r->stream, .entry = entry, .clock = ++r->stream_clock};
    struct shadow_event e = {entry, r->stream_clock, WHERE_STREAM, ACCESS_WRITE};
    if (h->config.races && bytes)
        shadow_access(&h->shadow, &a, &e, p, bytes);
    *known = known_event(h, *known, entry, r->stream_clock);
}

/* ---- threads ---- */

static void thread_main(void *argument)
{
    struct hopper_thread *t = argument;
    t->block->grid->run(t->block->grid->arguments);
}

static struct hopper_xyz place_of(uint32_t number, struct hopper_xyz size)
{
    return (struct hopper_xyz){number % size.x, number / size.x % size.y, number / size.x / size.y};
}

static void begin_thread(struct hopper_block *b, uint32_t number)
{
    struct hopper *h = b->machine;
    struct hopper_thread *t = &b->thread[number];
    struct coroutine *kept = t->coroutine;
    struct thread_copies *copies = t->copies;
    uint32_t clock = t->clock;
    known_drop(h->known, t->known);
    known_drop(h->known, t->fenced);
    for (uint32_t i = 0; i <= HOPPER_SYSTEM; i++)
        known_drop(h->known, t->heard[i]);
    *t = (struct hopper_thread){.coroutine = kept,
                                .copies = copies,
                                .block = b,
                                .warp = &b->warp[number / 32],
                                .number = number,
                                .lane = number % 32,
                                .clock = clock + 1,
                                .began = clock + 1,
                                .issuer = -1};
    copies_begin(t);
    t->place.thread = place_of(number, b->grid->block);
    t->place.block = place_of(b->number, b->grid->size);
    t->place.block_size = b->grid->block;
    t->place.grid_size = b->grid->size;
    t->known = known_keep(b->grid->begins);
    coroutine_start(t->coroutine, thread_main, t);
    thread_wake(t);
}

static int block_memory(struct hopper_block *b)
{
    struct hopper *h = b->machine;
    if (!b->thread)
        b->thread = calloc(KNOWN_THREADS, sizeof *b->thread);
    if (!b->shared)
        b->shared = shadow_allocate(&h->shadow, SHARED_ROOM, SHADOW_OUTSIDE);
    if (!b->thread || !b->shared)
        return -ENOMEM;
    for (uint32_t i = 0; i < count_of(b->grid->block); i++)
        if (coroutine_create(&b->thread[i].coroutine, h->pool))
            return -ENOMEM;
    return 0;
}

/* Few SMs are busy at once where there are spare ones: their stacks go from block to block. */
static void free_coroutines(struct hopper_block *b)
{
    for (uint32_t i = 0; i < b->threads; i++) {
        coroutine_destroy(b->thread[i].coroutine);
        b->thread[i].coroutine = NULL;
    }
}

static void begin_block(struct hopper_block *b, struct hopper_grid *g, uint32_t number,
                        uint32_t cluster_rank)
{
    struct hopper *h = b->machine;
    b->grid = g;
    b->number = number;
    b->threads = count_of(g->block);
    b->warps = (b->threads + 31) / 32;
    b->ended = b->loads = 0;
    b->released = 0;
    b->cluster_rank = cluster_rank;
    b->leader = b - cluster_rank;
    if (block_memory(b)) {
        hopper_fail(h, "no memory for %u threads of %s", b->threads, g->name);
        return;
    }
    if (!cluster_rank) {
        known_drop(h->known, b->cluster.coming);
        known_drop(h->known, b->cluster.passed);
        b->cluster = (struct cluster_barrier){.alive = g->cluster * b->threads};
    }
    barriers_begin(b);
    shared_begin(b);
    b->registers = 65536 / (b->threads > 128 ? b->threads : 128) / 8 * 8;
    b->registers = b->registers > 255 ? 255 : b->registers;
    for (uint32_t i = 0; i < b->warps; i++) {
        struct hopper_warp *w = &b->warp[i];
        uint32_t lanes = b->threads - i * 32 >= 32 ? UINT32_MAX : (1u << (b->threads - i * 32)) - 1;
        wgmma_forget(w);
        w->block = b;
        w->number = i;
        w->lanes = lanes;
        w->runs = w->ended = w->polls = 0;
        w->registers = b->registers;
    }
    b->registers = 0; /* all dealt out */
    for (uint32_t i = 0; i < b->threads; i++)
        begin_thread(b, i);
    g->begun++;
}

/* Blocks of all ranks. */
static uint32_t resident(const struct hopper *h)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < h->config.ranks * h->config.sms; i++)
        count += h->ranks[i / h->config.sms].blocks[i % h->config.sms].grid != NULL;
    return count;
}

/* Clusters begin whole, on neighbouring SMs; where there are spare ones, launches take turns: what
 * threads of one SM did before is never taken for what they do now. */
static void begin_blocks_of(struct hopper *h, uint32_t rank, struct hopper_grid *g)
{
    struct hopper_rank *r = &h->ranks[rank];
    for (uint32_t at = 0; at < h->config.sms && g->begun < g->blocks; at += g->cluster) {
        uint32_t sm = (g->from + at) % h->config.sms;
        int idle = sm + g->cluster <= h->config.sms &&
                   (!h->config.together || resident(h) + g->cluster <= h->config.together);
        for (uint32_t i = 0; idle && i < g->cluster; i++)
            idle &= !r->blocks[sm + i].grid;
        for (uint32_t i = 0; idle && i < g->cluster && !h->failed; i++)
            begin_block(&r->blocks[sm + i], g, g->begun, i);
    }
}

void grid_begin_blocks(struct hopper *h, uint32_t rank)
{
    struct hopper_rank *r = &h->ranks[rank];
    struct known *before = r->before;
    for (struct hopper_grid *g = r->grid; g && !h->failed; g = g->next) {
        if (!g->begins)
            g->begins = known_keep(g->early ? before : r->stream);
        begin_blocks_of(h, rank, g);
        if (g->released < g->blocks || !g->next || !g->next->early)
            return;
        before = g->begins;
    }
}

static void release_block(struct hopper_block *b)
{
    b->grid->released += !b->released;
    b->released = 1;
}

void hopper_launch_next(void)
{
    struct hopper_block *b = hopper_thread()->block;
    release_block(b);
    if (b->grid->released == b->grid->blocks)
        grid_begin_blocks(b->machine, b->rank);
    hopper_point();
}

void hopper_launch_wait(void)
{
    struct hopper_thread *t = hopper_thread();
    if (t->block->grid->early && !mutated(HOPPER_P_LAUNCH_WAIT))
        thread_await_launches(t);
}

/* ---- ends ---- */

static void end_grids(struct hopper *h, uint32_t rank)
{
    struct hopper_rank *r = &h->ranks[rank];
    while (r->grid && r->grid->ended == r->grid->blocks) {
        struct hopper_grid *g = r->grid;
        struct known *both = known_join(h->known, r->stream, g->done);
        known_drop(h->known, r->stream);
        /* A kernel's end makes all that it did visible to the next, through either proxy. */
        r->stream = known_bridge(h->known, both, 1, 1);
        known_drop(h->known, both);
        known_drop(h->known, r->before);
        r->before = known_keep(g->begins);
        r->grid = g->next;
        r->over++;
        grid_drop(h, g);
    }
    for (uint32_t i = 0; r->grid && i < h->config.sms; i++) {
        struct hopper_block *b = &r->blocks[i];
        for (uint32_t n = 0; b->grid == r->grid && n < b->threads; n++)
            if (b->thread[n].state == THREAD_LAUNCH)
                thread_wake(&b->thread[n]);
    }
}

static void end_block(struct hopper_block *b)
{
    struct hopper *h = b->machine;
    struct hopper_grid *g = b->grid;
    flights_of_block_ended(b);
    for (uint32_t i = 0; i < b->warps && !h->failed; i++) {
        if (wgmma_open(&b->warp[i]))
            hopper_fail(
                h,
                "rank %u, block %u: warp %u ended with products under way that nobody waited for",
                rank_of(b), b->number, i);
        if (b->warp[i / 4 * 4].formed != b->warp[i].formed)
            hopper_fail(
                h, "rank %u, block %u: warps %u and %u of a warpgroup issued %u and %u products",
                rank_of(b), b->number, i / 4 * 4, i, b->warp[i / 4 * 4].formed, b->warp[i].formed);
    }
    release_block(b);
    free_coroutines(b);
    b->grid = NULL;
    if (++g->ended == g->blocks)
        end_grids(h, b->rank);
    for (uint32_t i = 0; i < h->config.ranks; i++)
        if (i == b->rank || h->config.together)
            grid_begin_blocks(h, i);
}

void thread_ended(struct hopper_thread *t)
{
    struct hopper_block *b = t->block;
    struct hopper *h = b->machine;
    t->state = THREAD_ENDED;
    t->warp->ended |= 1u << t->lane;
    struct known *all = thread_publish(t), *done = b->grid->done;
    b->grid->done = known_join(h->known, done, all);
    known_drop(h->known, done);
    known_drop(h->known, all);
    b->ended++;
    warp_thread_ended(t);
    barriers_thread_ended(t);
    if (b->ended == b->threads)
        end_block(b);
}

/* Who knows what: threads publish and learn, by flags, fences and atomics. PTX ISA, memory
 * consistency model: release and acquire patterns, scopes that include each other, causality that
 * is transitive. */
#include "sim/hopper/machine.h"

#include <stdlib.h>
#include <string.h>

void actor_of(const struct hopper_thread *t, struct shadow_actor *out)
{
    *out = (struct shadow_actor){
        .known = t->known, .entry = thread_entry(t), .clock = t->clock, .began = t->began};
    memcpy(out->bridged, t->bridged, sizeof out->bridged);
}

static uint32_t where_kind(const struct hopper_block *b, const void *p)
{
    return (size_t)((const uint8_t *)p - b->shared) < SHARED_ROOM ? ACCESS_SHARED : 0;
}

void access_check(struct hopper_thread *t, const void *p, size_t bytes, uint32_t kind,
                  uint64_t where)
{
    struct hopper *h = t->block->machine;
    if (!h->config.races || !shadow_has(&h->shadow, p))
        return;
    struct shadow_actor a;
    actor_of(t, &a);
    struct shadow_event e = {a.entry, a.clock, where, (kind | where_kind(t->block, p)) & 15};
    if (shadow_access(&h->shadow, &a, &e, p, bytes) && h->failed)
        hopper_stop();
}

int access_async(struct hopper_thread *t, const void *p, size_t bytes, uint32_t kind,
                 uint32_t entry, uint32_t clock, uint64_t where)
{
    return access_late(t, p, bytes, kind | ACCESS_ASYNC, entry, clock, where);
}

int access_late(struct hopper_thread *t, const void *p, size_t bytes, uint32_t kind, uint32_t entry,
                uint32_t clock, uint64_t where)
{
    struct hopper *h = t->block->machine;
    if (!h->config.races || !shadow_has(&h->shadow, p))
        return 0;
    struct shadow_actor a;
    actor_of(t, &a);
    struct shadow_event e = {entry, clock, where, kind & 15};
    return shadow_access(&h->shadow, &a, &e, p, bytes) && h->failed;
}

/* ---- publishing and learning ---- */

static struct known *raise_own(struct hopper *h, struct known *k, const struct hopper_thread *t)
{
    uint32_t sm = t->block->global_sm;
    k = known_raise(h->known, k, KNOWN_GENERIC, sm, t->number, t->clock);
    k = known_raise(h->known, k, KNOWN_ASYNC_SHARED, sm, t->number, t->bridged[KNOWN_ASYNC_SHARED]);
    return known_raise(h->known, k, KNOWN_ASYNC_GLOBAL, sm, t->number,
                       t->bridged[KNOWN_ASYNC_GLOBAL]);
}

struct known *thread_publish(struct hopper_thread *t)
{
    struct hopper *h = t->block->machine;
    if (!h->config.races)
        return NULL;
    struct known *k = raise_own(h, known_keep(t->known), t);
    t->clock++;
    return k;
}

void thread_learn(struct hopper_thread *t, struct known *k)
{
    struct known *before = t->known;
    t->known = known_join(t->block->machine->known, before, k);
    known_drop(t->block->machine->known, before);
}

/* What an asynchronous unit has done is known through both proxies to whom its completion is
 * announced. */
struct known *known_event(struct hopper *h, struct known *k, uint32_t entry, uint32_t clock)
{
    if (!h->config.races)
        return k;
    for (int view = 0; view < KNOWN_VIEWS; view++)
        k = known_raise(h->known, k, (enum known_view)view, entry / KNOWN_ENTRIES,
                        entry % KNOWN_ENTRIES, clock);
    return k;
}

void thread_learn_event(struct hopper_thread *t, uint32_t entry, uint32_t clock)
{
    t->known = known_event(t->block->machine, t->known, entry, clock);
}

void threads_meet(struct hopper_thread **threads, uint32_t count)
{
    struct hopper *h = threads[0]->block->machine;
    struct known *all = NULL, *last = NULL;
    if (!h->config.races)
        return;
    for (uint32_t i = 0; i < count; i++) {
        if (threads[i]->known == last)
            continue;
        last = threads[i]->known;
        struct known *before = all;
        all = known_join(h->known, before, last);
        known_drop(h->known, before);
    }
    for (uint32_t i = 0; i < count; i++)
        all = raise_own(h, all, threads[i]);
    for (uint32_t i = 0; i < count; i++) {
        known_drop(h->known, threads[i]->known);
        threads[i]->known = known_keep(all);
        threads[i]->clock++;
    }
    known_drop(h->known, all);
}

/* ---- words that synchronise ---- */

static struct sync_word *word_of(struct hopper *h, const void *p, int make)
{
    if (h->word_count * 2 >= h->word_room) {
        uint32_t room = h->word_room ? h->word_room * 2 : 256;
        struct sync_word *old = h->words, *words = calloc(room, sizeof *words);
        if (!words)
            abort();
        for (uint32_t i = 0; i < h->word_room; i++) {
            if (!old[i].address)
                continue;
            uint32_t at = (uint32_t)(sim_mix((uintptr_t)old[i].address)) & (room - 1);
            while (words[at].address)
                at = (at + 1) & (room - 1);
            words[at] = old[i];
        }
        free(old);
        h->words = words;
        h->word_room = room;
    }
    uint32_t at = (uint32_t)(sim_mix((uintptr_t)p)) & (h->word_room - 1);
    while (h->words[at].address && h->words[at].address != p)
        at = (at + 1) & (h->word_room - 1);
    if (!h->words[at].address) {
        if (!make)
            return NULL;
        h->words[at].address = p;
        h->word_count++;
    }
    return &h->words[at];
}

static uint32_t cluster_of(const struct hopper_block *b)
{
    return b->leader->global_sm;
}

/* Whether what was published at `scope` by that block is meant for this one. */
static int covers(enum hopper_scope scope, uint32_t rank, uint32_t cluster, uint32_t sm,
                  const struct hopper_block *b)
{
    switch (scope) {
    case HOPPER_CTA:
        return sm == b->global_sm;
    case HOPPER_CLUSTER:
        return cluster == cluster_of(b);
    case HOPPER_GPU:
        return rank == b->rank;
    default:
        return 1;
    }
}

/* The word now carries `k` (taken). A read-modify-write goes on with what was there before. */
static void word_publish(struct hopper_thread *t, const void *p, struct known *k,
                         enum hopper_scope scope, int modifies)
{
    struct hopper *h = t->block->machine;
    struct sync_word *w = word_of(h, p, 1);
    if (modifies && w->known) {
        struct known *both = known_join(h->known, w->known, k);
        if (!k)
            scope = w->scope;
        known_drop(h->known, k);
        k = both;
    }
    known_drop(h->known, w->known);
    w->known = k;
    w->scope = scope;
    w->rank = t->block->rank;
    w->global_sm = t->block->global_sm;
    w->cluster = cluster_of(t->block);
}

static void word_acquire(struct hopper_thread *t, const void *p, enum hopper_scope scope,
                         int acquire)
{
    struct hopper *h = t->block->machine;
    struct sync_word *w = word_of(h, p, 0);
    if (!w || !w->known || !covers(w->scope, w->rank, w->cluster, w->global_sm, t->block))
        return;
    if (acquire) {
        if (scope >= w->scope || covers(scope, w->rank, w->cluster, w->global_sm, t->block))
            thread_learn(t, w->known);
        return;
    }
    enum hopper_scope needed = HOPPER_CTA;
    while (!covers(needed, w->rank, w->cluster, w->global_sm, t->block))
        needed++;
    struct known *before = t->heard[needed];
    t->heard[needed] = known_join(h->known, before, w->known);
    known_drop(h->known, before);
}

static struct known *what_store_publishes(struct hopper_thread *t, int release,
                                          enum hopper_scope *scope)
{
    uint32_t variant = release ? mutated(HOPPER_P_RELEASE) : 0;
    if (variant > 1)
        *scope = variant == 2 ? HOPPER_CTA : HOPPER_GPU;
    if (release && variant != 1)
        return thread_publish(t);
    *scope = t->fenced_scope;
    return known_keep(t->fenced);
}

/* A thread that looks at a word a third time in a row, and it has not changed, waits until it has
 * or time has passed. */
static void poll_wait(struct hopper_thread *t, const void *p, uint32_t bytes, uint64_t v)
{
    int again = t->poll == p && t->polled == v && t->poll_bytes == bytes;
    t->polls_again = again ? t->polls_again + 1 : 0;
    t->poll = p;
    t->poll_bytes = bytes;
    if (t->polls_again >= 2)
        hopper_wait(t, THREAD_POLL);
}

static uint64_t load(const void *p, uint32_t bytes)
{
    uint64_t v = 0;
    if (bytes == 8)
        return __atomic_load_n((const uint64_t *)p, __ATOMIC_ACQUIRE);
    if (bytes == 4)
        return __atomic_load_n((const uint32_t *)p, __ATOMIC_ACQUIRE);
    memcpy(&v, p, bytes);
    return v;
}

static void aligned(const void *p, uint32_t bytes)
{
    if ((uintptr_t)p % bytes)
        hopper_mistake("accesses %u bytes at an address that is not a multiple of %u", bytes,
                       bytes);
}

uint64_t hopper_load_strong(const void *p, uint32_t bytes, enum hopper_scope scope, int acquire)
{
    struct hopper_thread *t = hopper_thread();
    uint32_t variant = acquire ? mutated(HOPPER_P_ACQUIRE) : 0;
    acquire = acquire && variant != 1;
    scope = variant == 2 ? HOPPER_CTA : scope;
    aligned(p, bytes);
    hopper_point();
    poll_wait(t, p, bytes, load(p, bytes));
    access_check(t, p, bytes, ACCESS_STRONG, hopper_where());
    uint64_t v = t->polled = load(p, bytes);
    word_acquire(t, p, scope, acquire);
    return v;
}

static void store(void *p, uint64_t v, uint32_t bytes)
{
    if (bytes == 8)
        __atomic_store_n((uint64_t *)p, v, __ATOMIC_RELEASE);
    else if (bytes == 4)
        __atomic_store_n((uint32_t *)p, (uint32_t)v, __ATOMIC_RELEASE);
    else
        memcpy(p, &v, bytes);
}

void hopper_store_strong(void *p, uint64_t v, uint32_t bytes, enum hopper_scope scope, int release)
{
    struct hopper_thread *t = hopper_thread();
    aligned(p, bytes);
    hopper_point();
    t->poll = NULL;
    access_check(t, p, bytes, ACCESS_STRONG | ACCESS_WRITE, hopper_where());
    struct known *k = what_store_publishes(t, release, &scope);
    word_publish(t, p, k, scope, 0);
    store(p, v, bytes);
}

/* A word that is its own flag. */
void hopper_store_word(uint64_t *p, uint64_t v)
{
    if (!mutated(HOPPER_P_WORD))
        hopper_store_strong(p, v, 8, HOPPER_GPU, 0);
}

/* A command for the proxy: whoever acts on it knows what was fenced at system scope before. */
void hopper_store_command(void *p, uint64_t low, uint64_t high)
{
    struct hopper_thread *t = hopper_thread();
    struct hopper_rank *r = &t->block->machine->ranks[t->block->rank];
    struct known_table *table = t->block->machine->known;
    if ((uintptr_t)p % 16)
        hopper_mistake("stores a command at an address that is not a multiple of 16");
    hopper_point();
    if (t->fenced_scope == HOPPER_SYSTEM) {
        struct known *before = r->told;
        r->told = known_join(table, before, t->fenced);
        known_drop(table, before);
    }
    ((uint64_t *)p)[1] = high;
    __atomic_store_n((uint64_t *)p, low, __ATOMIC_RELEASE);
}

void hopper_fence(enum hopper_scope scope)
{
    struct hopper_thread *t = hopper_thread();
    struct hopper *h = t->block->machine;
    uint32_t variant = mutated(HOPPER_P_FENCE);
    if (variant == 1)
        return;
    if (variant == 2)
        scope = HOPPER_CTA;
    hopper_point();
    for (uint32_t i = 0; i <= scope; i++) {
        if (!t->heard[i])
            continue;
        thread_learn(t, t->heard[i]);
        known_drop(h->known, t->heard[i]);
        t->heard[i] = NULL;
    }
    known_drop(h->known, t->fenced);
    t->fenced = thread_publish(t);
    t->fenced_scope = scope;
}

void hopper_fence_async(int shared, int global)
{
    struct hopper_thread *t = hopper_thread();
    struct hopper *h = t->block->machine;
    if (mutated(HOPPER_P_FENCE_ASYNC))
        return;
    hopper_point();
    struct known *bridged = known_bridge(h->known, t->known, shared, global);
    known_drop(h->known, t->known);
    t->known = bridged;
    if (shared) {
        t->bridged[KNOWN_ASYNC_SHARED] = t->clock;
        mbarriers_fence(t);
    }
    if (global)
        t->bridged[KNOWN_ASYNC_GLOBAL] = t->clock;
    t->clock++; /* what it writes from now on is not behind the fence */
}

static uint64_t modify(enum hopper_atomic what, uint64_t old, uint64_t compare, uint64_t value)
{
    switch (what) {
    case HOPPER_ATOMIC_ADD:
        return old + value;
    case HOPPER_ATOMIC_CAS:
        return old == compare ? value : old;
    case HOPPER_ATOMIC_MAX:
        return old > value ? old : value;
    case HOPPER_ATOMIC_OR:
        return old | value;
    default:
        return value;
    }
}

uint64_t hopper_atomic(void *p, uint32_t bytes, enum hopper_atomic what, uint64_t compare,
                       uint64_t value, enum hopper_scope scope, int acquire, int release)
{
    struct hopper_thread *t = hopper_thread();
    aligned(p, bytes);
    hopper_point();
    t->poll = NULL;
    access_check(t, p, bytes, ACCESS_STRONG | ACCESS_WRITE, hopper_where());
    word_acquire(t, p, scope, acquire);
    struct known *k = what_store_publishes(t, release, &scope);
    word_publish(t, p, k, scope, 1);
    uint64_t old, next;
    if (bytes == 8) { /* other processes may have the same word */
        old = __atomic_load_n((uint64_t *)p, __ATOMIC_ACQUIRE);
        do
            next = modify(what, old, compare, value);
        while (!__atomic_compare_exchange_n((uint64_t *)p, &old, next, 0, __ATOMIC_ACQ_REL,
                                            __ATOMIC_ACQUIRE));
        return old;
    }
    uint32_t narrow = __atomic_load_n((uint32_t *)p, __ATOMIC_ACQUIRE);
    do
        next = modify(what, narrow, (uint32_t)compare, (uint32_t)value);
    while (!__atomic_compare_exchange_n((uint32_t *)p, &narrow, (uint32_t)next, 0, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE));
    return narrow;
}

uint64_t hopper_globaltimer(void)
{
    struct hopper_thread *t = hopper_thread();
    struct hopper *h = t->block->machine;
    if (!h->config.clock)
        *h->now += sim_random_below(&h->random, 32);
    hopper_point();
    return h->config.clock ? h->config.clock(NULL) : *h->now;
}

/* ---- the NIC ---- */

static void nic_access(struct hopper *h, uint32_t rank, const void *p, size_t bytes, uint32_t kind)
{
    struct hopper_rank *r = &h->ranks[rank];
    uint32_t entry = sm_of_host(h, rank) * KNOWN_ENTRIES;
    struct shadow_actor a = {.known = r->told, .entry = entry, .clock = r->nic_clock + 1};
    struct shadow_event e = {entry, r->nic_clock + 1, WHERE_NETWORK, kind & 15};
    if (h->config.races)
        shadow_access(&h->shadow, &a, &e, p, bytes);
}

void hopper_nic_read(struct hopper *h, uint32_t rank, const void *p, size_t bytes)
{
    nic_access(h, rank, p, bytes, 0);
}

void hopper_nic_write(struct hopper *h, uint32_t rank, const void *p, size_t bytes)
{
    nic_access(h, rank, p, bytes, ACCESS_WRITE);
}

/* What the NIC has read and written so far, who sees the flag knows. */
void hopper_nic_flag(struct hopper *h, uint32_t rank, const void *p)
{
    struct hopper_rank *r = &h->ranks[rank];
    struct sync_word *w = word_of(h, p, 1);
    uint32_t sm = sm_of_host(h, rank);
    struct known *k = known_keep(r->told), *before = w->known;
    nic_access(h, rank, p, 8, ACCESS_WRITE | ACCESS_STRONG);
    k = known_raise(h->known, k, KNOWN_GENERIC, sm, 0, ++r->nic_clock);
    w->known = known_join(h->known, before, k);
    known_drop(h->known, before);
    known_drop(h->known, k);
    w->scope = HOPPER_SYSTEM;
    w->rank = rank;
    w->global_sm = w->cluster = sm;
}

void mbarriers_fence(struct hopper_thread *t)
{
    for (uint32_t i = 0; i < KNOWN_MBARRIERS; i++)
        if (t->block->mbarriers[i].init_entry == thread_entry(t))
            t->block->mbarriers[i].fenced = 1;
}

void thread_await_launches(struct hopper_thread *t)
{
    struct hopper_rank *r = &t->block->machine->ranks[t->block->rank];
    hopper_point();
    while (r->grid != t->block->grid)
        hopper_wait(t, THREAD_LAUNCH);
    thread_learn(t, r->stream);
}

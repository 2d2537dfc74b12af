/* mbarriers: phases, arrivals, transaction bytes. Their state is the machine's; the eight bytes in
 * shared memory are only marked, so that whoever else touches them is found. */
#include "sim/hopper/machine.h"

enum { MOST = (1 << 20) - 1 };

uint32_t mbarrier_entry(const struct hopper_block *b, const struct mbarrier *m)
{
    return b->global_sm * KNOWN_ENTRIES + KNOWN_LOAD + (uint32_t)(m - b->mbarriers);
}

/* Whoever uses an mbarrier knows of its initialisation. */
static struct mbarrier *checked(struct hopper_block *b, struct mbarrier *m, const char *what)
{
    struct hopper_thread *t = hopper_thread();
    struct hopper *h = b->machine;
    if (h->config.races && m->init_entry != thread_entry(t) &&
        known_clock(t->known, h->sms, KNOWN_GENERIC, m->init_entry) < m->init_clock)
        hopper_mistake(
            "%s at 0x%x of block %u: no barrier lies behind its initialisation by thread %u", what,
            m->address, b->number, m->init_entry % KNOWN_ENTRIES);
    return m;
}

struct mbarrier *mbarrier_find(struct hopper_block *b, uint32_t address, const char *what)
{
    for (uint32_t i = 0; i < KNOWN_MBARRIERS; i++)
        if (b->mbarriers[i].address == address)
            return what ? checked(b, &b->mbarriers[i], what) : &b->mbarriers[i];
    if (what)
        hopper_mistake("%s at 0x%x of block %u, where no mbarrier has been initialised", what,
                       address, b->number);
    return NULL;
}

static struct mbarrier *own(uint32_t bar, const char *what)
{
    return mbarrier_find(hopper_thread()->block, bar, what);
}

void hopper_mbar_init(uint32_t bar, uint32_t arrivals)
{
    struct hopper_thread *t = hopper_thread();
    struct hopper_block *b = t->block;
    uint32_t variant = mutated(arrivals > 1 ? HOPPER_P_INIT : HOPPER_P_INIT_ONE);
    arrivals += variant == 1;
    arrivals -= variant == 2;
    uint8_t *at = shared_at(b, bar, 8, 8, "mbarrier.init");
    struct mbarrier *m = mbarrier_find(b, bar, NULL);
    if (m)
        hopper_mistake("initialises the mbarrier at 0x%x again, without mbarrier.inval", bar);
    if (!arrivals || arrivals > MOST)
        hopper_mistake("initialises an mbarrier for %u arrivals; 1 to %d there may be", arrivals,
                       MOST);
    m = mbarrier_find(b, 0, NULL);
    if (!m)
        hopper_mistake("initialises more than %d mbarriers in a block, which is this model's limit",
                       KNOWN_MBARRIERS);
    access_check(t, at, 8, ACCESS_WRITE, hopper_where());
    uint32_t phase = (m->phase + 2) & ~1u; /* its clock goes on, its parity begins */
    *m = (struct mbarrier){.address = bar,
                           .arrivals = arrivals,
                           .pending = arrivals,
                           .phase = phase,
                           .base = phase,
                           .init_entry = thread_entry(t),
                           .init_clock = t->clock,
                           .where = hopper_where()};
    shadow_set(&b->machine->shadow, at, 8, SHADOW_MBARRIER);
}

/* fence.mbarrier_init: also the asynchronous proxy finds initialised what this thread has. */
void hopper_mbar_init_fence(void)
{
    if (mutated(HOPPER_P_INIT_FENCE))
        return;
    mbarriers_fence(hopper_thread());
    hopper_point();
}

static void complete_if_due(struct hopper_block *b, struct mbarrier *m)
{
    struct hopper *h = b->machine;
    if (m->pending || m->bytes)
        return;
    known_drop(h->known, m->passed);
    /* loads of this phase have landed */
    m->passed = known_event(h, m->coming, mbarrier_entry(b, m), m->phase + 1);
    /* phases follow each other */
    m->coming = known_keep(m->passed);
    m->phase++;
    m->pending = m->arrivals;
    for (uint32_t i = 0; i < b->threads; i++)
        if (b->thread[i].state == THREAD_MBARRIER && b->thread[i].barrier == m->address)
            thread_wake(&b->thread[i]);
}

static void arrived(struct hopper_block *b, struct mbarrier *m, uint32_t count, struct known *k)
{
    struct hopper *h = b->machine;
    if (count > m->pending)
        hopper_mistake("arrives %u times at the mbarrier at 0x%x of block %u, which waits for %u "
                       "more in this phase",
                       count, m->address, b->number, m->pending);
    struct known *before = m->coming;
    m->coming = known_join(h->known, before, k);
    known_drop(h->known, before);
    known_drop(h->known, k);
    m->pending -= count;
    complete_if_due(b, m);
}

void mbarrier_arrive_late(struct hopper_block *b, struct mbarrier *m, struct known *k)
{
    struct hopper *h = b->machine;
    struct known *before = m->coming;
    m->coming = known_join(h->known, before, k);
    known_drop(h->known, before);
    known_drop(h->known, k);
    m->pending--; /* a phase is over when none is left: there is one */
    complete_if_due(b, m);
}

void hopper_mbar_arrive(uint32_t bar, uint32_t count, uint32_t expected_bytes, int arrives)
{
    struct hopper_thread *t = hopper_thread();
    struct mbarrier *m = own(bar, arrives ? "an arrival" : "expect_tx");
    uint32_t variant = mutated(expected_bytes ? HOPPER_P_EXPECT : HOPPER_P_ARRIVE);
    hopper_point();
    if (variant && expected_bytes)
        expected_bytes += variant == 1 ? -16u : 16u;
    else if (variant == 1)
        return;
    count *= variant == 2 && !expected_bytes ? 2 : 1;
    m->bytes += expected_bytes;
    if (m->bytes > MOST)
        hopper_mistake("makes the mbarrier at 0x%x expect %ld bytes; %d is the most", bar, m->bytes,
                       MOST);
    if (arrives)
        arrived(t->block, m, count, thread_publish(t));
    hopper_point();
}

struct hopper_block *block_of_cluster(struct hopper_block *b, uint32_t rank)
{
    if (rank >= b->grid->cluster)
        hopper_mistake("names CTA %u of a cluster of %u", rank, b->grid->cluster);
    struct hopper_block *other = b->leader + rank;
    if (!other->grid || other->ended == other->threads)
        hopper_mistake("reaches for the shared memory of CTA %u of its cluster, which has left",
                       rank);
    return other;
}

/* Relaxed: what products and bulk stores have read, and has been waited for, has been read; nothing
 * else is announced. */
void hopper_mbar_arrive_at(uint32_t bar, uint32_t rank, int release)
{
    struct hopper_thread *t = hopper_thread();
    uint32_t variant = mutated(HOPPER_P_ARRIVE);
    hopper_point();
    if (variant == 1)
        return;
    struct hopper_block *other = block_of_cluster(t->block, rank);
    struct mbarrier *m = mbarrier_find(other, bar, "a remote arrival");
    struct known *k = release ? thread_publish(t) : known_reads(t->block->machine->known, t->known);
    arrived(other, m, variant == 2 ? 2 : 1, k);
    hopper_point();
}

/* Bytes of a load that was issued in `phase` have landed. */
void mbarrier_bytes(struct hopper_block *b, struct mbarrier *m, uint32_t bytes, uint32_t phase,
                    uint64_t where)
{
    char line[200];
    if (m->phase != phase) {
        where_text(where, line, sizeof line);
        hopper_fail(b->machine,
                    "rank %u, block %u: bytes of the load of %s land in phase %u of their "
                    "mbarrier at 0x%x, and were loaded for phase %u",
                    rank_of(b), b->number, line, m->phase & 0xfffff, m->address, phase & 0xfffff);
        return;
    }
    m->bytes -= bytes;
    if (m->bytes < -MOST) {
        hopper_fail(b->machine,
                    "rank %u, block %u: the mbarrier at 0x%x got more bytes than it can count",
                    rank_of(b), b->number, m->address);
        return;
    }
    complete_if_due(b, m);
}

static int mbar_look(uint32_t bar, uint32_t parity, int waits)
{
    struct hopper_thread *t = hopper_thread();
    struct hopper *h = t->block->machine;
    struct mbarrier *m = own(bar, "a wait");
    uint32_t number = (uint32_t)(m - t->block->mbarriers);
    if (parity > 1)
        hopper_mistake("waits for the parity %u of a phase", parity);
    hopper_point();
    while ((m->phase & 1) == parity) {
        if (!waits || !sim_random_below(&h->random, 16))
            return 0; /* a wait may say so for no reason */
        t->barrier = bar;
        t->tried = 0;
        hopper_wait(t, THREAD_MBARRIER);
        if (t->tried)
            return 0;
    }
    if (m->phase == m->base) /* the phase before the first, which is complete from the beginning */
        return 1;
    /* Who last saw phase p asks for p + 1 next, or for p again. Two phases on the parity is the
     * same again. */
    uint32_t seen = t->phase_of[number];
    if (seen && m->phase - seen >= 3)
        hopper_mistake("passes a wait for the mbarrier at 0x%x by the phase %u phases after the "
                       "one it last waited for: the one "
                       "between has gone by unseen, and a parity cannot tell them apart",
                       bar, m->phase - seen);
    t->phase_of[number] = m->phase;
    thread_learn(t, m->passed);
    return 1;
}

int hopper_mbar_test(uint32_t bar, uint32_t parity)
{
    return mbar_look(bar, parity, 0);
}

int hopper_mbar_try(uint32_t bar, uint32_t parity)
{
    uint32_t variant = mutated(HOPPER_P_MBAR_WAIT);
    if (variant == 1)
        return 1;
    return mbar_look(bar, parity ^ (variant == 2), 1);
}

void hopper_mbar_wait(uint32_t bar, uint32_t parity, uint64_t limit_ns)
{
    struct hopper_thread *t = hopper_thread();
    uint64_t start = 0;
    for (uint32_t tries = 0; !hopper_mbar_try(bar, parity); tries++) {
        if (!t->block->machine->config.tries_end)
            continue;
        if (!tries) {
            thread_await_launches(t);
            start = hopper_globaltimer();
        } else if (tries % 128 == 0 && /* later than barrier_wait, which has a sentence */
                   hopper_globaltimer() - start > limit_ns) {
            hopper_trap();
        }
    }
}

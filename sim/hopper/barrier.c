/* Barriers of a block and of a cluster. */
#include "sim/hopper/machine.h"

void barriers_begin(struct hopper_block *b)
{
    struct known_table *table = b->machine->known;
    for (uint32_t i = 0; i < NAMED_BARRIERS; i++) {
        known_drop(table, b->barriers[i].known);
        b->barriers[i] = (struct named_barrier){0};
    }
    for (uint32_t i = 0; i < KNOWN_MBARRIERS; i++) {
        known_drop(table, b->mbarriers[i].coming);
        known_drop(table, b->mbarriers[i].passed);
        uint32_t phase = b->mbarriers[i].phase; /* its clock goes on */
        b->mbarriers[i] = (struct mbarrier){.phase = phase, .init_entry = UINT32_MAX};
    }
    for (uint32_t i = 0; i < KNOWN_ISSUERS; i++)
        b->issuers[i] = (struct issuer){.committed = b->issuers[i].committed + 1};
}

static void join(struct hopper *h, struct known **into, struct known *k)
{
    struct known *before = *into;
    *into = known_join(h->known, before, k);
    known_drop(h->known, before);
}

/* Everybody has come: those who wait learn what all did, and go on. */
static void release(struct hopper_block *b, uint32_t id)
{
    struct hopper *h = b->machine;
    struct named_barrier *n = &b->barriers[id];
    struct hopper_thread *waiting[KNOWN_THREADS];
    uint32_t count = 0;
    for (uint32_t i = 0; i < b->warps; i++)
        /* who has only arrived may have ended since */
        if (n->warps[i] && b->warp[i].lanes & ~b->warp[i].ended & ~n->warps[i]) {
            hopper_fail(h,
                        "rank %u, block %u: lanes 0x%x of warp %u alone have come to barrier %u; "
                        "bar.sync is for whole warps",
                        rank_of(b), b->number, n->warps[i], i, id);
            return;
        }
    for (uint32_t i = 0; i < b->threads; i++)
        if (b->thread[i].state == THREAD_BARRIER && b->thread[i].barrier == id)
            waiting[count++] = &b->thread[i];
    for (uint32_t i = 0; n->known && i < count; i++)
        thread_learn(waiting[i], n->known);
    if (count)
        threads_meet(waiting, count);
    for (uint32_t i = 0; i < count; i++) {
        waiting[i]->result = (uint64_t)n->either;
        thread_wake(waiting[i]);
    }
    known_drop(h->known, n->known);
    *n = (struct named_barrier){0};
}

static void arrive(struct hopper_thread *t, uint32_t id, uint32_t threads)
{
    struct hopper_block *b = t->block;
    if (id >= NAMED_BARRIERS)
        hopper_mistake("comes to barrier %u; there are 16", id);
    struct named_barrier *n = &b->barriers[id];
    if (threads % 32)
        hopper_mistake("comes to barrier %u for %u threads, which is not a multiple of 32", id,
                       threads);
    if (n->expected && n->expected != (threads ? threads : UINT32_MAX))
        hopper_mistake("comes to barrier %u for %u threads where others came for %u", id, threads,
                       n->expected);
    n->expected = threads ? threads : UINT32_MAX;
    n->warps[t->warp->number] |= 1u << t->lane;
    n->arrived++;
}

static int full(const struct hopper_block *b, uint32_t id)
{
    const struct named_barrier *n = &b->barriers[id];
    return n->arrived &&
           n->arrived == (n->expected == UINT32_MAX ? b->threads - b->ended : n->expected);
}

int hopper_barrier(uint32_t id, uint32_t threads, int either)
{
    struct hopper_thread *t = hopper_thread();
    if (mutated(HOPPER_P_BARRIER)) {
        hopper_point();
        return either;
    }
    arrive(t, id, threads);
    t->block->barriers[id].either |= either;
    t->barrier = id;
    t->state = THREAD_BARRIER;
    if (full(t->block, id)) {
        release(t->block, id); /* this thread too */
        if (t->block->machine->failed)
            hopper_stop();
        hopper_point();
    } else {
        hopper_wait(t, THREAD_BARRIER);
    }
    return (int)t->result;
}

void hopper_barrier_arrive(uint32_t id, uint32_t threads)
{
    struct hopper_thread *t = hopper_thread();
    arrive(t, id, threads);
    struct known *k = thread_publish(t);
    join(t->block->machine, &t->block->barriers[id].known, k);
    known_drop(t->block->machine->known, k);
    if (full(t->block, id))
        release(t->block, id);
    hopper_point();
}

/* ---- clusters ---- */

uint32_t hopper_cluster_rank(void)
{
    return hopper_thread()->block->cluster_rank;
}

static void cluster_release(struct hopper_block *leader)
{
    struct hopper *h = leader->machine;
    struct cluster_barrier *c = &leader->cluster;
    known_drop(h->known, c->passed);
    c->passed = c->coming;
    c->coming = NULL;
    c->arrived = 0;
    c->phase++;
    for (uint32_t i = 0; i < leader->grid->cluster; i++)
        for (uint32_t n = 0; n < leader[i].threads; n++)
            if (leader[i].thread[n].state == THREAD_CLUSTER)
                thread_wake(&leader[i].thread[n]);
}

void hopper_cluster_arrive(int release)
{
    struct hopper_thread *t = hopper_thread();
    struct hopper *h = t->block->machine;
    struct hopper_block *leader = t->block->leader;
    if (mutated(HOPPER_P_CLUSTER)) {
        t->barrier = UINT32_MAX;
        return;
    }
    t->barrier = leader->cluster.phase;
    if (release) {
        struct known *k = thread_publish(t);
        join(h, &leader->cluster.coming, k);
        known_drop(h->known, k);
    }
    if (++leader->cluster.arrived == leader->cluster.alive)
        cluster_release(leader);
}

void hopper_cluster_wait(void)
{
    struct hopper_thread *t = hopper_thread();
    struct hopper_block *leader = t->block->leader;
    while (leader->cluster.phase == t->barrier)
        hopper_wait(t, THREAD_CLUSTER);
    thread_learn(t, leader->cluster.passed);
    hopper_point();
}

/* Who has ended is not waited for. */
void barriers_thread_ended(struct hopper_thread *t)
{
    struct hopper_block *b = t->block, *leader = b->leader;
    for (uint32_t i = 0; i < NAMED_BARRIERS; i++)
        if (b->barriers[i].expected == UINT32_MAX && full(b, i))
            release(b, i);
    leader->cluster.alive--;
    if (leader->cluster.arrived && leader->cluster.arrived == leader->cluster.alive)
        cluster_release(leader);
}

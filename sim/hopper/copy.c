/* cp.async: a thread's own copies from global to shared memory, by the generic proxy. Here the
 * bytes come as late as they may, at the wait for them, or in some order before the arrival at an
 * mbarrier that they make; until then a pattern that is no number lies where they will. PTX ISA,
 * non-bulk copies. */
#include "sim/hopper/machine.h"

#include <stdlib.h>
#include <string.h>

enum { COPIES = 128 }; /* of a thread, under way */

struct copy {
    uint8_t *to;
    const uint8_t *from;
    uint32_t bytes, read, group;
    uint64_t where;
};

struct thread_copies {
    uint32_t count, committed;
    uint32_t arrivals, arrived; /* that copies make: asked for, and come */
    struct copy of[COPIES];
};

static void land(const struct copy *c)
{
    memset(c->to, 0, c->bytes);
    memcpy(c->to, c->from, c->read);
}

void hopper_copy_async(uint32_t dst, const void *src, uint32_t bytes, uint32_t read)
{
    struct hopper_thread *t = hopper_thread();
    if (!t->copies && !(t->copies = calloc(1, sizeof *t->copies)))
        abort();
    struct thread_copies *c = t->copies;
    hopper_point();
    if ((bytes != 4 && bytes != 8 && bytes != 16) || read > bytes || (uintptr_t)src % bytes)
        hopper_mistake("copies %u of %u bytes from %p by cp.async: 4, 8 or 16 there are, from a "
                       "multiple of as many",
                       read, bytes, src);
    if (c->count == COPIES)
        hopper_mistake("has %d copies by cp.async under way, which is this model's limit", COPIES);
    uint8_t *to = shared_at(t->block, dst, bytes, bytes, "cp.async");
    if (read)
        access_check(t, src, read, 0, hopper_where());
    access_check(t, to, bytes, ACCESS_WRITE, hopper_where());
    memset(to, 0xff, bytes);
    uint32_t i = c->count++;
    c->of[i].to = to;
    c->of[i].from = src;
    c->of[i].bytes = bytes;
    c->of[i].read = read;
    c->of[i].group = c->committed + 1;
    c->of[i].where = hopper_where();
}

void hopper_copy_commit(void)
{
    struct hopper_thread *t = hopper_thread();
    if (t->copies)
        t->copies->committed++;
}

void hopper_copy_wait(uint32_t pending)
{
    struct hopper_thread *t = hopper_thread();
    struct thread_copies *c = t->copies;
    uint32_t left = 0, variant = mutated(HOPPER_P_BULK_WAIT);
    hopper_point();
    if (variant == 1)
        return;
    pending += variant == 2;
    for (uint32_t i = 0; c && i < c->count; i++) {
        if (c->of[i].group + pending > c->committed) {
            c->of[left++] = c->of[i];
            continue;
        }
        /* once more: who has read or written there since the copy was issued did so too early */
        access_check(t, c->of[i].to, c->of[i].bytes, ACCESS_WRITE, c->of[i].where);
        land(&c->of[i]);
    }
    if (c)
        c->count = left;
}

/* What the thread has copied so far lands from now on, whoever runs, and makes its arrival. */
void hopper_copy_arrive(uint32_t bar)
{
    struct hopper_thread *t = hopper_thread();
    struct hopper_block *b = t->block;
    struct mbarrier *m = mbarrier_find(b, bar, "an arrival of copies");
    const struct region none = {.rows = 0};
    hopper_point();
    if (!t->copies && !(t->copies = calloc(1, sizeof *t->copies)))
        abort();
    struct thread_copies *c = t->copies;
    uint32_t variant = mutated(HOPPER_P_ARRIVE), bytes = c->count * (uint32_t)sizeof *c->of;
    if (variant == 1)
        return;
    if (variant == 2) { /* as if there had been none */
        mbarrier_arrive_late(b, m, thread_publish(t));
        return;
    }
    struct flight *f = flight_issue(t, &none, bar, bytes);
    memcpy(f->data, c->of, bytes);
    f->region.rows = c->count;
    f->mbarrier = m;
    f->grid = b->grid;
    f->copier = t;
    f->group = c->arrivals++;
    f->arrival = thread_publish(t);
    c->count = 0;
    b->loads++;
    hopper_point();
}

/* Of the flight's copies, which land in any order, some; behind the last the arrival, when those
 * that the thread asked for before have come. */
int copies_land(struct hopper *h, struct flight *f)
{
    struct copy *of = (struct copy *)(void *)f->data;
    struct thread_copies *c = f->copier->copies;
    uint32_t left = f->region.rows - f->moved,
             some = left ? 1 + sim_random_below(&h->random, left) : 0;
    for (; some; some--, f->moved++, left--) {
        uint32_t next = f->moved + sim_random_below(&h->random, left);
        struct copy now = of[next];
        of[next] = of[f->moved];
        land(&now);
    }
    if (left || f->group != c->arrived)
        return 0;
    c->arrived++;
    f->target->loads--;
    mbarrier_arrive_late(f->target, f->mbarrier, f->arrival);
    return 1;
}

void copies_begin(struct hopper_thread *t)
{
    if (t->copies)
        t->copies->count = t->copies->committed = t->copies->arrivals = t->copies->arrived = 0;
}

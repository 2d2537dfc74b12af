/* Whose turn it is, as threads see it: they wait, stop, wake each other, and let others go on. The
 * scheduler is machine.c. */
#include "sim/hopper/machine.h"

__thread struct hopper *hopper_machine;
__thread struct hopper_place *hopper_self;

struct hopper *hopper_current(void)
{
    return hopper_machine;
}

void hopper_use(struct hopper *h, uint32_t rank)
{
    hopper_machine = h;
    if (h)
        h->host_rank = rank;
}

uint32_t hopper_spare(void)
{
    return hopper_machine ? hopper_machine->config.spare : 0;
}

uint32_t hopper_sms(void)
{
    return hopper_machine ? hopper_machine->config.sms - hopper_machine->config.spare : 0;
}

void hopper_unwatch(struct hopper *h)
{
    h->config.races = 0;
}

static void list_add(struct hopper_warp **list, uint32_t *count, struct hopper_warp *w,
                     uint32_t *place)
{
    if (*place)
        return;
    list[*count] = w;
    *place = ++*count;
}

void unit_ready(struct hopper_warp *w)
{
    struct hopper *h = w->block->machine;
    list_add(h->units, &h->unit_count, w, &w->unit);
}

void unit_idle(struct hopper_warp *w)
{
    struct hopper *h = w->block->machine;
    if (!w->unit)
        return;
    struct hopper_warp *moved = h->units[--h->unit_count];
    h->units[w->unit - 1] = moved;
    moved->unit = w->unit;
    w->unit = 0;
}

void warp_idle(struct hopper_warp *w)
{
    struct hopper *h = w->block->machine;
    struct hopper_warp *moved = h->ready[--h->ready_count];
    h->ready[w->ready - 1] = moved;
    moved->ready = w->ready;
    w->ready = 0;
}

void thread_wake(struct hopper_thread *t)
{
    struct hopper_warp *w = t->warp;
    struct hopper *h = t->block->machine;
    if (t->state == THREAD_POLL) {
        h->pollers--;
        w->polls &= ~(1u << t->lane);
    }
    t->state = THREAD_RUNS;
    w->runs |= 1u << t->lane;
    list_add(h->ready, &h->ready_count, w, &w->ready);
}

void hopper_wait(struct hopper_thread *t, enum thread_state state)
{
    t->state = state;
    if (state == THREAD_POLL) {
        t->block->machine->pollers++;
        t->warp->polls |= 1u << t->lane;
    }
    t->warp->runs &= ~(1u << t->lane);
    coroutine_yield();
}

void hopper_stop(void)
{
    for (;;)
        hopper_wait(hopper_thread(), THREAD_STOPPED);
}

void hopper_point(void)
{
    struct hopper *h = hopper_thread()->block->machine;
    if (h->failed)
        hopper_stop();
    if (!sim_random_below(&h->random, h->preempt))
        coroutine_yield();
}

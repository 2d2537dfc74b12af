/* cp.async: a thread's own copies from global to shared memory, by the generic proxy. Here the
 * bytes come as late as they may, at the wait for them; until then a pattern that is no number lies
 * where they will. PTX ISA, non-bulk copies. */
#include "sim/hopper/machine.h"

#include <stdlib.h>
#include <string.h>

enum { COPIES = 128 }; /* of a thread, under way */

struct thread_copies {
    uint32_t count, committed;
    struct {
        uint8_t *to;
        const uint8_t *from;
        uint32_t bytes, read, group;
        uint64_t where;
    } of[COPIES];
};

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
        memset(c->of[i].to, 0, c->of[i].bytes);
        memcpy(c->of[i].to, c->of[i].from, c->of[i].read);
    }
    if (c)
        c->count = left;
}

void copies_begin(struct hopper_thread *t)
{
    if (t->copies)
        t->copies->count = t->copies->committed = 0;
}

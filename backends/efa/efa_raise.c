/* Raising flags. In host memory by a release store. In a GPU's, which the CPU does not write, by
 * the copy engine of the memory's owner: values wait in pinned words, and are copied in the order
 * in which their puts were whole.
 *
 * The NIC has told the host that all data of the put is there before its flag's copy starts, and
 * the owner sees a NIC's writes in order (mr_register has asked): so a kernel that polls the flag
 * sees the data. */
#include "backends/efa/efa_state.h"
#include "core/base/sentence.h"
#include "backends/wall_clock.h"

#include <errno.h>

#define CLOSE_NS 1000000000u

int efa_raise_open(struct efa *e, char *error, size_t size)
{
    const struct mr_memory_ops *owner = mr_provider(e->heap.memory);
    struct efa_raises *q = &e->raises;
    if (e->heap.memory == MK_MEMORY_HOST)
        return 0;
    if (!mr_copies(owner))
        return mk_fail(
            -EOPNOTSUPP, error, size,
            "the efa fabric cannot raise flags in the heap's memory: this process cannot copy "
            "to it");
    q->words = owner->pinned(EFA_RAISES * sizeof *q->words);
    q->owner = owner;
    return q->words ? 0 : -ENOMEM;
}

void efa_raise_close(struct efa *e)
{
    struct efa_raises *q = &e->raises;
    uint64_t deadline = wall_clock(NULL) + CLOSE_NS;
    for (; q->ended != q->started; q->ended++)
        mr_copy_wait(q->owner, q->tickets[q->ended % EFA_RAISES], deadline);
    if (q->words)
        q->owner->unpin(q->words);
}

uint32_t efa_raise_room(const struct efa *e)
{
    const struct efa_raises *q = &e->raises;
    return q->owner ? EFA_RAISES - (uint32_t)(q->made - q->ended) : EFA_RAISES;
}

/* Only this thread writes the flags that puts raise; CTAs read them and acquire. */
void efa_raise(struct efa *e, const struct efa_raise *r)
{
    struct efa_raises *q = &e->raises;
    if (!q->owner) {
        __atomic_store_n((uint64_t *)e->heap.base + r->flag, r->value, __ATOMIC_RELEASE);
        return;
    }
    q->words[q->made % EFA_RAISES] = r->value;
    q->flags[q->made++ % EFA_RAISES] = r->flag;
}

int efa_raise_advance(struct efa *e)
{
    struct efa_raises *q = &e->raises;
    int64_t ticket = 0;
    int copied = 1;
    if (e->useless)
        return 0;
    while (q->started != q->made) {
        uint64_t place = q->started % EFA_RAISES;
        ticket = q->owner->copy((uint64_t *)e->heap.base + q->flags[place], &q->words[place], 8,
                                MEMORY_FROM_HOST);
        if (ticket < 0)
            break;
        q->tickets[place] = ticket;
        q->started++;
    }
    while (q->ended != q->started &&
           (copied = q->owner->copied(q->tickets[q->ended % EFA_RAISES])) == 1)
        q->ended++;
    if ((ticket < 0 && ticket != -EAGAIN) || copied < 0)
        efa_break_all(e, "a flag cannot be copied into the heap");
    return q->ended != q->made && !e->useless;
}

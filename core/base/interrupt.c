#include "core/base/interrupt.h"
#include "core/base/clock.h"
#include "core/mkernel.h"

#define ASK_NS 100000000ull

static int (*interrupt_ask)(void);
static pthread_t interrupt_thread;
static uint64_t interrupt_asked; /* by that thread, ns */

void mk_set_interrupt(int (*ask)(void))
{
    interrupt_thread = pthread_self();
    __atomic_store_n(&interrupt_ask, ask, __ATOMIC_RELEASE);
}

int mk_interrupted(void)
{
    int (*ask)(void) = __atomic_load_n(&interrupt_ask, __ATOMIC_ACQUIRE);
    if (!ask || !pthread_equal(pthread_self(), interrupt_thread))
        return 0;
    uint64_t now = mk_now_ns();
    if (now - interrupt_asked < ASK_NS)
        return 0;
    interrupt_asked = now;
    return ask();
}

/* Coroutines: the switch itself is a dozen instructions per processor, because swapcontext makes a
 * system call each time and an exploration switches tens of millions of times. Other processors use
 * ucontext (SIM_UCONTEXT forces it). */
#include "sim/coroutine.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if !defined(__x86_64__) && !defined(__aarch64__) && !defined(SIM_UCONTEXT)
#define SIM_UCONTEXT
#endif
#ifdef SIM_UCONTEXT
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN
#elif defined(__SANITIZE_THREAD__)
#define WITH_TSAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN
#elif __has_feature(thread_sanitizer)
#define WITH_TSAN
#endif
#endif
#ifdef WITH_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef WITH_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#define STACK_BYTES (256u << 10)
#if defined(WITH_ASAN) || defined(WITH_TSAN)
#define SMALL_STACK_BYTES (128u << 10)
#else
#define SMALL_STACK_BYTES (16u << 10)
#endif
#define UNTOUCHED_BYTES 64u /* at the low end of a small stack */
/* From small stack to small stack, beyond a power of two: else the tops of all stacks would share a
 * few sets of each cache (a switch then takes three times as long). */
#define SMALL_STACK_COLOUR 320u

/* Stacks of one mapping: an emulated GPU has thousands, and a mapping made and undone for each was
 * a third of a short run. */
#define STACKS_OF_A_MAPPING 64u

/* Lies at the high end of an unused stack, which has been used, so that no page is touched for
 * it. */
struct free_stack {
    struct free_stack *next;
};

/* In the first page of a mapping. Its stacks follow, each with its guard page below. */
struct stacks {
    struct stacks *next;
    uint32_t taken;
};

struct coroutine_pool {
    size_t bytes, page;
    struct free_stack *free;
    struct stacks *stacks;
    uint8_t *small; /* all stacks in one mapping; NULL: in those of `stacks` */
    size_t small_bytes, taken;
};

struct coroutine {
    struct coroutine_pool *pool;
    uint8_t *stack; /* lowest usable byte; the guard page is below */
    void (*body)(void *argument);
    void *argument;
    int alive; /* started and not ended */
#ifdef SIM_UCONTEXT
    ucontext_t here, caller;
#else
    void *here, *caller; /* stack pointers */
#endif
#ifdef WITH_ASAN
    void *fake_stack;
    const void *caller_stack;
    size_t caller_bytes;
#endif
#ifdef WITH_TSAN
    void *fiber, *caller_fiber;
#endif
};

static _Thread_local struct coroutine *current;

static void coroutine_run_body(void);

#ifdef SIM_UCONTEXT
static void coroutine_prepare(struct coroutine *c)
{
    getcontext(&c->here);
    c->here.uc_stack.ss_sp = c->stack;
    c->here.uc_stack.ss_size = c->pool->bytes;
    c->here.uc_link = NULL;
    makecontext(&c->here, coroutine_run_body, 0);
}
#define SWITCH(from, to) swapcontext(&(from), &(to))
#else
/* Stores the callee-saved registers and the stack pointer in *from, takes those of `to`.
 * Floating-point control words are not kept: CTAs leave them alone. */
void sim_coroutine_switch(void **from, void *to);
#define SWITCH(from, to) sim_coroutine_switch(&(from), to)

#ifdef __x86_64__
__asm__(".text\n.globl sim_coroutine_switch\n.hidden sim_coroutine_switch\n.type "
        "sim_coroutine_switch,@function\n"
        "sim_coroutine_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq "
        "%r15\n"
        "    movq %rsp, (%rdi)\n    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n.size sim_coroutine_switch,.-sim_coroutine_switch\n");

static void coroutine_prepare(struct coroutine *c)
{
    /* From the top: a zero return address ends backtraces and aligns the frame as a call would; the
     * entry; six registers. */
    uint64_t *top = (uint64_t *)(void *)(c->stack + c->pool->bytes);
    *--top = 0;
    *--top = (uint64_t)(uintptr_t)coroutine_run_body;
    for (int i = 0; i < 6; i++)
        *--top = 0;
    c->here = top;
}
#else /* aarch64 */
__asm__(".text\n.globl sim_coroutine_switch\n.hidden sim_coroutine_switch\n.type "
        "sim_coroutine_switch,%function\n"
        "sim_coroutine_switch:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp, #0]\n    stp x21, x22, [sp, #16]\n    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n    stp x27, x28, [sp, #64]\n    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n    stp d10, d11, [sp, #112]\n    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n    str x9, [x0]\n    mov sp, x1\n"
        "    ldp x19, x20, [sp, #0]\n    ldp x21, x22, [sp, #16]\n    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n    ldp x27, x28, [sp, #64]\n    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n    ldp d10, d11, [sp, #112]\n    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n    ret\n.size sim_coroutine_switch,.-sim_coroutine_switch\n");

static void coroutine_prepare(struct coroutine *c)
{
    uint64_t *frame = (uint64_t *)(void *)(c->stack + c->pool->bytes) - 20;
    for (int i = 0; i < 20; i++)
        frame[i] = 0;
    frame[11] = (uint64_t)(uintptr_t)coroutine_run_body; /* x30 */
    c->here = frame;
}
#endif
#endif

int coroutine_pool_create(struct coroutine_pool **out, size_t stack_bytes)
{
    struct coroutine_pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return -ENOMEM;
    pool->page = (size_t)sysconf(_SC_PAGESIZE);
    pool->bytes =
        ((stack_bytes ? stack_bytes : STACK_BYTES) + pool->page - 1) / pool->page * pool->page;
    *out = pool;
    return 0;
}

int coroutine_pool_create_small(struct coroutine_pool **out, uint32_t count)
{
    int result = coroutine_pool_create(out, SMALL_STACK_BYTES);
    if (result)
        return result;
    struct coroutine_pool *pool = *out;
    pool->bytes += SMALL_STACK_COLOUR;
    pool->small_bytes = count * pool->bytes + pool->page;
    pool->small = mmap(NULL, pool->small_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pool->small == MAP_FAILED) {
        free(pool);
        return -ENOMEM;
    }
    madvise(pool->small, pool->small_bytes, MADV_NOHUGEPAGE);
    return 0;
}

int coroutine_overflowed(const struct coroutine *c)
{
    for (uint32_t i = 0; c->pool->small && i < UNTOUCHED_BYTES; i++)
        if (c->stack[i])
            return 1;
    return 0;
}

static size_t coroutine_stacks_bytes(const struct coroutine_pool *pool)
{
    return pool->page + STACKS_OF_A_MAPPING * (pool->page + pool->bytes);
}

void coroutine_pool_destroy(struct coroutine_pool *pool)
{
    if (!pool)
        return;
    if (pool->small)
        munmap(pool->small, pool->small_bytes);
    while (pool->stacks) {
        struct stacks *stacks = pool->stacks;
        pool->stacks = stacks->next;
        munmap(stacks, coroutine_stacks_bytes(pool));
    }
    free(pool);
}

static int coroutine_stacks_add(struct coroutine_pool *pool)
{
    struct stacks *stacks = mmap(NULL, coroutine_stacks_bytes(pool), PROT_NONE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stacks == MAP_FAILED)
        return -ENOMEM;
    if (mprotect(stacks, pool->page, PROT_READ | PROT_WRITE)) {
        munmap(stacks, coroutine_stacks_bytes(pool));
        return -ENOMEM;
    }
    stacks->next = pool->stacks;
    pool->stacks = stacks;
    return 0;
}

static void *coroutine_stack_take(struct coroutine_pool *pool)
{
    if (pool->small) {
        uint8_t *stack = pool->small + pool->taken++ * pool->bytes;
        return stack + pool->bytes <= pool->small + pool->small_bytes ? stack : NULL;
    }
    if (pool->free) {
        uint8_t *end = (uint8_t *)(pool->free + 1);
        pool->free = pool->free->next;
        return end - pool->bytes;
    }
    if ((!pool->stacks || pool->stacks->taken == STACKS_OF_A_MAPPING) && coroutine_stacks_add(pool))
        return NULL;
    uint8_t *first = (uint8_t *)pool->stacks + 2 * pool->page;
    uint8_t *stack = first + pool->stacks->taken * (pool->bytes + pool->page);
    if (mprotect(stack, pool->bytes, PROT_READ | PROT_WRITE))
        return NULL;
    pool->stacks->taken++;
    return stack;
}

int coroutine_create(struct coroutine **out, struct coroutine_pool *pool)
{
    struct coroutine *c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    c->pool = pool;
    c->stack = coroutine_stack_take(pool);
    if (!c->stack) {
        free(c);
        return -ENOMEM;
    }
#ifdef WITH_TSAN
    c->fiber = __tsan_create_fiber(0);
#endif
    *out = c;
    return 0;
}

void coroutine_destroy(struct coroutine *c)
{
    if (!c)
        return;
#ifdef WITH_ASAN
    __asan_unpoison_memory_region(c->stack, c->pool->bytes); /* frames of one that was dropped */
#endif
#ifdef WITH_TSAN
    __tsan_destroy_fiber(c->fiber);
#endif
    if (!c->pool->small) {
        struct free_stack *stack = (struct free_stack *)(void *)(c->stack + c->pool->bytes) - 1;
        stack->next = c->pool->free;
        c->pool->free = stack;
    }
    free(c);
}

void coroutine_start(struct coroutine *c, void (*body)(void *argument), void *argument)
{
#ifdef WITH_ASAN
    __asan_unpoison_memory_region(c->stack, c->pool->bytes);
    c->fake_stack = NULL;
#endif
    c->body = body;
    c->argument = argument;
    c->alive = 1;
    coroutine_prepare(c);
}

/* The first frame on a coroutine's stack. Never returns: no frame is below it. */
static void coroutine_run_body(void)
{
    struct coroutine *c = current;
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(NULL, &c->caller_stack, &c->caller_bytes);
#endif
    c->body(c->argument);
    c->alive = 0;
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(NULL, c->caller_stack, c->caller_bytes);
#endif
#ifdef WITH_TSAN
    __tsan_switch_to_fiber(c->caller_fiber, 0);
#endif
    SWITCH(c->here, c->caller);
    abort();
}

int coroutine_resume(struct coroutine *c)
{
    if (!c->alive)
        return 0;
    struct coroutine *outer = current;
    current = c;
#ifdef WITH_ASAN
    void *fake_stack;
    __sanitizer_start_switch_fiber(&fake_stack, c->stack, c->pool->bytes);
#endif
#ifdef WITH_TSAN
    c->caller_fiber = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(c->fiber, 0);
#endif
    SWITCH(c->caller, c->here);
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(fake_stack, NULL, NULL);
#endif
    current = outer;
    return c->alive;
}

void coroutine_yield(void)
{
    struct coroutine *c = current;
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(&c->fake_stack, c->caller_stack, c->caller_bytes);
#endif
#ifdef WITH_TSAN
    __tsan_switch_to_fiber(c->caller_fiber, 0);
#endif
    SWITCH(c->here, c->caller);
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(c->fake_stack, &c->caller_stack, &c->caller_bytes);
#endif
}

void coroutine_soon(const struct coroutine *c)
{
#ifndef SIM_UCONTEXT
    for (int line = 0; line < 8; line++)
        __builtin_prefetch((const char *)c->here + 64 * line, 1);
#else
    (void)c;
#endif
}

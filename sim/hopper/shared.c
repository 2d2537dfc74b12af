/* Shared memory by address, and the accesses that the compiler inserts calls for: kernels are
 * compiled with -fsanitize=thread, and the calls renamed (symbols), so that every ordinary load and
 * store of device code is seen here before it happens. */
#include "sim/hopper/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void hopper_here(const char *file, int line)
{
    hopper_self->file = file;
    hopper_self->line = line;
}

void *hopper_dynamic_shared(void)
{
    struct hopper_block *b = hopper_thread()->block;
    return b->shared + b->dynamic_at;
}

/* The kernel says how its dynamic shared memory is aligned: the block's lies so much further on. */
void *hopper_dynamic_shared_aligned(uint32_t align)
{
    struct hopper_block *b = hopper_thread()->block;
    uint32_t more = (align - b->dynamic_at % align) % align;
    if (align > 1024)
        hopper_mistake("aligns its dynamic shared memory to %u bytes; at most 1024", align);
    uint32_t end = b->dynamic_at + b->grid->dynamic_shared;
    shadow_set(&b->machine->shadow, b->shared + end, more, SHADOW_UNWRITTEN);
    b->dynamic_at += more;
    if (end + more > b->shared_bytes)
        b->shared_bytes = end + more;
    return b->shared + b->dynamic_at;
}

/* ---- variables ---- */

static struct {
    uint32_t bytes, align;
} variable[VARIABLES];
static uint32_t variables;

uint32_t hopper_static_place(uint32_t bytes, uint32_t align)
{
    if (variables == VARIABLES) {
        fprintf(stderr, "sim/hopper: more than %d variables in shared memory\n", VARIABLES);
        abort();
    }
    variable[variables].bytes = bytes;
    variable[variables].align = align;
    return variables++;
}

/* The variables lie behind the most that the kernel's own alignment may add. */
static uint32_t variables_at(const struct hopper_grid *g)
{
    return (g->dynamic_shared + 16 + 1024 + 15) / 16 * 16;
}

/* What threads of other blocks have come to is the block's as well: addresses are the grid's. */
static void have_variables(struct hopper_block *b)
{
    uint32_t at = variables_at(b->grid), bytes = b->grid->variable_bytes;
    if (bytes <= b->variable_bytes)
        return;
    shadow_set(&b->machine->shadow, b->shared + at + b->variable_bytes, bytes - b->variable_bytes,
               SHADOW_UNWRITTEN);
    b->variable_bytes = bytes;
    b->shared_bytes = at + bytes;
}

void *hopper_static_shared(uint32_t number)
{
    struct hopper_block *b = hopper_thread()->block;
    struct hopper_grid *g = b->grid;
    uint32_t *at = &g->variables[number];
    if (!*at) {
        uint32_t align = variable[number].align;
        uint32_t begin = (g->variable_bytes + align - 1) / align * align;
        if (begin + variable[number].bytes + g->dynamic_shared > SHARED_MOST)
            hopper_mistake("has %u bytes of variables in shared memory beside %u of dynamic, which "
                           "is too much",
                           begin + variable[number].bytes, g->dynamic_shared);
        g->variable_bytes = begin + variable[number].bytes;
        *at = 1 + variables_at(g) + begin;
    }
    for (struct hopper_block *of = b->leader; of < b->leader + g->cluster; of++)
        if (of->grid == g) /* it has not ended */
            have_variables(of);
    return b->shared + *at - 1;
}

/* Shared memory holds what the block before left: here a pattern that is no number, and the machine
 * knows that nobody wrote it. Dynamic memory begins 16 bytes behind a round address now and then,
 * as behind variables of an odd size. */
void shared_begin(struct hopper_block *b)
{
    struct shadow *shadow = &b->machine->shadow;
    b->dynamic_at = b->machine->skew;
    b->shared_bytes = b->dynamic_at + b->grid->dynamic_shared;
    b->variable_bytes = 0;
    memset(b->shared, 0xff, SHARED_ROOM);
    shadow_set(shadow, b->shared, SHARED_ROOM, SHADOW_OUTSIDE);
    shadow_set(shadow, b->shared, b->shared_bytes, SHADOW_UNWRITTEN);
    have_variables(b);
}

/* ---- by address ---- */

uint32_t hopper_shared_address(const void *p)
{
    struct hopper_block *b = hopper_thread()->block;
    size_t at = (size_t)((const uint8_t *)p - b->shared);
    if (at >= SHARED_ROOM)
        hopper_mistake("asks for the shared address of what is not in its block's shared memory");
    return (uint32_t)at + SHARED_WINDOW;
}

uint8_t *shared_at(struct hopper_block *b, uint32_t address, uint32_t bytes, uint32_t align,
                   const char *what)
{
    uint32_t at = address - SHARED_WINDOW;
    if (address < SHARED_WINDOW || at + (uint64_t)bytes > b->shared_bytes)
        hopper_mistake("%s at shared address 0x%x, %u bytes: the block has 0x%x to 0x%x", what,
                       address, bytes, SHARED_WINDOW, SHARED_WINDOW + b->shared_bytes);
    if (address % align)
        hopper_mistake("%s at shared address 0x%x, which is not a multiple of %u", what, address,
                       align);
    return b->shared + at;
}

void hopper_shared_left(uint32_t address, uint32_t bytes)
{
    struct hopper_block *b = hopper_thread()->block;
    uint8_t *at = shared_at(b, address, bytes, 4, "what is left");
    shadow_set(&b->machine->shadow, at, bytes, SHADOW_INITIAL);
}

void hopper_shared_store(uint32_t address, const void *from, uint32_t bytes)
{
    struct hopper_thread *t = hopper_thread();
    uint8_t *at = shared_at(t->block, address, bytes, bytes, "a store");
    access_check(t, at, bytes, ACCESS_WRITE, hopper_where());
    memcpy(at, from, bytes);
}

void hopper_shared_load(uint32_t address, void *to, uint32_t bytes)
{
    struct hopper_thread *t = hopper_thread();
    uint8_t *at = shared_at(t->block, address, bytes, bytes, "a load");
    access_check(t, at, bytes, 0, hopper_where());
    memcpy(to, at, bytes);
}

void hopper_global_load(const void *address, void *to, uint32_t bytes)
{
    struct hopper_thread *t = hopper_thread();
    if ((uintptr_t)address % bytes)
        hopper_mistake("loads %u bytes from an address that is not a multiple of it", bytes);
    access_check(t, address, bytes, 0, hopper_where());
    memcpy(to, address, bytes);
}

/* ---- what the compiler inserts ---- */

static inline void seen(const void *p, size_t bytes, uint32_t kind, const void *pc)
{
    struct hopper *h = hopper_machine;
    if (!hopper_self || !h || !h->config.races || !shadow_has(&h->shadow, p))
        return;
    access_check(hopper_thread(), p, bytes, kind, (uintptr_t)pc);
}

#define SEEN(name, bytes, kind)                                                                    \
    void hopper_##name(void *p);                                                                   \
    void hopper_##name(void *p)                                                                    \
    {                                                                                              \
        seen(p, bytes, kind, __builtin_return_address(0));                                         \
    }
#define SEEN_SIZE(bytes)                                                                           \
    SEEN(read##bytes, bytes, 0)                                                                    \
    SEEN(write##bytes, bytes, ACCESS_WRITE)                                                        \
    SEEN(unaligned_read##bytes, bytes, 0)                                                          \
    SEEN(unaligned_write##bytes, bytes, ACCESS_WRITE)
SEEN_SIZE(1)
SEEN_SIZE(2)
SEEN_SIZE(4)
SEEN_SIZE(8)
SEEN_SIZE(16)

/* Volatile accesses are relaxed ones at system scope (PTX ISA, volatile operation). The access
 * itself follows. */
static void volatile_seen(const void *p, uint32_t bytes, int write, const void *pc)
{
    if (!hopper_self)
        return;
    struct hopper_thread *t = hopper_thread();
    t->place.file = NULL;
    t->place.pc = (uintptr_t)pc;
    if (write) {
        uint64_t v = 0;
        memcpy(&v, p, bytes < 8 ? bytes : 8); /* what is there: the store itself follows */
        hopper_store_strong((void *)p, v, bytes, HOPPER_SYSTEM, 0);
    } else {
        hopper_load_strong(p, bytes, HOPPER_SYSTEM, 0);
    }
}

#define SEEN_VOLATILE(bytes)                                                                       \
    void hopper_volatile_read##bytes(void *p);                                                     \
    void hopper_volatile_read##bytes(void *p)                                                      \
    {                                                                                              \
        volatile_seen(p, bytes, 0, __builtin_return_address(0));                                   \
    }                                                                                              \
    void hopper_volatile_write##bytes(void *p);                                                    \
    void hopper_volatile_write##bytes(void *p)                                                     \
    {                                                                                              \
        volatile_seen(p, bytes, 1, __builtin_return_address(0));                                   \
    }
SEEN_VOLATILE(1)
SEEN_VOLATILE(2)
SEEN_VOLATILE(4)
SEEN_VOLATILE(8)
SEEN_VOLATILE(16)

void hopper_read_range(void *p, size_t bytes);
void hopper_read_range(void *p, size_t bytes)
{
    seen(p, bytes, 0, __builtin_return_address(0));
}

void hopper_write_range(void *p, size_t bytes);
void hopper_write_range(void *p, size_t bytes)
{
    seen(p, bytes, ACCESS_WRITE, __builtin_return_address(0));
}

/* What else it inserts. */
#define NOTHING(name)                                                                              \
    void hopper_function_##name(void);                                                             \
    void hopper_function_##name(void)                                                              \
    {                                                                                              \
    }
NOTHING(init)
NOTHING(entry)
NOTHING(exit)
NOTHING(table)

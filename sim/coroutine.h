/* Stackful coroutines: a CTA of the host executor and of the simulator is one. Resumed and left on
 * one thread; nothing is shared between threads but a pool is not locked, so each thread has its
 * own. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct coroutine;

/* Stacks that ended coroutines left, to be used again; all of one size, each with a guard page
 * below. */
struct coroutine_pool;

/* `stack_bytes` of each stack, rounded up to pages; 0: 256 KiB. 0 or -ENOMEM. */
int coroutine_pool_create(struct coroutine_pool **out, size_t stack_bytes);

/* The same for at most `count` coroutines that need little stack: all stacks are one mapping
 * without guard pages, and of each only the pages that are used take memory. An ended coroutine's
 * stack is not used again. */
int coroutine_pool_create_small(struct coroutine_pool **out, uint32_t count);

/* Whether a coroutine of such a pool has used its stack up, so that others are damaged. */
int coroutine_overflowed(const struct coroutine *c);

/* Frees the pool; every coroutine of it must have been destroyed. NULL is allowed. */
void coroutine_pool_destroy(struct coroutine_pool *pool);

/* A coroutine that does nothing until coroutine_start. 0 or -ENOMEM. */
int coroutine_create(struct coroutine **out, struct coroutine_pool *pool);

/* The next resume begins body(argument). One that has not ended is dropped where it stands: what it
 * held is not freed. */
void coroutine_start(struct coroutine *c, void (*body)(void *argument), void *argument);

/* Runs until the coroutine yields or ends; returns 1 while there is more to run, 0 once it has
 * ended. */
int coroutine_resume(struct coroutine *c);

/* Inside a coroutine: back to the caller of coroutine_resume. */
void coroutine_yield(void);

/* Gives the stack back to the pool. NULL is allowed. */
void coroutine_destroy(struct coroutine *c);

/* It will be resumed soon: what it left on its stack is fetched into the cache. */
void coroutine_soon(const struct coroutine *c);

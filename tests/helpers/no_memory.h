/* Where any single allocation fails: runs a thing again and again, each time with another of the
 * calling thread's allocations failing, those that libraries make for it too. Include after
 * cmocka.h; one test program's malloc then is ours. */
#pragma once

#include "tests/helpers/sanitized.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local int counts; /* this thread's allocations may fail */
static long allowed;             /* that succeed before the one that fails */
static int failed;
static long blocks; /* in use, of all threads; atomic */

#if SLOWDOWN == 1 /* the sanitizers have an allocator of their own */
/* glibc's own, which ours stand before. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t unit, size_t bytes);
void __libc_free(void *p);

static int fails(void)
{
    if (!counts || failed || allowed-- > 0)
        return 0;
    failed = 1;
    errno = ENOMEM;
    return 1;
}

static void *counted(void *p)
{
    if (p)
        __atomic_fetch_add(&blocks, 1, __ATOMIC_RELAXED);
    return p;
}

void *malloc(size_t bytes)
{
    return fails() ? NULL : counted(__libc_malloc(bytes));
}

void *calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : counted(__libc_calloc(count, bytes));
}

void *realloc(void *old, size_t bytes)
{
    if (fails())
        return NULL;
    return old ? __libc_realloc(old, bytes) : counted(__libc_malloc(bytes));
}

void *memalign(size_t unit, size_t bytes)
{
    return fails() ? NULL : counted(__libc_memalign(unit, bytes));
}

void *aligned_alloc(size_t unit, size_t bytes)
{
    return memalign(unit, bytes);
}

int posix_memalign(void **out, size_t unit, size_t bytes)
{
    void *p = memalign(unit, bytes);
    if (p)
        *out = p;
    return p ? 0 : ENOMEM;
}

void free(void *p)
{
    if (p)
        __atomic_fetch_sub(&blocks, 1, __ATOMIC_RELAXED);
    __libc_free(p);
}

#endif

/* Does the thing whole and undoes it. 0 or what it returned, with its sentence in `text`. */
typedef int subject(char *text, size_t size);

/* Each allocation in turn; of very many, those that lie 1 / `step` of the way apart. Returns how
 * many runs were refused. */
static int fail_each(subject *run, int step)
{
    char text[512];
    int refused = 0;
    if (SLOWDOWN > 1) {
        print_message("a sanitizer's allocator cannot be made to fail\n");
        skip();
    }
    for (int i = 0; i < 2; i++) /* what stays for good is there after that */
        if (run(text, sizeof text))
            fail_msg("%s", text);
    long before = blocks;
    for (long n = 0;; n += 1 + (step ? n / step : 0)) {
        text[0] = '\0';
        failed = 0;
        allowed = n;
        counts = 1;
        int result = run(text, sizeof text);
        counts = 0;
        if (!failed) {
            assert_int_equal(result, 0);
            break;
        }
        if (result > 0 || (result && !text[0]) || strchr(text, '\n'))
            fail_msg("allocation %ld failed: %d, \"%s\"", n, result, text);
        refused += result != 0;
        /* once more, and whole: what threads and libraries keep for the next time is as it was
         * then */
        char after[512];
        if (run(after, sizeof after))
            fail_msg("after allocation %ld had failed: %s", n, after);
        if (blocks != before)
            fail_msg("allocation %ld failed: %ld blocks stay (%d, \"%s\")", n, blocks - before,
                     result, text);
    }
    return refused;
}

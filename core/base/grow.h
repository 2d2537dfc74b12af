/* Arrays that grow one by one. */
#pragma once

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Room for one more behind the `count` elements of `bytes` each in *array, a pointer of any type to
 * what malloc gave, or NULL. It is made twice as large wherever the count is a power of two, so an
 * array needs no capacity beside its count. 0, or -ENOMEM and *array is as it was. */
static inline int mk_grow(void *array, uint64_t count, size_t bytes)
{
    void *at;
    if (count & (count - 1))
        return 0;
    memcpy(&at, array, sizeof at);
    at = realloc(at, (count ? 2 * count : 1) * bytes);
    if (!at)
        return -ENOMEM;
    memcpy(array, &at, sizeof at);
    return 0;
}

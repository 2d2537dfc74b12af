/* Memory of many pages. */
#pragma once

#include <stddef.h>

/* Zeroes, taken as they are used, in large pages where there are any: what is looked up at random
 * spends most of its time in the TLB otherwise. NULL: no memory. */
void *large_map(size_t bytes);
void large_unmap(void *memory, size_t bytes);

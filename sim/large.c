#include "sim/large.h"

#include <sys/mman.h>

void *large_map(size_t bytes)
{
    void *memory = mmap(NULL, bytes + 1, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, bytes + 1, MADV_HUGEPAGE);
    return memory;
}

void large_unmap(void *memory, size_t bytes)
{
    if (memory)
        munmap(memory, bytes + 1);
}

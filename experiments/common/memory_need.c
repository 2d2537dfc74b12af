#include "experiments/common/memory_need.h"
#include "core/ops/op.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

/* Bytes that `ranks` ranks take: their heaps, and the operands of `sets` launches each. */
static uint64_t memory_need_bytes_needed(const struct mk_plan *plan, uint64_t ranks, uint64_t sets)
{
    uint64_t bytes[MK_SPACES - 1], rank = plan->heap_bytes;
    op_extents(&plan->problem, bytes);
    for (uint32_t i = 0; i < MK_SPACES - 1; i++)
        if (__builtin_mul_overflow(bytes[i], sets, &bytes[i]) ||
            __builtin_add_overflow(rank, bytes[i], &rank))
            return UINT64_MAX;
    return __builtin_mul_overflow(rank, ranks, &rank) ? UINT64_MAX : rank;
}

int memory_check(const struct mk_plan *plan, uint64_t ranks, uint64_t sets, char *error,
                 size_t size)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t need = memory_need_bytes_needed(plan, ranks, sets),
             have = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX;
    if (need <= have)
        return 0;
    return mk_fail(-EINVAL, error, size,
                   "heaps and operands of %lu ranks take %.0f GB and this machine has %.0f GB: a "
                   "smaller problem fits, or fewer ranks",
                   ranks, (double)need / 1e9, (double)have / 1e9);
}

int memory_check_ctas(const struct mk_plan *plan, uint64_t ranks, char *error, size_t size)
{
    /* the kernel's default; libraries, heaps and rings */
    unsigned long long most = 65530, others = 1024;
    uint64_t ctas = mk_total_ctas(&plan->problem.tuning.split);
    MK_CLOSED FILE *f = fopen("/proc/sys/vm/max_map_count", "re");
    if (f && fscanf(f, "%llu", &most) != 1)
        most = 65530;
    if (2 * ctas * ranks + others <= most)
        return 0;
    return mk_fail(
        -EINVAL, error, size,
        "%llu CTAs of a rank%s: that can be %llu, since the kernel allows a process %llu "
        "mappings of memory (vm.max_map_count)",
        (unsigned long long)ctas, ranks > 1 ? ", all ranks in one process" : "",
        most > others ? (most - others) / 2 / ranks : 0, most);
}

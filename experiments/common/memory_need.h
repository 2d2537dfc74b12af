/* Whether the ranks of a job fit into this host's memory. A mistyped shape should be refused, and
 * not make the kernel kill another user's program. */
#pragma once

#include "core/plan/plan.h"

/* 0, or -EINVAL with a sentence where the heaps of `ranks` ranks, and the operands of `sets`
 * launches of each, are more than the machine has. */
int memory_check(const struct mk_plan *plan, uint64_t ranks, uint64_t sets, char *error,
                 size_t size);

/* 0, or -EINVAL with a sentence where the coroutines of `ranks` ranks in one process take more
 * mappings of memory (a stack and its guard page each) than the kernel allows one. */
int memory_check_ctas(const struct mk_plan *plan, uint64_t ranks, char *error, size_t size);

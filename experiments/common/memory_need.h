/* Whether all ranks of a job that stay in this host's memory fit into it: a mistyped shape should
 * be refused, not end another user's program for want of memory. */
#pragma once

#include "core/plan.h"

/* 0, or -EINVAL with a sentence where the heaps of `ranks` ranks, and the operands of `sets`
 * launches of each, are more than the machine has. */
int memory_check(const struct mk_plan *plan, uint64_t ranks, uint64_t sets, char *error,
                 size_t error_size);

/* 0, or -EINVAL with a sentence where the coroutines of `ranks` ranks in one process take more
 * mappings of memory (a stack and its guard page each) than the kernel allows one. */
int memory_check_ctas(const struct mk_plan *plan, uint64_t ranks, char *error, size_t error_size);

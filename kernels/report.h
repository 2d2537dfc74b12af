/* What a kernel reported before it ended early, in the words of struct mk_failure. */
#ifndef MK_KERNELS_REPORT_H
#define MK_KERNELS_REPORT_H

#include "core/failure.h"
#include "kernels/launch.h"

#include <stdio.h>
#include <string.h>

/* `plan`: whose flag it is. `f` says which operator and rank, and gets the rest. */
static inline void gpu_report_failure(const struct gpu_report *r, const struct mk_plan *plan,
                                      uint32_t op, uint32_t rank, struct mk_failure *f)
{
    struct mk_flag_meaning meaning;
    *f = (struct mk_failure){.kind = MK_FAIL_TIMEOUT,
                             .op = op,
                             .rank = rank,
                             .cta = r->cta,
                             .role = r->role,
                             .flag = r->flag,
                             .chunk = UINT32_MAX,
                             .producer = rank,
                             .seen = r->seen,
                             .wanted = r->wanted,
                             .epoch = r->epoch,
                             .waited_ns = r->waited_ns};
    if (r->flag == UINT32_MAX) {
        snprintf(f->what, sizeof f->what, "%s",
                 r->cause == MK_CAUSE_BACKPRESSURE ? "room in its command ring"
                                                   : "its puts to leave their source");
        return;
    }
    plan_describe_flag(plan, r->flag, &meaning);
    f->chunk = meaning.chunk;
    f->producer = meaning.producer;
    memcpy(f->what, meaning.text, sizeof f->what);
}

#endif

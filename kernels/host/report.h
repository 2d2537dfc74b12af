/* What a kernel reported before it ended early, in the words of struct mk_failure. */
#pragma once

#include "core/cta/cta_route.h"
#include "core/comm/failure.h"
#include "core/cta/halves.h"
#include "kernels/engine/launch.h"

#include <stdio.h>
#include <string.h>

/* Of the CTAs that waited in this launch for a flag of another rank, the one that had waited
 * longest; NULL: none had, half as long as the CTA of the report. What `flag` means goes to
 * *meaning. */
static inline const struct gpu_wait *gpu_report_cause(const struct gpu_report *r,
                                                      const struct mk_plan *plan, uint32_t rank,
                                                      uint32_t *cta, uint32_t *flag,
                                                      struct mk_flag_meaning *meaning)
{
    const struct gpu_wait *cause = NULL;
    uint64_t latest = r->start + r->waited_ns / 2;
    for (uint32_t i = 0; i < GPU_MAX_CTAS; i++) {
        const struct gpu_wait *w = &r->waits[i];
        struct mk_event shown = {.what = (uint32_t)r->progress[i]};
        struct mk_flag_meaning of;
        uint32_t awaited = mk_event_argument(&shown);
        if (!w->start || r->progress[i] >> 32 != (uint32_t)r->epoch ||
            mk_event_kind_of(&shown) != MK_EV_WAIT || awaited - plan->flag_base >= plan->flags ||
            w->start > latest || (cause && w->start >= cause->start))
            continue;
        plan_describe_flag(plan, awaited, &of);
        if (of.producer == rank || of.producer == UINT32_MAX)
            continue;
        cause = w;
        *cta = i;
        *flag = awaited;
        *meaning = of;
    }
    return cause;
}

/* Fills `f`, which has operator and rank, from a report. `plan` is the one that the flag belongs
 * to. A wait for this rank itself, or for no single rank, does not say which rank stopped: where
 * another CTA waits for another rank, that wait is reported instead. */
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
    if (r->cause >= GPU_CAUSE_OVERFLOW) {
        failure_overflow(f, r->cause - GPU_CAUSE_OVERFLOW, (uint32_t)r->waited_ns, r->seen,
                         r->wanted);
        f->waited_ns = 0;
        return;
    }
    if (r->cause == GPU_CAUSE_OUT_OF_TURN) {
        f->kind = MK_FAIL_SETUP;
        snprintf(f->detail, sizeof f->detail,
                 "%s half of a launch of %s was replayed out of turn: of graphs that hold halves "
                 "mk_launch_begin's comes first, then mk_launch_end's, in turn",
                 r->role == MK_INTER_REDUCE ? "the second" : "the first", plan_op_name(op));
        return;
    }
    if (r->flag == UINT32_MAX) {
        snprintf(f->what, sizeof f->what, "%s",
                 r->cause == MK_CAUSE_BACKPRESSURE ? "room in its command ring"
                                                   : "its puts to leave their source");
        return;
    }
    plan_describe_flag(plan, r->flag, &meaning);
    if (meaning.producer == rank || meaning.producer == UINT32_MAX) {
        const struct gpu_wait *w = gpu_report_cause(r, plan, rank, &f->cta, &f->flag, &meaning);
        if (w) {
            f->role = w->role;
            f->seen = w->seen;
            f->wanted = w->wanted;
            f->waited_ns = r->start + r->waited_ns - w->start;
        }
    }
    f->chunk = meaning.chunk;
    f->producer = meaning.producer;
    memcpy(f->what, meaning.text, sizeof f->what);
}

/* The CTA interface, outboxes: what a CTA's warps leave for each other. Sums that go to several
 * ranks are first stored in this rank's heap, in a few places of the CTA's own; from there they are
 * copied to whoever adds them, and added to. On a GPU kernels/ops/gemm_reduce.cuh does that with
 * mbarriers between the warps; sim/cta.c is where one coroutine is all of a CTA. */
#ifndef MK_CTA_OUTBOX_H
#define MK_CTA_OUTBOX_H

#include "core/cta.h"

#ifndef __CUDACC__
/* Waits until every copy, sum and tile that this CTA has stored has landed: it may be read, and its
 * source overwritten. Returns 0, or 1 where the launch is ending. */
int mk_cta_settle(struct mk_cta *cta);
#endif

#endif

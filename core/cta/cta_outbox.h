/* The CTA interface, outboxes: staging between the warps of a CTA. The epilogue stores sums that go
 * to several ranks in this rank's heap, in a few places that belong to the CTA; from there they are
 * copied to the ranks that add them, and added to. On a GPU kernels/sums/gemm_reduce.cuh does that,
 * with mbarriers between the warps; on the host, where a CTA is one coroutine, sim/cta.c. */
#pragma once

#include "core/cta/cta.h"

#ifndef __CUDACC__
/* Waits until every copy, sum and tile that this CTA has stored has landed: it may be read, and its
 * source overwritten. Returns 0, or 1 where the launch is ending. */
int mk_cta_settle(struct mk_cta *cta);
#endif

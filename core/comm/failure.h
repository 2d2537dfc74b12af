/* Why a launch ended early: one fixed-size record, made by the rank that saw it first, sent to
 * every rank, told in one sentence. */
#pragma once

#include "core/plan/plan.h"

enum mk_failure_kind {
    MK_FAIL_NONE,
    MK_FAIL_TIMEOUT,   /* a CTA waited too long for a flag */
    MK_FAIL_PEER_LOST, /* a rank's process or connection is gone; `producer` is that rank */
    /* a work request failed or did not complete; `producer` is the peer, `status` the
     * completion's */
    MK_FAIL_NETWORK,
    MK_FAIL_DEVICE,   /* the GPU or its driver said no; `status` is its code */
    MK_FAIL_INTERNAL, /* an invalid command or frame: a bug */
    MK_FAIL_SETUP,    /* `rank` could not open its part or make a plan: `detail` says why */
    /* `producer` has no room for `seen` of `what`, but for `wanted`; no `what`: of its own
     * tokens */
    MK_FAIL_OVERFLOW,
    /* `rank` and `producer` call differently: `what` the one does, `detail` the other */
    MK_FAIL_ORDER,
    MK_FAIL_KINDS
};

struct mk_failure {
    uint32_t kind;
    uint32_t op;       /* enum mk_op; UINT32_MAX: outside every launch */
    uint32_t rank;     /* the rank that reports it */
    uint32_t cta;      /* in the launch's grid; UINT32_MAX: the proxy */
    uint32_t role;     /* enum mk_role */
    uint32_t flag;     /* UINT32_MAX: not about a flag */
    uint32_t chunk;    /* UINT32_MAX: not about a chunk */
    uint32_t producer; /* the rank that should have produced it */
    /* of a TIMEOUT: the rank of this node that should have handed it on; UINT32_MAX: none.
     * comm_fail's */
    uint32_t relay;
    uint32_t evidence; /* 0 but in a PEER_LOST that failure_merge has enriched */
    uint64_t seen, wanted;
    uint64_t epoch;
    uint64_t waited_ns;
    int32_t status;
    char what[96];    /* the object of the wait: "chunk 3 of rank 5's A" */
    char detail[192]; /* the provider's own word: "transport retry counter exceeded" */
};

/* Writes the one sentence about `f` into `text`, e.g. "ag_gemm: rank 1 CTA 2 (compute) waited 10.0
 * s for chunk 3 of rank 5's A in epoch 7 (flag saw 6, wants 7); rank 5 should have produced it".
 * Always terminates it. */
void failure_sentence(const struct mk_failure *f, char *text, size_t size);

/* Makes of `f`, which says operator, rank, CTA and epoch, that rank `rank` has room for `room` of
 * enum mk_route_over `over`, and `count` came. */
void failure_overflow(struct mk_failure *f, uint32_t over, uint32_t rank, uint64_t count,
                      uint64_t room);

#define FAILURE_BEST_EVIDENCE 4u

/* The records about one rank while a job fails. */
struct failure_rank {
    uint64_t waited_ns; /* its own longest wait; UINT64_MAX: one of its puts failed */
    /* the longest that another waited for it; kind MK_FAIL_NONE: none did */
    struct mk_failure missed;
};

/* Why a job failed, as far as one process knows: the record that the job keeps, and which rank
 * waited for which. */
struct failure_case {
    struct mk_failure kept; /* kind MK_FAIL_NONE: nothing failed */
    struct failure_rank *ranks;
    uint32_t world; /* of them */
};

/* An empty case of `world` ranks. 0 or -ENOMEM; failure_case_close frees it, a zeroed one too. */
int failure_case_open(struct failure_case *c, uint32_t world);
void failure_case_close(struct failure_case *c);

enum { FAILURE_OLD, FAILURE_NOTED, FAILURE_CHANGED };

/* Takes a record into a case. The first is kept, but the loss of a rank is enriched by the waits of
 * others (a TIMEOUT or NETWORK record; the lost rank's own chunk is best), and a failed put becomes
 * the loss of its peer when that is known. A wait that timed out is kept only while it names a
 * rank, and that has not waited itself, half as long or longer: a rank that hangs reports nothing.
 * Then the longest wait for a rank that has not takes its place, so a chain of waits ends in the
 * same rank in any order of its records.
 * FAILURE_CHANGED: c->kept is another; FAILURE_NOTED: this record may change it later (the deciding
 * rank must see it); FAILURE_OLD: it says nothing new. */
int failure_merge(struct failure_case *c, const struct mk_failure *later);

/* Before the kept record becomes final. A wait that names no rank, because several ranks produce
 * its object, or one that waits itself, then says which ranks have reported no wait: the rank that
 * hangs is among them. */
void failure_settle(struct failure_case *c);

/* Whether a later record may still enrich `f`: 0 says that it is worth waiting a moment. */
int failure_is_final(const struct mk_failure *f);

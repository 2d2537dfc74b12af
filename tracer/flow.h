/* The links of a rank, in and out: what moved over them, and the bytes in flight over time. */
#pragma once

#include "tracer/levels.h"

enum flow_kind { FLOW_NVLINK, FLOW_NETWORK, FLOW_KINDS };

struct flow_transfer {
    int64_t start, end;
    uint64_t bytes;
    uint32_t peer; /* the other end */
};

struct flow_link {
    struct flow_transfer *transfers; /* in order of peer and start, once flow_make is done */
    uint64_t count;
    uint64_t bytes, busy, peak;
};

struct flow {
    uint32_t ranks;
    struct flow_link *links; /* [rank][kind][out 0, in 1] */
};

static inline struct flow_link *flow_link(const struct flow *f, uint32_t rank, enum flow_kind kind,
                                          int in)
{
    return &f->links[(rank * FLOW_KINDS + kind) * 2 + (uint32_t)in];
}

/* Every transfer of a run, by link. NVLink: a copy to another rank of the node moved one piece of
 * its chunk (the mean piece: the last may be shorter). Network: a put. 0 or -ENOMEM (then
 * empty). */
int flow_make(struct flow *out, const struct trace_data *d);
void flow_free(struct flow *f);

/* The bytes that a link moved in each bucket of width `ns`, and the mean bytes in flight in it. */
void flow_fill(const struct flow_link *l, uint64_t ns, uint32_t buckets, double *moved,
               double *in_flight);

/* The ns in which any of `count` transfers, in order of start, was in flight. */
uint64_t flow_busy(const struct flow_transfer *t, uint64_t count);

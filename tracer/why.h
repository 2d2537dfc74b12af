/* Where a launch's time goes: the time of the compute CTAs of its slowest rank, divided into parts
 * that add up to the whole. Computed from a trace alone, measured or simulated. */
#pragma once

#include "tracer/reader.h"

/* In the order of a launch. At any time a CTA is in one part: products take precedence over waits,
 * and waits over copies, sums and commands. But if a tile takes longer than at full rate while its
 * CTA's load warp waits, the excess counts as that wait. */
enum trace_why_part {
    TRACE_WHY_LAUNCH,       /* until all warps of the CTA have begun the launch */
    TRACE_WHY_PROLOGUE,     /* from there to its first product, where nothing below is recorded */
    TRACE_WHY_PRODUCTS,     /* tiles, as long as they take at full rate */
    TRACE_WHY_SLOWED,       /* tiles, what they take longer than that */
    TRACE_WHY_DATA,         /* between tiles: waits for a rank of the node, */
    TRACE_WHY_BACKPRESSURE, /* for room in the command ring, */
    TRACE_WHY_NETWORK,      /* for what comes over the network; */
    TRACE_WHY_OWN,          /* copies, sums and commands of the CTA's own warps; */
    TRACE_WHY_BETWEEN,      /* none of these: prefetch that came late, epilogues */
    TRACE_WHY_TAIL,         /* from its last tile to the last tile of the rank */
    /* from the last tile of the rank to the end of the launch: */
    TRACE_WHY_EXCHANGE_WAITS, /* the CTA waits, */
    TRACE_WHY_EXCHANGE_OWN,   /* copies, adds or commands, */
    TRACE_WHY_EXCHANGE,       /* or has nothing more to do */
    TRACE_WHY_PARTS
};

struct trace_why {
    uint64_t launch;
    uint32_t rank, ctas, tiles; /* the slowest; its compute CTAs; tiles that they made */
    /* ns since the run's start. From the end of the rank's launch before, where that is later than
     * its first record: `early` ns of the launch lie before, in which its blocks stood ready. */
    int64_t start, end, early;
    double ns[TRACE_WHY_PARTS]; /* mean of the CTAs; they add up to end - start */
};

/* "products", "waits for data", ... */
const char *trace_why_name(enum trace_why_part part);

/* The part as a word for programs: "products_at_full_rate". Returns `key`. */
#define TRACE_WHY_KEY 48
const char *trace_why_key(enum trace_why_part part, char key[TRACE_WHY_KEY]);

/* What a tile takes at full rate is the tenth percentile of the tiles of its extents that the rank
 * has in the trace; under a causal mask, of the same tile, which is another amount of work.
 *
 * launch: from 1; 0: the median launch (view figures). Reads the rank's compute events of all
 * launches: time grows with their number. Returns 0, or -errno with one sentence in `error`:
 * -ERANGE (no such launch), -ENODATA (nothing was computed in it), -ENOMEM, -EBADMSG (damaged). */
int trace_why(sqlite3 *db, uint64_t launch, struct trace_why *out, char *error, size_t size);

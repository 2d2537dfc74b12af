/* One rank's part of a trace, before the parts are merged: pointers into its communicator, or into
 * the bytes it sent. */
#pragma once

#include "core/cta/event.h"
#include "core/ops/op.h"
#include "core/plan/plan.h"
#include "tracer/trace.h"

struct trace_chunk {
    uint64_t bytes;
    uint32_t rank, number;
};

/* A plan and what its ids mean. Tiles and chunks are the same on every rank, so only rank 0 sends
 * them. */
struct trace_plan {
    uint32_t id;
    struct mk_problem problem;
    char shape[OP_PROBLEM_TEXT]; /* op_problem_text; "": its m,n,k */
    uint32_t tile_count, chunk_count, flag_base, flag_count;
    double flop, memory_bytes; /* of one launch of this rank */
    uint64_t nvlink_bytes, network_bytes;
    const struct mk_tile *tiles;      /* NULL: not sent */
    const struct trace_chunk *chunks; /* NULL: not sent */
    const struct mk_flag_meaning *flags;
};

struct trace_part {
    struct mk_topo topo;
    char host[64], device[128];
    uint8_t boot[16]; /* ranks with the same one share CLOCK_MONOTONIC; zeros: not known */
    uint32_t track_count, track_warps;
    struct mk_track *tracks; /* owned; their events are not */
    const struct mk_message *messages;
    uint64_t message_count, messages_dropped;
    uint64_t gpu_residual; /* ns that times in tracks may be off, already on the host's clock */
    const struct trace_clock_sample *host_clock, *gpu_clock;
    uint32_t host_samples, gpu_samples;
    struct trace_plan *plans; /* owned */
    uint32_t plan_count;
    void **blocks; /* owned: the meanings of plans of a communicator, one block a plan */
};

/* Makes the part of one communicator; it points into comm and run, which outlive it. 0 or
 * -ENOMEM. */
int part_of_comm(struct trace_part *part, const struct mk_comm *comm, const struct trace_run *run,
                 const struct trace_samples *host_clock);
/* The meaning of one plan's ids, allocated: *block holds them and is freed by the caller. 0 or
 * -ENOMEM. */
int part_of_plan(struct trace_plan *out, const struct mk_plan *plan, void **block);
void part_free(struct trace_part *part);

/* A part as bytes: *blob is malloc'd, the caller frees it; its size is a multiple of 16. 0 or
 * -ENOMEM. */
int part_pack(const struct trace_part *part, void **blob, size_t *bytes);

/* The inverse of part_pack. The bytes are not trusted: this either fills a part whose every count,
 * index and time is in bounds (it points into blob, which is aligned to 16 and outlives it), or
 * returns -EPROTO or -ENOMEM with *part empty. */
int part_parse(struct trace_part *part, const void *blob, size_t bytes);

/* Times of events and messages are below this, so that sums and differences of two cannot
 * overflow. */
#define TRACE_MAX_TIME ((uint64_t)1 << 61)

/* A whole run in memory: the parts of all ranks on one clock, joined, ready to be stored. Times are
 * ns since the run's first event. Made by data_merge and data_join; store.c writes it. */
#pragma once

#include "tracer/intervals.h"
#include "tracer/map.h"
#include "tracer/part.h"

#define TRACE_NO_TIME INT64_MIN
#define TRACE_NO_EVENT (-1)

struct trace_event {
    int64_t start;
    uint64_t ns;
    uint32_t launch; /* 0: before the first */
    uint32_t what;   /* as in core/cta/event.h */
};

static inline uint32_t event_kind(const struct trace_event *e)
{
    return e->what & 15;
}

static inline uint32_t event_cause(const struct trace_event *e)
{
    return e->what >> 4 & 15;
}

static inline uint32_t event_argument(const struct trace_event *e)
{
    return e->what >> 8;
}

static inline int64_t event_end(const struct trace_event *e)
{
    return e->start + (int64_t)e->ns;
}

enum trace_node_kind { TRACE_NODE_RANK, TRACE_NODE_ROLE, TRACE_NODE_CTA, TRACE_NODE_WARP };

/* A row of the timeline: table track. The tree lies in display order, a parent right before what is
 * below it. */
struct trace_node {
    enum trace_node_kind kind;
    uint32_t id, parent; /* indexes + 1; 0: none */
    uint32_t rank, role, cta, warp;
    uint32_t leaves; /* below it, itself included */
    int leaf;
    struct trace_event *events; /* in order of start; leaves only */
    uint64_t count;
    int64_t first_event; /* id of events[0]; ids are consecutive */
    uint64_t total, dropped, longest;
    int64_t start, end; /* TRACE_NO_TIME: no events */
};

struct trace_launch {
    uint64_t epoch;
    uint32_t plan, found; /* found: number in order of discovery */
    int64_t start;        /* first start on any rank */
};

/* One rank's part of a launch. */
struct trace_span {
    int64_t start, end; /* TRACE_NO_TIME: not here */
    uint64_t compute_only, comm_only, both, idle;
    uint64_t tile_ns;
    uint32_t compute_tracks;
};

struct trace_put {
    struct mk_message m; /* seen, posted, completed unused: see below */
    uint32_t rank, launch;
    uint32_t chunk; /* id; UINT32_MAX: none */
    int waited;
    int64_t commanded, seen, posted, completed, arrived;
    int64_t command_event, arrival_event;
};

/* What ended a wait. */
struct trace_edge {
    int64_t event, producer; /* TRACE_NO_EVENT: none */
    int64_t message;         /* index + 1 in puts; 0: none */
};

struct trace_rank_clock {
    struct trace_clock host, gpu;
    uint8_t *host_used, *gpu_used;
    uint64_t residual; /* of the events' clock against rank 0's host */
};

struct trace_data {
    const struct trace_run *run;
    const struct trace_part *parts; /* in rank order */
    uint32_t ranks;
    struct trace_rank_clock *clocks;
    int64_t origin, duration;
    uint64_t residual, events, dropped;
    struct trace_node *nodes;
    uint32_t node_count;
    uint32_t *leaves, leaf_count;  /* indexes of nodes, in order of their events */
    uint32_t *rank_node;           /* [ranks + 1]: index of a rank's first node */
    struct trace_launch *launches; /* launch id - 1 */
    struct map launch_ids;         /* launch_key -> id */
    struct map chunk_ids;          /* plan, rank, number -> id: see data_flag_chunk */
    uint32_t launch_count;
    struct trace_span *spans; /* [launch][rank] */
    /* of each rank: the united intervals of its tiles, and of its transfers */
    struct intervals *compute, *comm;
    struct trace_put *puts; /* in order of rank, then as logged */
    uint64_t put_count;
    struct trace_edge *edges; /* in order of event */
    uint64_t edge_count;
};

/* The parts, aligned: clocks, tree, events, launches, puts, spans' bounds. parts and run outlive d.
 * On error d is empty. 0, -ENOMEM, or -EPROTO where the parts are not one job's (with a
 * sentence). */
int data_merge(struct trace_data *d, const struct trace_part *parts, uint32_t ranks,
               const struct trace_run *run, char *error, size_t size);
void data_free(struct trace_data *d);

/* Joins puts with the commands and arrivals, and waits with what ended them. 0 or -ENOMEM. */
int data_join(struct trace_data *d);

/* Finds when each rank computed and communicated, and fills in the spans: what it did in each
 * launch. 0 or -ENOMEM. */
int data_overlap(struct trace_data *d);

/* What a rank did in each of `buckets` buckets of width `ns`: out[b] = {compute only, communication
 * only, both}. */
void data_overlap_fill(const struct trace_data *d, uint32_t rank, uint64_t ns, uint32_t buckets,
                       uint64_t (*out)[3]);

/* When a put was in flight: from posted until arrived if a CTA waited for it, else until completed.
 * start == end: not known. */
void data_put_time(const struct trace_put *p, int64_t *start, int64_t *end);

/* The leaf that holds event `id`, and the event. id is of this run. */
const struct trace_node *data_leaf(const struct trace_data *d, int64_t id);
static inline const struct trace_event *data_event(const struct trace_node *leaf, int64_t id)
{
    return &leaf->events[id - leaf->first_event];
}

static inline uint64_t launch_key(uint32_t plan, uint64_t epoch)
{
    return epoch << 24 | plan;
}

/* The plan of an id, as rank `rank` knows it; NULL: none. */
const struct trace_plan *data_plan(const struct trace_data *d, uint32_t rank, uint32_t id);
/* The plan of a launch, as rank `rank` knows it; NULL: none. */
const struct trace_plan *data_launch_plan(const struct trace_data *d, uint32_t rank,
                                          uint32_t launch);
/* The id of the chunk that a flag announces (a flag's meaning has its number there); UINT32_MAX:
 * none. */
uint32_t data_flag_chunk(const struct trace_data *d, const struct trace_plan *plan,
                         const struct mk_flag_meaning *flag);
/* The rank that a copy or signal of `rank` went to. */
static inline uint32_t data_destination(const struct trace_data *d, uint32_t rank,
                                        const struct trace_event *e)
{
    const struct mk_topo *t = &d->parts[0].topo;
    return mk_rank_at(t, mk_node_of(t, rank), event_cause(e) % t->gpus);
}

/* A step of the critical path of a launch; see critical.c. */
struct trace_step {
    uint32_t launch, rank, node; /* node: index + 1; 0: none */
    const char *what;
    int64_t start;
    uint64_t ns;
    int64_t event;
    int64_t message; /* index + 1; 0: none */
};

/* The steps of every launch, launch by launch, backwards in time: *steps is malloc'd, the caller
 * frees it. 0 or -ENOMEM. */
int data_critical(const struct trace_data *d, struct trace_step **steps, uint64_t *count);

/* A small trace whose every event is known, through the real writer: what the viewer's tests and
 * golden screens show. 2 nodes x 2 ranks, 2 launches, 6 CTAs a rank: 0-2 compute, 3 pushes its
 * rank's chunks, 4 forwards what the rail brings, 5 sends. Every rank has 2 chunks of 256 KiB;
 * times are ns. For tests, by #include. */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tracer/store.h"

enum {
    TT_RANKS = 4,
    TT_CTAS = 6,
    TT_CHUNKS = 2,
    TT_COLS = 3,
    TT_LAUNCHES = 2,
    TT_EVENTS = 512,
    TT_PUTS = 16
};

struct tui_trace {
    struct mk_event events[TT_RANKS][TT_CTAS][TT_EVENTS];
    struct mk_track tracks[TT_RANKS][TT_CTAS];
    struct mk_message puts[TT_RANKS][TT_PUTS];
    uint64_t put_count[TT_RANKS];
    struct trace_plan plan[TT_RANKS];
    struct trace_part part[TT_RANKS];
    struct mk_flag_meaning flags[TT_RANKS * TT_CHUNKS];
    struct trace_chunk chunks[TT_RANKS * TT_CHUNKS];
    struct mk_tile tiles[TT_RANKS * TT_CHUNKS * TT_COLS];
    uint64_t arrival[TT_RANKS][TT_RANKS * TT_CHUNKS]; /* of a chunk at a rank, this launch */
    uint64_t now[TT_RANKS][TT_CTAS];
};

/* From one launch's start to the next one's, ns. */
static uint64_t tt_apart = 120000;

static void tt_record(struct tui_trace *t, int rank, int cta, uint32_t kind, uint32_t cause,
                      uint32_t argument, uint64_t ns)
{
    mk_track_add(&t->tracks[rank][cta], mk_event_what(kind, cause, argument), t->now[rank][cta],
                 t->now[rank][cta] + ns);
    t->now[rank][cta] += ns;
}

static void tt_wait(struct tui_trace *t, int rank, int cta, int chunk, uint32_t cause)
{
    uint64_t now = t->now[rank][cta], ready = t->arrival[rank][chunk];
    tt_record(t, rank, cta, MK_EV_WAIT, cause, (uint32_t)chunk, ready > now ? ready - now : 0);
}

static void tt_copy(struct tui_trace *t, int rank, int cta, int chunk, uint64_t ns)
{
    int peer = rank ^ 1;
    tt_record(t, rank, cta, MK_EV_COPY, (uint32_t)peer & 1, (uint32_t)chunk, ns);
    tt_record(t, rank, cta, MK_EV_SIGNAL, (uint32_t)peer & 1, (uint32_t)chunk, 0);
    t->arrival[peer][chunk] = t->now[rank][cta] + 300;
}

static void tt_send(struct tui_trace *t, int rank, int slow)
{
    for (int c = 0; c < TT_CHUNKS; c++) {
        int peer = rank ^ 2, chunk = rank * TT_CHUNKS + c;
        if (rank == 1 && c == 1)
            tt_record(t, rank, 5, MK_EV_WAIT, MK_CAUSE_BACKPRESSURE, 0, 700);
        tt_record(t, rank, 5, MK_EV_COMMAND, 0, (uint32_t)t->put_count[rank], 400);
        uint64_t commanded = t->now[rank][5], posted = commanded + 1300;
        uint64_t completed =
            posted + 20000 + 15000 * (uint64_t)c + (rank == 2 ? (uint64_t)slow : 0);
        t->puts[rank][t->put_count[rank]] =
            (struct mk_message){.epoch = t->put_count[rank] / TT_CHUNKS + 1,
                                .bytes = 262144,
                                .sequence = t->put_count[rank],
                                .seen = commanded + 900,
                                .posted = posted,
                                .completed = completed,
                                .ring = 0,
                                .peer = (uint32_t)peer,
                                .flag = (uint32_t)chunk,
                                .plan = 1};
        t->put_count[rank]++;
        t->arrival[peer][chunk] = completed - 500;
        t->now[rank][5] += 200;
    }
    uint64_t last = t->puts[rank][t->put_count[rank] - 1].completed;
    tt_record(t, rank, 5, MK_EV_WAIT, MK_CAUSE_NETWORK, 0xffffff, last - t->now[rank][5]);
}

static void tt_launch(struct tui_trace *t, uint32_t epoch, uint64_t start, int slow)
{
    for (int r = 0; r < TT_RANKS; r++)
        for (int c = 0; c < TT_CTAS; c++) {
            t->now[r][c] = start + 250 * (uint64_t)r + 40 * (uint64_t)c;
            tt_record(t, r, c, MK_EV_LAUNCH, 1, epoch, 0);
        }
    for (int r = 0; r < TT_RANKS; r++) {
        tt_send(t, r, slow);
        if (epoch == 2)
            /* for its own chunk: nothing ends it */
            tt_record(t, r, 3, MK_EV_WAIT, MK_CAUSE_DATA, (uint32_t)(r * TT_CHUNKS), 1400);
        for (int c = 0; c < TT_CHUNKS; c++)
            tt_copy(t, r, 3, r * TT_CHUNKS + c, 8000 + 500 * (uint64_t)r);
    }
    for (int r = 0; r < TT_RANKS; r++)
        for (int c = 0; c < TT_CHUNKS; c++) {
            tt_wait(t, r, 4, (r ^ 2) * TT_CHUNKS + c, MK_CAUSE_NETWORK);
            tt_copy(t, r, 4, (r ^ 2) * TT_CHUNKS + c, 6000);
        }
    tt_record(t, 3, 4, MK_EV_REDUCE, 0, 6, 2500);
    for (int r = 0; r < TT_RANKS; r++)
        for (int k = 0; k < 3; k++)
            for (int shard = 0; shard < TT_RANKS; shard++)
                for (int c = 0; c < TT_CHUNKS; c++) {
                    static const int order[TT_RANKS] = {
                        0, 1, 2, 3}; /* own, the node's, the rail's, the rail's node's */
                    int from = r ^ order[shard], chunk = from * TT_CHUNKS + c;
                    if (from != r)
                        tt_wait(t, r, k, chunk, (from ^ r) & 2 ? MK_CAUSE_NETWORK : MK_CAUSE_DATA);
                    tt_record(t, r, k, MK_EV_TILE, 0, (uint32_t)(chunk * TT_COLS + k),
                              7000 + 150 * (uint64_t)k);
                }
    if (epoch ==
        /* a CTA that was not run when its chunk had come: chunk 0 of rank 3, long after it
         * arrived */
        2)
        tt_record(t, 1, 2, MK_EV_WAIT, MK_CAUSE_NETWORK, 3 * TT_CHUNKS, 900);
}

/* Stores the trace at `path`. `slow`: ns that rank 2's puts take longer, for a second trace to
 * compare with. Without `full`, a trace of a run that recorded nothing. 0 or -errno. */
static int tui_trace_write(const char *path, int slow, int full)
{
    static struct tui_trace t; /* large; one at a time */
    static const struct trace_run run = {.source = "measured",
                                         .executor = "host",
                                         .fabric = "verbs",
                                         .nic = "soft",
                                         .command = "a test",
                                         .version = "0"};
    char error[256] = "";
    memset(&t, 0, sizeof t);
    for (int r = 0; r < TT_RANKS; r++) {
        for (int c = 0; c < TT_CTAS; c++)
            t.tracks[r][c] = (struct mk_track){t.events[r][c], TT_EVENTS, 0, 0};
        for (int c = 0; c < TT_CHUNKS; c++) {
            int id = r * TT_CHUNKS + c;
            t.chunks[id] = (struct trace_chunk){262144, (uint32_t)r, (uint32_t)c};
            snprintf(t.flags[id].text, sizeof t.flags[id].text, "chunk %d of rank %d's A", c, r);
            t.flags[id].producer = (uint32_t)r;
            t.flags[id].chunk = (uint32_t)c;
            for (int k = 0; k < TT_COLS; k++)
                t.tiles[id * TT_COLS + k] = (struct mk_tile){.id = (uint32_t)(id * TT_COLS + k),
                                                             .slab = (uint32_t)r,
                                                             .row = (uint32_t)c * 64,
                                                             .col = (uint32_t)k * 64,
                                                             .rows = 64,
                                                             .cols = 64};
        }
    }
    for (uint32_t epoch = 1; full && epoch <= TT_LAUNCHES; epoch++)
        tt_launch(&t, epoch, 1000000 + (epoch - 1) * tt_apart, slow);
    if (full)
        t.tracks[3][5].dropped = 5;
    for (int r = 0; r < TT_RANKS; r++) {
        t.plan[r] = (struct trace_plan){.id = 1,
                                        .problem = {.op = MK_OP_AG_GEMM,
                                                    .m = 512,
                                                    .n = 192,
                                                    .k = 2048,
                                                    .tuning = {.tile_m = 64,
                                                               .tile_n = 64,
                                                               .chunk_rows = 64,
                                                               .pieces = 1,
                                                               .split = {.ctas = {3, 2, 1, 0}}}},
                                        .tile_count = 24,
                                        .chunk_count = 8,
                                        .flag_base = 0,
                                        .flag_count = 8,
                                        .flop = 4e8,
                                        .nvlink_bytes = 1 << 20,
                                        .network_bytes = 1 << 19,
                                        .tiles = r ? NULL : t.tiles,
                                        .chunks = r ? NULL : t.chunks,
                                        .flags = t.flags};
        t.part[r] = (struct trace_part){.topo = {2, 2, (uint32_t)r},
                                        .boot = {1, 2, 3},
                                        .track_count = TT_CTAS,
                                        .track_warps = 1,
                                        .tracks = t.tracks[r],
                                        .messages = t.puts[r],
                                        .message_count = t.put_count[r],
                                        .gpu_residual = r < 2 ? 0 : 400,
                                        .plans = &t.plan[r],
                                        .plan_count = 1};
        snprintf(t.part[r].host, sizeof t.part[r].host, "host%d", r / 2);
    }
    int rc = store_parts(t.part, TT_RANKS, &run, path, error, sizeof error);
    if (rc)
        fprintf(stderr, "the fixture could not be stored: %s\n", error);
    return rc;
}

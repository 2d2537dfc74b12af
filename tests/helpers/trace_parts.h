/* For tests: a trace of 2 nodes x 2 ranks, small enough to work every answer out by hand, and
 * questions to a stored one.
 *
 * One launch (plan 1, epoch 1). Times in ns since the launch; CTA 0 computes, 1 is intra_comm, 2 is
 * inter_send. rank 0  CTA 0  tile 0 [0,100]  wait data flag 11 [100,150]  tile 1 [150,250] CTA 1
 * copy chunk 0 to rank 1 [0,60]  signal flag 10 to rank 1 at 60 CTA 2  command 5 [0,10]: a put of
 * 1000 bytes to rank 2, flag 10: seen 20, posted 30, completed 200 rank 1  CTA 0  wait data flag 10
 * [0,70]  tile 2 [70,170] CTA 1 copy chunk 1 to rank 0 [0,140]  signal flag 11 to rank 0 at 140
 * rank 2  CTA 0  tile 3 [0,50]  wait network flag 10 [50,180]  tile 0 [180,300] rank 3  CTA 0  tile
 * 1 [0,40] */
#pragma once

#include "tracer/reader.h"
#include "tracer/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PARTS_RANKS 4
#define PARTS_CTAS 3
#define PARTS_BEGIN 1000000000ull /* of the launch, on every clock */

struct parts {
    struct trace_part part[PARTS_RANKS];
    struct mk_track tracks[PARTS_RANKS][PARTS_CTAS];
    struct mk_event events[PARTS_RANKS][PARTS_CTAS][8];
    struct mk_message message;
    struct trace_plan plan[PARTS_RANKS];
    struct mk_tile tiles[4];
    struct trace_chunk chunks[4];
    struct mk_flag_meaning flags[4];
};

static void parts_add(struct parts *p, uint32_t rank, uint32_t cta, uint32_t what, uint64_t start,
                      uint64_t end)
{
    mk_track_add(&p->tracks[rank][cta], what, PARTS_BEGIN + start, PARTS_BEGIN + end);
}

static void parts_plan(struct parts *p, uint32_t rank)
{
    p->plan[rank] = (struct trace_plan){
        .id = 1,
        .problem = {.op = MK_OP_AG_GEMM,
                    .m = 512,
                    .n = 64,
                    .k = 64,
                    .tuning = {.tile_m = 64,
                               .tile_n = 64,
                               .chunk_rows = 64,
                               .pieces = 1,
                               .split = {.ctas = {1, 1, 1, 0}}}},
        .tile_count = 4,
        .chunk_count = 4,
        .flag_base = 10,
        .flag_count = 4,
        .flop = 1000,
        .nvlink_bytes = 1000,
        .network_bytes = 2000,
        .tiles = p->tiles,
        .chunks = p->chunks,
        .flags = p->flags,
    };
}

/* Fills p: the trace above. Nothing in it is owned, so nothing is freed. */
__attribute__((unused)) static void parts_make(struct parts *p)
{
    memset(p, 0, sizeof *p);
    for (uint32_t i = 0; i < 4; i++) {
        p->tiles[i] = (struct mk_tile){.id = i, .slab = i, .rows = 64, .cols = 64};
        p->chunks[i] = (struct trace_chunk){1000, i, 0};
        p->flags[i] = (struct mk_flag_meaning){.producer = i, .chunk = 0};
        snprintf(p->flags[i].text, sizeof p->flags[i].text, "chunk 0 of rank %u's A", i);
    }
    for (uint32_t r = 0; r < PARTS_RANKS; r++) {
        parts_plan(p, r);
        p->part[r] = (struct trace_part){.topo = {2, 2, r},
                                         .track_count = PARTS_CTAS,
                                         .track_warps = 1,
                                         .tracks = p->tracks[r],
                                         .plans = &p->plan[r],
                                         .plan_count = 1,
                                         .host = "here",
                                         .device = "paper"};
        for (uint32_t c = 0; c < PARTS_CTAS; c++) {
            p->tracks[r][c] = (struct mk_track){p->events[r][c], 8, 0, 0};
            parts_add(p, r, c, mk_event_what(MK_EV_LAUNCH, 1, 1), 0, 0);
        }
    }
    parts_add(p, 0, 0, mk_event_what(MK_EV_TILE, 0, 0), 0, 100);
    parts_add(p, 0, 0, mk_event_what(MK_EV_WAIT, MK_CAUSE_DATA, 11), 100, 150);
    parts_add(p, 0, 0, mk_event_what(MK_EV_TILE, 0, 1), 150, 250);
    parts_add(p, 0, 1, mk_event_what(MK_EV_COPY, 1, 0), 0, 60);
    parts_add(p, 0, 1, mk_event_what(MK_EV_SIGNAL, 1, 10), 60, 60);
    parts_add(p, 0, 2, mk_event_what(MK_EV_COMMAND, 0, 5), 0, 10);
    parts_add(p, 1, 0, mk_event_what(MK_EV_WAIT, MK_CAUSE_DATA, 10), 0, 70);
    parts_add(p, 1, 0, mk_event_what(MK_EV_TILE, 0, 2), 70, 170);
    parts_add(p, 1, 1, mk_event_what(MK_EV_COPY, 0, 1), 0, 140);
    parts_add(p, 1, 1, mk_event_what(MK_EV_SIGNAL, 0, 11), 140, 140);
    parts_add(p, 2, 0, mk_event_what(MK_EV_TILE, 0, 3), 0, 50);
    parts_add(p, 2, 0, mk_event_what(MK_EV_WAIT, MK_CAUSE_NETWORK, 10), 50, 180);
    parts_add(p, 2, 0, mk_event_what(MK_EV_TILE, 0, 0), 180, 300);
    parts_add(p, 3, 0, mk_event_what(MK_EV_TILE, 0, 1), 0, 40);
    p->message = (struct mk_message){.epoch = 1,
                                     .bytes = 1000,
                                     .sequence = 5,
                                     .seen = PARTS_BEGIN + 20,
                                     .posted = PARTS_BEGIN + 30,
                                     .completed = PARTS_BEGIN + 200,
                                     .ring = 0,
                                     .peer = 2,
                                     .flag = 10,
                                     .plan = 1};
    p->part[0].messages = &p->message;
    p->part[0].message_count = 1;
}

/* A path in a directory of the test's own, which parts_clean removes with all that is in it. */
static char parts_directory[64];

__attribute__((unused)) static const char *parts_path(const char *name)
{
    static char path[2][128];
    static int turn;
    if (!*parts_directory) {
        snprintf(parts_directory, sizeof parts_directory, "/tmp/mkernel-trace-test.XXXXXX");
        if (!mkdtemp(parts_directory))
            abort();
    }
    turn ^= 1;
    snprintf(path[turn], sizeof path[turn], "%s/%s", parts_directory, name);
    return path[turn];
}

__attribute__((unused)) static int parts_clean(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", parts_directory);
    return *parts_directory ? system(command) : 0;
}

/* Stores the trace; fails the test where it cannot be. The caller closes *db. */
#define parts_store(p, db)                                                                         \
    do {                                                                                           \
        char error_[512] = "";                                                                     \
        const struct trace_run run_ = {.executor = "host"};                                        \
        (db) = NULL;                                                                               \
        if (store_parts((p)->part, PARTS_RANKS, &run_, parts_path("t.db"), error_,                 \
                        sizeof error_) ||                                                          \
            trace_open(&(db), parts_path("t.db"), error_, sizeof error_))                          \
            fail_msg("%s", error_);                                                                \
    } while (0)

/* Compares a query's rows, columns joined by `|`, rows by `;`, with `want`. */
#define parts_ask(db, sql, want)                                                                   \
    do {                                                                                           \
        char got_[4096];                                                                           \
        parts_answer(db, sql, got_, sizeof got_);                                                  \
        if (strcmp(got_, want))                                                                    \
            fail_msg("%s\n  gives %s\n  not   %s", sql, got_, want);                               \
    } while (0)

__attribute__((unused)) static void parts_answer(sqlite3 *db, const char *sql, char *out,
                                                 size_t size)
{
    sqlite3_stmt *q = NULL;
    size_t n = 0;
    out[0] = 0;
    if (sqlite3_prepare_v2(db, sql, -1, &q, NULL) != SQLITE_OK)
        n += (size_t)snprintf(out, size, "error: %s", sqlite3_errmsg(db));
    for (int row = 0; q && sqlite3_step(q) == SQLITE_ROW && n + 1 < size; row++)
        for (int i = 0; i < sqlite3_column_count(q) && n + 1 < size; i++) {
            const char *text = (const char *)sqlite3_column_text(q, i);
            n += (size_t)snprintf(out + n, size - n, "%s%s",
                                  i     ? "|"
                                  : row ? ";"
                                        : "",
                                  text ? text : "");
        }
    sqlite3_finalize(q);
}

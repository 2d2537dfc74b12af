/* The live viewer on a made-up snapshot: 2 nodes of 2 ranks in launch 7, rank 3 stopped, everybody
 * else in want of its chunk 0. For tests, by #include. */
#pragma once

#include <unistd.h>
#include "core/mkernel.h"
#include "tests/helpers/test.h"
#include "core/roles/ag_gemm_plan.h"
#include "tests/helpers/screen.h"
#include "tui/live.h"

struct live_stage {
    struct live_job job;
    struct live_model m;
    struct cells cells;
};

#define LIVE_STAGE_NOW 100000000000ull

/* CTA `cta` of `rank` waits for chunk 0 of rank `producer`'s A since `ms`. */
static inline void live_stage_wait(struct live_stage *s, uint32_t rank, uint32_t cta,
                                   uint32_t producer, uint64_t epoch, uint64_t ms)
{
    struct live_rank *r = &s->job.ranks[rank];
    uint32_t gpus = r->plan->problem.topo.gpus,
             cause = producer / gpus == rank / gpus ? MK_CAUSE_DATA : MK_CAUSE_NETWORK;
    uint32_t flag = ag_gemm_arrival_flag(ag_gemm_plan_of(r->plan), producer, 0, 0);
    r->words[cta] = (struct live_word){epoch << 32 | mk_event_what(MK_EV_WAIT, cause, flag),
                                       LIVE_STAGE_NOW - ms * 1000000};
}

static inline void live_stage_open(struct live_stage *s, int width, int height, int ascii)
{
    memset(s, 0, sizeof *s);
    s->job.world = 4;
    s->job.now = LIVE_STAGE_NOW;
    s->job.ranks = calloc(4, sizeof *s->job.ranks);
    assert_non_null(s->job.ranks);
    for (uint32_t i = 0; i < 4; i++) {
        struct live_rank *r = &s->job.ranks[i];
        r->header =
            (struct live_header){.pid = 4711 + (int)i,
                                 .job_pid = 4710,
                                 .launches = 50,
                                 .launch = 6,
                                 .phase = LIVE_LAUNCHES,
                                 .beat = LIVE_STAGE_NOW - (i == 3 ? 3000000000u : 10000000u)};
        r->header.problem = (struct mk_problem){.op = MK_OP_AG_GEMM,
                                                .exec = MK_EXEC_HOST,
                                                .topo = {2, 2, i},
                                                .m = 512,
                                                .n = 192,
                                                .k = 2048,
                                                .timeout_ns = MK_TIMEOUT_NS};
        r->header.problem.tuning.split = (struct mk_role_split){.ctas = {6, 2, 1, 0}};
        r->header.ctas = 9;
        r->words = calloc(LIVE_MAX_CTAS, sizeof *r->words);
        assert_non_null(r->words);
        assert_int_equal(live_plan(r), 0);
        r->state = i == 3 ? LIVE_STOPPED : LIVE_RUNS;
        for (uint32_t k = 0; k < 9; k++)
            r->words[k] = (struct live_word){7ull << 32, LIVE_STAGE_NOW - 2900000000u};
        r->words[5] = (struct live_word){7ull << 32 | mk_event_what(MK_EV_TILE, 0, 11),
                                         LIVE_STAGE_NOW - 120000000u};
        if (i == 3) {
            r->words[6] = (struct live_word){7ull << 32 | mk_event_what(MK_EV_COPY, 0, 3),
                                             LIVE_STAGE_NOW - 3000000000u};
            continue;
        }
        for (uint32_t k = 0; k < 5; k++)
            live_stage_wait(s, i, k, 3, 7, 2400 - 100 * k);
        if (i == 1) /* the relay of rank 3's chunks on node 0 */
            live_stage_wait(s, i, 6, 3, 7, 2600);
        r->words[8] =
            (struct live_word){7ull << 32 | mk_event_what(MK_EV_WAIT, MK_CAUSE_NETWORK, 0xffffff),
                               LIVE_STAGE_NOW - 700000000u};
    }
    assert_int_equal(live_model_open(&s->m, &s->job, width, height), 0);
    s->m.ascii = ascii;
    assert_int_equal(live_draw(&s->cells, &s->m), 0);
}

static inline void live_stage_close(struct live_stage *s)
{
    cells_free(&s->cells);
    live_model_close(&s->m);
    live_close(&s->job);
}

static inline void live_stage_play(struct live_stage *s, const char *text)
{
    struct script script;
    screen_script(&script, text);
    for (int i = 0; i < script.count; i++) {
        live_model_key(&s->m, script.keys[i]);
        assert_int_equal(live_draw(&s->cells, &s->m), 0);
    }
    script_free(&script);
}

/* Launches back to back, timed together, then each is checked: what `run`, `bench` and `tune`
 * measure on the host. */
#include "experiments/job/op.h"
#include "core/base/clock.h"
#include "experiments/common/inputs.h"
#include "experiments/common/pulse.h"
#include "core/comm/comm.h"
#include "tracer/live.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define PACE_FLOP 5e9 /* of a check between two meetings: seconds, where 8 ranks share 2 cores */

static void run_burst_spoil_output(const struct run_data *d, uint64_t slot)
{
    const struct run_op *op = run_op_of(d->job->plan.problem.op);
    if (op->spoil) {
        op->spoil(d, slot);
        return;
    }
    uint32_t output = 0;
    while (!(d->outputs >> output & 1))
        output++;
    ((uint16_t *)run_data_at(d, slot, output))[d->bytes[output] / 2 - 1] ^= 0x4000;
}

static int run_burst_is_mine(const struct run_rank *r, uint64_t launch, const char *variable)
{
    const char *text = getenv(variable);
    unsigned rank;
    unsigned long long which;
    return text && sscanf(text, "%u,%llu", &rank, &which) == 2 && rank == r->job->identity.rank &&
           which == launch;
}

void run_die(const struct run_rank *r, uint64_t launch)
{
    if (run_burst_is_mine(r, launch, "MKERNEL_TEST_DIE"))
        raise(SIGKILL);
    if (run_burst_is_mine(r, launch, "MKERNEL_TEST_STOP"))
        raise(SIGSTOP);
}

/* For tests: MKERNEL_TEST_SPOIL=RANK,LAUNCH makes one element of that result wrong before it is
 * checked. */
static void run_burst_spoil(struct run_rank *r, uint64_t slot, uint64_t launch)
{
    if (!r->data.cuda && run_burst_is_mine(r, launch, "MKERNEL_TEST_SPOIL"))
        run_burst_spoil_output(&r->data, slot);
}

/* Tells the viewer and the progress line what comes now. */
static void run_burst_begin_phase(struct run_rank *r, enum live_phase phase, const char *does,
                                  uint64_t first, uint64_t count)
{
    const struct run_options *o = &r->job->options;
    char last[32] = "";
    live_phase(r->live, phase, first - 1);
    spawn_beat();
    if (o->mode == RUN_TUNE) /* says what it tries */
        return;
    if (count > 1)
        snprintf(last, sizeof last, " to %lu", first + count - 1);
    pulse_says("launch %lu%s of %lu %s%s", first, last, o->warmup + o->iters, does,
               r->result.check.wrong ? ", WRONG results before" : "");
}

static int meet(void *bootstrap)
{
    return bootstrap_barrier(bootstrap);
}

int run_burst(struct run_rank *r, uint64_t first, uint64_t count, double *ms, uint64_t *times)
{
    const struct check_pace pace = {PACE_FLOP, meet, r->comm->bootstrap};
    int result = 0;
    run_burst_begin_phase(r, LIVE_FILLS, "makes inputs", first, count);
    for (uint64_t i = 0; i < count && !result; i++)
        result = run_data_fill(&r->data, i, first + i);
    if (result)
        return result;
    /* All ranks start at the same time, else the first to come would be charged for the inputs of
     * the last. */
    live_phase(r->live, LIVE_MEETS, first - 1);
    result = bootstrap_barrier(r->comm->bootstrap);
    run_burst_begin_phase(r, LIVE_LAUNCHES, "runs", first, count);
    uint64_t start = mk_now_ns();
    if (r->events && !result)
        result = run_events_mark(r->events, 0);
    for (uint64_t i = 0; i < count && !result; i++) {
        run_die(r, first + i);
        result = mk_launch(r->plan, r->data.memory + i * RUN_ARGUMENTS, r->data.arguments, NULL);
        if (r->events && !result)
            result = run_events_mark(r->events, i + 1);
    }
    int waited = mk_wait(r->comm); /* even after a launch that failed: C may still be written */
    ms[0] = (double)(mk_now_ns() - start) / 1e6 / (double)count;
    *times = r->events ? count : 1;
    if (r->events && !result && !waited)
        result = run_events_read(r->events, count, ms);
    if (result || waited)
        return result ? result : waited;
    run_burst_begin_phase(r, LIVE_CHECKS, "is checked", first, r->job->options.check ? count : 1);
    for (uint64_t i = 0; i < count && r->job->options.check && !result; i++) {
        struct check_result one = {0};
        run_burst_spoil(r, i, first + i);
        result = run_data_check(&r->data, i, first + i, &pace, &one);
        r->result.bits = mk_hash(r->result.bits ^ run_data_bits(&r->data, i));
        if (!check_right(&one) && !r->result.first_wrong)
            r->result.first_wrong = first + i;
        check_join(&r->result.check, &one);
    }
    return result;
}

/* One rank of a run: opens the communicator, makes the plan, launches with new inputs each time,
 * checks, reports. */
#include "experiments/run/run_rank.h"
#include "core/base/sorted.h"
#include "experiments/run/run_why.h"
#include "experiments/job/op.h"
#include "experiments/common/commands.h"
#include "experiments/common/pulse.h"
#include "core/comm/comm.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "tracer/live.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int run_launches(struct run_rank *r)
{
    const struct run_options *o = &r->job->options;
    uint64_t all = o->warmup + o->iters, done = 0;
    double blas[3];
    if (o->trace) {
        int result = run_trace_begin(&r->trace, r->comm);
        if (result)
            return result;
    }
    while (done < all) {
        uint64_t phase_end = done < o->warmup ? o->warmup : all, count = phase_end - done;
        uint64_t times;
        if (count > r->job->burst)
            count = r->job->burst;
        int result = run_burst(r, done + 1, count, r->bursts + r->burst_count, &times);
        if (result)
            return result;
        r->burst_count += times;
        r->warmup_count += done < o->warmup ? times : 0;
        done += count;
    }
    uint64_t count = r->burst_count - r->warmup_count;
    MK_FREED double *sorted = malloc(count * sizeof *sorted);
    if (!sorted)
        return -ENOMEM;
    memcpy(sorted, r->bursts + r->warmup_count, count * sizeof *sorted);
    mk_sort(sorted, count);
    r->result.launches = o->iters;
    r->result.ms_min = sorted[0];
    r->result.ms = mk_median(sorted, count);
    r->result.ms_max = sorted[count - 1];
    if (o->vs == RUN_VS_BLAS) {
        for (int i = 0; i < 3; i++) {
            int result = bootstrap_barrier(r->comm->bootstrap);
            if (result)
                return result;
            pulse_says("OpenBLAS alone, %d of 3", i + 1);
            pulse_trust(1);
            blas[i] = run_data_blas(&r->data, 0);
            pulse_trust(0);
        }
        mk_sort(blas, 3);
        r->result.gemm_ms = blas[1];
    }
    return 0;
}

/* --why: on the operands of the last launches, in bursts as they were timed. Nothing is checked. */
static int run_rank_why(struct run_rank *r)
{
    struct run_why *why = r->why = calloc(1, sizeof *why);
    int result = why ? run_why_begin(r->comm) : -ENOMEM;
    uint64_t slots = r->job->options.iters < r->job->burst ? r->job->options.iters : r->job->burst;
    pulse_says("traces %u launches", RUN_WHY_LAUNCHES);
    for (uint64_t done = 0; done < RUN_WHY_LAUNCHES && !result;) {
        result = bootstrap_barrier(r->comm->bootstrap);
        for (uint64_t i = 0; i < slots && done < RUN_WHY_LAUNCHES && !result; i++, done++)
            result =
                mk_launch(r->plan, r->data.memory + i * RUN_ARGUMENTS, r->data.arguments, NULL);
        int waited = mk_wait(r->comm);
        result = result ? result : waited;
    }
    return result ? result : run_why_end(r->comm, r->job, r->plan, why);
}

/* Rank 0 shows what all found; every rank knows the verdict. */
static int run_rank_report(struct run_rank *r, char *sentence, size_t size)
{
    const struct run_job *job = r->job;
    MK_FREED struct run_result *all = calloc(job->identity.world, sizeof *all);
    MK_FREED double *bursts = NULL;
    struct run_summary summary;
    const char *path;
    run_die(r, job->options.warmup + job->options.iters + 1);
    int result =
        all ? bootstrap_allgather(r->comm->bootstrap, &r->result, all, sizeof *all) : -ENOMEM;
    if (!result && job->options.samples) {
        bursts = calloc(job->identity.world, r->burst_count * sizeof *bursts);
        result = bursts ? bootstrap_allgather(r->comm->bootstrap, r->bursts, bursts,
                                              r->burst_count * sizeof *bursts)
                        : -ENOMEM;
    }
    if (result)
        return mk_fail(STATUS_FAILED, sentence, size, "the results could not be joined: %s",
                       strerror(-result));
    run_summarise(&summary, job, all);
    summary.bursts = bursts;
    summary.warmup_count = r->warmup_count;
    summary.burst_count = r->burst_count;
    summary.trace_lost = r->trace_lost;
    summary.why = r->why;
    int status = !summary.checked || summary.right ? STATUS_DONE : STATUS_WRONG;
    if (status == STATUS_DONE)
        snprintf(sentence, size, "%lu launch%s on %u rank%s done%s", job->options.iters,
                 job->options.iters > 1 ? "es" : "", job->identity.world,
                 job->identity.world > 1 ? "s" : "",
                 summary.checked ? ", all right" : ", not checked");
    else
        snprintf(sentence, size,
                 "wrong: %lu of %lu elements, first in launch %lu of rank %u; element "
                 "%lu,%lu is %g and should be %g",
                 summary.check.wrong, summary.check.elements, all[summary.wrong_rank].first_wrong,
                 summary.wrong_rank, summary.check.worst_row, summary.check.worst_col,
                 summary.check.worst_value, summary.check.worst_reference);
    /* what was asked for and is not there is no success, as with --json and --csv */
    if (*r->trace_lost) {
        status = status == STATUS_DONE ? STATUS_FAILED : status;
        mk_append(sentence, size, "; but the trace is lost: %s", r->trace_lost);
    }
    if (r->why && !r->why->there) {
        status = status == STATUS_DONE ? STATUS_FAILED : status;
        mk_append(sentence, size, "; but where the time goes is not known: %s", r->why->error);
    }
    if (job->identity.rank == 0) {
        pulse_hide();
        path = "the table";
        result = run_print(&summary);
        if (job->options.csv)
            run_fill_row(r->rows, &summary);
        int written = job->options.json ? run_write_json(&summary) : 0;
        if (!result && written) {
            path = job->options.json;
            result = written;
        }
        if (result) {
            mk_append(sentence, size, "; but %s could not be written: %s", path, strerror(-result));
            status = status == STATUS_DONE ? STATUS_FAILED : status;
        }
    }
    return status;
}

/* Why the run ended early. The launch's own word names the op, the chunk and the rank. A rank that
 * goes missing while no rank waits for its data (between launches, or after its last chunk) leaves
 * no such word: then what will be missing is said. */
static void run_rank_say_failure(struct run_rank *r, int result, char *sentence, size_t size)
{
    struct mk_failure f;
    struct mk_flag_meaning owed;
    if (!r->comm || !r->comm->bootstrap || !bootstrap_settle(r->comm->bootstrap, &f)) {
        const char *said = mk_error(r->comm);
        snprintf(sentence, size, "%s", *said ? said : strerror(-result));
        return;
    }
    failure_sentence(&f, sentence, size);
    if (f.chunk != UINT32_MAX || (f.kind != MK_FAIL_PEER_LOST && f.flag != UINT32_MAX) ||
        f.producer == f.rank)
        return;
    for (uint32_t flag = r->plan->flag_base; flag < r->plan->flag_base + r->plan->flags; flag++) {
        plan_describe_flag(r->plan, flag, &owed);
        if (owed.producer != f.producer || owed.chunk == UINT32_MAX)
            continue;
        mk_append(sentence, size, "; the next launch of %s would lack %s",
                  plan_op_name(r->job->problem.op), owed.text);
        return;
    }
}

/* Measures and reports one shape; *status is then the rank's own. 0, or -errno where there is nothing
 * to report. */
static int run_rank_shape(struct run_rank *r, int *status, char *sentence, size_t size)
{
    const struct run_job *job = r->job;
    *status = STATUS_FAILED;
    run_why_prepare(r->comm, job);
    r->live = run_live_begin(job, r->comm, r->plan);
    r->bursts = calloc(job->options.warmup + job->options.iters, sizeof *r->bursts);
    int result = r->bursts ? run_data_open(&r->data, job) : -ENOMEM;
    if (!result && job->options.exec == MK_EXEC_CUDA && run_events_open)
        result = run_events_open(&r->events, job->burst);
    if (result) {
        snprintf(sentence, size,
                 "rank %u has no memory for the operands of %lu launches of %s; fewer at a time "
                 "(--burst) or a smaller problem need less",
                 job->identity.rank, job->burst, plan_op_name(job->problem.op));
        goto out;
    }
    result = run_launches(r);
    if (!result && job->options.why)
        result = run_rank_why(r);
    live_phase(r->live, LIVE_ENDS, job->options.warmup + job->options.iters);
    if (result) {
        run_rank_say_failure(r, result, sentence, size);
        goto out;
    }
    if (job->options.trace) {
        pulse_says("gathers and stores the trace");
        run_trace_end(r->trace, job, r->comm, &r->result, r->trace_lost, sizeof r->trace_lost);
    }
    *status = run_rank_report(r, sentence, size);
out:
    live_end(r->live);
    r->live = NULL;
    return result;
}

/* Behind the plan's or the communicator's end: until then a NIC may read the operands. */
static void run_rank_free_shape(struct run_rank *r, int result)
{
    if (r->data.job && !result) /* else a launch that hangs may still use it */
        run_data_close(&r->data);
    if (r->events)
        run_events_close(r->events);
    free(r->bursts);
    free(r->trace);
    free(r->why);
}

/* The job of its shape `number`, with that plan. 0, or -errno with a sentence. */
static int run_rank_begin_shape(struct run_rank *r, struct run_job *of_shape,
                                const struct run_job *job, uint32_t number, char *sentence,
                                size_t size)
{
    *r = (struct run_rank){.job = of_shape, .comm = r->comm, .rows = r->rows};
    *of_shape = *job;
    if (number)
        op_set_numbers(&of_shape->problem, job->shapes[number]);
    int result = run_make_plan(&r->plan, r->comm, of_shape, &of_shape->problem);
    if (result)
        snprintf(sentence, size, "%s", mk_error(r->comm));
    else if (number)
        of_shape->plan = *r->plan;
    return result;
}

int run_rank(const struct run_job *job, char *sentence, size_t size)
{
    struct csv_table rows = {.count = 0};
    struct run_rank r = {.job = job, .rows = &rows};
    struct mk_config config;
    MK_FREED struct run_job *of_shape = malloc(sizeof *of_shape);
    char later[512]; /* than the sentence that is kept */
    int worst = STATUS_DONE, wrong = 0;
    run_configure(job, &config);
    int result = of_shape ? run_open(&r.comm, &config, job) : -ENOMEM;
    if (result)
        snprintf(sentence, size, "%s", mk_error(r.comm));
    for (uint32_t i = 0; i < job->shape_count && !result; i++) {
        const int kept = worst == STATUS_FAILED;
        char *say = kept ? later : sentence;
        size_t room = kept ? sizeof later : size;
        int status = STATUS_FAILED;
        result = run_rank_begin_shape(&r, of_shape, job, i, say, room);
        result = result ? result : run_rank_shape(&r, &status, say, room);
        wrong += status == STATUS_WRONG;
        worst = status > worst ? status : worst;
        if (result || i + 1 == job->shape_count)
            break;
        result = mk_plan_destroy(r.plan);
        if (result)
            snprintf(say, room, "%s", mk_error(r.comm));
        else
            run_rank_free_shape(&r, 0);
    }
    if (result)
        worst = STATUS_FAILED;
    else if (job->shape_count > 1 && worst != STATUS_FAILED)
        snprintf(sentence, size, "%u shapes measured, %d wrong", job->shape_count, wrong);
    const char *path = job->options.csv;
    int written = rows.count ? csv_end(&rows, path, job->options.append) : 0;
    if (written) {
        mk_append(sentence, size, "; but %s could not be written: %s", path, strerror(-written));
        worst = STATUS_FAILED;
    }
    if (!result && !comm_failed(r.comm)) {
        run_die(&r, job->options.warmup + job->options.iters + 2);
        /* as mk_comm_close would, but a rank that is missing here is told of */
        bootstrap_barrier(r.comm->bootstrap);
    }
    run_last_word(job, worst, sentence);
    run_close(r.comm);
    run_rank_free_shape(&r, result);
    return worst;
}

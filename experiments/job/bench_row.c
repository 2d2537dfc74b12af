#include "core/mkernel.h"
#include "experiments/job/bench_row.h"
#include "experiments/common/json_write.h"
#include "experiments/job/op.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

void bench_when(struct bench_when *w)
{
    time_t now = time(NULL);
    memset(w, 0, sizeof *w);
    gethostname(w->host, sizeof w->host - 1);
    strftime(w->date, sizeof w->date, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
}

/* The driver's CUDA version, "13.0"; empty on the host executor. */
static const char *driver(const struct run_job *job, char text[16])
{
    text[0] = '\0';
    if (job->cuda_driver)
        snprintf(text, 16, "%d.%d", job->cuda_driver / 1000, job->cuda_driver % 1000 / 10);
    return text;
}

static const char *bench_row_routing(const struct run_job *job)
{
    return run_op_is_routed(job->options.op) ? run_routings[job->options.routing] : NULL;
}

/* Experts that are copies; NULL of operators without experts. */
static const char *bench_row_replicas(const struct run_job *job, char text[24])
{
    snprintf(text, 24, "%lu", job->options.ask.replicas);
    return op_has_limit(job->options.op) ? text : NULL;
}

void bench_row_context(struct csv_table *r, const struct run_job *job, const struct mk_problem *q,
                       const char *tuned, const char *fabric)
{
    const struct run_options *o = &job->options;
    struct bench_when when;
    char cuda[16], replicas[24];
    bench_when(&when);
    plan_row_problem(r, q);
    csv_text(r, "routing", bench_row_routing(job));
    csv_text(r, "skew", job->options.skew);
    csv_text(r, "replicas", bench_row_replicas(job, replicas));
    csv_text(r, "fabric", fabric);
    csv_text(r, "device", job->device);
    plan_row_options(r, q);
    csv_text(r, "tuned", tuned);
    csv_whole(r, "seed", o->seed);
    csv_whole(r, "launches", o->iters);
    csv_whole(r, "warmup", o->warmup);
    csv_whole(r, "burst", job->burst);
    csv_text(r, "command", "bench");
    csv_text(r, "date", when.date);
    csv_text(r, "host", when.host);
    csv_text(r, "cuda_driver", driver(job, cuda));
    csv_text(r, "mkernel", MK_VERSION);
}

void bench_json_job(FILE *f, const struct run_job *job, const char *fabric)
{
    const struct run_options *o = &job->options;
    struct bench_when when;
    char cuda[16];
    bench_when(&when);
    json_text(f, "mkernel", MK_VERSION);
    json_text(f, "command", o->mode == RUN_BENCH ? "bench" : "run");
    json_text(f, "date", when.date);
    json_text(f, "host", when.host);
    json_text(f, "exec", plan_execs[job->options.exec]);
    json_text(f, "device", job->device);
    if (*driver(job, cuda))
        json_text(f, "cuda_driver", cuda);
    json_text(f, "fabric", fabric);
    fprintf(f, "  \"seed\": %lu,\n", o->seed);
    if (bench_row_routing(job))
        json_text(f, "routing", bench_row_routing(job));
    if (job->options.skew)
        json_text(f, "skew", job->options.skew);
    fprintf(f, "  \"launches\": %lu,\n  \"warmup\": %lu,\n  \"burst\": %lu,\n", o->iters, o->warmup,
            job->burst);
}

void bench_json_plan(FILE *f, const struct mk_problem *q, const char *tuned)
{
    json_problem(f, q);
    fprintf(f, "  \"fanout\": %u,\n  \"pace_ns\": %u,\n", q->tuning.fanout, q->tuning.pace);
    if (*tuned)
        json_text(f, "tuned", tuned);
}

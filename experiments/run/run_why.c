#include "experiments/run/run_why.h"
#include "core/comm/comm.h"
#include "core/base/scoped.h"
#include "tracer/query.h"
#include "tracer/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void run_why_prepare(struct mk_comm *comm, const struct run_job *job)
{
    comm->unrecorded = job->options.why && !job->options.traced;
}

int run_why_begin(struct mk_comm *comm)
{
    int result = mk_trace_begin(comm);
    if (!result)
        comm->unrecorded = 0;
    return result;
}

/* Of a trace that lost events the parts would be wrong. */
static int run_why_read(const char *path, struct run_why *out)
{
    sqlite3 *db = NULL;
    int64_t lost;
    int result = trace_open(&db, path, out->error, sizeof out->error);
    if (result)
        return result;
    lost = query_integer(db, 0, "SELECT sum(dropped) FROM drops", "");
    if (lost)
        snprintf(out->error, sizeof out->error, "the trace lost %ld events", lost);
    result = lost ? -ENOBUFS : trace_why(db, 0, &out->parts, out->error, sizeof out->error);
    sqlite3_close(db);
    return result;
}

static int run_why_join(struct mk_comm *comm, struct run_why *out)
{
    MK_FREED struct run_why *all = calloc(mk_world(&comm->topo), sizeof *all);
    int result = all ? bootstrap_allgather(comm->bootstrap, out, all, sizeof *out) : -ENOMEM;
    if (!result)
        *out = all[0];
    return result;
}

int run_why_end(struct mk_comm *comm, const struct run_job *job, const struct mk_plan *plan,
                struct run_why *out)
{
    char shape[OP_PROBLEM_TEXT], path[] = "/tmp/mkernel-why-XXXXXX";
    const struct trace_run run = {.executor = plan_execs[job->options.exec],
                                  .device = comm->device,
                                  .version = MK_VERSION,
                                  .shape = op_problem_text(&plan->problem, shape),
                                  .plan = plan};
    *out = (struct run_why){.there = 0};
    int root = comm->topo.rank == 0, fd = root ? mkostemp(path, O_CLOEXEC) : -1,
        lost = root && fd < 0;
    if (lost)
        snprintf(out->error, sizeof out->error, "no room for a trace in /tmp: %s", strerror(errno));
    int result = trace_window_end(comm, &run, lost ? NULL : path);
    comm->unrecorded = !job->options.traced;
    if (result && !comm_failed(comm)) { /* the disk, or memory: of this rank alone */
        snprintf(out->error, sizeof out->error, "%s", mk_error(comm));
        lost = 1;
        result = 0;
    }
    if (!result && root && !lost)
        out->there = !run_why_read(path, out);
    if (fd >= 0) {
        close(fd);
        unlink(path);
    }
    return result ? result : run_why_join(comm, out);
}

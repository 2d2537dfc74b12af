/* A trace of a stretch of a program: what the public header calls mk_trace_begin and
 * mk_trace_end. */
#include "core/base/c_numbers.h"
#include "core/comm/comm_parts.h"
#include "core/mkernel.h"
#include "tracer/trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES_BEFORE 64 /* clock samples, as many as trace_collect takes at the end */

/* An error of a part, which this rank may know alone. Returns what the caller returns. */
static int window_failed(struct mk_comm *comm, int result)
{
    int failure = comm_tell_failure(comm);
    return failure ? failure : comm_refuse(comm, result, "the trace: %s", strerror(-result));
}

int mk_trace_begin(struct mk_comm *comm)
{
    MK_C_NUMBERS;
    if (comm->stage == STAGE_OPEN && !comm->config.trace_events)
        return comm_refuse(comm, -EINVAL,
                           "a trace of a communicator that was opened without trace_events: say "
                           "how many records each track may hold");
    int result = mk_wait(comm);
    if (result)
        return result;
    if (!comm->trace_state)
        comm->trace_state = malloc(sizeof(struct trace_samples));
    struct trace_samples *before = comm->trace_state;
    if (!before)
        return comm_refuse(comm, -ENOMEM, "no memory for the trace's clock samples");
    before->count = 0;
    comm_calls(comm, COMM_CALL_TRACE, MK_OPS);
    result = trace_sample_clock(comm, before, SAMPLES_BEFORE);
    comm_calls(comm, COMM_CALL_NONE, MK_OPS);
    if (result)
        return window_failed(comm, result);
    comm->messages.count = comm->messages.dropped = 0; /* the proxy is idle */
    return comm->exec->forget ? comm->exec->forget(comm) : 0;
}

int trace_window_end(struct mk_comm *comm, const struct trace_run *told, const char *path)
{
    MK_C_NUMBERS;
    char error[256] = "";
    struct trace_run run = *told;
    if (comm->stage == STAGE_OPEN && !comm->trace_state)
        return comm_refuse(comm, -EINVAL, "mk_trace_end without mk_trace_begin");
    int result = mk_wait(comm);
    if (result)
        return result;
    run.host_clock = comm->trace_state;
    comm_calls(comm, COMM_CALL_TRACE, MK_OPS);
    result = trace_collect(comm, &run, path, error, sizeof error);
    comm_calls(comm, COMM_CALL_NONE, MK_OPS);
    free(comm->trace_state);
    comm->trace_state = NULL;
    if (result && *error && !comm_failed(comm))
        return comm_refuse(comm, result, "%s", error);
    return result ? window_failed(comm, result) : 0;
}

int mk_trace_end(struct mk_comm *comm, const char *path, const char *command)
{
    const struct mk_config *c = &comm->config;
    const struct trace_run run = {
        .executor = plan_execs[c->exec],
        .fabric = c->nodes > 1 ? c->fabric : NULL,
        .nic = c->nodes > 1 && c->nic[0] ? c->nic : NULL,
        .command = command,
        .version = MK_VERSION,
        .device = comm->device,
    };
    return trace_window_end(comm, &run, path);
}

/* Brings the ranks' parts together at rank 0 and has them stored. */
#include "tracer/trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/comm.h"
#include "tracer/store.h"

#define SAMPLES_AFTER 64 /* clock samples taken when the run is over */

int trace_sample_clock(struct mk_comm *comm, struct trace_samples *samples, uint32_t count)
{
    uint32_t room = TRACE_MAX_SAMPLES - samples->count;
    count = count < room ? count : room;
    uint64_t *columns = malloc(3 * (size_t)count * sizeof *columns + 1);
    if (!columns)
        return -ENOMEM;
    int rc = bootstrap_clock(comm->bootstrap, count, columns, columns + count, columns + 2 * count);
    for (uint32_t i = 0; !rc && comm->topo.rank && i < count; i++)
        samples->samples[samples->count++] =
            (struct trace_clock_sample){columns[i], columns[count + i], columns[2 * count + i]};
    free(columns);
    return rc;
}

/* Rank 0: parses what came in, one part a rank. */
static int take_parts(const char *all, const size_t *lengths, uint32_t ranks, const struct trace_run *run,
                      const char *path, char *error, size_t size)
{
    struct trace_part *parts = calloc(ranks, sizeof *parts);
    int rc = parts ? 0 : -ENOMEM;
    if (rc)
        snprintf(error, size, "the trace could not be merged: out of memory");
    size_t at = 0;
    for (uint32_t r = 0; !rc && r < ranks; r++) {
        rc = part_parse(&parts[r], all + at, lengths[r]);
        if (rc)
            snprintf(error, size, "the trace could not be merged: rank %u sent %s", r,
                     lengths[r] ? "a part that is garbled" : "none");
        at += lengths[r];
    }
    if (!rc)
        rc = store_parts(parts, ranks, run, path, error, size);
    for (uint32_t r = 0; parts && r < ranks; r++)
        part_free(&parts[r]);
    free(parts);
    return rc;
}

int trace_collect(struct mk_comm *comm, const struct trace_run *run, const char *path, char *error,
                  size_t size)
{
    struct trace_samples *clock = calloc(1, sizeof *clock);
    struct trace_part part;
    void *blob = NULL, *all = NULL;
    size_t bytes = 0;
    uint32_t ranks = mk_world(&comm->topo);
    size_t *lengths = calloc(ranks, sizeof *lengths);
    error[0] = 0;
    if (clock && run->host_clock)
        *clock = *run->host_clock;
    int mine = clock && lengths ? 0 : -ENOMEM;
    if (!mine) {
        mine = trace_sample_clock(comm, clock, SAMPLES_AFTER);
        if (mine) {
            snprintf(error, size, "the trace's clock samples failed: %s", strerror(-mine));
            goto out;
        }
        mine = part_of_comm(&part, comm, run, clock);
        if (!mine) {
            mine = part_pack(&part, &blob, &bytes);
            part_free(&part);
        }
    }
    /* A rank without memory sends an empty part, so that the others do not wait for it. */
    int rc = lengths ? bootstrap_gather(comm->bootstrap, blob, bytes, &all, lengths) : -ENOMEM;
    if (rc || mine) {
        snprintf(error, size, "the trace could not be gathered: %s", strerror(rc ? -rc : -mine));
        mine = rc ? rc : mine;
    } else if (comm->topo.rank == 0 && path) {
        mine = take_parts(all, lengths, ranks, run, path, error, size);
    }
out:
    free(all);
    free(blob);
    free(lengths);
    free(clock);
    return mine;
}

int trace_collect_local(struct mk_comm *const *comms, uint32_t count, const struct trace_run *run,
                        const char *path, char *error, size_t size)
{
    struct trace_part *parts = calloc(count, sizeof *parts);
    int rc = parts ? 0 : -ENOMEM;
    error[0] = 0;
    for (uint32_t r = 0; !rc && r < count; r++)
        rc = part_of_comm(&parts[r], comms[r], run, NULL);
    if (rc)
        snprintf(error, size, "the trace could not be merged: out of memory");
    else
        rc = store_parts(parts, count, run, path, error, size);
    for (uint32_t r = 0; parts && r < count; r++)
        part_free(&parts[r]);
    free(parts);
    return rc;
}

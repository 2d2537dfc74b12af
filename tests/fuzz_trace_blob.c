/* Whatever bytes a rank sends as its part of a trace, parsing them stays in bounds, and a part that
 * is accepted can be merged, joined and swept without leaving them. */
#include "tracer/data.h"
#include "tracer/flow.h"
#include "tracer/levels.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The fuzzer cannot guess the checksum-like head (magic, length, layout), so it is written for it,
 * if it asks. */
static void mend_head(uint8_t *blob, size_t size)
{
    struct trace_part empty = {.topo = {1, 1, 0}, .track_warps = 1};
    void *good = NULL;
    size_t bytes = 0;
    if (size < 24 || part_pack(&empty, &good, &bytes))
        return;
    uint64_t total = size;
    memcpy(blob, good, 24);
    memcpy(blob + 8, &total, sizeof total);
    free(good);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct trace_part part;
    const struct trace_run run = {0};
    struct trace_data d;
    struct levels levels;
    struct flow flow;
    char error[256];
    uint8_t *blob = malloc(size + 1);
    if (!blob)
        return 0;
    memcpy(blob, data, size);
    if (size && data[size - 1] & 1)
        mend_head(blob, size);
    if (!part_parse(&part, blob, size)) {
        if (mk_world(&part.topo) == 1 && !data_merge(&d, &part, 1, &run, error, sizeof error)) {
            int rc = data_join(&d);
            rc = rc ? rc : data_overlap(&d);
            if (!rc && !levels_make(&levels, &d))
                levels_free(&levels);
            if (!rc && !flow_make(&flow, &d))
                flow_free(&flow);
            struct trace_step *steps = NULL;
            uint64_t count;
            if (!rc && !data_critical(&d, &steps, &count))
                free(steps);
            data_free(&d);
        }
        part_free(&part);
    }
    free(blob);
    return 0;
}

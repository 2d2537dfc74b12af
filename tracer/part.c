/* Makes one rank's part of a trace from its communicator. */
#include "tracer/part.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/comm/comm.h"
#include "core/ops/op.h"

/* The kernel's random number of this boot: ranks that read the same one run on one clock. Left zero
 * where unreadable. */
static void part_read_boot(uint8_t boot[16])
{
    char text[64] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    unsigned digits = 0;
    for (ssize_t i = 0; i < n && digits < 32; i++) {
        char c = text[i];
        int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (value < 0)
            continue;
        boot[digits / 2] = (uint8_t)(boot[digits / 2] << 4 | value);
        digits++;
    }
}

int part_of_plan(struct trace_plan *out, const struct mk_plan *plan, void **block)
{
    const struct mk_problem *q = &plan->problem;
    size_t tiles = plan->tiles * sizeof(struct mk_tile),
           chunks = plan->chunks * sizeof(struct trace_chunk);
    size_t flags = plan->flags * sizeof(struct mk_flag_meaning);
    tiles = mk_round_up(tiles, 16);
    struct mk_tile *tile = *block = calloc(1, tiles + chunks + flags + 1);
    if (!tile)
        return -ENOMEM;
    struct trace_chunk *chunk = (void *)((char *)tile + tiles);
    struct mk_flag_meaning *flag = (void *)((char *)chunk + chunks);
    for (uint32_t i = 0; i < plan->tiles; i++)
        plan_describe_tile(plan, i, &tile[i]);
    for (uint32_t i = 0; i < plan->chunks; i++)
        plan_describe_chunk(plan, i, &chunk[i].rank, &chunk[i].number, &chunk[i].bytes);
    for (uint32_t i = 0; i < plan->flags; i++)
        plan_describe_flag(plan, plan->flag_base + i, &flag[i]);
    *out = (struct trace_plan){
        .id = plan->id,
        .problem = *q,
        .tile_count = plan->tiles,
        .chunk_count = plan->chunks,
        .flag_base = plan->flag_base,
        .flag_count = plan->flags,
        .tiles = tile,
        .chunks = chunk,
        .flags = flag,
    };
    op_problem_text(q, out->shape);
    plan_work(plan, &out->flop, &out->nvlink_bytes, &out->network_bytes);
    out->memory_bytes = plan_memory_bytes(plan);
    return 0;
}

int part_of_comm(struct trace_part *part, const struct mk_comm *comm, const struct trace_run *run,
                 const struct trace_samples *host_clock)
{
    memset(part, 0, sizeof *part);
    part->topo = comm->topo;
    gethostname(part->host, sizeof part->host - 1);
    snprintf(part->device, sizeof part->device, "%s", run->device ? run->device : "");
    if (host_clock) {
        part_read_boot(part->boot);
        part->host_clock = host_clock->samples;
        part->host_samples = host_clock->count;
    }
    part->gpu_residual = comm->gpu_clock_residual;
    if (run->gpu_clock) {
        part->gpu_clock = run->gpu_clock->samples;
        part->gpu_samples = run->gpu_clock->count;
    }
    part->track_warps = comm->track_warps ? comm->track_warps : 1;
    part->track_count = comm->tracks ? comm->track_count : 0;
    part->tracks = calloc(part->track_count + 1, sizeof *part->tracks);
    part->plans = calloc(comm->plan_count + 1, sizeof *part->plans);
    part->blocks = calloc(comm->plan_count + 1, sizeof *part->blocks);
    if (!part->tracks || !part->plans || !part->blocks)
        goto nomem;
    if (part->track_count)
        memcpy(part->tracks, comm->tracks, part->track_count * sizeof *part->tracks);
    for (uint32_t i = 0; i < part->track_count; i++)
        if (!part->tracks[i].events)
            part->tracks[i].count = 0;
    if (comm->messages.messages) {
        part->messages = comm->messages.messages;
        part->message_count = comm->messages.count;
        part->messages_dropped = comm->messages.dropped;
    }
    for (uint32_t i = 0; i < comm->plan_count; i++) {
        uint32_t n = part->plan_count;
        if (!comm->plans[i] || (run->plan && comm->plans[i] != run->plan))
            continue;
        if (part_of_plan(&part->plans[n], comm->plans[i], &part->blocks[n]))
            goto nomem;
        part->plan_count++;
    }
    return 0;
nomem:
    part_free(part);
    return -ENOMEM;
}

void part_free(struct trace_part *part)
{
    for (uint32_t i = 0; part->blocks && i < part->plan_count; i++)
        free(part->blocks[i]);
    free(part->blocks);
    free(part->plans);
    free(part->tracks);
    memset(part, 0, sizeof *part);
}

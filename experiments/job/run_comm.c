/* The communicator that a job asks for. */
#include "experiments/job/op.h"
#include "core/comm/comm.h"

#include <stdio.h>
#include <string.h>

#define TRACE_EVENTS_MOST (1u << 20) /* per track: 16 MB */

/* A CTA makes at most a few per tile that it computes, or per piece that it moves. */
uint64_t run_comm_records(const struct mk_plan *p)
{
    const struct mk_topo *t = &p->problem.topo;
    const uint32_t *ctas = p->problem.tuning.split.ctas;
    uint32_t slices = p->problem.tuning.slices ? p->problem.tuning.slices : 1;
    uint64_t moved = (uint64_t)p->chunks * slices * p->problem.tuning.pieces * t->gpus;
    uint64_t per_launch =
        (3 + slices) * mk_ceil_div(p->tiles, ctas[MK_COMPUTE] ? ctas[MK_COMPUTE] : 1);
    if (ctas[MK_INTRA_COMM] && 4 * mk_ceil_div(moved, ctas[MK_INTRA_COMM]) > per_launch)
        per_launch = 4 * mk_ceil_div(moved, ctas[MK_INTRA_COMM]);
    if (ctas[MK_INTER_SEND] && 4 * mk_ceil_div(p->chunks, ctas[MK_INTER_SEND]) > per_launch)
        per_launch = 4 * mk_ceil_div(p->chunks, ctas[MK_INTER_SEND]);
    if (ctas[MK_INTER_REDUCE] &&
        (t->gpus + t->nodes + 8ull) * mk_ceil_div(p->chunks, ctas[MK_INTER_REDUCE]) > per_launch)
        per_launch = (t->gpus + t->nodes + 8ull) * mk_ceil_div(p->chunks, ctas[MK_INTER_REDUCE]);
    const struct run_op *op = run_op_of(p->problem.op);
    /* every row is moved and told by itself, and may be taken to its place, or its sum go back */
    uint64_t told =
        (3 * t->nodes + op->records * mk_world(t)) * p->problem.moe.tokens * p->problem.moe.k +
        2 * mk_world(t);
    if (op->routed && told > per_launch)
        per_launch = told;
    return per_launch + 32;
}

/* Enough records for every launch that is traced, as far as memory is no concern. */
static uint32_t run_comm_trace_events(const struct run_job *job)
{
    const struct run_options *o = &job->options;
    uint64_t launches = o->trace ? o->iters + o->warmup : o->why ? 2 * RUN_WHY_LAUNCHES : 0;
    uint64_t all = job->records * launches;
    return all < TRACE_EVENTS_MOST ? (uint32_t)all : TRACE_EVENTS_MOST;
}

void run_configure(const struct run_job *job, struct mk_config *c)
{
    const struct run_options *o = &job->options;
    const struct run_identity *me = &job->identity;
    memset(c, 0, sizeof *c);
    c->exec = o->exec;
    c->rank = me->rank;
    c->nodes = (uint32_t)o->nodes;
    c->gpus = (uint32_t)o->gpus;
    snprintf(c->host, sizeof c->host, "%s", me->host);
    c->port = me->port;
    c->listen_fd = me->listen_fd;
    snprintf(c->token, sizeof c->token, "%s", me->token);
    snprintf(c->fabric, sizeof c->fabric, "%s", o->fabric ? "efa" : "verbs");
    snprintf(c->nic, sizeof c->nic, "%s", o->nic ? o->nic : "");
    c->rails = (uint32_t)o->rails;
    c->heap_bytes = mk_round_up(job->heap_bytes + 4096, 1 << 20);
    c->flag_bytes = mk_round_up((uint64_t)job->flags * 8 + 4096, 1 << 20);
    c->timeout_ns = o->timeout_ns;
    c->trace_events = run_comm_trace_events(job);
    snprintf(c->tuning, sizeof c->tuning, "%s", o->tuning ? o->tuning : "");
}

int run_make_plan(struct mk_plan **out, struct mk_comm *comm, const struct run_job *job,
                  const struct mk_problem *problem)
{
    const struct moe_map *map = &job->map;
    int result = comm_make_plan(out, comm, problem);
    return result || !map->slots ? result
                                 : mk_moe_set_experts(*out, map->slots, map->experts, map->copies);
}

const char *run_fabric(const struct run_job *job, char text[RUN_FABRIC_TEXT])
{
    text[0] = '\0';
    if (job->options.nodes > 1)
        snprintf(text, RUN_FABRIC_TEXT, "%s over %s", job->options.fabric ? "efa" : "verbs",
                 job->nic);
    return text;
}

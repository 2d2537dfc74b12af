/* What a deterministic run leaves for the tracer: the same tracks and message log that a rank of a
 * real run has. */
#include "core/comm.h"
#include "sim/world_state.h"

#include <errno.h>
#include <stdlib.h>

int sim_world_trace(struct sim_world *w, struct sim_world_rank *r)
{
    uint32_t capacity = w->config.trace_events;
    for (uint32_t i = 0; i < w->ctas; i++) {
        struct mk_track *t = &r->rank.ctas[i].track;
        t->events = malloc(capacity * sizeof *t->events);
        t->capacity = capacity;
        if (!t->events)
            return -ENOMEM;
    }
    r->messages.messages = malloc(capacity * sizeof *r->messages.messages);
    r->messages.capacity = capacity;
    return r->messages.messages ? 0 : -ENOMEM;
}

void sim_world_untrace(struct sim_world *w, struct sim_world_rank *r)
{
    for (uint32_t i = 0; r->rank.ctas && i < w->ctas; i++)
        free(r->rank.ctas[i].track.events);
    free(r->messages.messages);
}

int sim_world_finish(struct sim_world *w)
{
    struct mk_comm *comms = calloc(w->world, sizeof *comms),
                   **list = calloc(w->world, sizeof *list);
    struct mk_track *tracks = calloc((size_t)w->world * w->ctas, sizeof *tracks);
    int rc = comms && list && tracks ? 0 : -ENOMEM;
    for (uint32_t rank = 0; !rc && rank < w->world; rank++) {
        struct sim_world_rank *r = &w->ranks[rank];
        struct mk_comm *c = list[rank] = &comms[rank];
        c->topo = r->plan.problem.topo;
        c->plans[0] = &r->plan;
        c->plan_count = 1;
        c->messages = r->messages;
        c->tracks = &tracks[rank * w->ctas];
        c->track_count = w->config.trace_events ? w->ctas : 0;
        c->track_warps = 1;
        for (uint32_t i = 0; i < w->ctas; i++)
            c->tracks[i] = r->rank.ctas[i].track;
    }
    if (!rc)
        rc = w->config.finished(w->config.context, list, w->world, w->result);
    free(tracks);
    free(list);
    free(comms);
    return rc;
}

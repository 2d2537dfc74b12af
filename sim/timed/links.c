/* The bandwidth that copies and sums share: of NVLink and of each GPU's own memory.
 *
 * Copies from one GPU to another by one kind of mover form a class. All flows of a class have the
 * same rate. The class counts the bytes served to each, and a flow ends when the count has grown by
 * the flow's bytes. The rates of a node's classes are max-min fair (progressive filling; Bertsekas
 * and Gallager, Data Networks, 6.5.2), weighted by flows, under the limits of each GPU's link out,
 * its link in, and each mover. They are computed at most once in QUANTUM ns, so that the cost does
 * not grow with the number of flows.
 *
 * Within a GPU each class has a limit of its own. All classes also share the GPU's memory with the
 * loads of its tiles, except those that L2 serves. */
#include "sim/large.h"
#include "sim/timed/state.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define QUANTUM 200       /* ns */
#define LEAST_MEMORY 0.25 /* share of a memory's rate that tiles always leave to copies and sums */

static uint32_t links_gpus(const struct timed_world *w)
{
    return w->config.plan->problem.topo.gpus;
}

/* Copies [from][to][kind], then sums [gpu][mover]. */
static struct timed_class *links_class_of(struct timed_world *w, uint32_t node, uint32_t from,
                                          uint32_t to, int kind, int sum)
{
    uint32_t gpus = links_gpus(w);
    return &w->nodes[node]
                .classes[sum ? gpus * gpus * TIMED_KINDS + from * MACHINE_MOVERS + (uint32_t)kind
                             : (from * gpus + to) * TIMED_KINDS + (uint32_t)kind];
}

static double links_least(double a, double b)
{
    return a > 0 && (a < b || b <= 0) ? a : b;
}

/* The rate of a flow without others: its mover's, or the link's if that has no limit (0). A mover
 * of one thread waits for its own copies, so its own time and its share of a link with `n` flows
 * add up; a mover of many lanes goes on storing meanwhile. */
static double links_alone(const struct timed_world *w, int kind, int sum, int remote)
{
    const struct mk_machine *m = w->machine;
    const struct machine_rate *r =
        &m->movers[kind == TIMED_SENDS ? (uint32_t)w->sends : (uint32_t)kind];
    double alone = sum ? r->add : remote ? r->peer : r->own;
    if (remote && kind == TIMED_SENDS && w->pace_rate > 0)
        alone = links_least(w->pace_rate / w->senders, alone);
    if (remote && kind == MACHINE_WARP)
        alone = links_least(w->pace_rate, alone);
    return alone > 0 ? alone : remote ? m->nvlink_out : m->hbm_rate > 0 ? m->hbm_rate : 4000;
}

/* The rate of each of `n` flows that share `all`: a flow's time alone and its share of the time add
 * up. 0: no limit. */
static double links_in_turn(double alone, double all, uint32_t n)
{
    return all > 0 ? 1 / (1 / alone + n / all) : alone;
}

/* A GPU's resources: its link out, its link in, and its memory. */
enum {
    LINKS_OUT,
    LINKS_IN = MK_MAX_LOCAL,
    LINKS_MEMORY = 2 * MK_MAX_LOCAL,
    LINKS_WAYS = 3 * MK_MAX_LOCAL
};

int timed_links_open(struct timed_world *w)
{
    uint32_t gpus = links_gpus(w), kinds = TIMED_KINDS, nodes = w->world / gpus;
    uint32_t event = w->world * (w->per_rank + 1);
    w->classes = gpus * gpus * kinds + gpus * MACHINE_MOVERS;
    w->nodes = calloc(nodes, sizeof *w->nodes);
    if (!w->nodes)
        return -ENOMEM;
    for (uint32_t n = 0; n < nodes; n++) {
        struct timed_node *node = &w->nodes[n];
        node->classes = large_map(w->classes * sizeof *node->classes);
        node->active = calloc(w->classes, sizeof *node->active);
        if (!node->classes || !node->active)
            return -ENOMEM;
        for (uint32_t i = 0; i < w->classes; i++) {
            struct timed_class *c = &node->classes[i];
            int sum = i >= gpus * gpus * kinds;
            uint32_t rest = sum ? i - gpus * gpus * kinds : i;
            int kind = (int)(sum ? rest % MACHINE_MOVERS : rest % kinds);
            uint32_t from = sum ? rest / MACHINE_MOVERS : rest / kinds / gpus;
            uint32_t to = sum ? from : rest / kinds % gpus;
            c->event = event++;
            c->ways[0] = (uint8_t)(LINKS_OUT + from);
            c->ways[1] = (uint8_t)(LINKS_IN + to);
            c->ways[2] = (uint8_t)(LINKS_MEMORY + from);
            c->ways[3] = (uint8_t)(LINKS_MEMORY + to);
            c->alone = links_alone(w, kind, sum, to != from) * w->ranks[n * gpus + from].slow.gpu;
        }
        node->event = event++;
    }
    return 0;
}

void timed_links_close(struct timed_world *w)
{
    for (uint32_t n = 0; w->nodes && n < w->world / links_gpus(w); n++) {
        for (uint32_t i = 0; w->nodes[n].classes && i < w->classes; i++)
            free(w->nodes[n].classes[i].flows);
        large_unmap(w->nodes[n].classes, w->classes * sizeof *w->nodes[n].classes);
        free(w->nodes[n].active);
    }
    free(w->nodes);
}

static void links_advance(struct timed_class *c, uint64_t now)
{
    c->served += c->rate * (double)(now - c->at);
    c->at = now;
}

/* The flow of a class that ends as number `i` from now. */
static struct timed_flow *links_flow(const struct timed_class *c, uint32_t i)
{
    return &c->flows[(c->first + i) & (c->capacity - 1u)];
}

/* Inserts a flow by its end, after those with an equal end. */
static int links_insert(struct timed_class *c, uint32_t cta, double end)
{
    if (c->count == c->capacity) {
        uint32_t capacity = c->capacity ? 2u * c->capacity : 4;
        struct timed_flow *flows = capacity <= UINT16_MAX ? malloc(capacity * sizeof *flows) : NULL;
        if (!flows)
            return -ENOMEM;
        for (uint32_t i = 0; i < c->count; i++)
            flows[i] = *links_flow(c, i);
        free(c->flows);
        c->flows = flows;
        c->first = 0;
        c->capacity = (uint16_t)capacity;
    }
    uint32_t at = c->count++;
    for (; at && links_flow(c, at - 1)->end > end; at--)
        *links_flow(c, at) = *links_flow(c, at - 1);
    *links_flow(c, at) = (struct timed_flow){.end = end, .cta = cta};
    c->end = at ? c->end : end;
    return 0;
}

/* The class's event comes when its first flow ends, or before. */
static void links_schedule(struct timed_world *w, struct timed_class *c)
{
    struct timed_queue *q = &w->queue;
    if (!c->count) {
        timed_queue_remove(q, c->event);
        return;
    }
    double left = (c->end - c->served) / c->rate;
    uint64_t due = c->at + (left > 0 ? (uint64_t)ceil(left) : 0);
    if (timed_queue_pending(q, c->event)) {
        if (q->events[c->event].time <= due)
            return; /* the event that is pending comes before and will look again */
        timed_queue_remove(q, c->event);
    }
    timed_queue_put(q, c->event, due);
}

/* ---- within a GPU ---- */

static int links_remote(const struct timed_world *w, const struct timed_node *n,
                        const struct timed_class *c)
{
    uint32_t gpus = links_gpus(w), i = (uint32_t)(c - n->classes), pair = i / TIMED_KINDS;
    return pair < gpus * gpus && pair / gpus != pair % gpus;
}

/* bytes/ns of a GPU's memory that its engines leave to others, a fourth at least; 0: no limit. */
static double links_memory_left(const struct timed_world *w, uint32_t rank)
{
    const struct timed_rank *r = &w->ranks[rank];
    double all = w->machine->hbm_rate, used = w->queue.now < r->loads_until ? r->loading : 0;
    return all <= 0 ? 0 : used < (1 - LEAST_MEMORY) * all ? all - used : LEAST_MEMORY * all;
}

static void links_share_room(struct timed_world *w, const struct timed_node *n,
                             struct timed_class *c)
{
    uint32_t gpus = links_gpus(w), i = (uint32_t)(c - n->classes),
             copies = gpus * gpus * TIMED_KINDS;
    uint32_t kind = i < copies ? i % TIMED_KINDS : (i - copies) % MACHINE_MOVERS;
    const struct machine_rate *r =
        &w->machine->movers[kind == TIMED_SENDS ? (uint32_t)w->sends : (uint32_t)kind];
    uint32_t least = w->movers[kind], flows = c->count > least ? c->count : least;
    c->rate = c->count ? links_in_turn(c->alone, i < copies ? r->room : r->add_room, flows) : 0;
    /* a byte is read and written; of a sum most are read, and TMA's (timed_combine) have both */
    const uint32_t passes = i < copies || kind != MACHINE_TMA ? 2 : 1;
    uint32_t gpu = i < copies ? i / TIMED_KINDS / gpus : (i - copies) / MACHINE_MOVERS;
    double left = links_memory_left(w, (uint32_t)(n - w->nodes) * gpus + gpu);
    if (c->count && left > 0 && c->rate * c->count * passes > left)
        c->rate = left / (passes * c->count);
}

/* ---- between GPUs ---- */

/* The greatest rate that all of a class's flows could use now. */
static double links_most(const struct timed_world *w, const struct timed_node *n, uint32_t i)
{
    const struct timed_class *c = &n->classes[i];
    if (i % TIMED_KINDS != MACHINE_TMA)
        return c->alone;
    return links_in_turn(c->alone, w->machine->nvlink_out, n->out[i / TIMED_KINDS / links_gpus(w)]);
}

struct links_way {
    double left;
    uint32_t flows; /* whose rate is not known yet */
};

static void links_set_rate(struct timed_world *w, struct timed_class *c, double rate)
{
    links_advance(c, w->queue.now);
    c->rate = rate;
    links_schedule(w, c);
}

/* Memory limits copies between GPUs only if the share that tiles leave of it is less than NVLink's
 * traffic in and out. */
static uint32_t links_parts(const struct timed_world *w)
{
    const struct mk_machine *m = w->machine;
    return m->hbm_rate > 0 && m->hbm_rate * LEAST_MEMORY < m->nvlink_out + m->nvlink_in ? 4 : 2;
}

/* bytes/ns into a GPU to which `peers` (bits) push: what several send meets in the switch. */
static double links_in_of(const struct mk_machine *m, uint64_t peers)
{
    const int count = __builtin_popcountll(peers);
    return count ? m->nvlink_in * (1 - m->nvlink_joint * (count - 1) / count) : m->nvlink_in;
}

static void links_open_ways(const struct timed_world *w, const struct timed_node *n,
                            struct links_way *ways)
{
    uint64_t peers[MK_MAX_LOCAL] = {0};
    uint32_t gpus = links_gpus(w), first = (uint32_t)(n - w->nodes) * gpus, parts = links_parts(w);
    for (uint32_t i = 0; i < n->count; i++)
        peers[n->classes[n->active[i]].ways[1] - LINKS_IN] |=
            1ull << (n->classes[n->active[i]].ways[0] - LINKS_OUT);
    for (uint32_t g = 0; g < gpus; g++) {
        const struct timed_rank *r = &w->ranks[first + g];
        double memory = links_memory_left(w, first + g);
        ways[LINKS_OUT + g].left = w->machine->nvlink_out * r->slow.nvlink;
        ways[LINKS_IN + g].left = links_in_of(w->machine, peers[g]) * r->slow.nvlink;
        ways[LINKS_MEMORY + g].left = memory > 0 ? memory : INFINITY;
    }
    for (uint32_t i = 0; i < n->count; i++) {
        const struct timed_class *c = &n->classes[n->active[i]];
        for (uint32_t j = 0; j < parts; j++)
            ways[c->ways[j]].flows += c->count;
    }
}

/* Rates of all classes between GPUs of a node. */
static void links_share(struct timed_world *w, struct timed_node *n)
{
    uint32_t left = n->count, open[MK_MAX_LOCAL * MK_MAX_LOCAL * TIMED_KINDS];
    struct links_way ways[LINKS_WAYS] = {{0}};
    uint32_t parts = links_parts(w), all = parts == 4 ? LINKS_WAYS : LINKS_MEMORY;
    links_open_ways(w, n, ways);
    memcpy(open, n->active, left * sizeof *open);
    while (left) {
        double level = INFINITY;
        for (uint32_t i = 0; i < all; i++)
            if (ways[i].flows && ways[i].left / ways[i].flows < level)
                level = ways[i].left / ways[i].flows;
        /* Fix the classes whose own limit is lower; if none is, those on the fullest resource. */
        int limited = 0;
        for (uint32_t i = 0; i < left && !limited; i++)
            limited = links_most(w, n, open[i]) <= level;
        uint32_t kept = 0;
        for (uint32_t i = 0; i < left; i++) {
            struct timed_class *c = &n->classes[open[i]];
            int full = 0;
            for (uint32_t j = 0; j < parts && !full; j++)
                full = ways[c->ways[j]].left <= level * ways[c->ways[j]].flows * (1 + 1e-9);
            double most = links_most(w, n, open[i]);
            if (limited ? most > level : !full) {
                open[kept++] = open[i];
                continue;
            }
            double rate = limited ? most : level;
            for (uint32_t j = 0; j < parts; j++) {
                ways[c->ways[j]].left -= rate * c->count;
                ways[c->ways[j]].flows -= c->count;
            }
            links_set_rate(w, c, rate);
        }
        left = kept;
    }
    n->shared = w->queue.now;
}

double timed_links_memory(const struct timed_rank *r)
{
    const struct timed_world *w = r->world;
    uint32_t gpus = links_gpus(w), rank = r->plan.problem.topo.rank, own = rank % gpus,
             kinds = TIMED_KINDS;
    const struct timed_node *n = &w->nodes[rank / gpus];
    double bytes = 0;
    for (uint32_t i = 0; i < n->count; i++) {
        const struct timed_class *c = &n->classes[n->active[i]];
        uint32_t from = n->active[i] / kinds / gpus, to = n->active[i] / kinds % gpus;
        bytes += c->rate * c->count * ((from == own) + (to == own));
    }
    for (uint32_t kind = 0; kind < kinds; kind++) {
        const struct timed_class *c = &n->classes[(own * gpus + own) * kinds + kind];
        bytes += 2 * c->rate * c->count;
    }
    for (uint32_t mover = 0; mover < MACHINE_MOVERS; mover++) {
        const struct timed_class *c =
            &n->classes[gpus * gpus * kinds + own * MACHINE_MOVERS + mover];
        bytes += c->rate * c->count;
    }
    return bytes;
}

static void links_changed(struct timed_world *w, struct timed_node *n)
{
    if (!timed_queue_pending(&w->queue, n->event))
        timed_queue_put(&w->queue, n->event, n->shared + QUANTUM);
}

struct links_ends {
    uint32_t from, to; /* local ranks */
    double out, in;    /* bytes/ns of their links */
};

static struct links_ends links_ends_of(const struct timed_world *w, const struct timed_node *n,
                                       const struct timed_class *c)
{
    uint32_t gpus = links_gpus(w), pair = (uint32_t)(c - n->classes) / TIMED_KINDS;
    const struct timed_rank *first = &w->ranks[(uint32_t)(n - w->nodes) * gpus];
    struct links_ends e = {.from = pair / gpus, .to = pair % gpus};
    e.out = w->machine->nvlink_out * first[e.from].slow.nvlink;
    e.in = w->machine->nvlink_in * first[e.to].slow.nvlink;
    return e;
}

static void links_join(struct timed_world *w, struct timed_node *n, struct timed_class *c)
{
    if (!links_remote(w, n, c)) {
        links_share_room(w, n, c);
        return;
    }
    if (c->count == 1) {
        c->rate = c->alone;
        c->active = (uint16_t)n->count;
        n->active[n->count++] = (uint32_t)(c - n->classes);
    }
    /* Until the node's rates are computed: an even share of both its links at most. */
    struct links_ends e = links_ends_of(w, n, c);
    double share = links_least(e.out / ++n->out[e.from], e.in / ++n->in[e.to]);
    c->rate = links_least(share, c->rate);
    links_changed(w, n);
}

static void links_leave(struct timed_world *w, struct timed_node *n, struct timed_class *c,
                        uint32_t count)
{
    if (!links_remote(w, n, c)) {
        links_share_room(w, n, c);
        return;
    }
    struct links_ends e = links_ends_of(w, n, c);
    n->out[e.from] -= count;
    n->in[e.to] -= count;
    if (!c->count) {
        uint32_t moved = n->active[--n->count];
        n->active[c->active] = moved;
        n->classes[moved].active = c->active;
    }
    links_changed(w, n);
}

void timed_flow_begin(struct timed_world *w, struct timed_cta *cta, uint32_t to, int kind, int sum,
                      double bytes)
{
    struct timed_rank *r = timed_rank_of(cta);
    uint32_t gpus = links_gpus(w), from = r->plan.problem.topo.rank;
    struct timed_node *n = &w->nodes[from / gpus];
    struct timed_class *c = links_class_of(w, from / gpus, from % gpus, to % gpus, kind, sum);
    links_advance(c, w->queue.now);
    if (!c->count)
        c->served = 0;
    if (links_insert(c, cta->number, c->served + bytes)) {
        timed_error(w, -ENOMEM, "no memory for what is on its way");
        return;
    }
    cta->state = TIMED_MOVES;
    links_join(w, n, c);
    links_schedule(w, c);
}

/* Removes the flows of a class that have ended into w->moved. Returns how many. */
static uint32_t links_end(struct timed_world *w, struct timed_node *n, struct timed_class *c)
{
    links_advance(c, w->queue.now);
    uint32_t count = 0, *ended = w->moved;
    while (count < c->count && links_flow(c, count)->end <= c->served + 1e-3) {
        ended[count] = links_flow(c, count)->cta;
        __builtin_prefetch(&w->ctas[ended[count]], 1);
        __builtin_prefetch(&w->ctas[ended[count]].path, 1);
        count++;
    }
    if (!count) {
        links_schedule(w, c);
        return 0;
    }
    c->first = (uint16_t)((c->first + count) & (c->capacity - 1u));
    c->count = (uint16_t)(c->count - count);
    c->end = links_flow(c, 0)->end;
    links_leave(w, n, c, count);
    links_schedule(w, c);
    for (uint32_t i = 1; i < count; i++)
        if (w->ctas[ended[i]].count)
            __builtin_prefetch(&w->ctas[ended[i]].line->steps[w->ctas[ended[i]].done]);
    return count;
}

uint32_t timed_links_event(struct timed_world *w, uint32_t event)
{
    uint32_t i = event - w->world * (w->per_rank + 1);
    struct timed_node *n = &w->nodes[i / (w->classes + 1)];
    if (event != n->event)
        return links_end(w, n, &n->classes[i % (w->classes + 1)]);
    links_share(w, n);
    return 0;
}

static const struct timed_class *links_class_of_event(const struct timed_world *w, uint32_t event)
{
    uint32_t i = event - w->world * (w->per_rank + 1);
    const struct timed_node *n = &w->nodes[i / (w->classes + 1)];
    return event == n->event ? NULL : &n->classes[i % (w->classes + 1)];
}

void timed_links_soon(const struct timed_world *w, uint32_t event)
{
    const struct timed_class *c = links_class_of_event(w, event);
    if (!c)
        return;
    __builtin_prefetch(c, 1);
}

void timed_links_begins(struct timed_world *w, const struct timed_cta *c)
{
    const struct mk_topo *t = &timed_rank_of(c)->plan.problem.topo;
    const struct timed_class *class = links_class_of(
        w, mk_node_of(t, t->rank), mk_local_of(t, t->rank), c->local, c->kind, c->sum);
    __builtin_prefetch(class, 1);
}

uint32_t timed_links_first(const struct timed_world *w, uint32_t event)
{
    const struct timed_class *c = links_class_of_event(w, event);
    return c && c->count ? links_flow(c, 0)->cta : TIMED_NONE;
}

double timed_links_wanted(const struct timed_rank *r)
{
    const struct timed_world *w = r->world;
    uint32_t gpus = links_gpus(w), rank = r->plan.problem.topo.rank;
    uint32_t flows = w->nodes[rank / gpus].out[rank % gpus];
    uint32_t pace = mk_pace_of_each(r->plan.problem.tuning.pace, w->senders ? w->senders : 1);
    return flows ? machine_wanted(w->machine, flows, pace) : 0;
}

#include "core/mkernel.h"
#include "core/ops/moe_map.h"
#include "core/ops/moe.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* ---- which copy is taken ---- */

int moe_map_check(const struct moe_map *m, uint32_t slots, char *error, size_t size)
{
    uint32_t *holds = malloc(slots * sizeof *holds);
    int result = holds ? 0 : -ENOMEM;
    for (uint32_t slot = 0; slot < slots && !result; slot++)
        holds[slot] = UINT32_MAX;
    for (uint64_t i = 0; i < (uint64_t)m->experts * m->copies && !result; i++) {
        const uint32_t expert = (uint32_t)(i / m->copies);
        const int32_t slot = m->slots[i];
        if (slot < 0)
            continue;
        if ((uint32_t)slot >= slots)
            result = plan_refuse(error, size,
                                 "expert %u has a copy in slot %d: the ranks have slots 0 to %u",
                                 expert, slot, slots - 1);
        else if (holds[slot] != UINT32_MAX && holds[slot] != expert)
            result = plan_refuse(error, size, "slot %d is of expert %u and of expert %u", slot,
                                 holds[slot], expert);
        else
            holds[slot] = expert;
    }
    if (result == -ENOMEM)
        plan_refuse(error, size, "out of memory");
    free(holds);
    return result;
}

/* Copies of an expert on `count` ranks from `first` on. */
struct moe_map_run {
    const int32_t *slots;
    uint32_t copies, first_slot, slot_count;
};

static int moe_map_is_in(const struct moe_map_run *r, uint32_t copy)
{
    return r->slots[copy] >= 0 && (uint32_t)r->slots[copy] - r->first_slot < r->slot_count;
}

static uint32_t moe_map_count(const struct moe_map_run *r)
{
    uint32_t count = 0;
    for (uint32_t copy = 0; copy < r->copies; copy++)
        count += moe_map_is_in(r, copy);
    return count;
}

/* Its copy number `at`, counted among them. */
static uint32_t moe_map_at(const struct moe_map_run *r, uint32_t at)
{
    uint32_t copy = 0;
    while (!moe_map_is_in(r, copy) || at--)
        copy++;
    return (uint32_t)r->slots[copy];
}

/* Of `units` runs of `unit_slots` slots, from a slot on: how many have no copy. */
static uint32_t moe_map_without(const int32_t *slots, uint32_t copies, uint32_t first_slot,
                                uint32_t unit_slots, uint32_t units)
{
    uint32_t without = 0;
    for (uint32_t unit = 0; unit < units; unit++) {
        const struct moe_map_run r = {slots, copies, first_slot + unit * unit_slots, unit_slots};
        without += !moe_map_count(&r);
    }
    return without;
}

uint32_t moe_map_slot(const struct moe_map *m, const struct mk_topo *t, uint32_t rank_slots,
                      uint32_t expert)
{
    const int32_t *slots = m->slots + (uint64_t)expert * m->copies;
    const uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank),
                   node_slots = t->gpus * rank_slots;
    const struct moe_map_run runs[] = {
        {slots, m->copies, t->rank * rank_slots, rank_slots},
        {slots, m->copies, node * node_slots, node_slots},
        {slots, m->copies, 0, t->nodes * node_slots},
    };
    for (uint32_t i = 0; i < 3; i++) {
        const uint32_t count = moe_map_count(&runs[i]);
        if (!count)
            continue;
        /* the rank's number among those that have to choose here */
        const uint32_t turn =
            i == 0   ? 0
            : i == 1 ? moe_map_without(slots, m->copies, node * node_slots, rank_slots, local)
                     : moe_map_without(slots, m->copies, 0, node_slots, node) * t->gpus + local;
        return moe_map_at(&runs[i], (uint32_t)(((uint64_t)turn + expert) % count));
    }
    return UINT32_MAX;
}

void moe_map_row(const struct moe_map *m, const struct mk_topo *t, uint32_t rank_slots,
                 uint32_t *row)
{
    for (uint32_t expert = 0; expert < m->experts; expert++) /* 0 - 1 - expert: none */
        row[expert] = moe_map_slot(m, t, rank_slots, expert) - expert;
}

/* ---- where copies are placed ---- */

/* An expert, and what each of its copies has to do. */
struct moe_map_share {
    double load;
    uint32_t expert, copies;
};

/* The one whose copies have the most to do and that may have another; of equal ones that with the
 * fewest, then the first. NULL: none may. */
static struct moe_map_share *moe_map_heaviest(struct moe_map_share *all, uint32_t experts,
                                              uint32_t most)
{
    struct moe_map_share *found = NULL;
    for (struct moe_map_share *s = all; s < all + experts; s++)
        if (s->copies < most && (!found || s->load > found->load ||
                                 (s->load >= found->load && s->copies < found->copies)))
            found = s;
    return found;
}

static int moe_map_compare(const void *left, const void *right)
{
    const struct moe_map_share *a = left, *b = right;
    return a->load > b->load       ? -1
           : a->load < b->load     ? 1
           : a->expert < b->expert ? -1
                                   : a->expert > b->expert;
}

/* A rank, and what it has to do. */
struct moe_map_rank {
    double load;
    uint32_t slots, last; /* taken; the last expert that took one, +1 */
};

/* How many of a node's ranks have a copy. */
static uint32_t moe_map_in_node(const struct moe_map_rank *node, uint32_t gpus, uint32_t expert)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < gpus; i++)
        count += node[i].last == expert + 1;
    return count;
}

/* The one with the least to do that has a slot, and no copy yet, in a node with the fewest copies;
 * NULL: none. */
static struct moe_map_rank *moe_map_lightest(struct moe_map_rank *all, uint32_t nodes,
                                             uint32_t gpus, uint32_t rank_slots, uint32_t expert)
{
    struct moe_map_rank *found = NULL;
    uint32_t fewest = UINT32_MAX;
    for (struct moe_map_rank *node = all; node < all + (uint64_t)nodes * gpus; node += gpus) {
        const uint32_t copies = moe_map_in_node(node, gpus, expert);
        for (struct moe_map_rank *r = node; r < node + gpus; r++)
            if (r->slots < rank_slots && r->last != expert + 1 &&
                (copies < fewest ||
                 (copies == fewest && (r->load < found->load ||
                                       (r->load <= found->load && r->slots < found->slots))))) {
                found = r;
                fewest = copies;
            }
    }
    return found;
}

int mk_moe_balance(const double *loads, uint32_t experts, uint32_t slots, uint32_t nodes,
                   uint32_t ranks, uint32_t copies, int32_t *map)
{
    const uint32_t most = copies < ranks ? copies : ranks;
    if (!experts || !ranks || !copies || slots < experts || slots % ranks || !nodes ||
        ranks % nodes)
        return -EINVAL;
    for (uint32_t e = 0; e < experts; e++)
        if (!(loads[e] >= 0) || isinf(loads[e]))
            return -EINVAL;
    struct moe_map_share *shares = malloc(experts * sizeof *shares);
    struct moe_map_rank *of = calloc(ranks, sizeof *of);
    for (uint32_t e = 0; e < experts && shares; e++)
        shares[e] = (struct moe_map_share){loads[e], e, 1};
    for (uint32_t slot = experts; slot < slots && shares; slot++) {
        struct moe_map_share *s = moe_map_heaviest(shares, experts, most);
        if (!s)
            break;
        s->load = loads[s->expert] / ++s->copies;
    }
    for (uint64_t i = 0; i < (uint64_t)experts * copies; i++)
        map[i] = -1;
    if (shares)
        qsort(shares, experts, sizeof *shares, moe_map_compare);
    for (uint32_t e = 0; e < experts && shares && of; e++)
        for (uint32_t copy = 0; copy < shares[e].copies; copy++) {
            struct moe_map_rank *r =
                moe_map_lightest(of, nodes, ranks / nodes, slots / ranks, shares[e].expert);
            if (!r) /* all that have a slot left hold it */
                break;
            map[(uint64_t)shares[e].expert * copies + copy] =
                (int32_t)((uint32_t)(r - of) * (slots / ranks) + r->slots++);
            r->load += shares[e].load;
            r->last = shares[e].expert + 1;
        }
    const int result = shares && of ? 0 : -ENOMEM;
    free(shares);
    free(of);
    return result;
}

int moe_map_place(struct moe_map *out, int32_t **slots, const struct mk_problem *q,
                  const double *loads)
{
    const uint64_t logical = op_logical(q), spare = q->moe.experts - logical;
    const uint32_t world = mk_world(&q->topo);
    out->experts = (uint32_t)logical;
    out->copies = spare + 1 < world ? (uint32_t)spare + 1 : world;
    out->slots = *slots = malloc(logical * out->copies * sizeof **slots);
    int result = *slots ? mk_moe_balance(loads, out->experts, (uint32_t)q->moe.experts,
                                         q->topo.nodes, world, out->copies, *slots)
                        : -ENOMEM;
    if (result)
        free(*slots);
    return result;
}

void moe_map_skew(double skew, uint32_t experts, double *loads)
{
    for (uint32_t e = 0; e < experts; e++)
        loads[e] = isinf(skew) ? e == 0 : pow((double)e + 1, -skew);
}

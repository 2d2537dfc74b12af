/* Of copies of an expert a rank's tokens take one of their own rank, else of their node, else any, and
 * ranks that have to choose spread evenly; a map that names a slot which no rank has, or one slot
 * twice, is refused; and copies are placed so that the most that a rank has to do falls. */
#include "core/mkernel.h"
#include "core/cta/cta_route.h"
#include "core/ops/moe_map.h"
#include "core/base/random.h"

#include <math.h>

#include "tests/helpers/test.h"

enum { MOST_SLOTS = 64, MOST_COPIES = 6 };

static uint64_t seed = 7;

static uint32_t below(uint32_t limit)
{
    return (uint32_t)(mk_random(&seed) % limit);
}

/* A cluster, and slots of experts drawn at random: no slot has two. */
struct drawn {
    struct mk_topo topo;
    uint32_t each, slots;
    int32_t of[MOST_SLOTS * MOST_COPIES];
    struct moe_map map;
};

static void draw(struct drawn *d)
{
    int32_t free_slots[MOST_SLOTS];
    d->topo = (struct mk_topo){1 + below(4), 1 + below(4), 0};
    d->each = 1 + below(4);
    d->slots = mk_world(&d->topo) * d->each;
    for (uint32_t i = 0; i < d->slots; i++)
        free_slots[i] = (int32_t)i;
    uint32_t left = d->slots;
    d->map = (struct moe_map){1 + below(d->slots), 1 + below(MOST_COPIES), d->of};
    for (uint32_t i = 0; i < d->map.experts * d->map.copies; i++) {
        d->of[i] = -1 - (int32_t)below(3);
        if (!left || !below(3))
            continue;
        uint32_t which = below(left);
        d->of[i] = free_slots[which];
        free_slots[which] = free_slots[--left];
    }
}

/* How near a slot is to a rank: 2 on it, 1 in its node, 0. */
static int nearness(const struct drawn *d, uint32_t rank, uint32_t slot)
{
    const uint32_t holder = slot / d->each;
    return holder == rank ? 2 : mk_node_of(&d->topo, holder) == mk_node_of(&d->topo, rank);
}

/* The slot of each rank's tokens, with what is nearest; by how many ranks that had to choose among a
 * node's copies, or all, each is taken. */
static void check_expert(struct drawn *d, uint32_t expert)
{
    const int32_t *of = d->of + expert * d->map.copies;
    uint32_t taken[4 + 1][MOST_SLOTS] = {{0}};
    for (uint32_t rank = 0; rank < mk_world(&d->topo); rank++) {
        int best = -1, named = 0;
        d->topo.rank = rank;
        const uint32_t slot = moe_map_slot(&d->map, &d->topo, d->each, expert),
                       node = mk_node_of(&d->topo, rank);
        for (uint32_t copy = 0; copy < d->map.copies; copy++)
            if (of[copy] >= 0) {
                const int near = nearness(d, rank, (uint32_t)of[copy]);
                best = near > best ? near : best;
                named |= (uint32_t)of[copy] == slot;
            }
        if (best < 0) {
            assert_int_equal(slot, UINT32_MAX);
            continue;
        }
        assert_true(named);
        assert_int_equal(nearness(d, rank, slot), best);
        if (best < 2)
            taken[best ? node : 4][slot]++;
    }
    for (uint32_t where = 0; where < 5; where++) {
        uint32_t least = UINT32_MAX, most = 0;
        for (uint32_t copy = 0; copy < d->map.copies; copy++)
            if (of[copy] >= 0 &&
                (where == 4 || mk_node_of(&d->topo, (uint32_t)of[copy] / d->each) == where)) {
                const uint32_t count = taken[where][of[copy]];
                least = count < least ? count : least;
                most = count > most ? count : most;
            }
        assert_true(most <= 1 || most - least <= 1);
    }
}

CASE(test_nearest)
{
    uint32_t row[MOST_SLOTS], lost = 0;
    char error[200];
    for (uint32_t i = 0; i < 2000; i++) {
        struct drawn d;
        draw(&d);
        assert_int_equal(moe_map_check(&d.map, d.slots, error, sizeof error), 0);
        for (uint32_t expert = 0; expert < d.map.experts; expert++)
            check_expert(&d, expert);
        /* a rank's table says the same; ids behind it are no expert's */
        const struct mk_route r = {.logical = d.map.experts, .experts = d.slots};
        moe_map_row(&d.map, &d.topo, d.each, row);
        for (uint32_t expert = 0; expert < d.map.experts; expert++) {
            const uint32_t slot = moe_map_slot(&d.map, &d.topo, d.each, expert);
            assert_int_equal(mk_route_expert(&r, row, expert), slot);
            lost += slot == UINT32_MAX;
        }
        assert_int_equal(mk_route_expert(&r, row, d.map.experts), UINT32_MAX);
        assert_int_equal(mk_route_expert(&r, row, UINT32_MAX), UINT32_MAX);
    }
    assert_true(lost > 100);
}

/* Zeros: each expert is the slot of its number. */
CASE(test_zeros)
{
    const uint32_t zeros[5] = {0};
    const struct mk_route mapped = {.logical = 5, .experts = 8}, none = {.experts = 8};
    for (uint32_t id = 0; id < 8; id++) {
        assert_int_equal(mk_route_expert(&mapped, zeros, id), id < 5 ? id : UINT32_MAX);
        assert_int_equal(mk_route_expert(&none, NULL, id), id);
    }
}

CASE(test_refusals)
{
    int32_t outside[] = {0, 1, 2, 8, -1, 3}, twice[] = {0, 1, 2, 1, -1, 3}, alike[] = {4, 4};
    const struct moe_map maps[] = {{3, 2, outside}, {3, 2, twice}, {1, 2, alike}};
    char error[200];
    assert_int_equal(moe_map_check(&maps[0], 8, error, sizeof error), -EINVAL);
    assert_string_equal(error, "expert 1 has a copy in slot 8: the ranks have slots 0 to 7");
    assert_int_equal(moe_map_check(&maps[0], 9, error, sizeof error), 0);
    assert_int_equal(moe_map_check(&maps[1], 8, error, sizeof error), -EINVAL);
    assert_string_equal(error, "slot 1 is of expert 0 and of expert 1");
    assert_int_equal(moe_map_check(&maps[2], 8, error, sizeof error), 0); /* said twice */
}

/* ---- placing ---- */

/* What the busiest rank has to do, once the map is found to be as promised: each expert has a slot, no
 * rank two of one, no slot two experts. */
static double busiest(const double *loads, uint32_t experts, uint32_t slots, uint32_t nodes,
                      uint32_t ranks, uint32_t copies)
{
    int32_t map[MOST_SLOTS * 16];
    double of[16] = {0}, most = 0;
    uint32_t placed = 0;
    char error[200];
    const struct moe_map m = {experts, copies, map};
    assert_int_equal(mk_moe_balance(loads, experts, slots, nodes, ranks, copies, map), 0);
    assert_int_equal(moe_map_check(&m, slots, error, sizeof error), 0);
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t holds = 0, count = 0;
        for (uint32_t copy = 0; copy < copies; copy++)
            count += map[e * copies + copy] >= 0;
        assert_in_range(count, 1, ranks);
        for (uint32_t copy = 0; copy < copies; copy++)
            if (map[e * copies + copy] >= 0) {
                const uint32_t rank = (uint32_t)map[e * copies + copy] / (slots / ranks);
                assert_false(holds >> rank & 1);
                holds |= 1u << rank;
                of[rank] += loads[e] / count;
                placed++;
            }
    }
    assert_in_range(placed, experts, slots);
    for (uint32_t rank = 0; rank < ranks; rank++)
        most = of[rank] > most ? of[rank] : most;
    return most;
}

/* One expert with all the load: it has a copy more for each that there is room for. Alike: the first
 * ones have two. Skewed: within 1.1 of the mean where there are as many copies as ranks. */
CASE(test_loads)
{
    double loads[MOST_SLOTS], all = 0;
    moe_map_skew(INFINITY, 56, loads);
    for (uint32_t more = 0; more < 8; more++)
        assert_float_equal(busiest(loads, 56, 64, 1, 8, 1 + more), 1.0 / (1 + more), 1e-12);
    moe_map_skew(0, 12, loads);
    int32_t map[12 * 2];
    assert_int_equal(mk_moe_balance(loads, 12, 16, 1, 4, 2, map), 0);
    for (uint32_t e = 0; e < 12; e++)
        assert_int_equal(map[2 * e + 1] >= 0, e < 4);
    moe_map_skew(1, 56, loads);
    for (uint32_t e = 0; e < 56; e++)
        all += loads[e];
    const double plain = loads[0] + loads[1] + loads[2] + loads[3] + loads[4] + loads[5] + loads[6];
    assert_true(plain > 4.4 * all / 8); /* where experts lie by their numbers */
    assert_true(busiest(loads, 56, 64, 1, 8, 8) < 1.1 * all / 8);
}

/* Copies of experts with as much to do each, on 3 nodes of 2 ranks: no node has two of one, where by loads
 * alone the first two would share one. */
CASE(test_nodes)
{
    const double loads[] = {8, 8, 8, 8};
    int32_t map[4 * 3];
    for (uint32_t copies = 2; copies <= 3; copies++) {
        assert_int_equal(mk_moe_balance(loads, 4, 6 * copies, 3, 6, copies, map), 0);
        for (uint32_t e = 0; e < 4; e++) {
            uint32_t nodes = 0;
            for (uint32_t copy = 0; copy < copies; copy++) {
                const uint32_t node = (uint32_t)map[e * copies + copy] / copies / 2;
                assert_true(map[e * copies + copy] >= 0 && !(nodes >> node & 1));
                nodes |= 1u << node;
            }
        }
    }
}

/* Whatever is drawn, slots that are left over and experts that nobody names among it. */
CASE(test_drawn)
{
    for (uint32_t i = 0; i < 2000; i++) {
        const uint32_t nodes = 1 + below(2), ranks = nodes * (1 + below(4)), each = 1 + below(8),
                       slots = ranks * each, experts = 1 + below(slots), copies = 1 + below(8);
        double loads[MOST_SLOTS], all = 0;
        for (uint32_t e = 0; e < experts; e++)
            all += loads[e] = below(4) ? below(100) : 0;
        const double most = busiest(loads, experts, slots, nodes, ranks, copies);
        assert_true(most <= all + 1e-9);
        assert_true(most >= all / ranks - 1e-9);
    }
}

CASE(test_balance_refuses)
{
    double loads[4] = {1, 2, 3, 4};
    int32_t map[8];
    assert_int_equal(mk_moe_balance(loads, 4, 3, 1, 1, 2, map), -EINVAL);
    assert_int_equal(mk_moe_balance(loads, 4, 5, 1, 2, 2, map), -EINVAL);
    assert_int_equal(mk_moe_balance(loads, 4, 4, 1, 0, 2, map), -EINVAL);
    assert_int_equal(mk_moe_balance(loads, 4, 4, 1, 2, 0, map), -EINVAL);
    assert_int_equal(mk_moe_balance(loads, 0, 4, 1, 2, 2, map), -EINVAL);
    assert_int_equal(mk_moe_balance(loads, 4, 4, 0, 2, 2, map), -EINVAL);
    assert_int_equal(mk_moe_balance(loads, 4, 6, 2, 3, 2, map), -EINVAL);
    loads[2] = -1;
    assert_int_equal(mk_moe_balance(loads, 4, 4, 1, 2, 2, map), -EINVAL);
    loads[2] = (double)NAN;
    assert_int_equal(mk_moe_balance(loads, 4, 4, 1, 2, 2, map), -EINVAL);
}

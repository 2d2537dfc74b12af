/* The order of a MoE's tiles (core/cta/cta_route.h, core/cta/gemm_table.h) names every tile of every expert
 * once, whatever the rows' sources and the slices of what is computed last; slices of a kind are
 * equal but for a tile of each expert; and behind the tile from which on some blocks add
 * (mk_stage_behind) no tile of the rows before is left. */
#include "tests/helpers/test.h"
#include "core/cta/cta_route.h"
#include "sim/clock.h"

enum { MOST_TILES = 64, DRAWS = 3000 };

static struct mk_route draw_route(struct sim_random *r)
{
    struct mk_route route = {.topo = {1 + sim_random_below(r, 3), 1 + sim_random_below(r, 4), 0},
                             .tile_rows = 8,
                             .rank_experts = 1 + sim_random_below(r, 5),
                             .apart = sim_random_below(r, 2)};
    route.slices = route.topo.nodes > 1 ? 2 : 0;
    route.late = sim_random_below(r, 4) ? 2 + sim_random_below(r, 9) : 0;
    return route;
}

/* Runs of rows of other nodes, of the node's others, of this rank, of the node's others, of other
 * nodes; some are empty. */
static struct mk_route_rows draw_rows(struct sim_random *r, const struct mk_route *route)
{
    uint32_t end[5], at = 0;
    for (int i = 0; i < 5; i++) {
        const int there = (i == 2) || (i % 4 ? route->topo.gpus > 1 : route->topo.nodes > 1);
        at += there && sim_random_below(r, 4) ? sim_random_below(r, 90) : 0;
        end[i] = at;
    }
    return (struct mk_route_rows){end[4], end[0], end[3], end[1], end[2]};
}

CASE(test_runs_name_every_tile_once)
{
    struct sim_random r = {1};
    for (int n = 0; n < DRAWS; n++) {
        const struct mk_route route = draw_route(&r);
        for (uint32_t e = 0; e < route.rank_experts; e++) {
            const struct mk_route_rows rows = draw_rows(&r, &route);
            uint32_t seen[MOST_TILES] = {0}, least[2] = {UINT32_MAX, UINT32_MAX}, most[2] = {0};
            const uint32_t last = 2 + route.slices, all = mk_route_stretches(&route);
            for (uint32_t stretch = 0; stretch < all; stretch++) {
                const struct mk_tile_run run = mk_route_run(&route, &rows, e, stretch);
                for (uint32_t i = 0; i < run.count; i++) {
                    uint32_t tile = run.first + i;
                    tile -= tile < run.high ? 0 : run.high - run.low;
                    assert_true(tile < mk_route_tiles(&route, rows.rows));
                    assert_int_equal(seen[tile]++, 0);
                }
                if (stretch < last)
                    continue;
                const int own = stretch - last >= mk_route_late_others(&route);
                least[own] = run.count < least[own] ? run.count : least[own];
                most[own] = run.count > most[own] ? run.count : most[own];
            }
            for (uint32_t tile = 0; tile < mk_route_tiles(&route, rows.rows); tile++)
                assert_int_equal(seen[tile], 1);
            for (int own = 0; own < 2 && route.late; own++)
                assert_true(most[own] - least[own] <= 1);
        }
    }
}

CASE(test_no_tile_of_rows_before_is_left)
{
    struct sim_random r = {2};
    for (int n = 0; n < DRAWS; n++) {
        const struct mk_stages stages = {1 + sim_random_below(&r, 40), 1 + sim_random_below(&r, 4),
                                         sim_random_below(&r, 4), 1 + sim_random_below(&r, 12)};
        const uint32_t row = sim_random_below(&r, stages.rows + 1),
                       behind = mk_stage_behind(&stages, row),
                       all = stages.rows * (stages.up + stages.down);
        uint32_t last = 0; /* behind the last tile of such a row */
        for (uint32_t t = 0; t < all; t++) {
            const struct mk_stage at = mk_stage_at(&stages, t);
            if (mk_stage_row(&stages, &at) < row)
                last = t + 1;
        }
        assert_true(last <= behind && behind <= all);
        if (stages.down && row) { /* and it is no later than down of their group */
            const struct mk_stage at = mk_stage_at(&stages, behind - 1);
            assert_true(at.down && at.first < row && row <= at.first + at.count);
        }
    }
}

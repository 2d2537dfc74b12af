/* The order of GEMM tiles visits every tile of every grid once, and the tile shape that is chosen
 * is the cheapest. */
#include "tests/helpers/test.h"
#include "tests/engines/tiling.h"

static void visits_once(uint32_t rows, uint32_t columns, uint32_t running)
{
    struct gemm_order o = gemm_order_make(rows, columns, 256, 256, running);
    uint8_t *seen = calloc(rows, columns);
    for (uint32_t i = 0; i < rows * columns; i++) {
        uint32_t row, column;
        gemm_order_at(&o, i, &row, &column);
        assert_true(row < rows && column < columns);
        assert_int_equal(seen[row * columns + column]++, 0);
    }
    free(seen);
}

CASE(every_tile_once)
{
    for (uint32_t rows = 1; rows <= 40; rows++)
        for (uint32_t columns = 1; columns <= 40; columns++)
            visits_once(rows, columns, 66);
    visits_once(1, 1000, 66);
    visits_once(1000, 1, 66);
    visits_once(33, 17, 1);
    visits_once(200, 190, 5);
}

/* Tiles that run together touch little of A and B: at most 1.15 times the edge of a square of as
 * many tiles. */
CASE(waves_are_compact)
{
    const uint32_t grids[][2] = {{16, 16}, {32, 32}, {32, 14}, {8, 16},
                                 {64, 8},  {64, 64}, {128, 16}};
    for (size_t g = 0; g < sizeof grids / sizeof grids[0]; g++) {
        uint32_t rows = grids[g][0], columns = grids[g][1], tiles = rows * columns, edges = 0,
                 waves = 0;
        struct gemm_order o = gemm_order_make(rows, columns, 256, 256, 66);
        for (uint32_t first = 0; first + 66 <= tiles; first += 66, waves++) {
            uint8_t in_row[128] = {0}, in_column[128] = {0};
            for (uint32_t i = first; i < first + 66; i++) {
                uint32_t row, column;
                gemm_order_at(&o, i, &row, &column);
                edges += !in_row[row] + !in_column[column];
                in_row[row] = in_column[column] = 1;
            }
        }
        assert_true(edges <= waves * 2 * 8.13 * 1.15);
    }
}

CASE(chooses_by_shape)
{
    struct gemm_tiling large = gemm_choose_tiling(8192, 8192, 8192, 132);
    assert_int_equal(large.tile_m * large.tile_n, 128 * 256);
    assert_int_equal(large.cluster, 2);
    /* Few rows and columns: small tiles, or most SMs would have none. */
    struct gemm_tiling small = gemm_choose_tiling(512, 1024, 4096, 132);
    assert_true(small.tile_m * small.tile_n <= 128 * 128);
    /* One SM cannot hold a cluster. */
    assert_int_equal(gemm_choose_tiling(4096, 4096, 4096, 1).cluster, 1);
}

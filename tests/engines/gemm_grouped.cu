#include "tests/engines/gemm_grouped.h"

#include "kernels/cta/block_scan.cuh"
#include "kernels/hopper/gemm_launch.cuh"
#include "kernels/sums/gemm_tickets.cuh"

enum { TABLE_THREADS = 256 };

struct grouped_table {
    uint64_t taken; /* tiles asked for */
    uint32_t count, unused;
    struct mk_tile_entry entries[];
};

PTX_SHARED(uint32_t, grouped_scan, BLOCK_SCAN_WORDS);
PTX_SHARED(uint32_t, grouped_begins, TABLE_THREADS);

/* The table: a block. A thread counts the tiles of a group; then each makes entries by themselves,
 * whichever group they are in, so that one large group is no longer way than many small ones. */
static __global__ void __launch_bounds__(TABLE_THREADS)
    grouped_table_kernel(const uint32_t *ranges, uint32_t groups, uint32_t columns, uint32_t tile_m,
                         uint32_t tile_n, uint32_t running, struct grouped_table *table)
{
    uint32_t *warps = grouped_scan, *begins = grouped_begins;
    uint32_t base = 0;
    for (uint32_t first = 0; first < groups; first += TABLE_THREADS) {
        uint32_t here = groups - first < TABLE_THREADS ? groups - first : (uint32_t)TABLE_THREADS;
        uint32_t rows = threadIdx.x < here ? ranges[2 * (first + threadIdx.x) + 1] : 0, all;
        uint32_t mine = (uint32_t)mk_ceil_div(rows, tile_m) * columns;
        begins[threadIdx.x] = block_scan(mine, TABLE_THREADS, warps, &all);
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < all; i += TABLE_THREADS) {
            uint32_t g = block_find(begins, here, i);
            struct mk_tile_run run;
            run.group = first + g;
            run.row = ranges[2 * run.group];
            run.rows = ranges[2 * run.group + 1];
            run.low = run.first = 0;
            run.high = run.count = (uint32_t)mk_ceil_div(run.rows, tile_m);
            table->entries[base + i] =
                mk_tile_of_run(&run, i - begins[g], columns, tile_m, tile_n, running);
        }
        base += all;
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        table->taken = 0;
        table->count = base;
    }
}

struct grouped_source : ticket_source<gemm_engine, grouped_source> {
    struct grouped_table *table;
    uint64_t upcoming;
    uint32_t count;

    ENGINE_MEMBER void open(uint32_t)
    {
        count = *(volatile uint32_t *)&table->count;
        upcoming = atomicAdd((unsigned long long *)&table->taken, 1ull);
    }

    /* The number of the one after this is on its way while this one is loaded. */
    ENGINE_MEMBER bool take(struct mk_tile_entry *e)
    {
        uint64_t i = upcoming;
        if (i >= count)
            return false;
        upcoming = atomicAdd((unsigned long long *)&table->taken, 1ull);
        *e = gemm_table_load(&table->entries[i]);
        return true;
    }

    /* Nobody traces it. */
    ENGINE_MEMBER void begin(uint32_t, const struct mk_tile *)
    {
    }
    ENGINE_MEMBER void after(uint32_t, const struct mk_tile *, uint32_t)
    {
    }
};

template <class shape>
static __global__ void __launch_bounds__(GEMM_THREADS, 1)
    grouped_kernel(const __grid_constant__ struct gemm_a a,
                   const __grid_constant__ struct gemm_operands op, struct grouped_table *table,
                   const uint32_t columns)
{
    PTX_SHARED_DYNAMIC(memory);
    struct grouped_source source;
    source.rows_of_a = &a;
    source.table = table;
    source.template begin_block<shape>(nullptr, &op, columns);
    gemm_compute<shape>(&op, &source, memory);
}

template <class shape>
static int grouped_describe(struct gemm_a *map_a, struct gemm_operands *op,
                            const struct gemm_grouped *g)
{
    const uint64_t rows = (uint64_t)g->rows, n = (uint64_t)g->n, k = (uint64_t)g->k;
    int err = gemm_engine::describe_a<shape>(map_a, op, g->a, k * 2, rows);
    if (!err)
        err = gemm_engine::describe_b<shape>(&op->b, op, g->b, n, k * 2, g->groups);
    if (!err)
        err = gemm_engine::describe_c<shape>(&op->c, op, g->c, n * 2, n, rows);
    gemm_engine::describe_k<shape>(op, k * 2, k * 2);
    op->watch = {NULL, 2000000000}; /* nothing here waits for another GPU */
    op->limit_ns = 3000000000;
    return err;
}

template <class shape>
static int grouped_launch(const struct gemm_grouped *g, uint32_t sms, cudaStream_t stream)
{
    struct gemm_a map_a;
    struct gemm_operands op;
    struct grouped_table *table = (struct grouped_table *)g->table;
    uint32_t columns = (uint32_t)mk_ceil_div(g->n, shape::tile_n);
    int err = grouped_describe<shape>(&map_a, &op, g);
    if (!err)
        err = gpu_allow_shared(grouped_kernel<shape>, shape::shared_bytes);
    if (err)
        return err;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1);
    config.blockDim = dim3(TABLE_THREADS);
    config.stream = stream;
    if (cudaLaunchKernelEx(&config, grouped_table_kernel, g->ranges, g->groups, columns,
                           (uint32_t)shape::tile_m, (uint32_t)shape::tile_n, sms,
                           table) != cudaSuccess)
        return -EIO;
    return gpu_launch_grid(grouped_kernel<shape>, {sms, GEMM_THREADS, shape::shared_bytes, 1},
                           stream, map_a, op, table, columns);
}

uint64_t gemm_grouped_table_bytes(const struct gemm_grouped *g)
{
    return sizeof(struct grouped_table) + (uint64_t)g->rows / g->tiling.tile_m *
                                              mk_ceil_div((uint64_t)g->n, g->tiling.tile_n) *
                                              sizeof(struct mk_tile_entry);
}

int gemm_grouped_run(const struct gemm_grouped *g, cudaStream_t stream)
{
    int device, all;
    if (g->n < 8 || g->k < 8 || g->n % 8 || g->k % 8 || !g->groups || g->groups > INT32_MAX ||
        g->n > INT32_MAX - 512 || g->k > INT32_MAX - 512 || g->rows < 1 ||
        g->rows > INT32_MAX - 512 || !g->tiling.tile_m || g->rows % g->tiling.tile_m ||
        g->rows / g->tiling.tile_m * mk_ceil_div((uint64_t)g->n, g->tiling.tile_n) > INT32_MAX)
        return -EINVAL;
    if (((uintptr_t)g->a | (uintptr_t)g->b | (uintptr_t)g->c | (uintptr_t)g->table) % 16)
        return -EINVAL;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
        return -EIO;
    uint32_t sms = g->sms && g->sms < (uint32_t)all ? g->sms : (uint32_t)all;
#define GROUPED_TRY(rows_, columns_, cluster_, stages, boxes)                                      \
    if (g->tiling.tile_m == rows_ && g->tiling.tile_n == columns_ &&                               \
        g->tiling.cluster == cluster_)                                                             \
        return g->b_rows == GEMM_KN                                                                \
                   ? grouped_launch<gemm_shape<rows_, columns_, cluster_, 1, stages, boxes>>(      \
                         g, sms, stream)                                                           \
                   : grouped_launch<gemm_shape<rows_, columns_, cluster_, 0, stages, boxes>>(      \
                         g, sms, stream);
    MK_GROUPED_TILES(GROUPED_TRY)
#undef GROUPED_TRY
    return -EINVAL;
}

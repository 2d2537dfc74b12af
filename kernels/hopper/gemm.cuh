/*
 * The GEMM engine: C = A B for bf16 or fp16 inputs, fp32 accumulation, C as they are, as the compute
 * role of a persistent Hopper kernel.
 *
 * A CTA has three warpgroups. One thread of the first, the producer, loads tiles of A and B with
 * TMA into a ring of stages; the two others, the consumers, multiply them with wgmma, each its half
 * of the rows, and store C with TMA. Two mbarriers a stage keep them in step: `full` (the bytes
 * have landed) and `empty` (all who read the stage are done). The consumers share nothing but the
 * ring, so while one stores its part of C the other keeps the tensor cores busy.
 *
 * A tile of 64 rows is for few rows: nothing but reading B takes time there, and one warpgroup is
 * enough for its products. A stage then holds 128 elements of K, of which each consumer multiplies
 * 64; at the end of a tile the second gives its sums to the first, which stores C. (Where sums are in a
 * tree, the second has the upper half of all K instead, 64 of it from each stage.)
 *
 * With a cluster of two, the CTAs work on the upper and the lower rows of one tile of twice the
 * height: each loads half of their columns of B and the TMA unit delivers it to both. A stage then
 * belongs to both CTAs' consumers before it may be filled again.
 *
 * A cluster of two whose CTAs have 64 rows each splits K: both multiply all 128 rows, each by half of
 * K. Then the second consumer of each gives its sums to the other CTA, whose first consumer adds them
 * to its own of the same rows and stores them, as that of a tile of 64 rows does. A tile of 64 columns
 * reads from shared memory in a product's time all that there is to read, and loads write there too;
 * this one reads three quarters of that, and as many CTAs have something to do.
 *
 * The engine is a template over a tile shape (struct gemm_shape) and a tile source, which is what
 * kernels/engine/engine.cuh says; struct gemm_source is what every source begins with.
 *
 * A and B may be e4m3: then a row of a stage has 128 elements of K, and everything but the products
 * and their sums is the same (gemm_promote.cuh).
 *
 * Every wait ends: TMA loads complete, consumers wait for nothing else, and the source's waits are
 * bounded.
 */
#pragma once
#include "kernels/hopper/gemm_consume.cuh"
#include "kernels/hopper/gemm_produce.cuh"

/* Which warp does what, where it waits and at what it arrives. Of a cluster each consumer warp arrives
 * at EMPTY of all CTAs that fill its stages, and at TAKEN of the other CTA; and so do the other's
 * here. splits: the shape's. */
template <bool splits, class tile_source> struct gemm_roles {
    static constexpr uint32_t few = tile_source::producer_registers,
                              many = tile_source::consumer_registers, full = MBAR_SET(MBAR_FULL),
                              empty = MBAR_SET(MBAR_EMPTY),
                              given = splits ? MBAR_SET(MBAR_GIVEN) : 0,
                              taken = splits ? MBAR_SET(MBAR_TAKEN) : 0;
    static constexpr bool gathers = tile_source::gathers;

    /* role, first warp, warps, registers, {waits for, one thread arrives at, one of each warp} */
    static constexpr struct warp_table table = {{
        {ENGINE_PRODUCER, 0, 1, few, warp_also({empty, full}, tile_source::producer_at)},
        {ENGINE_GATHERER, 1, gathers ? GEMM_GATHER_WARPS : 0, few,
         warp_also({empty, 0, full}, tile_source::gatherer_at)},
        {ENGINE_FREE, 1, gathers ? 0 : 3, few},
        {ENGINE_CONSUMER, 4, 4, many,
         warp_also({full | given, given, empty | taken}, tile_source::consumer_at[0])},
        {ENGINE_CONSUMER, 8, 4, many,
         warp_also({full | taken, 0, empty}, tile_source::consumer_at[1])},
        tile_source::chosen_roles[0],
        tile_source::chosen_roles[1],
    }};
    /* Threads before those that assist, and warpgroups before those that multiply. (Constants to compare with:
     * of a role that a function returns the compiler does not know which threads have it, and
     * leaves in it what a source's calls do in others.) */
    static constexpr uint32_t producers = 32 * table.end_of(ENGINE_PRODUCER),
                              multiply = table.first_of(ENGINE_CONSUMER) / 4;
    static_assert(table.covers(GEMM_THREADS / 32) && table.meets(),
                  "each warp has a role, and who waits is waited for");
    static_assert(table.shares(GEMM_LAUNCH_REGISTERS),
                  "more than there are: setmaxnreg.inc would wait for ever");
    static_assert(!tile_source::goes_on ||
                      (few < GEMM_LAUNCH_REGISTERS && many > GEMM_LAUNCH_REGISTERS),
                  "each takes what the other gives");
};

/* kernels/hopper/gemm_gather.cuh has it, which kernels of sources that gather include. */
template <class shape, class tile_source, class operands>
PTX_FN void gemm_gather(const operands *op, tile_source *source, uint32_t shared);

/* A warp that gathers, or that the engine leaves free. */
template <class shape, class tile_source>
PTX_FN void gemm_assist(const struct gemm_operands *op, tile_source *source, uint32_t shared)
{
    if constexpr (tile_source::gathers)
        gemm_gather<shape>(op, source, shared);
    else
        source->auxiliary_warp(threadIdx.x / 32 - 1);
}

/*
 * Runs the CTA's tiles, of a gemm_shape or the one of gemm_shapes. All GEMM_THREADS threads call, once, with shape::shared_bytes of dynamic
 * shared memory at the same address in all CTAs of the cluster; the kernel has
 * __launch_bounds__(GEMM_THREADS, 1). Returns when all stores have read shared memory; that they
 * are written is the kernel's end to say, or a source's `publish`.
 */
template <class shapes, class tile_source>
PTX_FN void gemm_compute(const struct gemm_operands *op, tile_source *source, uint8_t *memory)
{
    const bool computes = source->computes();
    uint32_t shared = (ptx_shared(memory) + 1023) & ~1023u;
    uint32_t rank = 0;
    shapes::choose(op->shape, [&](auto of) {
        typedef decltype(of) shape;
        if (shape::cluster > 1)
            rank = ptx_cluster_rank();
        if (computes && threadIdx.x == 0) {
            ptx_tensormap_prefetch(&op->b);
            ptx_tensormap_prefetch(&op->c);
            gemm_leave_rest<shape>(op, shared);
            typedef gemm_roles<shape::splits, tile_source> roles;
            if constexpr (shape::splits) {
                ptx_mbar_init(shared + shape::given_offset, warp_arrivals<roles, MBAR_GIVEN>());
                ptx_mbar_init(shared + shape::taken_offset, warp_arrivals<roles, MBAR_TAKEN>());
            }
            pipeline_init<shape::stages>(shape::barriers(shared),
                                         warp_arrivals<roles, MBAR_EMPTY>() * shape::sharers,
                                         warp_arrivals<roles, MBAR_FULL>());
        }
        if (shape::cluster == 1)
            __syncthreads();
        else if (computes)
            ptx_cluster_sync();
    });

    /* The shuffle tells the compiler that it is the same in all lanes. */
    uint32_t warpgroup = computes ? __shfl_sync(0xffffffff, threadIdx.x / 128, 0) : 0;
    /* Registers are shared out by warpgroups: all warps of one take or give back together. */
    typedef gemm_roles<false, tile_source> roles;
    if (warpgroup < roles::multiply) {
        if (tile_source::producer_registers < GEMM_LAUNCH_REGISTERS)
            ptx_registers_dec<tile_source::producer_registers>();

        if constexpr (tile_source::shared_code) {
            if (computes && threadIdx.x < roles::producers) {
                if (ptx_elect())
                    gemm_produce_several<shapes>(op, source, shared, rank);
            } else {
                gemm_assist<shapes>(op, source, shared);
            }
        } else if (threadIdx.x < roles::producers && ptx_elect()) {
            gemm_produce<shapes>(op, source, shared, rank);
        } else if (threadIdx.x >= roles::producers) {
            gemm_assist<shapes>(op, source, shared);
        }
        __syncwarp();
        if (tile_source::goes_on && computes) {
            __syncthreads(); /* consumers have taken theirs, and given them back */
            ptx_registers_inc<GEMM_LAUNCH_REGISTERS>();
        }
    } else {
        if (tile_source::consumer_registers > GEMM_LAUNCH_REGISTERS)
            ptx_registers_inc<tile_source::consumer_registers>();
        shapes::choose(op->shape, [&](auto shape) {
            gemm_consume<decltype(shape)>(op, source, shared, warpgroup - 1, rank);
        });
        if (tile_source::goes_on) {
            __syncwarp();
            ptx_registers_dec<GEMM_LAUNCH_REGISTERS>();
            __syncthreads();
        }
    }
    /* A CTA's shared memory must outlive what its neighbour still sends there. */
    shapes::choose(op->shape, [&](auto shape) {
        if (decltype(shape)::cluster > 1 && computes)
            ptx_cluster_sync();
    });
}

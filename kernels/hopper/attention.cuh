/*
 * The attention engine: O = softmax(scale Q K^T) V for bf16 inputs, fp32 statistics and sums, bf16
 * O, and the logarithm of each row's sum of weights, as the compute role of a persistent Hopper
 * kernel. The method is the public FlashAttention-3 paper's (arXiv 2407.08608).
 *
 * A CTA takes a tile of queries (64 rows for each consumer warpgroup) and keeps its sums in
 * registers while it goes through all keys that the tile may see. One thread of the first
 * warpgroup, the producer, loads blocks of K and V with TMA into two rings of stages. A consumer
 * multiplies Q K^T and P V with wgmma, P from registers. Its step:
 *
 *   start Q K^T of the next block, and P V of this block
 *   wait for the first; softmax of the next block, while the second runs
 *   wait for the second; round the new weights to P, scale the sums for the new maximum
 *
 * So a consumer's softmax overlaps with products: its own, and those of the other consumers, which
 * share only the rings with it and drift apart by themselves. (The paper lets them take turns at
 * starting products, by named barriers: on an H200 that was 2 to 5 % slower with heads of 128, and
 * 0.5 % faster with heads of 64.)
 *
 * The keys come in runs (a shard of a sequence that is spread over ranks is one), each walked from
 * its last block to its first: what a mask or a run's end cuts comes first, in a loop of its own,
 * so the others test nothing.
 *
 * Every wait ends: TMA loads complete, consumers wait for nothing else, and the source's waits are
 * bounded. If one does not all the same, the producer says where (kernels/engine/barrier.cuh).
 */
#pragma once

#include "kernels/hopper/attention_consumer.cuh"

/* ---- The producer: one thread
 * --------------------------------------------------------------------------------- */

/* A block of keys: where the TMA unit finds its K and its V. */
struct attention_block {
    const CUtensorMap *v;
    int32_t head, row, slab;
};

/* Waits until the readers of a stage are done. A producer that takes longer than it may says where;
 * one of 32 registers has none for that. */
template <class shape, int stages>
PTX_FN void attention_wait_empty(const struct attention_operands *op, uint32_t barriers,
                                 const struct pipeline_position *at, uint32_t tile,
                                 enum gpu_barrier ring)
{
    if (shape::producer_registers < 40)
        pipeline_wait_empty<stages>(barriers, at, op->limit_ns);
    else
        pipeline_wait_empty<stages>(barriers, at, &op->watch, tile, ring);
}

/* After its last block: all stages have been given back. */
template <class shape>
PTX_FN void attention_drain(const struct attention_operands *op, uint32_t barriers,
                            struct pipeline_position *at, uint32_t tile, enum gpu_barrier ring)
{
    for (int s = 0; s < shape::stages; s++) {
        attention_wait_empty<shape, shape::stages>(op, barriers, at, tile, ring);
        pipeline_step<shape::stages>(at);
    }
}

/* Loads a block of K, or of V, into the next stage of its ring. */
template <class shape>
PTX_FN void attention_load(const struct attention_operands *op, const CUtensorMap *map,
                           uint32_t stages, uint32_t barriers, struct pipeline_position *at,
                           const struct attention_block *block, uint32_t tile,
                           enum gpu_barrier ring)
{
    uint32_t to = stages + at->stage * shape::block_bytes,
             full = pipeline_full<shape::stages>(barriers, at->stage);
    attention_wait_empty<shape, shape::stages>(op, barriers, at, tile, ring);
    ptx_mbar_expect(full, shape::block_bytes);
#pragma unroll
    for (int p = 0; p < shape::panels; p++)
        ptx_tma_load_4d(to + p * shape::keys * 128, map, full, p * 64, block->head, block->row,
                        block->slab);
    pipeline_step<shape::stages>(at);
}

/* Loads the tile's rows of Q, and tells the consumers its number. */
template <class shape>
PTX_FN void attention_load_queries(const struct attention_operands *op, uint32_t shared,
                                   const struct attention_tile *tile, int32_t id, uint32_t number,
                                   struct pipeline_position *at)
{
    uint32_t barriers = shared + shape::q_barriers, full = pipeline_full<1>(barriers, 0);
    attention_wait_empty<shape, 1>(op, barriers, at, number, GPU_BARRIER_QUERIES);
    pipeline_step<1>(at);
    ptx_store_shared(shared + shape::tile_offset, id);
    if (id == ATTENTION_NONE) {
        ptx_mbar_arrive(full);
        return;
    }
    ptx_mbar_expect(full, shape::groups * shape::group_bytes);
#pragma unroll
    for (int g = 0; g < shape::groups; g++)
#pragma unroll
        for (int p = 0; p < shape::panels; p++)
            ptx_tma_load_4d(shared + g * shape::group_bytes + p * shape::panel_bytes, &op->q, full,
                            p * 64, tile->head, tile->row + g * 64, tile->slab);
}

PTX_FN struct attention_block attention_block_of(const struct attention_keys *keys, int32_t first)
{
    return {keys->v, keys->head, keys->row + first, keys->slab};
}

/* The block whose K is loaded, and V not yet. */
struct attention_last {
    struct attention_block block;
    uint32_t run; /* in place of it, where the producer has few registers */
    int32_t first;
};

template <class shape, class Source>
PTX_FN void attention_load_values(const struct attention_operands *op, const Source *source,
                                  uint32_t shared, const struct attention_tile *tile,
                                  const struct attention_last *last, uint32_t number,
                                  struct pipeline_position *ring)
{
    struct attention_block block = last->block;
    if (shape::producer_registers < 40) {
        struct attention_keys keys;
        source->keys(*tile, last->run, &keys);
        block = attention_block_of(&keys, last->first);
    }
    attention_load<shape>(op, block.v, shared + shape::v_offset, shared + shape::v_barriers, ring,
                          &block, number, GPU_BARRIER_VALUES);
}

/* What it does for a block is little: with 700 instructions of a source's arithmetic in it an H200
 * took 12 % longer for a tile. So a run's keys are asked for once. */
template <class shape, class Source>
PTX_FN void attention_produce(const struct attention_operands *op, Source *source, uint32_t shared)
{
    struct pipeline_position k_ring = {}, v_ring = {}, q_ring = {};
    struct attention_tile tile;
    struct attention_keys keys;
    struct attention_last last;
    source->open();
    int32_t id = source->take();
    uint32_t number = 0; /* of this block's tiles */
    for (; id != ATTENTION_NONE; number++) {
        bool first = true;
        source->tile(id, &tile);
        for (uint32_t run = 0; source->keys(tile, run, &keys); run++) {
            for (int32_t i = attention_blocks<shape>(&tile, run, &keys); i-- > 0;) {
                const struct attention_block block = attention_block_of(&keys, i * shape::keys);
                source->before(tile, run, keys, i * shape::keys);
                attention_load<shape>(op, keys.k, shared + shape::k_offset,
                                      shared + shape::k_barriers, &k_ring, &block, number,
                                      GPU_BARRIER_KEYS);
                if (first)
                    attention_load_queries<shape>(op, shared, &tile, id, number, &q_ring);
                else
                    attention_load_values<shape>(op, source, shared, &tile, &last, number, &v_ring);
                first = false;
                last = {block, run, i * shape::keys};
            }
        }
        id =
            source->take(); /* its answer may take a microsecond, while consumers still have work */
        attention_load_values<shape>(op, source, shared, &tile, &last, number, &v_ring);
    }
    attention_load_queries<shape>(op, shared, &tile, ATTENTION_NONE, number, &q_ring);
    attention_drain<shape>(op, shared + shape::k_barriers, &k_ring, number, GPU_BARRIER_KEYS);
    attention_drain<shape>(op, shared + shape::v_barriers, &v_ring, number, GPU_BARRIER_VALUES);
    source->close();
}

/* Which warp does what, where it waits and at what it arrives. */
template <class shape> struct attention_roles {
    static constexpr uint32_t few = shape::producer_registers, many = shape::consumer_registers,
                              filled = MBAR_SET(MBAR_KEYS) | MBAR_SET(MBAR_VALUES) |
                                       MBAR_SET(MBAR_QUERIES),
                              read = MBAR_SET(MBAR_KEYS_READ) | MBAR_SET(MBAR_VALUES_READ) |
                                     MBAR_SET(MBAR_QUERIES_READ);

    /* role, first warp, warps, registers, {waits for, one thread arrives at, one of each warp} */
    static constexpr struct warp_table table = {{
        {ENGINE_PRODUCER, 0, 1, few, {read, filled}},
        {ENGINE_FREE, 1, 3, few},
        {ENGINE_CONSUMER, 4, 4 * shape::groups, many, {filled, 0, read}},
    }};
    static constexpr uint32_t producers = 32 * table.end_of(ENGINE_PRODUCER), /* threads */
        multiply = table.first_of(ENGINE_CONSUMER) / 4; /* warpgroups before them */
    static_assert(table.covers(shape::threads / 32) && table.meets(),
                  "each warp has a role, and who waits is waited for");
    static_assert(table.shares(65536 / shape::threads / 8 * 8),
                  "more than there are: setmaxnreg.inc would wait for ever");
};

/*
 * Runs the CTA's tiles. All shape::threads threads call, once, with shape::shared_bytes of dynamic
 * shared memory; the kernel has __launch_bounds__(shape::threads, 1). Returns when all stores have
 * been written.
 */
template <class shape, class Source>
PTX_FN void attention_compute(const struct attention_operands *op, Source *source, uint8_t *memory)
{
    typedef attention_roles<shape> roles;
    uint32_t shared = (ptx_shared(memory) + 1023) & ~1023u;
    if (threadIdx.x == 0) {
        ptx_store_shared(shared + shape::notes_offset + shape::dim * 4, (uint32_t)ATTENTION_NONE);
        ptx_tensormap_prefetch(&op->q);
        ptx_tensormap_prefetch(&op->o);
        pipeline_init<shape::stages>(shared + shape::k_barriers,
                                     warp_arrivals<roles, MBAR_KEYS_READ>(),
                                     warp_arrivals<roles, MBAR_KEYS>());
        pipeline_init<shape::stages>(shared + shape::v_barriers,
                                     warp_arrivals<roles, MBAR_VALUES_READ>(),
                                     warp_arrivals<roles, MBAR_VALUES>());
        pipeline_init<1>(shared + shape::q_barriers, warp_arrivals<roles, MBAR_QUERIES_READ>(),
                         warp_arrivals<roles, MBAR_QUERIES>());
    }
    __syncthreads();

    /* The shuffle tells the compiler that it is the same in all lanes. */
    uint32_t warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    if (warpgroup < roles::multiply) {
        ptx_registers_dec<shape::producer_registers>();
        if (threadIdx.x < roles::producers && ptx_elect())
            attention_produce<shape>(op, source, shared);
        else if (threadIdx.x >= roles::producers)
            source->auxiliary_warp(threadIdx.x / 32);
        __syncwarp();
    } else {
        ptx_registers_inc<shape::consumer_registers>();
        attention_consume<shape>(op, source, shared, warpgroup - 1);
    }
}

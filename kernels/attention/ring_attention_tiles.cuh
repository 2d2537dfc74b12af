/* Ring attention's tiles of queries and runs of keys, as the tile sources of both engines have
 * them. */
#pragma once

#include "kernels/host/op.h"

#include "kernels/cta/cta.cuh"

#include "core/roles/ring_attention.h"
#include "kernels/engine/attention_source.cuh"
#include "kernels/cta/tile_track.cuh"

GPU_OPERATOR(ring_attention)
GPU_OPERATOR(ring_attention_mma) /* of plans for engine mma */

/* K and V as an engine names tensors, each of which ends where its rows do: this rank's own, up to
 * the end of its first half and of all; by epoch & 1 those that have come, in halves of
 * plan->half rows, and of these the one block that is shorter. And O up to the end of this rank's
 * first half. A kernel parameter. */
template <class tensor> struct ring_attention_tensors {
    tensor own[2][2], gathered[2][2], last[2][2], front;
};

/* What the producer thread (cta) and the first thread of the first consumer warpgroup (track) keep.
 * Not in registers: with three consumer warpgroups there are too few. */
struct ring_attention_state {
    struct mk_cta cta;
    /* Of the keys of run awaited_run, those from row awaited_row on have come; UINT32_MAX: of none. */
    uint32_t awaited_run;
    int32_t awaited_row;
    uint32_t blocks; /* of the tile, so far, of this rank's own keys */
    int all_here;    /* all keys of the tile */
    int ending;
    struct tile_track track;
};
PTX_SHARED(struct ring_attention_state, ring_attention_shared, 1);

/* With two stages, the first block for which the producer waits. */
enum { LOOK_AT_BLOCK = 3 };

/* runs: the engine's struct of a run of keys, which names `tensor`s. paired: each of the plan's blocks
 * has a second one, as many numbers behind it as the plan has blocks, which computes and does
 * nothing else. */
template <class runs, class tensor, bool paired = false>
struct ring_attention_tiles : attention_source {
    const struct ring_attention_plan *plan;
    const struct gpu_launch *launch;
    const struct ring_attention_tensors<tensor> *tensors;

    ATTENTION_MEMBER bool second() const
    {
        return paired && blockIdx.x >= mk_total_blocks(&launch->split);
    }

    /* The plan's. */
    ATTENTION_MEMBER uint32_t block() const
    {
        return second() ? blockIdx.x - mk_total_blocks(&launch->split) : blockIdx.x;
    }

    /* Of tiles. What a second block waits for the first does, too: it has no track of its own. */
    ATTENTION_MEMBER uint32_t track() const
    {
        return tile_track_of(block(), second() ? GPU_TRACK_SENDER : GPU_TRACK_TILES);
    }

    ATTENTION_MEMBER void open()
    {
        struct mk_cta *cta = &ring_attention_shared->cta;
        uint32_t number = gpu_cta_of_block(&launch->split, block());
        if (second())
            cta_identify(cta, launch, number, 1);
        else if (number >= launch->split.ctas[MK_COMPUTE]) /* has had another role before */
            cta_resume(cta, launch, number, 1);
        else
            cta_begin(cta, launch, number, 1);
        cta->role = MK_COMPUTE;
        ring_attention_shared->ending = 0;
        if (!plan->query_tiles && !second() && number < launch->split.ctas[MK_COMPUTE])
            ring_attention_await_share(plan, cta);
    }

    ATTENTION_MEMBER void close()
    {
        if (!second())
            cta_end(&ring_attention_shared->cta);
    }

    /* Every block takes until there is none: so many numbers a launch. */
    ATTENTION_MEMBER int32_t take()
    {
        uint64_t first = (ring_attention_shared->cta.epoch - 1) * (plan->query_tiles + gridDim.x);
        uint64_t i = atomicAdd((unsigned long long *)launch->taken, 1ull) - first;
        ring_attention_shared->awaited_run = UINT32_MAX; /* one of others may be the first */
        ring_attention_shared->blocks = 0;
        ring_attention_shared->all_here = 0;
        return i < plan->query_tiles ? (int32_t)ring_attention_order(plan, (uint32_t)i)
                                     : (int32_t)ATTENTION_NONE;
    }

    ATTENTION_MEMBER void tile(int32_t query, struct attention_tile *tile) const
    {
        struct ring_attention_query q = ring_attention_query(plan, query);
        tile->head = q.head;
        tile->row = q.half * plan->half + q.row;
        tile->slab = q.batch;
        tile->rows = q.rows;
    }

    ATTENTION_MEMBER bool keys(const struct attention_tile &tile, uint32_t run, runs *keys) const
    {
        const struct ring_attention_plan *plan =
            MK_FRESH(this->plan); /* or registers are spilled */
        const uint32_t q_half = ring_attention_half_of(plan, tile.row);
        struct ring_attention_keys of;
        if (!ring_attention_keys(plan, q_half, run, &of))
            return false;
        const uint32_t half = of.half, rank = of.rank;
        uint32_t kv_head = ring_attention_kv_head(plan, tile.head);
        uint32_t block = ring_attention_block(plan, rank, half),
                 q_block = ring_attention_block(plan, plan->topo.rank, q_half);
        keys->row = 0;
        if (rank == plan->topo.rank) {
            keys->k = &tensors->own[half][0];
            keys->head = kv_head;
            keys->row = half * plan->half;
            keys->slab = tile.slab;
        } else {
            const bool last = block == plan->whole;
            const uint32_t parity = ring_attention_shared->cta.epoch & 1;
            keys->k = last ? tensors->last[parity] : tensors->gathered[parity];
            keys->head = tile.slab * plan->kv_heads + kv_head;
            keys->slab = rank;
            if (!last)
                keys->head = keys->head * plan->halves + half;
            else
                keys->slab = 0;
        }
        keys->v = keys->k + 1;
        /* By places in the sequence: below 0 where the sequence ends, or all queries, before it. */
        keys->keys = min((int32_t)plan->half, (int32_t)(plan->sequence - block * plan->half));
        keys->diagonal = plan->causal
                             ? tile.row + (int32_t)((q_block - q_half - block) * plan->half)
                             : (int32_t)ATTENTION_FULL;
        return true;
    }

    ATTENTION_MEMBER float *lse(const struct attention_tile &tile) const
    {
        return (float *)launch->arguments[MK_SPACE_ARG4] +
               ((uint64_t)(tile.slab * plan->heads + tile.head) * plan->rows + tile.row);
    }

    ATTENTION_MEMBER const tensor *output(const tensor *of_all,
                                          const struct attention_tile &tile) const
    {
        return ring_attention_half_of(plan, tile.row) ? of_all : &tensors->front;
    }

    /* Whether all keys of the tile are here already. The producer looks when it has filled its
     * stages for the first time, and would only wait for consumers: later a flag's microsecond is
     * one in which nothing is loaded. */
    ATTENTION_MEMBER bool look(const struct attention_tile &tile) const
    {
        const struct mk_cta *cta = &ring_attention_shared->cta;
        uint32_t head = ring_attention_chunk(plan, tile.slab,
                                             ring_attention_kv_head(plan, tile.head), 0, 0, 0),
                 flags = 2 * plan->halves * plan->half_chunks, here = 1;
        for (uint32_t step = 1; step < mk_world(&plan->topo); step++) {
            uint32_t rank = ring_attention_source(plan, step);
            here &= cta_look(cta, ring_attention_flag(plan, rank, head), flags,
                             ring_attention_target(plan, rank, cta->epoch));
        }
        if (here) {
            ptx_fence_acquire();
            ptx_fence_async();
        }
        return here;
    }

    ATTENTION_MEMBER void before(const struct attention_tile &tile, uint32_t run, const runs &keys,
                                 int32_t first)
    {
        struct ring_attention_state *state = ring_attention_shared;
        struct ring_attention_keys of;
        if (keys.k <= &tensors->own[1][0]) { /* this rank's own: they come first in `tensors` */
            if (++state->blocks == LOOK_AT_BLOCK && !state->cta.track.events)
                state->all_here = look(tile);
            return;
        }
        /* From the last rows to the first: a block that begins in a chunk ends in it or in one that
         * was awaited. */
        if (state->all_here || state->ending ||
            (run == state->awaited_run && first >= state->awaited_row))
            return;
        state->awaited_run = run;
        state->awaited_row = first / plan->chunk_rows * plan->chunk_rows;
        ring_attention_keys(plan, ring_attention_half_of(plan, tile.row), run, &of);
        state->ending = ring_attention_before_rows(
            plan, &state->cta, of.rank, tile.slab, ring_attention_kv_head(plan, tile.head), of.half,
            first, min(first + (int32_t)plan->block_rows, keys.keys));
    }

    /* The lanes of an intra_comm CTA that is co-resident with this compute CTA, from 0 on. False:
     * the plan has none of that number. */
    ATTENTION_MEMBER bool push(uint32_t auxiliary, uint32_t lanes) const
    {
        const struct mk_role_split *split = &launch->split;
        if (blockIdx.x >= split->ctas[MK_COMPUTE] || /* a second block, too */
            auxiliary >= split->intra_comm_warps)
            return false;
        struct mk_cta other;
        cta_begin(&other, launch,
                  gpu_auxiliary_of_block(split, MK_INTRA_COMM, auxiliary, blockIdx.x), lanes);
        other.pace = plan->pace;
        ring_attention_intra_comm(plan, &other);
        cta_end(&other);
        return true;
    }

    ATTENTION_MEMBER void begin(int32_t, const struct attention_tile &, uint32_t group)
    {
        if (group == 0)
            tile_track_start(&ring_attention_shared->track);
    }

    ATTENTION_MEMBER void after(int32_t query, const struct attention_tile &, uint32_t group)
    {
        if (group == 0)
            tile_track_note(&ring_attention_shared->track, launch,
                            ring_attention_tile_number(plan, query, 0), track());
    }
};

/* All threads of a block that does not compute first: its role. The compute role goes on with the
 * lead's track: a barrier stands between, where another thread may be the producer. */
PTX_FN void ring_attention_communicate(const struct ring_attention_plan *p,
                                       const struct gpu_launch *launch, uint32_t threads)
{
    struct mk_cta cta;
    cta_begin(&cta, launch, gpu_cta_of_block(&launch->split, blockIdx.x), threads);
    if (cta.role == MK_INTRA_COMM)
        ring_attention_intra_comm(p, &cta);
    else if (cta.role == MK_INTER_SEND && !cta_begin_commands(&cta))
        ring_attention_inter_send(p, &cta);
    cta_end(&cta);
}

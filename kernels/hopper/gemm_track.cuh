/* A tile source of the GEMM engine that notes when each tile was computed. */
#pragma once

#include "kernels/hopper/gemm.cuh"
#include "kernels/cta/tile_track.cuh"

struct tracked_source : gemm_source {
    const struct gpu_launch *launch;
    struct tile_track track;

    ENGINE_MEMBER void open_track()
    {
        tile_track_open(&track, launch);
    }

    ENGINE_MEMBER void close_track()
    {
        tile_track_close(&track, launch);
    }

    ENGINE_MEMBER void begin(uint32_t, const struct mk_tile *)
    {
        tile_track_start(&track);
    }

    ENGINE_MEMBER void after(uint32_t, const struct mk_tile *tile, uint32_t)
    {
        tile_track_note(&track, launch, tile->id);
    }
};

/* The same for tight shapes: the track lies `offset` bytes from the beginning of shared memory on,
 * and the warps that push have what registers consumers leave. */
template <uint32_t offset> struct tight_source : gemm_source {
    static constexpr int producer_registers = 88, consumer_registers = 208;

    const struct gpu_launch *launch;

    /* The first consumer's alone: the others have none. */
    ENGINE_MEMBER struct tile_track *track() const
    {
        PTX_SHARED_DYNAMIC_ALIGNED(memory, 1024);
        return (struct tile_track *)(memory + offset);
    }

    ENGINE_MEMBER void open_track()
    {
        if (threadIdx.x == 128)
            tile_track_open(track(), launch);
    }

    ENGINE_MEMBER void close_track()
    {
        if (threadIdx.x == 128)
            tile_track_close(track(), launch);
    }

    ENGINE_MEMBER void begin(uint32_t, const struct mk_tile *)
    {
        if (threadIdx.x == 128)
            tile_track_start(track());
    }

    ENGINE_MEMBER void after(uint32_t, const struct mk_tile *tile, uint32_t)
    {
        if (threadIdx.x == 128)
            tile_track_note(track(), launch, tile->id);
    }
};

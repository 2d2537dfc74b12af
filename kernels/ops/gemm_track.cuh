/* A tile source of the GEMM engine that notes when each tile was computed. */
#ifndef MK_KERNELS_GEMM_TRACK_CUH
#define MK_KERNELS_GEMM_TRACK_CUH

#include "kernels/hopper/gemm.cuh"
#include "kernels/tile_track.cuh"

struct tracked_source : gemm_source {
    const struct gpu_launch *launch;
    struct tile_track track;

    GEMM_MEMBER void begin(uint32_t, const struct mk_tile *)
    {
        tile_track_start(&track);
    }

    GEMM_MEMBER void after(uint32_t, const struct mk_tile *tile, uint32_t)
    {
        tile_track_note(&track, launch, tile->id);
    }
};

#endif

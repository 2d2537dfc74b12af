/* When each tile was computed: the second track of a compute block, which the first thread of the
 * first consumer warpgroup writes. What a consumer keeps here costs registers beside the
 * accumulators: so only the count is kept, and half a clock. */
#ifndef MK_KERNELS_GEMM_TRACK_CUH
#define MK_KERNELS_GEMM_TRACK_CUH

#include "kernels/cta.cuh"
#include "kernels/gemm.cuh"

#define GEMM_TRACK_NONE UINT32_MAX /* `noted`: this thread has no track */

PTX_FN struct mk_track *gemm_track(const struct gpu_launch *launch)
{
    return &launch->tracks[blockIdx.x * GPU_TRACK_WARPS + 1];
}

/* Every thread of the block, before the engine. Returns `noted`. */
PTX_FN uint32_t gemm_track_begin(const struct gpu_launch *launch)
{
    uint32_t noted = GEMM_TRACK_NONE;
    if (launch->tracks && threadIdx.x == 128) { /* the first consumer */
        struct mk_track *track = gemm_track(launch);
        uint64_t now = ptx_globaltimer(), epoch = *(volatile uint64_t *)launch->epoch + 1;
        mk_track_add(track, mk_event_what(MK_EV_LAUNCH, launch->plan & 15, epoch), now, now);
        noted = track->count;
    }
    return noted;
}

/* A tile source that notes when each tile was computed. */
struct tracked_source : gemm_source {
    const struct gpu_launch *launch;
    uint32_t noted; /* events so far, those for which there was no room too */
    uint32_t start; /* low half of the clock when the tile's math began */

    GEMM_MEMBER void begin(uint32_t, const struct mk_tile *)
    {
        if (noted != GEMM_TRACK_NONE)
            start = (uint32_t)ptx_globaltimer();
    }

    /* The tile's stores are under way. */
    GEMM_MEMBER void after(uint32_t, const struct mk_tile *tile, uint32_t)
    {
        if (noted == GEMM_TRACK_NONE)
            return;
        const struct mk_track *track = gemm_track(launch);
        if (noted < track->capacity) {
            struct mk_event *e = &track->events[noted];
            uint64_t now = ptx_globaltimer();
            e->ns = (uint32_t)now - start;
            e->start = now - e->ns;
            e->what = mk_event_what(MK_EV_TILE, MK_CAUSE_NONE, tile->id);
        }
        noted++;
    }
};

/* Every thread, after the engine. */
PTX_FN void gemm_track_end(const struct gpu_launch *launch, uint32_t noted)
{
    if (noted != GEMM_TRACK_NONE) {
        struct mk_track *track = gemm_track(launch);
        track->count = noted < track->capacity ? noted : track->capacity;
        track->dropped += noted - track->count;
    }
}

#endif

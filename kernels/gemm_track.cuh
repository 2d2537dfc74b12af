/* When each tile was computed: the second track of a compute block, which the first thread of the
 * first consumer warpgroup writes. */
#ifndef MK_KERNELS_GEMM_TRACK_CUH
#define MK_KERNELS_GEMM_TRACK_CUH

#include "kernels/cta.cuh"
#include "kernels/gemm.cuh"

PTX_FN struct mk_track *gemm_track(const struct gpu_launch *launch)
{
    return &launch->tracks[blockIdx.x * GPU_TRACK_WARPS + 1];
}

/* Of the thread that notes. In shared memory, since a register of one is a register of all. */
struct gemm_noted {
    uint32_t count; /* events so far, those for which there was no room too; UINT32_MAX: there is no track */
    uint32_t start; /* low half of the clock when the tile's math began */
};
PTX_SHARED(struct gemm_noted, gemm_noted_here, 1);

/* The first consumer's first thread notes, where there are tracks. */
PTX_FN bool gemm_notes(void)
{
    return threadIdx.x == 128 && gemm_noted_here->count != UINT32_MAX;
}

/* Every thread of the block, before the engine. */
PTX_FN void gemm_track_begin(const struct gpu_launch *launch)
{
    if (threadIdx.x != 128)
        return;
    gemm_noted_here->count = UINT32_MAX;
    if (launch->tracks) {
        struct mk_track *track = gemm_track(launch);
        uint64_t now = ptx_globaltimer(), epoch = *(volatile uint64_t *)launch->epoch + 1;
        mk_track_add(track, mk_event_what(MK_EV_LAUNCH, launch->plan & 15, epoch), now, now);
        gemm_noted_here->count = track->count;
    }
}

/* A tile source that notes when each tile was computed. */
struct tracked_source : gemm_source {
    const struct gpu_launch *launch;

    GEMM_MEMBER void begin(uint32_t, const struct mk_tile *)
    {
        if (gemm_notes())
            gemm_noted_here->start = (uint32_t)ptx_globaltimer();
    }

    /* The tile's stores are under way. */
    GEMM_MEMBER void after(uint32_t, const struct mk_tile *tile, uint32_t)
    {
        if (!gemm_notes())
            return;
        const struct mk_track *track = gemm_track(MK_FRESH(launch));
        if (gemm_noted_here->count < track->capacity) {
            struct mk_event *e = &track->events[gemm_noted_here->count];
            uint64_t now = ptx_globaltimer();
            e->ns = (uint32_t)now - gemm_noted_here->start;
            e->start = now - e->ns;
            e->what = mk_event_what(MK_EV_TILE, MK_CAUSE_NONE, tile->id);
        }
        gemm_noted_here->count++;
    }
};

/* Every thread, after the engine. */
PTX_FN void gemm_track_end(const struct gpu_launch *launch)
{
    if (gemm_notes()) {
        struct mk_track *track = gemm_track(launch);
        uint32_t count = gemm_noted_here->count;
        track->count = count < track->capacity ? count : track->capacity;
        track->dropped += count - track->count;
    }
}

#endif

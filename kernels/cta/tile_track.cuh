/* When each tile was computed: the second track of a compute block, which the first thread of the
 * first consumer warpgroup writes. What a consumer keeps here costs registers beside the
 * accumulators: so only the count is kept, and half a clock. */
#pragma once

#include "kernels/cta/cta.cuh"

#define TILE_TRACK_NONE UINT32_MAX /* `noted`: this thread has no track */

/* Every thread's; only one has a track. */
struct tile_track {
    uint32_t noted; /* events so far, those for which there was no room too */
    uint32_t start; /* low half of the clock when the tile's math began */
};

/* The number of a block's. */
PTX_FN uint32_t tile_track_of(uint32_t block, uint32_t which = GPU_TRACK_TILES)
{
    return block * GPU_TRACK_WARPS + which;
}

/* Every thread of the block, before the engine. consumer: the first. number: its track's. */
PTX_FN void tile_track_open(struct tile_track *t, const struct gpu_launch *launch,
                            uint32_t consumer = 128, uint32_t number = tile_track_of(blockIdx.x))
{
    t->noted = TILE_TRACK_NONE;
    if (launch->tracks && threadIdx.x == consumer) {
        struct mk_track *track = &launch->tracks[number];
        uint64_t now = ptx_globaltimer();
        mk_track_add(track, mk_event_what(MK_EV_LAUNCH, launch->plan & 15, cta_epoch(launch)), now,
                     now);
        t->noted = track->count;
    }
}

/* The tile's math begins. */
PTX_FN void tile_track_start(struct tile_track *t)
{
    if (t->noted != TILE_TRACK_NONE)
        t->start = (uint32_t)ptx_globaltimer();
}

/* The tile's stores are under way. */
PTX_FN void tile_track_note(struct tile_track *t, const struct gpu_launch *launch, uint32_t id,
                            uint32_t number = tile_track_of(blockIdx.x))
{
    if (t->noted == TILE_TRACK_NONE)
        return;
    const struct mk_track *track = &launch->tracks[number];
    if (t->noted < track->capacity) {
        struct mk_event *e = &track->events[t->noted];
        uint64_t now = ptx_globaltimer();
        e->ns = (uint32_t)now - t->start;
        e->start = now - e->ns;
        e->what = mk_event_what(MK_EV_TILE, MK_CAUSE_NONE, id);
    }
    t->noted++;
}

/* Every thread, after the engine. */
PTX_FN void tile_track_close(const struct tile_track *t, const struct gpu_launch *launch,
                             uint32_t number = tile_track_of(blockIdx.x))
{
    if (t->noted != TILE_TRACK_NONE) {
        struct mk_track *track = &launch->tracks[number];
        track->count = t->noted < track->capacity ? t->noted : track->capacity;
        track->dropped += t->noted - track->count;
    }
}

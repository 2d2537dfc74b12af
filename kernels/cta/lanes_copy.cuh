/* A copy by the lanes of a warp or of a thread block, with plain 16-byte loads and stores, at a
 * pace.
 *
 * Beside the GEMM engine the pace matters: what NVLink does not take yet would stand in the SM's
 * way to memory before the loads of the GEMM. */
#pragma once

#include "kernels/engine/ptx.cuh"

/* A lane's walk over the 16-byte pieces of some rows, every `lanes`-th of them. */
struct lanes_walk {
    uint32_t left, piece, pieces; /* steps to go; in the row; of a row */
    uint32_t step_piece;          /* a step goes so far in a row, */
    uint64_t step, wrap;          /* so many bytes, and so many more where it leaves the row */
    char *at;
};

PTX_FN struct lanes_walk lanes_walk_begin(uint32_t lane, uint32_t lanes, char *base, uint64_t pitch,
                                          uint32_t rows, uint32_t pieces)
{
    uint32_t row = lane / pieces, all = rows * pieces;
    struct lanes_walk w;
    w.left = all > lane ? (all - lane + lanes - 1) / lanes : 0;
    w.pieces = pieces;
    w.piece = lane - row * pieces;
    w.step_piece = lanes % pieces;
    w.step = lanes / pieces * pitch + w.step_piece * 16;
    w.wrap = pitch - (uint64_t)pieces * 16;
    w.at = base + row * pitch + w.piece * 16;
    return w;
}

PTX_FN void lanes_walk_step(struct lanes_walk *w)
{
    w->left--;
    w->at += w->step;
    w->piece += w->step_piece;
    if (w->piece >= w->pieces) {
        w->piece -= w->pieces;
        w->at += w->wrap;
    }
}

/* Waits until `due`, and sets it to when the next step may begin. A warp that is more than `behind`
 * steps late does not make up for it. */
template <uint32_t behind> PTX_FN void lanes_keep_pace(uint32_t *due, uint32_t pace)
{
    uint32_t now;
    while ((int32_t)((now = (uint32_t)ptx_globaltimer()) - *due) < 0)
        ;
    *due = (now - *due > behind * pace ? now : *due) + pace;
}

/* The same for a warp whose steps are microseconds apart: it sleeps, and leaves the SM's issue
 * slots to others. */
template <uint32_t behind> PTX_FN void lanes_sleep_to_pace(uint32_t *due, uint32_t pace)
{
    uint32_t now;
    for (int32_t left; (left = (int32_t)(*due - (now = (uint32_t)ptx_globaltimer()))) > 0;)
        __nanosleep(left);
    *due = (now - *due > behind * pace ? now : *due) + pace;
}

/* Copies `rows` rows of `pieces` x 16 bytes; pitches in bytes. All lanes call, 0 .. lanes - 1, and
 * order with others is theirs. Loads run `ahead` steps of 16 bytes a lane ahead of the stores: four
 * registers each. A step takes `pace` ns at least, unless that is MK_PACE_NONE. */
template <uint32_t ahead, uint32_t behind>
PTX_FN void lanes_copy_rows(uint32_t lane, uint32_t lanes, const char *source,
                            uint64_t source_pitch, char *destination, uint64_t destination_pitch,
                            uint32_t rows, uint32_t pieces, uint32_t pace)
{
    if (source_pitch == pieces * 16 && destination_pitch == source_pitch) { /* nothing to wrap */
        pieces *= rows;
        rows = rows > 0;
    }
    if (!pieces || !rows)
        return;
    struct lanes_walk from =
        lanes_walk_begin(lane, lanes, (char *)source, source_pitch, rows, pieces);
    struct lanes_walk to =
        lanes_walk_begin(lane, lanes, destination, destination_pitch, rows, pieces);
    uint32_t due = pace != MK_PACE_NONE ? (uint32_t)ptx_globaltimer() : 0;
    uint4 v[ahead];
#pragma unroll
    for (uint32_t i = 0; i < ahead; i++)
        if (from.left) {
            v[i] = ptx_load_16_l2(from.at);
            lanes_walk_step(&from);
        }
    while (to.left) {
#pragma unroll
        for (uint32_t i = 0; i < ahead; i++) {
            if (!to.left)
                break;
            if (pace != MK_PACE_NONE)
                lanes_keep_pace<behind>(&due, pace);
            *(uint4 *)to.at = v[i];
            lanes_walk_step(&to);
            if (from.left) {
                v[i] = ptx_load_16_l2(from.at);
                lanes_walk_step(&from);
            }
        }
    }
}

/* The same of rows that follow each other at the destination, of at most `lanes` pieces: a lane
 * stays at its place in a row, and keeps few registers. `ahead` steps are stored at once when their
 * time has come; a quarter is loaded anew as soon as it has been, so that loads are under way while
 * the rest is stored and while the lane waits for its time. */
template <uint32_t ahead, uint32_t behind>
PTX_FN void lanes_copy_packed(uint32_t lane, uint32_t lanes, const char *source, uint64_t pitch,
                              char *destination, uint32_t rows, uint32_t pieces, uint32_t pace)
{
    constexpr uint32_t quarter = ahead / 4;
    uint32_t step = lanes / pieces, row = lane / pieces,
             due = pace != MK_PACE_NONE ? (uint32_t)ptx_globaltimer() : 0;
    const char *from = source + row * pitch + lane % pieces * 16;
    char *to = destination + lane * 16ull;
    uint4 v[ahead];
    if (row >= step) /* a lane too many */
        return;
#pragma unroll
    for (uint32_t i = 0; i < ahead; i++)
        if (row + i * step < rows) {
            v[i] = ptx_load_16_l2(from);
            from += step * pitch;
        }
    for (; row < rows; row += ahead * step) {
        if (pace != MK_PACE_NONE)
            lanes_sleep_to_pace<behind>(&due, ahead * pace);
#pragma unroll
        for (uint32_t first = 0; first < ahead; first += quarter) {
#pragma unroll
            for (uint32_t i = first; i < first + quarter; i++)
                if (row + i * step < rows) {
                    *(uint4 *)to = v[i];
                    to += step * pieces * 16;
                }
#pragma unroll
            for (uint32_t i = first; i < first + quarter; i++)
                if (row + (ahead + i) * step < rows) {
                    v[i] = ptx_load_16_l2(from);
                    from += step * pitch;
                }
        }
    }
}

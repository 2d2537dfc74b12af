/* Values that are not finite, of keys that some query of a tile does not see: such a query's weight
 * is 0, and 0 times NaN or infinity is NaN. So where a mask or a run's end cuts a block, its V is
 * looked through before it is multiplied; what is not finite becomes 0 in shared memory, and which
 * rows see it is noted: it is added to their O at the end. A row that does not see it has the
 * bits that it has over any other V.
 *
 * Notes: a word for each column of the tile, three times 10 bits: the first row that sees +infinity,
 * -infinity, NaN. Behind them the number of the tile that they are of. All threads that multiply
 * call together. */
#pragma once

#include "kernels/engine/attention_source.cuh"

enum { CLEAN_ROW = 1023 }; /* of a note: no row; and the mask of one */

template <int dim> constexpr uint32_t clean_bytes = dim * 4 + 8;

PTX_FN uint32_t clean_not_finite(uint4 v)
{
    const uint32_t of[4] = {v.x, v.y, v.z, v.w};
    uint32_t any = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) /* an exponent of ones carries */
        any |= (of[i] & 0x7f807f80) + 0x00800080;
    return any & 0x80008000;
}

/* What a column's note becomes where row `row` and those below it see `bits`, bf16. */
PTX_FN uint32_t clean_note(uint32_t note, uint32_t bits, uint32_t row)
{
    const uint32_t shift = bits & 0x7f ? 20 : bits >> 15 ? 10 : 0;
    return row < (note >> shift & CLEAN_ROW) ? (note & ~(CLEAN_ROW << shift)) | row << shift : note;
}

/* Cleans the block at `values` and notes. tile: its number. keys: of the block, that any row sees.
 * row: of the tile, the first that sees the block's first key, or as many rows before the tile's.
 * thread: of `at`.threads. The caller has met at `at`. */
template <class shape>
PTX_FN void clean_block(uint32_t values, uint32_t notes, int32_t tile, int32_t keys, int32_t row,
                        uint32_t thread, struct named_barrier at)
{
    const bool noted = (int32_t)ptx_load_shared(notes + shape::dim * 4) == tile;
    ptx_bar_sync(at);
    for (uint32_t pair = thread; pair < shape::dim / 2; pair += at.threads) {
        uint32_t note[2] = {0x3fffffff, 0x3fffffff};
        for (int half = 0; noted && half < 2; half++)
            note[half] = ptx_load_shared(notes + pair * 8 + half * 4);
#pragma unroll 1
        for (int32_t key = 0; key < shape::keys; key++) {
            const uint32_t place = values + shape::value_pair(key, pair),
                           v = ptx_load_shared(place),
                           first = (uint32_t)min(max(row + key, 0), (int32_t)CLEAN_ROW);
            uint32_t clean = v;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t bits = v >> half * 16 & 0xffff;
                if ((bits & 0x7f80) != 0x7f80)
                    continue;
                clean &= 0xffff0000u >> half * 16;
                if (key < keys)
                    note[half] = clean_note(note[half], bits, first);
            }
            if (clean != v)
                ptx_store_shared(place, clean);
        }
        for (int half = 0; half < 2; half++)
            ptx_store_shared(notes + pair * 8 + half * 4, note[half]);
    }
    if (thread == 0)
        ptx_store_shared(notes + shape::dim * 4, (uint32_t)tile);
    if constexpr (shape::async_proxy)
        ptx_fence_async_shared();
    ptx_bar_sync(at);
}

PTX_FN bool clean_noted(uint32_t notes, int dim, int32_t tile)
{
    return (int32_t)ptx_load_shared(notes + dim * 4) == tile;
}

/* What row `row` sees of a column with this note. */
PTX_FN float clean_seen(uint32_t note, uint32_t row)
{
    const float above = row >= (note & CLEAN_ROW) ? INFINITY : -0.0f, /* to it adds nothing */
        below = row >= (note >> 10 & CLEAN_ROW) ? -INFINITY : -0.0f,
                none = row >= note >> 20 ? NAN : -0.0f;
    return above + below + none;
}

/* Adds to 64 rows of O in shared memory, bf16, what they see: to add infinity or NaN behind the
 * rounding gives the same bits as before it. first: the tile's row that is the first of them.
 * thread: of the 128 that call. */
template <class shape>
PTX_FN void clean_add_seen(uint32_t rows, uint32_t notes, uint32_t first, uint32_t thread)
{
    for (uint32_t pair = thread; pair < shape::dim / 2; pair += 128) {
        const uint32_t low = ptx_load_shared(notes + pair * 8),
                       high = ptx_load_shared(notes + pair * 8 + 4);
#pragma unroll 1
        for (uint32_t row = 0; row < 64; row++) {
            const uint32_t place = rows + shape::output_pair(row, pair), o = ptx_load_shared(place);
            ptx_store_shared(
                place,
                ptx_pack_bf16(__uint_as_float(o << 16) + clean_seen(low, first + row),
                              __uint_as_float(o & 0xffff0000) + clean_seen(high, first + row)));
        }
    }
}

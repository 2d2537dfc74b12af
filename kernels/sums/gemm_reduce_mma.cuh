/* GEMM+ReduceScatter and GEMM+AllReduce on engine mma, for every GPU of compute
 * capability 8.0 and up: the schedules of core/roles/gemm_rs.h and gemm_ar.h, as
 * kernels/sums/gemm_reduce.cuh runs them on the other engine, with the same sums in the same places
 * of memory. What is simpler here: consumers store what a peer adds in that peer's memory
 * themselves, and load what they add when it has come, so no tile passes an outbox, and the tensor
 * cores wait for NVLink.
 *
 * In one shot consumers send their sums to the ranks that want them, tell these, wait for theirs
 * and add them (kernels/sums/joint.cuh), tile by tile.
 *
 * In two, where the sum goes to all, consumers store own tiles in C and go on; warps that the engine leaves
 * free push them from there. The consumers of a warpgroup may be REDUCE_AHEAD own tiles ahead.
 *
 * What all need to know of a tile takes some forty integer divisions: 4 us, in which a consumer's warp would
 * multiply nothing. So the producer leaves it in shared memory, up to REDUCE_WORKS tiles ahead: by TMA a thread
 * of its second warp, which copies nothing then, else the first before it copies. */
#pragma once

#include "kernels/sums/gemm_reduce_roles.cuh"
#include "kernels/sums/joint_tree.cuh"

#include "kernels/engine/fragments.cuh"
#include "kernels/mma/gemm_promote.cuh"
#include "kernels/mma/gemm_tree.cuh"
#include "kernels/mma/launch.cuh"

/* Own tiles that have been stored and not yet pushed; tiles that are described. */
enum { REDUCE_AHEAD = 8, REDUCE_WORKS = 4 };

/* What consumers do with a tile. */
struct reduce_work {
    struct mk_tile tile;
    uint32_t kind; /* enum gemm_rs_kind */
    uint32_t runs; /* of a group of rows, in fragments (kernels/engine/fragments.cuh) */
    struct gemm_rs_terms terms[GEMM_RS_LEVELS];
    uint64_t
        to; /* where it goes, if not to C, in the heap of who adds it, as kernels/sums/joint.cuh
                  * has it in one shot */
    uint64_t epoch;
};

struct reduce_works {
    struct reduce_work of[REDUCE_WORKS];
    uint64_t ring[2 * REDUCE_WORKS]; /* it says what it should; both warpgroups are done with it */
};
PTX_SHARED(struct reduce_works, reduce_works, 1);

/* Of each consumer warpgroup. In shared memory: consumers have no registers for it. */
struct reduce_half {
    struct mk_cta cta; /* the first thread's, which waits and announces */
    int ending;
    /* A ring without bytes: its rows of an own tile are in C; they have been pushed. */
    uint64_t stored[2 * REDUCE_AHEAD];
    struct pipeline_position at; /* the first thread's */
};
PTX_SHARED(struct reduce_half, reduce_halves, 2);

template <class op> struct reduce_mma_source : reduce_tiles<mma_engine, op, mma_op_source> {
    typedef reduce_tiles<mma_engine, op, mma_op_source> tiles;
    using tiles::launch;
    using tiles::operands;
    using tiles::plan;
    using tiles::reduction;

    static constexpr bool announces = true;
    static constexpr struct warp_meeting producer_at = {MBAR_SET(MBAR_WORK)},
                                         consumer_at[2] = {reduce_consumer_at[0],
                                                           reduce_consumer_at[1]};
    static constexpr struct warp_role chosen_roles[2] = {
        reduce_describer_role,
        {ENGINE_SENDER,
         WARP_CHOSEN,
         1,
         0,
         {MBAR_SET(MBAR_STORED) | MBAR_SET(MBAR_STORED_SECOND),
          MBAR_SET(MBAR_SENT) | MBAR_SET(MBAR_SENT_SECOND)}}};
    template <int number>
    static constexpr int loads = number == MK_FP24 ? 1 : 2; /* of others' sums, under way */

    uint32_t halves; /* warpgroups that multiply */
    bool bulk;       /* tiles come by TMA */

    /* Calls `call` with the kind of sums that go from rank to rank, enum mk_dtype, as a constant: one
     * kernel has both, since all else that it has, nine tenths, is the same. */
    template <class function> ENGINE_MEMBER void as_sent(function call) const
    {
        if (op::tree || reduction()->number == MK_FP24)
            call(std::integral_constant<int, MK_FP24>());
        else if constexpr (!op::tree)
            call(std::integral_constant<int, op::element>());
    }

    ENGINE_MEMBER uint32_t number_of(uint32_t i) const
    {
        return blockIdx.x + i * reduction()->batch;
    }

    /* Whether own tiles go to other ranks. */
    ENGINE_MEMBER bool pushes() const
    {
        return op::gathers && reduction()->gathers && reduction()->shots == 2;
    }

    ENGINE_MEMBER uint32_t stored(uint32_t half) const
    {
        return ptx_shared(reduce_halves[half].stored);
    }

    ENGINE_MEMBER struct reduce_work *work(uint32_t i) const
    {
        return &reduce_works->of[i % REDUCE_WORKS];
    }

    /* One thread. */
    ENGINE_MEMBER void wait_work(const struct pipeline_position *at) const
    {
        ring_wait(pipeline_full<REDUCE_WORKS>(ptx_shared(reduce_works->ring), at->stage), at->phase,
                  operands->limit_ns);
    }

    /* Consumers are told only whether there is one. The producer takes the first as it is, so that its
     * loads need not wait. */
    ENGINE_MEMBER bool next(uint32_t i, struct mk_tile *tile) const
    {
        const struct gemm_rs_plan *p = reduction();
        if (number_of(i) >= p->tiles)
            return false;
        if (threadIdx.x < halves * 128)
            return true;
        if (bulk && i > 0) {
            const struct pipeline_position at = pipeline_at<REDUCE_WORKS>(i);
            wait_work(&at);
            *tile = work(i)->tile;
        } else {
            gemm_rs_tile(p, number_of(i), tile);
        }
        if (!bulk && threadIdx.x == halves * 128)
            describe(i, tile);
        tile->row += tile->a_slab * p->shard_rows; /* rows as A has them, which ends with row M */
        tile->a_slab = 0;
        return true;
    }

    /* By TMA: one thread. */
    ENGINE_MEMBER void beside_bulk() const
    {
        struct mk_tile tile;
        for (uint32_t i = 0; number_of(i) < reduction()->tiles; i++) {
            gemm_rs_tile(reduction(), number_of(i), &tile);
            describe(i, &tile);
        }
    }

    /* Says what there is to say of tile i. */
    ENGINE_MEMBER void describe(uint32_t i, const struct mk_tile *tile) const
    {
        const struct gemm_rs_plan *p = reduction();
        struct reduce_work *w = work(i);
        const struct pipeline_position at = pipeline_at<REDUCE_WORKS>(i);
        const uint64_t epoch = reduce_halves[0].cta.epoch;
        const enum gemm_rs_kind kind = gemm_rs_kind_of(p, tile);
        ring_wait_empty<REDUCE_WORKS>(ptx_shared(reduce_works->ring), &at, &operands->watch, i,
                                      GPU_BARRIER_EMPTY);
        w->tile = *tile;
        w->kind = kind;
        w->runs = gemm_rs_grained_cols(p, tile->cols) / p->grain_cols;
        w->epoch = epoch;
        if (kind == GEMM_RS_JOINT)
            w->to = gemm_rs_joint_offset(p, tile, epoch);
        else if (kind != GEMM_RS_OWN)
            w->to = gemm_rs_tile_offset(p, tile, epoch);
        if (kind == GEMM_RS_OWN || kind == GEMM_RS_SUM)
#pragma unroll 1
            for (uint32_t level = 0; level < GEMM_RS_LEVELS; level++)
                w->terms[level] = gemm_rs_level(p, tile, level, epoch);
        if (kind == GEMM_RS_JOINT) { /* what joint_add leaves; of a tree all */
            const uint32_t before = op::tree ? 0 : joint_before(p);
            w->terms[0].source = w->to + before * p->slab_pitch;
            w->terms[0].count = p->topo.gpus - 1 - before;
            w->terms[1].source = w->terms[1].count = 0;
            if (op::tree) {
                w->terms[0].place = p->topo.rank;
                w->terms[1].place = 0;
            }
        }
        ptx_mbar_arrive(pipeline_full<REDUCE_WORKS>(ptx_shared(reduce_works->ring), at.stage));
    }

    ENGINE_MEMBER void begin(uint32_t i, const struct mk_tile *tile)
    {
        const struct pipeline_position at = pipeline_at<REDUCE_WORKS>(i);
        wait_work(&at);
        mma_op_source::begin(i, tile);
    }

    /* Consumers learn which tile it is from who describes it. */
    ENGINE_MEMBER struct engine_scales scales(uint32_t i, const struct mk_tile *,
                                              uint32_t row) const
    {
        ptx_bar_sync(named_warpgroup(threadIdx.x / 128)); /* by TMA it may land before that */
        const struct mk_tile *tile = &work(i)->tile;
        return tiles::scales_from(launch, tile->a_slab * reduction()->shard_rows + tile->row + row,
                                  tile->col);
    }

    /* Behind `scales`, for which the tile is described. */
    ENGINE_MEMBER struct column_scales columns(uint32_t i, const struct mk_tile *) const
    {
        return tiles::columns_from(launch, work(i)->tile.col);
    }

    ENGINE_MEMBER struct engine_place place(uint32_t i, const struct mk_tile *, uint32_t row) const
    {
        return tiles::place_of(&work(i)->tile, row);
    }

    /* What the calling warp has of a tile. */
    template <class shape> static ENGINE_MEMBER struct joint_part part_of(void)
    {
        return {shape::row(threadIdx.x / 32, 0), shape::row(0, 1),
                shape::column(threadIdx.x / 32) / FRAGMENT_COLUMNS};
    }

    /* Two shots: waits for what others have of the tile. */
    ENGINE_MEMBER void await(const struct reduce_work *w, struct reduce_half *mine, uint32_t half)
    {
        if (threadIdx.x % 128 == 0 && !mine->ending)
            mine->ending = gemm_rs_before(reduction(), &mine->cta, &w->tile);
        ptx_bar_sync(named_warpgroup(half)); /* what it has acquired, all load */
    }

    /* One shot: others get what this rank has of the tile, and what they have has come. Added of it
     * is all but what is behind this rank's own, in rank order; of a tree nothing. */
    template <class shape>
    ENGINE_MEMBER void exchange(float (&sum)[shape::blocks][shape::sums],
                                const struct reduce_work *w, struct reduce_half *mine,
                                uint32_t half)
    {
        const struct joint_part part = part_of<shape>();
        as_sent([&](auto sent) {
            constexpr int number = decltype(sent)::value;
            joint_round<op, number>(sum, true);
            joint_send<op, number>(plan, launch, w, sum, part);
        });
        ptx_bar_sync(named_warpgroup(half)); /* all have stored what is told of */
        if (threadIdx.x % 128 == 0) {
            const struct gemm_rs_plan *p = reduction();
            gemm_rs_announce(p, &mine->cta, &w->tile, MK_TILE_PARTS / halves);
            if (!mine->ending)
                mine->ending = gemm_rs_await(p, &mine->cta, &w->tile);
        }
        ptx_bar_sync(named_warpgroup(half));
        if constexpr (!op::tree)
            as_sent([&](auto sent) {
                joint_add<op, decltype(sent)::value, false>(plan, launch, w, sum, part);
            });
    }

    /* Whether something is added to the 16 rows from `row` of the tile on. */
    ENGINE_MEMBER bool adds(const struct reduce_work *w, uint32_t row) const
    {
        return row < w->tile.rows &&
               (op::gathers || w->kind != GEMM_RS_JOINT ||
                joint_wanted(reduction(), &w->tile, reduction()->topo.rank, row));
    }

    /* Of sums in a tree: level by level, each rank's or node's a leaf at its own place. */
    template <class shape>
    ENGINE_MEMBER void add_in_tree(float (&sum)[shape::blocks][shape::sums],
                                   const struct reduce_work *w)
    {
        const struct joint_part part = part_of<shape>();
        if (adds(w, part.row))
#pragma unroll 1
            for (uint32_t level = 0; level < GEMM_RS_LEVELS; level++) {
                const struct gemm_rs_terms *t = &w->terms[level];
                const struct tree_leaves<struct fragment_lane> others = {
                    launch->heap + t->source + part.offset<MK_FP24>(0, w->runs),
                        reduction()->slab_pitch, t->place,
                    {
                    }
                };
                tree_join<1>(sum[0], others, t->count + 1, part.runs(w->runs));
            }
    }

    /* Adds the tile's terms, which are here. */
    template <class shape, int number>
    ENGINE_MEMBER void add(float (&sum)[shape::blocks][shape::sums], const struct reduce_work *w)
    {
        const struct joint_part part = part_of<shape>();
#pragma unroll 1
        for (uint32_t level = 0; level < GEMM_RS_LEVELS; level++)
#pragma unroll
            for (int m = 0; m < shape::blocks; m++) {
                if (adds(w, part.row + m * part.apart))
                    fragments_add_behind<number, loads<number>>(
                        sum[m],
                        launch->heap + w->terms[level].source + part.offset<number>(m, w->runs),
                        reduction()->slab_pitch, w->terms[level].count, part.runs(w->runs));
            }
    }

    template <class shape>
    ENGINE_MEMBER bool store_sums(uint32_t i, float (&sum)[shape::blocks][shape::sums],
                                  uint32_t half, uint32_t)
    {
        struct reduce_half *mine = &reduce_halves[half];
        const struct reduce_work *w = work(i);
        const struct joint_part part = part_of<shape>();
        ptx_bar_sync(named_warpgroup(half)); /* the tile is described */
        if (w->kind == GEMM_RS_JOINT)
            exchange<shape>(sum, w, mine, half);
        else if (w->kind != GEMM_RS_PARTIAL)
            await(w, mine, half);
        if (w->kind != GEMM_RS_PARTIAL) {
            if constexpr (op::tree)
                add_in_tree<shape>(sum, w);
            else
                as_sent([&](auto sent) { add<shape, decltype(sent)::value>(sum, w); });
        }
        if (w->kind == GEMM_RS_OWN)
            return false;
        if (w->kind == GEMM_RS_JOINT)
            return !op::gathers && joint_store_own<op>(plan, launch, w, sum, part);
        char *const to =
            (w->kind == GEMM_RS_SUM ? launch->heap : launch->peers[w->tile.c_local]) + w->to;
        as_sent([&](auto sent) {
            constexpr int number = decltype(sent)::value;
#pragma unroll
            for (int m = 0; m < shape::blocks; m++)
                if (part.row + m * part.apart < w->tile.rows)
                    fragments_store<number>(to + part.offset<number>(m, w->runs), sum[m],
                                            part.runs(w->runs));
        });
        return true;
    }

    ENGINE_MEMBER void after(uint32_t i, const struct mk_tile *, uint32_t half)
    {
        struct reduce_half *mine = &reduce_halves[half];
        const struct reduce_work *w = work(i);
        if (w->kind == GEMM_RS_OWN && pushes()) {
            /* a place is free, mostly; looked at here, so that the line tells it from the engine's */
            if (!mma_mbar_try(pipeline_empty<REDUCE_AHEAD>(stored(half), mine->at.stage),
                              mbar_phase_before(mine->at.phase)))
                ring_wait_empty<REDUCE_AHEAD>(stored(half), &mine->at, &operands->watch, i,
                                              GPU_BARRIER_THERE);
            ptx_mbar_arrive(pipeline_full<REDUCE_AHEAD>(stored(half), mine->at.stage));
            pipeline_step<REDUCE_AHEAD>(&mine->at);
        } else {
            gemm_rs_after(reduction(), &mine->cta, &w->tile, MK_TILE_PARTS / halves);
        }
        mma_op_source::after(i, &w->tile, half);
        ptx_mbar_arrive(
            pipeline_empty<REDUCE_WORKS>(ptx_shared(reduce_works->ring), i % REDUCE_WORKS));
    }

    /* Pushes own tiles of this CTA, one after the other: a warp. Of two (`senders`) each has the
     * rows of one warpgroup. */
    ENGINE_MEMBER void push_tiles(struct mk_cta *own, uint32_t sender, uint32_t senders) const
    {
        struct pipeline_position at = {};
        for (uint32_t i = 0; number_of(i) < reduction()->tiles; i++) {
            const struct gemm_rs_plan *p = reduction();
            struct mk_tile tile;
            gemm_rs_tile(p, number_of(i), &tile);
            if (gemm_rs_kind_of(p, &tile) != GEMM_RS_OWN)
                continue;
            /* behind the CTA's last tile nobody's loads stand in line */
            own->pace =
                number_of(i + 1) < p->tiles ? mk_pace_of_each(p->pace, senders) : MK_PACE_NONE;
            for (uint32_t half = sender; half < halves; half += senders) {
                const uint32_t part = p->tile_m / halves, first = half * part,
                               left = first < tile.rows ? tile.rows - first : 0;
                ring_wait_full<REDUCE_AHEAD>(stored(half), &at, operands->limit_ns);
                op::after(plan, own, &tile, first, left < part ? left : part,
                          MK_TILE_PARTS / halves);
                if (cta_leads(own)) /* announced: all have read */
                    ptx_mbar_arrive(pipeline_empty<REDUCE_AHEAD>(stored(half), at.stage));
            }
            pipeline_step<REDUCE_AHEAD>(&at);
        }
    }

    ENGINE_MEMBER void auxiliary_warp(uint32_t warp) const
    {
        const struct mk_role_split *split = &launch->split;
        const uint32_t senders = MK_MMA_AUXILIARY_WARPS - split->intra_comm_warps;
        struct mk_cta cta;
        if (!pushes())
            return;
        if (warp >= senders) {
            cta_begin(&cta, launch,
                      gpu_auxiliary_of_block(split, MK_INTRA_COMM, warp - senders, blockIdx.x), 32);
            cta.pace = reduction()->pace;
            op::intra_comm(plan, &cta);
            cta_end(&cta);
            return;
        }
        if (warp) /* of senders the first alone has a track */
            cta_identify(&cta, launch, blockIdx.x, 32);
        else
            cta_begin(&cta, launch, blockIdx.x, 32, GPU_TRACK_SENDER);
        push_tiles(&cta, warp, senders);
        if (!warp)
            cta_end(&cta);
    }
};

/* For kernels/mma/launch.cuh. */
template <class roles> struct reduce_on_mma {
    typedef reduce_unshared<roles> op;
    typedef typename op::plan plan;
    template <class shape> using source = reduce_mma_source<op>;
    typedef struct reduce_views<mma_engine> views;
    static constexpr bool tree = op::tree, gates = false;

    template <class shape>
    static int describe(views *v, struct mma_operands *operands, const plan *whole,
                        const struct gpu_launch *l)
    {
        return reduce_describe<mma_engine, op, shape>(v, operands, whole, l);
    }

    template <class shape>
    static ENGINE_MEMBER void compute(const plan *p, const struct gpu_launch *launch,
                                      const struct mma_operands *operands, const views *v,
                                      uint8_t *memory)
    {
        typedef mma_roles<shape, source<shape>, false> of_warps;
        source<shape> tiles;
        tiles.plan = p;
        tiles.launch = launch;
        tiles.views = v;
        tiles.operands = operands;
        tiles.halves = shape::warps / 4;
        tiles.bulk = mma_bulk<shape, source<shape>>(operands);
        if (threadIdx.x % 128 == 0 && threadIdx.x / 128 < tiles.halves) {
            struct reduce_half *mine = &reduce_halves[threadIdx.x / 128];
            mine->ending = 0;
            mine->at = {};
            const bool second = threadIdx.x >= 128;
            ring_init<REDUCE_AHEAD>(ptx_shared(mine->stored),
                                    second ? of_warps::table.arrivals(MBAR_STORED_SECOND)
                                           : of_warps::table.arrivals(MBAR_STORED),
                                    second ? of_warps::table.arrivals(MBAR_SENT_SECOND)
                                           : of_warps::table.arrivals(MBAR_SENT));
        }
        if (threadIdx.x == 0) {
            ring_init<REDUCE_WORKS>(ptx_shared(reduce_works->ring),
                                    warp_arrivals<of_warps, MBAR_WORK>(),
                                    warp_arrivals<of_warps, MBAR_WORK_READ>());
            cta_begin(&reduce_halves[0].cta, launch, blockIdx.x, 1);
        } else if (threadIdx.x == 128)
            cta_identify(&reduce_halves[1].cta, launch, blockIdx.x, 1);
        tiles.open_track();
        mma_compute<shape>(operands, &tiles, memory);
        tiles.close_track();
        if (threadIdx.x == 0)
            cta_end(&reduce_halves[0].cta);
        reduce_norm<op>(p, launch);
    }

    template <class shape>
    static ENGINE_MEMBER void communicate(const plan *p, const struct gpu_launch *launch, uint8_t *)
    {
        reduce_communicate<op>(p, launch, blockDim.x);
    }
};

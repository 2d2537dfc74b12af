/* What GEMM+ReduceScatter and GEMM+AllReduce have in common on a GPU: a consumer warpgroup adds to
 * the sums in its registers what peers have of its tile, or gives them away to who adds them.
 *
 *   own tile   behind the tile's operands the producer thread waits for the peers' parts and brings
 *              them through the same stages. When the product is whole the consumers add these,
 *              in rank order, and the engine stores C
 *   sum        the same, for another node's owner: stored in this GPU's memory, to be put
 *   partial    goes to the CTA's outbox, a few tiles in this GPU's memory (in L2, mostly). A warp
 *              that the engine leaves free takes it from there to the rank that adds it, by paced
 *              16-byte stores. So the tensor cores wait for NVLink only where the outbox is full,
 *              and no TMA load stands in line behind a store that NVLink does not take yet
 *
 *   joint      of one shot: kernels/ops/joint.cuh and gemm_joint.cuh. Several tiles of a CTA pass the outbox, too
 *
 * The same warp (of two, each has the rows of one consumer) announces what is stored, and pushes
 * own tiles where the sum goes to all. The other warps are free for intra_comm.
 *
 * What all need to know of a tile takes some forty integer divisions: 4 us, in which nothing is
 * multiplied, or nothing sent. So the producer thread works it out while it is a tile ahead, and
 * leaves it in shared memory.
 *
 * What differs is a struct `op` of kernels/ops/gemm_reduce_roles.cuh. */
#pragma once

#include "kernels/column_scales.cuh"
#include "kernels/ops/gemm_reduce_roles.cuh"
#include "kernels/ops/joint_norm.cuh"

#include "kernels/fragments.cuh"
#include "kernels/hopper/gemm_launch.cuh"
#include "kernels/hopper/gemm_tree.cuh"
#include "kernels/tile_track.cuh"

#include "core/pipeline.h"

/* Behind enum gemm_rs_kind: a joint tile that passes the outbox. The consumers go on to the next
 * tile, and add what has come of this one when that one's product is whole, too. And one whose columns ranks share
 * (kernels/ops/gemm_shared.cuh). And a slice of one whose K is cut (kernels/ops/gemm_cut.cuh). */
enum { REDUCE_PASSED = GEMM_RS_JOINT + 1, REDUCE_SHARED, REDUCE_CUT };

/* What consumers and the sending warps do with a tile. */
struct reduce_work {
    struct mk_tile tile;
    uint32_t kind;   /* enum gemm_rs_kind, or REDUCE_PASSED */
    uint32_t runs;   /* of a group of rows, in fragments (kernels/fragments.cuh) */
    uint32_t number; /* among the tiles that pass the sending warps */
    /* of a shared one: the rank whose its first columns are; of a slice its columns, the first << 16
     * | the end */
    uint32_t first;
    uint32_t straight; /* 1: consumers store it where these would take it, who announce it alone */
    struct gemm_rs_terms terms[GEMM_RS_LEVELS];
    uint64_t to; /* where it goes in the heap of this rank (GEMM_RS_SUM) or of the one that adds it,
                  * GEMM_RS_JOINT: in each slab of it, from the first slab on */
    uint64_t epoch;
};

/* Places for what is said of tiles, and how many tiles that may be ahead of who reads it. */
enum { REDUCE_WORKS = 8, REDUCE_AHEAD = REDUCE_WORKS - 2 };

struct reduce_shared {
    /* Of a tile that passes the sending warps, each consumer's rows: they are stored; they have
     * been taken, so that the outbox has room again; of a joint tile: others' have come. */
    uint64_t there[GEMM_RS_OUTBOX][2], taken[GEMM_RS_OUTBOX][2];
    struct reduce_work work[REDUCE_WORKS];
    /* it says what it should; both consumers and all sending warps are done with it */
    uint64_t given[REDUCE_WORKS], read[REDUCE_WORKS];
    struct tile_track track; /* the first consumer's */
    /* The block's number, and its cluster's. The producer reads them here: of the special register, read again and again, ptxas makes
     * spills. */
    uint32_t cta, block;
};
PTX_SHARED(struct reduce_shared, reduce_shared, 1);

/* The warp that works out what the others need to know of a tile, where it has nothing else to do;
 * 0: the producer thread does. */
template <class op>
PTX_FN uint32_t reduce_describer(const struct gpu_launch *launch, const struct gemm_rs_plan *p)
{
    if (!op::gathers) /* no warp has intra_comm */
        return 2;
    return p->shots == 1 || !mk_role_coresident(&launch->split, MK_INTRA_COMM) ? 2 : 0;
}

/* Senders that look at what the producer says of a tile: none where there is no other rank. */
PTX_FN uint32_t reduce_readers(const struct gemm_rs_plan *p, const struct gpu_launch *launch)
{
    return p->shots == 2 && mk_world(&p->topo) == 1 ? 0 : mk_pipeline_senders(&launch->split);
}

/* The same of an operator; slices pass them, too. */
template <class op>
PTX_FN uint32_t reduce_readers_of(const typename op::plan *plan, const struct gpu_launch *launch)
{
    if constexpr (op::cuts)
        return mk_pipeline_senders(&launch->split);
    return reduce_readers(op::tiles(plan), launch);
}

/* Whether the thread has that number. In kernels of a tree, of FP8 and of slices it is asked for
 * anew: neither addresses nor a predicate are kept for what one thread does alone, of which spilled
 * registers would be made. */
template <class op> PTX_FN bool reduce_thread(uint32_t number)
{
    if constexpr (op::tree || op::scaled || op::cuts)
        return ptx_opaque(threadIdx.x) == number;
    return threadIdx.x == number;
}

/* Likewise of the block's number, where B has scales of columns. */
template <class op> PTX_FN uint32_t reduce_block(void)
{
    return op::by_columns ? ptx_opaque(blockIdx.x) : blockIdx.x;
}

/* Likewise of who stores and loads fragments. */
template <class op> PTX_FN auto reduce_lane(void)
{
    if constexpr (op::tree || op::scaled || op::cuts)
        return fragment_lane_anew{ptx_opaque(threadIdx.x)};
    else
        return fragment_lane{};
}

/* One thread, before the CTA's first barrier. senders: reduce_readers. */
template <class op, class source>
PTX_FN void reduce_begin_outbox(uint32_t senders, uint32_t cluster)
{
    typedef gemm_roles<false, source> roles;
    if (op::shared_code) {
        reduce_shared->cta = blockIdx.x;
        reduce_shared->block = cluster == 2 ? blockIdx.x / 2 : blockIdx.x;
    }
    for (uint32_t i = 0; i < GEMM_RS_OUTBOX; i++)
        for (uint32_t half = 0; half < 2; half++) {
            ptx_mbar_init(ptx_shared(&reduce_shared->there[i][half]),
                          half ? warp_arrivals<roles, MBAR_STORED_SECOND>()
                               : warp_arrivals<roles, MBAR_STORED>());
            ptx_mbar_init(ptx_shared(&reduce_shared->taken[i][half]),
                          half ? warp_arrivals<roles, MBAR_SENT_SECOND>()
                               : warp_arrivals<roles, MBAR_SENT>());
        }
    for (uint32_t i = 0; i < REDUCE_WORKS; i++) {
        ptx_mbar_init(ptx_shared(&reduce_shared->given[i]), warp_arrivals<roles, MBAR_WORK>());
        ptx_mbar_init(ptx_shared(&reduce_shared->read[i]),
                      warp_arrivals<roles, MBAR_WORK_READ>(senders));
    }
}

/* How what others have of a tile passes the ring: the rows of one consumer after those of the
 * other, in as few stages each as they fit in; groups of 16 rows are whole. */
template <class shape> struct reduce_parts {
    static constexpr uint32_t group_bytes =
        shape::tile_n / FRAGMENT_COLUMNS * fragment_bytes<shape::number>;
    static constexpr uint32_t groups = 4 * shape::blocks; /* of a consumer */
    static constexpr uint32_t stages =
        (groups * group_bytes + shape::stage_bytes - 1) / shape::stage_bytes;
    static constexpr uint32_t of_stage = groups / stages;
    static_assert(groups % stages == 0 && shape::cluster <= 2, "stages have as many groups each");

    /* Groups of part `part` of what CTA `rank` adds to a tile that has `all`, from *first on. */
    static GEMM_MEMBER uint32_t part(uint32_t all, uint32_t rank, uint32_t part, uint32_t *first)
    {
        *first = rank * 2 * groups + part * of_stage;
        if (*first >= all) {
            *first = 0;
            return 1;
        }
        return all - *first < of_stage ? all - *first : of_stage;
    }
};

/* The tiles of this CTA (or cluster). sums: the kind of numbers of those that go from rank to rank,
 * enum mk_dtype. */
template <class op, int sums> struct reduce_source : gemm_source {
    /* Auxiliary warps need more than a producer does, and consumers of FP8 more than others: for raw sums, of which those of most final
     * ones have one set. */
    static constexpr bool raw = op::scaled && (op::wide || !op::gathers);
    static constexpr int producer_registers = raw ? 104 : 120, consumer_registers = raw ? 200 : 192;
    template <class shape>
    static constexpr int raw_sets = op::scaled && (shape::tile_n > 128 ||
                                                   (shape::tile_n == 128 && sums == MK_FP24))
                                        ? 1
                                        : 2;

    static constexpr struct warp_meeting producer_at = {MBAR_SET(MBAR_WORK)},
                                         consumer_at[2] = {reduce_consumer_at[0],
                                                           reduce_consumer_at[1]};
    static constexpr struct warp_role chosen_roles[2] = {
        reduce_describer_role,
        {ENGINE_SENDER,
         WARP_CHOSEN,
         1,
         0,
         {MBAR_SET(MBAR_WORK) | MBAR_SET(MBAR_STORED) | MBAR_SET(MBAR_STORED_SECOND),
          MBAR_SET(MBAR_SENT) | MBAR_SET(MBAR_SENT_SECOND), MBAR_SET(MBAR_WORK_READ)}}};

    /* A is this rank's own: nothing is waited for. So the first stages are under way before the
     * launch's number is here and the first tile is described, which takes longer. */
    static constexpr bool b_ahead = true, a_ahead = true;

    /* Behind the engine all threads norm rows, where the plan has an epilogue of them. */
    static constexpr bool goes_on = op::norms;

    /* Consumers may store at peers what senders would take there: parts of 16 bits (else registers are
     * spilled), where the sum goes to all. */
    static constexpr bool straightens =
        op::gathers && !op::tree && !op::joint && sums == op::element;

    /* An epilogue of rows may be done with the sums in registers. */
    static constexpr bool inside = op::gathers && !op::tree;

    static constexpr bool tree = op::tree,
                          asks_lane = !op::gathers; /* (ptxas spills with the other choice) */

    const typename op::plan *plan;
    const struct gpu_launch *launch;
    const struct gemm_a *map_a;
    const struct gemm_operands *operands;
    /* the producer's */
    struct mk_cta cta;
    uint32_t passed; /* tiles that pass the sending warps, so far */
    int ending;

    static constexpr bool shared_code = op::shared_code;
    GEMM_MEMBER bool computes() const
    {
        return !op::shared_code || blockIdx.x < launch->split.ctas[MK_COMPUTE];
    }

    GEMM_MEMBER uint32_t blocks() const
    {
        return MK_FRESH(op::tiles(plan))->blocks;
    }

    GEMM_MEMBER uint32_t block_end(uint32_t block) const
    {
        return gemm_rs_block_end(MK_FRESH(op::tiles(plan)), block);
    }

    static GEMM_MEMBER float join(float first, float second)
    {
        return tree ? tree_cut(first) + tree_cut(second) : first + second;
    }

    GEMM_MEMBER bool first(struct mk_tile *tile) const
    {
        const struct gemm_rs_plan *p = op::tiles(plan);
        ptx_tensormap_prefetch(&map_a->whole);
        ptx_tensormap_prefetch(&map_a->rest);
        if (number_of(0) >= p->tiles)
            return false;
        if (p->shots == 1 && p->m <= p->tile_m) { /* what the loads look at, without a division */
            tile->a_slab = 0;
            tile->row = 0;
            tile->col = number_of(0) * p->tile_n;
        } else {
            gemm_rs_tile(p, number_of(0), tile);
            find_in_a(tile);
        }
        return true;
    }

    /* In one shot the producer waits for no flag, and whoever describes the tiles has its track. */
    GEMM_MEMBER void open()
    {
        if (op::tiles(plan)->shots == 1)
            return;
        cta_begin(&cta, launch, op::shared_code ? reduce_shared->cta : blockIdx.x, 1);
        passed = 0;
        ending = 0;
        if (!op::shared_code && !reduce_describer<op>(launch, op::tiles(plan)))
            describe(0);
    }

    GEMM_MEMBER void close()
    {
        if (op::tiles(plan)->shots != 1)
            cta_end(&cta);
    }

    /* One thread of the second warp: all tiles, or the first alone where the producer goes on. */
    GEMM_MEMBER void describe_all(bool all)
    {
        bool tracked = op::tiles(plan)->shots == 1;
        if (tracked)
            cta_begin(&cta, launch, blockIdx.x, 1);
        else
            cta_identify(&cta, launch, blockIdx.x, 1);
        passed = 0;
        for (uint32_t i = 0; number_of(i) < MK_FRESH(op::tiles(plan))->tiles && (all || i == 0);
             i++)
            describe(i);
        if (tracked)
            cta_end(&cta);
    }

    GEMM_MEMBER uint32_t number_of(uint32_t i) const
    {
        const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
        if (!op::shared_code)
            return (p->cluster == 2 ? blockIdx.x / 2 : blockIdx.x) + i * p->batch;
        return reduce_shared->block + i * p->batch;
    }

    /* Whether a tile passes the sending warps: own ones where the sum goes to others, too. */
    GEMM_MEMBER bool passes(uint32_t kind) const
    {
        return kind != GEMM_RS_OWN || (op::gathers && MK_FRESH(op::tiles(plan))->gathers);
    }

    /* Of what sending warps push of tile i: behind the CTA's last one no load of its engine stands
     * in line. */
    GEMM_MEMBER uint32_t pace_of(const struct gemm_rs_plan *p, uint32_t i, uint32_t senders) const
    {
        return number_of(i + 1) < p->tiles ? p->pace * senders : 0;
    }

    /* Consumers are told only whether there is one. */
    GEMM_MEMBER bool next(uint32_t i, struct mk_tile *tile) const
    {
        if (number_of(i) >= MK_FRESH(op::tiles(plan))->tiles)
            return false;
        if constexpr (op::cuts)
            if (threadIdx.x >= 128)
                tile->stage = slice_of(number_of(i));
        if (threadIdx.x < 128 && i > 0) { /* `first` has filled it */
            await_work(i);
            *tile = work(i)->tile;
            find_in_a(tile);
        }
        return true;
    }

    /* The producer's copy: rows as the map of A counts them, which ends with row M. (Behind a
     * block's last rows come those of the next; who stores or adds a tile has its own alone.) */
    GEMM_MEMBER void find_in_a(struct mk_tile *tile) const
    {
        tile->row += tile->a_slab * MK_FRESH(op::tiles(plan))->shard_rows;
        tile->a_slab = 0;
        if constexpr (op::cuts)
            tile->a_slab = b_slab(tile);
    }

    /* Slices of K are slabs of the maps of A and B, which overlap: each begins at its K. */
    GEMM_MEMBER int32_t b_slab(const struct mk_tile *tile) const
    {
        if constexpr (op::cuts)
            return tile->stage ? tile->stage - 1 : 0;
        return gemm_source::b_slab(tile);
    }

    GEMM_MEMBER uint32_t slice_of(uint32_t t) const;
    GEMM_MEMBER uint32_t stages_of_k(const struct gemm_operands *of,
                                     const struct mk_tile *tile) const
    {
        if constexpr (op::cuts)
            return cut_stages(of, tile);
        return gemm_source::stages_of_k(of, tile);
    }
    GEMM_MEMBER uint32_t cut_stages(const struct gemm_operands *of,
                                    const struct mk_tile *tile) const;

    /* Works out tile i, which takes some forty integer divisions: one thread of the block. */
    GEMM_MEMBER void describe(uint32_t i)
    {
        const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
        struct reduce_work *w = &reduce_shared->work[i % REDUCE_WORKS];
        struct mk_tile tile;
        uint32_t t = number_of(i);
        if (t >= p->tiles)
            return;
        if constexpr (op::cuts)
            gemm_rs_cut_tile(p, t, &tile);
        else
            gemm_rs_tile(p, t, &tile);
        enum gemm_rs_kind kind = gemm_rs_kind_of(p, &tile);
        /* two tiles later than who had this place: of it consumers read until the next one's end */
        if (i >= REDUCE_AHEAD)
            ptx_mbar_wait(ptx_shared(&reduce_shared->read[(i - REDUCE_AHEAD) % REDUCE_WORKS]),
                          mbar_phase_of_ring<REDUCE_WORKS>(i - REDUCE_AHEAD), operands->limit_ns);
        w->tile = tile;
        w->kind = op::gathers && kind == GEMM_RS_JOINT && p->passing &&
                          (i > 0 || number_of(i + 1) < p->tiles)
                      ? (uint32_t)REDUCE_PASSED
                      : (uint32_t)kind;
        if (op::shares && p->shared) {
            w->kind = REDUCE_SHARED;
            w->first = gemm_rs_first_sharer(p, &tile);
        }
        w->runs = gemm_rs_grained_cols(p, tile.cols) / p->grain_cols;
        w->straight = !straightens              ? 0
                      : kind == GEMM_RS_PARTIAL ? p->straight
                      : kind == GEMM_RS_OWN
                          ? op::spreads(plan) && (p->straight || number_of(i + 1) >= p->tiles)
                          : 0;
        w->number = passed;
        passed += passes(kind);
        w->epoch = cta.epoch;
        w->to = kind == GEMM_RS_OWN     ? 0
                : kind == GEMM_RS_JOINT ? gemm_rs_joint_offset(p, &tile, cta.epoch)
                                        : gemm_rs_tile_offset(p, &tile, cta.epoch);
        for (uint32_t level = 0; level < GEMM_RS_LEVELS; level++)
            if (kind == GEMM_RS_PARTIAL || kind == GEMM_RS_JOINT) { /* which comes by `exchange` */
                w->terms[level].count = 0;
            } else { /* (one by one: of a call's result the emulated GPU sees no store) */
                const struct gemm_rs_terms t = gemm_rs_level(p, &tile, level, cta.epoch);
                w->terms[level].source = t.source;
                w->terms[level].count = t.count;
                w->terms[level].place = t.place;
            }
        if constexpr (op::cuts)
            describe_slice(w);
        if constexpr (inside)
            if (i == 0)
                joint_norm_describe(joint_norm_shared, p, launch, &tile);
        ptx_mbar_arrive(ptx_shared(&reduce_shared->given[i % REDUCE_WORKS]));
    }
    GEMM_MEMBER void describe_slice(struct reduce_work *w);

    GEMM_MEMBER void prefetch_next(uint32_t i, struct mk_tile *tile)
    {
        if (reduce_describer<op>(launch, op::tiles(plan)))
            return;
        if (op::shared_code && i == 0) { /* which the second warp has described */
            await_work(0);
            passed = passes(work(0)->kind);
        }
        describe(i + 1);
        if (op::shared_code) {
            *tile = work(i)->tile;
            find_in_a(tile);
        }
    }

    GEMM_MEMBER const struct gemm_a *a(const struct mk_tile *) const
    {
        return map_a;
    }

    GEMM_MEMBER const struct reduce_work *work(uint32_t i) const
    {
        return &reduce_shared->work[i % REDUCE_WORKS];
    }

    /* Of FP8. Consumers are told of a tile's place by who describes it, before its first stage. */
    GEMM_MEMBER struct gemm_scales scales(uint32_t i, const struct mk_tile *tile,
                                          uint32_t row) const
    {
        const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
        uint32_t r = row, col;
        if (threadIdx.x < 128) {
            r += tile->row;
            col = tile->col;
        } else {
            await_work(i);
            r += work(i)->tile.row + work(i)->tile.a_slab * p->shard_rows;
            col = work(i)->tile.col;
        }
        r = r < p->m ? r : p->m - 1; /* what lies outside C has the last row's, and is dropped */
        const uint32_t blocks = (p->k + 127) / 128, b_pitch = (blocks + 3) / 4 * 4;
        return {(const float *)launch->arguments[MK_SPACE_ARG3] + r,
                (const float *)launch->arguments[MK_SPACE_ARG4] + (uint64_t)(col / 128) * b_pitch,
                (p->m + 3) / 4 * 4,
                b_pitch,
                p->m - r,
                p->n - col,
                blocks};
    }

    static constexpr bool by_columns = op::by_columns;
    GEMM_MEMBER struct column_scales columns(uint32_t i, const struct mk_tile *) const
    {
        await_work(i);
        const uint32_t col = work(i)->tile.col;
        return {(const float *)MK_FRESH(launch)->arguments[MK_SPACE_ARG4] + col,
                MK_FRESH(op::tiles(plan))->n - col, 0};
    }

    /* What the producer says of tile i is there; a consumer's next calls may look. */
    GEMM_MEMBER void await_work(uint32_t i) const
    {
        ptx_mbar_wait(ptx_shared(&reduce_shared->given[i % REDUCE_WORKS]),
                      mbar_phase_of_ring<REDUCE_WORKS>(i), operands->limit_ns);
    }

    /* C has the rows of this rank, or all: as the map counts them, which ends with this rank's. Of columns it
     * has this rank's, or all. */
    GEMM_MEMBER struct gemm_place place(uint32_t i, const struct mk_tile *, uint32_t row) const
    {
        const struct mk_tile *tile = &work(i)->tile;
        const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
        const uint32_t before = op::gathers     ? tile->a_slab * p->shard_rows
                                : p->shots == 1 ? 0 - p->topo.rank * p->shard_rows
                                                : 0;
        return {(int32_t)(tile->col - gemm_rs_own_col(p)), (int32_t)(before + tile->row + row), 0};
    }

    GEMM_MEMBER void begin(uint32_t, const struct mk_tile *)
    {
        if (reduce_thread<op>(128))
            tile_track_start(&reduce_shared->track);
    }

    GEMM_MEMBER void after(uint32_t i, const struct mk_tile *, uint32_t)
    {
        if (reduce_thread<op>(128))
            tile_track_note(&reduce_shared->track, launch, work(i)->tile.id,
                            tile_track_of(reduce_block<op>()));
    }

    GEMM_MEMBER uint32_t barrier(uint64_t (*of)[2], uint32_t number, uint32_t half) const
    {
        return ptx_shared(&of[number % GEMM_RS_OUTBOX][half]);
    }

    /* Where consumer `half` leaves what it has of the number-th tile. */
    GEMM_MEMBER char *outbox(uint32_t number, uint32_t half) const
    {
        const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
        uint64_t bytes = (uint64_t)p->tile_m / p->cluster / 2 * p->tile_n * p->element_bytes;
        return launch->heap + p->outbox +
               ((blockIdx.x * GEMM_RS_OUTBOX + number % GEMM_RS_OUTBOX) * 2 + half) * bytes;
    }

    GEMM_MEMBER bool has_addends(uint32_t i);
    template <class shape>
    GEMM_MEMBER void load_addends(uint32_t i, struct gemm_ring *ring, uint32_t rank);

    template <class shape>
    GEMM_MEMBER void add(uint32_t i, float (&sum)[shape::blocks][shape::tile_n / 2], uint32_t half,
                         uint32_t rank, struct gemm_ring *ring) const;

    /* Whether consumers load what others have themselves: of a tree, in which a node is added to its sibling first, not to what
     * was summed before. One term of a level is the sibling. */
    GEMM_MEMBER bool direct() const
    {
        if constexpr (!op::tree)
            return false;
        const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
        return p->topo.gpus > 2 || p->topo.nodes > 2;
    }

    template <class shape>
    GEMM_MEMBER void add_in_tree(uint32_t i, float (&sum)[shape::blocks][shape::tile_n / 2],
                                 uint32_t half, uint32_t rank, struct gemm_ring *ring) const;

    template <class shape>
    GEMM_MEMBER void exchange(const struct reduce_work *w,
                              float (&sum)[shape::blocks][shape::tile_n / 2], uint32_t row,
                              uint32_t half) const;

    template <class shape>
    GEMM_MEMBER void spread(const struct reduce_work *w,
                            float (&sum)[shape::blocks][shape::tile_n / 2], uint32_t row) const;

    template <class shape>
    GEMM_MEMBER bool store_sums(uint32_t i, float (&sum)[shape::blocks][shape::tile_n / 2],
                                uint32_t half, uint32_t rank) const;

    template <class shape>
    GEMM_MEMBER void share(uint32_t i, float (&sum)[shape::blocks][shape::tile_n / 2], uint32_t row,
                           uint32_t within, uint32_t half) const;
    template <int together>
    GEMM_MEMBER void share_add(const struct reduce_work *w, uint32_t row, const char *mine) const;
    GEMM_MEMBER void share_tile(struct mk_cta *own, uint32_t i, uint32_t sender, uint32_t senders,
                                int *ending);

    template <class shape>
    GEMM_MEMBER void cut(uint32_t i, float (&sum)[shape::blocks][shape::tile_n / 2], uint32_t row,
                         uint32_t half) const;
    GEMM_MEMBER void cut_tile(struct mk_cta *own, uint32_t i, uint32_t sender, uint32_t senders);

    GEMM_MEMBER void publish(uint32_t i, uint32_t half) const
    {
        if (op::gathers && work(i)->kind == GEMM_RS_OWN && !(straightens && work(i)->straight) &&
            passes(GEMM_RS_OWN)) {
            ptx_bulk_wait_all();
            ptx_fence_async();
            ptx_mbar_arrive(barrier(reduce_shared->there, work(i)->number, half));
        }
        ptx_mbar_arrive(ptx_shared(&reduce_shared->read[i % REDUCE_WORKS]));
    }

    GEMM_MEMBER void push_joint(struct mk_cta *own, const struct reduce_work *w, uint32_t half,
                                uint32_t first, uint32_t rows) const;
    GEMM_MEMBER void store_passed(uint64_t at, uint32_t two) const;
    template <class shape>
    GEMM_MEMBER void add_passed(uint32_t i, uint32_t row, uint32_t within, uint32_t half) const;
    GEMM_MEMBER void exchange_tile(struct mk_cta *own, uint32_t i, uint32_t sender,
                                   uint32_t senders, int *ending);
    GEMM_MEMBER void send_tile(struct mk_cta *own, uint32_t i, uint32_t sender, uint32_t senders);
    template <int form>
    GEMM_MEMBER void send_tiles(struct mk_cta *own, uint32_t sender, uint32_t senders);
    GEMM_MEMBER void sending_warp(uint32_t sender, uint32_t senders);
    GEMM_MEMBER void beside_engine(uint32_t warp);
    GEMM_MEMBER void beside_or_alone(uint32_t warp);
    GEMM_MEMBER void auxiliary_warp(uint32_t warp);
};

/* What others have of the tile comes through the ring like its operands, so that nobody waits for
 * memory, and nothing waits for others' flags before the products are under way.
 *
 * In a cluster each CTA's producer loads what the other CTA's consumers add: as with B, a stage is
 * then full only when both producers had it empty. (If a CTA filled its stage alone, its consumers
 * could give it back a second time while a warp of the other CTA had told only one of the two that
 * it is done; the barrier would take the one for the other.) So a load is never of nothing: where
 * the tile has no such rows it is of the first. */
template <class op, int sums> GEMM_MEMBER bool reduce_source<op, sums>::has_addends(uint32_t i)
{
    if (op::joint || op::tiles(plan)->shots == 1)
        return false; /* what is added comes by `exchange` */
    if (i == 0)
        await_work(0);
    const struct reduce_work *w = work(i);
    if constexpr (op::cuts)
        if (w->kind == REDUCE_CUT)
            return false; /* ... by `cut` */
    if (!w->terms[0].count && !w->terms[1].count)
        return false;
    if (!ending)
        ending = gemm_rs_before(MK_FRESH(op::tiles(plan)), &cta, &w->tile);
    return true;
}

template <class op, int sums>
template <class shape>
GEMM_MEMBER void reduce_source<op, sums>::load_addends(uint32_t i, struct gemm_ring *ring,
                                                       uint32_t rank)
{
    typedef reduce_parts<shape> parts;
    const struct reduce_work *w = work(i);
    const uint32_t group = w->runs * fragment_bytes<shape::number>;
    if (direct()) { /* a stage of 16 bytes says that it is here */
        const char *from = launch->heap + w->terms[!w->terms[0].count].source;
        pipeline_wait_empty<shape::stages>(ring->barriers, &ring->at, &operands->watch, i);
        const uint32_t full = pipeline_full<shape::stages>(ring->barriers, ring->at.stage),
                       to = ring->shared + ring->at.stage * shape::stage_bytes;
        ptx_mbar_expect(full, 16);
        if (shape::cluster > 1)
            ptx_bulk_load_cluster(to, from, 16, full, (uint16_t)(2 >> rank));
        else
            ptx_bulk_load(to, from, 16, full);
        pipeline_step<shape::stages>(&ring->at);
        return;
    }
    const uint32_t groups = (w->tile.rows + FRAGMENT_ROWS - 1) / FRAGMENT_ROWS;
    for (uint32_t level = 0; level < GEMM_RS_LEVELS; level++)
        for (uint32_t term = 0; term < w->terms[level].count; term++) {
            const char *from = launch->heap + w->terms[level].source +
                               term * MK_FRESH(op::tiles(plan))->slab_pitch;
            for (uint32_t part = 0; part < 2 * parts::stages; part++) {
                pipeline_wait_empty<shape::stages>(ring->barriers, &ring->at, &operands->watch, i);
                uint32_t full = pipeline_full<shape::stages>(ring->barriers, ring->at.stage),
                         to = ring->shared + ring->at.stage * shape::stage_bytes, first;
                ptx_mbar_expect(full, parts::part(groups, rank, part, &first) * group);
                uint32_t count =
                    parts::part(groups, shape::cluster > 1 ? 1 - rank : 0, part, &first);
                if (shape::cluster > 1)
                    ptx_bulk_load_cluster(to, from + (uint64_t)first * group, count * group, full,
                                          (uint16_t)(2 >> rank));
                else
                    ptx_bulk_load(to, from + (uint64_t)first * group, count * group, full);
                pipeline_step<shape::stages>(&ring->at);
            }
        }
}

template <class op, int sums>
template <class shape>
GEMM_MEMBER void
reduce_source<op, sums>::add(uint32_t i, float (&sum)[shape::blocks][shape::tile_n / 2],
                             uint32_t half, uint32_t rank, struct gemm_ring *ring) const
{
    typedef reduce_parts<shape> parts;
    await_work(i); /* the first tile's stages may have come before */
    if constexpr (op::joint)
        return;
    if constexpr (op::tree)
        if (direct()) {
            add_in_tree<shape>(i, sum, half, rank, ring);
            return;
        }
    if constexpr (op::cuts)
        if (__shfl_sync(0xffffffff, work(i)->kind, 0) == REDUCE_CUT)
            return;
    /* The shuffle tells the compiler that all lanes go the same way. */
    uint32_t left = 2 * parts::stages *
                    __shfl_sync(0xffffffff, work(i)->terms[0].count + work(i)->terms[1].count, 0);
#pragma unroll 1
    for (; left; left--) {
        uint32_t part = 2 * parts::stages - 1 - (left - 1) % (2 * parts::stages);
        pipeline_wait_full<shape::stages>(ring->barriers, &ring->at, operands->limit_ns);
        if (part / parts::stages == half) {
            const struct reduce_work *w = work(i);
            uint32_t at =
                         ring->shared + ring->at.stage * shape::stage_bytes + threadIdx.x % 32 * 16,
                     group = threadIdx.x % 128 / 32;
#pragma unroll
            for (int m = 0; m < shape::blocks; m++, group += 4)
                if (group / parts::of_stage == part % parts::stages &&
                    ((rank * 2 + half) * parts::groups + group) * FRAGMENT_ROWS < w->tile.rows) {
                    if (op::tree)
                        fragments_round<shape::number>(sum[m], true);
                    fragments_add<shape::number>(sum[m],
                                                 at + group % parts::of_stage * w->runs *
                                                          fragment_bytes<shape::number>,
                                                 w->runs);
                }
        }
        __syncwarp();
        /* In a cluster a release is a fence of the GPU's memory, some 2 us. Of the other consumer's
         * rows this one has read nothing. */
        if (part / parts::stages == half)
            pipeline_release_loaded<shape::stages, shape::cluster>(ring->barriers, ring->at.stage,
                                                                   threadIdx.x % 32);
        else
            pipeline_release<shape::stages, shape::cluster>(ring->barriers, ring->at.stage,
                                                            threadIdx.x % 32);
        pipeline_step<shape::stages>(&ring->at);
    }
}

/* Of sums in a tree: level by level, each rank's or node's a leaf at its own place. */
template <class op, int sums>
template <class shape>
GEMM_MEMBER void
reduce_source<op, sums>::add_in_tree(uint32_t i, float (&sum)[shape::blocks][shape::tile_n / 2],
                                     uint32_t half, uint32_t rank, struct gemm_ring *ring) const
{
    const struct reduce_work *w = work(i);
    const uint32_t row =
        (rank * 2 + half) * shape::blocks * 64 + threadIdx.x % 128 / 32 * FRAGMENT_ROWS;
    if (!__shfl_sync(0xffffffff, w->terms[0].count + w->terms[1].count, 0))
        return;
    pipeline_wait_full<shape::stages>(ring->barriers, &ring->at, operands->limit_ns);
    __syncwarp();
    pipeline_release<shape::stages, shape::cluster>(ring->barriers, ring->at.stage,
                                                    threadIdx.x % 32);
    pipeline_step<shape::stages>(&ring->at);
#pragma unroll 1
    for (uint32_t level = 0; level < GEMM_RS_LEVELS; level++) {
        const struct gemm_rs_terms *t = &w->terms[level];
        const struct tree_leaves<struct fragment_lane_anew> others = {
            launch->heap + t->source + fragment_offset<shape::number>(row, w->runs),
                MK_FRESH(op::tiles(plan))->slab_pitch, t->place,
            {
                ptx_opaque(threadIdx.x)
            }
        };
        if (row < w->tile.rows)
            tree_join<4>(sum[0], others, t->count + 1, w->runs);
    }
}

/* Stores the thread's sums in C of all ranks of the node: of four runs of eight columns, of which the
 * quad's lanes have two each, a lane takes one, so that a row's four are 64 bytes. row: of the tile,
 * the warp's first. */
template <class op, int sums>
template <class shape>
GEMM_MEMBER void reduce_source<op, sums>::spread(const struct reduce_work *w,
                                                 float (&sum)[shape::blocks][shape::tile_n / 2],
                                                 uint32_t row) const
{
    const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
    const uint32_t lane = threadIdx.x % 32, gpus = p->topo.gpus, q = lane % 4;
#pragma unroll
    for (int m = 0; m < shape::blocks; m++)
#pragma unroll
        for (int eight = 0; eight < 2; eight++) {
            const uint32_t at = row + m * 64 + eight * 8 + lane / 4;
            const uint64_t from = op::spread_at(plan, &w->tile, at) + q * 16;
#pragma unroll
            for (int j = 0; j < shape::tile_n / 8; j += 4) {
                uint32_t word[4];
#pragma unroll
                for (int k = 0; k < 4; k++)
                    word[k] = half_pack<op::element>(sum[m][(j + k) * 4 + eight * 2],
                                                     sum[m][(j + k) * 4 + eight * 2 + 1]);
                quad_transpose(word, q);
                if (at < w->tile.rows && (j + q) * 8 < w->tile.cols)
                    for (uint32_t rank = 0; rank < gpus; rank++)
                        *(uint4 *)(launch->peers[rank] + from + j * 16) =
                            make_uint4(word[0], word[1], word[2], word[3]);
            }
        }
}

template <class op, int sums>
template <class shape>
GEMM_MEMBER bool reduce_source<op, sums>::store_sums(uint32_t i,
                                                     float (&sum)[shape::blocks][shape::tile_n / 2],
                                                     uint32_t half, uint32_t rank) const
{
    const struct reduce_work *w = work(i);
    uint32_t within = threadIdx.x % 128 / 32 * FRAGMENT_ROWS; /* of 64 rows, the warp's first */
    uint32_t row = (rank * (shape::joins ? 1 : 2) + half) * shape::blocks * 64 + within;
    uint32_t kind = __shfl_sync(0xffffffff, w->kind, 0);
    if (kind == GEMM_RS_OWN && !op::gathers)
        return false;
    if constexpr (op::cuts)
        if (kind == REDUCE_CUT) {
            cut<shape>(i, sum, row, half);
            return true;
        }
    /* The sending warps are done with who had this place before. (Of an own tile that does not pass
     * the number stays 0, of which nothing is waited for.) */
    ptx_mbar_wait(barrier(reduce_shared->taken, w->number, half),
                  mbar_phase_before(mbar_phase_of_ring<GEMM_RS_OUTBOX>(w->number)),
                  operands->limit_ns);
    const uint32_t straight = straightens ? __shfl_sync(0xffffffff, w->straight, 0) : 0;
    if (kind == GEMM_RS_OWN && !straight)
        return false;
    if constexpr (op::shares && shape::tile_n <= PLAN_MOST_JOINT_COLUMNS)
        if (kind == REDUCE_SHARED) {
            share<shape>(i, sum, row, within, half);
            return true;
        }
    /* The consumer's other warps may still add the tile before the last one, of this place. (Where
     * K has many stages the ring keeps them together, where it has few it does not.) */
    if (op::gathers && kind == REDUCE_PASSED && i > 0)
        ptx_bar_sync(named_warpgroup(half));
    if constexpr (shape::tile_n <= PLAN_MOST_JOINT_COLUMNS) {
        joint_round<op, shape::number>(sum, kind >= GEMM_RS_JOINT);
        if (op::tree && kind == GEMM_RS_JOINT) {
            exchange<shape>(w, sum, row, half);
            joint_join<op, shape::number, 4>(plan, launch, w, sum, joint_rows{row},
                                             reduce_lane<op>());
            return !op::gathers && joint_store_own<op>(plan, launch, w, sum, joint_rows{row});
        }
        if constexpr (inside && shape::tile_m <= PLAN_MOST_NORM_ROWS && !shape::splits)
            if (kind == GEMM_RS_JOINT) {
                const struct joint_norm<op, struct reduce_work> norm = {
                    joint_norm_shared, w, row
                };
                if (norm.o->inside)
                    norm.template prefetch<shape::blocks, shape::tile_n / 2>();
                exchange<shape>(w, sum, row, half);
                joint_add<op, shape::number, true>(plan, launch, w, sum, joint_rows{row});
                if (!norm.o->inside)
                    return false;
                norm.apply(sum, half * 4 + threadIdx.x % 128 / 32, 8 / shape::parts,
                           operands->limit_ns);
                return true;
            }
        if (kind == GEMM_RS_JOINT) {
            exchange<shape>(w, sum, row, half);
            joint_add<op, shape::number, true>(plan, launch, w, sum, joint_rows{row});
            return !op::gathers && joint_store_own<op>(plan, launch, w, sum, joint_rows{row});
        }
    }
    if (straightens && kind == GEMM_RS_OWN) {
        spread<shape>(w, sum, row);
    } else {
        char *to = kind == GEMM_RS_SUM || straight
                       ? (straight ? launch->peers[w->tile.c_local] : launch->heap) + w->to +
                             fragment_offset<shape::number>(row, w->runs)
                       : outbox(w->number, half) + fragment_offset<shape::number>(within, w->runs);
#pragma unroll
        for (int m = 0; m < shape::blocks; m++)
            fragments_store<shape::number>(
                to + m * (64 / FRAGMENT_ROWS) * w->runs * fragment_bytes<shape::number>, sum[m],
                !straight || row + m * 64 < w->tile.rows ? w->runs : 0, reduce_lane<op>());
    }
    ptx_bar_sync(named_warpgroup(half));
    if (threadIdx.x % 128 == 0)
        ptx_mbar_arrive(barrier(reduce_shared->there, w->number, half));
    if constexpr (op::gathers && shape::tile_n <= PLAN_MOST_JOINT_COLUMNS)
        if (kind == REDUCE_PASSED) {
            if (i > 0)
                add_passed<shape>(i - 1, row, within, half);
            if (number_of(i + 1) >= MK_FRESH(op::tiles(plan))->tiles)
                add_passed<shape>(i, row, within, half);
        }
    return true;
}

/* Takes the consumers' rows of the i-th tile from the outbox to who adds them, or announces what is
 * stored: a warp. Of two (`senders`) each has the rows of one consumer. */
template <class op, int sums>
GEMM_MEMBER void reduce_source<op, sums>::send_tile(struct mk_cta *own, uint32_t i, uint32_t sender,
                                                    uint32_t senders)
{
    const struct reduce_work *w = work(i);
    const uint32_t kind = w->kind;
    const uint32_t number = w->number;
    if constexpr (op::cuts)
        if (kind == REDUCE_CUT) {
            cut_tile(own, i, sender, senders);
            return;
        }
    for (uint32_t half = sender; half < 2 && passes(kind); half += senders) {
        barrier_wait(&operands->watch, barrier(reduce_shared->there, number, half),
                     mbar_phase_of_ring<GEMM_RS_OUTBOX>(number), GPU_BARRIER_THERE,
                     number % GEMM_RS_OUTBOX, i);
        const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
        uint32_t part_rows = p->tile_m / p->cluster / 2, parts = MK_TILE_PARTS / p->cluster / 2;
        uint32_t row = ((p->cluster == 2 ? blockIdx.x % 2 : 0) * 2 + half) * part_rows;
        uint32_t rows = row >= w->tile.rows              ? 0
                        : w->tile.rows - row < part_rows ? w->tile.rows - row
                                                         : part_rows;
        own->pace = pace_of(p, i, senders);
        if (kind == GEMM_RS_PARTIAL) {
            uint32_t group = w->runs * FRAGMENT_ROWS * FRAGMENT_COLUMNS * p->element_bytes;
            cta_copy_open(own, w->tile.c_local, w->tile.id * p->pieces);
            if (!straightens || !w->straight)
                lanes_copy_rows<8, 4>(
                    cta_lane(own), 32, outbox(number, half), 0,
                    launch->peers[w->tile.c_local] + w->to + row / FRAGMENT_ROWS * group, 0, 1,
                    (rows + FRAGMENT_ROWS - 1) / FRAGMENT_ROWS * group / 16, own->pace);
            __syncwarp();
            if (cta_leads(own)) /* before what is announced: the place is free */
                ptx_mbar_arrive(barrier(reduce_shared->taken, number, half));
            gemm_rs_after(MK_FRESH(p), own, &w->tile, parts);
        } else {
            op::after(plan, own, &w->tile, row, straightens && w->straight ? 0 : rows, parts);
            if (cta_leads(own))
                ptx_mbar_arrive(barrier(reduce_shared->taken, number, half));
        }
    }
}

/* The tiles of this CTA, one after the other. (A loop for each kind of plan: what one loop keeps
 * for both has no room in a sending warp's registers.) */
template <class op, int sums>
template <int form>
GEMM_MEMBER void reduce_source<op, sums>::send_tiles(struct mk_cta *own, uint32_t sender,
                                                     uint32_t senders)
{
    int ending = 0;
    for (uint32_t i = 0; number_of(i) < MK_FRESH(op::tiles(plan))->tiles; i++) {
        await_work(i);
        if constexpr (form == REDUCE_SHARED)
            share_tile(own, i, sender, senders, &ending);
        else if constexpr (form == GEMM_RS_JOINT)
            exchange_tile(own, i, sender, senders, &ending);
        else
            send_tile(own, i, sender, senders);
        __syncwarp();
        if (cta_leads(own))
            ptx_mbar_arrive(ptx_shared(&reduce_shared->read[i % REDUCE_WORKS]));
    }
}

/* Sends, announces and, in one shot, awaits what this CTA's tiles are made of: a warp, the
 * `sender`-th of `senders`, of which the first alone has a track. */
template <class op, int sums>
GEMM_MEMBER void reduce_source<op, sums>::sending_warp(uint32_t sender, uint32_t senders)
{
    struct mk_cta own;
    if (sender)
        cta_identify(&own, launch, blockIdx.x, 32);
    else
        cta_begin(&own, launch, blockIdx.x, 32, GPU_TRACK_SENDER);
    if (op::shares && op::tiles(plan)->shared)
        send_tiles<op::shares ? (int)REDUCE_SHARED : (int)GEMM_RS_JOINT>(&own, sender, senders);
    else if (op::joint || op::tiles(plan)->shots == 1)
        send_tiles<GEMM_RS_JOINT>(&own, sender, senders);
    else
        send_tiles<GEMM_RS_OWN>(&own, sender, senders);
    if (!sender)
        cta_end(&own);
}

/* A warp beside the engine, of an operator whose code is not shared. */
template <class op, int sums> GEMM_MEMBER void reduce_source<op, sums>::beside_engine(uint32_t warp)
{
    const struct mk_role_split *split = &launch->split;
    uint32_t others = mk_role_coresident(split, MK_INTRA_COMM), auxiliary = warp - 2;
    uint32_t senders = reduce_readers_of<op>(plan, launch);
    if (warp == reduce_describer<op>(launch, op::tiles(plan))) {
        if (ptx_elect())
            describe_all(true);
        __syncwarp();
        if (!op::shares || !op::tiles(plan)->shared)
            return;
    }
    if (!senders)
        return; /* intra_comm has nothing to do either, in one shot or for one rank */
    if (warp == 1 || (warp == 3 && senders == 2)) {
        sending_warp(warp == 3, senders);
    } else if (auxiliary < others) {
        struct mk_cta other;
        cta_begin(&other, launch,
                  gpu_auxiliary_of_block(split, MK_INTRA_COMM, auxiliary, blockIdx.x), 32);
        other.pace = op::tiles(plan)->pace;
        op::intra_comm(plan, &other);
        cta_end(&other);
    }
}

/* The same where it is; and a block of its own, all its threads. */
template <class op, int sums>
GEMM_MEMBER void reduce_source<op, sums>::beside_or_alone(uint32_t warp)
{
    const struct mk_role_split *split = &launch->split;
    uint32_t others = mk_role_coresident(split, MK_INTRA_COMM), auxiliary = warp - 2;
    uint32_t senders = reduce_readers_of<op>(plan, launch);
    struct mk_cta other;
    if (!computes()) {
        cta_begin(&other, launch, gpu_cta_of_block(split, blockIdx.x), GEMM_THREADS);
    } else {
        if (warp == 2) {
            const bool all = reduce_describer<op>(launch, op::tiles(plan)) == 2;
            if (ptx_elect())
                describe_all(all);
            __syncwarp();
            if (all && (!op::shares || !op::tiles(plan)->shared))
                return;
        }
        if (!senders)
            return;
        if (warp == 1 || (warp == 3 && senders == 2)) {
            sending_warp(warp == 3, senders);
            return;
        }
        if (auxiliary >= others)
            return;
        cta_begin(&other, launch,
                  gpu_auxiliary_of_block(split, MK_INTRA_COMM, auxiliary, blockIdx.x), 32);
        other.pace = op::tiles(plan)->pace;
    }
    reduce_roles<op>(plan, &other);
}

template <class op, int sums>
GEMM_MEMBER void reduce_source<op, sums>::auxiliary_warp(uint32_t warp)
{
    if constexpr (op::shared_code)
        beside_or_alone(warp);
    else
        beside_engine(warp);
}

struct reduce_maps {
    struct gemm_a a;
};

/* The map of B whose slabs are slices of K, each `apart` behind the one before. 0, or what
 * tensormap.h says. */
template <class shape>
static int gemm_describe_slices(CUtensorMap *map, const void *b, uint64_t n, uint64_t k,
                                uint64_t slices, uint64_t apart)
{
    const uint64_t nk[3] = {k, n, slices}, kn[3] = {n, k, slices};
    const uint32_t nk_box[2] = {shape::tile_k, shape::tile_n / shape::cluster},
                   kn_box[2] = {64, GEMM_TILE_K};
    return shape::b_kn ? tensormap_bf16(map, b, kn, n, n * apart, kn_box)
                       : tensormap_bf16(map, b, nk, k, apart, nk_box);
}

/* What kernels/hopper/gemm_launch.cuh asks of an operator. */
template <class op> struct reduce_on_gpu {
    typedef typename op::plan plan;
    typedef struct reduce_maps maps;
    static constexpr bool fp24 = true, splits = !op::cuts && !op::tree, middle = splits;
    static constexpr uint32_t shared_bytes = op::tree ? gemm_tree_shared_bytes() : 0;
    static_assert(!op::shared_code || CTA_LANES_VARY, "the operator's file says so");
    static constexpr bool of_all_blocks = op::shared_code, several_shapes = op::shared_code;

    static struct gemm_form form(const plan *whole)
    {
        const struct gemm_rs_plan *p = op::tiles(whole);
        return {p->tile_m, p->tile_n, p->cluster, p->number};
    }

    template <class shape>
    static int describe(maps *m, struct gemm_operands *operands, const plan *whole,
                        const struct gpu_launch *l)
    {
        const struct gemm_rs_plan *p = op::tiles(whole);
        const uint64_t n = p->n, k = p->k, rows = p->m, shard = p->shard_rows,
                       own_end = (p->topo.rank + 1) * shard; /* behind M on the last ranks */
        const bool whole_rows = p->shots == 1 || p->shard_cols;
        const uint64_t c_rows = !op::gathers                   ? shard
                                : whole_rows || own_end > rows ? rows
                                                               : own_end;
        /* the last ranks may have no columns, and store none */
        const uint64_t columns = gemm_rs_block(p, p->topo.rank).cols;
        const uint64_t c[3] = {columns ? columns : n, c_rows, 1},
                       last = whole_rows ? 0 : (mk_ceil_div(rows, shard) - 1) * shard;
        const uint32_t c_box[2] = {64, 64};
        const uint64_t slices = op::cuts ? p->slices : 1, apart = op::cuts ? p->cut_k : k;
        int err = gemm_describe_a<shape>(&m->a, operands, l->arguments[MK_SPACE_ARG0], k, rows,
                                         slices, op::cuts ? apart : rows * k, last);
        if (!err && op::cuts)
            err = gemm_describe_slices<shape>(&operands->b, l->arguments[MK_SPACE_ARG1], n, k,
                                              slices, apart);
        else if (!err)
            err = gemm_describe_b<shape>(&operands->b, l->arguments[MK_SPACE_ARG1], n, k);
        if (!err)
            err = tensormap_bf16(&operands->c,
                                 (char *)l->arguments[MK_SPACE_ARG2] + gemm_rs_own_col(p) * 2, c, n,
                                 c_rows * n, c_box);
        operands->stages_of_k = operands->stages_of_slice =
            (uint32_t)mk_ceil_div(k, shape::stage_k * (shape::splits ? 2 : 1));
        return err;
    }

    template <class shapes>
    static GEMM_MEMBER void compute(const plan *p, const struct gpu_launch *launch,
                                    const struct gemm_operands *operands, const maps *m,
                                    uint8_t *memory)
    {
        typedef reduce_of_tiles<op, (shapes::tile_n > PLAN_MOST_JOINT_COLUMNS), shapes::middle>
            of_tiles;
        struct reduce_source<of_tiles, shapes::number> source;
        source.plan = p;
        source.launch = launch;
        source.map_a = &m->a;
        source.operands = operands;
        const bool computes = source.computes();
        if (computes && reduce_thread<op>(0))
            reduce_begin_outbox<op, reduce_source<of_tiles, shapes::number>>(
                reduce_readers_of<op>(p, launch), op::tiles(p)->cluster);
        if (computes && reduce_thread<op>(128))
            tile_track_open(&reduce_shared->track, launch);
        gemm_compute<shapes>(operands, &source, memory);
        if (!computes)
            return;
        if (reduce_thread<op>(128))
            tile_track_close(&reduce_shared->track, launch);
        if constexpr (of_tiles::norms)
            reduce_norm<op>(p, launch);
    }

    /* A thread block of its own: all its threads. */
    template <class shape>
    static GEMM_MEMBER void communicate(const plan *p, const struct gpu_launch *launch, uint8_t *)
    {
        reduce_communicate<op>(p, launch, GEMM_THREADS);
    }
};

#include "kernels/ops/gemm_joint.cuh"
#include "kernels/ops/gemm_shared.cuh"

/* The tile source of kernels/sums/gemm_reduce.cuh: what it says of a tile, what it keeps in shared
 * memory, and its calls, whose longer bodies stand in gemm_reduce_sums.cuh (what consumers do),
 * gemm_reduce.cuh (what sending warps do), gemm_joint.cuh, gemm_cut.cuh and gemm_reduce_tree.cuh. */
#pragma once

#include "kernels/sums/gemm_reduce_roles.cuh"
#include "kernels/sums/joint_norm.cuh"

#include "kernels/engine/fragments.cuh"
#include "kernels/hopper/gemm_launch.cuh"
#include "kernels/cta/tile_track.cuh"

/* Behind enum gemm_rs_kind: a joint tile that passes the outbox. The consumers go on to the next
 * tile, and add what has come of this one when that one's product is whole, too. And one whose columns ranks share
 * (kernels/sums/gemm_joint.cuh). And a slice of one whose K is cut (kernels/sums/gemm_cut.cuh). */
enum { REDUCE_PASSED = GEMM_RS_JOINT + 1, REDUCE_SHARED, REDUCE_CUT };

/* What consumers and the sending warps do with a tile. */
struct reduce_work {
    struct mk_tile tile;
    uint32_t kind;   /* enum gemm_rs_kind, or REDUCE_PASSED */
    uint32_t runs;   /* of a group of rows, in fragments (kernels/engine/fragments.cuh) */
    uint32_t number; /* among the tiles that pass the sending warps */
    /* of a shared one: the rank whose its first columns are; of a slice its columns, the first << 16
     * | the end */
    uint32_t first;
    uint32_t
        direct_store; /* 1: consumers store it where these would take it, who announce it alone */
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
    return p->shots == 1 || !launch->split.intra_comm_warps ? 2 : 0;
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
    if constexpr (op::tree) /* nothing of it is kept, of which spilled registers would be made */
        return reduce_readers(op::tiles(plan), MK_FRESH(launch));
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
    static ENGINE_MEMBER uint32_t part(uint32_t all, uint32_t rank, uint32_t part, uint32_t *first)
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
template <class op, int sums> struct reduce_source : reduce_tiles<gemm_engine, op, gemm_source> {
    typedef reduce_tiles<gemm_engine, op, gemm_source> tiles;
    using tiles::operands;
    using tiles::plan;
    using tiles::tree;

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

    static constexpr bool asks_lane = !op::gathers; /* (ptxas spills with the other choice) */

    const struct gpu_launch *launch;
    /* the producer's */
    struct mk_cta cta;
    uint32_t passed; /* tiles that pass the sending warps, so far */
    int ending;

    static constexpr bool shared_code = op::shared_code;
    ENGINE_MEMBER bool computes() const
    {
        return !op::shared_code || blockIdx.x < launch->split.ctas[MK_COMPUTE];
    }

    static ENGINE_MEMBER float join(float first, float second)
    {
        return tree ? tree_cut(first) + tree_cut(second) : first + second;
    }

    ENGINE_MEMBER bool first(struct mk_tile *tile) const
    {
        const struct gemm_rs_plan *p = op::tiles(plan);
        ptx_tensormap_prefetch(&tiles::views->a.whole);
        ptx_tensormap_prefetch(&tiles::views->a.rest);
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
    ENGINE_MEMBER void open(uint32_t)
    {
        if (op::tiles(plan)->shots == 1)
            return;
        cta_begin(&cta, launch, op::shared_code ? reduce_shared->cta : blockIdx.x, 1);
        passed = 0;
        ending = 0;
        if (!op::shared_code && !reduce_describer<op>(launch, op::tiles(plan)))
            describe(0);
    }

    ENGINE_MEMBER void close()
    {
        if (op::tiles(plan)->shots != 1)
            cta_end(&cta);
    }

    /* One thread of the second warp: all tiles, or the first alone where the producer goes on. */
    ENGINE_MEMBER void describe_all(bool all)
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

    ENGINE_MEMBER uint32_t number_of(uint32_t i) const
    {
        const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
        if (!op::shared_code)
            return (p->cluster == 2 ? blockIdx.x / 2 : blockIdx.x) + i * p->batch;
        return reduce_shared->block + i * p->batch;
    }

    /* Whether a tile passes the sending warps: own ones where the sum goes to others, too. */
    ENGINE_MEMBER bool passes(uint32_t kind) const
    {
        return kind != GEMM_RS_OWN || (op::gathers && MK_FRESH(op::tiles(plan))->gathers);
    }

    /* Of what sending warps push of tile i: behind the CTA's last one no load of its engine stands
     * in line. */
    ENGINE_MEMBER uint32_t pace_of(const struct gemm_rs_plan *p, uint32_t i, uint32_t senders) const
    {
        return number_of(i + 1) < p->tiles ? mk_pace_of_each(p->pace, senders) : MK_PACE_NONE;
    }

    /* Consumers are told only whether there is one. */
    ENGINE_MEMBER bool next(uint32_t i, struct mk_tile *tile) const
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
    ENGINE_MEMBER void find_in_a(struct mk_tile *tile) const
    {
        tile->row += tile->a_slab * MK_FRESH(op::tiles(plan))->shard_rows;
        tile->a_slab = 0;
        if constexpr (op::cuts)
            tile->a_slab = b_slab(tile);
    }

    /* Slices of K are slabs of the maps of A and B, which overlap: each begins at its K. */
    ENGINE_MEMBER int32_t b_slab(const struct mk_tile *tile) const
    {
        if constexpr (op::cuts)
            return tile->stage ? tile->stage - 1 : 0;
        return tiles::b_slab(tile);
    }

    ENGINE_MEMBER uint32_t slice_of(uint32_t t) const;
    ENGINE_MEMBER uint32_t stages_of_k(const struct gemm_operands *of,
                                       const struct mk_tile *tile) const
    {
        if constexpr (op::cuts)
            return cut_stages(of, tile);
        return tiles::stages_of_k(of, tile);
    }
    ENGINE_MEMBER uint32_t cut_stages(const struct gemm_operands *of,
                                      const struct mk_tile *tile) const;

    /* Works out tile i, which takes some forty integer divisions: one thread of the block. */
    ENGINE_MEMBER void describe(uint32_t i)
    {
        const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
        struct reduce_work *w = &reduce_shared->work[i % REDUCE_WORKS];
        struct mk_tile tile;
        uint32_t t = number_of(i);
        if (t >= p->tiles)
            return;
        if constexpr (op::cuts)
            op::tile(p, t, &tile);
        else
            gemm_rs_tile(p, t, &tile);
        enum gemm_rs_kind kind = gemm_rs_kind_of(p, &tile);
        /* two tiles later than who had this place: of it consumers read until the next one's end */
        if (i >= REDUCE_AHEAD)
            ptx_mbar_wait(ptx_shared(&reduce_shared->read[(i - REDUCE_AHEAD) % REDUCE_WORKS]),
                          mbar_phase_of_ring<REDUCE_WORKS>(i - REDUCE_AHEAD), operands->limit_ns);
        w->tile = tile;
        w->kind = op::gathers && kind == GEMM_RS_JOINT && p->via_outbox &&
                          (i > 0 || number_of(i + 1) < p->tiles)
                      ? (uint32_t)REDUCE_PASSED
                      : (uint32_t)kind;
        if (op::shares && p->shared_columns) {
            w->kind = REDUCE_SHARED;
            w->first = gemm_rs_first_sharer(p, &tile);
        }
        w->runs = gemm_rs_grained_cols(p, tile.cols) / p->grain_cols;
        w->direct_store =
            !straightens              ? 0
            : kind == GEMM_RS_PARTIAL ? p->direct_store
            : kind == GEMM_RS_OWN
                ? op::spreads(plan) && (p->direct_store || number_of(i + 1) >= p->tiles)
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
    ENGINE_MEMBER void describe_slice(struct reduce_work *w);

    ENGINE_MEMBER void prefetch_next(uint32_t i, struct mk_tile *tile)
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

    ENGINE_MEMBER const struct reduce_work *work(uint32_t i) const
    {
        return &reduce_shared->work[i % REDUCE_WORKS];
    }

    /* Of FP8. Consumers are told of a tile's place by who describes it, before its first stage. */
    ENGINE_MEMBER struct engine_scales scales(uint32_t i, const struct mk_tile *tile,
                                              uint32_t row) const
    {
        uint32_t first = row, col;
        if (threadIdx.x < 128) {
            first += tile->row;
            col = tile->col;
        } else {
            await_work(i);
            first += work(i)->tile.row + work(i)->tile.a_slab * tiles::reduction()->shard_rows;
            col = work(i)->tile.col;
        }
        return tiles::scales_from(launch, first, col);
    }

    ENGINE_MEMBER struct column_scales columns(uint32_t i, const struct mk_tile *) const
    {
        await_work(i);
        return tiles::columns_from(MK_FRESH(launch), work(i)->tile.col);
    }

    /* What the producer says of tile i is there; a consumer's next calls may look. */
    ENGINE_MEMBER void await_work(uint32_t i) const
    {
        ptx_mbar_wait(ptx_shared(&reduce_shared->given[i % REDUCE_WORKS]),
                      mbar_phase_of_ring<REDUCE_WORKS>(i), operands->limit_ns);
    }

    ENGINE_MEMBER struct engine_place place(uint32_t i, const struct mk_tile *, uint32_t row) const
    {
        return tiles::place_of(&work(i)->tile, row);
    }

    ENGINE_MEMBER void begin(uint32_t, const struct mk_tile *)
    {
        if (reduce_thread<op>(128))
            tile_track_start(&reduce_shared->track);
    }

    ENGINE_MEMBER void after(uint32_t i, const struct mk_tile *, uint32_t)
    {
        if (reduce_thread<op>(128))
            tile_track_note(&reduce_shared->track, launch, work(i)->tile.id,
                            tile_track_of(reduce_block<op>()));
    }

    ENGINE_MEMBER uint32_t barrier(uint64_t (*of)[2], uint32_t number, uint32_t half) const
    {
        return ptx_shared(&of[number % GEMM_RS_OUTBOX][half]);
    }

    /* Where consumer `half` leaves what it has of the number-th tile. */
    ENGINE_MEMBER char *outbox(uint32_t number, uint32_t half) const
    {
        const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
        uint64_t bytes = (uint64_t)p->tile_m / p->cluster / 2 * p->tile_n * p->element_bytes;
        return launch->heap + p->outbox +
               ((blockIdx.x * GEMM_RS_OUTBOX + number % GEMM_RS_OUTBOX) * 2 + half) * bytes;
    }

    ENGINE_MEMBER bool has_addends(uint32_t i);
    template <class shape>
    ENGINE_MEMBER void load_addends(uint32_t i, struct gemm_ring *ring, uint32_t rank);

    template <class shape>
    ENGINE_MEMBER void add(uint32_t i, float (&sum)[shape::blocks][shape::sums], uint32_t half,
                           uint32_t rank, struct gemm_ring *ring) const;

    /* Whether consumers load what others have themselves: of a tree, in which a node is added to its sibling first, not to what
     * was summed before. One term of a level is the sibling. */
    ENGINE_MEMBER bool direct() const
    {
        if constexpr (!op::tree)
            return false;
        const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
        return p->topo.gpus > 2 || p->topo.nodes > 2;
    }

    template <class shape>
    ENGINE_MEMBER void add_in_tree(uint32_t i, float (&sum)[shape::blocks][shape::sums],
                                   uint32_t half, uint32_t rank, struct gemm_ring *ring) const;

    template <class shape>
    ENGINE_MEMBER void exchange(const struct reduce_work *w,
                                float (&sum)[shape::blocks][shape::sums], uint32_t row,
                                uint32_t half) const;

    template <class shape>
    ENGINE_MEMBER void spread(const struct reduce_work *w, float (&sum)[shape::blocks][shape::sums],
                              uint32_t row) const;

    template <class shape>
    ENGINE_MEMBER bool store_sums(uint32_t i, float (&sum)[shape::blocks][shape::sums],
                                  uint32_t half, uint32_t rank) const;

    template <class shape>
    ENGINE_MEMBER void share(uint32_t i, float (&sum)[shape::blocks][shape::sums], uint32_t row,
                             uint32_t within, uint32_t half) const;
    template <int together>
    ENGINE_MEMBER void share_add(const struct reduce_work *w, uint32_t row, const char *mine) const;
    ENGINE_MEMBER void share_tile(struct mk_cta *own, uint32_t i, uint32_t sender, uint32_t senders,
                                  int *ending);

    template <class shape>
    ENGINE_MEMBER void cut(uint32_t i, float (&sum)[shape::blocks][shape::sums], uint32_t row,
                           uint32_t half) const;
    ENGINE_MEMBER void cut_tile(struct mk_cta *own, uint32_t i, uint32_t sender, uint32_t senders);

    ENGINE_MEMBER void publish(uint32_t i, uint32_t half) const
    {
        if (op::gathers && work(i)->kind == GEMM_RS_OWN &&
            !(straightens && work(i)->direct_store) && passes(GEMM_RS_OWN)) {
            ptx_bulk_wait_all();
            ptx_fence_async();
            ptx_mbar_arrive(barrier(reduce_shared->there, work(i)->number, half));
        }
        ptx_mbar_arrive(ptx_shared(&reduce_shared->read[i % REDUCE_WORKS]));
    }

    ENGINE_MEMBER void push_joint(struct mk_cta *own, const struct reduce_work *w, uint32_t half,
                                  uint32_t first, uint32_t rows) const;
    ENGINE_MEMBER void store_passed(uint64_t at, uint32_t two) const;
    template <class shape>
    ENGINE_MEMBER void add_passed(uint32_t i, uint32_t row, uint32_t within, uint32_t half) const;
    ENGINE_MEMBER void exchange_tile(struct mk_cta *own, uint32_t i, uint32_t sender,
                                     uint32_t senders, int *ending);
    ENGINE_MEMBER void send_tile(struct mk_cta *own, uint32_t i, uint32_t sender, uint32_t senders);
    template <int form>
    ENGINE_MEMBER void send_tiles(struct mk_cta *own, uint32_t sender, uint32_t senders);
    ENGINE_MEMBER void sending_warp(uint32_t sender, uint32_t senders);
    ENGINE_MEMBER void beside_engine(uint32_t warp);
    ENGINE_MEMBER void beside_or_alone(uint32_t warp);
    ENGINE_MEMBER void auxiliary_warp(uint32_t warp);
};

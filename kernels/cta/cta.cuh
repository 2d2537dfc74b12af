/* The CTA interface (core/cta/cta.h) on a GPU. A role is run by one thread, or by the lanes of a warp
 * or of a whole thread block, which go the same way. On Hopper a thread copies by the TMA unit
 * through a ring of shared-memory stages: it has an SM to itself and moves as much as a CTA can.
 * Lanes copy and add by plain 16-byte loads and stores: a warp shares its SM with the GEMM engine,
 * whose TMA loads would stand in line behind stores that NVLink does not take yet; and a block
 * copies so on GPUs without TMA.
 *
 * Flags are 64-bit words at the start of each rank's heap, in device memory; peers' are reached
 * over NVLink. A wait polls with one thread, acquires at system scope, and is followed by a proxy
 * fence, because TMA loads read what it announces. An announcement first waits until its bulk
 * stores have been written (not only read). */
#pragma once

#include "kernels/engine/barrier.cuh"
#include "kernels/cta/lanes_copy.cuh"

/* Loads of 16 bytes that a lane's copy has under way: four registers each. A kernel whose warps
 * beside the engine have few sets it before it includes this. */
#ifndef CTA_LANES_AHEAD
#define CTA_LANES_AHEAD 8
#endif

/* A kernel in which warps and whole blocks run the same code sets it to 1 likewise: lanes are then a number like others, and loops that
 * only look are short. */
#ifndef CTA_LANES_VARY
#define CTA_LANES_VARY 0
#endif
enum { CTA_LOOKS = 32, CTA_LOOKS_AT_ONCE = CTA_LANES_VARY ? 1 : CTA_LOOKS };

struct mk_cta {
    MK_CTA_FIELDS;
    const struct gpu_launch *launch; /* a kernel parameter */
    uint32_t cta;                    /* its number */
    uint32_t which;                  /* of its CTA's tracks; a constant */
    uint32_t lanes;                  /* 1, 32 (a warp), or all threads of the block */
    uint32_t pace; /* ns that the lanes take to store 16 bytes each at least, or MK_PACE_NONE */
    /* shared memory: GPU_COPY_STAGES buffers, their barriers behind them */
    uint32_t stages;
    uint8_t *scratch;             /* of a block: shared memory for its tables (cta_route.cuh) */
    uint32_t next_stage;          /* pieces moved so far */
    uint32_t copying, copying_to; /* id and destination of the copy whose interval is open */
    uint64_t copy_start;          /* 0: none is open */
    uint64_t posted;              /* commands in this CTA's ring */
    uint64_t room;                /* `seen` of the ring when last read, plus its capacity */
    struct mk_track track;
};

PTX_FN uint32_t cta_lane(const struct mk_cta *cta)
{
    return CTA_LANES_VARY && cta->lanes > 32 ? ptx_opaque(threadIdx.x) : threadIdx.x % cta->lanes;
}

/* One lane speaks for all. */
PTX_FN bool cta_leads(const struct mk_cta *cta)
{
    return cta_lane(cta) == 0;
}

/* All lanes are here; what each has done before, all know of. */
PTX_FN void cta_meet(const struct mk_cta *cta)
{
    if (cta->lanes > 32)
        __syncthreads();
    else if (cta->lanes > 1)
        __syncwarp();
}

/* The lead's answer, 0 or 1, for all; what it has acquired, all have. (A shuffle alone orders no
 * memory accesses.) */
PTX_FN int cta_agree(const struct mk_cta *cta, int answer)
{
    if (cta->lanes > 32)
        return __syncthreads_or(answer);
    cta_meet(cta);
    return cta->lanes > 1 ? __shfl_sync(0xffffffff, answer, 0) : answer;
}

PTX_FN uint64_t *cta_flag(char *heap, uint32_t flag)
{
    return (uint64_t *)heap + flag;
}

PTX_FN void cta_record(struct mk_cta *cta, uint32_t kind, uint32_t cause, uint64_t argument,
                       uint64_t start, uint64_t end)
{
    mk_track_add(&cta->track, mk_event_what(kind, cause, argument), start, end);
}

PTX_FN uint64_t cta_time(const struct mk_cta *cta)
{
    return cta->track.events ? ptx_globaltimer() : 0;
}

/* Reports an expired wait: the first CTA of a rank does. The host makes the sentence of it, and of
 * what other CTAs wait for. */
PTX_FN void cta_report(struct mk_cta *cta, uint32_t flag, uint32_t cause, uint64_t seen,
                       uint64_t wanted, uint64_t waited)
{
    struct gpu_report *r = cta->launch->report;
    if (atomicCAS(cta->launch->ending, 0u, 1u))
        return;
    r->cta = cta->cta;
    r->role = cta->role;
    r->flag = flag;
    r->cause = cause;
    r->seen = seen;
    r->wanted = wanted;
    r->epoch = cta->epoch;
    r->waited_ns = waited;
    r->start = ptx_globaltimer() - waited;
    __threadfence_system();
    *(volatile uint32_t *)&r->failed = 1;
}

/* Called now and then by a wait that began at `start` and saw `seen` last. Shows a long wait in the
 * progress word. Returns 1, the wait is over, where it has timed out or the launch ends; the first
 * CTA that sees either reports its wait. */
PTX_FN int cta_wait_ends(struct mk_cta *cta, uint64_t start, uint64_t now, uint64_t seen,
                         uint64_t target, uint32_t flag, uint32_t cause, int *shown)
{
    const struct gpu_launch *l = cta->launch;
    volatile struct gpu_report *r = l->report;
    if (!*shown && now - start > 1000000) { /* a wait this long is worth a look from outside */
        r->progress[cta->cta] = cta->epoch << 32 | mk_event_what(MK_EV_WAIT, cause, flag);
        *shown = 1;
    }
    if (now - start <= l->timeout_ns && !*(volatile uint64_t *)l->ending)
        return 0;
    cta_report(cta, flag, cause, seen, target, now - start);
    return 1;
}

/* Notes what a long wait has seen, so that the host can name it beside another CTA's report. */
PTX_FN void cta_note_wait(const struct mk_cta *cta, uint64_t start, uint64_t seen, uint64_t target)
{
    volatile struct gpu_wait *w = &cta->launch->report->waits[cta->cta];
    w->start = start;
    w->seen = seen;
    w->wanted = target;
    w->role = cta->role;
}

/* Polls *word until it is at least `target`, at most the launch's timeout. `flag` names it in
 * reports. on_host: the word lies in host memory, where a tight loop would keep PCIe from
 * everything else: it is looked at less and less often. */
template <bool on_host>
PTX_FN int cta_poll(struct mk_cta *cta, const uint64_t *word, uint64_t target, uint32_t flag,
                    uint32_t cause)
{
    uint64_t start = ptx_globaltimer(), checked = start;
    uint64_t seen;
    uint32_t pause = 0;
    int shown = 0, ending = 0;
    while ((seen = ptx_load_acquire(word)) < target) {
        if (on_host)
            __nanosleep(pause = gpu_host_pause(pause, cta->count));
        uint64_t now = ptx_globaltimer();
        if (now - checked < 50000)
            continue;
        checked = now;
        int noted = shown;
        ending = cta_wait_ends(cta, start, now, seen, target, flag, cause, &shown);
        if (ending || shown != noted)
            cta_note_wait(cta, start, seen, target);
        if (ending)
            break;
    }
    if (shown && !ending)
        ((volatile struct gpu_report *)cta->launch->report)->progress[cta->cta] = cta->epoch << 32;
    if (cta->track.events)
        cta_record(cta, MK_EV_WAIT, cause, flag, start, ptx_globaltimer());
    return ending;
}

/* One thread: whether flags that follow each other are all at least `target` now. A look, which
 * takes as long for all as for one, and no trace shows it: ptx_fence_acquire and ptx_fence_async
 * follow where what they announce is to be read. */
PTX_FN bool cta_look(const struct mk_cta *cta, uint32_t flag, uint32_t count, uint64_t target)
{
    const uint64_t *word = cta_flag(cta->launch->heap, flag);
    bool all = true;
#pragma unroll 4
    for (uint32_t i = 0; i < count; i++)
        all &= ptx_load_relaxed(word + i) >= target;
    return all;
}

MK_ROLE_CALL int mk_cta_wait(struct mk_cta *cta, uint32_t flag, uint64_t target,
                             enum mk_cause cause)
{
    const uint64_t *word = cta_flag(cta->launch->heap, flag);
    int ending = 0;
    if (cta_leads(cta) && (ptx_load_acquire(word) < target || cta->track.events))
        ending = cta_poll<false>(cta, word, target, flag, cause);
    if (cta->lanes == 1)
        ptx_fence_async();
    return cta_agree(cta, ending);
}

MK_ROLE_CALL int mk_cta_wait_all(struct mk_cta *cta, uint32_t flag, uint32_t count, uint64_t target,
                                 enum mk_cause cause)
{
    int ending = 0;
    for (uint32_t i = 0; i < count && !ending; i++)
        ending = mk_cta_wait(cta, flag + i, target, cause);
    return ending;
}

/* A warp's lanes look at a flag each, and wait for one by one if some are not here for long: a look
 * takes as long for all as for one. With tracks all go one by one, whether the lead has one or not. */
MK_ROLE_CALL int mk_cta_wait_others(struct mk_cta *cta, uint32_t flag, uint32_t count, uint32_t own,
                                    uint64_t target, enum mk_cause cause)
{
    int ending = 0;
    if (cta->lanes == 32 && count <= 32 && !cta->launch->tracks) {
        const uint32_t lane = cta_lane(cta);
        const uint64_t *word = cta_flag(cta->launch->heap, flag) + lane;
#pragma unroll(CTA_LOOKS_AT_ONCE)
        for (uint32_t look = 0; look < CTA_LOOKS; look++) /* some 20 us */
            if (!__any_sync(0xffffffff,
                            lane < count && lane != own && ptx_load_acquire(word) < target)) {
                cta_meet(cta); /* what one lane has acquired, all have */
                return 0;
            }
    }
    for (uint32_t i = 0; i < count && !ending; i++)
        if (i != own)
            ending = mk_cta_wait(cta, flag + i, target, cause);
    return ending;
}

PTX_FN uint32_t cta_stage_barrier(const struct mk_cta *cta, uint32_t stage)
{
    return cta->stages + GPU_COPY_STAGES * GPU_COPY_STAGE_BYTES + stage * 8;
}

/* Closes the open copy's interval, at the time when it is known to be done. */
PTX_FN void cta_copy_record(struct mk_cta *cta)
{
    if (!cta->copy_start)
        return;
    cta_record(cta, MK_EV_COPY, cta->copying_to, cta->copying, cta->copy_start, ptx_globaltimer());
    cta->copy_start = 0;
}

PTX_FN void cta_copy_open(struct mk_cta *cta, uint32_t local, uint32_t id)
{
    cta_copy_record(cta);
    cta->copy_start = cta_time(cta);
    cta->copying = id;
    cta->copying_to = local;
}

/* Rows are moved in pieces that fill a stage at most. */
PTX_FN uint32_t cta_piece(const struct mk_chunk *chunk, uint32_t piece, uint32_t row_pieces,
                          uint64_t pitch, uint64_t *at)
{
    uint64_t in = (uint64_t)(piece % row_pieces) * GPU_COPY_STAGE_BYTES, rest = chunk->bytes - in;
    *at = piece / row_pieces * pitch + in;
    return rest < GPU_COPY_STAGE_BYTES ? (uint32_t)rest : GPU_COPY_STAGE_BYTES;
}

/* A thread's copy. Two stages hold stores on their way out, the others loads on their way in. */
PTX_FN void cta_copy_thread(struct mk_cta *cta, const char *source, uint64_t source_pitch,
                            char *destination, uint64_t destination_pitch,
                            const struct mk_chunk *chunk, uint32_t rows)
{
    const struct barrier_watch watch = {cta->launch->report->stuck, cta->launch->timeout_ns};
    uint32_t row_pieces = (uint32_t)mk_ceil_div(chunk->bytes, GPU_COPY_STAGE_BYTES),
             ahead = GPU_COPY_STAGES - 2;
    uint32_t pieces = rows * row_pieces, bytes;
    uint64_t at;
    for (uint32_t i = 0; i < pieces + ahead; i++) {
        if (i < pieces) {
            /* The store that last used this stage is GPU_COPY_STAGES pieces back; the one newest
             * store may still read. */
            uint32_t stage = (cta->next_stage + i) % GPU_COPY_STAGES;
            bytes = cta_piece(chunk, i, row_pieces, source_pitch, &at);
            ptx_bulk_wait_read<1>();
            ptx_mbar_expect(cta_stage_barrier(cta, stage), bytes);
            ptx_bulk_load(cta->stages + stage * GPU_COPY_STAGE_BYTES, source + at, bytes,
                          cta_stage_barrier(cta, stage));
        }
        if (i >= ahead) {
            uint32_t number = cta->next_stage + i - ahead, stage = number % GPU_COPY_STAGES;
            bytes = cta_piece(chunk, i - ahead, row_pieces, destination_pitch, &at);
            barrier_wait(&watch, cta_stage_barrier(cta, stage),
                         mbar_phase_of_ring<GPU_COPY_STAGES>(number), GPU_BARRIER_COPY, stage,
                         number);
            ptx_bulk_store(destination + at, cta->stages + stage * GPU_COPY_STAGE_BYTES, bytes);
            ptx_bulk_commit();
        }
    }
    cta->next_stage += pieces;
}

PTX_FN void cta_copy_rows(struct mk_cta *cta, const char *source, uint64_t source_pitch,
                          char *destination, uint64_t destination_pitch,
                          const struct mk_chunk *chunk, uint32_t rows, uint32_t pace)
{
    if (cta->lanes > 1 || !PTX_HOPPER)
        lanes_copy_rows<CTA_LANES_AHEAD, 16>(cta_lane(cta), cta->lanes, source, source_pitch,
                                             destination, destination_pitch, rows,
                                             (uint32_t)(chunk->bytes / 16), pace);
    else
        cta_copy_thread(cta, source, source_pitch, destination, destination_pitch, chunk, rows);
}

PTX_FN void mk_cta_copy_rows(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk,
                             uint32_t rows, uint64_t source_pitch, uint64_t destination_pitch)
{
    cta_copy_open(cta, local, chunk->id);
    cta_copy_rows(cta, cta->launch->arguments[chunk->space] + chunk->source, source_pitch,
                  cta->launch->peers[local] + chunk->destination, destination_pitch, chunk, rows,
                  cta->pace);
}

PTX_FN void mk_cta_deliver(struct mk_cta *cta, enum mk_space space, const struct mk_chunk *chunk,
                           uint32_t rows, uint64_t pitch)
{
    cta_copy_open(cta, cta->launch->local, chunk->id);
    cta_copy_rows(cta, cta->launch->arguments[chunk->space] + chunk->source, chunk->bytes,
                  (char *)cta->launch->arguments[space] + chunk->destination, pitch, chunk, rows,
                  MK_PACE_NONE);
}

PTX_FN void mk_cta_copy_packed(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk,
                               uint32_t rows, uint64_t pitch)
{
    const char *source = cta->launch->arguments[chunk->space] + chunk->source;
    char *destination = cta->launch->peers[local] + chunk->destination;
    cta_copy_open(cta, local, chunk->id);
    lanes_copy_packed<8, 2>(cta_lane(cta), cta->lanes, source, pitch, destination, rows,
                            (uint32_t)(chunk->bytes / 16) / rows, cta->pace);
}

PTX_FN void mk_cta_copy(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk)
{
    mk_cta_copy_rows(cta, local, chunk, 1, 0, 0);
    /* Words behind the last 16 bytes: lanes alone copy such chunks, of arguments of 4-byte numbers.
     */
    uint32_t words = chunk->bytes % 16 / 4;
    if (cta->lanes > 1 && cta_lane(cta) < words) {
        uint64_t at = chunk->bytes / 16 * 16 + cta_lane(cta) * 4;
        *(uint32_t *)(cta->launch->peers[local] + chunk->destination + at) =
            *(const uint32_t *)(cta->launch->arguments[chunk->space] + chunk->source + at);
    }
}

/* Everything that this thread has copied is written, and visible before what it stores next. */
PTX_FN void cta_settle(struct mk_cta *cta)
{
    cta_meet(cta); /* the lead's release speaks for all lanes */
    if (cta->lanes == 1) {
        ptx_bulk_wait_all();
        ptx_fence_async();
    }
    if (cta->track.events)
        cta_copy_record(cta);
}

PTX_FN void cta_record_signal(struct mk_cta *cta, uint32_t local, uint32_t flag)
{
    uint64_t now = cta_time(cta);
    cta_record(cta, MK_EV_SIGNAL, local, flag, now, now);
}

MK_ROLE_CALL void mk_cta_signal(struct mk_cta *cta, uint32_t local, uint32_t flag, uint64_t value)
{
    cta_settle(cta);
    if (cta_leads(cta))
        ptx_store_release(cta_flag(cta->launch->peers[local], flag), value);
    cta_record_signal(cta, local, flag);
}

MK_ROLE_CALL void mk_cta_add(struct mk_cta *cta, uint32_t local, uint32_t flag, uint64_t count)
{
    cta_settle(cta);
    if (cta_leads(cta))
        ptx_add_release(cta_flag(cta->launch->peers[local], flag), count);
    cta_record_signal(cta, local, flag);
}

/* Lanes tell a rank each: one fence then speaks for all of them. Unrolled, the loops cost gemm_ar
 * spilled registers. */
MK_ROLE_CALL void mk_cta_add_each(struct mk_cta *cta, uint32_t ranks, uint32_t flag, uint64_t count)
{
    cta_settle(cta);
#pragma unroll 1
    for (uint32_t local = cta_lane(cta); local < MK_MAX_LOCAL && ranks >> local;
         local += cta->lanes)
        if (ranks >> local & 1)
            ptx_add_release(cta_flag(cta->launch->peers[local], flag), count);
#pragma unroll 1
    for (uint32_t local = 0; ranks >> local && cta->track.events; local++)
        if (ranks >> local & 1)
            cta_record_signal(cta, local, flag);
}

/* Waits for room in the ring. The word lies in host memory; it is read when the last value read
 * leaves no room. */
PTX_FN int cta_ring_room(struct mk_cta *cta, struct mk_ring *ring)
{
    if (cta->posted < cta->room)
        return 0;
    uint64_t capacity = cta->launch->ring_capacity;
    int ending = cta_poll<true>(cta, &ring->seen, cta->posted + 1 - capacity, UINT32_MAX,
                                MK_CAUSE_BACKPRESSURE);
    cta->room = *(volatile uint64_t *)&ring->seen + capacity;
    return ending;
}

/* Its command ring: those of inter_reduce stand behind those of inter_send. */
PTX_FN uint32_t cta_ring(const struct mk_cta *cta)
{
    return cta->index + (cta->role == MK_INTER_REDUCE ? cta->launch->split.ctas[MK_INTER_SEND] : 0);
}

PTX_FN int cta_post(struct mk_cta *cta, struct mk_command command)
{
    struct mk_ring *ring = cta->launch->rings[cta_ring(cta)];
    if (cta_ring_room(cta, ring))
        return 1;
    uint64_t capacity = cta->launch->ring_capacity;
    command.lo = (command.lo & ~(uint64_t)1) | mk_ring_parity(capacity, cta->posted);
    uint64_t now = cta_time(cta);
    ptx_store_16(&ring->slots[cta->posted & (capacity - 1)], command.lo, command.hi);
    cta_record(cta, MK_EV_COMMAND, MK_CAUSE_NONE, cta->posted, now, now);
    cta->posted++;
    return 0;
}

PTX_FN int mk_cta_put(struct mk_cta *cta, uint32_t rank, const struct mk_chunk *chunk,
                      uint32_t flag)
{
    int ending = 0;
    /* What this CTA's lanes have staged or acquired must be in memory before the NIC is told to
     * read it: the barrier orders it before the leader's fence, and fences are cumulative (PTX ISA,
     * memory consistency model: causality order). */
    cta_settle(cta);
    if (cta_leads(cta)) {
        __threadfence_system();
        ending = cta_post(
            cta, mk_command_put(rank, chunk->source, chunk->destination, chunk->bytes, flag, 0));
    }
    return cta_agree(cta, ending);
}

MK_ROLE_CALL int mk_cta_drain(struct mk_cta *cta)
{
    struct mk_ring *ring = cta->launch->rings[cta_ring(cta)];
    int ending = 0;
    if (cta_leads(cta))
        ending = cta_poll<true>(cta, &ring->completed, cta->posted, UINT32_MAX, MK_CAUSE_NETWORK);
    return cta_agree(cta, ending);
}

/* Which role CTA `cta` of the grid has. */
PTX_FN void cta_role_of(const struct mk_role_split *split, uint32_t cta, uint32_t *role,
                        uint32_t *index)
{
    *role = 0;
    while (cta >= split->ctas[*role])
        cta -= split->ctas[(*role)++];
    *index = cta;
}

/* The launch's number, from 1. `left` counts blocks that have left: all of each launch before, and
 * never all of this one, since every thread asks before its block leaves. So the epoch advances on
 * the device, a launch can be captured in a graph and replayed, and no block waits at a launch's
 * end to find out which is the last. */
PTX_FN uint64_t cta_epoch(const struct gpu_launch *launch)
{
    ptx_await_launches(); /* the caller touches memory next */
    return ptx_load_relaxed(launch->left) / gridDim.x + 1;
}

/* Fills the struct of the thread or of each lane that runs CTA `number`, without a track. lanes: 1,
 * 32 or the block. */
PTX_FN void cta_identify(struct mk_cta *cta, const struct gpu_launch *launch, uint32_t number,
                         uint32_t lanes)
{
    cta->launch = launch;
    cta->cta = number;
    cta->which = GPU_TRACK_OWN;
    cta->lanes = lanes;
    cta->pace = MK_PACE_NONE;
    cta_role_of(&launch->split, number, &cta->role, &cta->index);
    cta->count = launch->split.ctas[cta->role];
    cta->epoch = cta_epoch(launch);
    cta->stages = cta->next_stage = cta->copying = cta->copying_to = 0;
    cta->copy_start = cta->posted = cta->room = 0;
    cta->scratch = NULL;
    cta->track.events = NULL;
}

/* The same, and opens its track. */
PTX_FN void cta_resume(struct mk_cta *cta, const struct gpu_launch *launch, uint32_t number,
                       uint32_t lanes, uint32_t which = GPU_TRACK_OWN)
{
    cta_identify(cta, launch, number, lanes);
    cta->which = which;
    if (launch->tracks && cta_leads(cta))
        cta->track = launch->tracks[number * GPU_TRACK_WARPS + which];
}

/* The same for the first. */
PTX_FN void cta_begin(struct mk_cta *cta, const struct gpu_launch *launch, uint32_t number,
                      uint32_t lanes, uint32_t which = GPU_TRACK_OWN)
{
    cta_resume(cta, launch, number, lanes, which);
    uint64_t now = cta_time(cta);
    cta_record(cta, MK_EV_LAUNCH, launch->plan & 15, cta->epoch, now, now);
}

/* For a thread that copies: its stages in shared memory at `memory` (GPU_COPY_SHARED_BYTES of
 * it). */
PTX_FN void cta_begin_copies(struct mk_cta *cta, uint32_t memory)
{
    cta->stages = (memory + 127) & ~127u;
    for (uint32_t i = 0; i < GPU_COPY_STAGES; i++)
        ptx_mbar_init(cta_stage_barrier(cta, i), 1);
    ptx_mbar_init_fence();
}

/* For a CTA that posts: its ring, and the command that names the launch. */
PTX_FN int cta_begin_commands(struct mk_cta *cta)
{
    struct mk_ring *ring = cta->launch->rings[cta_ring(cta)];
    int ending = 0;
    if (cta_leads(cta)) {
        cta->posted = cta->launch->posted[cta_ring(cta)];
        cta->room = *(volatile uint64_t *)&ring->seen + cta->launch->ring_capacity;
        ending = cta_post(cta, mk_command_begin(cta->launch->plan, cta->epoch, 0));
    }
    return cta_agree(cta, ending);
}

/* The thread is done with its copies, ring and track. */
PTX_FN void cta_end(struct mk_cta *cta)
{
    ptx_bulk_wait_all(); /* shared memory is read until then */
    if (cta->posted)     /* the lead's alone */
        cta->launch->posted[cta_ring(cta)] = cta->posted;
    if (cta->launch->tracks && cta_leads(cta))
        cta->launch->tracks[cta->cta * GPU_TRACK_WARPS + cta->which] = cta->track;
}

/* One thread of each block, last of all: the block has left. */
PTX_FN void cta_leave(const struct gpu_launch *launch)
{
    ptx_await_launches(); /* no block of this launch counts before those of the one before */
    atomicAdd((unsigned long long *)launch->left, 1ull);
}

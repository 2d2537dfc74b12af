/*
 * The PTX instructions that the kernels use, one function each, with its contract. Nothing here
 * knows about tiles or roles. Section numbers are those of the PTX ISA 8.8 manual (CUDA 12.9);
 * 9.0 (CUDA 13.0) keeps them.
 *
 * Shared memory is named by its 32-bit address in the .shared::cta window (ptx_shared). A CTA's own
 * window is also valid where an instruction wants .shared::cluster (5.1.7.1), and stands for the
 * executing CTA.
 */
#pragma once

#include <cuda.h>
#include <stdint.h>

#define PTX_FN static __device__ __forceinline__

#include "kernels/engine/barrier_types.cuh"

/* Whether what came with compute capability 9.0 is there. Where it is not, a function that says so
 * is what it must be among instructions of 8.0, and the others are Hopper's engines' alone. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define PTX_HOPPER 0
#else
#define PTX_HOPPER 1
#endif

/* Variables of a block in shared memory, type name[count], at namespace scope or in a function; and
 * its dynamic shared memory, in a kernel. By these, because a compiler that has no blocks cannot be
 * told by a keyword. */
#define PTX_SHARED(type, name, count) static __shared__ type name[count]
#define PTX_SHARED_DYNAMIC(name) extern __shared__ uint8_t name[]
#define PTX_SHARED_DYNAMIC_ALIGNED(name, bytes)                                                    \
    extern __shared__ __align__(bytes)                                                             \
    uint8_t name[]

PTX_FN uint32_t ptx_shared(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- Time and place
 * ------------------------------------------------------------------------------------------- */

/* Returns v; the compiler cannot know that it does. */
PTX_FN uint32_t ptx_opaque(uint32_t v)
{
    asm volatile("" : "+r"(v));
    return v;
}

/* Nanoseconds since some start, ticking every 32 ns on Hopper; not comparable between GPUs (10,
 * %globaltimer). */
PTX_FN uint64_t ptx_globaltimer(void)
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* This CTA's rank in its cluster; 0 where the launch has no clusters (10, %cluster_ctarank). */
PTX_FN uint32_t ptx_cluster_rank(void)
{
    uint32_t r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

/* True in exactly one lane of a converged warp, always the same one (9.7.13.17, elect.sync). Before
 * Hopper: the first. */
PTX_FN bool ptx_elect(void)
{
    if (!PTX_HOPPER)
        return threadIdx.x % 32 == 0;
    uint32_t elected;
    asm volatile("{\n .reg .pred p;\n elect.sync _|p, 0xffffffff;\n selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(elected));
    return elected != 0;
}

/* ---- Flags and commands: ordered accesses to global memory, a peer's and the host's too
 * ------------------------------------------------------------------------------------- */

/* Acquire at system scope: what was written before the release that stored this value is visible
 * after it (9.7.9.8). */
PTX_FN uint64_t ptx_load_acquire(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

/* A look at a flag, relaxed at system scope: several are under way at once. What they announce is
 * visible once ptx_fence_acquire has followed (9.7.13.4, fence.acq_rel). */
PTX_FN uint64_t ptx_load_relaxed(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
PTX_FN void ptx_fence_acquire(void)
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/* Release at system scope: what this thread has written before, and what it has acquired, is
 * visible before the word is (9.7.9.11). */
PTX_FN void ptx_store_release(uint64_t *p, uint64_t v)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

/* The same as an atomic addition (9.7.13.6, red). */
PTX_FN void ptx_add_release(uint64_t *p, uint64_t v)
{
    asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

/* The same at GPU scope, for readers on this GPU alone. */
PTX_FN void ptx_add_release_here(uint64_t *p, uint64_t v)
{
    asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

/* 128 bytes around p come to L2: a hint (9.7.9.17, prefetch). */
PTX_FN void ptx_prefetch_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* A word that is its own flag, for readers on this GPU: relaxed, so it announces nothing else
 * (9.7.9.8, ld.relaxed; 9.7.9.11). */
PTX_FN void ptx_store_here(uint64_t *p, uint64_t v)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
PTX_FN uint64_t ptx_load_here(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

/* 16 bytes, 16-byte aligned, in one access: no reader sees half of them (9.7.9.11: .b128 stores are
 * single accesses). Relaxed. */
PTX_FN void ptx_store_16(void *dst, uint64_t low, uint64_t high)
{
    asm volatile("{\n .reg .b128 both;\n mov.b128 both, {%1, %2};\n"
                 " st.relaxed.sys.global.b128 [%0], both;\n}" ::"l"(dst),
                 "l"(low), "l"(high)
                 : "memory");
}

/* ---- Barriers and fences
 * -------------------------------------------------------------------------------------- */

/* Every thread of the cluster arrives and waits; orders their memory accesses at cluster scope
 * (9.7.13.4). All threads of a warp must call it together. */
PTX_FN void ptx_cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* Threads of the CTA, whole warps, meet at one of its barriers (9.7.13.1). */
PTX_FN void ptx_bar_sync(struct named_barrier at)
{
    asm volatile("bar.sync %0, %1;" ::"r"(at.id), "r"(at.threads) : "memory");
}

/* As ptx_bar_sync. Whether `mine` was true in any of these threads. */
PTX_FN bool ptx_bar_any(struct named_barrier at, bool mine)
{
    uint32_t any;
    asm volatile("{\n"
                 ".reg .pred p, q;\n"
                 "setp.ne.u32 p, %3, 0;\n"
                 "bar.red.or.pred q, %1, %2, p;\n"
                 "selp.u32 %0, 1, 0, q;\n"
                 "}"
                 : "=r"(any)
                 : "r"(at.id), "r"(at.threads), "r"((uint32_t)mine)
                 : "memory");
    return any != 0;
}

/* Counts this warp in as ptx_bar_sync does, and goes on: a thread that waits there is let
 * through when the last has come. */
PTX_FN void ptx_bar_arrive(struct named_barrier at)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(at.id), "r"(at.threads) : "memory");
}

/* Shared memory written by this thread's ordinary stores becomes visible to the asynchronous proxy
 * (TMA, wgmma), once a barrier has followed (9.7.13.5, fence.proxy.async). Before Hopper there is
 * no such proxy, and nothing to do. */
PTX_FN void ptx_fence_async_shared(void)
{
    if (PTX_HOPPER)
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* The same for all state spaces: stands between this thread's acquire of a flag and a TMA load of
 * the data behind it, and between TMA stores that have completed and an ordinary release. */
PTX_FN void ptx_fence_async(void)
{
    if (PTX_HOPPER)
        asm volatile("fence.proxy.async;" ::: "memory");
}

/* ---- launches that follow each other ----
 *
 * A kernel that is launched with cudaLaunchAttributeProgrammaticStreamSerialization begins where
 * the one before it in its stream has room for it, once all blocks of that one have called
 * ptx_launch_next or have ended; and no later than without. ptx_await_launches returns when all
 * that came before in the stream has ended and what it wrote is visible; without the attribute, at
 * once (9.7.13.13). Before Hopper there is no such attribute. */
PTX_FN void ptx_launch_next(void)
{
    if (PTX_HOPPER)
        asm volatile("griddepcontrol.launch_dependents;");
}

PTX_FN void ptx_await_launches(void)
{
    if (PTX_HOPPER)
        asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* ---- mbarriers (9.7.13.15)
 * ------------------------------------------------------------------------------------ */

/* One thread, before the barrier's first use; follow with ptx_mbar_init_fence and a CTA or cluster
 * barrier. A phase completes after `arrivals` arrivals and as many bytes as were expected. */
PTX_FN void ptx_mbar_init(uint32_t bar, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

/* Makes the initialisations visible to the cluster and to the asynchronous proxy (9.7.13.4,
 * fence.mbarrier_init). Before Hopper there are neither. */
PTX_FN void ptx_mbar_init_fence(void)
{
    if (PTX_HOPPER)
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Arrives, and makes the current phase also wait for `bytes` bytes of TMA loads. Release at CTA
 * scope. */
PTX_FN void ptx_mbar_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

/* Arrives at this CTA's barrier. Release at CTA scope. */
PTX_FN void ptx_mbar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* Arrives at the barrier that lies at the same address in CTA `rank` of the cluster. Relaxed: it
 * orders no writes of this thread. For a thread that has only read the shared memory which it gives
 * back, and has those reads behind it (wgmma_wait). */
PTX_FN void ptx_mbar_arrive_at(uint32_t bar, uint32_t rank)
{
    asm volatile("{\n .reg .b32 remote;\n"
                 " mapa.shared::cluster.u32 remote, %0, %1;\n"
                 " mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote];\n}" ::"r"(bar),
                 "r"(rank)
                 : "memory");
}

/* The same for a thread that has read it by loads of its own, or speaks for others that have. */
PTX_FN void ptx_mbar_arrive_at_release(uint32_t bar, uint32_t rank)
{
    asm volatile("{\n .reg .b32 remote;\n"
                 " mapa.shared::cluster.u32 remote, %0, %1;\n"
                 " mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n}" ::"r"(bar),
                 "r"(rank)
                 : "memory");
}

/* Stores 16 bytes, 16-byte aligned, at the same address in CTA `rank` of the cluster, some time later,
 * and completes them on the barrier at the same address there: who waits for it finds them. Orders
 * nothing else (9.7.9.12, st.async). */
PTX_FN void ptx_store_async_4(uint32_t dst, uint32_t bar, uint32_t rank, uint4 v)
{
    asm volatile("{\n .reg .b32 to, remote;\n"
                 " mapa.shared::cluster.u32 to, %0, %2;\n"
                 " mapa.shared::cluster.u32 remote, %1, %2;\n"
                 " st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [to], "
                 "{%3, %4, %5, %6}, [remote];\n}" ::"r"(dst),
                 "r"(bar), "r"(rank), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

/* True when the phase has completed; acquire at CTA scope then. */
PTX_FN bool ptx_mbar_test(uint32_t bar, struct mbar_phase phase)
{
    uint32_t done;
    asm volatile("{\n .reg .pred p;\n"
                 " mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 " selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(bar), "r"(phase.parity)
                 : "memory");
    return done != 0;
}

/* The same. On Hopper it suspends the thread for a short time that the hardware bounds, before it
 * returns false. */
PTX_FN bool ptx_mbar_try(uint32_t bar, struct mbar_phase phase)
{
    if (!PTX_HOPPER)
        return ptx_mbar_test(bar, phase);
    uint32_t done;
    asm volatile("{\n .reg .pred p;\n"
                 " mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 " selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(bar), "r"(phase.parity)
                 : "memory");
    return done != 0;
}

/* Ends the launch with an error, soon: a store to where no memory is. Not C's __trap, since ptxas
 * (CUDA 13.0) gives warps that may come to a trap the registers that they have at entry, as if
 * there were no setmaxnreg. */
PTX_FN void ptx_fail(void)
{
    asm volatile("st.global.u32 [%0], %1;" ::"l"(0ull), "r"(0) : "memory");
}

/* Tells the emulation, which looks for reads of memory that was never written, that these bytes may
 * be read so: the result is not used. */
PTX_FN void ptx_shared_left(uint32_t, uint32_t)
{
}

/* Waits for the phase. A wait that outlasts `limit_ns` is a bug in the kernel (what
 * can be late, flags of other GPUs, is waited for elsewhere and with a message), so it fails the
 * launch instead of hanging. What a launch waits for before it begins is not counted. */
PTX_FN void ptx_mbar_wait(uint32_t bar, struct mbar_phase phase, uint64_t limit_ns)
{
    if (ptx_mbar_try(bar, phase))
        return;
    ptx_await_launches();
    uint64_t start = ptx_globaltimer();
    for (uint32_t tries = 1; !ptx_mbar_try(bar, phase); tries++) {
        if (tries % 64 == 0 && ptx_globaltimer() - start > limit_ns)
            ptx_fail();
    }
}

/* ---- Bulk copies, the TMA unit (9.7.9.25)
 * ---------------------------------------------------------------------- */

/* Every TMA load below completes `bytes of the box` on `bar`, elements outside the tensor included
 * (they arrive as zeros). Destinations are 128-byte aligned, 1024 for the 128-byte swizzle. One
 * thread calls. */
PTX_FN void ptx_tma_load_3d(uint32_t dst, const CUtensorMap *map, uint32_t bar, int32_t x,
                            int32_t y, int32_t z)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

/* The same of what is read once: it leaves L2 before anything else does (9.7.9.18, createpolicy). */
PTX_FN void ptx_tma_load_3d_once(uint32_t dst, const CUtensorMap *map, uint32_t bar, int32_t x,
                                 int32_t y, int32_t z)
{
    asm volatile("{ .reg .b64 policy;\n\t"
                 "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n\t"
                 "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], policy; }" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

PTX_FN void ptx_tma_load_4d(uint32_t dst, const CUtensorMap *map, uint32_t bar, int32_t x,
                            int32_t y, int32_t z, int32_t w)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

/* Delivers the box to the same address in every CTA of the cluster whose bit is set in `ranks`, and
 * completes its bytes on the barrier at the same address there. (Within a cluster; this has nothing
 * to do with NVLink multicast.) */
PTX_FN void ptx_tma_load_3d_cluster(uint32_t dst, const CUtensorMap *map, uint32_t bar, int32_t x,
                                    int32_t y, int32_t z, uint16_t ranks)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "h"(ranks)
                 : "memory");
}

/* Stores the part of the box that lies inside the tensor. Belongs to this thread's next bulk
 * group. */
PTX_FN void ptx_tma_store_3d(const CUtensorMap *map, uint32_t src, int32_t x, int32_t y, int32_t z)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::
            "l"(map),
        "r"(src), "r"(x), "r"(y), "r"(z)
        : "memory");
}

PTX_FN void ptx_tma_store_4d(const CUtensorMap *map, uint32_t src, int32_t x, int32_t y, int32_t z,
                             int32_t w)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, "
                 "%5}], [%1];" ::"l"(map),
                 "r"(src), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

/* Plain bulk copies between shared and global memory (a peer's too): 16-byte aligned, a multiple of
 * 16 bytes.
 */
PTX_FN void ptx_bulk_load(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(dst),
        "l"(src), "r"(bytes), "r"(bar)
        : "memory");
}

/* The same into those CTAs of the cluster whose bits are set in `ranks`, at the same address, and
 * for the barrier that each has there. */
PTX_FN void ptx_bulk_load_cluster(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar,
                                  uint16_t ranks)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(bar), "h"(ranks)
                 : "memory");
}

PTX_FN void ptx_bulk_store(void *dst, uint32_t src, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(src),
                 "r"(bytes)
                 : "memory");
}

/* 16 bytes of global memory from L2: what TMA or another SM has written since this SM last read
 * there (9.7.9.8). */
PTX_FN uint4 ptx_load_16_l2(const void *src)
{
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(src)
                 : "memory");
    return v;
}

PTX_FN uint2 ptx_load_8_l2(const void *src)
{
    uint2 v;
    asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(src)
                 : "memory");
    return v;
}

/* Four floats as they are, in other registers: accumulators of a wgmma may be read by what ends at
 * once, but where they are a store's own operands, ptxas serialises the products (C7520). */
PTX_FN uint4 ptx_copy_4(const float *d)
{
    uint4 v;
    asm volatile("mov.b32 %0, %4;\n mov.b32 %1, %5;\n mov.b32 %2, %6;\n mov.b32 %3, %7;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]));
    return v;
}

/* Closes this thread's current bulk group. */
PTX_FN void ptx_bulk_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until at most `pending` of this thread's bulk groups still have to read their shared
 * memory. */
template <int pending> PTX_FN void ptx_bulk_wait_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

/* Waits until all of this thread's bulk stores have been written: what must stand before a flag
 * that announces them. Before Hopper there are none. */
PTX_FN void ptx_bulk_wait_all(void)
{
    if (PTX_HOPPER)
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* This thread copies `bytes` (0 to 16) of 16 from global to shared memory, both 16-byte aligned,
 * and zeros for the rest, by the generic proxy. The copies so far become a group by commit; wait
 * returns when all groups but the last `pending` are there, for this thread: a barrier tells others
 * (9.7.9.25.3). */
PTX_FN void ptx_copy_async_16(uint32_t dst, const void *src, uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes)
                 : "memory");
}

/* Of 4 bytes, both 4-byte aligned. */
PTX_FN void ptx_copy_async_4(uint32_t dst, const void *src)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(dst), "l"(src) : "memory");
}

PTX_FN void ptx_copy_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int pending> PTX_FN void ptx_copy_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/* Fetches the descriptor ahead of its first use (9.7.9.15). */
PTX_FN void ptx_tensormap_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* ---- Registers and the way out of them
 * ------------------------------------------------------------------------- */

/* All four warps of a warpgroup call the same one. Give back first (dec) what the others then take
 * (inc, which waits until it is there). Needs a register cap at entry: __launch_bounds__(threads,
 * 1) (9.7.19.5). */
template <int registers> PTX_FN void ptx_registers_dec(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

template <int registers> PTX_FN void ptx_registers_inc(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

/* The warp stores four 8x8 matrices of 16-bit elements. Lane l passes the address (16-byte aligned)
 * of row l % 8 of matrix l / 8, and in register m two neighbours of row l / 4 of matrix m: columns
 * 2 * (l % 4) and the next (9.7.14.5.16). */
PTX_FN void ptx_stmatrix_x4(uint32_t dst, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(dst),
                 "r"(r0), "r"(r1), "r"(r2), "r"(r3)
                 : "memory");
}

/* 2^x, within 2 units in the last place; 0 for -infinity, and where the result would be denormal
 * (9.7.3.21, ex2). */
PTX_FN float ptx_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The base-2 logarithm, within 2^-22 absolutely near 1 and 2^-22 relatively elsewhere (9.7.3.20,
 * lg2). */
PTX_FN float ptx_log2(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 1 / x within one unit in the last place (9.7.3.14, rcp). */
PTX_FN float ptx_reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Nothing that follows is begun before x, which is not negative, is computed: ptxas moves
 * arithmetic past waits, not past branches. */
PTX_FN void ptx_after(float x)
{
    if (x < 0)
        asm volatile("nanosleep.u32 1;");
}

/* A word of shared memory that another thread has written before a barrier. */
PTX_FN uint32_t ptx_load_shared(uint32_t src)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(src) : "memory");
    return v;
}

PTX_FN void ptx_store_shared(uint32_t dst, uint32_t v)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(dst), "r"(v) : "memory");
}

/* The same of 16 bytes, at a multiple of 16. */
PTX_FN uint4 ptx_load_shared_4(uint32_t src)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(src)
                 : "memory");
    return v;
}

PTX_FN void ptx_store_shared_4(uint32_t dst, uint4 v)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(dst), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}

/* The way back, and back transposed (9.7.14.5.15). */
PTX_FN void ptx_ldmatrix_x4(uint32_t src, uint32_t (&r)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(src)
                 : "memory");
}

PTX_FN void ptx_ldmatrix_x4_transposed(uint32_t src, uint32_t (&r)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(src)
                 : "memory");
}

/* Two floats rounded to nearest even, `low` in the lower half (9.7.9.22). */
PTX_FN uint32_t ptx_pack_bf16(float low, float high)
{
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

/* The same as fp16, IEEE half: from 65520 on infinity. And back, each half of a pair. */
PTX_FN uint32_t ptx_pack_f16(float low, float high)
{
    uint32_t packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

PTX_FN float ptx_low_f16(uint32_t pair)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((uint16_t)pair));
    return f;
}

PTX_FN float ptx_high_f16(uint32_t pair)
{
    return ptx_low_f16(pair >> 16);
}

/* Two floats as e4m3, rounded to nearest even and saturated, `low` in the lower byte; NaN is 0x7f
 * (9.7.9.22). kernels/engine/quantize.cuh has it for GPUs before 8.9. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
PTX_FN uint32_t ptx_pack_e4m3(float low, float high)
{
    uint16_t packed;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
    return packed;
}
#endif

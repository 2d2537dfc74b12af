/* What kernels compiled for the CPU call: one function for each thing that an instruction does, in
 * C so that the machine behind it is. The C++ side (include/) gives these the names that CUDA and
 * kernels/engine/ptx.cuh have. All are called inside a thread of a running kernel, may suspend it, and do
 * not return where they find a mistake. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hopper_xyz {
    uint32_t x, y, z;
};

/* The thread that runs, and the line that called last, for messages. */
struct hopper_place {
    struct hopper_xyz thread, block, block_size, grid_size;
    const char *file; /* NULL: `pc` */
    int line;
    uint64_t pc;
};
extern __thread struct hopper_place *hopper_self;

/* A box of a tensor in global memory. `encoded` is a CUtensorMap. */
struct hopper_box {
    const void *encoded;
    uint32_t rank; /* the instruction's: 1 .. 5 */
    int32_t at[5]; /* innermost first */
};

enum hopper_reduction { HOPPER_STORE, HOPPER_ADD, HOPPER_MIN, HOPPER_MAX };
enum hopper_number {
    HOPPER_BYTES,
    HOPPER_F32,
    HOPPER_BF16,
    HOPPER_F16,
    HOPPER_U32,
    HOPPER_S32,
    HOPPER_U64
};
enum hopper_scope { HOPPER_CTA, HOPPER_CLUSTER, HOPPER_GPU, HOPPER_SYSTEM };

void hopper_here(const char *file, int line);

/* Shared memory. */
void *hopper_dynamic_shared(void);
void *hopper_dynamic_shared_aligned(uint32_t align); /* a power of two */
void *hopper_static_shared(uint32_t number);         /* of the block's */
/* at start of the program: number of a variable */
uint32_t hopper_static_place(uint32_t bytes, uint32_t align);
uint32_t hopper_shared_address(const void *p);
/* may be read though nobody has written it: the pattern that a block begins with */
void hopper_shared_left(uint32_t address, uint32_t bytes);
void hopper_shared_store(uint32_t address, const void *from, uint32_t bytes);
void hopper_shared_load(uint32_t address, void *to, uint32_t bytes);
/* ordinary loads that have a function */
void hopper_global_load(const void *address, void *to, uint32_t bytes);

/* Time. */
uint64_t hopper_globaltimer(void);

/* A warp. `value` of the lanes in `mask`. */
enum hopper_collective {
    HOPPER_SYNCWARP,
    HOPPER_SHUFFLE,
    HOPPER_SHUFFLE_XOR,
    HOPPER_SHUFFLE_UP,
    HOPPER_SHUFFLE_DOWN,
    HOPPER_BALLOT,
    HOPPER_REDUCE_MAX,
    HOPPER_REDUCE_MIN,
    HOPPER_REDUCE_ADD,
    HOPPER_MATCH,
    HOPPER_ELECT,
    HOPPER_STMATRIX,
    HOPPER_LDMATRIX,
    HOPPER_MMA,
    HOPPER_REGISTERS
};
uint64_t hopper_warp(enum hopper_collective what, uint32_t mask, uint64_t value, uint32_t argument);
uint32_t hopper_elect(void);
void hopper_stmatrix(uint32_t address, const uint32_t *registers, uint32_t count, int transposed);
void hopper_ldmatrix(uint32_t address, uint32_t *registers, uint32_t count, int transposed);
/* mma.sync m16n8k16: d[4] += a[4] b[2] of all lanes, bf16 (or f16) and fp32 */
void hopper_mma(float *d, const uint32_t *a, const uint32_t *b, int f16);
/* The same m16n8k32, of e4m3 */
void hopper_mma_e4m3(float *d, const uint32_t *a, const uint32_t *b);

/* Barriers of a block and of a cluster. id 0 with 0 threads: the whole block. `either`: the OR of
 * all. */
int hopper_barrier(uint32_t id, uint32_t threads, int either);
void hopper_barrier_arrive(uint32_t id, uint32_t threads);
uint32_t hopper_cluster_rank(void);
void hopper_cluster_arrive(int release);
void hopper_cluster_wait(void);
void hopper_registers(uint32_t count, int more); /* setmaxnreg */

/* Fences, flags, atomics. */
void hopper_fence(enum hopper_scope scope);
void hopper_fence_async(int shared, int global);
uint64_t hopper_load_strong(const void *p, uint32_t bytes, enum hopper_scope scope, int acquire);
void hopper_store_strong(void *p, uint64_t v, uint32_t bytes, enum hopper_scope scope, int release);
void hopper_store_word(uint64_t *p, uint64_t v);
void hopper_store_command(void *p, uint64_t low, uint64_t high);
enum hopper_atomic {
    HOPPER_ATOMIC_ADD,
    HOPPER_ATOMIC_CAS,
    HOPPER_ATOMIC_EXCHANGE,
    HOPPER_ATOMIC_MAX,
    HOPPER_ATOMIC_OR
};
uint64_t hopper_atomic(void *p, uint32_t bytes, enum hopper_atomic what, uint64_t compare,
                       uint64_t value, enum hopper_scope scope, int acquire, int release);
void hopper_trap(void);

/* mbarriers. */
void hopper_mbar_init(uint32_t bar, uint32_t arrivals);
void hopper_mbar_init_fence(void);
void hopper_mbar_arrive(uint32_t bar, uint32_t count, uint32_t expected_bytes, int arrives);
void hopper_mbar_arrive_at(uint32_t bar, uint32_t rank, int release);
int hopper_mbar_try(uint32_t bar, uint32_t parity);
/* Until the phase is over; where tries end, at most limit_ns, in which launches before are not. */
void hopper_mbar_wait(uint32_t bar, uint32_t parity, uint64_t limit_ns);
int hopper_mbar_test(uint32_t bar, uint32_t parity);

/* The TMA unit. */
void hopper_tma_load(uint32_t dst, const struct hopper_box *box, uint32_t bar, int to_cluster,
                     uint32_t ranks);
void hopper_tma_store(const struct hopper_box *box, uint32_t src, enum hopper_reduction reduction);
void hopper_bulk_load(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar, int to_cluster,
                      uint32_t ranks);
/* st.async: a thread's own bytes, to another CTA of its cluster */
void hopper_store_async(uint32_t dst, const void *from, uint32_t bytes, uint32_t bar,
                        uint32_t rank);
void hopper_bulk_store(void *dst, uint32_t src, uint32_t bytes, enum hopper_reduction reduction,
                       enum hopper_number number);
void hopper_bulk_commit(void);
void hopper_bulk_wait(uint32_t pending, int only_read);
void hopper_tensormap_prefetch(const void *map);
/* host: 0, or -EINVAL as the driver refuses */
int hopper_tensormap_encode(void *map, uint32_t type, uint32_t rank, void *base,
                            const uint64_t *sizes, const uint64_t *strides, const uint32_t *box,
                            const uint32_t *steps, uint32_t interleave, uint32_t swizzle,
                            uint32_t fill);

/* A thread's copies from global to shared memory: `read` of `bytes` (4, 8, 16), and zeros. */
void hopper_copy_async(uint32_t dst, const void *src, uint32_t bytes, uint32_t read);
void hopper_copy_commit(void);
void hopper_copy_wait(uint32_t pending);
/* an arrival (.noinc) that comes by itself, some time after all copies of this thread so far */
void hopper_copy_arrive(uint32_t bar);

/* wgmma: D (64 x n, fp32) += A (64 x 16) B (16 x n), bf16, or what is said below. `a` is NULL where
 * A lies in shared memory. */
struct hopper_product {
    float *d;
    const uint32_t *a; /* four registers of this lane */
    uint64_t a_descriptor, b_descriptor;
    uint32_t n, accumulate, a_mn_major, b_mn_major;
    uint32_t e4m3; /* 64 x 32 and 32 x n of that, K-major */
    uint32_t f16;
};
void hopper_wgmma(const struct hopper_product *product);
void hopper_wgmma_fence(void);
void hopper_wgmma_commit(void);
void hopper_wgmma_wait(uint32_t pending);

/* griddepcontrol: the block lets the launch behind it come; and waits for the one before it. */
void hopper_launch_next(void);
void hopper_launch_wait(void);

/* Launches: `run` is called once by every thread with the copy of `arguments` that the machine
 * keeps. early: by programmatic stream serialization. Host; on the machine that is current
 * (sim/hopper/hopper.h), for its current rank. 0 or -errno. */
int hopper_enqueue(void (*run)(void *arguments), const void *arguments, size_t bytes,
                   struct hopper_xyz grid, struct hopper_xyz block, uint32_t dynamic_shared,
                   uint32_t cluster, int early, const char *name);
uint32_t hopper_sms(void);
uint32_t hopper_spare(void);

#ifdef __cplusplus
}
#endif

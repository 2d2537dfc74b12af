/*
 * The engine of a decoder's layers in one launch, alone. Weights stream through the shared memory of
 * all SMs in the order of their use and wait for nothing. Data between products is its own flag. A
 * layer is Llama's: RMSNorm, Q K V, rotary embedding, attention over a cache, O, sum over GPUs,
 * residual, RMSNorm, gate and up, SwiGLU, down, sum over GPUs, residual.
 *
 *     gpu_decode check GPUS            compares each part of the last layer with plain kernels
 *     gpu_decode bench GPUS [LAYERS]   prints us a layer beside the time of reading its bytes
 *
 * One process drives 1 or 2 GPUs, which read each other's memory. Exit status: 0 right, 1 wrong,
 * 77 no such GPUs here.
 *
 * Roles of a CTA's warps. Eight multiply. One thread loads weights and keys. Two warps, the feeders,
 * bring x. One warp computes the norms' scales and resets buffers.
 *
 * A product is y = x W^T; W is [rows, K], as PyTorch's Linear keeps it. A CTA owns neighbouring rows,
 * in groups of up to 32. A place of the ring holds 512 columns of a group, by eight TMA loads of 64
 * columns. (A bulk copy for each row reached 3,110 GB/s of 4,600: the TMA unit takes 40 ns a copy.) A
 * warp multiplies 64 of the columns by mma.sync m16n8k16: 16 rows of W are A, eight tokens are B. A
 * lane takes 16 neighbouring columns of A and of B, so its loads are 16 bytes wide and free of bank
 * conflicts. The warps' sums meet in shared memory in a fixed order: every run and every GPU has the
 * same bits.
 *
 * Data that is its own flag: a buffer between two products holds EMPTY, a NaN that no product writes,
 * until its words are stored. A reader loads a word until it is something else. Words are reset one
 * layer later, when the results of every CTA have shown that it has read them.
 */
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cudaTypedefs.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CUDA(call)                                                                                 \
    do {                                                                                           \
        cudaError_t failed_ = (call);                                                              \
        if (failed_ != cudaSuccess) {                                                              \
            printf("gpu_decode: %s: %s\n", #call, cudaGetErrorString(failed_));                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

typedef __nv_bfloat16 bf16;
#ifndef PROMOTION
#define PROMOTION CU_TENSOR_MAP_L2_PROMOTION_NONE
#endif

enum {
    HEAD = 128,                        /* elements of a head */
    GROUP = 4,                         /* query heads of a key head */
    CONSUMERS = 8,                     /* warps that multiply */
    THREADS = CONSUMERS * 32,          /* of them */
    BOX = 64,                          /* columns of a TMA load: rows of 128 bytes, swizzled */
    GROUP_ROWS = 32,                   /* rows of W in a place of the ring, a warp all of them */
    GROUPS = 4,                        /* of them in a CTA's rows at most */
    CHUNK = CONSUMERS * BOX,           /* columns of W in a place */
    BLOCK_KEYS = 64,                   /* keys and values in a place of the ring */
    KEYS_BYTES = BLOCK_KEYS * BOX * 2, /* half of the elements of a block's keys or values */
    KEYED = GROUP_ROWS * CHUNK *
            2, /* bytes of W in a place, 32 KB, and so are BLOCK_KEYS keys and values */
    X_PLACE = 8 * CHUNK * 2, /* bytes of a chunk of x */
    X_PLACES = 4,            /* a multiple of FEEDERS, so that a place has one feeder */
    PLACES = 5,
    FEEDERS = 2,                       /* warps that bring x */
    SUMS = CONSUMERS * GROUP_ROWS * 8, /* floats */
    SHARED = PLACES * KEYED + X_PLACES * X_PLACE + 2 * SUMS * 4,
    MOST_GPUS = 2,
};
static_assert(4 * KEYS_BYTES == KEYED, "a place holds keys and values of a block");
static_assert(CONSUMERS * GROUP * HEAD == 2 * SUMS, "attention's parts of all warps");
static_assert(SHARED + 4096 <= 227 * 1024, "shared memory of an SM");

#define EMPTY 0xffffffffu
/* Bounds of waits: seconds. At memory by counted looks, which need fewer instructions than
 * clocks. */
#define LIMIT_NS 2000000000ull
#define LOOKS_AT_MEMORY 3000000u

/* What lies between products, of two layers in turn: [tokens, columns] of bf16. */
enum buffer { X0, QKV, ATTENDED, X1, GATED, BUFFERS };

struct model {
    uint32_t tokens, context, layers, hidden, inner; /* inner: of one GPU */
    uint32_t heads, kv_heads;                        /* of one GPU */
    float epsilon;
};

/* Rows of W that a CTA owns: of gate and up, pairs. An even number, since a word holds two. */
struct rows {
    uint32_t first, count;
};

/* CTAs that read blocks of one token and key head: their parts' first slot. */
struct span {
    uint32_t cta, count, slot;
};

/* When a CTA has ended a part of a layer. */
enum mark { BEGUN, QKV_DONE, KEYS_DONE, HEADS_DONE, O_DONE, GATED_DONE, DOWN_DONE, MARKS };

struct decode {
    struct model m;
    uint32_t gpus, gpu;
    uint32_t call;    /* from 1 on */
    int waits;        /* 0: every buffer is full from the start and nothing is handed over */
    int loads;        /* 0: nothing is read: what multiplying takes alone */
    int reads;        /* 1: weights are read, and no more */
    int attends;      /* 0: Q K V's first columns are taken for attention's result */
    const bf16 *w[4]; /* Q K V, O, gate over up, down: [layers, rows, K] */
    const CUtensorMap
        *maps; /* of w, [4][GROUP_ROWS / 2], by half a group's rows less one; then the cache's */
    const bf16 *norm[2];  /* [layers, hidden] */
    const float2 *rotary; /* cosine and sine: [HEAD / 2] of the new token's position */
    bf16 *cache; /* [layers, 2, tokens, kv_heads, context + 1, HEAD]; the last is the new token's */
    const bf16 *in;              /* [tokens, hidden] */
    bf16 *out;                   /* [tokens, hidden] */
    uint32_t *buffers;           /* [2, words] */
    uint32_t words, at[BUFFERS]; /* of a layer's buffers, and where each begins */
    uint64_t *parts;             /* of attention: [slots, GROUP, HEAD + 1] of {float, tag} */
    uint64_t *squares;           /* of norms: [2, CTAs, 8] of {float, tag} */
    uint64_t *inbox;             /* of sums over GPUs: [2, hidden, 8] of {float, tag} */
    uint64_t *peer[MOST_GPUS];   /* each GPU's inbox */
    const struct rows *rows;     /* [CTAs][4] */
    const struct rows
        *keys; /* [CTAs]: blocks of keys that a CTA reads, of all tokens and key heads */
    const struct span *spans; /* [tokens * kv_heads] */
    uint64_t *times;          /* [CTAs][layers][MARKS], or NULL */
    uint32_t *late;           /* where a wait has outlasted its limit: what it waited for */
};

/* Where the i-th of `of` equal shares begins. units * of fits 32 bits, since divisions of 64
 * take a GPU a tenth of a microsecond. */
__host__ __device__ inline uint32_t share(uint32_t units, uint32_t i, uint32_t of)
{
    return units * i / of;
}

/* ---- instructions ---- */

#define FN static __device__ __forceinline__

FN uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
FN uint64_t now_ns(void)
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
FN void bar_init(uint32_t bar, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
FN void bar_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}
FN void bar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
FN bool bar_try(uint32_t bar, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 " selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done;
}
FN void tma_load(uint32_t to, const CUtensorMap *map, uint32_t bar, uint32_t x, uint32_t y,
                 uint32_t z, uint32_t w)
{
    asm volatile("{\n .reg .b64 once;\n createpolicy.fractional.L2::evict_first.b64 once, 1.0;\n"
                 " cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], once;\n}" ::"r"(to),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}
FN uint4 load_shared(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}
FN void store_shared(uint32_t at, uint4 v)
{
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}
/* Four words, each its own flag. */
FN uint4 load_words(const void *p)
{
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
FN uint32_t load_word(const void *p)
{
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
FN void store_word(void *p, uint32_t v)
{
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
/* A float and the number of its use, in one access; from and to a peer, too. */
FN uint64_t tagged(float v, uint32_t tag)
{
    return (uint64_t)tag << 32 | __float_as_uint(v);
}
FN void store_tagged(uint64_t *p, float v, uint32_t tag)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(tagged(v, tag)) : "memory");
}
FN uint64_t load_tagged(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
FN void meet(void) /* the warps that multiply */
{
    asm volatile("bar.sync 1, %0;" ::"n"((int)THREADS) : "memory");
}
/* Whole warps: those that multiply and the one beside them. Each number has one use: 2 a layer's
 * first product is done, 3 buffers are EMPTY, 4 and 5 scales are there, 6 and 7 squares are. */
FN void tell(int id)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"((int)THREADS + 32) : "memory");
}
FN void hear(int id)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"((int)THREADS + 32) : "memory");
}

FN void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
            uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7},"
        " {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
FN void matrices(uint32_t at, uint32_t (&r)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
FN void matrices_transposed(uint32_t at, uint32_t (&r)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
FN float low(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}
FN float high(uint32_t pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}
FN float exp_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* Never EMPTY: a NaN that is rounded is 0x7fff. */
FN uint32_t pack(float a, float b)
{
    uint32_t v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(b), "f"(a));
    return v;
}
/* ---- a block ---- */

struct block {
    const struct decode *d;
    const struct rows *own; /* [4], in shared memory */
    struct rows keys;
    uint32_t ring, full, empty;       /* shared memory: the places, and barriers of each */
    uint32_t x_ring, x_full, x_empty; /* likewise of x */
    float *sums;                      /* two of SUMS */
    uint32_t visit; /* of a place of the ring, counted by producer and consumers alike */
    uint32_t chunk; /* of x, likewise by feeders and consumers */
    uint32_t task;  /* counted, for the choice of sums */
    uint32_t warp, lane;
    float (*squares)[8]; /* [CONSUMERS]: of the rows that this CTA has made last */
    float (*scale)[8];   /* [2]: of both norms' tokens */
};

FN void too_late(const struct block *b, uint32_t what)
{
    *(volatile uint32_t *)b->d->late = what;
    __threadfence_system();
    __trap();
}

FN void bar_wait(const struct block *b, uint32_t bar, uint32_t parity, uint32_t what)
{
    uint64_t start = 0;
    for (uint32_t looks = 0; !bar_try(bar, parity); looks++) {
        if (looks % 1024 == 0) {
            const uint64_t now = now_ns();
            start = looks ? start : now;
            if (now - start > LIMIT_NS)
                too_late(b, what);
        }
    }
}

FN uint32_t place(const struct block *b)
{
    return b->ring + b->visit % PLACES * KEYED;
}
FN void await_full(const struct block *b)
{
    bar_wait(b, b->full + b->visit % PLACES * 8, b->visit / PLACES & 1, 1);
}
FN void give_back(struct block *b)
{
    __syncwarp();
    if (b->lane == 0)
        bar_arrive(b->empty + b->visit % PLACES * 8);
    b->visit++;
}

enum product { IS_QKV, IS_O, IS_GATED, IS_DOWN };

FN uint32_t k_of(const struct model *m, enum product p)
{
    return p == IS_O ? m->heads * HEAD : p == IS_DOWN ? m->inner : m->hidden;
}
/* A CTA's rows in a product are groups, of gate and up as many rows of each. Every group is
 * multiplied by a chunk of x before the next chunk's first, so x is brought once. */
FN uint32_t groups_of(struct rows r, enum product p)
{
    const uint32_t most = p == IS_GATED ? GROUP_ROWS / 2 : GROUP_ROWS;
    return (r.count + most - 1) / most;
}
FN struct rows group_of(struct rows r, uint32_t i, uint32_t groups)
{
    const uint32_t from = share(r.count / 2, i, groups) * 2;
    return {r.first + from, share(r.count / 2, i + 1, groups) * 2 - from};
}
FN bf16 *buffer_of(const struct decode *d, uint32_t layer, enum buffer which)
{
    return (bf16 *)(d->buffers + layer % 2 * d->words + d->at[which]);
}

/* ---- the warp that loads ---- */

/* The next place is free. Returns the barrier that counts the bytes which will be loaded there. */
FN uint32_t await_empty(const struct block *b, uint32_t bytes)
{
    const uint32_t full = b->full + b->visit % PLACES * 8;
    if (b->visit >= PLACES)
        bar_wait(b, b->empty + b->visit % PLACES * 8, (b->visit / PLACES - 1) & 1, 2);
    if (b->d->loads)
        bar_expect(full, bytes);
    else
        bar_arrive(full);
    return full;
}

FN void load_product(struct block *b, uint32_t layer, enum product p)
{
    const struct decode *d = b->d;
    const uint32_t all = k_of(&d->m, p), groups = groups_of(b->own[p], p);
#pragma unroll 1
    for (uint32_t k = 0; k < all; k += CHUNK)
#pragma unroll 1
        for (uint32_t i = 0; i < groups; i++, b->visit++) {
            const struct rows r = group_of(b->own[p], i, groups);
            const CUtensorMap *map = d->maps + p * (GROUP_ROWS / 2) + r.count / 2 - 1;
            const uint32_t full = await_empty(b, r.count * (p == IS_GATED ? 2 : 1) * CHUNK * 2);
#pragma unroll 1
            for (uint32_t n = 0; d->loads && n < CONSUMERS; n++)
                tma_load(place(b) + n * (KEYED / CONSUMERS), map, full, k + n * BOX, r.first, 0,
                         layer);
        }
}

FN void load_keys(struct block *b, uint32_t layer)
{
    const struct model *m = &b->d->m;
    const uint32_t blocks = m->context / BLOCK_KEYS;
    const CUtensorMap *map = b->d->maps + 4 * (GROUP_ROWS / 2);
#pragma unroll 1
    for (uint32_t i = b->keys.first; i < b->keys.first + b->keys.count; i++, b->visit++) {
        const uint32_t full = await_empty(b, KEYED);
#pragma unroll 1
        for (uint32_t n = 0; n < 4; n++)
            tma_load(place(b) + n * KEYS_BYTES, map, full, n % 2 * BOX, i % blocks * BLOCK_KEYS,
                     i / blocks, layer * 2 + n / 2);
    }
}

/* ---- products ---- */

FN bool is_empty(uint4 v)
{
    return v.x == EMPTY || v.y == EMPTY || v.z == EMPTY || v.w == EMPTY;
}

/* What a product does with its rows' sums. */
struct result {
    float *residual; /* of O and down: this thread's row and token */
    uint32_t tag;    /* of sums over GPUs */
    bf16 *to;        /* [tokens, pitch] */
    uint32_t pitch;
    const bf16 *norm; /* of the next norm, where there is one */
};

/* A row's element for the next norm: times the norm's weight; the scale, which depends on all
 * CTAs' squares, follows behind the next product. This CTA's squares are left in shared memory,
 * by warp. */
FN float hand_over(const struct block *b, float residual, const bf16 *norm)
{
    float square = norm ? residual * residual : 0;
    square += __shfl_xor_sync(~0u, square, 8);
    square += __shfl_xor_sync(~0u, square, 16);
    if (b->lane < 8)
        b->squares[b->warp][b->lane] = square;
    return norm ? residual * __bfloat162float(*norm) : 0;
}

/* One thread's row and token of a group, whose sums of all warps are there. */
FN void finish_rows(const struct block *b, enum product p, struct rows r, const float *sums,
                    uint32_t row, uint32_t token, struct result out)
{
    const struct decode *d = b->d;
    const bool valid = row < r.count && token < d->m.tokens;
    float y = 0, up = 0;
    if (valid) {
#pragma unroll
        for (uint32_t w = 0; w < CONSUMERS; w++)
            y += sums[(w * GROUP_ROWS + row) * 8 + token];
        if (p == IS_GATED)
#pragma unroll
            for (uint32_t w = 0; w < CONSUMERS; w++)
                up += sums[(w * GROUP_ROWS + row + r.count) * 8 + token];
    }
    if (p == IS_QKV || p == IS_GATED) {
        const float scale = b->scale[p == IS_GATED][token];
        y *= scale;
        if (p == IS_GATED)
            y = y / (1 + exp_2(-1.4426950408889634f * y)) * up * scale;
    } else {
        if (d->gpus > 1 && valid) {
            const uint64_t slot =
                ((uint64_t)(out.tag % 2) * d->m.hidden + r.first + row) * 8 + token;
            for (uint32_t i = 0; i < d->gpus; i++)
                if (i != d->gpu)
                    store_tagged(d->peer[i] + slot, y, out.tag);
            uint64_t other;
            for (uint32_t looks = 0;
                 (uint32_t)((other = load_tagged(d->inbox + slot)) >> 32) != out.tag; looks++)
                if (looks > LOOKS_AT_MEMORY)
                    too_late(b, 32 + p);
            y += __uint_as_float((uint32_t)other); /* of two: the order does not matter */
        }
        y += *out.residual;
        *out.residual = __bfloat162float(__float2bfloat16(y));
        if (out.norm)
            y = hand_over(b, *out.residual, row < r.count ? out.norm + r.first + row : NULL);
    }
    const float beside = __shfl_down_sync(~0u, y, 8);
    if (valid && row % 2 == 0)
        store_word(out.to + (uint64_t)token * out.pitch + r.first + row, pack(y, beside));
}

FN void run_product(struct block *b, enum product p, struct result out)
{
    const struct decode *d = b->d;
    const struct rows r = b->own[p];
    const uint32_t tid = b->warp * 32 + b->lane, g = b->lane / 4, t4 = b->lane % 4;
    const bool gated = p == IS_GATED, normed = p == IS_QKV || gated;
    const uint32_t steps = k_of(&d->m, p) / CHUNK, groups = groups_of(r, p);
    const uint32_t at_w = b->warp * (KEYED / CONSUMERS) + g * 128, at_x = b->warp * 1024 + g * 128;
    float acc[GROUPS][2][4] = {};
    /* Not unrolled: written out 14 times, its instructions came from memory beside the weights,
     * and a layer took 60 us in place of 49. */
#pragma unroll 1
    for (uint32_t c = 0; c < steps; c++) {
        uint4 v[2];
        const uint32_t x_at = b->x_ring + b->chunk % X_PLACES * X_PLACE + at_x;
        bar_wait(b, b->x_full + b->chunk % X_PLACES * 8, b->chunk / X_PLACES & 1, 4);
#pragma unroll
        for (int n = 0; n < 2; n++)
            v[n] = load_shared(x_at + ((t4 * 2 + n) ^ g) * 16);
        __syncwarp();
        if (b->lane == 0)
            bar_arrive(b->x_empty + b->chunk % X_PLACES * 8);
        b->chunk++;
#pragma unroll
        for (uint32_t i = 0; i < GROUPS; i++) {
            if (i >= groups)
                break;
            await_full(b);
            if (d->reads) {
                give_back(b);
                continue;
            }
            const uint32_t w_at = place(b) + at_w;
            uint4 w[2][2][2];
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const uint32_t unit = ((t4 * 2 + n) ^ g) * 16;
#pragma unroll
                for (int e = 0; e < 4; e++)
                    w[n][e / 2][e % 2] = load_shared(w_at + e * 8 * 128 + unit);
            }
            give_back(b);
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const uint4 u = w[n][half][0], o = w[n][half][1];
                    mma(acc[i][half], u.x, o.x, u.y, o.y, v[n].x, v[n].y);
                    mma(acc[i][half], u.z, o.z, u.w, o.w, v[n].z, v[n].w);
                }
        }
    }
    if (d->reads)
        return;

    /* Sums of all warps: [warp][row][token], then one thread a row and token. */
    const uint32_t row = tid / 8, token = tid % 8;
#pragma unroll
    for (uint32_t i = 0; i < GROUPS; i++) {
        if (i >= groups)
            break;
        const struct rows own = group_of(r, i, groups);
        float *sums = b->sums + b->task++ % 2 * SUMS;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float2 *at = (float2 *)(sums + (b->warp * GROUP_ROWS + half * 16 + g) * 8 + t4 * 2);
            at[0] = make_float2(acc[i][half][0], acc[i][half][1]);
            at[8 * 8 / 2] = make_float2(acc[i][half][2], acc[i][half][3]);
        }
        if (normed && i == 0)
            hear(gated ? 5 : 4); /* b->scale is there */
        else
            meet();
        finish_rows(b, p, own, sums, row, token, out);
    }
    if (out.norm)
        tell(p == IS_O ? 6 : 7); /* b->squares is there */
}

/* ---- attention ---- */

/* All `n` words at once, until none is EMPTY. */
template <int n>
FN void await_words(const struct block *b, const bf16 *const (&p)[n], uint32_t (&v)[n],
                    uint32_t what)
{
    for (uint32_t looks = 0;; looks++) {
        bool lacks = false;
#pragma unroll
        for (int i = 0; i < n; i++)
            v[i] = load_word(p[i]);
#pragma unroll
        for (int i = 0; i < n; i++)
            lacks |= v[i] == EMPTY;
        if (!lacks || !b->d->waits)
            return;
        if (looks > LOOKS_AT_MEMORY)
            too_late(b, what);
    }
}

/* Values at p, p + step ... `has` of n of them, all looked at at once, until each has its tag. */
template <int n>
FN void await_tagged(const struct block *b, const uint64_t *p, uint32_t step, uint32_t has,
                     float (&v)[n], uint32_t tag, uint32_t what)
{
    for (uint32_t looks = 0;; looks++) {
        uint64_t word[n];
        bool lacks = false;
#pragma unroll
        for (int i = 0; i < n; i++)
            word[i] = load_tagged(p + (i < has ? i : 0) * step);
#pragma unroll
        for (int i = 0; i < n; i++) {
            lacks |= (uint32_t)(word[i] >> 32) != tag;
            v[i] = __uint_as_float((uint32_t)word[i]);
        }
        if (!lacks)
            return;
        if (looks > LOOKS_AT_MEMORY)
            too_late(b, what);
    }
}

/* The rotary embedding of two neighbours of a head's first half, a, and of its second, c. */
FN uint32_t rotated(const struct block *b, uint32_t a, uint32_t c, uint32_t d, bool second)
{
    const float4 at = __ldg((const float4 *)(b->d->rotary + d));
    return second ? pack(low(c) * at.x + low(a) * at.y, high(c) * at.z + high(a) * at.w)
                  : pack(low(a) * at.x - low(c) * at.y, high(a) * at.z - high(c) * at.w);
}

FN uint64_t *part_of(const struct decode *d, uint32_t slot, uint32_t head)
{
    return d->parts + ((uint64_t)slot * GROUP + head) * (HEAD + 1);
}

/* Keys of this CTA, a segment for each token and key head among them. A warp takes 16 of 64
 * keys, as FlashAttention-2 does, with the group's query heads as rows of A; the other four
 * warps take every second block. A segment's part: for each head its normed sum, and the base-2
 * logarithm of its weight. */
FN void run_keys(struct block *b, const bf16 *qkv, uint32_t tag)
{
    const struct decode *d = b->d;
    const struct model *m = &d->m;
    const uint32_t blocks = m->context / BLOCK_KEYS, g = b->lane / 4, t4 = b->lane % 4;
    const uint32_t pitch = (m->heads + 2 * m->kv_heads) * HEAD, tid = b->warp * 32 + b->lane;
    const float scale = rsqrtf((float)HEAD) * 1.4426950408889634f;
    __shared__ uint32_t queries[8][HEAD / 2]; /* rows of A: the group's heads, then zeros */
    __shared__ float state[CONSUMERS][GROUP][2];
    uint32_t i = b->keys.first;
    const uint32_t end = i + b->keys.count;
#pragma unroll 1
    while (i < end) {
        const uint32_t which = i / blocks, token = which / m->kv_heads, kv = which % m->kv_heads;
        if (tid < GROUP * HEAD / 4) {
            const uint32_t head = tid / (HEAD / 4), at = tid % (HEAD / 4);
            const bf16 *q = qkv + (uint64_t)token * pitch + (kv * GROUP + head) * HEAD + at * 2;
            const bf16 *const from[] = {q, q + HEAD / 2};
            uint32_t word[2];
            await_words(b, from, word, 48);
            queries[head][at] = rotated(b, word[0], word[1], at * 2, false);
            queries[head][at + HEAD / 4] = rotated(b, word[0], word[1], at * 2, true);
        } else
            for (uint32_t z = tid - GROUP * HEAD / 4; z < (8 - GROUP) * HEAD / 2;
                 z += THREADS - GROUP * HEAD / 4)
                queries[GROUP][z] = 0;
        meet(); /* whoever reads a task's sums has ended, too */
        float o[16][4] = {}, most = -INFINITY, total = 0;
#pragma unroll 1
        for (; i < end && i / blocks == which; i++) {
            await_full(b);
            if (i % 2 == b->warp / 4) {
                const uint32_t keys = place(b) + b->warp % 4 * 16 * 128,
                               values = keys + 2 * KEYS_BYTES;
                float sc[2][4] = {};
                /* a matrix: 8 keys of 8 elements; of four: keys 0-7 of two pieces, then 8-15 */
                const uint32_t at = keys + (b->lane / 16 * 8 + b->lane % 8) * 128;
#pragma unroll 2
                for (uint32_t j = 0; j < 8; j++) {
                    uint32_t k[4];
                    matrices(at + j / 4 * KEYS_BYTES +
                                 ((j % 4 * 2 + b->lane / 8 % 2) ^ b->lane % 8) * 16,
                             k);
                    const uint32_t q0 = queries[g][j * 8 + t4], q1 = queries[g][j * 8 + 4 + t4];
                    mma(sc[0], q0, 0, q1, 0, k[0], k[1]);
                    mma(sc[1], q0, 0, q1, 0, k[2], k[3]);
                }
                float peak = fmaxf(fmaxf(sc[0][0], sc[0][1]), fmaxf(sc[1][0], sc[1][1])) * scale;
                peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 1));
                peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 2));
                peak = fmaxf(peak, most);
                const float keep = exp_2(most - peak);
                most = peak;
                float e[4] = {exp_2(sc[0][0] * scale - peak), exp_2(sc[0][1] * scale - peak),
                              exp_2(sc[1][0] * scale - peak), exp_2(sc[1][1] * scale - peak)};
                total = total * keep + e[0] + e[1] + e[2] + e[3];
                const uint32_t p0 = pack(e[0], e[1]), p1 = pack(e[2], e[3]);
                const uint32_t vat = values + (b->lane / 8 % 2 * 8 + b->lane % 8) * 128;
#pragma unroll
                for (int n = 0; n < 16; n += 2) {
                    uint32_t v[4];
                    matrices_transposed(
                        vat + n / 8 * KEYS_BYTES + ((n % 8 + b->lane / 16) ^ b->lane % 8) * 16, v);
                    o[n][0] *= keep, o[n][1] *= keep, o[n + 1][0] *= keep, o[n + 1][1] *= keep;
                    mma(o[n], p0, 0, p1, 0, v[0], v[1]);
                    mma(o[n + 1], p0, 0, p1, 0, v[2], v[3]);
                }
            }
            give_back(b);
        }
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        /* [warp][head][HEAD], then the warps' references and totals */
        float *sums = b->sums;
        if (g < GROUP) {
#pragma unroll
            for (int n = 0; n < 16; n++)
                *(float2 *)(sums + (b->warp * GROUP + g) * HEAD + n * 8 + t4 * 2) =
                    make_float2(o[n][0], o[n][1]);
            if (t4 == 0)
                state[b->warp][g][0] = most, state[b->warp][g][1] = total;
        }
        meet();
        const struct span span = d->spans[which];
#pragma unroll 1
        for (uint32_t n = 0; n < 2; n++) {
            const uint32_t head = tid / HEAD + n * 2, at = tid % HEAD;
            float peak = -INFINITY, y = 0, l = 0;
            for (uint32_t w = 0; w < CONSUMERS; w++)
                peak = fmaxf(peak, state[w][head][0]);
            for (uint32_t w = 0; w < CONSUMERS; w++) {
                const float f = exp_2(state[w][head][0] - peak);
                y += f * sums[(w * GROUP + head) * HEAD + at];
                l += f * state[w][head][1];
            }
            uint64_t *part = part_of(d, span.slot + blockIdx.x - span.cta, head);
            store_tagged(part + at, y / l, tag);
            if (at == 0)
                store_tagged(part + HEAD, peak + __log2f(l), tag);
        }
        meet(); /* sums are free again */
    }
}

/* Query heads of all tokens behind each other: this CTA's, from their segments and the new
 * token. */
FN void run_heads(struct block *b, uint32_t layer, const bf16 *qkv, bf16 *to, uint32_t tag)
{
    const struct decode *d = b->d;
    const struct model *m = &d->m;
    const uint32_t all = m->tokens * m->heads, tid = b->warp * 32 + b->lane;
    const uint32_t pitch = (m->heads + 2 * m->kv_heads) * HEAD, at = tid % HEAD, side = tid / HEAD;
    const float scale = rsqrtf((float)HEAD) * 1.4426950408889634f;
    __shared__ float dots[4], halves[HEAD + 1];
#pragma unroll 1
    for (uint32_t h = share(all, blockIdx.x, gridDim.x),
                  end = share(all, blockIdx.x + 1, gridDim.x);
         h < end; h++) {
        const uint32_t token = h / m->heads, head = h % m->heads, kv = head / GROUP;
        const uint32_t which = token * m->kv_heads + kv, in_group = head % GROUP;
        const struct span span = d->spans[which];
        const bf16 *own = qkv + (uint64_t)token * pitch;
        /* the new token: a score, its key and value to the cache by the group's first head */
        const uint32_t pair = at % (HEAD / 2) / 2 * 2, second = at / (HEAD / 2);
        float v = 0;
        if (side == 0) {
            const bf16 *query = own + head * HEAD + pair,
                       *key = own + (m->heads + kv) * HEAD + pair;
            const bf16 *const from[] = {query, query + HEAD / 2, key, key + HEAD / 2,
                                        own + (m->heads + m->kv_heads + kv) * HEAD + at / 2 * 2};
            uint32_t word[5];
            await_words(b, from, word, 49);
            const uint32_t q = rotated(b, word[0], word[1], pair, second),
                           k = rotated(b, word[2], word[3], pair, second), w = word[4];
            v = at % 2 ? high(w) : low(w);
            float dot = at % 2 ? high(q) * high(k) : low(q) * low(k);
            for (int i = 16; i; i /= 2)
                dot += __shfl_xor_sync(~0u, dot, i);
            if (b->lane == 0)
                dots[b->warp] = dot;
            if (in_group == 0 && at % 2 == 0) {
                const uint64_t line = m->context + 1, half = line * HEAD * m->tokens * m->kv_heads;
                bf16 *cached = d->cache + layer * 2 * half + (which * line + m->context) * HEAD;
                *(uint32_t *)(cached + at) = k;
                *(uint32_t *)(cached + half + at) = w;
            }
        }
        /* The parts: half of the threads every second one, some at a time, since a look takes
         * most of a microsecond. */
        enum { LOOKS = 8 };
        float peak = -INFINITY, y = 0, l = 0;
#pragma unroll 1
        for (uint32_t i = side; i < span.count; i += 2 * LOOKS) {
            const uint32_t left = (span.count - i + 1) / 2, step = 2 * GROUP * (HEAD + 1);
            const uint64_t *part = part_of(d, span.slot + i, in_group);
            float sum[LOOKS], weight[LOOKS];
            await_tagged(b, part + HEAD, step, left, weight, tag, 50);
            await_tagged(b, part + at, step, left, sum, tag, 50);
#pragma unroll
            for (int n = 0; n < LOOKS; n++) {
                if (n >= left)
                    break;
                const float new_peak = fmaxf(peak, weight[n]), mine = exp_2(peak - new_peak),
                            theirs = exp_2(weight[n] - new_peak);
                y = y * mine + sum[n] * theirs, l = l * mine + theirs, peak = new_peak;
            }
        }
        if (side) {
            halves[at] = y / l;
            if (at == 0)
                halves[HEAD] = peak + __log2f(l);
        }
        meet();
        if (side == 0) {
            const float score = (dots[0] + dots[1] + dots[2] + dots[3]) * scale;
            const float own_weight = peak + __log2f(l),
                        other = span.count > 1 ? halves[HEAD] : -INFINITY;
            const float top = fmaxf(fmaxf(own_weight, other), score),
                        mine = exp_2(own_weight - top), theirs = exp_2(other - top),
                        newest = exp_2(score - top);
            y = y / l * mine + v * newest + (span.count > 1 ? halves[at] * theirs : 0);
            y /= mine + theirs + newest;
            const float beside = __shfl_down_sync(~0u, y, 1);
            if (at % 2 == 0)
                store_word(to + (uint64_t)token * m->heads * HEAD + head * HEAD + at,
                           pack(y, beside));
        }
        meet();
    }
}

/* ---- the launch ---- */

FN uint32_t columns_of(const struct model *m, uint32_t which)
{
    return which == QKV        ? (m->heads + 2 * m->kv_heads) * HEAD
           : which == ATTENDED ? m->heads * HEAD
           : which == GATED    ? m->inner
                               : m->hidden;
}

/* A layer's buffers are EMPTY again, each CTA its share. */
FN void empty_buffers(const struct block *b, uint32_t layer)
{
    uint32_t *from = b->d->buffers + layer % 2 * b->d->words;
#pragma unroll 1
    for (uint32_t w = blockIdx.x * 32 + b->lane; w < b->d->words; w += gridDim.x * 32)
        store_word(from + w, EMPTY);
}

FN void mark(const struct block *b, uint32_t layer, enum mark what)
{
    const struct decode *d = b->d;
    if (d->times && threadIdx.x == 0)
        d->times[((uint64_t)blockIdx.x * d->m.layers + layer) * MARKS + what] = now_ns();
}

FN void multiply(struct block *b)
{
    const struct decode *d = b->d;
    const struct model *m = &d->m;
    const uint32_t row = threadIdx.x / 8, token = threadIdx.x % 8;
    const struct rows own = b->own[IS_O];
    const bool has = row < own.count && token < m->tokens;
    float residual = has ? __bfloat162float(d->in[token * m->hidden + own.first + row]) : 0;
    if (!d->reads) { /* the first layer's x, as a layer hands it over */
        const float y = hand_over(b, residual,
                                  row < own.count ? d->norm[0] + own.first + row : NULL),
                    beside = __shfl_down_sync(~0u, y, 8);
        if (has && row % 2 == 0)
            store_word(buffer_of(d, 0, X0) + (uint64_t)token * m->hidden + own.first + row,
                       pack(y, beside));
        tell(7);
    }
#pragma unroll 1
    for (uint32_t l = 0; l < m->layers; l++) {
        const uint32_t tag = (d->call * m->layers + l) * 2;
        const bool last = l + 1 == m->layers;
        mark(b, l, BEGUN);
        /* One copy of the code of products, so that it stays in the SM's instruction cache: with
         * every product and step written out, 136 KB of code, a layer took twice as long. */
#pragma unroll 1
        for (int p = 0; p < 4; p++) {
            const enum buffer to = p == IS_QKV ? QKV : p == IS_O ? X1 : p == IS_GATED ? GATED : X0;
            const bf16 *norm = p == IS_O               ? d->norm[1] + (uint64_t)l * m->hidden
                               : p == IS_DOWN && !last ? d->norm[0] + (l + 1ull) * m->hidden
                                                       : NULL;
            bf16 *y = p == IS_DOWN && last ? d->out : buffer_of(d, l + (p == IS_DOWN), to);
            if (p == IS_GATED)
                hear(3);
            run_product(b, (enum product)p,
                        {&residual, tag + (p == IS_DOWN), y, columns_of(m, to), norm});
            if (p == IS_QKV) {
                tell(2);
                mark(b, l, QKV_DONE);
                if (d->attends) {
                    run_keys(b, y, tag);
                    mark(b, l, KEYS_DONE);
                    run_heads(b, l, y, buffer_of(d, l, ATTENDED), tag);
                    mark(b, l, HEADS_DONE);
                }
            } else
                mark(b, l, (enum mark)(O_DONE + p - IS_O));
        }
    }
}

/* Scales of a norm: every CTA's squares, in the order of CTAs. */
FN void await_scale(const struct block *b, uint32_t norm, uint32_t tag)
{
    const struct decode *d = b->d;
    enum { LOOKS = 6 };
    uint64_t *all = d->squares + (uint64_t)(tag % 2) * gridDim.x * 8;
    if (b->lane < 8) {
        float mine = 0;
        for (int w = 0; w < CONSUMERS; w++)
            mine += b->squares[w][b->lane];
        store_tagged(all + blockIdx.x * 8 + b->lane, mine, tag);
    }
    /* a lane in four: one token's squares of every fourth CTA */
    const uint32_t token = b->lane % 8;
    float sum = 0;
    for (uint32_t cta = b->lane / 8; d->waits && cta < gridDim.x; cta += 4 * LOOKS) {
        float got[LOOKS];
        await_tagged(b, all + cta * 8 + token, 4 * 8, (gridDim.x - cta + 3) / 4, got, tag, 51);
#pragma unroll
        for (int i = 0; i < LOOKS; i++)
            sum += cta + 4 * i < gridDim.x ? got[i] : 0;
    }
    sum += __shfl_xor_sync(~0u, sum, 8);
    sum += __shfl_xor_sync(~0u, sum, 16);
    if (b->lane < 8)
        b->scale[norm][b->lane] = d->waits ? rsqrtf(sum / d->m.hidden + d->m.epsilon) : 1;
    __syncwarp();
}

/* The warp beside those that multiply: scales of norms; and behind a layer's first product
 * buffers are EMPTY again. Then all CTAs have made what the layer before ends with, so none
 * reads its buffers any more; and this CTA shows nothing yet of gate and up, without which
 * nobody makes what is next in them. */
FN void tidy(struct block *b)
{
    const struct decode *d = b->d;
    for (uint32_t l = 0; l < d->m.layers; l++) {
        const uint32_t tag = (d->call * d->m.layers + l) * 2;
        if (!d->reads) {
            hear(7);
            await_scale(b, 0, tag);
            tell(4);
        }
        hear(2);
        if (d->waits)
            empty_buffers(b, l + 1);
        __threadfence();
        tell(3);
        if (!d->reads) {
            hear(6);
            await_scale(b, 1, tag + 1);
            tell(5);
        }
    }
}

FN void load(struct block *b)
{
#pragma unroll 1
    for (uint32_t l = 0; l < b->d->m.layers; l++)
#pragma unroll 1
        for (int p = 0; p < 4; p++) {
            load_product(b, l, (enum product)p);
            if (p == IS_QKV && b->d->attends)
                load_keys(b, l);
        }
}

/* A warp that brings x: each FEEDERS-th chunk, as TMA would have swizzled it. A lane has 16
 * bytes of each half of a token's row. While something lacks, it looks at 16 bytes: all of many
 * tokens would be as much traffic as the weights. */
FN void feed_product(struct block *b, enum product p, const bf16 *x, uint32_t pitch,
                     uint32_t feeder)
{
    const struct decode *d = b->d;
    const uint32_t steps = k_of(&d->m, p) / CHUNK, tokens = d->m.tokens;
    x += b->lane * 8;
#pragma unroll 1
    for (uint32_t i = 0; i < steps; i++, b->chunk++) {
        if (b->chunk % FEEDERS != feeder)
            continue;
        const bf16 *from = x + i * CHUNK;
        uint4 v[16];
        for (uint32_t looks = 0; !d->reads; looks++) {
            bool lacks = false;
#pragma unroll
            for (int n = 0; n < 16; n++)
                if (n / 2 < tokens)
                    v[n] = load_words(from + n / 2 * pitch + n % 2 * (CHUNK / 2));
#pragma unroll
            for (int n = 0; n < 16; n++)
                lacks |= n / 2 < tokens && is_empty(v[n]);
            if (!d->waits || !__any_sync(~0u, lacks))
                break;
            if (looks > LOOKS_AT_MEMORY)
                too_late(b, 16 + p);
            if (tokens > 2)
                while (__any_sync(~0u, is_empty(load_words(from + (tokens - 1) * pitch))))
                    if (++looks > LOOKS_AT_MEMORY)
                        too_late(b, 16 + p);
        }
        const uint32_t at = b->chunk % X_PLACES, turn = b->chunk / X_PLACES;
        if (turn)
            bar_wait(b, b->x_empty + at * 8, (turn - 1) & 1, 3);
        if (!d->reads) {
            const uint32_t to = b->x_ring + at * X_PLACE + b->lane / 8 * 1024;
#pragma unroll
            for (int n = 0; n < 16; n++)
                if (n / 2 < tokens)
                    store_shared(to + n / 2 * 128 + n % 2 * 4096 + ((b->lane % 8) ^ n / 2) * 16,
                                 v[n]);
        }
        __syncwarp();
        if (b->lane == 0)
            bar_arrive(b->x_full + at * 8);
    }
}

FN void feed(struct block *b, uint32_t feeder)
{
    const struct decode *d = b->d;
    const struct model *m = &d->m;
#pragma unroll 1
    for (uint32_t l = 0; l < m->layers; l++) {
#pragma unroll 1
        for (int p = 0; p < 4; p++) {
            const enum buffer from = p == IS_QKV     ? X0
                                     : p == IS_O     ? (d->attends ? ATTENDED : QKV)
                                     : p == IS_GATED ? X1
                                                     : GATED;
            feed_product(b, (enum product)p, buffer_of(d, l, from), columns_of(m, from), feeder);
        }
    }
}

__global__ void __launch_bounds__(THREADS + 128, 1)
    decode_kernel(const __grid_constant__ struct decode d)
{
    extern __shared__ __align__(1024) uint8_t memory[];
    __shared__ uint64_t bars[2][PLACES], x_bars[2][X_PLACES];
    __shared__ struct rows own[4];
    __shared__ float squares[CONSUMERS][8], scale[2][8];
    struct block b = {};
    b.d = &d, b.own = own, b.keys = d.keys[blockIdx.x];
    b.ring = shared_address(memory), b.x_ring = b.ring + PLACES * KEYED;
    b.full = shared_address(bars[0]), b.empty = shared_address(bars[1]);
    b.x_full = shared_address(x_bars[0]), b.x_empty = shared_address(x_bars[1]);
    b.sums = (float *)(memory + PLACES * KEYED + X_PLACES * X_PLACE);
    b.warp = threadIdx.x / 32, b.lane = threadIdx.x % 32;
    b.squares = squares, b.scale = scale;
    if (threadIdx.x < 4)
        own[threadIdx.x] = d.rows[blockIdx.x * 4 + threadIdx.x];
    if (threadIdx.x == 0) {
        for (int i = 0; i < PLACES; i++) {
            bar_init(b.full + i * 8, 1);
            bar_init(b.empty + i * 8, CONSUMERS);
        }
        for (int i = 0; i < X_PLACES; i++) {
            bar_init(b.x_full + i * 8, 1);
            bar_init(b.x_empty + i * 8, CONSUMERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (b.warp < CONSUMERS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 184;");
        multiply(&b);
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 136;");
        if (b.warp == CONSUMERS && b.lane == 0)
            load(&b);
        else if (b.warp == CONSUMERS + 1)
            tidy(&b);
        else if (b.warp >= CONSUMERS + 2 && b.warp < CONSUMERS + 2 + FEEDERS)
            feed(&b, b.warp - CONSUMERS - 2);
    }
}

/* ---- plain kernels that say what is right ---- */

__global__ void fill(bf16 *p, uint64_t n, float spread, float middle, uint64_t seed)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n;
         i += (uint64_t)gridDim.x * blockDim.x) {
        uint64_t z = (i + seed * 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ z >> 31) * 0x94d049bb133111ebull;
        z ^= z >> 29;
        p[i] = __float2bfloat16(middle + spread * ((float)(z >> 40) / (1 << 23) - 1));
    }
}

/* y = x W^T in fp32; x of bf16, [tokens, k]. */
__global__ void plain_product(const bf16 *w, const bf16 *x, float *y, uint32_t rows, uint32_t k)
{
    const uint32_t row = blockIdx.x * 8 + threadIdx.x / 32, token = blockIdx.y,
                   lane = threadIdx.x % 32;
    float sum = 0;
    for (uint32_t i = lane; row < rows && i < k; i += 32)
        sum += __bfloat162float(w[(uint64_t)row * k + i]) *
               __bfloat162float(x[(uint64_t)token * k + i]);
    for (int i = 16; i; i /= 2)
        sum += __shfl_xor_sync(~0u, sum, i);
    if (lane == 0 && row < rows)
        y[(uint64_t)token * rows + row] = sum;
}

/* A block a token: what is normed, times the weight. */
__global__ void plain_norm(const float *x, const bf16 *norm, bf16 *to, uint32_t k, float epsilon)
{
    __shared__ float all;
    if (threadIdx.x == 0)
        all = 0;
    __syncthreads();
    float sum = 0;
    for (uint32_t i = threadIdx.x; i < k; i += blockDim.x)
        sum += x[(uint64_t)blockIdx.x * k + i] * x[(uint64_t)blockIdx.x * k + i];
    atomicAdd(&all, sum);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < k; i += blockDim.x)
        to[(uint64_t)blockIdx.x * k + i] =
            __float2bfloat16(x[(uint64_t)blockIdx.x * k + i] * rsqrtf(all / k + epsilon) *
                             __bfloat162float(norm[i]));
}

/* A block a token and query head, a thread an element; the cache's last place is not read. */
__global__ void plain_attention(struct model m, const float *qkv, const bf16 *cache,
                                const float2 *rotary, bf16 *to)
{
    extern __shared__ float scores[];
    __shared__ float q[HEAD], k[HEAD];
    const uint32_t token = blockIdx.x, head = blockIdx.y, kv = head / GROUP, i = threadIdx.x;
    const float *own = qkv + (uint64_t)token * (m.heads + 2 * m.kv_heads) * HEAD;
    const float2 r = rotary[i % (HEAD / 2)];
    for (int which = 0; which < 2; which++) {
        const float *h = own + (which ? m.heads + kv : head) * HEAD;
        const float a = __bfloat162float(__float2bfloat16(h[i % (HEAD / 2)])),
                    c = __bfloat162float(__float2bfloat16(h[i % (HEAD / 2) + HEAD / 2]));
        (which ? k : q)[i] = __bfloat162float(
            __float2bfloat16(i < HEAD / 2 ? a * r.x - c * r.y : c * r.x + a * r.y));
    }
    __syncthreads();
    const uint64_t line = (m.context + 1) * HEAD, half = line * m.tokens * m.kv_heads;
    const bf16 *keys = cache + (token * m.kv_heads + kv) * line, *values = keys + half;
    for (uint32_t j = i; j <= m.context; j += HEAD) {
        float dot = 0;
        for (uint32_t e = 0; e < HEAD; e++)
            dot += q[e] * (j < m.context ? __bfloat162float(keys[(uint64_t)j * HEAD + e]) : k[e]);
        scores[j] = dot * rsqrtf((float)HEAD);
    }
    __syncthreads();
    float most = -INFINITY, total = 0, y = 0;
    for (uint32_t j = 0; j <= m.context; j++)
        most = fmaxf(most, scores[j]);
    for (uint32_t j = 0; j <= m.context; j++) {
        const float p = expf(scores[j] - most);
        total += p;
        y += p * (j < m.context ? __bfloat162float(values[(uint64_t)j * HEAD + i])
                                : __bfloat162float(__float2bfloat16(
                                      own[(m.heads + m.kv_heads + kv) * HEAD + i])));
    }
    to[((uint64_t)token * m.heads + head) * HEAD + i] = __float2bfloat16(y / total);
}

__global__ void plain_gate(const float *both, bf16 *to, uint32_t inner)
{
    const uint64_t token = blockIdx.y, i = blockIdx.x * 256 + threadIdx.x;
    if (i < inner) {
        const float a = both[token * 2 * inner + i];
        to[token * inner + i] =
            __float2bfloat16(a / (1 + expf(-a)) * both[token * 2 * inner + inner + i]);
    }
}

/* ---- host ---- */

struct gpu {
    struct decode d;
    cudaStream_t stream;
    bf16 *weights[4];
    uint64_t *times; /* d.times, or while nobody looks NULL is there */
};

static uint32_t rows_of_product(const struct model *m, int p)
{
    const uint32_t rows[] = {(m->heads + 2 * m->kv_heads) * HEAD, m->hidden, 2 * m->inner,
                             m->hidden};
    return rows[p];
}
static uint32_t k_of_product(const struct model *m, int p)
{
    const uint32_t k[] = {m->hidden, m->heads * HEAD, m->hidden, m->inner};
    return k[p];
}
static uint32_t host_columns(const struct model *m, int which)
{
    const uint32_t c[] = {m->hidden, (m->heads + 2 * m->kv_heads) * HEAD, m->heads * HEAD,
                          m->hidden, m->inner};
    return c[which];
}

static void map_of(CUtensorMap *map, const void *p, const uint64_t (&size)[4],
                   const uint64_t (&pitch)[3], uint32_t rows, uint32_t deep)
{
    static PFN_cuTensorMapEncodeTiled_v12000 encode;
    cudaDriverEntryPointQueryResult found;
    if (!encode)
        CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&encode, 12000,
                                              cudaEnableDefault, &found));
    const cuuint32_t box[] = {BOX, rows, deep, 1}, step[] = {1, 1, 1, 1};
    const CUresult err =
        encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)p, size, pitch, box, step,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, PROMOTION,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (err) {
        printf("gpu_decode: cuTensorMapEncodeTiled: error %d\n", (int)err);
        exit(1);
    }
}

static void *take(uint64_t bytes, int value)
{
    void *p;
    CUDA(cudaMalloc(&p, bytes));
    CUDA(cudaMemset(p, value, bytes));
    return p;
}

/* Rows of all products by CTA, so that all CTAs read about as many bytes in a layer: what does
 * not divide goes to those that have least. O and down share rows, since a residual stays with
 * its thread. */
static void share_rows(const struct model *m, struct rows *rows, int ctas)
{
    static const int order[] = {3, 2, 0};
    double *bytes = (double *)calloc(ctas, sizeof *bytes);
    for (int n = 0; n < 3; n++) {
        const int p = order[n];
        const double unit = p == 3 ? k_of_product(m, 3) + k_of_product(m, 1)
                                   : k_of_product(m, p) * (p == 2 ? 2 : 1);
        const uint32_t units = rows_of_product(m, p) / (p == 2 ? 4 : 2);
        for (int i = 0; i < ctas; i++)
            rows[i * 4 + p].count = units / ctas, bytes[i] += unit * (units / ctas);
        for (uint32_t left = units % ctas; left; left--) {
            int least = 0;
            for (int i = 0; i < ctas; i++)
                if (rows[i * 4 + p].count == units / ctas &&
                    (rows[least * 4 + p].count > units / ctas || bytes[i] < bytes[least]))
                    least = i;
            rows[least * 4 + p].count++;
            bytes[least] += unit;
        }
        for (uint32_t i = 0, at = 0; i < (uint32_t)ctas; at += rows[i++ * 4 + p].count)
            rows[i * 4 + p].first = at;
    }
    for (int i = 0; i < ctas; i++) {
        rows[i * 4 + 1] = rows[i * 4 + 3];
        for (int p = 0; p < 4; p++)
            rows[i * 4 + p].first *= 2, rows[i * 4 + p].count *= 2;
    }
    free(bytes);
}

static void make(struct gpu *g, uint32_t gpu, uint32_t gpus, struct model m, int ctas)
{
    CUDA(cudaSetDevice(gpu));
    memset(g, 0, sizeof *g);
    g->d.m = m, g->d.gpu = gpu, g->d.gpus = gpus;
    CUDA(cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking));
    for (int p = 0; p < 4; p++) {
        const uint64_t n = (uint64_t)m.layers * rows_of_product(&m, p) * k_of_product(&m, p);
        g->weights[p] = (bf16 *)take(n * 2, 0);
        fill<<<1024, 256>>>(g->weights[p], n, .02f * 1.732f, 0, 10 * gpu + p + 1);
        g->d.w[p] = g->weights[p];
    }
    for (int i = 0; i < 2; i++) {
        bf16 *norm = (bf16 *)take((uint64_t)m.layers * m.hidden * 2, 0);
        fill<<<64, 256>>>(norm, (uint64_t)m.layers * m.hidden, .2f, 1, 100 + i);
        g->d.norm[i] = norm;
    }
    const uint64_t cache = 2ull * m.layers * m.tokens * m.kv_heads * (m.context + 1) * HEAD;
    g->d.cache = (bf16 *)take(cache * 2, 0);
    fill<<<1024, 256>>>(g->d.cache, cache, 1.7f, 0, 200 + gpu);
    bf16 *in = (bf16 *)take((uint64_t)m.tokens * m.hidden * 2, 0);
    fill<<<64, 256>>>(in, (uint64_t)m.tokens * m.hidden, 1.7f, 0, 300);
    g->d.in = in;
    g->d.out = (bf16 *)take((uint64_t)m.tokens * m.hidden * 2, 0xff);
    float2 rotary[HEAD / 2];
    for (int i = 0; i < HEAD / 2; i++) {
        const double angle = m.context * pow(500000, -2.0 * i / HEAD);
        rotary[i] = make_float2((float)cos(angle), (float)sin(angle));
    }
    void *r = take(sizeof rotary, 0);
    CUDA(cudaMemcpy(r, rotary, sizeof rotary, cudaMemcpyHostToDevice));
    g->d.rotary = (const float2 *)r;
    for (int w = 0; w < BUFFERS; w++)
        g->d.at[w] = g->d.words, g->d.words += m.tokens * host_columns(&m, w) / 2;
    g->d.buffers = (uint32_t *)take(2ull * g->d.words * 4, 0xff);
    static CUtensorMap maps[4 * (GROUP_ROWS / 2) + 1];
    for (int p = 0; p < 4; p++) {
        const uint64_t k = k_of_product(&m, p), deep = p == 2 ? 2 : 1,
                       rows = rows_of_product(&m, p) / deep;
        for (uint32_t i = 0; i < (p == 2 ? GROUP_ROWS / 2 : GROUP_ROWS) / 2; i++)
            map_of(&maps[p * (GROUP_ROWS / 2) + i], g->d.w[p], {k, rows, deep, m.layers},
                   {k * 2, rows * k * 2, deep * rows * k * 2}, 2 * (i + 1), (uint32_t)deep);
    }
    const uint64_t line = (m.context + 1ull) * HEAD * 2;
    map_of(&maps[4 * (GROUP_ROWS / 2)], g->d.cache,
           {HEAD, m.context + 1ull, (uint64_t)m.tokens * m.kv_heads, 2ull * m.layers},
           {HEAD * 2, line, line * m.tokens * m.kv_heads}, BLOCK_KEYS, 1);
    void *at = take(sizeof maps, 0);
    CUDA(cudaMemcpy(at, maps, sizeof maps, cudaMemcpyHostToDevice));
    g->d.maps = (const CUtensorMap *)at;
    struct rows *rows = (struct rows *)calloc(ctas * 4, sizeof *rows);
    share_rows(&m, rows, ctas);
    at = take(ctas * 4 * sizeof *rows, 0);
    CUDA(cudaMemcpy(at, rows, ctas * 4 * sizeof *rows, cudaMemcpyHostToDevice));
    free(rows);
    g->d.rows = (const struct rows *)at;
    g->times = (uint64_t *)take((uint64_t)ctas * m.layers * MARKS * 8, 0);
    /* Blocks of keys by CTA; some CTAs have none where blocks are few. */
    const uint32_t heads = m.tokens * m.kv_heads, blocks = heads * (m.context / BLOCK_KEYS);
    const uint32_t readers = blocks < (uint32_t)ctas ? blocks : ctas;
    struct rows *keys = (struct rows *)calloc(ctas, sizeof *keys);
    struct span *spans = (struct span *)calloc(heads, sizeof *spans);
    uint32_t slots = 0;
    for (uint32_t i = 0; i < readers; i++)
        keys[i].first = share(blocks, i, readers),
        keys[i].count = share(blocks, i + 1, readers) - keys[i].first;
    for (uint32_t h = 0; h < heads; h++) {
        const uint32_t first = h * (m.context / BLOCK_KEYS), end = first + m.context / BLOCK_KEYS;
        spans[h].slot = slots;
        for (uint32_t i = 0; i < readers; i++)
            if (keys[i].first < end && keys[i].first + keys[i].count > first) {
                if (!spans[h].count++)
                    spans[h].cta = i;
                slots++;
            }
    }
    void *on = take(ctas * sizeof *keys, 0);
    CUDA(cudaMemcpy(on, keys, ctas * sizeof *keys, cudaMemcpyHostToDevice));
    g->d.keys = (const struct rows *)on;
    on = take(heads * sizeof *spans, 0);
    CUDA(cudaMemcpy(on, spans, heads * sizeof *spans, cudaMemcpyHostToDevice));
    g->d.spans = (const struct span *)on;
    free(keys), free(spans);
    g->d.parts = (uint64_t *)take((uint64_t)slots * GROUP * (HEAD + 1) * 8, 0);
    g->d.squares = (uint64_t *)take(2ull * ctas * 8 * 8, 0);
    g->d.inbox = (uint64_t *)take(2ull * m.hidden * 8 * 8, 0);
    CUDA(cudaHostAlloc(&g->d.late, 4, cudaHostAllocPortable | cudaHostAllocMapped));
    *g->d.late = 0;
    CUDA(cudaFuncSetAttribute(decode_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED));
    CUDA(cudaDeviceSynchronize());
}

static void unmake(struct gpu *g)
{
    CUDA(cudaSetDevice(g->d.gpu));
    for (int p = 0; p < 4; p++)
        CUDA(cudaFree(g->weights[p]));
    for (int i = 0; i < 2; i++) {
        CUDA(cudaFree((void *)g->d.norm[i]));
    }
    CUDA(cudaFree(g->d.buffers));
    CUDA(cudaFree((void *)g->d.keys));
    CUDA(cudaFree((void *)g->d.spans));
    CUDA(cudaFree(g->d.cache));
    CUDA(cudaFree((void *)g->d.in));
    CUDA(cudaFree(g->d.out));
    CUDA(cudaFree((void *)g->d.maps));
    CUDA(cudaFree((void *)g->d.rows));
    CUDA(cudaFree(g->times));
    CUDA(cudaFree((void *)g->d.rotary));
    CUDA(cudaFree(g->d.parts));
    CUDA(cudaFree(g->d.squares));
    CUDA(cudaFree(g->d.inbox));
    CUDA(cudaFreeHost(g->d.late));
    CUDA(cudaStreamDestroy(g->stream));
}

static void launch(struct gpu *g, uint32_t gpus, int ctas)
{
    for (uint32_t i = 0; i < gpus; i++) {
        CUDA(cudaSetDevice(i));
        g[i].d.call++;
        decode_kernel<<<ctas, THREADS + 128, SHARED, g[i].stream>>>(g[i].d);
        CUDA(cudaGetLastError());
    }
}

static void finish(struct gpu *g, uint32_t gpus)
{
    for (uint32_t i = 0; i < gpus; i++) {
        CUDA(cudaSetDevice(i));
        cudaError_t err = cudaStreamSynchronize(g[i].stream);
        if (err != cudaSuccess) {
            printf("gpu_decode: GPU %u: %s; waits that were too long: %u, %u\n", i,
                   cudaGetErrorString(err), *g[0].d.late, *g[gpus - 1].d.late);
            exit(1);
        }
    }
}

static double differs(const bf16 *got, const float *want, uint64_t n, const char *what,
                      uint32_t gpu)
{
    uint16_t *bits = (uint16_t *)malloc(n * 2);
    CUDA(cudaMemcpy(bits, got, n * 2, cudaMemcpyDefault));
    double error = 0, norm = 0;
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t word = (uint32_t)bits[i] << 16;
        float f;
        memcpy(&f, &word, 4);
        error += (f - (double)want[i]) * (f - (double)want[i]);
        norm += (double)want[i] * want[i];
    }
    free(bits);
    const double relative = sqrt(error / norm);
    if (!(relative < 2e-2))
        printf("WRONG %s of GPU %u: relative error %.2e\n", what, gpu, relative);
    return relative;
}

/* Two launches, so that buffers are used again; then all layers by plain kernels. */
static int check(uint32_t gpus, struct model m, int ctas)
{
    struct gpu g[MOST_GPUS];
    for (uint32_t i = 0; i < gpus; i++)
        make(&g[i], i, gpus, m, ctas), g[i].d.loads = g[i].d.waits = g[i].d.attends = 1;
    for (uint32_t i = 0; i < gpus; i++)
        for (uint32_t j = 0; j < gpus; j++)
            g[i].d.peer[j] = g[j].d.inbox;
    for (int i = 0; i < 2; i++)
        launch(g, gpus, ctas);
    finish(g, gpus);
    const uint64_t hidden = (uint64_t)m.tokens * m.hidden;
    float *residual = (float *)malloc(hidden * 4), *part = (float *)malloc(hidden * 4),
          *x[MOST_GPUS], *y[MOST_GPUS];
    bf16 *a[MOST_GPUS], *c[MOST_GPUS], *host_in = (bf16 *)malloc(hidden * 2);
    CUDA(cudaMemcpy(host_in, g[0].d.in, hidden * 2, cudaMemcpyDefault));
    for (uint64_t i = 0; i < hidden; i++)
        residual[i] = __bfloat162float(host_in[i]);
    for (uint32_t i = 0; i < gpus; i++) {
        CUDA(cudaSetDevice(i));
        x[i] = (float *)take(hidden * 4, 0),
        y[i] = (float *)take((uint64_t)m.tokens * 2 * m.inner * 4 + hidden * 4, 0);
        a[i] = (bf16 *)take((uint64_t)m.tokens * (m.inner + m.hidden) * 2, 0);
        c[i] = (bf16 *)take((uint64_t)m.tokens * (m.inner + m.hidden) * 2, 0);
    }
    double worst = 0;
    for (uint32_t l = 0; l < m.layers; l++) {
        for (int second = 0; second < 2; second++) {
            float *sum = (float *)calloc(hidden, 4);
            for (uint32_t i = 0; i < gpus; i++) {
                CUDA(cudaSetDevice(i));
                CUDA(cudaMemcpy(x[i], residual, hidden * 4, cudaMemcpyDefault));
                plain_norm<<<m.tokens, 256>>>(x[i], g[i].d.norm[second] + (uint64_t)l * m.hidden,
                                              a[i], m.hidden, m.epsilon);
                const int p = second * 2;
                const uint32_t rows = rows_of_product(&m, p), k = k_of_product(&m, p);
                plain_product<<<dim3((rows + 7) / 8, m.tokens), 256>>>(
                    g[i].d.w[p] + (uint64_t)l * rows * k, a[i], y[i], rows, k);
                if (second)
                    plain_gate<<<dim3((m.inner + 255) / 256, m.tokens), 256>>>(y[i], c[i], m.inner);
                else {
                    const uint64_t layer = 2ull * m.tokens * m.kv_heads * (m.context + 1) * HEAD;
                    plain_attention<<<dim3(m.tokens, m.heads), HEAD, (m.context + 1) * 4>>>(
                        m, y[i], g[i].d.cache + l * layer, g[i].d.rotary, c[i]);
                }
                const uint32_t out_k = k_of_product(&m, p + 1);
                plain_product<<<dim3((m.hidden + 7) / 8, m.tokens), 256>>>(
                    g[i].d.w[p + 1] + (uint64_t)l * m.hidden * out_k, c[i], x[i], m.hidden, out_k);
                CUDA(cudaDeviceSynchronize());
                CUDA(cudaMemcpy(part, x[i], hidden * 4, cudaMemcpyDefault));
                for (uint64_t e = 0; e < hidden; e++)
                    sum[e] += part[e];
                if (l + 1 == m.layers) {
                    const uint32_t n = m.tokens * (second ? m.inner : m.heads * HEAD);
                    bf16 *host = (bf16 *)malloc(n * 2);
                    float *want = (float *)malloc(n * 4);
                    CUDA(cudaMemcpy(host, c[i], n * 2, cudaMemcpyDefault));
                    for (uint32_t e = 0; e < n; e++)
                        want[e] = __bfloat162float(host[e]);
                    worst = fmax(worst, differs((bf16 *)(g[i].d.buffers + l % 2 * g[i].d.words +
                                                         g[i].d.at[second ? GATED : ATTENDED]),
                                                want, n, second ? "gated" : "attention", i));
                    free(host), free(want);
                }
            }
            for (uint64_t e = 0; e < hidden; e++)
                residual[e] = __bfloat162float(__float2bfloat16(residual[e] + sum[e]));
            free(sum);
            if (l + 1 == m.layers && !second) {
                bf16 *norm = (bf16 *)malloc(m.hidden * 2);
                CUDA(cudaMemcpy(norm, g[0].d.norm[1] + (uint64_t)l * m.hidden, m.hidden * 2,
                                cudaMemcpyDefault));
                for (uint64_t e = 0; e < hidden; e++)
                    part[e] = residual[e] * __bfloat162float(norm[e % m.hidden]);
                for (uint32_t i = 0; i < gpus; i++)
                    worst = fmax(worst, differs((bf16 *)(g[i].d.buffers + l % 2 * g[i].d.words +
                                                         g[i].d.at[X1]),
                                                part, hidden, "behind O", i));
                free(norm);
            }
        }
    }
    for (uint32_t i = 0; i < gpus; i++)
        worst = fmax(worst, differs(g[i].d.out, residual, hidden, "output", i));
    printf("check: %u GPUs, %u tokens, context %u, %u layers: relative error at most %.2e: %s\n",
           gpus, m.tokens, m.context, m.layers, worst, worst < 2e-2 ? "right" : "WRONG");
    for (uint32_t i = 0; i < gpus; i++) {
        CUDA(cudaSetDevice(i));
        CUDA(cudaFree(x[i]));
        CUDA(cudaFree(y[i]));
        CUDA(cudaFree(a[i]));
        CUDA(cudaFree(c[i]));
        unmake(&g[i]);
    }
    free(residual), free(part), free(host_in);
    return !(worst < 2e-2);
}

static int by_value(const void *a, const void *b)
{
    return (*(const float *)a > *(const float *)b) - (*(const float *)a < *(const float *)b);
}

static void bench(uint32_t gpus, struct model m, int ctas)
{
    enum { LAUNCHES = 25 };
    static const char *const names[] = {"weights are read", "multiplied, not read",
                                        "products, nobody waits", "products in turn", "layers"};
    struct gpu g[MOST_GPUS];
    cudaEvent_t at[LAUNCHES + 1];
    for (uint32_t i = 0; i < gpus; i++)
        make(&g[i], i, gpus, m, ctas);
    for (uint32_t i = 0; i < gpus; i++)
        for (uint32_t j = 0; j < gpus; j++)
            g[i].d.peer[j] = g[j].d.inbox;
    double weights = 0;
    for (int p = 0; p < 4; p++)
        weights += 2.0 * rows_of_product(&m, p) * k_of_product(&m, p);
    const double cache = 4.0 * m.tokens * m.kv_heads * m.context * HEAD;
    CUDA(cudaSetDevice(0));
    for (int i = 0; i <= LAUNCHES; i++)
        CUDA(cudaEventCreate(&at[i]));
    for (int mode = 0; mode < 5; mode++) {
        for (uint32_t i = 0; i < gpus; i++) {
            CUDA(cudaSetDevice(i));
            g[i].d.reads = mode == 0, g[i].d.loads = mode != 1, g[i].d.waits = mode > 2,
            g[i].d.attends = mode > 3;
            CUDA(cudaMemset(g[i].d.buffers, mode > 2 ? 0xff : 0, 2ull * g[i].d.words * 4));
            CUDA(cudaDeviceSynchronize());
        }
        for (int i = 0; i < 3; i++)
            launch(g, gpus, ctas);
        finish(g, gpus);
        CUDA(cudaSetDevice(0));
        CUDA(cudaEventRecord(at[0], g[0].stream));
        for (int i = 0; i < LAUNCHES; i++) {
            launch(g, gpus, ctas);
            CUDA(cudaSetDevice(0));
            CUDA(cudaEventRecord(at[i + 1], g[0].stream));
        }
        finish(g, gpus);
        CUDA(cudaSetDevice(0));
        float us[LAUNCHES];
        for (int i = 0; i < LAUNCHES; i++) {
            CUDA(cudaEventElapsedTime(&us[i], at[i], at[i + 1]));
            us[i] *= 1e3f / m.layers;
        }
        qsort(us, LAUNCHES, sizeof *us, by_value);
        const double bytes = weights + (mode > 3 ? cache : 0), floor = bytes / 4600e3;
        printf("%u GPUs, %u tokens, context %u, %u layers, %-24s %6.1f us a layer (%.1f to %.1f), "
               "%.0f GB/s, floor %.1f, "
               "%.2f times\n",
               gpus, m.tokens, m.context, m.layers, names[mode], us[LAUNCHES / 2], us[1],
               us[LAUNCHES - 2], bytes / us[LAUNCHES / 2] / 1e3, floor, us[LAUNCHES / 2] / floor);
    }
    /* Where the last mode's time goes: a layer in the middle, from when the first CTA begins it. */
    static const char *const parts[] = {"begun", "QKV", "keys", "heads", "O", "gate, up", "down"};
    const uint64_t n = (uint64_t)ctas * m.layers * MARKS;
    uint64_t *times = (uint64_t *)malloc(n * 8);
    for (uint32_t i = 0; i < gpus; i++)
        g[i].d.times = g[i].times;
    launch(g, gpus, ctas);
    finish(g, gpus);
    CUDA(cudaMemcpy(times, g[0].times, n * 8, cudaMemcpyDefault));
    uint64_t start = UINT64_MAX;
    for (int c = 0; c < ctas; c++)
        start = times[(c * m.layers + m.layers / 2) * MARKS] < start
                    ? times[(c * m.layers + m.layers / 2) * MARKS]
                    : start;
    for (int what = 0; what < MARKS; what++) {
        double least = 1e9, most = 0, sum = 0;
        for (int c = 0; c < ctas; c++) {
            const double at =
                (double)(int64_t)(times[(c * m.layers + m.layers / 2) * MARKS + what] - start) /
                1e3;
            least = fmin(least, at), most = fmax(most, at), sum += at;
        }
        printf("%s%s %.1f %.1f %.1f",
               what ? "; " : "    ended, first, mean and last CTA, us: ", parts[what], least,
               sum / ctas, most);
    }
    printf("\n");
    /* Whether the same CTAs are always slow: of gate and up, in even layers and in odd ones. */
    double xy = 0, xx = 0, yy = 0, mean = 0, least = 1e9, most = 0;
    double *half = (double *)calloc(2 * ctas, sizeof *half);
    for (int c = 0; c < ctas; c++)
        for (uint32_t l = 1; l + 1 < m.layers; l++)
            half[2 * c + l % 2] += (double)(times[(c * m.layers + l) * MARKS + GATED_DONE] -
                                            times[(c * m.layers + l) * MARKS + O_DONE]) /
                                   1e3 / (m.layers / 2 - 1);
    for (int c = 0; c < 2 * ctas; c++)
        mean += half[c] / (2 * ctas);
    for (int c = 0; c < ctas; c++) {
        const double x = half[2 * c] - mean, y = half[2 * c + 1] - mean;
        xy += x * y, xx += x * x, yy += y * y;
        least = fmin(least, x + mean), most = fmax(most, x + mean);
    }
    printf("    gate and up by CTA, mean of layers: %.1f us, %.1f to %.1f; correlation of even and "
           "odd layers %.2f\n",
           mean, least, most, xy / sqrt(xx * yy));
    free(half);
    free(times);
    for (uint32_t i = 0; i < gpus; i++)
        unmake(&g[i]);
}

int main(int argc, char **argv)
{
    const uint32_t gpus = argc > 2 ? (uint32_t)atoi(argv[2]) : 0,
                   layers = argc > 3 ? (uint32_t)atoi(argv[3]) : 16;
    const int checks = argc > 1 && !strcmp(argv[1], "check");
    if (argc < 3 || gpus < 1 || gpus > MOST_GPUS || layers < 2 || layers % 2 ||
        (!checks && strcmp(argv[1], "bench"))) {
        printf("usage: gpu_decode check|bench GPUS [LAYERS], 1 or 2 GPUs and an even number of "
               "layers\n");
        return 2;
    }
    int have = 0, sms;
    cudaDeviceProp is;
    if (cudaGetDeviceCount(&have) != cudaSuccess || have < (int)gpus ||
        cudaGetDeviceProperties(&is, 0) != cudaSuccess || is.major < 9) {
        printf("skip: %u Hopper GPUs are needed\n", gpus);
        return 77;
    }
    sms = is.multiProcessorCount;
    for (uint32_t i = 0; gpus > 1 && i < gpus; i++) {
        CUDA(cudaSetDevice(i));
        CUDA(cudaDeviceEnablePeerAccess(!i, 0));
    }
    /* Llama-3-8B's layer, tensor parallel over two: what one GPU has. */
    struct model m = {1, 1024, layers, 4096, 7168, 16, 4, 1e-5f};
    int failed = 0;
    if (checks) {
        static const uint32_t cases[][2] = {{1, 64}, {1, 1024}, {3, 192}, {8, 1024}, {5, 2048}};
        m.layers = argc > 3 ? layers : 4;
        for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
            m.tokens = cases[i][0], m.context = cases[i][1];
            failed |= check(gpus, m, sms);
        }
        return failed;
    }
    static const uint32_t cases[][2] = {{1, 1024}, {1, 8192}, {8, 1024}, {8, 8192}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        m.tokens = cases[i][0], m.context = cases[i][1];
        bench(gpus, m, sms);
    }
    return 0;
}

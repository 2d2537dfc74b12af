/*
 * The tables of MoE routing by themselves (kernels/cta/cta_route.cuh): those of every rank are what the
 * host makes, however tokens are routed; and how long a launch takes to make them.
 *
 *     gpu_route check   every table of every rank, of some topologies, sizes and routings
 *     gpu_route bench   256 experts, top-8, 512 to 8192 tokens a rank, on 2 and 8 ranks, with logical
 *                       experts on 2, and 128 on 64 and 256, by as many thread blocks as a plan has by default: each step
 *                       with the meeting behind it, and all of them, least and median of 21
 *                       launches, each behind 256 MB that are written, so that neither data nor
 *                       instructions are in L2. What other ranks say is there before.
 *
 * One rank's work needs one GPU. Exit status: 0 right, 1 wrong, 77 no Hopper GPU here.
 *
 * tests/test_hopper_route.c has this file compiled for the emulated Hopper.
 */
#include <cuda_runtime.h>

extern "C" {
#include "core/ops/moe_map.h"
#include "core/ops/op.h"
#include "core/plan/plan_fields.h"
#include "sim/route.h"
}
#include "kernels/host/op.h"

#include "core/ops/registry.h"
#include "core/base/random.h"
#include "core/roles/moe_ffn_plan.h"
#include "kernels/cta/cta_route.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CUDA(call)                                                                                 \
    do {                                                                                           \
        cudaError_t err_ = (call);                                                                 \
        if (err_ != cudaSuccess) {                                                                 \
            fprintf(stderr, "gpu_route: %s: %s (line %d)\n", #call, cudaGetErrorString(err_),      \
                    __LINE__);                                                                     \
            return 3;                                                                              \
        }                                                                                          \
    } while (0)

enum { THREADS = MK_ROUTE_WARPS * 32, LAUNCHES = 21, FLUSHED = 256 << 20 };

enum { STEPS = MK_ROUTE_LAY_OUT - MK_ROUTE_COUNT + 1 };

/* Of each block: when it began, and when all had done each step. */
struct moments {
    unsigned long long at[STEPS + 1];
};

/* All blocks are here; the word counts on from launch to launch. Ends after 2 s. */
static __device__ void meet(unsigned long long *word, unsigned long long target)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(word, 1ull);
        uint64_t start = ptx_globaltimer();
        while (ptx_load_acquire((uint64_t *)word) < target)
            if (ptx_globaltimer() - start > 2000000000)
                ptx_fail();
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(THREADS, 1)
    route(const __grid_constant__ struct mk_route tables,
          const __grid_constant__ struct gpu_launch launch, unsigned long long *word,
          struct moments *moments)
{
    PTX_SHARED_DYNAMIC(memory);
    struct mk_cta cta;
    struct mk_route r = tables;
    unsigned long long before = *launch.left * (STEPS + 1); /* blocks of the launches before */
    cta_identify(&cta, &launch, blockIdx.x, THREADS);
    cta.scratch = memory;
    r.part = cta.index;
    r.parts = cta.count;
#pragma unroll 1
    for (uint32_t i = 0; i <= STEPS; i++) {
        r.step = MK_ROUTE_COUNT + i - 1;
        if (i && (r.step != MK_ROUTE_RELAY || r.topo.nodes > 1))
            mk_cta_route(&cta, &r);
        meet(word, before + (i + 1) * gridDim.x);
        if (threadIdx.x == 0)
            moments[blockIdx.x].at[i] = ptx_globaltimer();
    }
}

static __global__ void __launch_bounds__(THREADS, 1)
    keep(const __grid_constant__ struct mk_route tables,
         const __grid_constant__ struct gpu_launch launch)
{
    PTX_SHARED_DYNAMIC(memory);
    struct mk_cta cta;
    struct mk_route r = tables;
    cta_identify(&cta, &launch, blockIdx.x, THREADS);
    cta.scratch = memory;
    r.step = MK_ROUTE_KEEP;
    mk_cta_route(&cta, &r);
}

/* ---- one rank ---- */

struct rank {
    struct mk_plan plan;
    struct mk_route tables;
    struct gpu_launch launch;
    uint32_t world;
    uint8_t **heaps; /* on the host, of all ranks */
    uint8_t *heap;   /* this one's */
    uint32_t *ids;   /* of all ranks */
    float *weights;
    uint64_t bytes;
    uint32_t parts;
    unsigned long long *word;
    struct moments *moments;
    char *arguments[2]; /* its ids and weights, on the GPU */
};

static uint64_t places_of(const struct rank *k)
{
    return (uint64_t)k->tables.tokens * k->tables.k;
}

/* even, skewed, all to expert 0, half of the experts, the last rank without tokens, out of range */
enum { EVEN, SKEWED, ONE, FEW, NONE, ODD, ROUTINGS };

static uint32_t expert_of(const struct mk_moe *m, int routing, uint64_t seed, uint64_t token,
                          uint32_t place, uint32_t rank, uint32_t world)
{
    uint64_t bits = mk_mix(seed ^ token * 0x9e3779b97f4a7c15ull);
    uint32_t expert = (uint32_t)((bits + place * (1 + (bits >> 40) % 5)) % m->experts);
    if (routing == SKEWED)
        expert = (uint32_t)(((uint64_t)expert * expert) / m->experts);
    if (routing == ONE)
        expert = place ? UINT32_MAX : 0;
    if (routing == FEW)
        expert &= ~1u;
    if (routing == NONE && rank == world - 1)
        expert = UINT32_MAX;
    if (routing == ODD && mk_mix(bits + place) % 3 == 0)
        expert = m->experts + (uint32_t)(bits >> 50);
    return expert;
}

static uint8_t *heap_of(void *k, uint32_t rank)
{
    return ((struct rank *)k)->heaps[rank];
}

/* A step of every rank, on the host, and what they have made for each other to where it goes. */
static void all_make(struct rank *k, uint32_t step)
{
    struct mk_route r = k->tables;
    r.step = step;
    r.part = 0;
    r.parts = 1;
    for (uint32_t i = 0; i < k->world; i++) {
        r.topo.rank = i;
        route_make(&r, k->heaps[i], k->ids + i * places_of(k), k->weights + i * places_of(k), NULL);
    }
    for (uint32_t i = 0; i < k->world; i++) {
        r.topo.rank = i;
        route_hand_over(&r, heap_of, k);
    }
}

/* What other ranks say, to the GPU. */
static int rank_be_told(const struct rank *k)
{
    const struct mk_route *r = &k->tables;
    const struct mk_topo *t = &r->topo;
    const uint64_t said = (uint64_t)t->nodes * r->said_words * 4,
                   landed = (uint64_t)t->gpus * r->landed_room * r->k * 16;
    char *heap = k->launch.heap;
    for (uint32_t local = 0; local < t->gpus; local++)
        if (local != mk_local_of(t, t->rank)) /* the rest it says itself */
            CUDA(cudaMemcpy(heap + r->said + local * said, k->heap + r->said + local * said, said,
                            cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(heap + r->landed_records, k->heap + r->landed_records, landed,
                    cudaMemcpyHostToDevice));
    if (t->nodes > 1)
        CUDA(cudaMemcpy(heap + r->railed, k->heap + r->railed, t->nodes * r->rail_pitch,
                        cudaMemcpyHostToDevice));
    return 0;
}

static int rank_open_gpu(struct rank *k)
{
    struct gpu_launch *l = &k->launch;
    const uint64_t zero = 0, own = k->tables.topo.rank * places_of(k), bytes = places_of(k) * 4;
    l->split.ctas[MK_INTRA_COMM] = k->parts;
    void *zeros = calloc(1, k->bytes);
    CUDA(cudaMalloc(&l->heap, k->bytes));
    CUDA(cudaMemcpy(l->heap, zeros, k->bytes, cudaMemcpyHostToDevice));
    free(zeros);
    CUDA(cudaMemcpy(l->heap + k->tables.map, k->heap + k->tables.map, k->tables.logical * 4ull,
                    cudaMemcpyHostToDevice));
    CUDA(cudaMalloc(&k->arguments[0], bytes));
    CUDA(cudaMemcpy(k->arguments[0], k->ids + own, bytes, cudaMemcpyHostToDevice));
    CUDA(cudaMalloc(&k->arguments[1], bytes));
    CUDA(cudaMemcpy(k->arguments[1], k->weights + own, bytes, cudaMemcpyHostToDevice));
    l->arguments[MK_SPACE_HEAP] = l->heap;
    l->arguments[MK_SPACE_ARG2] = k->arguments[0];
    l->arguments[MK_SPACE_ARG3] = k->arguments[1];
    CUDA(cudaMalloc(&l->left, 8));
    CUDA(cudaMalloc(&l->taken, 8));
    CUDA(cudaMemcpy(l->taken, &zero, 8, cudaMemcpyHostToDevice));
    CUDA(cudaMalloc(&k->word, 8));
    CUDA(cudaMemcpy(k->word, &zero, 8, cudaMemcpyHostToDevice));
    CUDA(cudaMalloc(&k->moments, k->parts * sizeof *k->moments));
    CUDA(cudaFuncSetAttribute(route, cudaFuncAttributeMaxDynamicSharedMemorySize, MK_ROUTE_SHARED));
    return rank_be_told(k);
}

/* A third of the experts are copies of others: every rank's map into its heap. */
static int rank_place_copies(struct rank *k)
{
    const struct mk_problem *q = &k->plan.problem;
    const uint32_t logical = k->tables.logical, each = k->tables.rank_experts;
    struct moe_map map;
    int32_t *slots;
    double *loads = (double *)malloc(logical * sizeof *loads);
    moe_map_skew(1, logical, loads);
    int failed = moe_map_place(&map, &slots, q, loads);
    free(loads);
    if (failed)
        return 1;
    for (uint32_t rank = 0; rank < k->world; rank++) {
        const struct mk_topo topo = {q->topo.nodes, q->topo.gpus, rank};
        moe_map_row(&map, &topo, each, (uint32_t *)(k->heaps[rank] + k->tables.map));
    }
    free(slots);
    return 0;
}

/* `parts` blocks make the tables; 0: as many as the plan has by default. mapped: ids name logical
 * experts. */
static int rank_open(struct rank *k, struct mk_topo topo, struct mk_moe moe, int routing,
                     uint32_t parts, int mapped, uint64_t seed)
{
    struct mk_problem q = {};
    char error[512];
    memset(k, 0, sizeof *k);
    q.op = MK_OP_MOE_FFN;
    q.exec = MK_EXEC_CUDA;
    q.sms = 132;
    q.topo = topo;
    q.moe = moe;
    q.moe.inner = 8;
    const uint64_t some = moe.experts - moe.experts / 3;
    if (mapped)
        plan_field_set(plan_field_named("logical"), &q, some > moe.k ? some : moe.k);
    q.tuning.slices = 1 + (uint32_t)(seed % 5);
    if (parts) {
        q.tuning.split.ctas[MK_INTRA_COMM] = parts;
        q.tuning.split.ctas[MK_INTER_SEND] = topo.nodes > 1;
        q.tuning.split.ctas[MK_COMPUTE] = parts + 1;
        q.tuning.split.ctas[MK_INTER_REDUCE] = 1 + (parts == 0);
    }
    if (plan_build(&k->plan, &q, 0, 0, error, sizeof error)) {
        fprintf(stderr, "gpu_route: %s\n", error);
        return 1;
    }
    const struct moe_dispatch_plan *d = &moe_ffn_plan_of(&k->plan)->dispatch;
    k->tables = moe_route(d, 1);
    k->parts = d->routers;
    k->bytes = k->plan.heap_base + k->plan.heap_bytes;
    k->world = mk_world(&topo);
    k->heaps = (uint8_t **)calloc(k->world, sizeof *k->heaps);
    k->ids = (uint32_t *)malloc(k->world * places_of(k) * 4);
    k->weights = (float *)malloc(k->world * places_of(k) * 4);
    for (uint32_t rank = 0; rank < k->world; rank++)
        k->heaps[rank] = (uint8_t *)calloc(1, k->bytes);
    k->heap = k->heaps[topo.rank];
    if (mapped && rank_place_copies(k))
        return 1;
    for (uint64_t i = 0; i < k->world * places_of(k); i++) {
        const uint32_t rank = (uint32_t)(i / places_of(k));
        const uint64_t in = i % places_of(k);
        k->ids[i] = expert_of(&moe, routing, seed + rank, in / moe.k, (uint32_t)(in % moe.k), rank,
                              k->world);
        k->weights[i] = (float)(mk_mix(seed ^ i) >> 40);
    }
    all_make(k, MK_ROUTE_PLACE);
    if (topo.nodes > 1)
        all_make(k, MK_ROUTE_RELAY);
    return rank_open_gpu(k);
}

static void rank_close(struct rank *k)
{
    cudaFree(k->launch.heap);
    cudaFree(k->arguments[0]);
    cudaFree(k->arguments[1]);
    cudaFree(k->launch.left);
    cudaFree(k->launch.taken);
    cudaFree(k->word);
    cudaFree(k->moments);
    for (uint32_t rank = 0; rank < k->world; rank++)
        free(k->heaps[rank]);
    free(k->heaps);
    free(k->ids);
    free(k->weights);
}

/* Launch `number`, from 0 on, to its end. */
static int rank_launch(struct rank *k, uint64_t number)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(k->parts);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = MK_ROUTE_SHARED;
    const uint64_t left = number * k->parts;
    CUDA(cudaMemcpy(k->launch.left, &left, 8, cudaMemcpyHostToDevice));
    CUDA(cudaLaunchKernelEx(&config, route, k->tables, k->launch, k->word, k->moments));
    CUDA(cudaStreamSynchronize(NULL));
    return 0;
}

/* ---- check ---- */

/* With room for `quota` places on each rank: what is kept of the own rank's ids, and how many are
 * not. 0: as the host says. */
static int keep_check(const struct rank *k, uint32_t quota)
{
    struct mk_route r = k->tables;
    const uint64_t places = places_of(k), own = r.records; /* of a plan that keeps all */
    const uint32_t *named = k->ids + r.topo.rank * places;
    uint32_t *want = (uint32_t *)malloc(places * 4), *got = (uint32_t *)malloc(places * 4);
    uint64_t dropped = 0;
    char *given;
    struct gpu_launch l = k->launch;
    cudaLaunchConfig_t config = {};
    r.quota = quota;
    r.ids = own;
    r.named_space = MK_SPACE_ARG2;
    config.gridDim = dim3(1);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = MK_ROUTE_SHARED;
    l.split.ctas[MK_INTRA_COMM] = 1;
    CUDA(cudaMalloc(&given, places * 4));
    CUDA(cudaMemcpy(given, named, places * 4, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(l.heap + r.dropped, &dropped, 8, cudaMemcpyHostToDevice));
    l.arguments[MK_SPACE_ARG2] = given;
    CUDA(cudaFuncSetAttribute(keep, cudaFuncAttributeMaxDynamicSharedMemorySize, MK_ROUTE_SHARED));
    CUDA(cudaLaunchKernelEx(&config, keep, r, l));
    CUDA(cudaStreamSynchronize(NULL));
    CUDA(cudaMemcpy(got, l.heap + own, places * 4, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(&dropped, l.heap + r.dropped, 8, cudaMemcpyDeviceToHost));
    int wrong = route_keep(&r, (const uint32_t *)(k->heap + r.map), named, want) != dropped ||
                memcmp(got, want, places * 4);
    if (wrong)
        printf("WRONG what is kept, with room for %u places on a rank\n", quota);
    cudaFree(given);
    free(want);
    free(got);
    return wrong;
}

static int differs(const char *what, const void *got, const void *want, uint64_t bytes)
{
    if (!memcmp(got, want, bytes))
        return 0;
    printf("WRONG %s\n", what);
    return 1;
}

/* Lists of `count`s[] entries at `list`: the i-th at entry firsts[i] of `pitch` entries for each
 * of `of` (i % of, if they are by what is within), but for the one there is none for. `firsts` 0:
 * lists are `pitch` apart. */
static int lists_differ(const char *what, const uint8_t *got, const uint8_t *want, uint64_t list,
                        uint64_t firsts, uint64_t count, uint32_t lists, uint32_t of,
                        uint32_t pitch, uint32_t none)
{
    const uint32_t *n = (const uint32_t *)(want + count),
                   *first = (const uint32_t *)(want + firsts);
    int wrong = differs(what, got + count, want + count, lists * 4ull);
    for (uint32_t i = 0; i < lists && !wrong; i++) {
        uint64_t at =
            list + ((uint64_t)(firsts ? i % of : i) * pitch + (firsts ? first[i] : 0)) * 4;
        wrong = firsts && n[i] && differs(what, got + firsts + i * 4, want + firsts + i * 4, 4);
        wrong |= i % of != none && differs(what, got + at, want + at, n[i] * 4ull);
    }
    return wrong;
}

/* Rows of tokens that the host has given some: those of the own rank's, and of the lists'. */
static int places_differ(const struct mk_route *r, const uint8_t *got, const uint8_t *want)
{
    const struct mk_topo *t = &r->topo;
    const uint32_t local = mk_local_of(t, t->rank);
    const char *const what = "places of rows";
    const uint64_t each = r->k * 4ull;
    int wrong = differs(what, got + r->position, want + r->position, r->tokens * each);
    for (uint32_t rank = 0; rank < mk_world(t) && !wrong; rank++) {
        const uint32_t node = mk_node_of(t, rank), *came = (const uint32_t *)(want + r->came_count),
                       *landed = (const uint32_t *)(want + r->landed_count),
                       *first = (const uint32_t *)(want + r->landed_first);
        const int rail = mk_local_of(t, rank) == local;
        if (rank == t->rank)
            continue;
        uint64_t at =
            r->position +
            (rail ? mk_route_relayed(r, node) : mk_route_landed(r, rank, first[rank])) * each;
        wrong = differs(what, got + at, want + at, (rail ? came[node] : landed[rank]) * each);
    }
    return wrong;
}

/* What it says to ranks of its node, and to other nodes. */
static int sayings_differ(const struct mk_route *r, const uint8_t *got, const uint8_t *want)
{
    const struct mk_topo *t = &r->topo;
    const uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank),
                   *sent = (const uint32_t *)(want + r->sent_count),
                   last = mk_route_behind(t, t->nodes - 1) * t->gpus;
    const uint64_t record = r->k * 16ull, said = (uint64_t)t->nodes * r->said_words * 4;
    int wrong = differs("records", got + r->records, want + r->records, r->tokens * record);
    for (uint32_t n = 0; n < t->nodes && !wrong; n++) {
        uint64_t at = r->railing + n * r->rail_pitch;
        uint32_t count = sent[n] < r->relay_room ? sent[n] : r->relay_room;
        if (n == node)
            continue;
        wrong = differs("what a node is told", got + at, want + at,
                        (uint64_t)t->gpus * r->said_words * 4) ||
                differs("a node's records", got + at + r->rail_head, want + at + r->rail_head,
                        count * record);
    }
    for (uint32_t to = 0; to < t->gpus && !wrong; to++) {
        uint64_t at = r->telling + (uint64_t)to * r->landed_room * record,
                 say = (to == local ? r->said : r->say) + to * said;
        uint32_t count = ((const uint32_t *)(want + r->push_first))[last + to] +
                         ((const uint32_t *)(want + r->push_count))[last + to];
        count = count < r->landed_room ? count : r->landed_room;
        wrong = differs("what a rank is told", got + say, want + say, said) ||
                (to != local && differs("a rank's records", got + at, want + at, count * record));
    }
    return wrong || (t->nodes > 1 && differs("places of sums", got + r->sent_at, want + r->sent_at,
                                             (uint64_t)r->tokens * r->k * 4));
}

static int rank_check(struct rank *k)
{
    const struct mk_route *r = &k->tables;
    const struct mk_topo *t = &r->topo;
    uint32_t world = mk_world(t), wrong = 0;
    uint8_t *got = (uint8_t *)malloc(k->bytes);
    if (rank_launch(k, 0))
        return 3;
    CUDA(cudaMemcpy(got, k->launch.heap, k->bytes, cudaMemcpyDeviceToHost));
    struct mk_route host = *r;
    host.step = MK_ROUTE_LAY_OUT;
    host.part = 0;
    host.parts = k->parts;
    route_make(&host, k->heap, NULL, NULL, NULL);
    const struct mk_route_head *head = (const struct mk_route_head *)(k->heap + r->order_head),
                               *said = (const struct mk_route_head *)(got + r->order_head);
    wrong |= sayings_differ(r, got, k->heap);
    wrong |= differs("what there is too much of", &said->over, &head->over, 16);
    if (wrong || head->over) {
        free(got);
        return wrong;
    }
    const uint32_t *first = (const uint32_t *)(k->heap + r->first),
                   *rows = (const uint32_t *)(k->heap + r->rows);
    wrong |= differs("first rows", got + r->first, first, r->rank_experts * 4ull);
    wrong |= differs("rows", got + r->rows, rows, r->rank_experts * 4ull);
    wrong |= places_differ(r, got, k->heap);
    for (uint32_t e = 0; e < r->rank_experts && !wrong; e++)
        wrong |= differs("where rows lie", got + r->source + first[e] * 4ull,
                         k->heap + r->source + first[e] * 4ull, rows[e] * 4ull);
    wrong |= lists_differ("tokens to push", got, k->heap, r->push, r->push_first, r->push_count,
                          t->gpus > 1 ? t->nodes * t->gpus : 0, t->gpus, r->landed_room,
                          mk_local_of(t, t->rank));
    wrong |= lists_differ("tokens to send", got, k->heap, r->sent, 0, r->sent_count, t->nodes, 1,
                          r->relay_room, UINT32_MAX);
    wrong |=
        differs("tokens that come", got + r->came_count, k->heap + r->came_count, t->nodes * 4ull);
    for (uint32_t rank = 0; rank < world && !wrong; rank++)
        if (mk_local_of(t, rank) != mk_local_of(t, t->rank))
            wrong |= differs("where tokens come", got + r->landed_first + rank * 4ull,
                             k->heap + r->landed_first + rank * 4ull, 4) |
                     differs("how many come", got + r->landed_count + rank * 4ull,
                             k->heap + r->landed_count + rank * 4ull, 4);
    wrong |= differs("how many tiles", &said->count, &head->count, sizeof head->count);
    wrong |=
        differs("tiles before some blocks add", &said->apart, &head->apart, sizeof head->apart);
    wrong |= differs("the order of tiles", got + r->order, k->heap + r->order,
                     wrong ? 0 : head->count * (uint64_t)sizeof(struct mk_tile_entry));
    wrong |= differs("rows awaited", got + r->awaited, k->heap + r->awaited,
                     (uint64_t)moe_ffn_plan_of(&k->plan)->dispatch.row_tiles * 8);
    free(got);
    return wrong != 0;
}

/* Whether a rank's tables are what the host makes. 0: they are. */
extern "C" int route_check(const struct mk_topo *topo, const struct mk_moe *moe, int routing,
                           uint32_t parts, uint64_t seed)
{
    struct rank k;
    int wrong = rank_open(&k, *topo, *moe, routing, parts, (int)(seed & 1), seed) ||
                rank_check(&k) || keep_check(&k, 1 + (uint32_t)(moe->tokens * moe->k / 3)) ||
                keep_check(&k, 1);
    if (wrong)
        printf("... of rank %u of %u x %u, --moe %d,%d,%d,%d,%d, routing %d, %u parts\n",
               topo->rank, topo->nodes, topo->gpus, (int)moe->tokens, (int)moe->hidden,
               (int)moe->inner, (int)moe->experts, (int)moe->k, routing, parts);
    rank_close(&k);
    return wrong;
}

#ifndef MK_EMULATED
static int check(void)
{
    static const struct {
        uint32_t nodes, gpus;
        struct mk_moe moe;
    } cases[] = {{1, 1, {1, 8, 8, 1, 1}},         {1, 2, {512, 8, 2048, 32, 8}},
                 {1, 2, {8192, 8, 2048, 256, 8}}, {1, 8, {1000, 8, 512, 256, 8}},
                 {2, 4, {777, 8, 512, 64, 6}},    {4, 2, {65, 8, 72, 40, 3}},
                 {1, 5, {333, 8, 512, 25, 4}},    {1, 1, {3000, 8, 256, 2400, 17}},
                 {8, 8, {200, 8, 512, 256, 8}},   {64, 8, {24, 8, 512, 512, 8}},
                 {1, 2, {300, 8, 512, 12000, 8}}};
    int failed = 0, done = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int routing = 0; routing < ROUTINGS; routing++) {
            uint32_t world = cases[i].nodes * cases[i].gpus;
            for (uint32_t rank = 0; rank < world; rank += 1 + world / 3, done++) {
                struct mk_topo topo = {cases[i].nodes, cases[i].gpus, rank};
                failed |= route_check(&topo, &cases[i].moe, routing, 0, done);
            }
        }
    printf("%d ranks' tables: %s\n", done, failed ? "WRONG" : "all right");
    return failed;
}

/* ---- bench ---- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int bench_one(uint32_t nodes, uint32_t gpus, uint32_t tokens, int routing, int mapped,
                     const char *name)
{
    struct rank k;
    struct moments *m;
    double us[STEPS + 1][LAUNCHES];
    char *flushed;
    if (rank_open(&k, {nodes, gpus, 0}, {tokens, 8, 2048, 256, 8}, routing, 0, mapped, tokens))
        return 3;
    CUDA(cudaMalloc(&flushed, FLUSHED));
    m = (struct moments *)malloc(k.parts * sizeof *m);
    for (int i = 0; i < LAUNCHES; i++) {
        CUDA(cudaMemset(flushed, i, FLUSHED));
        if (rank_launch(&k, (uint64_t)i))
            return 3;
        CUDA(cudaMemcpy(m, k.moments, k.parts * sizeof *m, cudaMemcpyDeviceToHost));
        unsigned long long last[STEPS + 1] = {};
        for (uint32_t p = 0; p < k.parts; p++)
            for (int j = 0; j <= STEPS; j++)
                last[j] = m[p].at[j] > last[j] ? m[p].at[j] : last[j];
        for (int j = 0; j < STEPS; j++)
            us[j][i] = (double)(last[j + 1] - last[j]) / 1e3;
        us[STEPS][i] = (double)(last[STEPS] - last[0]) / 1e3;
    }
    printf("%u x %u ranks, %4u tokens a rank, %s: by %u thread blocks", nodes, gpus, tokens, name,
           k.parts);
    for (int i = 0; i <= STEPS; i++) {
        static const char *const what[] = {"counting", "placing", "relaying", "laying out", "all"};
        if (what[i][0] == 'r' && nodes == 1)
            continue;
        qsort(us[i], LAUNCHES, sizeof us[i][0], by_size);
        printf(", %s %.1f us (%.1f)", what[i], us[i][LAUNCHES / 2], us[i][0]);
    }
    printf("\n");
    fflush(stdout);
    free(m);
    cudaFree(flushed);
    rank_close(&k);
    return 0;
}

static int bench(void)
{
    printf("us: median (least) of %d launches, 256 experts, top-8\n", LAUNCHES);
    int failed = 0;
    for (uint32_t gpus = 2; gpus <= 8; gpus *= 4)
        for (uint32_t tokens = 512; tokens <= 8192 && !failed; tokens *= 4)
            failed = bench_one(1, gpus, tokens, EVEN, 0, "even");
    for (uint32_t nodes = 8; nodes <= 32 && !failed; nodes *= 4)
        failed = bench_one(nodes, 8, 128, EVEN, 0, "even");
    for (uint32_t tokens = 512; tokens <= 8192 && !failed; tokens *= 16)
        failed = bench_one(1, 2, tokens, EVEN, 1, "even, by a map");
    return failed || bench_one(1, 2, 8192, SKEWED, 0, "skewed") ||
           bench_one(1, 2, 8192, ONE, 0, "all to one expert");
}

int main(int argc, char **argv)
{
    struct cudaDeviceProp prop;
    if (cudaGetDeviceProperties(&prop, 0) != cudaSuccess || prop.major != 9) {
        printf("gpu_route: skipped, no Hopper GPU here\n");
        return 77;
    }
    printf("%s, %d SMs\n", prop.name, prop.multiProcessorCount);
    if (argc >= 2 && !strcmp(argv[1], "check"))
        return check();
    if (argc >= 2 && !strcmp(argv[1], "bench"))
        return bench();
    fprintf(stderr, "usage: gpu_route check | bench\n");
    return 2;
}
#endif

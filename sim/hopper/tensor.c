/* Tensor maps: what the driver takes, where a box lies in global and in shared memory, and sums of
 * bulk stores. CUDA driver API, cuTensorMapEncodeTiled; PTX ISA, tensor swizzling modes;
 * cute/swizzle.hpp of CUTLASS has the same function. */
#include "core/base/bf16.h"
#include "core/base/fp16.h"
#include "sim/hopper/machine.h"

#include <errno.h>
#include <string.h>

#define MAGIC 0x6d6b74656e736f72ull
_Static_assert(sizeof(struct tensor) <= 128, "a CUtensorMap has 128 bytes");

/* By CUtensorMapDataType: bytes, and how it is added. */
static const struct {
    uint8_t bytes, number;
} types[] = {{1, HOPPER_BYTES}, {2, HOPPER_BYTES}, {4, HOPPER_U32}, {4, HOPPER_S32},
             {8, HOPPER_U64},   {8, HOPPER_BYTES}, {2, HOPPER_F16}, {4, HOPPER_F32},
             {8, HOPPER_BYTES}, {2, HOPPER_BF16}};
enum { TYPES = sizeof types / sizeof *types };

static int sizes_fit(uint32_t rank, const uint64_t *sizes, const uint64_t *strides,
                     const uint32_t *box, const uint32_t *steps)
{
    for (uint32_t i = 0; i < rank; i++) {
        if (!sizes[i] || sizes[i] > (uint64_t)1 << 32 || !box[i] || box[i] > 256 || !steps[i] ||
            steps[i] > 8)
            return 0;
        if (i && (strides[i - 1] % 16 || strides[i - 1] >= (uint64_t)1 << 40))
            return 0;
    }
    return 1;
}

int hopper_tensormap_encode(void *map, uint32_t type, uint32_t rank, void *base,
                            const uint64_t *sizes, const uint64_t *strides, const uint32_t *box,
                            const uint32_t *steps, uint32_t interleave, uint32_t swizzle,
                            uint32_t fill)
{
    if (type >= TYPES || !rank || rank > 5 || swizzle > 3 || fill > 1 || (uintptr_t)map % 64 ||
        (uintptr_t)base % 16 || !sizes_fit(rank, sizes, strides, box, steps))
        return -EINVAL;
    uint32_t row = box[0] * types[type].bytes;
    if (interleave || row % 16 || (swizzle && row > 16u << swizzle))
        return -EINVAL; /* interleaved layouts are refused: this model has none */
    struct tensor t;
    memset(&t, 0, sizeof t);
    t.magic = MAGIC;
    t.base = base;
    t.rank = (uint8_t)rank;
    t.type = (uint8_t)type;
    t.element = types[type].bytes;
    t.swizzle = (uint8_t)swizzle;
    t.fill = (uint8_t)fill;
    for (uint32_t i = 0; i < 5; i++) {
        t.sizes[i] = i < rank ? sizes[i] : 1;
        t.box[i] = i < rank ? box[i] : 1;
        if (i && i < rank)
            t.strides[i - 1] = strides[i - 1];
        if (i < rank && steps[i] != 1)
            return -EINVAL; /* neither does it have steps */
    }
    memset(map, 0, 128);
    memcpy(map, &t, sizeof t);
    return 0;
}

void hopper_tensormap_prefetch(const void *map)
{
    uint64_t magic;
    memcpy(&magic, map, sizeof magic);
    if ((uintptr_t)map % 64 || magic != MAGIC)
        hopper_mistake("prefetches a tensor map from where none is");
}

void region_of_box(const struct hopper_box *box, struct region *out)
{
    memset(out, 0, sizeof *out);
    memcpy(&out->tensor, box->encoded, sizeof out->tensor);
    const struct tensor *t = &out->tensor;
    if ((uintptr_t)box->encoded % 64 || t->magic != MAGIC)
        hopper_mistake("uses a tensor map where none is");
    if (t->rank != box->rank)
        hopper_mistake("uses a tensor map of %u dimensions by an instruction of %u", t->rank,
                       box->rank);
    memcpy(out->at, box->at, sizeof out->at);
    out->row_bytes = t->box[0] * t->element;
    if (t->swizzle && out->row_bytes != 16u << t->swizzle)
        hopper_mistake("uses a box whose rows are %u bytes under a swizzle of %u: this model has "
                       "not been held against a GPU there",
                       out->row_bytes, 16u << t->swizzle);
    out->rows = t->box[1] * t->box[2] * t->box[3] * t->box[4];
    out->bytes = out->rows * out->row_bytes;
}

void region_row(const struct region *r, uint32_t row, uint8_t **at, uint32_t *before,
                uint32_t *bytes)
{
    *before = *bytes = 0;
    if (r->run) {
        *at = r->run + (uint64_t)row * r->row_bytes;
        uint32_t left = r->bytes - row * r->row_bytes;
        *bytes = left < r->row_bytes ? left : r->row_bytes;
        return;
    }
    const struct tensor *t = &r->tensor;
    int64_t first = r->at[0], size = (int64_t)t->sizes[0];
    uint8_t *base = t->base;
    for (uint32_t i = 1; i < t->rank; i++) {
        int64_t c = (int64_t)r->at[i] + row % t->box[i];
        row /= t->box[i];
        if (c < 0 || c >= (int64_t)t->sizes[i])
            return;
        base += (uint64_t)c * t->strides[i - 1];
    }
    int64_t low = first < 0 ? -first : 0,
            high = size - first < (int64_t)t->box[0] ? size - first : (int64_t)t->box[0];
    if (low >= high)
        return;
    *before = (uint32_t)low * t->element;
    *bytes = (uint32_t)(high - low) * t->element;
    *at = base + (uint64_t)(first + low) * t->element;
}

/* Of absolute shared addresses: bits 4.. ^= bits 7.., as many as the mode has. */
uint32_t region_swizzle(const struct region *r, uint32_t address)
{
    uint32_t mask = r->run ? 0 : (1u << r->tensor.swizzle) - 1;
    return address ^ ((address >> 7 & mask) << 4);
}

static float choose(float a, float b, enum hopper_reduction what)
{
    return what == HOPPER_ADD ? a + b : (what == HOPPER_MIN) == (b < a) ? b : a;
}

/* What is there and what comes, as bits of `number`. */
static uint64_t reduced(uint64_t a, uint64_t b, enum hopper_reduction what,
                        enum hopper_number number)
{
    uint32_t x = (uint32_t)a, y = (uint32_t)b;
    float f, g;
    switch (number) {
    case HOPPER_BF16:
        return mk_bf16_from_float(
            choose(mk_bf16_to_float((uint16_t)a), mk_bf16_to_float((uint16_t)b), what));
    case HOPPER_F16:
        return mk_fp16_from_float(
            choose(mk_fp16_to_float((uint16_t)a), mk_fp16_to_float((uint16_t)b), what));
    case HOPPER_F32:
        memcpy(&f, &x, 4);
        memcpy(&g, &y, 4);
        f = choose(f, g, what);
        memcpy(&x, &f, 4);
        return x;
    case HOPPER_S32:
        return what == HOPPER_ADD                                  ? a + b
               : (what == HOPPER_MIN) == ((int32_t)b < (int32_t)a) ? b
                                                                   : a;
    default:
        return what == HOPPER_ADD ? a + b : (what == HOPPER_MIN) == (b < a) ? b : a;
    }
}

/* Each element at once: other processes may add to the same one. */
#define REDUCE(type)                                                                               \
    for (uint32_t i = 0; i < bytes; i += sizeof(type)) {                                           \
        type *at = (type *)(void *)(to + i), old = __atomic_load_n(at, __ATOMIC_RELAXED), b;       \
        memcpy(&b, from + i, sizeof b);                                                            \
        while (!__atomic_compare_exchange_n(at, &old, (type)reduced(old, b, what, number), 1,      \
                                            __ATOMIC_RELAXED, __ATOMIC_RELAXED))                   \
            ;                                                                                      \
    }

void reduce_row(uint8_t *to, const uint8_t *from, uint32_t bytes, enum hopper_reduction what,
                enum hopper_number number)
{
    if (what == HOPPER_STORE)
        memcpy(to, from, bytes);
    else if (number == HOPPER_BF16 || number == HOPPER_F16)
        REDUCE(uint16_t)
    else if (number == HOPPER_U64)
        REDUCE(uint64_t)
    else
        REDUCE(uint32_t)
}

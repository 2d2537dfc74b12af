#include "sim/compute.h"

#include "core/plan/epilogue.h"
#include "core/cta/half.h"
#include "core/base/quantize.h"
#include "core/cta/sum_tree.h"
#include "sim/op.h"
#include "sim/vectorised.h"

#include <cblas.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* What OpenBLAS asks for on x86-64 and arm64, and some for the rest of the process. */
#define BLAS_BUFFER_BYTES ((size_t)130 << 20)

/* Done at a time, at most a second where 8 ranks share 2 cores and a sanitizer looks on. */
#define SLAB_FLOP 1000000000ull
#define SLAB_ELEMENTS (1u << 24)

#define SUM_LEVELS 3u /* of a tree of MK_SUM_BLOCKS: nodes that wait for their right neighbour */

struct compute {
    const struct mk_plan *plan;
    uint64_t b_elements[2];
    float *b[2]; /* as laid out in the argument; the second: of a second B */
    float *a;    /* one tile's */
    float *c;
    float *scales; /* of one tile's C, where that is quantised */
    /* Of sums that are the same everywhere: a tile's columns of B as [k, cols], and room for as
     * many of its C as a tree of blocks has levels. Else NULL */
    float *columns, *nodes;
};

/* element: MK_BF16 or MK_FP16. */
VECTORISED static void widen(float *to, const uint16_t *from, uint64_t count, uint32_t element)
{
    if (element == MK_FP16)
        for (uint64_t i = 0; i < count; i++)
            to[i] = mk_fp16_to_float(from[i]);
    else
        for (uint64_t i = 0; i < count; i++)
            to[i] = mk_bf16_to_float(from[i]);
}

/* OpenBLAS packs its operands into a buffer of its own, which it asks the kernel for in a call's
 * midst, keeps for the next, and where it gets none asks for again for ever. So it gets it here,
 * once, where it can still be said that there is none. 0 or -ENOMEM. */
static int compute_give_blas_its_buffer(void)
{
    enum { ROWS = 256, DEPTH = 64 }; /* small products do without */
    static int given;
    if (__atomic_load_n(&given, __ATOMIC_ACQUIRE))
        return 0;
    void *room =
        mmap(NULL, BLAS_BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    float *a = calloc(ROWS * (2 * DEPTH + ROWS), sizeof *a), *b = a + ROWS * DEPTH,
          *c = b + ROWS * DEPTH;
    if (room != MAP_FAILED)
        munmap(room, BLAS_BUFFER_BYTES);
    if (a && room != MAP_FAILED) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, ROWS, ROWS, DEPTH, 1.0f, a, DEPTH, b,
                    ROWS, 0.0f, c, ROWS);
        __atomic_store_n(&given, 1, __ATOMIC_RELEASE);
    }
    free(a);
    return a && room != MAP_FAILED ? 0 : -ENOMEM;
}

int compute_create(struct compute **out, const struct mk_plan *plan)
{
    const struct sim_op *op = sim_op_of(plan->problem.op);
    if (!op)
        return -ENOTSUP;
    struct compute *m = calloc(1, sizeof *m);
    if (!m)
        return -ENOMEM;
    uint64_t bytes[MK_SPACES - 1] = {0};
    m->plan = plan;
    if (!op->operands) { /* its tiles, if it has any, need nothing of this */
        *out = m;
        return 0;
    }
    op_extents(&plan->problem, bytes);
    m->b_elements[0] = bytes[1] / op_factor_bytes(&plan->problem);
    m->b_elements[1] =
        op->second ? bytes[op->second - MK_SPACE_ARG0] / op_factor_bytes(&plan->problem) : 0;
    m->a = malloc(compute_scratch_floats(m) * sizeof(float));
    m->b[0] = malloc(m->b_elements[0] * sizeof(float));
    m->b[1] = op->second ? malloc(m->b_elements[1] * sizeof(float)) : NULL;
    m->c =
        malloc((uint64_t)plan->problem.tuning.tile_m * plan->problem.tuning.tile_n * sizeof(float));
    m->scales = malloc(sizeof(float) * plan->problem.tuning.tile_m *
                       mk_ceil_div(plan->problem.tuning.tile_n, MK_SCALE_BLOCK));
    if (plan->problem.deterministic == MK_EVERYWHERE) {
        const uint64_t cols = plan->problem.tuning.tile_n;
        m->columns = malloc(plan->problem.k * cols * sizeof(float));
        m->nodes = malloc(SUM_LEVELS * plan->problem.tuning.tile_m * cols * sizeof(float));
        if (!m->columns || !m->nodes) {
            compute_destroy(m);
            return -ENOMEM;
        }
    }
    if (!m->a || !m->b[0] || (op->second && !m->b[1]) || !m->c || !m->scales) {
        compute_destroy(m);
        return -ENOMEM;
    }
    openblas_set_num_threads(1); /* 8 ranks share 2 cores */
    if (compute_give_blas_its_buffer()) {
        compute_destroy(m);
        return -ENOMEM;
    }
    *out = m;
    return 0;
}

void compute_destroy(struct compute *m)
{
    if (!m)
        return;
    free(m->a);
    free(m->b[0]);
    free(m->b[1]);
    free(m->c);
    free(m->scales);
    free(m->columns);
    free(m->nodes);
    free(m);
}

uint64_t compute_scratch_floats(const struct compute *m)
{
    return m->plan->problem.tuning.tile_m * m->plan->problem.k;
}

static void compute_beat(uint64_t *beats)
{
    if (beats)
        __atomic_fetch_add(beats, 1, __ATOMIC_RELAXED);
}

static void compute_widen_whole(float *to, const uint16_t *from, uint64_t count, uint32_t element,
                                uint64_t *beats)
{
    for (uint64_t done = 0, some; done < count; done += some) {
        some = count - done < SLAB_ELEMENTS ? count - done : SLAB_ELEMENTS;
        widen(to + done, from + done, some, element);
        compute_beat(beats);
    }
}

/* A B of FP8 and its scales, which are the last arguments of a B, of all B's in their order. */
static void compute_dequantize_b(struct compute *m, uint32_t which, const uint8_t *codes,
                                 void *const arguments[MK_SPACES - 1], uint64_t *beats)
{
    const struct mk_problem *q = &m->plan->problem;
    const struct sim_op *op = sim_op_of(q->op);
    uint64_t k = q->k, n = q->n;
    if (op->factor)
        op->factor(q, which, &k, &n);
    const uint64_t pitch = mk_round_up(mk_ceil_div(k, MK_SCALE_BLOCK), 4),
                   down = mk_ceil_div(n, MK_SCALE_BLOCK);
    uint32_t of = op_arguments(q) - 1;
    while (op_argument(q, of)->name[0] != 'B')
        of--;
    const float *scales = arguments[of - (op->second && !which)];
    for (uint64_t i = 0; i < m->b_elements[which] / k; i++, compute_beat(beats))
        if (q->b_columns)
            dequantize_columns(codes + i * k, 1, k, scales + i, m->b[which] + i * k);
        else
            dequantize_blocks(codes + i * k, 1, k,
                              scales + (i / n * down + i % n / MK_SCALE_BLOCK) * pitch, pitch,
                              m->b[which] + i * k);
}

void compute_load_b(struct compute *m, void *const arguments[MK_SPACES - 1], uint64_t *beats)
{
    const struct sim_op *op = sim_op_of(m->plan->problem.op);
    for (uint32_t which = 0; which < 2; which++) {
        if (!m->b[which])
            continue;
        const void *from = arguments[which ? op->second - MK_SPACE_ARG0 : 1];
        if (m->plan->problem.fp8)
            compute_dequantize_b(m, which, from, arguments, beats);
        else
            compute_widen_whole(m->b[which], from, m->b_elements[which],
                                plan_element(&m->plan->problem), beats);
    }
}

/* A pitch of e4m3 is in bytes, else in elements. */
static const uint8_t *compute_row_of_a(const struct sim_rank *rank, const struct sim_operands *o,
                                       uint32_t row)
{
    const uint8_t *base = rank->spaces[o->a_space] + o->a;
    uint64_t number = row;
    if (o->a_list) {
        number = ((const uint32_t *)(const void *)(rank->spaces[MK_SPACE_HEAP] + o->a_list))[row];
        if (number >= o->a_first) {
            base = rank->spaces[MK_SPACE_HEAP] + o->a_rest;
            number -= o->a_first;
        }
    }
    return base + number * o->a_pitch * (o->fp8 ? 1 : 2);
}

void compute_load_a(const struct sim_rank *rank, const struct mk_tile *tile, uint32_t first,
                    uint32_t count, float *a)
{
    struct sim_operands o = {0};
    rank->op->operands(rank->plan, tile, rank->epoch, &o);
    for (uint32_t row = first; row < first + count; row++) {
        const uint8_t *from = compute_row_of_a(rank, &o, row),
                      *scales = o.a_list ? from + o.scales
                                         : rank->spaces[o.scales_space] + o.scales + row * 4ull;
        if (o.fp8)
            dequantize_rows(from, 1, o.k, (const float *)(const void *)scales, o.scales_pitch,
                            a + (uint64_t)row * o.k);
        else
            widen(a + (uint64_t)row * o.k, (const uint16_t *)(const void *)from, o.k,
                  plan_element(&rank->plan->problem));
    }
}

VECTORISED static void add_scaled(float *to, float by, const float *from, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        to[i] += by * from[i];
}

VECTORISED static void add_nodes(float *to, const float *left, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        to[i] = mk_sum_node(left[i], to[i]);
}

/* The same whatever the tile: each sum from zero in the order of K. OpenBLAS, whose order follows
 * from the shape, has no part in it. Blocks are added in a tree: one that is the right child of its
 * node is added to the left one, and so on up. */
static void compute_multiply_in_order(const struct compute *m, const struct sim_rank *rank,
                                      const struct sim_operands *o, const float *b, const float *a,
                                      float *c)
{
    const uint64_t elements = (uint64_t)o->rows * o->cols;
    const uint32_t blocks = o->blocks ? o->blocks : 1;
    uint64_t pitch = o->b_pitch;
    if (o->b_transposed) {
        for (uint32_t col = 0; col < o->cols; col++)
            for (uint32_t k = 0; k < o->k; k++)
                m->columns[(uint64_t)k * o->cols + col] = b[col * pitch + k];
        pitch = o->cols;
        b = m->columns;
    }
    for (uint32_t block = 0, k = 0, level; block < blocks; block++) {
        const uint32_t end = o->blocks ? o->block_end[block] : o->k;
        memset(c, 0, elements * sizeof *c);
        for (; k < end; k++) /* the row of B stays in a cache */
            for (uint32_t row = 0; row < o->rows; row++)
                add_scaled(c + (uint64_t)row * o->cols, a[(uint64_t)row * o->k + k], b + k * pitch,
                           o->cols);
        for (level = 0; block >> level & 1; level++)
            add_nodes(c, m->nodes + level * elements, elements);
        if (block + 1 < blocks)
            memcpy(m->nodes + level * elements, c, elements * sizeof *c);
        compute_beat(rank->beats);
    }
}

/* A product of some rows at a time: none takes so long that the CTA seems to hang. */
static void compute_multiply(const struct compute *m, const struct sim_rank *rank,
                             const struct sim_operands *o, uint64_t b, const float *a, float *c)
{
    const float *from = m->b[o->b_space != MK_SPACE_ARG1] + b / op_factor_bytes(&m->plan->problem);
    uint64_t most = SLAB_FLOP / (2ull * o->cols * o->k + 1) + 1;
    if (m->columns) {
        compute_multiply_in_order(m, rank, o, from, a, c);
        return;
    }
    for (uint64_t row = 0; row < o->rows; row += most) {
        uint64_t rows = o->rows - row < most ? o->rows - row : most;
        cblas_sgemm(CblasRowMajor, CblasNoTrans, o->b_transposed ? CblasTrans : CblasNoTrans,
                    (blasint)rows, (blasint)o->cols, (blasint)o->k, 1.0f, a + row * o->k,
                    (blasint)o->k, from, (blasint)o->b_pitch, 0.0f, c + row * o->cols,
                    (blasint)o->cols);
        compute_beat(rank->beats);
    }
}

/* The terms and `values`, at its place among them, are the leaves of a tree. */
static void add_tree(const struct sim_rank *rank, const struct sim_terms *t, float *values,
                     uint64_t elements)
{
    for (uint64_t i = 0; i < elements; i++) {
        float node[MK_SUM_BLOCKS] = {0};
        for (uint32_t j = 0; j < t->count; j++)
            node[j + (j >= t->place)] =
                ((const float *)(const void *)(rank->spaces[MK_SPACE_HEAP] + t->source +
                                               j * t->pitch))[i];
        node[t->place] = values[i];
        values[i] = mk_sum_root(node, t->count + 1);
    }
}

/* values = t[0] + .. + t[place - 1], then + values, then + t[place] + ..: from the left, in fp32.
 */
static void add(const struct sim_rank *rank, const struct sim_terms *t, float *values,
                uint64_t elements)
{
    if (t->tree && t->count) {
        add_tree(rank, t, values, elements);
        return;
    }
    for (uint64_t i = 0; t->count && i < elements; i++) {
        float sum = t->place ? 0 : values[i];
        for (uint32_t j = 0; j < t->count; j++) {
            const uint8_t *from = rank->spaces[MK_SPACE_HEAP] + t->source + j * t->pitch;
            sum += t->number == MK_FP32
                       ? ((const float *)(const void *)from)[i]
                       : mk_half_to_float(t->number, ((const uint16_t *)(const void *)from)[i]);
            if (j + 1 == t->place)
                sum += values[i];
        }
        values[i] = sum;
    }
}

/* Adds the bias from byte `bias` of its space on to each row. */
static void compute_bias(const struct sim_rank *rank, const struct sim_operands *o, uint64_t bias,
                         float *c)
{
    const uint16_t *from = (const uint16_t *)(const void *)(rank->spaces[o->bias_space] + bias);
    for (uint32_t row = 0; row < o->rows && o->epilogue & MK_EPILOGUE_BIAS; row++)
        for (uint32_t col = 0; col < o->cols; col++)
            c[(uint64_t)row * o->cols + col] +=
                mk_half_to_float(plan_element(&rank->plan->problem), from[col]);
}

/* up: what gated columns are multiplied by. */
static void compute_epilogue(const struct sim_rank *rank, const struct sim_operands *o, float *c,
                             float *up)
{
    const uint64_t count = (uint64_t)o->rows * o->cols;
    compute_bias(rank, o, o->bias, c);
    if (o->gate)
        compute_bias(rank, o, o->bias + o->bias_gate, up);
    for (uint64_t i = 0; i < count && o->epilogue; i++)
        c[i] = epilogue_activate(o->epilogue, c[i]) * (o->gate ? up[i] : 1);
}

/* C as its codes say it, and their scales to where these lie. */
static void compute_quantize(struct compute *m, struct sim_cta *cta, const struct sim_operands *o)
{
    struct sim_operands scales = *o;
    uint8_t codes[MK_SCALE_BLOCK];
    scales.c = o->code_scales;
    scales.c_pitch = o->code_pitch;
    scales.c_number = MK_FP32;
    scales.rows = (uint32_t)mk_ceil_div(o->cols, MK_SCALE_BLOCK);
    scales.cols = o->rows;
    for (uint32_t row = 0; row < o->rows; row++)
        for (uint32_t col = 0; col < o->cols; col += MK_SCALE_BLOCK) {
            float *c = m->c + (uint64_t)row * o->cols + col;
            uint32_t count = o->cols - col < MK_SCALE_BLOCK ? o->cols - col : MK_SCALE_BLOCK;
            m->scales[col / MK_SCALE_BLOCK * o->rows + row] = quantize_row_block(c, count, codes);
            for (uint32_t i = 0; i < count; i++)
                c[i] = mk_e4m3_to_float(codes[i]);
        }
    sim_cta_store(cta, &scales, m->scales);
}

void compute_store_c(struct compute *m, struct sim_cta *cta, const struct mk_tile *tile,
                     const float *a)
{
    const struct sim_rank *rank = cta->rank;
    struct sim_operands o = {0};
    rank->op->operands(rank->plan, tile, rank->epoch, &o);
    compute_multiply(m, rank, &o, o.b, a, m->c);
    /* a gated tile has half the columns: there is room for both products */
    float *up = m->c + (uint64_t)o.rows * o.cols;
    if (o.gate)
        compute_multiply(m, rank, &o, o.b + o.gate, a, up);
    for (int level = 0; level < SIM_LEVELS; level++)
        add(rank, &o.added[level], m->c, (uint64_t)o.rows * o.cols);
    compute_epilogue(rank, &o, m->c, up);
    if (o.c_number == MK_E4M3)
        compute_quantize(m, cta, &o);
    sim_cta_store(cta, &o, m->c);
}

void compute_tile(struct compute *m, struct sim_cta *cta, const struct mk_tile *tile)
{
    if (cta->rank->op->math) {
        cta->rank->op->math(cta, tile, NULL);
        return;
    }
    compute_load_a(cta->rank, tile, 0, tile->rows, m->a);
    compute_store_c(m, cta, tile, m->a);
}

/* The checks that a GPU makes of GPU results (experiments/ops/check_gemm_gpu.h,
 * check_attention_gpu.h, check_moe_ffn_gpu.h), as their code runs on the emulated Hopper: they say
 * what the checks on the CPU say, of right results and of spoiled ones, and race with nothing. */
#include <math.h>

#include "core/mkernel.h"
#include "tests/helpers/test.h"
#include "core/base/quantize.h"
#include "experiments/common/inputs.h"
#include "experiments/ops/check_attention_gpu.h"
#include "experiments/ops/check_gemm_gpu.h"
#include "experiments/ops/check_moe_ffn_gpu.h"
#include "sim/hopper/hopper.h"

int emulated_check_gemm_gpu(const struct check_gemm_gpu *g, struct check_result *result);
int emulated_check_attention_gpu(const struct check_attention *c, const uint64_t keys[2],
                                 uint64_t rows, uint64_t start, struct check_result *result);

int emulated_check_moe_ffn_gpu(const struct check_moe_ffn *c,
                               void (*where)(void *context, uint32_t expert,
                                             struct check_moe_ffn_expert *out),
                               struct check_result *result);

int emulated_gpu_dequantize(const uint8_t *q, uint64_t rows, uint64_t k, int square,
                            const float *scales, uint64_t pitch, float *x, void *stream);

static struct hopper *machine_of(uint64_t seed)
{
    struct hopper *h;
    const struct hopper_config config = {
        .ranks = 1, .sms = 3, .seed = seed, .races = 1, .memory = (size_t)1 << 28};
    assert_int_equal(hopper_create(&h, &config), 0);
    return h;
}

static void close_machine(struct hopper *h)
{
    if (hopper_error(h))
        fail_msg("%s", hopper_error(h));
    hopper_destroy(h);
}

/* ---- products ---- */

enum { M = 66, N = 72, K = 24, PRODUCTS = 2 };
static const uint64_t b_keys[PRODUCTS] = {11, 12};

struct products {
    struct check_gemm host;
    struct check_gemm_gpu gpu;
    uint16_t a[M * PRODUCTS * K], b[PRODUCTS * K * N], c[M * N];
};

/* The same sum of products for both checks, and C as it should be. */
static struct products *products_make(uint32_t products, int transposed, uint32_t roundings)
{
    struct products *p = calloc(1, sizeof *p);
    uint16_t *one = malloc(K * (M + N) * 2);
    uint64_t depth = products * K;
    assert_true(p && one);
    for (uint64_t r = 0; r < products; r++) {
        inputs_fill(one, 7, 16 + r * 4096, M * K);
        for (uint64_t i = 0; i < M * K; i++)
            p->a[i / K * depth + r * K + i % K] = one[i];
        inputs_fill(one, b_keys[r], 0, K * N);
        for (uint64_t i = 0; i < K * N; i++)
            p->b[transposed ? i / K * depth + r * K + i % K : r * K * N + i] = one[i];
    }
    free(one);
    for (uint64_t i = 0; i < M; i++)
        for (uint64_t j = 0; j < N; j++) {
            double sum = 0;
            for (uint64_t k = 0; k < depth; k++)
                sum += (double)mk_bf16_to_float(p->a[i * depth + k]) *
                       (double)mk_bf16_to_float(p->b[transposed ? j * depth + k : k * N + j]);
            p->c[i * N + j] = mk_bf16_from_float((float)sum);
        }
    p->host = (struct check_gemm){.m = M,
                                  .n = N,
                                  .k = depth,
                                  .a = p->a,
                                  .b = p->b,
                                  .c = p->c,
                                  .b_transposed = transposed,
                                  .roundings = roundings};
    p->gpu = (struct check_gemm_gpu){.of = p->host,
                                     .products = products,
                                     .a_key = 7,
                                     .a_first = 16,
                                     .a_step = 4096,
                                     .b_keys = b_keys};
    p->gpu.of.k = K;
    p->gpu.of.a = p->gpu.of.b = NULL;
    return p;
}

/* Both checks agree; returns what they found. */
static struct check_result products_agree(const struct products *p)
{
    struct check_result host = {0}, gpu = {0};
    struct hopper *h = machine_of(1);
    assert_int_equal(check_gemm(&p->host, NULL, &host), 0);
    int err = emulated_check_gemm_gpu(&p->gpu, &gpu);
    close_machine(h);
    assert_int_equal(err, 0);
    assert_int_equal(gpu.elements, host.elements);
    assert_int_equal(gpu.wrong, host.wrong);
    assert_int_equal(check_right(&gpu), check_right(&host));
    assert_true(isfinite(host.difference2) ? fabs(gpu.difference2 / host.difference2 - 1) < 1e-3
                                           : !isfinite(gpu.difference2));
    assert_true(fabs(gpu.reference2 / host.reference2 - 1) < 1e-6);
    return gpu;
}

CASE(test_right_products)
{
    for (int transposed = 0; transposed < 2; transposed++)
        for (uint32_t products = 1; products <= PRODUCTS; products++) {
            struct products *p = products_make(products, transposed, products > 1 ? 3 : 0);
            struct check_result r = products_agree(p);
            assert_int_equal(r.elements, M * N);
            assert_true(check_right(&r));
            if (products == 1) { /* the same tensors, given instead of made */
                p->gpu.of.a = p->a;
                p->gpu.of.b = p->b;
                p->gpu.a_key++;
                r = products_agree(p);
                assert_true(check_right(&r));
            }
            free(p);
        }
}

/* One wrong element is found where it is, in the last tile's odd corner, too. */
CASE(test_a_wrong_element)
{
    static const uint64_t places[] = {5 * N + 3, M * N - 1};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct products *p = products_make(1, 0, 0);
        p->c[places[i]] ^= 0x0180;
        struct check_result r = products_agree(p);
        assert_int_equal(r.wrong, 1);
        assert_int_equal(r.worst_row * N + r.worst_col, places[i]);
        assert_true(r.worst_value == (double)mk_bf16_to_float(p->c[places[i]]));
        free(p);
    }
}

/* An element that was never written, and one that is off by a unit of bf16. */
CASE(test_nothing_written_and_a_rounding)
{
    struct products *p = products_make(1, 1, 0);
    p->c[N + 1] = 0xffff;
    struct check_result r = products_agree(p);
    assert_int_equal(r.wrong, 1);
    assert_int_equal(r.worst_row * N + r.worst_col, N + 1);
    assert_false(check_right(&r));
    free(p);
    p = products_make(PRODUCTS, 0, 3);
    p->c[2 * N] += 1; /* partial sums may round that far */
    r = products_agree(p);
    assert_int_equal(r.wrong, 0);
    free(p);
}

/* ---- attention ---- */

enum { B = 2, S = 16, HEADS = 2, KV_HEADS = 1, DIM = 64, WORLD = 2 };

struct attention {
    struct check_attention c;
    uint16_t q[B * S / WORLD * HEADS * DIM], o[B * S / WORLD * HEADS * DIM];
    uint16_t k[B * S * KV_HEADS * DIM], v[B * S * KV_HEADS * DIM];
    float lse[B * HEADS * S / WORLD];
};

/* Place in the sequence of a row of a rank. */
static uint64_t place_of(uint64_t row, uint64_t rank, int causal)
{
    uint64_t local = S / WORLD, half = local / 2;
    if (!causal)
        return rank * local + row;
    return row < half ? rank * half + row : (2 * WORLD - 1 - rank) * half + row - half;
}

static void attention_row(struct attention *t, uint64_t batch, uint64_t row, uint64_t head)
{
    const uint64_t local = S / WORLD, number = (batch * local + row) * HEADS + head;
    uint64_t seen =
        t->c.problem.causal ? place_of(row, t->c.rank, t->c.problem.causal) + 1 : (uint64_t)S;
    double score[S], most = -INFINITY, weights = 0, out[DIM] = {0};
    const uint64_t at = batch * S * KV_HEADS * DIM + head / (HEADS / KV_HEADS) * DIM;
    for (uint64_t j = 0; j < seen; j++) {
        score[j] = 0;
        for (uint64_t d = 0; d < DIM; d++)
            score[j] += (double)mk_bf16_to_float(t->q[number * DIM + d]) *
                        (double)mk_bf16_to_float(t->k[at + j * KV_HEADS * DIM + d]);
        score[j] /= sqrt(DIM);
        most = fmax(most, score[j]);
    }
    for (uint64_t j = 0; j < seen; j++) {
        double w = exp(score[j] - most);
        weights += w;
        for (uint64_t d = 0; d < DIM; d++)
            out[d] += w * (double)mk_bf16_to_float(t->v[at + j * KV_HEADS * DIM + d]);
    }
    for (uint64_t d = 0; d < DIM; d++)
        t->o[number * DIM + d] = mk_bf16_from_float((float)(out[d] / weights));
    t->lse[(batch * HEADS + head) * local + row] = (float)(most + log(weights));
}

/* K and V as the ranks hold them: of each batch the halves, or the whole, that are theirs. */
static void attention_spread(uint16_t *to, uint64_t key, int causal)
{
    uint64_t halves = causal ? 2 : 1, half = S / WORLD / halves, row = KV_HEADS * DIM;
    for (uint64_t rank = 0; rank < WORLD; rank++)
        for (uint64_t i = 0; i < B * halves; i++) {
            uint64_t block = i % halves ? 2 * WORLD - 1 - rank : rank;
            inputs_fill(to + (i / halves * S + block * half) * row, key,
                        (rank * B * halves + i) * half * row, half * row);
        }
}

static struct attention *attention_make(int causal, uint32_t rank)
{
    struct attention *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->c = (struct check_attention){.problem = {.batch = B,
                                                .sequence = S,
                                                .heads = HEADS,
                                                .kv_heads = KV_HEADS,
                                                .head_dim = DIM,
                                                .causal = causal},
                                    .world = WORLD,
                                    .rank = rank,
                                    .q = t->q,
                                    .o = t->o,
                                    .k = t->k,
                                    .v = t->v,
                                    .lse = t->lse};
    inputs_fill(t->q, 3, 0, sizeof t->q / 2);
    attention_spread(t->k, 21, causal);
    attention_spread(t->v, 22, causal);
    for (uint64_t i = 0; i < B * S / WORLD * HEADS; i++)
        attention_row(t, i / HEADS / (S / WORLD), i / HEADS % (S / WORLD), i % HEADS);
    return t;
}

static struct check_result attention_agree(const struct attention *t)
{
    const uint64_t keys[2] = {21, 22};
    struct check_result host = {0}, gpu = {0};
    struct hopper *h = machine_of(2);
    assert_int_equal(check_attention(&t->c, NULL, &host), 0);
    int err = emulated_check_attention_gpu(&t->c, keys, 4096, 5, &gpu);
    close_machine(h);
    assert_int_equal(err, 0);
    assert_int_equal(gpu.elements, host.elements);
    assert_int_equal(gpu.wrong > 0, host.wrong > 0);
    assert_int_equal(check_right(&gpu), check_right(&host));
    return gpu;
}

CASE(test_attention)
{
    for (int causal = 0; causal < 2; causal++) {
        struct attention *t = attention_make(causal, (uint32_t)causal);
        struct check_result r = attention_agree(t);
        assert_true(check_right(&r));
        t->o[9 * DIM + 5] ^= 0x0008; /* by 2^-4 of it at most */
        r = attention_agree(t);
        assert_int_equal(r.wrong, 1);
        assert_int_equal(r.worst_row, 9 / HEADS);
        assert_int_equal(r.worst_col, 9 % HEADS * DIM + 5);
        free(t);
    }
    struct attention *t = attention_make(0, 1);
    t->lse[17] += 3e-4f;
    struct check_result r = attention_agree(t);
    assert_int_equal(r.wrong, 1);
    free(t);
}

/* ---- a MoE layer ---- */

enum { TOKENS = 37, HIDDEN = 40, INNER = 24, EXPERTS = 8, PLACES = 3 };

struct layer {
    struct check_moe_ffn c;
    uint16_t x[TOKENS * HIDDEN], y[TOKENS * HIDDEN];
    uint32_t ids[TOKENS * PLACES];
    float weights[TOKENS * PLACES];
};

static void layer_where(void *context, uint32_t expert, struct check_moe_ffn_expert *out)
{
    *out = (struct check_moe_ffn_expert){
        {100, 200}, {expert * 2ull * HIDDEN * INNER, expert * 1ull * HIDDEN * INNER}};
}

static void layer_expert(void *context, uint32_t expert, uint16_t *b1, uint16_t *b2)
{
    struct check_moe_ffn_expert of;
    layer_where(context, expert, &of);
    inputs_fill(b1, of.key[0], of.first[0], 2 * HIDDEN * INNER);
    inputs_fill(b2, of.key[1], of.first[1], HIDDEN * INNER);
}

/* Y of a token, rounded where a layer rounds. */
static void layer_token(struct layer *l, uint64_t token)
{
    static uint16_t b1[2 * HIDDEN * INNER], b2[HIDDEN * INNER];
    double sum[HIDDEN] = {0};
    for (uint64_t place = token * PLACES; place < (token + 1) * PLACES; place++) {
        if (l->ids[place] >= EXPERTS)
            continue;
        layer_expert(NULL, l->ids[place], b1, b2);
        for (uint32_t i = 0; i < INNER; i++) {
            double gate = 0, up = 0;
            for (uint32_t h = 0; h < HIDDEN; h++) {
                double x = (double)mk_bf16_to_float(l->x[token * HIDDEN + h]);
                const uint16_t *g = b1 + (l->c.b_transposed ? i * HIDDEN + h : h * 2 * INNER + i);
                gate += x * (double)mk_bf16_to_float(*g);
                up += x * (double)mk_bf16_to_float(g[l->c.b_transposed ? INNER * HIDDEN : INNER]);
            }
            double acted =
                (double)mk_bf16_to_float(mk_bf16_from_float((float)(gate / (1 + exp(-gate)) * up)));
            for (uint32_t h = 0; h < HIDDEN; h++)
                sum[h] += (double)l->weights[place] * acted *
                          (double)mk_bf16_to_float(
                              b2[l->c.b_transposed ? h * INNER + i : i * HIDDEN + h]);
        }
    }
    for (uint32_t h = 0; h < HIDDEN; h++)
        l->y[token * HIDDEN + h] = mk_bf16_from_float((float)sum[h]);
}

/* Token 5 names no expert, token 6 one of them twice. */
static struct layer *layer_make(int transposed, int deterministic)
{
    struct layer *l = calloc(1, sizeof *l);
    assert_non_null(l);
    l->c = (struct check_moe_ffn){.problem = {.tokens = TOKENS,
                                              .hidden = HIDDEN,
                                              .inner = INNER,
                                              .experts = EXPERTS,
                                              .k = PLACES},
                                  .b_transposed = transposed,
                                  .deterministic = deterministic,
                                  .topo = {2, 2, 1},
                                  .x = l->x,
                                  .ids = l->ids,
                                  .weights = l->weights,
                                  .y = l->y,
                                  .expert = layer_expert};
    inputs_fill(l->x, 1, 0, TOKENS * HIDDEN);
    for (uint32_t i = 0; i < TOKENS * PLACES; i++) {
        l->ids[i] = i / PLACES == 5 ? EXPERTS + i : (i / PLACES + i % PLACES * 3) % EXPERTS;
        l->weights[i] = 0.1f + 0.3f * (float)(i % 7);
    }
    l->ids[6 * PLACES + 1] = l->ids[6 * PLACES];
    for (uint64_t token = 0; token < TOKENS; token++)
        layer_token(l, token);
    return l;
}

static struct check_result layer_agree(const struct layer *l)
{
    struct check_result host = {0}, gpu = {0};
    struct hopper *h = machine_of(3);
    assert_int_equal(check_moe_ffn(&l->c, NULL, &host), 0);
    int err = emulated_check_moe_ffn_gpu(&l->c, layer_where, &gpu);
    close_machine(h);
    assert_int_equal(err, 0);
    assert_int_equal(gpu.elements, host.elements);
    assert_int_equal(gpu.wrong, host.wrong);
    assert_int_equal(check_right(&gpu), check_right(&host));
    assert_true(isfinite(host.difference2) ? fabs(gpu.difference2 / host.difference2 - 1) < 1e-2
                                           : !isfinite(gpu.difference2));
    assert_true(fabs(gpu.reference2 / host.reference2 - 1) < 1e-5);
    return gpu;
}

CASE(test_right_layers)
{
    for (int transposed = 0; transposed < 2; transposed++) {
        struct layer *l = layer_make(transposed, !transposed);
        struct check_result r = layer_agree(l);
        assert_int_equal(r.elements, TOKENS * HIDDEN);
        assert_true(check_right(&r));
        assert_true(r.worst > 0.05); /* the bounds are not wide */
        free(l);
    }
}

/* A wrong element, one that was never written, a weight that is another's, an expert's neighbour.
 */
CASE(test_wrong_layers)
{
    for (int mistake = 0; mistake < 4; mistake++) {
        struct layer *l = layer_make(0, 1);
        if (mistake < 2)
            l->y[TOKENS * HIDDEN - 1] = mistake ? 0xffff : l->y[TOKENS * HIDDEN - 1] ^ 0x0180;
        else if (mistake == 2)
            l->weights[31] = l->weights[32];
        else
            l->ids[31] = (l->ids[31] + 1) % EXPERTS;
        struct check_result r = layer_agree(l);
        assert_true(mistake < 2
                        ? r.wrong == 1 && r.worst_row == TOKENS - 1 && r.worst_col == HIDDEN - 1
                        : r.wrong > 1 && r.worst_row == 31 / PLACES);
        assert_false(check_right(&r));
        free(l);
    }
}

/* ---- a layer of FP8 ---- */

enum { HIDDEN_8 = 144, INNER_8 = 160, TOKENS_8 = 5, EXPERTS_8 = 2, PLACES_8 = 2 };

static void layer_where_fp8(void *context, uint32_t expert, struct check_moe_ffn_expert *out)
{
    *out = (struct check_moe_ffn_expert){
        {100, 200}, {expert * 2ull * HIDDEN_8 * INNER_8, expert * 1ull * HIDDEN_8 * INNER_8}};
}

/* [n, k] as codes and scales say it. */
static void coded(const uint16_t *x, uint64_t n, uint64_t k, float *out)
{
    uint8_t *codes = malloc(n * k);
    float *scales = calloc((n + 127) / 128 * 4, sizeof *scales);
    assert_true(codes && scales && k <= 512);
    assert_int_equal(
        mk_quantize(MK_EXEC_HOST, MK_SCALE_128X128, MK_INPUT_BF16, x, n, k, codes, scales, 4, NULL),
        0);
    dequantize_blocks(codes, n, k, scales, 4, out);
    free(codes);
    free(scales);
}

static void layer_expert_fp8(void *context, uint32_t expert, float *b1, float *b2)
{
    enum { SIZE = HIDDEN_8 * INNER_8 };
    uint16_t *x = malloc(3 * SIZE * sizeof *x);
    struct check_moe_ffn_expert of;
    assert_non_null(x);
    layer_where_fp8(NULL, expert, &of);
    inputs_fill(x, of.key[0], of.first[0], 2 * SIZE);
    inputs_fill(x + 2 * SIZE, of.key[1], of.first[1], SIZE);
    coded(x, INNER_8, HIDDEN_8, b1);
    coded(x + SIZE, INNER_8, HIDDEN_8, b1 + SIZE);
    coded(x + 2 * SIZE, HIDDEN_8, INNER_8, b2);
    free(x);
}

/* Y of all tokens. whole: the scale is of all columns, not of 128: a mistake. */
static void layer_run_fp8(const uint8_t *records, const uint32_t *ids, const float *weights,
                          int whole, uint16_t *y)
{
    static float b1[2 * HIDDEN_8 * INNER_8], b2[HIDDEN_8 * INNER_8];
    static double sum[TOKENS_8 * HIDDEN_8];
    memset(sum, 0, sizeof sum);
    for (uint32_t place = 0; place < TOKENS_8 * PLACES_8; place++) {
        const uint32_t token = place / PLACES_8, record = 160, block = whole ? INNER_8 : 128;
        float x[HIDDEN_8], acted[INNER_8];
        uint8_t codes[INNER_8];
        const uint8_t *from = records + token * record;
        dequantize_rows(from, 1, HIDDEN_8, (const float *)(const void *)(from + HIDDEN_8), 1, x);
        layer_expert_fp8(NULL, ids[place], b1, b2);
        for (uint32_t i = 0; i < INNER_8; i++) {
            double gate = 0, up = 0;
            for (uint32_t h = 0; h < HIDDEN_8; h++) {
                gate += (double)x[h] * (double)b1[i * HIDDEN_8 + h];
                up += (double)x[h] * (double)b1[(INNER_8 + i) * HIDDEN_8 + h];
            }
            acted[i] = (float)(gate / (1 + exp(-gate)) * up);
        }
        for (uint32_t i = 0; i < INNER_8; i += block) {
            const uint32_t count = INNER_8 - i < block ? INNER_8 - i : block;
            const float scale = quantize_row_block(acted + i, count, codes + i);
            for (uint32_t j = i; j < i + count; j++)
                acted[j] = mk_e4m3_to_float(codes[j]) * scale;
        }
        for (uint32_t h = 0; h < HIDDEN_8; h++)
            for (uint32_t i = 0; i < INNER_8; i++)
                sum[token * HIDDEN_8 + h] +=
                    (double)weights[place] * (double)acted[i] * (double)b2[h * INNER_8 + i];
    }
    for (uint32_t i = 0; i < TOKENS_8 * HIDDEN_8; i++)
        y[i] = mk_bf16_from_float((float)sum[i]);
}

/* Both checks find a right layer right, and one whose activation has one scale a row wrong by its
 * norm. */
CASE(test_layers_of_fp8)
{
    static uint16_t x[TOKENS_8 * HIDDEN_8], y[TOKENS_8 * HIDDEN_8];
    static uint8_t records[TOKENS_8 * 160];
    uint32_t ids[TOKENS_8 * PLACES_8];
    float weights[TOKENS_8 * PLACES_8];
    inputs_fill(x, 1, 0, TOKENS_8 * HIDDEN_8);
    assert_int_equal(mk_quantize(MK_EXEC_HOST, MK_SCALE_RECORDS, MK_INPUT_BF16, x, TOKENS_8,
                                 HIDDEN_8, records, NULL, 0, NULL),
                     0);
    for (uint32_t i = 0; i < TOKENS_8 * PLACES_8; i++) {
        ids[i] = (i / PLACES_8 + i % PLACES_8) % EXPERTS_8;
        weights[i] = 0.1f + 0.3f * (float)(i % 7);
    }
    for (int mistake = 0; mistake < 3; mistake++) {
        struct check_result host = {0}, gpu = {0};
        const struct check_moe_ffn c = {.problem = {.tokens = TOKENS_8,
                                                    .hidden = HIDDEN_8,
                                                    .inner = INNER_8,
                                                    .experts = EXPERTS_8,
                                                    .k = PLACES_8},
                                        .b_transposed = 1,
                                        .deterministic = 1,
                                        .fp8 = 1,
                                        .topo = {1, 1, 0},
                                        .x = records,
                                        .ids = ids,
                                        .weights = weights,
                                        .y = y,
                                        .expert_wide = layer_expert_fp8};
        layer_run_fp8(records, ids, weights, mistake == 1, y);
        if (mistake == 2)
            y[77] = mk_bf16_from_float(1.5f * mk_bf16_to_float(y[77]) + 1e-3f);
        assert_int_equal(check_moe_ffn(&c, NULL, &host), 0);
        struct hopper *h = machine_of(3);
        int err = emulated_check_moe_ffn_gpu(&c, layer_where_fp8, &gpu);
        close_machine(h);
        assert_int_equal(err, 0);
        print_message("mistake %d: relative error %.2e and %.2e, worst %.2f and %.2f\n", mistake,
                      check_error(&host), check_error(&gpu), host.worst, gpu.worst);
        assert_true(host.elements == TOKENS_8 * HIDDEN_8 && gpu.elements == host.elements);
        assert_int_equal(check_right(&host), !mistake);
        assert_int_equal(check_right(&gpu), !mistake);
        assert_true(fabs(gpu.reference2 / host.reference2 - 1) < 1e-3);
        if (!mistake)
            assert_true(check_error(&host) > 1e-3 && check_error(&host) < 2.5e-3);
    }
}

/* A GPU makes the same numbers of codes and scales as the host: rows and K that end within a block,
 * many binades, NaN. */
CASE(test_dequantized)
{
    enum { ROWS = 150, DEPTH = 208, PITCH = 156, SCALES = 2 * PITCH };
    uint16_t *x = malloc(ROWS * DEPTH * sizeof *x);
    uint8_t *q = malloc(ROWS * DEPTH);
    float *scales = calloc(SCALES, 4),
          *back[2] = {malloc(ROWS * DEPTH * 4), malloc(ROWS * DEPTH * 4)};
    assert_true(x && q && scales && back[0] && back[1]);
    inputs_fill(x, 3, 0, ROWS * DEPTH);
    for (uint64_t i = 0; i < ROWS * DEPTH; i += 7)
        x[i] = (uint16_t)((x[i] & 0x807f) | (70 + i % 110) << 7);
    x[5] = 0x7fc0;
    for (int square = 0; square < 2; square++) {
        const uint64_t pitch = square ? 4 : PITCH;
        assert_int_equal(mk_quantize(MK_EXEC_HOST, square ? MK_SCALE_128X128 : MK_SCALE_1X128,
                                     MK_INPUT_BF16, x, ROWS, DEPTH, q, scales, pitch, NULL),
                         0);
        (square ? dequantize_blocks : dequantize_rows)(q, ROWS, DEPTH, scales, pitch, back[0]);
        struct hopper *h = machine_of(1);
        assert_int_equal(
            emulated_gpu_dequantize(q, ROWS, DEPTH, square, scales, pitch, back[1], NULL), 0);
        assert_int_equal(hopper_run(h), 0);
        close_machine(h);
        assert_memory_equal(back[1], back[0], ROWS * DEPTH * 4);
    }
    for (int i = 0; i < 2; i++)
        free(back[i]);
    free(q);
    free(scales);
    free(x);
}

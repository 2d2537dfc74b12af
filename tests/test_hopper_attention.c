/* The second attention engine's own device code computes O = softmax(scale Q K^T) V and the rows'
 * logarithms on the emulated GPU, in every order that is tried: each tile that is built, rows and
 * keys that none divides, grouped heads, causal or not, tiles that follow each other in a CTA; a
 * mistake would be a wrong element or a sentence. Over a long sequence neither engine's logarithms
 * drift. Values that are not finite reach the rows that see them and no others, on both engines.
 * (The first engine's else: test_hopper_ring_attention.) */
#include "tests/helpers/test.h"
#include <math.h>

#include "tests/engines/attention.h"
#include "tests/helpers/hopper.h"

/* tests/gpu_mma_attention.cu, compiled for the emulated machine. */
int emulated_mma_heads_run(uint32_t number, const struct attention_call *call, uint32_t sms);

/* tests/engines/attention.cu, likewise. */
int emulated_attention_run(const struct attention_call *call, uint32_t sms, cudaStream_t stream);

#define FIRST_ENGINE UINT32_MAX /* in place of the number of one of the second's tiles */

static const uint32_t mutated[] = {1, 3}; /* numbers of tiles: of four warps and of eight */

struct heads {
    int64_t batch, heads, kv_heads, queries, keys, dim;
    int causal;
    float spread; /* of the scores */
    int odd;      /* every third key has a value that is not finite, in another column each */
};

/* In column 0 NaN; in others infinities, or both. */
static const uint16_t odd_values[] = {0x7fc0, 0x7f80, 0xff80, 0x7f80, 0xffff};

static void fill(uint16_t *p, int64_t count, float spread, uint64_t seed)
{
    struct sim_random r = {sim_mix(seed)};
    for (int64_t i = 0; i < count; i++)
        p[i] = mk_bf16_from_float(spread * ((float)sim_random_below(&r, 2001) / 1000 - 1));
}

/* Where there is another, the first head of K and V begins with a NaN, which others never see: what
 * stands for rows and elements that are not there is zeros. */
static int poisoned(const struct heads *s)
{
    return s->batch * s->kv_heads > 1;
}

/* In float64, from what the engine was given: 0, or 1 with a sentence. */
static int judge(const struct heads *s, const struct attention_call *c, char *text, size_t size)
{
    const uint16_t *q = c->q, *k = c->k, *v = c->v, *o = c->o;
    double *w = malloc((size_t)s->keys * sizeof *w);
    for (int64_t row = 0; row < s->batch * s->queries * s->heads; row++) {
        const int64_t head = row % s->heads, query = row / s->heads % s->queries,
                      batch = row / s->heads / s->queries;
        if (poisoned(s) && batch == 0 && head < s->heads / s->kv_heads)
            continue;
        const int64_t seen = s->causal ? query + 1 + s->keys - s->queries : s->keys;
        double most = -INFINITY, sum = 0;
        for (int64_t j = 0; j < seen; j++) {
            const uint16_t *key =
                k +
                ((batch * s->keys + j) * s->kv_heads + head / (s->heads / s->kv_heads)) * s->dim;
            w[j] = 0;
            for (int64_t d = 0; d < s->dim; d++)
                w[j] += (double)mk_bf16_to_float(q[row * s->dim + d]) * mk_bf16_to_float(key[d]);
            w[j] *= c->scale;
            most = fmax(most, w[j]);
        }
        for (int64_t j = 0; j < seen; j++)
            sum += w[j] = exp(w[j] - most);
        const double lse = seen > 0 ? most + log(sum) : -INFINITY,
                     said = c->lse[(batch * s->heads + head) * s->queries + query];
        if (lse != said && !(fabs(lse - said) <= 2e-6 * fmax(1, fabs(lse)))) {
            snprintf(text, size, "logarithm %.8g should be %.8g", said, lse);
            free(w);
            return 1;
        }
        for (int64_t d = 0; d < s->dim; d++) {
            double want = 0;
            for (int64_t j = 0; j < seen; j++)
                want +=
                    w[j] / sum *
                    mk_bf16_to_float(
                        v[((batch * s->keys + j) * s->kv_heads + head / (s->heads / s->kv_heads)) *
                              s->dim +
                          d]);
            const double got = mk_bf16_to_float(o[row * s->dim + d]);
            /* weights and O are rounded once each, and values are 1 at most */
            const int right = isnan(want)   ? isnan(got)
                              : isinf(want) ? got == want
                                            : fabs(got - want) <= 0x1p-8 * (fabs(want) + 1);
            if (!right) {
                snprintf(text, size, "O[%lld][%lld][%lld][%lld] is %g and should be %g",
                         (long long)batch, (long long)query, (long long)head, (long long)d, got,
                         want);
                free(w);
                return 1;
            }
        }
    }
    free(w);
    return 0;
}

/* On two SMs, poisoned before. sites: where barriers and waits are. */
static int run(uint32_t number, const struct heads *s, uint64_t seed,
               const struct hopper_mutation *mutation, struct hopper_site *sites, uint32_t *count)
{
    const struct hopper_config config = {.ranks = 1,
                                         .sms = 2,
                                         .seed = seed,
                                         .races = 1,
                                         .memory = (size_t)1 << 26,
                                         .mutations = mutation,
                                         .mutation_count = mutation != NULL,
                                         .max_steps = 2000000};
    const int64_t of_q = s->batch * s->queries * s->heads * s->dim,
                  of_k = s->batch * s->keys * s->kv_heads * s->dim;
    char text[1024] = "";
    struct hopper *h;
    assert_int_equal(hopper_create(&h, &config), 0);
    uint16_t *q = hopper_memory(h, (size_t)of_q * 2), *k = hopper_memory(h, (size_t)of_k * 2),
             *v = hopper_memory(h, (size_t)of_k * 2), *o = hopper_memory(h, (size_t)of_q * 2);
    float *lse = hopper_memory(h, (size_t)(of_q / s->dim) * 4);
    uint32_t *counter = hopper_memory(h, 4);
    const struct attention_call call = {q,
                                        k,
                                        v,
                                        o,
                                        lse,
                                        s->batch,
                                        s->queries,
                                        s->keys,
                                        s->heads,
                                        s->kv_heads,
                                        s->dim,
                                        s->causal,
                                        1 / sqrtf((float)s->dim),
                                        seed % 2 ? counter : NULL};
    fill(q, of_q, s->spread, seed * 3);
    fill(k, of_k, 1, seed * 3 + 1);
    fill(v, of_k, 1, seed * 3 + 2);
    for (int64_t i = 0; s->odd && i < of_k / s->dim; i += 3)
        v[i * s->dim + i * 7 % s->dim] = odd_values[i / 3 % 5];
    if (poisoned(s))
        k[0] = v[0] = 0x7fff;
    memset(o, 0xff, (size_t)of_q * 2);
    memset(lse, 0xff, (size_t)(of_q / s->dim) * 4);
    *counter = 0;
    int result = number == FIRST_ENGINE ? emulated_attention_run(&call, 1, NULL)
                                        : emulated_mma_heads_run(number, &call, 1);
    if (!result && (result = hopper_run(h)))
        snprintf(text, sizeof text, "%s", hopper_error(h) ? hopper_error(h) : "no sentence");
    if (!result)
        result = judge(s, &call, text, sizeof text);
    if (!result && *counter)
        result = 1, snprintf(text, sizeof text, "the counter is left at %u", *counter);
    if (sites) {
        uint32_t all;
        const struct hopper_site *found = hopper_sites(h, &all);
        for (uint32_t i = 0; i < all && *count < 16; i++)
            if (strstr(found[i].file, "mma/attention.cuh"))
                sites[(*count)++] = found[i];
    }
    hopper_destroy(h);
    if (result && result != -ENOENT && result != -EINVAL && !mutation)
        print_error("%lld,%lld:%lld,%lld,%lld,%lld%s tile %u seed %d: %d %s\n", (long long)s->batch,
                    (long long)s->heads, (long long)s->kv_heads, (long long)s->queries,
                    (long long)s->keys, (long long)s->dim, s->causal ? " causal" : "", number,
                    (int)seed, result, text);
    return result;
}

/* Scores that differ little, and so much that references are raised in many blocks. */
CASE(test_shapes)
{
    static const struct heads shapes[] = {
        {1, 1, 1, 1, 1, 64, 0, 1, 0},     {2, 2, 1, 130, 70, 64, 1, 1, 0},
        {1, 6, 2, 65, 200, 40, 0, 40, 0}, {1, 1, 1, 129, 193, 64, 1, 40, 0},
        {1, 2, 1, 33, 131, 128, 0, 1, 0}, {1, 2, 2, 140, 90, 128, 1, 40, 0},
    };
    uint32_t tiles = 0;
    for (int result = 0; !result; tiles += !result)
        for (uint32_t i = 0; !result && i < sizeof shapes / sizeof *shapes; i++) {
            result = run(tiles, &shapes[i], tiles * 10 + i, NULL, NULL, NULL);
            if (result == -EINVAL && shapes[i].dim == 128) /* a tile for heads of 64 */
                result = 0;
            assert_true(!result || (result == -ENOENT && i == 0));
        }
    assert_true(tiles > mutated[1]);
}

/* Behind a mask, behind the last key, and seen by some rows of a tile. */
CASE(test_values_that_are_not_finite)
{
    static const struct heads shapes[] = {{1, 1, 1, 1, 1, 64, 0, 1, 1},
                                          {1, 1, 1, 200, 200, 64, 1, 1, 1},
                                          {1, 2, 1, 150, 290, 40, 1, 1, 1},
                                          {1, 1, 1, 70, 131, 128, 0, 1, 1},
                                          {1, 1, 1, 300, 299, 128, 1, 1, 1}};
    for (uint32_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        assert_int_equal(run(FIRST_ENGINE, &shapes[i], i, NULL, NULL, NULL), 0);
        int result = 0;
        for (uint32_t tile = 0; result != -ENOENT; tile++) {
            result = run(tile, &shapes[i], i, NULL, NULL, NULL);
            assert_true(!result || result == -ENOENT || (result == -EINVAL && shapes[i].dim > 64));
        }
    }
}

/* What a block of keys multiplies its row's sums by is 1 where the row's maximum stays: were it off
 * by a rounding, the same in each block, the row's logarithm would be off by 256 of them. */
CASE(test_long_sequence)
{
    static const struct heads shape = {1, 1, 1, 64, 32768, 64, 0, 8, 0};
    assert_int_equal(run(FIRST_ENGINE, &shape, 1, NULL, NULL, NULL), 0);
    assert_int_equal(run(0, &shape, 1, NULL, NULL, NULL), 0);
}

/* What keeps its threads in step is needed: without a barrier O is wrong or there is a sentence, in
 * one of a few orders. But for two: where lanes come together, which orders nothing, and before a
 * source is told that a tile is stored, since this one tells nobody. */
CASE(test_mutants)
{
    static const struct heads shape = {1, 3, 1, 70, 150, 64, 0, 1, 0};
    for (uint32_t t = 0; t < 2; t++) {
        struct hopper_site sites[16];
        uint32_t count = 0, survivors = 0;
        assert_int_equal(run(mutated[t], &shape, 0, NULL, sites, &count), 0);
        assert_true(count >= 3);
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t variant = 1; hopper_variant(sites[i].what, variant); variant++) {
                const struct hopper_mutation m = {sites[i], variant};
                int caught = 0;
                for (uint64_t seed = 0; seed < 6 && !caught; seed++)
                    caught = run(mutated[t], &shape, seed, &m, NULL, NULL) != 0;
                if (!caught && survivors++)
                    print_error("nobody saw %s:%d, variant %u: %s\n", sites[i].file, sites[i].line,
                                variant, hopper_variant(sites[i].what, variant));
            }
        assert_true(survivors <= 2);
    }
}

/* A mixture of experts over any number of ranks, as processes of one host: each token goes to K of
 * E experts, wherever they are, and their weighted results come back. Arguments are allocated as
 * the plan says, and every element is compared with the same sums in plain loops.
 *
 *   moe                                  one rank has all experts
 *   moe 0 2 PORT & moe 1 2 PORT          two ranks have half of them each */
#include <mkernel/mkernel.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tokens of a rank, hidden and inner size, experts of all ranks, experts of a token. */
enum { T = 40, H = 64, I = 48, E = 8, K = 2 };
enum { X, B1, IDS, WEIGHTS, B2, Y, ARGUMENTS }; /* in the order of mk_moe_ffn */

static uint16_t bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16); /* to nearest, ties to even */
}

static float from_bf16(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Some number in -1 .. 1 that bf16 holds: the same on every rank, so that each can check with all
 * experts. */
static float number(uint32_t which, uint32_t i)
{
    uint32_t h = (which * 2654435761u) ^ (i * 2246822519u + 374761393u);
    h = (h ^ h >> 15) * 2246822519u;
    return ((int)(h >> 16 & 127) - 63) / 64.0f;
}

static uint32_t expert_of(uint32_t rank, int token, int place)
{
    return (rank + (uint32_t)token * 3 + (uint32_t)place * 5) % E;
}

static void fill(void *const memory[], uint32_t rank, uint32_t ranks)
{
    uint32_t mine = E / ranks, first = rank * mine;
    for (int i = 0; i < T * H; i++)
        ((uint16_t *)memory[X])[i] = bf16(number(1000 + rank, (uint32_t)i));
    for (int i = 0; i < T * K; i++) {
        ((uint32_t *)memory[IDS])[i] = expert_of(rank, i / K, i % K);
        ((float *)memory[WEIGHTS])[i] = i % K ? 0.25f : 0.75f;
    }
    for (uint32_t e = 0; e < mine; e++) {
        for (uint32_t i = 0; i < H * 2 * I; i++)
            ((uint16_t *)memory[B1])[e * H * 2 * I + i] = bf16(number(first + e, i) / 8);
        for (uint32_t i = 0; i < I * H; i++)
            ((uint16_t *)memory[B2])[e * I * H + i] = bf16(number(100 + first + e, i));
    }
}

/* The token's K experts in fp32; up to rounding what the launch has computed. */
static void reference(uint32_t rank, int token, float y[H])
{
    memset(y, 0, H * sizeof *y);
    for (int place = 0; place < K; place++) {
        uint32_t e = expert_of(rank, token, place);
        for (uint32_t i = 0; i < I; i++) {
            float gate = 0, up = 0;
            for (uint32_t h = 0; h < H; h++) {
                float x = number(1000 + rank, (uint32_t)token * H + h);
                gate += x * number(e, h * 2 * I + i) / 8;
                up += x * number(e, h * 2 * I + I + i) / 8;
            }
            float act = gate / (1 + expf(-gate)) * up;
            for (uint32_t h = 0; h < H; h++)
                y[h] += (place ? 0.25f : 0.75f) * act * number(100 + e, i * H + h);
        }
    }
}

/* |Y - reference| / |reference| over all tokens of this rank. */
static double relative_error(const uint16_t *y, uint32_t rank)
{
    double wrong = 0, all = 0;
    for (int token = 0; token < T; token++) {
        float r[H];
        reference(rank, token, r);
        for (int h = 0; h < H; h++) {
            double d = from_bf16(y[token * H + h]) - r[h];
            wrong += d * d;
            all += (double)r[h] * r[h];
        }
    }
    return sqrt(wrong / all);
}

/* Allocates each argument, launches, and puts the result's error into *error. 0, or -errno. */
static int run(struct mk_comm *comm, uint32_t rank, uint32_t ranks, double *error)
{
    struct mk_spec spec = {.op = MK_OP_MOE_FFN, .shape = {T, H, I, E, K}};
    struct mk_plan *plan;
    void *memory[ARGUMENTS] = {NULL};
    int rc = mk_plan_create(&plan, comm, &spec);
    for (uint32_t i = 0; i < ARGUMENTS && !rc; i++) {
        size_t bytes = (mk_plan_argument_bytes(plan, i) + 15) / 16 * 16;
        memory[i] = aligned_alloc(16, bytes);
        if (!memory[i])
            abort();
        memset(memory[i], 0xff, bytes); /* NaN: what is not written is seen */
        printf("rank %u: %s %s, %zu bytes\n", rank, mk_plan_argument_type(plan, i),
               mk_plan_argument_name(plan, i), bytes);
    }
    if (!rc) {
        fill(memory, rank, ranks);
        rc = mk_launch(plan, memory, ARGUMENTS,
                       NULL); /* as mk_moe_ffn(plan, memory[X], memory[B1], ..., NULL) */
    }
    if (!rc)
        rc = mk_wait(comm);
    if (!rc)
        *error = relative_error(memory[Y], rank);
    for (uint32_t i = 0; i < ARGUMENTS; i++)
        free(memory[i]);
    return rc;
}

int main(int argc, char **argv)
{
    if (argc != 1 && argc != 4) {
        fprintf(stderr, "usage: moe [RANK RANKS PORT]\n");
        return 2;
    }
    uint32_t rank = argc > 1 ? (uint32_t)atoi(argv[1]) : 0,
             ranks = argc > 1 ? (uint32_t)atoi(argv[2]) : 1;
    struct mk_config config = {.version = MK_VERSION_NUMBER,
                               .rank = rank,
                               .nodes = 1,
                               .gpus = ranks,
                               .exec = MK_EXEC_HOST,
                               .host = "127.0.0.1",
                               .port = argc > 1 ? (uint16_t)atoi(argv[3]) : 0};
    struct mk_comm *comm;
    double error = NAN;
    const char *token = getenv("MKERNEL_TOKEN");
    snprintf(config.token, sizeof config.token, "%s", token ? token : "an example's");
    int rc = mk_comm_open(&comm, &config);
    if (!rc)
        rc = run(comm, rank, ranks, &error);
    if (rc)
        fprintf(stderr, "rank %u: %s\n", rank, mk_error(comm));
    mk_comm_close(comm);
    if (rc)
        return 1;
    printf("rank %u: relative error %.4f, %s\n", rank, error, error < 0.02 ? "right" : "wrong");
    return !(error < 0.02);
}

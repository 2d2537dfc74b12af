/* On GPUs a row of C has the same bits in gemm_rs, gemm_ar, ag_gemm, moe_ffn and ring_attention with
 * MK_EVERYWHERE, whatever M, the row's place, the tile, B's layout, one shot or two or blocks of
 * columns, the split of a sequence and its length behind a mask, and on 1, 2 and 4 ranks (which may
 * share GPUs) and on two nodes of one rank: hundreds of random cases, all compared element by
 * element with the first that had the row. Engines are compared with themselves; whether they agree
 * in products, a line says. All cases are run, and those whose rows differ listed.
 *
 *   gpu_same_bits [CASES]              default 500
 *   gpu_same_bits CASES emulated       the same on emulated GPUs, in host memory
 *   gpu_same_bits CASES cuda OP ...    of these operators alone */
#include "core/mkernel.h" /* with the list of operators, which kernels do without */

#include "core/base/random.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef MK_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

enum { IDS = 64, MOST_N = 1032, FAMILIES = 3, LAYERS = 3, ENGINES = 2, KINDS = 2 };
enum { PLACES = 4096, HEADS = 2 }; /* of a sequence; of Q, which share one of K and V */

/* Products whose rows are compared: N, and K of all ranks. */
static const struct {
    uint32_t n, k;
} families[FAMILIES] = {{1024, 1024}, {264, 4096}, {520, 1536}};

/* Of moe_ffn. */
static const struct {
    uint32_t hidden, inner, experts, k;
} layers[LAYERS] = {{520, 136, 16, 4}, {264, 264, 8, 8}, {1032, 72, 8, 3}};

static const struct form {
    uint32_t nodes, gpus, share; /* of 100 cases */
} forms[] = {{1, 1, 35}, {1, 2, 35}, {2, 1, 10}, {1, 4, 20}};

/* A row that some case has had. */
struct row {
    int known;
    uint16_t is[MOST_N];
};

/* Shared by all processes: rows by what they must equal. Kind: 1 where it is ag_gemm and no tree; of attention whether there is
 * a mask, by heads of 64 and 128. */
struct rows {
    struct row products[FAMILIES][ENGINES][KINDS][IDS], tokens[LAYERS][ENGINES][IDS],
        places[2][ENGINES][KINDS][PLACES];
    uint64_t compared, differ, cases;
};
static struct rows *rows;
static int emulated;
static const uint32_t all_ops[] = {MK_OP_GEMM_RS, MK_OP_GEMM_AR, MK_OP_AG_GEMM, MK_OP_MOE_FFN,
                                   MK_OP_RING_ATTENTION};
static uint32_t ops[sizeof all_ops / sizeof *all_ops], op_count;

static uint32_t below(uint64_t *state, uint32_t count)
{
    return (uint32_t)(mk_random(state) >> 32) % count;
}

/* bf16 of several magnitudes; what: 0 of A, 1 of B. */
static uint16_t number(uint32_t what, uint32_t family, uint32_t of, uint32_t k)
{
    uint64_t x = (what * 0x51ed27 + family * 0x10001 + of + 1) * 0x9e3779b97f4a7c15ull +
                 k * 0xd1342543de82ef95ull;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
    x ^= x >> 32;
    return (uint16_t)((x & 0x807f) | (122 + (x >> 16) % 9) << 7);
}

static void *room(size_t bytes)
{
    void *p = NULL;
#ifdef MK_HAVE_CUDA
    if (!emulated)
        return cudaMalloc(&p, bytes) == cudaSuccess ? p : NULL;
#endif
    return posix_memalign(&p, 128, bytes) ? NULL : p;
}

static void leave(void *p)
{
#ifdef MK_HAVE_CUDA
    if (!emulated) {
        cudaFree(p);
        return;
    }
#endif
    free(p);
}

static int move(void *to, const void *from, size_t bytes)
{
#ifdef MK_HAVE_CUDA
    if (!emulated)
        return cudaMemcpy(to, from, bytes, cudaMemcpyDefault) != cudaSuccess;
#endif
    memcpy(to, from, bytes);
    return 0;
}

struct drawn {
    uint32_t family, engine, first, step;
    struct mk_spec spec;
    char options[96];
};

static void draw_product(struct drawn *d, uint64_t *state, uint32_t world, uint32_t nodes)
{
    static const char *const wgmma[] = {"tile=256,128", "tile=128,128", "tile=128,64", ""},
                             *const mma[] = {"tile=128,128", "tile=64,64", ""};
    const uint32_t m = 1 + below(state, 1u << below(state, emulated ? 7 : 13)) % 4096,
                   k = families[d->family].k;
    d->spec.shape[0] = d->spec.op == MK_OP_GEMM_AR ? m : (m + world - 1) / world * world;
    d->spec.shape[1] = families[d->family].n;
    d->spec.shape[2] = d->spec.op == MK_OP_AG_GEMM ? k : k / world;
    const int columns =
        d->spec.op == MK_OP_GEMM_AR && d->spec.shape[1] % (8 * world) == 0 && below(state, 3) == 0;
    const uint32_t shots = columns                                ? 4
                           : nodes > 1 || d->spec.shape[0] > 1024 ? 2
                                                                  : 1 + below(state, 2);
    snprintf(d->options, sizeof d->options, "engine=%s shots=%u %s", d->engine ? "mma" : "wgmma",
             shots, d->engine ? mma[below(state, 3)] : wgmma[below(state, 4)]);
}

static void draw_layer(struct drawn *d, uint64_t *state)
{
    static const char *const wgmma[] = {"tile=128,256", "tile=128,128", ""}, *const mma[] = {
                                                                                 "tile=128,128",
                                                                                 "tile=64,64", ""};
    const uint64_t shape[] = {1 + below(state, 1u << below(state, emulated ? 6 : 11)),
                              layers[d->family].hidden, layers[d->family].inner,
                              layers[d->family].experts, layers[d->family].k};
    memcpy(d->spec.shape, shape, sizeof shape);
    snprintf(d->options, sizeof d->options, "engine=%s %s", d->engine ? "mma" : "wgmma",
             d->engine ? mma[below(state, 3)] : wgmma[below(state, 3)]);
}

/* family: heads of 64 or 128. Without a mask a row follows from the whole sequence, whose last block of keys is no whole one. */
static void draw_attention(struct drawn *d, uint64_t *state, uint32_t world)
{
    const uint32_t contiguous = below(state, 2), most = emulated ? 1024 : PLACES;
    d->family %= 2;
    d->spec.causal = below(state, 3) > 0;
    const uint32_t parts = world * (d->spec.causal && !contiguous ? 2 : 1);
    uint64_t sequence = most - 1;
    if (d->spec.causal)
        sequence = parts * 128 * (1 + below(state, most / 128 / parts)) - below(state, 2);
    const uint64_t shape[] = {1, sequence, HEADS, 1, d->family ? 128u : 64u};
    memcpy(d->spec.shape, shape, sizeof shape);
    snprintf(d->options, sizeof d->options, "engine=%s%s%s", d->engine ? "mma" : "wgmma",
             d->spec.causal && contiguous ? " split=contiguous" : "",
             world < 4 && !emulated && below(state, 3) == 0 ? " sms=64" : "");
}

/* The same on all ranks. */
static void draw(struct drawn *d, uint64_t *state, uint32_t world, uint32_t nodes)
{
    memset(d, 0, sizeof *d);
    d->family = below(state, FAMILIES);
    d->engine = below(state, 4) == 0;
    d->first = below(state, IDS);
    d->step = 1 + 2 * below(state, 8);
    d->spec.op = ops[below(state, op_count)];
    d->spec.b_transposed = d->spec.op != MK_OP_RING_ATTENTION && below(state, 2);
    d->spec.deterministic = MK_EVERYWHERE;
    d->spec.options = d->options;
    if (d->spec.op == MK_OP_MOE_FFN)
        draw_layer(d, state);
    else if (d->spec.op == MK_OP_RING_ATTENTION)
        draw_attention(d, state, world);
    else
        draw_product(d, state, world, nodes);
}

static uint32_t id_of(const struct drawn *d, uint64_t row)
{
    return (uint32_t)((d->first + row * d->step) % IDS);
}

/* Where in the sequence this rank's rows stand. Returns their number. */
static uint64_t places_of(const struct drawn *d, uint32_t rank, uint32_t world, uint32_t *places)
{
    uint64_t begin[2], count[2], rows = 0;
    mk_ring_attention_rows(d->spec.shape[1], world, rank, d->spec.causal,
                           strstr(d->options, "contiguous") != NULL, begin, count);
    for (uint32_t half = 0; half < 2; half++)
        for (uint64_t i = 0; i < count[half]; i++)
            places[rows++] = (uint32_t)(begin[half] + i);
    return rows;
}

/* Rows of numbers that their ids alone say, `count` of them from row `before` on, `length` long from number `from` on. */
static void fill_rows(const struct drawn *d, uint32_t what, uint64_t before, uint64_t count,
                      uint64_t length, uint32_t from, uint16_t *to)
{
    uint16_t *of = (uint16_t *)malloc(IDS * length * 2);
    for (uint32_t id = 0; id < IDS; id++)
        for (uint32_t i = 0; i < length; i++)
            of[id * length + i] = number(what, d->family, id, from + i);
    for (uint64_t row = 0; row < count; row++)
        memcpy(to + row * length, of + id_of(d, before + row) * length, length * 2);
    free(of);
}

/* B [k, n], or [n, k] transposed: a column's numbers, the first_column-th's of all on. */
static void fill_b(const struct drawn *d, uint32_t what, uint64_t n, uint64_t k,
                   uint32_t first_column, uint32_t first_k, uint16_t *b)
{
    for (uint64_t col = 0; col < n; col++)
        for (uint32_t i = 0; i < k; i++)
            b[d->spec.b_transposed ? col * k + i : i * n + col] =
                number(what, d->family, first_column + (uint32_t)col, first_k + i);
}

static void fill_product(const struct drawn *d, uint32_t rank, uint32_t world, void *const *to)
{
    const uint64_t k = d->spec.shape[2], n = d->spec.shape[1];
    const int gathers = d->spec.op == MK_OP_AG_GEMM;
    const uint64_t count = d->spec.shape[0] / (gathers ? world : 1);
    const uint32_t first_k = gathers ? 0 : rank * (uint32_t)k;
    fill_rows(d, 0, gathers ? rank * count : 0, count, k, first_k, (uint16_t *)to[0]);
    fill_b(d, 1, n, k, 0, first_k, (uint16_t *)to[1]);
}

/* A token's experts and weights follow from its id; so do an expert's B1 and B2 from its number of all ranks'. */
static void fill_layer(const struct drawn *d, uint32_t rank, uint32_t world, void *const *to)
{
    const uint64_t tokens = d->spec.shape[0], h = d->spec.shape[1], inner = d->spec.shape[2],
                   experts = d->spec.shape[3], k = d->spec.shape[4], here = experts / world;
    fill_rows(d, 2, rank * tokens, tokens, h, 0, (uint16_t *)to[0]);
    for (uint64_t token = 0; token < tokens; token++)
        for (uint32_t place = 0; place < k; place++) {
            const uint32_t id = id_of(d, rank * tokens + token);
            ((uint32_t *)to[2])[token * k + place] =
                id % 5 == 0 && place == 1 ? UINT32_MAX : (uint32_t)((id * 3 + place * 5) % experts);
            ((float *)to[3])[token * k + place] =
                (float)(number(3, d->family, id, place) & 0xff) / 97 - 1;
        }
    for (uint64_t i = 0; i < here; i++) {
        const uint32_t first = (uint32_t)(rank * here + i) * 4096;
        fill_b(d, 4, 2 * inner, h, first, 0, (uint16_t *)to[1] + i * 2 * inner * h);
        fill_b(d, 5, h, inner, first, 0, (uint16_t *)to[4] + i * inner * h);
    }
}

static void fill_attention(const struct drawn *d, uint32_t rank, uint32_t world, void *const *to)
{
    static uint32_t places[PLACES];
    const uint64_t rows = places_of(d, rank, world, places), dim = d->spec.shape[4];
    for (uint32_t argument = 0; argument < 3; argument++)
        for (uint64_t row = 0; row < rows; row++) {
            const uint64_t length = (argument ? 1 : HEADS) * dim;
            for (uint32_t i = 0; i < length; i++) {
                const uint16_t x = number(6 + argument, d->family, places[row], i);
                ((uint16_t *)to[argument])[row * length + i] =
                    argument == 1 ? (uint16_t)(x - (2 << 7)) : x;
            }
        }
}

/* Numbers of a row of this rank's that are others than elsewhere. */
static uint64_t compare_row(struct row *with, const uint16_t *c, uint64_t n, uint64_t row,
                            uint32_t id)
{
    uint64_t differ = 0;
    int expected = 0;
    if (__atomic_compare_exchange_n(&with->known, &expected, 1, 0, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE)) {
        memcpy(with->is, c, n * 2);
        __atomic_store_n(&with->known, 2, __ATOMIC_RELEASE);
    }
    while (__atomic_load_n(&with->known, __ATOMIC_ACQUIRE) != 2)
        usleep(10); /* another rank copies it */
    for (uint32_t col = 0; col < n; col++)
        if (c[col] != with->is[col] && !differ++)
            fprintf(stderr, "row %llu (%u), column %u is %04x, and was %04x elsewhere\n",
                    (unsigned long long)row, id, col, c[col], with->is[col]);
    __atomic_fetch_add(&rows->compared, n, __ATOMIC_RELAXED);
    __atomic_fetch_add(&rows->differ, differ, __ATOMIC_RELAXED);
    return differ;
}

static uint64_t compare(const struct drawn *d, uint32_t rank, uint32_t world, const uint16_t *c)
{
    static uint32_t places[PLACES];
    const int attends = d->spec.op == MK_OP_RING_ATTENTION, layer = d->spec.op == MK_OP_MOE_FFN,
              scatters = d->spec.op == MK_OP_GEMM_RS;
    const uint64_t count = attends    ? places_of(d, rank, world, places)
                           : scatters ? d->spec.shape[0] / world
                                      : d->spec.shape[0],
                   n = attends ? HEADS * d->spec.shape[4] : d->spec.shape[1],
                   before = scatters || layer ? rank * count : 0;
    uint64_t differ = 0;
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t id = attends ? places[i] : id_of(d, before + i);
        struct row *with =
            attends ? &rows->places[d->family][d->engine][d->spec.causal][id]
            : layer ? &rows->tokens[d->family][d->engine][id]
                    : &rows->products[d->family][d->engine][d->spec.op == MK_OP_AG_GEMM][id];
        differ += compare_row(with, c + i * n, n, before + i, id);
    }
    return differ;
}

/* Of a plan's arguments what they are filled with, and the first output; and where they lie on the device. */
struct arguments {
    uint32_t count, output;
    uint64_t bytes[8];
    void *here[8], *device[8];
};

static int make_arguments(struct arguments *a, const struct mk_plan *plan)
{
    a->count = mk_plan_arguments(plan);
    a->output = a->count;
    for (uint32_t i = 0; i < a->count; i++) {
        a->bytes[i] = mk_plan_argument_bytes(plan, i);
        if (mk_plan_argument_is_output(plan, i) && i < a->output)
            a->output = i;
        a->here[i] = malloc(a->bytes[i] + 1);
        a->device[i] = room(a->bytes[i] + 128);
        if (!a->here[i] || !a->device[i])
            return -1;
        memset(a->here[i], 0xff, a->bytes[i]);
    }
    return 0;
}

static int run_plan(struct mk_comm *comm, struct mk_plan *plan, const struct drawn *d,
                    uint32_t rank, uint32_t world, struct arguments *a, uint64_t *differ)
{
    int rc = make_arguments(a, plan);
    if (rc)
        return rc;
    (d->spec.op == MK_OP_MOE_FFN          ? fill_layer
     : d->spec.op == MK_OP_RING_ATTENTION ? fill_attention
                                          : fill_product)(d, rank, world, a->here);
    for (uint32_t i = 0; i < a->count && !rc; i++)
        rc = move(a->device[i], a->here[i], a->bytes[i]);
    rc = rc ? rc : mk_launch(plan, a->device, a->count, NULL);
    rc = rc ? rc : mk_wait(comm);
    if (rc < 0)
        fprintf(stderr, "%s\n", mk_error(comm));
    rc = rc ? rc : move(a->here[a->output], a->device[a->output], a->bytes[a->output]);
    *differ = rc ? 0 : compare(d, rank, world, (const uint16_t *)a->here[a->output]);
    return rc;
}

static int run_case(struct mk_comm *comm, struct drawn *d, uint32_t rank, uint32_t world,
                    uint64_t *differ)
{
    struct arguments a = {};
    struct mk_plan *plan = NULL;
    int rc = mk_plan_create(&plan, comm, &d->spec);
    *differ = 0;
    if (rc < 0)
        fprintf(stderr, "%s\n", mk_error(comm));
    rc = rc ? rc : run_plan(comm, plan, d, rank, world, &a, differ);
    for (uint32_t i = 0; i < a.count; i++) {
        leave(a.device[i]);
        free(a.here[i]);
    }
    return rc ? rc : mk_plan_destroy(plan);
}

/* One rank of a form: all its cases. */
static int run_rank(const struct form *form, uint32_t rank, int listener, uint16_t port,
                    uint32_t cases)
{
    struct mk_config config = {};
    struct mk_comm *comm = NULL;
    struct drawn d;
    uint64_t state = form->nodes * 16 + form->gpus, differ;
    config.version = MK_VERSION_NUMBER;
    config.rank = rank;
    config.nodes = form->nodes;
    config.gpus = form->gpus;
    config.exec = emulated ? MK_EXEC_EMULATED : MK_EXEC_CUDA;
    config.port = port;
    config.listen_fd = rank ? 0 : listener;
    config.timeout_ns = 60000000000ull;
    config.heap_bytes = 256ull << 20;
    strcpy(config.host, "127.0.0.1");
    strcpy(config.token, "same bits");
    strcpy(config.tuning, "none");
    if (form->nodes > 1)
        strcpy(config.nic, "soft");
    int rc = mk_comm_open(&comm, &config);
    if (rc)
        fprintf(stderr, "%s\n", mk_error(comm));
    for (uint32_t i = 0; i < cases && !rc; i++) {
        draw(&d, &state, form->nodes * form->gpus, form->nodes);
        rc = run_case(comm, &d, rank, form->nodes * form->gpus, &differ);
        if (rc || differ)
            fprintf(
                stderr,
                "case %u of %u x %u ranks, rank %u: %s %llu,%llu,%llu,%llu,%llu%s %s %s: %llu\n", i,
                form->nodes, form->gpus, rank, mk_op_name(d.spec.op),
                (unsigned long long)d.spec.shape[0], (unsigned long long)d.spec.shape[1],
                (unsigned long long)d.spec.shape[2], (unsigned long long)d.spec.shape[3],
                (unsigned long long)d.spec.shape[4], d.spec.causal ? " causal" : "",
                d.spec.b_transposed ? "nk" : "kn", d.options, (unsigned long long)differ);
    }
    mk_comm_close(comm);
    return rc != 0;
}

static int run_form(const struct form *form, uint32_t cases)
{
    const uint32_t world = form->nodes * form->gpus;
    struct sockaddr_in at = {};
    socklen_t length = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), failed = 0, status;
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (listener < 0 || bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 16) ||
        getsockname(listener, (struct sockaddr *)&at, &length))
        return 1;
    for (uint32_t rank = 0; rank < world; rank++)
        if (fork() == 0)
            _exit(run_rank(form, rank, listener, ntohs(at.sin_port), cases));
    close(listener);
    for (uint32_t rank = 0; rank < world; rank++)
        failed |= wait(&status) < 0 || status;
    rows->cases += cases;
    return failed;
}

/* Whether engines agree in rows that both have had. */
static void compare_engines(const struct row *wgmma, const struct row *mma, uint32_t n,
                            uint32_t *both, uint32_t *agree)
{
    if (!wgmma->known || !mma->known)
        return;
    ++*both;
    *agree += !memcmp(wgmma->is, mma->is, n * 2);
}

int main(int argc, char **argv)
{
    const uint32_t cases = argc > 1 ? (uint32_t)atoi(argv[1]) : 500;
    int failed = 0;
    uint32_t both = 0, agree = 0;
    emulated = argc > 2 && !strcmp(argv[2], "emulated");
    for (uint32_t op : all_ops) {
        int named = argc <= 3;
        for (int i = 3; i < argc; i++)
            named |= !strcmp(argv[i], mk_op_name(op));
        if (named)
            ops[op_count++] = op;
    }
    rows = (struct rows *)mmap(NULL, sizeof *rows, PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (rows == MAP_FAILED || !op_count)
        return 1;
    for (size_t i = 0; i < sizeof forms / sizeof *forms && !failed; i++)
        failed = run_form(&forms[i], (cases * forms[i].share + 99) / 100);
    for (uint32_t id = 0; id < IDS; id++) {
        for (uint32_t f = 0; f < FAMILIES; f++)
            for (uint32_t kind = 0; kind < KINDS; kind++)
                compare_engines(&rows->products[f][0][kind][id], &rows->products[f][1][kind][id],
                                families[f].n, &both, &agree);
        for (uint32_t f = 0; f < LAYERS; f++)
            compare_engines(&rows->tokens[f][0][id], &rows->tokens[f][1][id], layers[f].hidden,
                            &both, &agree);
    }
    printf("figure: %llu cases, %llu numbers compared, %llu differ%s; engines agree in %u of %u "
           "rows\n",
           (unsigned long long)rows->cases, (unsigned long long)rows->compared,
           (unsigned long long)rows->differ, failed ? ", a case failed" : "", agree, both);
    return failed || rows->differ;
}

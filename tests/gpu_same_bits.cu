/* On GPUs a row of C has the same bits in gemm_rs, gemm_ar and ag_gemm with MK_EVERYWHERE, whatever M, the row's place, the tile, B's
 * layout, one shot or two, and on 1, 2 and 4 ranks (which may share GPUs) and on two nodes of one rank: hundreds of random cases, all
 * compared element by element with the first that had the row. Engines are compared with themselves; whether they agree, a line says.
 * All cases are run, and those whose rows differ listed.
 *
 *   gpu_same_bits [CASES]              default 500
 *   gpu_same_bits CASES emulated       the same on emulated GPUs, in host memory */
#include "core/mkernel.h" /* with the list of operators, which kernels do without */

#include "core/random.h"

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

enum { IDS = 64, MOST_N = 1032, FAMILIES = 3, ENGINES = 2, KINDS = 2 };

/* Products whose rows are compared: N, and K of all ranks. */
static const struct {
    uint32_t n, k;
} families[FAMILIES] = {{1032, 1024}, {264, 4096}, {520, 1536}};

static const struct form {
    uint32_t nodes, gpus, share; /* of 100 cases */
} forms[] = {{1, 1, 35}, {1, 2, 35}, {2, 1, 10}, {1, 4, 20}};

/* Shared by all processes: rows by what they must equal. Kind: 1 where it is ag_gemm and no tree. */
struct rows {
    int known[FAMILIES][ENGINES][KINDS][IDS];
    uint16_t row[FAMILIES][ENGINES][KINDS][IDS][MOST_N];
    uint64_t compared, differ, cases;
};
static struct rows *rows;
static int emulated;

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
    char options[64];
};

/* The same on all ranks. */
static void draw(struct drawn *d, uint64_t *state, uint32_t world, uint32_t nodes)
{
    static const char *const wgmma[] = {"tile=256,128", "tile=128,128", "tile=128,64", ""},
                             *const mma[] = {"tile=128,128", "tile=64,64", ""};
    static const uint32_t ops[] = {MK_OP_GEMM_RS, MK_OP_GEMM_AR, MK_OP_AG_GEMM};
    uint32_t m = 1 + below(state, 1u << below(state, emulated ? 7 : 13)) % 4096;
    memset(d, 0, sizeof *d);
    d->family = below(state, FAMILIES);
    d->engine = below(state, 4) == 0;
    d->first = below(state, IDS);
    d->step = 1 + 2 * below(state, 8);
    d->spec.op = ops[below(state, 3)];
    const uint32_t k = families[d->family].k;
    d->spec.shape[0] = d->spec.op == MK_OP_GEMM_AR ? m : (m + world - 1) / world * world;
    d->spec.shape[1] = families[d->family].n;
    d->spec.shape[2] = d->spec.op == MK_OP_AG_GEMM ? k : k / world;
    d->spec.b_transposed = (int)below(state, 2);
    d->spec.deterministic = MK_EVERYWHERE;
    const uint32_t shots = nodes > 1 || d->spec.shape[0] > 1024 ? 2 : 1 + below(state, 2);
    snprintf(d->options, sizeof d->options, "engine=%s shots=%u %s", d->engine ? "mma" : "wgmma",
             shots, d->engine ? mma[below(state, 3)] : wgmma[below(state, 4)]);
    d->spec.options = d->options;
}

static uint32_t id_of(const struct drawn *d, uint64_t row)
{
    return (uint32_t)((d->first + row * d->step) % IDS);
}

/* This rank's A and B. */
static void fill(const struct drawn *d, uint32_t rank, uint32_t world, uint16_t *a, uint16_t *b)
{
    const uint64_t k = d->spec.shape[2], n = d->spec.shape[1];
    const int gathers = d->spec.op == MK_OP_AG_GEMM;
    const uint64_t count = d->spec.shape[0] / (gathers ? world : 1),
                   before = gathers ? rank * count : 0;
    const uint32_t first_k = gathers ? 0 : rank * (uint32_t)k;
    uint16_t *of = (uint16_t *)malloc(IDS * k * 2);
    for (uint32_t id = 0; id < IDS; id++)
        for (uint32_t i = 0; i < k; i++)
            of[id * k + i] = number(0, d->family, id, first_k + i);
    for (uint64_t row = 0; row < count; row++)
        memcpy(a + row * k, of + id_of(d, before + row) * k, k * 2);
    for (uint64_t col = 0; col < n; col++)
        for (uint32_t i = 0; i < k; i++)
            b[d->spec.b_transposed ? col * k + i : i * n + col] =
                number(1, d->family, (uint32_t)col, first_k + i);
    free(of);
}

/* Numbers of this rank's C that are others than elsewhere. */
static uint64_t compare(const struct drawn *d, uint32_t rank, uint32_t world, const uint16_t *c)
{
    const int scatters = d->spec.op == MK_OP_GEMM_RS, kind = d->spec.op == MK_OP_AG_GEMM;
    uint64_t differ = 0;
    const uint64_t n = d->spec.shape[1], count = d->spec.shape[0] / (scatters ? world : 1),
                   before = scatters ? rank * count : 0;
    for (uint64_t row = 0; row < count; row++) {
        const uint32_t id = id_of(d, before + row);
        uint16_t *const is = rows->row[d->family][d->engine][kind][id];
        int *const known = &rows->known[d->family][d->engine][kind][id], none = 0;
        int expected = none;
        if (__atomic_compare_exchange_n(known, &expected, 1, 0, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE)) {
            memcpy(is, c + row * n, n * 2);
            __atomic_store_n(known, 2, __ATOMIC_RELEASE);
        }
        while (__atomic_load_n(known, __ATOMIC_ACQUIRE) != 2)
            usleep(10); /* another rank copies it */
        for (uint32_t col = 0; col < n; col++)
            if (c[row * n + col] != is[col] && !differ++)
                fprintf(stderr, "row %llu (%u), column %u is %04x, and was %04x elsewhere\n",
                        (unsigned long long)(before + row), id, col, c[row * n + col], is[col]);
    }
    __atomic_fetch_add(&rows->compared, count * n, __ATOMIC_RELAXED);
    __atomic_fetch_add(&rows->differ, differ, __ATOMIC_RELAXED);
    return differ;
}

static int run_case(struct mk_comm *comm, struct drawn *d, uint32_t rank, uint32_t world,
                    uint64_t *differ)
{
    const uint64_t k = d->spec.shape[2], n = d->spec.shape[1], m = d->spec.shape[0];
    const uint64_t a_rows = d->spec.op == MK_OP_AG_GEMM ? m / world : m,
                   c_rows = d->spec.op == MK_OP_GEMM_RS ? m / world : m;
    uint16_t *a = (uint16_t *)malloc(a_rows * k * 2), *b = (uint16_t *)malloc(k * n * 2),
             *c = (uint16_t *)malloc(c_rows * n * 2);
    void *arguments[3] = {room(a_rows * k * 2), room(k * n * 2), room(c_rows * n * 2)};
    struct mk_plan *plan = NULL;
    int rc = -1;
    if (a && b && c && arguments[0] && arguments[1] && arguments[2]) {
        fill(d, rank, world, a, b);
        memset(c, 0xff, c_rows * n * 2);
        rc = move(arguments[0], a, a_rows * k * 2) || move(arguments[1], b, k * n * 2) ||
             move(arguments[2], c, c_rows * n * 2);
        rc = rc ? rc : mk_plan_create(&plan, comm, &d->spec);
        if (rc < 0)
            fprintf(stderr, "%s\n", mk_error(comm));
        rc = rc ? rc : mk_launch(plan, arguments, 3, NULL);
        rc = rc ? rc : mk_wait(comm);
        if (rc < 0)
            fprintf(stderr, "%s\n", mk_error(comm));
        rc = rc ? rc : move(c, arguments[2], c_rows * n * 2);
        *differ = rc ? 0 : compare(d, rank, world, c);
        if (plan && !rc)
            rc = mk_plan_destroy(plan);
    }
    for (int i = 0; i < 3; i++)
        leave(arguments[i]);
    free(a);
    free(b);
    free(c);
    return rc;
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
            fprintf(stderr, "case %u of %u x %u ranks, rank %u: %s %llu,%llu,%llu %s %s: %llu\n", i,
                    form->nodes, form->gpus, rank, mk_op_name(d.spec.op),
                    (unsigned long long)d.spec.shape[0], (unsigned long long)d.spec.shape[1],
                    (unsigned long long)d.spec.shape[2], d.spec.b_transposed ? "nk" : "kn",
                    d.options, (unsigned long long)differ);
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

int main(int argc, char **argv)
{
    const uint32_t cases = argc > 1 ? (uint32_t)atoi(argv[1]) : 500;
    int failed = 0;
    uint32_t both = 0, agree = 0;
    emulated = argc > 2 && !strcmp(argv[2], "emulated");
    rows = (struct rows *)mmap(NULL, sizeof *rows, PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (rows == MAP_FAILED)
        return 1;
    for (size_t i = 0; i < sizeof forms / sizeof *forms && !failed; i++)
        failed = run_form(&forms[i], (cases * forms[i].share + 99) / 100);
    for (uint32_t f = 0; f < FAMILIES; f++)
        for (uint32_t kind = 0; kind < KINDS; kind++)
            for (uint32_t id = 0; id < IDS; id++)
                if (rows->known[f][0][kind][id] && rows->known[f][1][kind][id]) {
                    both++;
                    agree += !memcmp(rows->row[f][0][kind][id], rows->row[f][1][kind][id],
                                     families[f].n * 2);
                }
    printf("figure: %llu cases, %llu numbers compared, %llu differ%s; engines agree in %u of %u "
           "rows\n",
           (unsigned long long)rows->cases, (unsigned long long)rows->compared,
           (unsigned long long)rows->differ, failed ? ", a case failed" : "", agree, both);
    return failed || rows->differ;
}

/* The public header is all of the library that a user sees: it stands alone in C99 and C++, what it
 * declares is what the library exports, another version's programs are refused, and a spec makes
 * the plan that its accessors tell of. */
#include "core/base/bf16.h"
#include "core/comm/comm_parts.h"
#include "core/ops/op.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>
#include "tests/helpers/test.h"
#include "tests/helpers/folder.h"
#include "tests/helpers/shell.h"

static char said[65536];

static void at_root(void)
{
    if (!access("core/mkernel.h", R_OK))
        return;
    print_message("skipped: this test reads the sources; run it in the repository's root\n");
    skip();
}

/* ---- the header ---- */

/* Compiles `source` with the installed headers alone to be found. Returns the compiler's status. */
static int compile(const char *compiler, const char *source)
{
    char path[128], command[512];
    snprintf(path, sizeof path, "%s/user.c", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "#include <mkernel/mkernel.h>\n#include <mkernel/mkernel.h>\n%s\n", source);
    assert_int_equal(fclose(f), 0);
    snprintf(command, sizeof command,
             "cd %s && %s -Iinclude -Wall -Wextra -Wshadow -Werror -fsyntax-only user.c 2>&1",
             folder, compiler);
    return shell(command, said, sizeof said);
}

static void lay_out_headers(void)
{
    char command[512];
    snprintf(command, sizeof command,
             "set -e; mkdir -p %s/include/mkernel/ops; cp core/mkernel.h core/types.h "
             "%s/include/mkernel/; "
             "cp core/ops/registry.h %s/include/mkernel/ops/",
             folder, folder, folder);
    assert_int_equal(shell(command, said, sizeof said), 0);
}

static const char c_99[] = "cc -std=c99 -pedantic -Wstrict-prototypes -x c";

CASE(it_stands_alone_in_c_and_in_cplusplus)
{
    const char *const use =
        "int use(mk_comm *comm); int use(mk_comm *comm) { mk_spec spec = {}; spec.op = "
        "MK_OP_GEMM_RS; mk_plan *plan; "
        "return mk_plan_create(&plan, comm, &spec) || mk_plan_ctas(plan, MK_COMPUTE) == 0; }";
    at_root();
    lay_out_headers();
    if (compile(c_99, "int use(struct mk_comm *c, const struct mk_config *k); int use(struct "
                      "mk_comm *c, const struct mk_config *k) "
                      "{ return mk_comm_open(&c, k) + (int)MK_OP_AG_GEMM + MK_EXEC_CUDA; }"))
        fail_msg("%s", said);
    if (!shell("command -v c++", said, sizeof said) &&
        compile("c++ -std=c++11 -pedantic -x c++", use))
        fail_msg("%s", said);
}

/* What is the library's own is not to be had. */
CASE(it_shows_nothing_of_the_library_s_own)
{
    static const char *const inside[] = {
        "unsigned tiles(struct mk_plan *p); unsigned tiles(struct mk_plan *p) { return p->tiles; }",
        "struct mk_plan whole;",
        "struct mk_comm whole;",
        "struct mk_problem problem;",
        "struct mk_tuning tuning;",
        "struct mk_topo topo;",
        "int spaces = MK_SPACES;",
        "int sms(struct mk_spec *s); int sms(struct mk_spec *s) { return s->sms; }",
    };
    at_root();
    lay_out_headers();
    for (size_t i = 0; i < sizeof inside / sizeof *inside; i++)
        if (!compile(c_99, inside[i]))
            fail_msg("compiles: %s", inside[i]);
}

/* ---- what is exported ---- */

/* The names that `command` prints, sorted, one a line. */
static char *names(const char *command)
{
    char line[4096];
    snprintf(line, sizeof line, "bash -c 'set -o pipefail; %s | LC_ALL=C sort -u' 2>&1", command);
    if (shell(line, said, sizeof said))
        fail_msg("%s: %s", line, said);
    return strdup(said);
}

static void build_folder(char *out, size_t size)
{
    ssize_t length = readlink("/proc/self/exe", out, size - 1);
    assert_true(length > 0);
    out[length] = 0;
    for (int i = 0; i < 2; i++)
        *strrchr(out, '/') = 0;
}

CASE(the_library_exports_what_the_header_declares)
{
    char build[1024], command[2048];
    at_root();
    build_folder(build, sizeof build);
    snprintf(command, sizeof command, "%s/libmkernel.so", build);
    if (access(command, R_OK)) {
        print_message("skipped: no libmkernel.so beside the tests\n");
        skip();
    }
    char *declared = names("cc -E -P core/mkernel.h | tr \"\\n\" \" \" | grep -oE \"mk_[a-z_0-9]+ "
                           "?\\(\" | tr -d \" (\"");
    snprintf(
        command, sizeof command,
        "nm -D --defined-only %s/libmkernel.so | sed -n \"s/.* [^A] \\(.*\\)@@MKERNEL_0$/\\1/p\"",
        build);
    char *exported = names(command);
    assert_non_null(strstr(declared, "mk_comm_open\n"));
    assert_string_equal(exported, declared);
    free(declared);
    free(exported);
    /* The name that programs load, which says the major version. */
    snprintf(command, sizeof command,
             "readelf -d %s/libmkernel.so | grep SONAME | grep -o \"libmkernel[^]]*\"", build);
    char *soname = names(command), wanted[64];
    snprintf(wanted, sizeof wanted, "libmkernel.so.%d\n", MK_VERSION_MAJOR);
    assert_string_equal(soname, wanted);
    free(soname);
}

/* As Python does it. Thread-local memory is what such a library has least of. */
CASE(the_library_can_be_loaded_at_run_time)
{
    char build[1024], path[1100];
    build_folder(build, sizeof build);
    snprintf(path, sizeof path, "%s/libmkernel.so", build);
    if (access(path, R_OK)) {
        print_message("skipped: no libmkernel.so beside the tests\n");
        skip();
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fail_msg("%s", dlerror());
    uint32_t (*version)(void);
    *(void **)&version = dlsym(library, "mk_version");
    assert_non_null(version);
    assert_int_equal(version(), MK_VERSION_NUMBER);
    dlclose(library);
}

/* ---- versions ---- */

CASE(versions_agree)
{
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", MK_VERSION_MAJOR, MK_VERSION_MINOR, MK_VERSION_PATCH);
    assert_string_equal(MK_VERSION, text);
    assert_int_equal(mk_version(), MK_VERSION_NUMBER);
}

/* Of a config of another version nothing is read but the version: here there is nothing more. */
CASE(a_program_of_another_version_is_refused)
{
    static const struct {
        uint32_t version;
        const char *says;
    } others[] = {
        {0, "config.version is 0: set it to MK_VERSION_NUMBER"},
        {MK_VERSION_NUMBER + 100,
         "was compiled with mkernel.h 0.2 and runs with libmkernel " MK_VERSION},
        {MK_VERSION_NUMBER + 10000,
         "was compiled with mkernel.h 1.1 and runs with libmkernel " MK_VERSION},
    };
    long page = sysconf(_SC_PAGESIZE);
    char *pages =
        mmap(NULL, 2 * (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    assert_int_equal(mprotect(pages + page, (size_t)page, PROT_NONE), 0);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct mk_comm *comm;
        /* aligned as every struct mk_config is */
        char *last = pages + page - _Alignof(struct mk_config);
        memcpy(last, &others[i].version, sizeof others[i].version);
        assert_int_equal(mk_comm_open(&comm, (const struct mk_config *)(void *)last), -EINVAL);
        assert_non_null(strstr(mk_error(comm), others[i].says));
        mk_comm_close(comm);
    }
    munmap(pages, 2 * (size_t)page);
}

/* ---- specs and plans ---- */

static struct mk_comm *open_alone(uint32_t version)
{
    struct mk_config config = {
        .version = version, .nodes = 1, .gpus = 1, .exec = MK_EXEC_HOST, .tuning = "none"};
    struct mk_comm *comm;
    int result = mk_comm_open(&comm, &config);
    if (result)
        fail_msg("%s", mk_error(comm));
    return comm;
}

/* A config of zeros but for what has no default; a patch's header is as good as this one. Standard
 * input stays open. */
CASE(zeros_are_defaults)
{
    int open_before = fcntl(0, F_GETFD);
    mk_comm_close(open_alone(MK_VERSION_NUMBER + 7));
    assert_int_equal(fcntl(0, F_GETFD), open_before);
}

static struct mk_spec spec_of(enum mk_op op)
{
    struct mk_spec spec = {.op = op};
    op_of(op)->choose_shape(OP_SIZE_HOST, 1, spec.shape);
    return spec;
}

static void check_accessors(const struct mk_plan *p, const struct mk_spec *spec)
{
    uint64_t shape[MK_SHAPE], bytes[MK_SPACES - 1], nvlink, network;
    double flop;
    memset(shape, 0xff, sizeof shape);
    assert_int_equal(mk_plan_op(p), spec->op);
    assert_int_equal(mk_plan_shape(p, shape), op_dimensions(op_of(spec->op)->shape));
    assert_memory_equal(shape, spec->shape, sizeof shape);
    for (int role = 0; role < MK_ROLES; role++)
        assert_int_equal(mk_plan_ctas(p, (enum mk_role)role), p->problem.tuning.split.ctas[role]);
    assert_int_equal(mk_plan_ctas(p, MK_ROLES), 0);
    assert_int_equal(mk_plan_tiles(p), p->tiles);
    assert_int_equal(mk_plan_heap_bytes(p), p->heap_bytes);
    assert_int_equal(mk_plan_flag_bytes(p), p->flags * 8);
    assert_string_equal(mk_plan_tuned(p), p->tuned);
    plan_work(p, &flop, &nvlink, &network);
    assert_true(mk_plan_flop(p) == flop && (flop > 0 || !p->tiles));
    assert_int_equal(mk_plan_nvlink_bytes(p), nvlink);
    assert_int_equal(mk_plan_network_bytes(p), network);
    uint32_t outputs = op_extents(&p->problem, bytes), count = mk_plan_arguments(p);
    assert_true(count >= 2);
    for (uint32_t i = 0; i < count; i++) {
        assert_string_equal(mk_plan_argument_name(p, i),
                            op_argument(&(struct mk_problem){.op = (enum mk_op)spec->op}, i)->name);
        assert_non_null(strstr("bf16 fp32 uint32", mk_plan_argument_type(p, i)));
        assert_true(bytes[i] > 0 && mk_plan_argument_bytes(p, i) == bytes[i]);
        assert_int_equal(mk_plan_argument_is_output(p, i), outputs >> i & 1);
    }
    assert_null(mk_plan_argument_name(p, count));
    assert_null(mk_plan_argument_type(p, count));
    assert_int_equal(mk_plan_argument_bytes(p, UINT32_MAX), 0);
    assert_int_equal(mk_plan_argument_is_output(p, count), 0);
    assert_int_equal(mk_moe_rows(p) > 0, spec->op == MK_OP_MOE_DISPATCH_GEMM ||
                                             spec->op == MK_OP_MOE_DISPATCH ||
                                             spec->op == MK_OP_MOE_COMBINE);
}

/* Of every operator; and the options that a plan tells of make the same plan again. */
CASE(a_spec_makes_the_plan_that_accessors_tell_of)
{
    struct mk_comm *comm = open_alone(MK_VERSION_NUMBER);
    for (int op = 0; op < MK_OPS; op++) {
        struct mk_spec spec = spec_of((enum mk_op)op);
        struct mk_plan *first, *second;
        assert_int_equal(mk_op_by_name(mk_op_name(spec.op)), op);
        assert_true(strlen(mk_op_shape(spec.op)) >= 3);
        if (mk_plan_create(&first, comm, &spec))
            fail_msg("%s: %s", mk_op_name(spec.op), mk_error(comm));
        check_accessors(first, &spec);
        if (mk_plan_ctas(first, MK_COMPUTE)) /* the words have no roles without it */
            assert_non_null(strstr(mk_plan_options(first), "roles="));
        spec.options = mk_plan_options(first);
        if (mk_plan_create(&second, comm, &spec))
            fail_msg("%s, %s: %s", mk_op_name(spec.op), spec.options, mk_error(comm));
        assert_string_equal(mk_plan_options(second), mk_plan_options(first));
        assert_memory_equal(&second->problem.tuning, &first->problem.tuning,
                            sizeof first->problem.tuning);
    }
    mk_comm_close(comm);
}

/* A launch of FP8 has A, B, C and the scales of A and of B, of blocks or of columns. Codes are 1 and
 * 2, so that sums are exact; scales powers of two from 2^-40 to 2^40, one of each for a row or
 * column; a row of zeros; a NaN of A reaches its row and one of B its column, and nothing else. */
static void fp8_by_scales(int by_columns)
{
    enum { M = 68, N = 136, K = 400, BLOCKS = 4, NAN_ROW = 5, ZERO_ROW = 7, NAN_COLUMN = 131 };
    struct mk_comm *comm = open_alone(MK_VERSION_NUMBER);
    const struct mk_spec spec = {.op = MK_OP_AG_GEMM,
                                 .shape = {M, N, K},
                                 .b_transposed = 1,
                                 .options = by_columns ? "dtype=fp8 b_scales=columns tile=32,64"
                                                       : "dtype=fp8 tile=32,64"};
    struct mk_plan *plan;
    static _Alignas(16) uint8_t a[M * K], b[N * K];
    static _Alignas(16) float a_scales[BLOCKS * M], b_scales[N];
    const uint32_t scales_of_b = by_columns ? N : 2 * BLOCKS;
    static _Alignas(16) uint16_t c[M * N];
    void *const arguments[] = {a, b, c, a_scales, b_scales};
    if (mk_plan_create(&plan, comm, &spec))
        fail_msg("%s", mk_error(comm));
    assert_non_null(strstr(mk_plan_options(plan), "dtype=fp8"));
    assert_int_equal(mk_plan_arguments(plan), 5);
    assert_string_equal(mk_plan_argument_type(plan, 1), "e4m3");
    assert_string_equal(mk_plan_argument_type(plan, 3), "fp32");
    assert_int_equal(mk_plan_argument_bytes(plan, 0), sizeof a);
    assert_int_equal(mk_plan_argument_bytes(plan, 3), sizeof a_scales);
    assert_int_equal(mk_plan_argument_bytes(plan, 4), scales_of_b * sizeof *b_scales);
    for (uint32_t i = 0; i < M * K; i++)
        a[i] = i / K == ZERO_ROW ? 0 : i * 2654435761u >> 30 & 1 ? 0x38 : 0x40;
    for (uint32_t i = 0; i < N * K; i++)
        b[i] = i * 2246822519u >> 29 & 1 ? 0x38 : 0x40;
    for (uint32_t i = 0; i < BLOCKS * M; i++)
        a_scales[i] = ldexpf(1, (int)(i % M % 41) - 40 + (int)(i / M));
    for (uint32_t i = 0; i < scales_of_b; i++)
        b_scales[i] = ldexpf(1, by_columns   ? (int)(i * 29 % 41) - 20
                                : i / BLOCKS ? 39 - (int)(i % BLOCKS) * 2
                                             : 3 - (int)(i % BLOCKS) * 2);
    a[NAN_ROW * K + 399] = 0x7f;
    b[NAN_COLUMN * K + 130] = 0xff;
    assert_int_equal(mk_launch(plan, arguments, 3, NULL), -EINVAL);
    assert_int_equal(mk_launch(plan, arguments, 5, NULL), 0);
    assert_int_equal(mk_wait(comm), 0);
    for (uint32_t i = 0; i < M; i++)
        for (uint32_t j = 0; j < N; j++) {
            double sum = 0;
            for (uint32_t k = 0; k < K; k++)
                sum += (i == ZERO_ROW          ? 0
                        : a[i * K + k] == 0x38 ? 1
                                               : 2) *
                       (b[j * K + k] == 0x38 ? 1 : 2) * (double)a_scales[k / 128 * M + i] *
                       (double)b_scales[by_columns ? j : j / 128 * BLOCKS + k / 128];
            if (i == NAN_ROW || j == NAN_COLUMN)
                assert_true(isnan(mk_bf16_to_float(c[i * N + j])));
            else
                assert_int_equal(c[i * N + j], mk_bf16_from_float((float)sum));
        }
    mk_comm_close(comm);
}

CASE(fp8_is_multiplied_by_its_scales)
{
    fp8_by_scales(0);
    fp8_by_scales(1);
}

/* An output that is another argument, or begins within it, is refused with both names; of all
 * others than the residual that a norm may update in place. */
static void check_sharing(struct mk_comm *comm, struct mk_plan *p)
{
    const uint32_t count = mk_plan_arguments(p);
    uint8_t *apart[MK_SPACES - 1];
    uint64_t most = 0;
    for (uint32_t i = 0; i < count; i++)
        if (most < mk_plan_argument_bytes(p, i))
            most = mk_plan_argument_bytes(p, i);
    most = mk_round_up(most, 64) + 64;
    uint8_t *memory = aligned_alloc(64, count * most);
    assert_non_null(memory);
    memset(memory, 0, count * most);
    for (uint32_t i = 0; i < count; i++)
        apart[i] = memory + i * most;
    for (uint32_t out = 0; out < count; out++)
        for (uint32_t i = 0; mk_plan_argument_is_output(p, out) && i < count; i++)
            for (uint32_t skip = 0; i != out && skip <= 16; skip += 16) {
                void *arguments[MK_SPACES - 1];
                const char *a = mk_plan_argument_name(p, out), *b = mk_plan_argument_name(p, i);
                const int may = !skip && !strcmp(a, "new_residual") && !strcmp(b, "residual");
                memcpy(arguments, apart, sizeof arguments);
                arguments[out] = apart[i] + skip;
                if (mk_plan_argument_bytes(p, i) <= skip)
                    continue;
                const int result = mk_launch(p, arguments, count, NULL);
                if (result != (may ? 0 : -EINVAL))
                    fail_msg("%s, %s is %s + %u: %d", mk_op_name(mk_plan_op(p)), a, b, skip,
                             result);
                if (!may && (!strstr(mk_error(comm), a) || !strstr(mk_error(comm), b) ||
                             !strstr(mk_error(comm), "share memory")))
                    fail_msg("%s, %s is %s: %s", mk_op_name(mk_plan_op(p)), a, b, mk_error(comm));
                assert_int_equal(mk_wait(comm), 0);
            }
    free(memory);
}

/* Of every operator and every epilogue that adds an argument. */
CASE(an_output_that_shares_memory_is_refused)
{
    static const char *const options[] = {"",
                                          "epilogue=bias",
                                          "epilogue=residual",
                                          "epilogue=residual+rmsnorm",
                                          "epilogue=residual+rmsnorm+quantize",
                                          "tokens=launch"};
    struct mk_comm *comm = open_alone(MK_VERSION_NUMBER);
    uint32_t made = 0;
    for (int op = 0; op < MK_OPS; op++)
        for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
            struct mk_spec spec = spec_of((enum mk_op)op);
            struct mk_plan *p;
            spec.options = options[i];
            if (mk_plan_create(&p, comm, &spec)) {
                assert_true(i > 0);
                continue;
            }
            made++;
            check_sharing(comm, p);
            assert_int_equal(mk_plan_destroy(p), 0);
        }
    assert_true(made >= MK_OPS + 1 + 2 * 3 + 4);
    mk_comm_close(comm);
}

/* Each field of a spec reaches the problem that the plan is made of. */
CASE(every_field_of_a_spec_counts)
{
    struct mk_comm *comm = open_alone(MK_VERSION_NUMBER);
    struct mk_spec gemm = {.op = MK_OP_AG_GEMM,
                           .shape = {64, 128, 32},
                           .b_transposed = 1,
                           .deterministic = MK_EVERYWHERE,
                           .options = " tile=16,8  roles=compute=3 ",
                           .timeout_ns = 12345678900};
    struct mk_spec attention = spec_of(MK_OP_RING_ATTENTION);
    struct mk_plan *p;
    assert_non_null(mk_heap_alloc(comm, 64 * 32 * 2, &gemm.a_offset));
    assert_int_equal(mk_plan_create(&p, comm, &gemm), 0);
    const struct mk_problem *q = &p->problem;
    assert_true(q->m == 64 && q->n == 128 && q->k == 32);
    assert_true(q->b_transposed == 1 && q->deterministic == MK_EVERYWHERE && !q->attention.causal);
    assert_true(q->a_in_heap && q->a_offset == gemm.a_offset);
    assert_true(!q->c_in_heap);
    assert_true(q->timeout_ns == 12345678900 && q->exec == MK_EXEC_HOST && q->topo.gpus == 1);
    assert_true(q->tuning.tile_m == 16 && q->tuning.tile_n == 8 &&
                q->tuning.split.ctas[MK_COMPUTE] == 3);
    struct mk_spec sum = {.op = MK_OP_GEMM_AR, .shape = {64, 128, 32}};
    assert_non_null(mk_heap_alloc(comm, 64 * 128 * 2, &sum.c_offset));
    assert_int_equal(mk_plan_create(&p, comm, &sum), 0);
    assert_true(p->problem.c_in_heap && p->problem.c_offset == sum.c_offset &&
                !p->problem.a_in_heap);
    attention.causal = 1;
    assert_int_equal(mk_plan_create(&p, comm, &attention), 0);
    assert_int_equal(p->problem.attention.causal, 1);
    mk_comm_close(comm);
}

CASE(a_spec_that_makes_no_sense_is_refused)
{
    struct {
        struct mk_spec spec;
        const char *says;
    } bad[] = {
        {{.op = (enum mk_op)99, .shape = {64, 64, 64}}, "there is no operator number 99"},
        {{.op = MK_OP_AG_GEMM, .shape = {64, 64, 64, 5}},
         "shape[3] is 5: that of ag_gemm has 3 numbers, M,N,K"},
        {{.op = MK_OP_AG_GEMM, .shape = {64, 60, 64}}, "60"},
        {{.op = MK_OP_AG_GEMM, .shape = {64, 64, 64}, .deterministic = 3}, "deterministic is 3"},
        {{.op = MK_OP_AG_GEMM, .shape = {64, 64, 64}, .options = "tyle=1x2"},
         "'tyle=1x2' is no option of a plan; they are tile, roles, chunk-rows, slices, pieces, "
         "pace, "
         "fanout, shots, split-k; besides them sms, dtype, b_scales, epilogue, eps, engine"},
        {{.op = MK_OP_AG_GEMM, .shape = {64, 64, 64}, .options = "tile=8,8 tile=x"},
         "'tile=x' is not valid"},
        {{.op = MK_OP_AG_GEMM, .shape = {64, 64, 64}, .options = "roles=2+2+1+0"},
         "'roles=2+2+1+0' is written roles=compute=2,intra_comm=1w,inter_send=1"},
        {{.op = MK_OP_AG_GEMM, .shape = {64, 64, 64}, .options = "sms=0"},
         "'sms=0' is not valid; it should look like sms=100"},
        {{.op = MK_OP_AG_GEMM, .shape = {64, 64, 64}, .options = "tile=8,8 sms=4x"},
         "'sms=4x' is not valid"},
        {{.op = MK_OP_AG_GEMM, .shape = {64, 64, 64}, .options = "sms=4"},
         "sms=4: CTAs on the host take no SMs"},
        {{.op = MK_OP_GEMM_RS, .shape = {64, 64, 64}, .a_offset = 1 << 20},
         "a_offset: gemm_rs does not look"},
        {{.op = MK_OP_AG_GEMM, .shape = {64, 64, 64}, .c_offset = 1 << 20},
         "c_offset: ag_gemm does not look whether C lies in the heap"},
        {{.op = MK_OP_GEMM_AR, .shape = {64, 64, 64}, .c_offset = 64},
         "C at offset 64 of the heap, 8192 bytes: not a block that mk_heap_alloc returned"},
        {{.op = MK_OP_AG_GEMM, .shape = {64, 64, 64}, .a_offset = 64},
         "not a block that mk_heap_alloc returned"},
        {{.op = MK_OP_RING_ATTENTION, .shape = {1, 64, 2, 2, 64}, .b_transposed = 1},
         "b_transposed: ring_attention has no B"},
        {{.op = MK_OP_GEMM_RS, .shape = {64, 64, 64}, .options = "b_scales=columns"},
         "b_scales=columns with dtype=bf16: scales are of dtype=fp8"},
        {{.op = MK_OP_GEMM_RS, .shape = {64, 64, 64}, .options = "b_scales=rows"},
         "'b_scales=rows' is not valid; it should be b_scales=blocks or b_scales=columns"},
        {{.op = MK_OP_MOE_FFN,
          .shape = {8, 64, 64, 4, 2},
          .b_transposed = 1,
          .options = "dtype=fp8 b_scales=columns"},
         "b_scales=columns: moe_ffn takes no scales of columns; they are of FP8 of ag_gemm, "
         "gemm_ar "
         "and gemm_rs"},
    };
    char long_options[1400];
    struct mk_comm *comm = open_alone(MK_VERSION_NUMBER);
    struct mk_spec good = spec_of(MK_OP_AG_GEMM);
    struct mk_plan *p;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        p = (struct mk_plan *)(void *)said;
        assert_int_equal(mk_plan_create(&p, comm, &bad[i].spec), -EINVAL);
        assert_null(p);
        if (!strstr(mk_error(comm), bad[i].says))
            fail_msg("%s: %s", bad[i].says, mk_error(comm));
    }
    memset(long_options, ' ', sizeof long_options - 1);
    long_options[sizeof long_options - 1] = '\0';
    good.options = long_options;
    assert_int_equal(mk_plan_create(&p, comm, &good), -EINVAL);
    assert_non_null(strstr(mk_error(comm), "options of 1399 letters"));
    good.options = "";
    assert_int_equal(mk_plan_create(&p, comm, &good), 0); /* it is still open */
    mk_comm_close(comm);
    assert_int_equal(mk_op_by_name("ag_gem"), -EINVAL);
    assert_string_equal(mk_op_shape((enum mk_op)99), "");
    assert_string_equal(mk_op_name((enum mk_op)99), "unknown op");
}

/* What a plan says of itself makes the same plan: a limit of SMs and the engine are among it. */
CASE(options_say_the_limit_of_sms_and_the_engine)
{
    struct mk_spec spec = {
        .op = MK_OP_AG_GEMM, .shape = {4096, 4096, 4096}, .options = "engine=mma sms=40"};
    struct mk_problem q;
    struct mk_plan p, again;
    char error[512], options[160], cut[20];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(spec_to_problem(&q, &spec, error, sizeof error), 0);
        assert_int_equal(q.sms_most, 40);
        assert_int_equal(q.engine, MK_ENGINE_MMA);
        q.exec = MK_EXEC_CUDA;
        q.sms = 132;
        q.topo = (struct mk_topo){1, 2, 0};
        assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
        spec_options(&p, options, sizeof options);
        assert_int_equal(strncmp(options, "sms=40 engine=mma tile=", 23), 0);
        assert_int_equal(spec_options(&p, cut, sizeof cut), -ENOSPC);
        assert_int_equal(spec_options(&p, options, sizeof options), 0);
        assert_in_range(mk_total_blocks(&p.problem.tuning.split), 1, 40);
        if (i)
            assert_memory_equal(&p, &again, sizeof p);
        again = p;
        spec.options = options;
    }
}

FIXTURE(folder_make, folder_remove)

/* The tree is built as docs/DESIGN.md says: nobody includes what is not theirs to include, core's
 * headers stand alone, and the roles compile for the GPU. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Who may include whom. */
static const struct {
    const char *folder;
    const char *may[8];
} rules[] = {
    {"core", {"core/"}},
    {"backends", {"backends/", "core/"}},
    {"tracer", {"tracer/", "core/"}},
    {"kernels", {"kernels/", "core/", "backends/", "tracer/"}},
    /* the emulated GPU runs kernels */
    {"sim", {"sim/", "core/", "backends/", "tracer/", "kernels/"}},
    {"tui", {"tui/", "tracer/reader.h", "tracer/live.h"}},
    {"experiments", {"experiments/", "core/", "backends/", "tracer/", "kernels/", "sim/", "tui/"}},
};

enum { RULES = sizeof rules / sizeof *rules };

/* Inside experiments/: which of its folders a folder includes, beside its own. There is no way back
 * from common/ to job/, nor from job/ to run/, bench/ and tune/. */
static const struct {
    const char *folder;
    const char *may[5];
} parts[] = {
    {"experiments/common", {NULL}},
    {"experiments/baselines", {NULL}},
    {"experiments/job", {"common/", "baselines/"}},
    {"experiments/ops", {"common/", "job/"}},
    {"experiments/run", {"common/", "job/"}},
    {"experiments/bench",
     {"common/", "job/", "run/", "baselines/"}}, /* a bench on the host is a run */
    {"experiments/tune", {"common/", "job/", "sim/"}},
    {"experiments/sim", {"common/"}},
    {"experiments/trace", {"common/"}},
    {"experiments/info", {"common/"}},
    {"experiments/results", {"common/", "job/"}}, /* an operator's collective is in job/op.h */
    {"experiments/sweep", {"common/", "info/", "job/", "results/"}},
};

enum { PARTS = sizeof parts / sizeof *parts };

static int is_source(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && (!strcmp(dot, ".c") || !strcmp(dot, ".h") || !strcmp(dot, ".cu") ||
                   !strcmp(dot, ".cuh"));
}

/* Calls `look` for every source file under `folder`. Returns how many there were. */
static uint32_t walk(const char *folder, void (*look)(const char *path, void *context),
                     void *context)
{
    DIR *d = opendir(folder);
    uint32_t files = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[512];
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        DIR *below = opendir(path);
        if (below) {
            closedir(below);
            files += walk(path, look, context);
        } else if (is_source(path)) {
            look(path, context);
            files++;
        }
    }
    if (d)
        closedir(d);
    return files;
}

static int at_root(void)
{
    if (access("core/cta.h", R_OK) == 0)
        return 1;
    print_message("skipped: this test reads the sources; run it in the repository's root\n");
    return 0;
}

struct findings {
    int rule;
    uint32_t includes, wrong;
};

/* Where an include leads: relative to the includer's folder, as the compiler looks first, or to the
 * root. */
static void resolve(const char *includer, const char *name, char *out, size_t size)
{
    const char *slash = strrchr(includer, '/');
    snprintf(out, size, "%.*s/%s", (int)(slash - includer), includer, name);
    if (access(out, R_OK))
        snprintf(out, size, "%s", name);
}

static int allowed(int rule, const char *path)
{
    for (int i = 0; i < 8 && rules[rule].may[i]; i++)
        if (!strncmp(path, rules[rule].may[i], strlen(rules[rule].may[i])))
            return 1;
    return 0;
}

static void look_at_includes(const char *path, void *context)
{
    struct findings *f = context;
    char line[1024], name[256], leads[512];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (int number = 1; fgets(line, sizeof line, file); number++) {
        char open;
        if (sscanf(line, " # include %c%255[^\">]", &open, name) != 2 ||
            (open != '"' && open != '<'))
            continue;
        int ours = open == '"';
        for (int i = 0; i < RULES; i++) /* angle brackets are no way round */
            ours |= !strncmp(name, rules[i].folder, strlen(rules[i].folder)) &&
                    name[strlen(rules[i].folder)] == '/';
        if (!ours)
            continue;
        f->includes++;
        resolve(path, name, leads, sizeof leads);
        if (access(leads, R_OK) || strstr(leads, "..") || !allowed(f->rule, leads)) {
            print_message("%s:%d includes %s\n", path, number, leads);
            f->wrong++;
        }
    }
    fclose(file);
}

/* 0 where `path` lies in a folder of experiments/ that `parts` does not know. */
static int part_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    for (int i = 0; i < PARTS; i++)
        if (strlen(parts[i].folder) == (size_t)(slash - path) &&
            !strncmp(path, parts[i].folder, (size_t)(slash - path)))
            return i + 1;
    return 0;
}

static void look_at_part(const char *path, void *context)
{
    struct findings *f = context;
    char line[1024], name[256];
    int part = part_of(path) - 1;
    if (!strcmp(path, "experiments/main.c") || !strcmp(path, "experiments/tui.c"))
        return; /* above all folders */
    if (part < 0) {
        print_message("%s lies in no folder of experiments/ that `parts` knows\n", path);
        f->wrong++;
        return;
    }
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (int number = 1; fgets(line, sizeof line, file); number++) {
        if (sscanf(line, " # include \"experiments/%255[^\"]", name) != 1)
            continue;
        const char *own = parts[part].folder + strlen("experiments/");
        int fine = !strncmp(name, own, strlen(own)) && name[strlen(own)] == '/';
        for (int i = 0; i < 5 && parts[part].may[i]; i++)
            fine |= !strncmp(name, parts[part].may[i], strlen(parts[part].may[i]));
        f->includes++;
        if (!fine) {
            print_message("%s:%d includes experiments/%s\n", path, number, name);
            f->wrong++;
        }
    }
    fclose(file);
}

static void folders_of_experiments_include_one_way(void **state)
{
    struct findings f = {0};
    if (!at_root())
        skip();
    uint32_t files = walk("experiments", look_at_part, &f);
    assert_int_equal(f.wrong, 0);
    assert_true(files > 50 && f.includes > files);
}

static void everybody_includes_what_is_theirs(void **state)
{
    uint32_t wrong = 0, files = 0, includes = 0;
    if (!at_root())
        skip();
    for (int i = 0; i < RULES; i++) {
        struct findings f = {.rule = i};
        files += walk(rules[i].folder, look_at_includes, &f);
        includes += f.includes;
        wrong += f.wrong;
    }
    assert_int_equal(wrong, 0);
    assert_true(files > 20 && includes > files); /* the walk did walk */
}

/* ---- operators ---- */

/* A line that names one operator, and is no comment. */
static void look_for_operators(const char *path, void *context)
{
    char line[1024];
    if (strstr(path, "/ops/"))
        return;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (int number = 1; fgets(line, sizeof line, file); number++) {
        const char *text = line + strspn(line, " "), *op = strstr(line, "MK_OP_");
        if (!op || op[6] < 'A' || op[6] > 'Z' || *text == '*' || !strncmp(text, "/*", 2))
            continue;
        print_message("%s:%d names an operator: its descriptor should say what this asks\n", path,
                      number);
        ++*(int *)context;
    }
    fclose(file);
}

static void operators_are_named_by_their_own_files_alone(void **state)
{
    int wrong = 0;
    if (!at_root())
        skip();
    for (int i = 0; i < RULES; i++)
        walk(rules[i].folder, look_for_operators, &wrong);
    assert_int_equal(wrong, 0);
}

/* ---- PTX ---- */

static void look_for_asm(const char *path, void *context)
{
    char line[1024];
    if (!strcmp(path, "kernels/ptx.cuh") || !strcmp(path, "kernels/hopper/wgmma.cuh") ||
        !strcmp(path, "kernels/mma/mma.cuh"))
        return;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (int number = 1; fgets(line, sizeof line, file); number++)
        if (strstr(line, "asm volatile") || strstr(line, "asm("))
            print_message("%s:%d holds PTX\n", path, number), ++*(uint32_t *)context;
    fclose(file);
}

/* So that whoever replaces those files (an engine's products have one of their own) runs the
 * kernels on something else. */
static void ptx_lies_in_three_files(void **state)
{
    uint32_t wrong = 0;
    if (!at_root())
        skip();
    assert_true(walk("kernels", look_for_asm, &wrong) > 10);
    assert_int_equal(wrong, 0);
}

/* ---- compilers ---- */

/* Runs a shell command that reads `source`. Returns its status, and what it says. */
static int try_compile(const char *command, const char *source, char *said, size_t size)
{
    char path[] = "/tmp/house-XXXXXX.cu", line[1024];
    int fd = mkstemps(path, 3);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "w");
    fputs(source, f);
    fclose(f);
    snprintf(line, sizeof line, "%s %s 2>&1", command, path);
    FILE *p = popen(line, "r");
    assert_non_null(p);
    size_t n = fread(said, 1, size - 1, p);
    said[n] = '\0';
    while (fread(line, 1, sizeof line, p) > 0)
        ;
    int status = pclose(p);
    unlink(path);
    return status;
}

/* The same; what it says goes to this test's output where it fails. */
static int compile(const char *command, const char *source)
{
    char said[4000];
    int status = try_compile(command, source, said, sizeof said);
    if (status)
        print_message("%s", said);
    return status;
}

static int have(const char *program)
{
    char line[600];
    snprintf(line, sizeof line, "command -v %s >/dev/null 2>&1", program);
    return system(line) == 0;
}

static void look_at_registry(const char *path, void *context)
{
    char command[700], line[1024];
    const char *dot = strrchr(path, '.');
    if (strcmp(dot, ".cu"))
        return;
    /* the emulated Hopper's headers stand in for CUDA's */
    snprintf(command, sizeof command,
             "g++ -std=c++17 -x c++ -MM -I sim/hopper/include -I. -D__CUDACC__ -DMK_EMULATED %s "
             "2>&1",
             path);
    FILE *p = popen(command, "r");
    int lines = 0, sees = 0;
    assert_non_null(p);
    for (; fgets(line, sizeof line, p); lines++)
        sees |= strstr(line, "core/ops/registry.h") != NULL;
    if (pclose(p) || !lines)
        fail_msg("%s: what it includes could not be found out", path);
    if (sees)
        fail_msg("%s includes core/ops/registry.h: every new operator would compile it anew", path);
    ++*(int *)context;
}

/* nvcc takes minutes for all kernels. */
static void a_new_operator_compiles_no_kernel_anew(void **state)
{
    int kernels = 0;
    if (!at_root())
        skip();
    if (!have("g++")) {
        print_message("skipped: no g++\n");
        skip();
    }
    walk("kernels", look_at_registry, &kernels);
    assert_true(kernels > 4);
}

#define STRICT                                                                                     \
    " -I. -Wall -Wextra -Werror -Wno-unused-parameter -Wno-unused-function -fsyntax-only "

static void compile_alone(const char *path, void *context)
{
    char source[600];
    const char *dot = strrchr(path, '.');
    if (strcmp(dot, ".h"))
        return;
    /* Twice: once to find what it needs, once to find that it has a guard. */
    snprintf(source, sizeof source, "#include \"%s\"\n#include \"%s\"\n", path, path);
    if (compile("${CC:-cc} -std=gnu11 -x c" STRICT, source)) {
        print_message("%s does not compile alone\n", path);
        ++*(uint32_t *)context;
    }
}

static void headers_of_core_compile_alone(void **state)
{
    uint32_t wrong = 0;
    if (!at_root())
        skip();
    if (!have("${CC:-cc}")) {
        print_message("skipped: no C compiler\n");
        skip();
    }
    assert_true(walk("core", compile_alone, &wrong) > 10);
    assert_int_equal(wrong, 0);
}

static void the_public_header_is_also_cplusplus(void **state)
{
    if (!at_root())
        skip();
    if (!have("${CXX:-c++}")) {
        print_message("skipped: no C++ compiler\n");
        skip();
    }
    assert_int_equal(
        compile("${CXX:-c++} -std=c++17 -x c++" STRICT,
                "#include \"core/mkernel.h\"\nint main() { return mk_wait(nullptr); }\n"),
        0);
}

/* nvcc where make found it, or where CUDA lies. */
static const char *find_nvcc(void)
{
    static char path[512];
    const char *home = getenv("CUDA_HOME"), *named = getenv("NVCC");
    const char *const places[] = {named, home, "/usr/local/cuda", "/usr/local/cuda-13.0",
                                  "/usr/local/cuda-12.9"};
    for (int i = 0; i < 5; i++) {
        if (!places[i] || !*places[i])
            continue;
        snprintf(path, sizeof path, i ? "%s/bin/nvcc" : "%s", places[i]);
        if (access(path, X_OK) == 0)
            return path;
    }
    return have("nvcc") ? "nvcc" : NULL;
}

/* A kernel that calls the roles of some operators. */
static const struct {
    const char *source;
} role_kernels[] = {
    {"#include \"core/roles/ag_gemm.h\"\n"
     "__global__ void ag_gemm(ag_gemm_plan p, mk_cta c, int *out) {\n"
     "    mk_tile t;\n"
     "    ag_gemm_tile(&p, blockIdx.x, &t);\n"
     "    *out = ag_gemm_before(&p, &c, &t, 0) + ag_gemm_intra_comm(&p, &c) + "
     "ag_gemm_inter_send(&p, &c);\n"
     "}\n"},
    {"#include \"core/roles/gemm_rs.h\"\n"
     "#include \"core/roles/gemm_ar.h\"\n"
     "__global__ void reduce(gemm_rs_plan p, mk_cta c, int *out) {\n"
     "    mk_tile t;\n"
     "    gemm_rs_tile(&p, blockIdx.x, &t);\n"
     "    gemm_rs_after(&p, &c, &t, 1);\n"
     "    *out = gemm_rs_before(&p, &c, &t) + gemm_rs_inter_send(&p, &c) +\n"
     "           (int)gemm_rs_tile_offset(&p, &t, c.epoch);\n"
     "}\n"
     "__global__ void all_reduce(gemm_ar_plan p, mk_cta c, int *out) {\n"
     "    mk_tile t;\n"
     "    gemm_rs_tile(&p.rs, blockIdx.x, &t);\n"
     "    gemm_ar_after(&p, &c, &t, 0, t.rows, 1);\n"
     "    *out = gemm_ar_inter_send(&p, &c) + gemm_ar_intra_comm(&p, &c);\n"
     "}\n"},
    {"#include \"core/roles/ring_attention.h\"\n"
     "__global__ void attend(ring_attention_plan p, mk_cta c, int *out) {\n"
     "    mk_tile t;\n"
     "    ring_attention_tile(&p, blockIdx.x, &t);\n"
     "    *out = ring_attention_before(&p, &c, &t) + ring_attention_intra_comm(&p, &c) +\n"
     "           ring_attention_inter_send(&p, &c);\n"
     "}\n"},
    {"#include \"core/roles/moe_dispatch_gemm.h\"\n"
     "__global__ void dispatch(moe_dispatch_gemm_plan p, mk_cta c, int *out) {\n"
     "    mk_tile t;\n"
     "    moe_tile(&p, &c, blockIdx.x, &t);\n"
     "    *out = moe_before(&p, &c, &t) + moe_intra_comm(&p.dispatch, &c) +\n"
     "           moe_inter_send(&p.dispatch, &c);\n"
     "}\n"},
    {"#include \"core/roles/moe_ffn.h\"\n"
     "__global__ void layer(moe_ffn_plan p, mk_cta c, int *out) {\n"
     "    mk_tile t;\n"
     "    moe_ffn_tile(&p, &c, blockIdx.x, &t);\n"
     "    moe_ffn_after(&p, &c, &t, 1);\n"
     "    *out = moe_ffn_before(&p, &c, &t) + moe_ffn_inter_reduce(&p, &c);\n"
     "}\n"},
};

enum { ROLE_KERNELS = sizeof role_kernels / sizeof *role_kernels };

/* The calls of the CTA interface that a GPU need not have (core/cta_*.h), and what stands in for
 * them here. */
static const struct {
    const char *name, *stub;
} extensions[] = {
    {"mk_cta_settle", "__device__ int mk_cta_settle(mk_cta *) { return 0; }\n"},
    {"mk_cta_combine", "__device__ void mk_cta_combine(mk_cta *, const mk_combine *) {}\n"},
    {"mk_cta_add_up", "__device__ void mk_cta_add_up(mk_cta *, const mk_sums *) {}\n"},
    {"mk_cta_wait_rows",
     "__device__ int mk_cta_wait_rows(mk_cta *, const mk_places *, uint64_t, uint32_t, uint32_t, "
     "uint32_t, mk_cause) { return 0; }\n"},
    {"mk_cta_route", "__device__ void mk_cta_route(mk_cta *, const mk_route *) {}\n"},
    {"mk_cta_copy_listed",
     "__device__ void mk_cta_copy_listed(mk_cta *, uint32_t, const mk_rows *) {}\n"},
    {"mk_cta_tell_rows",
     "__device__ void mk_cta_tell_rows(mk_cta *, uint32_t, uint64_t, uint32_t, uint32_t, "
     "const mk_places *) {}\n"},
    {"mk_cta_load", "__device__ uint32_t mk_cta_load(mk_cta *, uint64_t) { return 0; }\n"},
    {"mk_cta_load64", "__device__ uint64_t mk_cta_load64(mk_cta *, uint64_t) { return 0; }\n"},
};

enum { EXTENSIONS = sizeof extensions / sizeof *extensions };

struct gpu_calls {
    char includes[1000];         /* of the files that implement calls */
    int implemented[EXTENSIONS]; /* by the GPU, as far as they say */
};

static void look_at_calls(const char *path, void *context)
{
    struct gpu_calls *g = context;
    char line[1024], call[64];
    if (strncmp(path, "kernels/cta", 11) || strcmp(strrchr(path, '.'), ".cuh"))
        return;
    size_t n = strlen(g->includes);
    snprintf(g->includes + n, sizeof g->includes - n, "#include \"%s\"\n", path);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        for (int i = 0; i < EXTENSIONS; i++) {
            snprintf(call, sizeof call, " %s(struct mk_cta *", extensions[i].name);
            g->implemented[i] |= strstr(line, call) != NULL;
        }
    fclose(file);
}

static void assert_calls_are_known(const char *path, void *context)
{
    char line[1024], name[64];
    if (strncmp(path, "core/cta_", 9))
        return;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        const char *call = strstr(line, " mk_cta_");
        if (!call || !strstr(line, "(struct mk_cta *") || sscanf(call, " %63[a-z0-9_]", name) != 1)
            continue;
        int known = 0;
        for (int i = 0; i < EXTENSIONS; i++)
            known |= !strcmp(name, extensions[i].name);
        if (!known)
            fail_msg("%s declares %s, which this test does not know", path, name);
        ++*(int *)context;
    }
    fclose(file);
}

/* Roles compile against the GPU's own CTA. One that makes a call which the GPU lacks does not, and
 * the compiler names that call; but for such calls it does. */
static void roles_compile_for_the_gpu(void **state)
{
    if (!at_root())
        skip();
    static struct gpu_calls gpu;
    int declared = 0, on_gpu = 0;
    walk("kernels", look_at_calls, &gpu);
    walk("core", assert_calls_are_known, &declared);
    assert_int_equal(declared, EXTENSIONS);
    const char *nvcc = find_nvcc();
    if (!nvcc) {
        print_message("skipped: no nvcc\n");
        skip();
    }
    static char source[8000], command[700], said[4000];
    char lacks[8000] = "";
    snprintf(command, sizeof command,
             "nice %s -std=c++17 -O1 -Xcicc -O1 -I. -gencode=arch=compute_90a,code=compute_90a "
             "-Werror all-warnings "
             "-Wno-deprecated-gpu-targets -Xcudafe --diag_suppress=177 --ptx -o /dev/null",
             nvcc);
    for (int k = 0; k < ROLE_KERNELS; k++) {
        int missing = 0;
        snprintf(source, sizeof source, "%s%s", gpu.includes, role_kernels[k].source);
        if (try_compile(command, source, said, sizeof said) == 0) {
            on_gpu++;
            continue;
        }
        for (int i = 0; i < EXTENSIONS; i++) {
            snprintf(lacks, sizeof lacks, "\"%s\" is undefined", extensions[i].name);
            missing += !gpu.implemented[i] && strstr(said, lacks);
        }
        if (!missing)
            fail_msg("%s", said);
        snprintf(source, sizeof source,
                 "%s#include \"core/cta_combine.h\"\n#include \"core/cta_route.h\"\n",
                 gpu.includes);
        for (int i = 0; i < EXTENSIONS; i++)
            if (!gpu.implemented[i])
                strcat(source, extensions[i].stub);
        strcat(source, role_kernels[k].source);
        if (try_compile(command, source, said, sizeof said))
            fail_msg("%s", said);
    }
    /* operators whose every call it has; one that has a kernel is among them, or does not build */
    assert_true(on_gpu >= 3);
}

/* `make format-check` says nothing. It needs the one version of clang-format that is pinned. */
static void the_tree_is_formatted(void **state)
{
    if (!at_root())
        skip();
    if (system("git rev-parse --git-dir >/dev/null 2>&1")) {
        print_message("skipped: no git checkout, so nobody says which files are the tree's\n");
        skip();
    }
    int version = system("env -u MAKEFLAGS -u MAKELEVEL make -s format-version >/dev/null 2>&1");
    if (version) {
        print_message("skipped: no clang-format 14 here\n");
        skip();
    }
    assert_int_equal(system("said=$(env -u MAKEFLAGS -u MAKELEVEL make -s format-check 2>&1) || "
                            "{ printf '%s\\n' \"$said\" | head -n 20; exit 1; }"),
                     0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tree_is_formatted),
        cmocka_unit_test(everybody_includes_what_is_theirs),
        cmocka_unit_test(folders_of_experiments_include_one_way),
        cmocka_unit_test(operators_are_named_by_their_own_files_alone),
        cmocka_unit_test(ptx_lies_in_three_files),
        cmocka_unit_test(a_new_operator_compiles_no_kernel_anew),
        cmocka_unit_test(headers_of_core_compile_alone),
        cmocka_unit_test(the_public_header_is_also_cplusplus),
        cmocka_unit_test(roles_compile_for_the_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

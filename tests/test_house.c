/* The tree is built as docs/DESIGN.md says: nobody includes what is not theirs to include, core's headers
 * stand alone, and the roles compile for the GPU. */
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
    {"sim", {"sim/", "core/", "backends/", "tracer/"}},
    {"tui", {"tui/", "tracer/reader.h", "tracer/live.h"}},
    {"experiments", {"experiments/", "core/", "backends/", "tracer/", "kernels/", "sim/", "tui/"}},
};

enum { RULES = sizeof rules / sizeof *rules };

static int is_source(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && (!strcmp(dot, ".c") || !strcmp(dot, ".h") || !strcmp(dot, ".cu") || !strcmp(dot, ".cuh"));
}

/* Calls `look` for every source file under `folder`. Returns how many there were. */
static uint32_t walk(const char *folder, void (*look)(const char *path, void *context), void *context)
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

/* Where an include leads: relative to the includer's folder, as the compiler looks first, or to the root. */
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
        if (sscanf(line, " # include %c%255[^\">]", &open, name) != 2 || (open != '"' && open != '<'))
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

/* ---- compilers ---- */

/* Runs a shell command that reads `source`; what it says goes to this test's output where it fails. Returns
 * its status. */
static int compile(const char *command, const char *source)
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
    char said[4000];
    size_t n = fread(said, 1, sizeof said - 1, p);
    said[n] = '\0';
    while (fread(line, 1, sizeof line, p) > 0)
        ;
    int status = pclose(p);
    unlink(path);
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

#define STRICT " -I. -Wall -Wextra -Werror -Wno-unused-parameter -Wno-unused-function -fsyntax-only "

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
    assert_int_equal(compile("${CXX:-c++} -std=c++17 -x c++" STRICT,
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

static void add_include(const char *path, void *context)
{
    char *source = context;
    snprintf(source + strlen(source), 4000 - strlen(source), "#include \"%s\"\n", path);
}

/* The roles against a CTA of nothing but the interface: what they use beyond core/cta.h would not compile. */
static void roles_compile_for_the_gpu(void **state)
{
    if (!at_root())
        skip();
    const char *nvcc = find_nvcc();
    if (!nvcc) {
        print_message("skipped: no nvcc\n");
        skip();
    }
    static char source[8000], command[700];
    snprintf(source, sizeof source,
             "#include \"core/cta.h\"\n"
             "struct mk_cta { MK_CTA_FIELDS; };\n"
             "__device__ int mk_cta_wait(mk_cta *, uint32_t, uint64_t, mk_cause) { return 0; }\n"
             "__device__ int mk_cta_wait_all(mk_cta *, uint32_t, uint32_t, uint64_t, mk_cause) { return 0; }\n"
             "__device__ void mk_cta_copy(mk_cta *, uint32_t, const mk_chunk *) {}\n"
             "__device__ void mk_cta_copy_rows(mk_cta *, uint32_t, const mk_chunk *, uint32_t, uint64_t) {}\n"
             "__device__ void mk_cta_reduce(mk_cta *, const mk_sum *) {}\n"
             "__device__ void mk_cta_combine(mk_cta *, const mk_combine *) {}\n"
             "__device__ void mk_cta_route(mk_cta *, const mk_route *) {}\n"
             "__device__ uint32_t mk_cta_load(mk_cta *, uint64_t) { return 0; }\n"
             "__device__ uint64_t mk_cta_load64(mk_cta *, uint64_t) { return 0; }\n"
             "__device__ void mk_cta_signal(mk_cta *, uint32_t, uint32_t, uint64_t) {}\n"
             "__device__ void mk_cta_add(mk_cta *, uint32_t, uint32_t, uint64_t) {}\n"
             "__device__ int mk_cta_put(mk_cta *, uint32_t, const mk_chunk *, uint32_t) { return 0; }\n"
             "__device__ int mk_cta_drain(mk_cta *) { return 0; }\n");
    assert_true(walk("core/roles", add_include, source) > 0);
    size_t n = strlen(source);
    snprintf(source + n, sizeof source - n,
             "__global__ void roles(ag_gemm_plan p, mk_cta c, int *out) {\n"
             "    mk_tile t;\n"
             "    ag_gemm_tile(&p, blockIdx.x, &t);\n"
             "    *out = ag_gemm_before(&p, &c, &t, 0) + ag_gemm_intra_comm(&p, &c) + ag_gemm_inter_send(&p, &c);\n"
             "}\n"
             "__global__ void reduce(gemm_rs_plan p, mk_cta c, int *out) {\n"
             "    mk_tile t;\n"
             "    gemm_rs_tile(&p, blockIdx.x, &t);\n"
             "    gemm_rs_after(&p, &c, &t, 1);\n"
             "    *out = gemm_rs_inter_reduce(&p, &c) + (int)gemm_rs_tile_offset(&p, &t, c.epoch);\n"
             "}\n"
             "__global__ void all_reduce(gemm_ar_plan p, mk_cta c, int *out) {\n"
             "    *out = gemm_ar_inter_reduce(&p, &c) + gemm_ar_intra_comm(&p, &c);\n"
             "}\n"
             "__global__ void attend(ring_attention_plan p, mk_cta c, int *out) {\n"
             "    mk_tile t;\n"
             "    ring_attention_tile(&p, blockIdx.x, &t);\n"
             "    *out = ring_attention_before(&p, &c, &t) + ring_attention_intra_comm(&p, &c) +\n"
             "           ring_attention_inter_send(&p, &c);\n"
             "}\n"
             "__global__ void dispatch(moe_dispatch_gemm_plan p, mk_cta c, int *out) {\n"
             "    mk_tile t;\n"
             "    moe_tile(&p, &c, blockIdx.x, &t);\n"
             "    *out = moe_before(&p, &c, &t) + moe_intra_comm(&p.dispatch, &c) +\n"
             "           moe_inter_send(&p.dispatch, &c);\n"
             "}\n"
             "__global__ void layer(moe_ffn_plan p, mk_cta c, int *out) {\n"
             "    mk_tile t;\n"
             "    moe_ffn_tile(&p, &c, blockIdx.x, &t);\n"
             "    moe_ffn_after(&p, &c, &t, 1);\n"
             "    *out = moe_ffn_before(&p, &c, &t) + moe_ffn_intra_comm(&p, &c) + moe_ffn_inter_reduce(&p, &c);\n"
             "}\n");
    snprintf(command, sizeof command,
             "nice %s -std=c++17 -I. -gencode=arch=compute_90a,code=sm_90a -Werror all-warnings --cubin -o "
             "/dev/null",
             nvcc);
    assert_int_equal(compile(command, source), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everybody_includes_what_is_theirs),
        cmocka_unit_test(headers_of_core_compile_alone),
        cmocka_unit_test(the_public_header_is_also_cplusplus),
        cmocka_unit_test(roles_compile_for_the_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The tree is built as docs/DESIGN.md says: nobody includes what is not theirs to include, core's
 * headers stand alone, and the roles compile for the GPU. */
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/helpers/test.h"
#include "core/ops/registry.h"

/* Who may include whom. */
static const struct {
    const char *folder;
    const char *may[9];
} rules[] = {
    {"core", {"core/"}},
    {"backends", {"backends/", "core/"}},
    {"tracer", {"tracer/", "core/"}},
    {"kernels", {"kernels/", "core/", "backends/", "tracer/"}},
    /* the emulated GPU runs kernels */
    {"sim", {"sim/", "core/", "backends/", "tracer/", "kernels/"}},
    {"tui",
     {"tui/", "core/base/clock.h", "core/base/scoped.h", "core/base/sentence.h",
      "core/base/sorted.h", "tracer/query.h", "tracer/reader.h", "tracer/why.h", "tracer/live.h"}},
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
    {"experiments/baselines", {"common/"}},
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
    if (access("core/cta/cta.h", R_OK) == 0)
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
    for (int i = 0; i < 9 && rules[rule].may[i]; i++)
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

/* Folders that include each other, both ways. There may be fewer, never more. */
static const char *const both_ways[][2] = {
    {"backends", "backends/efa"}, /* whoever opens a fabric knows each of them */
    {"backends", "backends/verbs"}, {"core/model", "core/ops"}, {"core/model", "core/plan"},
    {"core/ops", "core/plan"}, /* a plan asks its operator's descriptor */
    {"sim", "sim/hopper"},
};
enum { BOTH_WAYS = sizeof both_ways / sizeof *both_ways, WAYS = 400 };

struct ways {
    char from[WAYS][64], to[WAYS][64];
    int count;
};

static int has_way(const struct ways *w, const char *from, const char *to)
{
    for (int i = 0; i < w->count; i++)
        if (!strcmp(w->from[i], from) && !strcmp(w->to[i], to))
            return 1;
    return 0;
}

static void note_ways(const char *path, void *context)
{
    struct ways *w = context;
    char line[1024], to[256], from[64];
    snprintf(from, sizeof from, "%.*s", (int)(strrchr(path, '/') - path), path);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, " # include \"%255[^\"]", to) != 1 || !strchr(to, '/') || access(to, R_OK))
            continue;
        *strrchr(to, '/') = '\0';
        if (!strcmp(from, to) || has_way(w, from, to))
            continue;
        assert_true(w->count < WAYS);
        snprintf(w->from[w->count], sizeof w->from[0], "%s", from);
        snprintf(w->to[w->count++], sizeof w->to[0], "%.63s", to);
    }
    fclose(file);
}

static void folders_include_one_way(void **state)
{
    static struct ways w;
    int wrong = 0;
    if (!at_root())
        skip();
    w.count = 0;
    for (int i = 0; i < RULES; i++)
        walk(rules[i].folder, note_ways, &w);
    assert_true(w.count > 50);
    for (int i = 0; i < w.count; i++) {
        const char *from = w.from[i], *to = w.to[i];
        int known = strcmp(from, to) > 0 || !has_way(&w, to, from);
        for (int k = 0; k < BOTH_WAYS && !known; k++)
            known = !strcmp(both_ways[k][0], from) && !strcmp(both_ways[k][1], to);
        if (!known) {
            print_message("%s includes %s, and %s includes %s\n", from, to, to, from);
            wrong++;
        }
    }
    for (int k = 0; k < BOTH_WAYS; k++)
        if (!has_way(&w, both_ways[k][0], both_ways[k][1]) ||
            !has_way(&w, both_ways[k][1], both_ways[k][0]))
            print_message("%s and %s include each other no more: take them out of `both_ways`\n",
                          both_ways[k][0], both_ways[k][1]);
    assert_int_equal(wrong, 0);
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

static int have(const char *program)
{
    char line[600];
    snprintf(line, sizeof line, "command -v %s >/dev/null 2>&1", program);
    return system(line) == 0;
}

/* ---- operators ---- */

static const char *const operators[] = {
#define MK_OPERATOR(name, NAME, where) #name,
    MK_OPERATORS(MK_OPERATOR)
#undef MK_OPERATOR
};
enum { OPERATORS = sizeof operators / sizeof *operators };

/* Files that name an operator though they are not its own, and in how many lines at most: it may
 * become less, never more. */
static const struct {
    const char *path;
    int lines;
} exceptions[] = {
    {"core/mkernel.h", 9},    /* calls with an operator's own arguments, for those who write C */
    {"core/model/gemm.h", 7}, /* the operators' own parts of the quick model */
    {"core/model/moe.c", 10}, /* dispatch is the first part of the others */
    {"experiments/sim/calibrate_measure.c", 9}, /* shapes that were chosen for what they tell */
};
enum { EXCEPTIONS = sizeof exceptions / sizeof *exceptions };

/* Whether one of the words between '_' of an identifier, or several, are an operator's name. */
static const char *operator_in(const char *word, size_t length)
{
    for (int i = 0; i < OPERATORS; i++) {
        size_t n = strlen(operators[i]);
        for (size_t at = 0; at + n <= length; at++)
            if (!memcmp(word + at, operators[i], n) && (!at || word[at - 1] == '_') &&
                (at + n == length || word[at + n] == '_'))
                return operators[i];
    }
    return NULL;
}

/* An operator that a line of code names: as MK_OP_..., inside an identifier, or as a whole string;
 * not in a comment, in a sentence, or in what it includes. `inside`: of a comment, kept from line
 * to line. NULL: none. */
static const char *operator_of_line(const char *line, int *inside)
{
    static char upper[64];
    if (!*inside && !strncmp(line + strspn(line, " "), "#include", 8))
        return NULL;
    for (const char *c = line; *c; c++) {
        if (*inside || !strncmp(c, "/*", 2)) {
            const char *end = strstr(*inside ? c : c + 2, "*/");
            *inside = !end;
            if (!end)
                return NULL;
            c = end + 1;
        } else if (!strncmp(c, "//", 2)) {
            return NULL;
        } else if (*c == '"') {
            const char *begin = ++c;
            while (*c && *c != '"')
                c += *c == '\\' && c[1] ? 2 : 1;
            for (int i = 0; i < OPERATORS; i++)
                if (strlen(operators[i]) == (size_t)(c - begin) &&
                    !memcmp(operators[i], begin, (size_t)(c - begin)))
                    return operators[i];
            if (!*c)
                return NULL;
        } else if (isalpha((unsigned char)*c) || *c == '_') {
            size_t length = 1;
            while (isalnum((unsigned char)c[length]) || c[length] == '_')
                length++;
            if (length > 6 && !memcmp(c, "MK_OP_", 6) && isupper((unsigned char)c[6])) {
                snprintf(upper, sizeof upper, "%.*s", (int)length, c);
                return upper;
            }
            const char *op = operator_in(c, length);
            if (op)
                return op;
            c += length - 1;
        }
    }
    return NULL;
}

static void look_for_operators(const char *path, void *context)
{
    char line[1024];
    const char *name = strrchr(path, '/') + 1;
    int inside = 0, lines = 0, most = 0, first = 0;
    static const char *const own[] = {"/ops/", "core/roles/", "kernels/sums/", "kernels/moe/",
                                      "kernels/attention/"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strstr(path, own[i]))
            return;
    for (int i = 0; i < OPERATORS; i++)
        if (strstr(name, operators[i]))
            return;
    for (int i = 0; i < EXCEPTIONS; i++)
        if (!strcmp(exceptions[i].path, path))
            most = exceptions[i].lines;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (int number = 1; fgets(line, sizeof line, file); number++) {
        const char *op = operator_of_line(line, &inside);
        if (!op)
            continue;
        first = first ? first : number;
        if (++lines > most)
            print_message("%s:%d names %s: its descriptor should say what this asks\n", path,
                          number, op);
    }
    fclose(file);
    if (lines > most)
        ++*(int *)context;
    else if (lines < most)
        print_message("%s names operators in %d lines, of %d allowed: lower that in `exceptions`\n",
                      path, lines, most);
}

static void operators_are_named_by_their_own_files_alone(void **state)
{
    int wrong = 0, inside = 0;
    assert_string_equal(operator_of_line("    if (!strcmp(name, \"all_gather\"))", &inside),
                        "all_gather");
    assert_string_equal(operator_of_line("    x = mk_gemm_rs_plan();", &inside), "gemm_rs");
    assert_string_equal(operator_of_line("case MK_OP_GEMM_AR:", &inside), "MK_OP_GEMM_AR");
    assert_null(operator_of_line("    \"mkernel run ag_gemm --check\" /* gemm_rs", &inside));
    assert_int_equal(inside, 1);
    assert_null(operator_of_line(" * of moe_ffn */ int x;", &inside));
    assert_int_equal(inside, 0);
    if (!at_root())
        skip();
    for (int i = 0; i < RULES; i++)
        walk(rules[i].folder, look_for_operators, &wrong);
    assert_int_equal(wrong, 0);
}

/* ---- cycles ---- */

/* The largest set of files of a folder that all call each other in the end, as their objects say.
 * It may become smaller, never larger; folders that are not here have none of more than 1. Files
 * that are moved bring theirs along. */
static const struct {
    const char *folder;
    int most;
} circles[] = {
    {"backends", 2},         {"backends/efa", 4},
    {"backends/verbs", 2},   {"core/comm", 2},
    {"core/plan", 2},        {"experiments/bench", 2},
    {"experiments/sim", 2},  {"experiments/trace", 2},
    {"experiments/tune", 3}, {"sim", 2},
    {"sim/hopper", 2},       {"sim/timed", 4},
    {"tracer", 2},           {"tui", 3},
};
enum { CIRCLES = sizeof circles / sizeof *circles, MOST_FILES = 64 };

struct symbol {
    char *name;
    int file; /* that defines it, or asks for it */
};

static int symbol_order(const void *x, const void *y)
{
    return strcmp(((const struct symbol *)x)->name, ((const struct symbol *)y)->name);
}

struct folder_objects {
    char file[MOST_FILES][512];
    int files;
    struct symbol defined[20000], wanted[20000];
    size_t defines, wants;
};

static void read_objects(struct folder_objects *o, const char *folder)
{
    char command[1300], line[4096], path[512], name[3000], type;
    memset(o, 0, sizeof *o);
    snprintf(command, sizeof command,
             "ls %s/*.o 2>/dev/null | grep -v '\\.cu\\.o$' | xargs -r nm -A -P", folder);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    while (fgets(line, sizeof line, p)) {
        if (sscanf(line, "%511[^:]: %2999s %c", path, name, &type) != 3)
            continue;
        if (!o->files || strcmp(o->file[o->files - 1], path) != 0) {
            assert_true(o->files < MOST_FILES);
            snprintf(o->file[o->files++], sizeof o->file[0], "%s", path);
        }
        int defines = strchr("TDBRCVG", type) != NULL;
        if (!defines && type != 'U')
            continue;
        assert_true(o->defines < 20000 && o->wants < 20000);
        struct symbol *s = defines ? &o->defined[o->defines++] : &o->wanted[o->wants++];
        *s = (struct symbol){strdup(name), o->files - 1};
    }
    pclose(p);
    qsort(o->defined, o->defines, sizeof *o->defined, symbol_order);
}

/* The largest circle of calls among them; its members in `who`, a bit a file. */
static int largest_circle(const struct folder_objects *o, uint64_t *who)
{
    uint64_t reach[MOST_FILES] = {0};
    int most = 1;
    for (size_t i = 0; i < o->wants; i++) {
        const struct symbol *s =
            bsearch(&o->wanted[i], o->defined, o->defines, sizeof *s, symbol_order);
        if (s)
            reach[o->wanted[i].file] |= 1ull << s->file;
    }
    for (int by = 0; by < o->files; by++)
        for (int i = 0; i < o->files; i++)
            if (reach[i] >> by & 1)
                reach[i] |= reach[by];
    *who = 0;
    for (int i = 0; i < o->files; i++) {
        uint64_t circle = 1ull << i;
        for (int j = 0; j < o->files; j++)
            if (reach[i] >> j & 1 && reach[j] >> i & 1)
                circle |= 1ull << j;
        if (__builtin_popcountll(circle) > most) {
            most = __builtin_popcountll(circle);
            *who = circle;
        }
    }
    return most;
}

/* Calls `look` for the folders below `folder`. */
static void walk_folders(const char *folder, void (*look)(const char *folder, void *context),
                         void *context)
{
    DIR *d = opendir(folder);
    if (d)
        look(folder, context);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        DIR *below = e->d_name[0] == '.' ? NULL : opendir(path);
        if (below) {
            closedir(below);
            walk_folders(path, look, context);
        }
    }
    if (d)
        closedir(d);
}

static char build[512]; /* where this program lies, without tests/ */

static void look_at_circles(const char *folder, void *context)
{
    static struct folder_objects o;
    char path[1100];
    int most = 1;
    uint64_t who;
    snprintf(path, sizeof path, "%s/%s", build, folder);
    read_objects(&o, path);
    for (int i = 0; i < CIRCLES; i++)
        if (!strcmp(circles[i].folder, folder))
            most = circles[i].most;
    int found = largest_circle(&o, &who);
    if (found > most) {
        print_message("%s: %d files call each other in a circle, of %d allowed:", folder, found,
                      most);
        for (int i = 0; i < o.files; i++)
            if (who >> i & 1)
                print_message(" %s", strrchr(o.file[i], '/') + 1);
        print_message("\n");
        ++((int *)context)[0];
    } else if (found < most && o.files) {
        print_message("%s: %d files call each other in a circle, of %d allowed: lower that in "
                      "`circles`\n",
                      folder, found, most);
    }
    ((int *)context)[1] += o.files;
    for (size_t i = 0; i < o.defines; i++)
        free(o.defined[i].name);
    for (size_t i = 0; i < o.wants; i++)
        free(o.wanted[i].name);
}

static void files_of_a_folder_call_one_way(void **state)
{
    int found[2] = {0};
    if (!at_root())
        skip();
    if (!have("nm")) {
        print_message("skipped: no nm\n");
        skip();
    }
    for (int i = 0; i < RULES; i++)
        if (strcmp(rules[i].folder, "kernels") != 0) /* C++: names are mangled, and all is inline */
            walk_folders(rules[i].folder, look_at_circles, found);
    assert_int_equal(found[0], 0);
    assert_true(found[1] > 100);
}

/* ---- a quick tier ---- */

/* tests/quick.sh finds the tests that a change touches, whatever they are written in, the nearest
 * ones among those that fit into a minute, and no others; of a file that touches none it says so. */
static void quick_finds_what_a_change_touches(void **state)
{
    static const struct {
        const char *file, *touches, *not ; /* without `touches`: nothing is known of it */
    } cases[] = {
        {"experiments/results/statistics.c", "test_statistics", "test_plan"}, /* its header */
        {"tests/test_plan.c", "test_plan", "test_statistics"},                /* itself */
        {"tests/helpers/trace_parts.h", "test_trace_reader", "test_plan"},    /* a helper */
        {"tui/layout.c", "test_tui_golden", "test_plan"},                     /* the folder */
        {"backends/softnic/options.c", "test_softnic_faults", "test_tuning"},
        {"experiments/tune/tune_report.c", "test_tune", "test_softnic_rc"}, /* the subcommand */
        {"core/base.h", "test_tuning", "test_statistics"},                  /* by way of another */
        {"tests/helpers/command.h", "test_survive", "test_plan"},
        {"docs/GUIDE.md", "test_guide", "test_plan"},          /* named */
        {"tracer/views.sql", "test_trace_views", "test_plan"}, /* embedded */
        {"experiments/machines/8xH200-efa", "test_machine", "test_tui_golden"},
        {"core/plan/tuning.plans", "fuzz_tuning.sh", "test_statistics"}, /* in a fuzzer, too */
        {"core/plan/tuning_file.c", "test_python_numpy.sh", "test_statistics"}, /* below all */
        {"core/comm/launcher.c", "test_launchers.sh", "test_statistics"},
        {"experiments/python/mkernel/operators.py", "test_python_torch.sh", "test_plan"},
        {"experiments/baselines/torch_norm.py", "test_python_torch.sh", "test_plan"},
        {"tests/test_launchers.sh", "test_launchers.sh", "test_plan"},
        {"tests/golden/tui-why-120x40-utf8.txt", "test_tui_golden", "test_plan"},
        {"CONTRIBUTING.md", NULL, "test_plan"},
        {"tests/gpu_ring.cu", NULL, "test_plan"}, /* which `make check` cannot run either */
    };
    char command[1100], text[16000], word[120];
    if (!at_root())
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(command, sizeof command, "tests/quick.sh %s %s 2>&1", build, cases[i].file);
        FILE *p = popen(command, "r");
        assert_non_null(p);
        text[fread(text, 1, sizeof text - 1, p)] = '\0';
        int status = WEXITSTATUS(pclose(p)), all = 0, run = 0;
        snprintf(word, sizeof word, "quick: nothing is known of %s: make check\n", cases[i].file);
        if (status != (cases[i].touches ? 0 : 3) || !strstr(text, word) != !!cases[i].touches)
            fail_msg("%s ends with %d: %s", cases[i].file, status, text);
        const char *line = strstr(text, "quick: ");
        if (!line || sscanf(line, "quick: 1 changed files touch %d test programs; %d of them run",
                            &all, &run) != 2)
            fail_msg("%s: %s", cases[i].file, text);
        if (!strcmp(cases[i].file, "tests/helpers/command.h")) /* minutes of tests */
            assert_true(all > 30 && run < all && strstr(text, "quick: left to make check:"));
        for (char *c = text; *c;
             c++) /* run, or named as left to make check: this is no test of times */
            *c = *c == '/' || *c == '\n' ? ' ' : *c;
        snprintf(word, sizeof word, " %s ", cases[i].touches ? cases[i].touches : "quick:");
        if (!strstr(text, word))
            fail_msg("%s does not touch %s: %s", cases[i].file, word, text);
        snprintf(word, sizeof word, " %s ", cases[i].not );
        if (strstr(text, word))
            fail_msg("%s touches %s: %s", cases[i].file, cases[i].not, text);
    }
}

/* ---- PTX ---- */

/* Fails where a shell command says anything. */
static void assert_says_nothing(const char *command)
{
    char said[2000];
    FILE *p = popen(command, "r");
    assert_non_null(p);
    said[fread(said, 1, sizeof said - 1, p)] = '\0';
    if (pclose(p) || *said)
        fail_msg("%s", said);
}

/* A PTX wrapper is there for a kernel; one that only tests call lies with them
 * (tests/helpers/conform_ptx.cuh). */
static void kernels_call_every_wrapper(void **state)
{
    if (!at_root())
        skip();
    assert_says_nothing(
        "find kernels -name '*.c*' -o -name '*.h' | xargs grep -hvE '^ *(\\*|/\\*)' | awk '"
        "match($0, /PTX_FN [^(]*\\(/) {"
        " name = substr($0, RSTART, RLENGTH - 1); sub(/.*[^A-Za-z0-9_]/, \"\", name);"
        " if (name ~ /^(ptx|wgmma|mma)_/) { wrappers++; made[name] } }"
        "{ n = split($0, word, /[^A-Za-z0-9_]+/); for (i = 1; i <= n; i++) said[word[i]]++ }"
        "END { if (wrappers < 40) print \"wrappers are not found\";"
        " for (name in made) if (said[name] < 2) print \"no kernel calls \" name }'");
}

/* So that whoever replaces those files (an engine's products have one of their own) runs the
 * kernels on something else. */
static void ptx_lies_in_three_files(void **state)
{
    if (!at_root())
        skip();
    assert_says_nothing("grep -rnE 'asm volatile|asm\\(' kernels | grep -vE "
                        "'^kernels/(engine/ptx|hopper/wgmma|mma/mma)[.]cuh:' || true");
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

/* A spill ends the build with the compiler that figures were measured with, and only slows what
 * another makes: that one is played. */
static void spills_end_the_build_of_cuda_13_alone(void **state)
{
    static const char script[] =
        "d=$(mktemp -d) && mkdir $d/bin $d/include && : >$d/include/cuda_runtime.h || exit 1\n"
        "cat >$d/bin/nvcc <<'END'\n"
        "#!/bin/sh\n"
        "case \"$*\" in\n"
        "*--version*) echo \"release $PLAYED, V$PLAYED\"; exit ;;\n"
        "*--list-gpu-code*) exit ;;\n"
        "esac\n"
        "[ -z \"$SPILLS\" ] || echo \"ptxas : Registers are spilled to local memory\"\n"
        "while [ $# -gt 1 ]; do [ \"$1\" != -o ] || : >\"$2\"; shift; done\n"
        "END\n"
        "chmod +x $d/bin/nvcc; unset MAKEFLAGS MFLAGS MAKELEVEL; "
        "o=$d/build/kernels/ops/all_gather.cu.o\n"
        "for played in '12.9 x' '13.0 x' '13.0 '; do\n"
        "PLAYED=${played% *} SPILLS=${played#* } make BUILD=$d/build CUDA_HOME=$d NVCC=$d/bin/nvcc "
        "$o "
        ">/dev/null 2>&1; echo $played $? $(ls $o 2>/dev/null | wc -l); rm -f $o; done; rm -rf "
        "$d\n";
    char said[256] = "";
    if (!at_root())
        skip();
    FILE *p = popen(script, "r");
    assert_non_null(p);
    said[fread(said, 1, sizeof said - 1, p)] = '\0';
    pclose(p);
    assert_string_equal(said, "12.9 x 0 1\n13.0 x 2 0\n13.0 0 1\n");
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
        sees |= strstr(line, "core/ops/registry.h") || strstr(line, "core/mkernel.h");
    if (pclose(p) || !lines)
        fail_msg("%s: what it includes could not be found out", path);
    if (sees)
        fail_msg("%s includes core/mkernel.h or core/ops/registry.h: a function or an operator "
                 "more would "
                 "compile it anew",
                 path);
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
     "    *out = ag_gemm_before(&p, &c, 1, &t, 0) + ag_gemm_intra_comm(&p, &c, 1) + "
     "ag_gemm_inter_send(&p, &c, 1);\n"
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
     "    gemm_ar_after(&p, &c, &t, 0, t.rows, 1, 0);\n"
     "    *out = gemm_ar_inter_send(&p, &c) + gemm_ar_intra_comm(&p, &c, 1);\n"
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
     "    *out = moe_ffn_before(&p, &c, t.stage == MOE_FFN_UP, t.row) + moe_ffn_inter_reduce(&p, "
     "&c);\n"
     "}\n"},
    {"#include \"core/roles/moe_combine.h\"\n"
     "__global__ void rows(moe_dispatch_plan p, moe_combine_plan q, mk_cta c, int *out) {\n"
     "    *out = moe_dispatch_run(&p, &c) + moe_combine_run(&q, &c);\n"
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
    {"mk_cta_wait_sums", "__device__ int mk_cta_wait_sums(mk_cta *, const mk_sums *, "
                         "const mk_sums_flags *) { return 0; }\n"},
    {"mk_cta_wait_rows",
     "__device__ int mk_cta_wait_rows(mk_cta *, const mk_places *, uint64_t, uint32_t, uint32_t, "
     "uint32_t, mk_cause) { return 0; }\n"},
    {"mk_cta_route", "__device__ void mk_cta_route(mk_cta *, const mk_route *) {}\n"},
    {"mk_cta_overflow",
     "__device__ int mk_cta_overflow(mk_cta *, mk_route_over, uint32_t, uint32_t, "
     "uint32_t) { return 1; }\n"},
    {"mk_cta_copy_listed",
     "__device__ void mk_cta_copy_listed(mk_cta *, uint32_t, const mk_rows *) {}\n"},
    {"mk_cta_spread", "__device__ void mk_cta_spread(mk_cta *, uint32_t, const mk_spread *) {}\n"},
    {"mk_cta_tell_rows", "__device__ void mk_cta_tell_rows(mk_cta *, uint32_t, uint32_t, uint32_t, "
                         "const mk_places *) {}\n"},
    {"mk_cta_made", "__device__ void mk_cta_made(mk_cta *, uint32_t, uint32_t) {}\n"},
    {"mk_cta_load", "__device__ uint32_t mk_cta_load(mk_cta *, uint64_t) { return 0; }\n"},
    {"mk_cta_load_argument",
     "__device__ uint32_t mk_cta_load_argument(mk_cta *, mk_space) { return 0; }\n"},
    {"mk_cta_norm", "__device__ void mk_cta_norm(mk_cta *, const mk_norm *, uint32_t) {}\n"},
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
    if (strncmp(path, "kernels/cta/cta", 15) || strcmp(strrchr(path, '.'), ".cuh"))
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
    if (strncmp(path, "core/cta/cta_", 13))
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
                 "%s#include \"core/cta/cta_combine.h\"\n#include \"core/cta/cta_route.h\"\n",
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

/* A step of the wall clock lengthens no wait and cuts none. */
static void waits_go_by_the_monotonic_clock(void **state)
{
    assert_int_equal(system("! grep -rl pthread_cond_timedwait backends core experiments kernels "
                            "sim tracer tui | grep -v '^core/base/clock.h$'"),
                     0);
}

int main(void)
{
    ssize_t length = readlink("/proc/self/exe", build, sizeof build - 1);
    build[length > 0 ? length : 0] = '\0';
    for (int i = 0; i < 2 && strrchr(build, '/'); i++)
        *strrchr(build, '/') = '\0';
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spills_end_the_build_of_cuda_13_alone),
        cmocka_unit_test(the_tree_is_formatted),
        cmocka_unit_test(everybody_includes_what_is_theirs),
        cmocka_unit_test(folders_include_one_way),
        cmocka_unit_test(folders_of_experiments_include_one_way),
        cmocka_unit_test(operators_are_named_by_their_own_files_alone),
        cmocka_unit_test(files_of_a_folder_call_one_way),
        cmocka_unit_test(quick_finds_what_a_change_touches),
        cmocka_unit_test(waits_go_by_the_monotonic_clock),
        cmocka_unit_test(ptx_lies_in_three_files),
        cmocka_unit_test(kernels_call_every_wrapper),
        cmocka_unit_test(a_new_operator_compiles_no_kernel_anew),
        cmocka_unit_test(headers_of_core_compile_alone),
        cmocka_unit_test(the_public_header_is_also_cplusplus),
        cmocka_unit_test(roles_compile_for_the_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

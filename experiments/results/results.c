/* `mkernel results`: what a file of results says. */
#include "experiments/results/results.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "core/base/words.h"
#include "experiments/common/command_says.h"
#include "experiments/common/commands.h"
#include "experiments/common/nearest.h"
#include "experiments/common/json_write.h"
#include "experiments/common/options.h"
#include "experiments/common/output_file.h"
#include "experiments/common/picture.h"
#include "experiments/common/trace_output.h"
#include "experiments/results/results_diff.h"
#include "experiments/results/results_merge.h"
#include "experiments/results/results_table.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct arguments {
    const char *only, *csv, *json, *expect, *x, *y, *roofs;
    int ranks, data, mix;
};

#define AT(field) .offset = offsetof(struct arguments, field)
#define PLOTS "plot"

enum view { TABLE, DIFF, PLOT, EXPORT, MERGE, VIEWS };
#define ONLY(view) .contexts = 1u << (view)

static const struct option_spec specs[] = {
    {"only", OPTION_TEXT, AT(only), "NAME=V:V;NAME=V", "points of these settings alone",
     .max = 4095},
    {"ranks", OPTION_FLAG, AT(ranks), NULL, "table: also the median of every rank of every job",
     ONLY(TABLE)},
    {"expect", OPTION_TEXT, AT(expect), "FILE",
     "table: exit status 1 where a point is slower than in FILE, beyond what chance does to so "
     "many points, or has no time any more",
     .max = 4095, ONLY(TABLE)},
    {"csv", OPTION_TEXT, AT(csv), "FILE", "export, diff: a row a point", .max = 4095,
     .contexts = 1u << EXPORT | 1u << DIFF},
    {"json", OPTION_TEXT, AT(json), "FILE", "export: points, jobs and their times", .max = 4095,
     ONLY(EXPORT)},
    {"mix", OPTION_FLAG, AT(mix), NULL, "merge: also results of another build of mkernel",
     ONLY(MERGE)},
    {"x", OPTION_TEXT, AT(x), "NAME", "the setting on the x axis. Default: the size", .max = 63,
     .group = PLOTS, ONLY(PLOT)},
    {"y", OPTION_TEXT, AT(y), "NAME", "heat: the setting on the y axis", .max = 63, ONLY(PLOT)},
    {"roofs", OPTION_TEXT, AT(roofs), "TFLOP/S,GB/S,GB/S",
     "roofline: what a rank computes, and moves over NVLink and over the network, at most. "
     "Default: as a simulated point or the GPUs say",
     .max = 80, ONLY(PLOT)},
    {"data", OPTION_FLAG, AT(data), NULL, "print what would be drawn, as JSON, instead of drawing",
     ONLY(PLOT)},
};

static const struct option_table table = {
    "results FILE table|diff|plot|export|merge [ARGUMENTS] [OPTIONS]",
    "Shows a file of results, which `mkernel sweep` made: medians with 95 % bootstrap intervals "
    "over jobs and launches.\n"
    "  table                  a row a point, what failed, what lies far out\n"
    "  diff OTHER             OTHER's points (B) against FILE's (A)\n"
    "  diff NAME=A NAME=B     points of FILE against each other, such as roles=default and "
    "exec=sim\n"
    "  plot KIND PICTURE      KIND: time, speed, efficiency, stack, heat, simulated, roofline; "
    "PICTURE: PNG, or SVG by its name\n"
    "  export                 as CSV and JSON\n"
    "  merge [OTHER...]       adds to FILE what OTHER has and it has not; without OTHER the parts "
    "that\n"
    "                         tasks of `sweep --spread` left beside it, which then go",
    specs, sizeof specs / sizeof *specs,
    "  mkernel results role-split.db table --only 'op=ag_gemm;nodes=1:2'\n"
    "  mkernel results yesterday.db diff today.db\n"
    "  mkernel results role-split.db diff fabric=verbs fabric=efa\n"
    "  mkernel results role-split.db plot time time.png --only op=ag_gemm\n"
    "  mkernel results role-split.db plot heat heat.svg --x chunk-rows --y roles\n"
    "  mkernel results today.db table --expect yesterday.db\n"
    "  mkernel results role-split.db export --csv points.csv --json points.json\n"
    "  mkernel results role-split.db merge\n"};

#define results_usage(...) command_refuse("results", __VA_ARGS__)
#define results_fail(...) command_say("results", STATUS_FAILED, __VA_ARGS__)

int results_check(const char *path, char *error, size_t size)
{
    sqlite3 *db;
    int rc = results_open(&db, path, error, size);
    if (!rc)
        sqlite3_close(db);
    return rc;
}

int results_show(const char *path, const char *only)
{
    struct results r;
    char error[1024];
    if (results_load(&r, path, only, error, sizeof error))
        return results_usage("%s", error);
    results_table_print(&r, 0, stdout);
    results_free(&r);
    return STATUS_DONE;
}

/* ---- expect ---- */

/* Of the points of both; what is new, or was not measured then, is nobody's expectation. */
static int results_judge(const struct results *now, const struct results *then)
{
    MK_FREED struct result_pair *pairs = NULL;
    uint32_t bad = 0, compared = 0;
    char text[STAT_TEXT];
    if (result_pair_up(&pairs, then, now, NULL, 0, 1))
        return results_fail("no memory to compare");
    fflush(stdout);
    for (uint32_t i = 0; i < then->count; i++) {
        const struct result_pair *p = &pairs[i];
        if (!p->b || !p->a->good)
            continue;
        compared++;
        if (!p->b->good)
            fprintf(stderr, "%s has no time any more: %s\n", p->a->label,
                    p->b->job_count ? p->b->jobs[0].sentence : "it was not measured");
        else if (p->difference.verdict == STAT_SLOWER)
            fprintf(stderr, "%s is %s: %.4g ms, and %.4g ms were expected\n", p->a->label,
                    stat_say(&p->difference, text), p->b->ms.median, p->a->ms.median);
        else
            continue;
        bad++;
    }
    if (!compared)
        return results_usage("--expect: no point of it was measured here");
    fprintf(stderr, "mkernel results: %u of %u points are slower than expected\n", bad, compared);
    return bad ? STATUS_WRONG : STATUS_DONE;
}

int results_expect(const char *path, const char *expected)
{
    struct results now, then;
    char error[1024];
    if (results_load(&now, path, NULL, error, sizeof error))
        return results_usage("%s", error);
    if (results_load(&then, expected, NULL, error, sizeof error)) {
        results_free(&now);
        return results_usage("%s", error);
    }
    int status = results_judge(&now, &then);
    results_free(&now);
    results_free(&then);
    return status;
}

static int results_table(const char *path, const struct arguments *a)
{
    struct results r;
    char error[1024];
    if ((a->expect && results_check(a->expect, error, sizeof error)) ||
        results_load(&r, path, a->only, error, sizeof error))
        return results_usage("%s", error);
    results_table_print(&r, a->ranks, stdout);
    results_free(&r);
    return a->expect ? results_expect(path, a->expect) : STATUS_DONE;
}

/* ---- diff ---- */

/* The names in "roles=default;exec=sim", ended by 0 each, into text. */
static uint32_t results_names(const char *selection, char *text, size_t size, const char **names,
                              uint32_t count, uint32_t most)
{
    size_t used = strlen(selection) < size ? strlen(selection) : size - 1;
    memcpy(text, selection, used);
    text[used] = '\0';
    for (char *p = text; *p && count < most;) {
        char *next = p + strcspn(p, ";");
        int last = !*next;
        *next = '\0';
        p[strcspn(p, "=")] = '\0';
        names[count++] = p;
        p = last ? next : next + 1;
    }
    return count;
}

static int results_diff(const char *path, const struct options_found *found,
                        const struct arguments *arguments)
{
    struct results a, b;
    MK_FREED struct result_pair *pairs = NULL;
    char error[1024], one[2][2048];
    const char *names[80], *first = arguments->only, *second = arguments->only;
    uint32_t count = 0;
    int inside = found->word_count == 4, status = STATUS_DONE;
    const char *other = inside ? path : found->words[2];
    if (found->word_count < 3)
        return results_usage("diff takes another file, or two selections such as exec=host "
                             "exec=sim");
    if (inside) {
        for (int i = 0; i < 2; i++) {
            if (!strchr(found->words[2 + i], '='))
                return results_usage("two files are compared by `results FILE diff OTHER`, two "
                                     "selections are NAME=VALUE");
            count = results_names(found->words[2 + i], one[i], sizeof one[i], names, count, 80);
        }
        first = found->words[2];
        second = found->words[3];
    }
    if (output_check("--csv", arguments->csv, OUTPUT_WRITTEN, error, sizeof error) ||
        results_load(&a, path, first, error, sizeof error))
        return results_usage("%s", error);
    if (results_load(&b, other, second, error, sizeof error)) {
        results_free(&a);
        return results_usage("%s", error);
    }
    if (result_pair_up(&pairs, &a, &b, names, count, 0)) {
        status = results_fail("no memory to compare");
    } else {
        result_print_pairs(stdout, &a, &b, pairs, names, count);
        int rc = arguments->csv ? result_write_pairs(arguments->csv, &a, pairs) : 0;
        if (rc) {
            status = results_fail("%s could not be written: %s", arguments->csv,
                                  rc == -ENODATA ? "there is no pair" : strerror(-rc));
        }
    }
    results_free(&a);
    results_free(&b);
    return status;
}

/* ---- plot ---- */

static const char *const plot_kinds[] = {"time", "speed",     "efficiency", "stack",
                                         "heat", "simulated", "roofline"};
enum { PLOT_KINDS = sizeof plot_kinds / sizeof *plot_kinds };

struct plot {
    const struct results *results;
    const char *kind, *x, *y; /* x, y: names of settings; NULL: choose */
    double roofs[3];          /* flop/s, NVLink and network bytes/s of a rank; 0: not given */
    int roofs_of_gpus;        /* 1: they come from the results' GPUs, not from the user */
};

extern const char results_plot[];
__asm__(".section .rodata\n.global results_plot\nresults_plot:\n"
        ".incbin \"experiments/results/results_plot.py\"\n.byte 0\n"
        ".size results_plot, . - results_plot\n.type results_plot, @object\n.previous\n");

/* What the results say of a rank: a simulated cluster, else GPUs. */
static void results_find_roofs(const char *path, double roofs[3])
{
    char error[512];
    sqlite3 *db;
    if (results_open(&db, path, error, sizeof error))
        return;
    sqlite3_stmt *q = query_ask(
        db,
        "SELECT * FROM (SELECT json_extract(result, '$.cluster.flop_per_s') AS f, "
        "json_extract(result, '$.cluster.nvlink_bytes_per_s'), json_extract(result, "
        "'$.cluster.network_bytes_per_s') FROM job WHERE result IS NOT NULL UNION ALL SELECT "
        "json_extract(facts, '$.gpus[0].flop_per_s'), json_extract(facts, "
        "'$.gpus[0].nvlink_bytes_per_s'), 0 FROM machine) WHERE f > 0 LIMIT 1",
        "");
    if (query_row(q, "ddd", &roofs[0], &roofs[1], &roofs[2]))
        for (int i = 0; i < 3; i++)
            roofs[i] = isfinite(roofs[i]) ? roofs[i] : 0;
    sqlite3_finalize(q);
    sqlite3_close(db);
}

static int results_read_roofs(const char *text, double roofs[3], char *error, size_t size)
{
    char rest;
    if (sscanf(text, "%lf,%lf,%lf%c", &roofs[0], &roofs[1], &roofs[2], &rest) != 3 ||
        !(roofs[0] > 0 && roofs[1] >= 0 && roofs[2] >= 0 && roofs[0] + roofs[1] + roofs[2] < 1e12))
        return mk_fail(-EINVAL, error, size, "--roofs %s: not TFLOP/s,GB/s,GB/s (0: no such link)",
                       text);
    roofs[0] *= 1e12;
    roofs[1] *= 1e9;
    roofs[2] *= 1e9;
    return 0;
}

static int results_write_plot(FILE *out, void *plot, char *error, size_t size)
{
    const struct plot *p = plot;
    (void)error, (void)size;
    fprintf(out, "{\n");
    json_text(out, "kind", p->kind);
    json_text(out, "x", p->x ? p->x : "");
    json_text(out, "y", p->y ? p->y : "");
    fprintf(out, "  \"roofs\": [%.9g, %.9g, %.9g],\n  \"roofs_of_gpus\": %d,\n", p->roofs[0],
            p->roofs[1], p->roofs[2], p->roofs_of_gpus);
    results_table_members(out, p->results);
    fprintf(out, "\n}\n");
    return 0;
}

static int results_draw(const char *path, const struct options_found *found,
                        const struct arguments *a)
{
    struct results r;
    struct plot p = {.results = &r, .x = a->x, .y = a->y, .roofs_of_gpus = !a->roofs};
    const struct picture picture = {results_plot, results_write_plot, &p};
    char error[1024];
    if (found->word_count < (a->data ? 3 : 4))
        return results_usage("plot takes a KIND and the PICTURE to draw");
    int kind = mk_word(found->words[2], plot_kinds, PLOT_KINDS);
    if (kind < 0) {
        char near[NEAREST_TEXT];
        return results_usage("there is no plot %s%s", found->words[2],
                             nearest_hint(near, found->words[2], "", plot_kinds, PLOT_KINDS));
    }
    p.kind = plot_kinds[kind];
    const char *drawn = a->data ? NULL : found->words[3];
    if ((a->roofs && results_read_roofs(a->roofs, p.roofs, error, sizeof error)) ||
        (drawn && (picture_check_path("PICTURE", drawn, error, sizeof error) ||
                   trace_output_check(drawn, error, sizeof error))) ||
        results_load(&r, path, a->only, error, sizeof error))
        return results_usage("%s", error);
    if (!a->roofs)
        results_find_roofs(path, p.roofs);
    int rc = picture_draw(&picture, drawn, error, sizeof error);
    results_free(&r);
    if (!rc)
        return STATUS_DONE;
    return rc == -EINVAL ? results_usage("%s", error) : results_fail("%s", error);
}

/* ---- export ---- */

static int results_export(const char *path, const struct arguments *a)
{
    struct results r;
    char error[1024];
    if (!a->csv && !a->json)
        return results_usage("export writes what --csv and --json name, and neither is given");
    if (output_same(a->csv, a->json))
        return results_usage("--csv and --json name the same file");
    if (output_check("--csv", a->csv, OUTPUT_WRITTEN, error, sizeof error) ||
        output_check("--json", a->json, OUTPUT_WRITTEN, error, sizeof error) ||
        results_load(&r, path, a->only, error, sizeof error))
        return results_usage("%s", error);
    int csv = a->csv ? results_table_csv(&r, a->csv) : 0;
    int json = a->json ? results_table_json(&r, a->json) : 0;
    results_free(&r);
    if (!csv && !json)
        return STATUS_DONE;
    return results_fail("%s could not be written: %s", csv ? a->csv : a->json,
                        strerror(csv ? -csv : -json));
}

/* ---- merge ---- */

static int results_merge_all(const char *path, const struct options_found *found,
                             const struct arguments *a)
{
    char error[4400];
    struct results_merged m = {0};
    int rc = 0;
    if (found->word_count > 2) {
        for (int i = 2; i < found->word_count && !rc; i++, m.parts += !rc)
            rc = results_merge(path, found->words[i], a->mix, &m.jobs, error, sizeof error);
    } else {
        rc = results_merge_parts(path, a->mix, &m, error, sizeof error);
        if (!rc && !m.parts) {
            return results_usage("there is no part of %s beside it (%s" RESULTS_PART
                                 "JOB-TASK); `results FILE merge OTHER` takes other files",
                                 path, path);
        }
    }
    if (rc && !m.parts)
        return rc == -EIO ? results_fail("%s", error) : results_usage("%s", error);
    if (m.parts)
        fprintf(stderr, "mkernel results: %ld jobs of %u file%s are now in %s%s%s\n", m.jobs,
                m.parts, m.parts > 1 ? "s" : "", path, rc ? "; " : "", rc ? error : "");
    return rc ? STATUS_FAILED : STATUS_DONE;
}

/* ---- the command ---- */

int command_results(int argc, char **argv)
{
    static const struct {
        const char *name;
        int most; /* words, the file and the view among them */
    } views[VIEWS] = {{"table", 2}, {"diff", 4}, {"plot", 4}, {"export", 2}, {"merge", 8}};
    const char *names[VIEWS];
    struct arguments a = {.only = NULL};
    struct options_found found;
    char error[1024], name[32];
    int at, ends = command_options("results", &table, 8, argc, argv, &a, &found);
    if (ends >= 0)
        return ends;
    if (!found.word_count)
        return results_usage("a FILE is missing");
    const char *view = found.word_count > 1 ? found.words[1] : "table";
    for (int i = 0; i < VIEWS; i++)
        names[i] = views[i].name;
    if ((at = mk_word(view, names, VIEWS)) < 0) {
        char near[NEAREST_TEXT];
        return results_usage("there is no `results %s`%s", view,
                             nearest_hint(near, view, "", names, VIEWS));
    }
    if (found.word_count > views[at].most)
        return results_usage("%s is one argument too many", found.words[views[at].most]);
    snprintf(name, sizeof name, "`results %s`", view);
    if (options_check(&table, &found, 1u << at, name, error, sizeof error))
        return results_usage("%s", error);
    return at == TABLE   ? results_table(found.words[0], &a)
           : at == DIFF  ? results_diff(found.words[0], &found, &a)
           : at == PLOT  ? results_draw(found.words[0], &found, &a)
           : at == MERGE ? results_merge_all(found.words[0], &found, &a)
                         : results_export(found.words[0], &a);
}

/* `mkernel results`: what a file of results says. */
#include "experiments/results/results.h"
#include "experiments/common/commands.h"
#include "experiments/common/nearest.h"
#include "experiments/common/options.h"
#include "experiments/common/output_file.h"
#include "experiments/results/results_table.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct arguments {
    const char *only, *csv, *json, *expect;
    int ranks;
};

#define AT(field) .offset = offsetof(struct arguments, field)

static const struct option_spec specs[] = {
    {"only", OPTION_TEXT, AT(only), "NAME=V:V;NAME=V", "points of these settings alone",
     .max = 4095},
    {"ranks", OPTION_FLAG, AT(ranks), NULL, "table: also the median of every rank of every job"},
    {"csv", OPTION_TEXT, AT(csv), "FILE", "export: a row a point", .max = 4095},
    {"json", OPTION_TEXT, AT(json), "FILE", "export: points, jobs and their times", .max = 4095},
    {"expect", OPTION_TEXT, AT(expect), "FILE",
     "table: exit status 1 where a point is slower than in FILE, beyond the interval", .max = 4095},
};

static const struct option_table table = {
    "results FILE table|export [OPTIONS]",
    "Shows a file of results, which `mkernel sweep` made: medians with 95 % bootstrap intervals "
    "over jobs and launches.",
    specs, sizeof specs / sizeof *specs,
    "  mkernel results role-split.db table --only 'op=ag_gemm;nodes=1:2'\n"
    "  mkernel results role-split.db export --csv points.csv --json points.json\n"};

static int results_usage(const char *sentence)
{
    fprintf(stderr, "mkernel results: %s; `mkernel results --help` tells more\n", sentence);
    return STATUS_USAGE;
}

int results_check(const char *path, char *error, size_t size)
{
    sqlite3 *db;
    int rc = results_open(&db, path, error, size);
    if (!rc)
        sqlite3_close(db);
    return rc;
}

static int results_table(const char *path, const char *only, int ranks)
{
    struct results r;
    char error[1024];
    if (results_load(&r, path, only, error, sizeof error))
        return results_usage(error);
    results_table_print(&r, ranks, stdout);
    results_free(&r);
    return STATUS_DONE;
}

int results_show(const char *path, const char *only)
{
    return results_table(path, only, 0);
}

int results_expect(const char *path, const char *expected)
{
    (void)path;
    (void)expected;
    return STATUS_DONE;
}

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
        return results_usage(error);
    int csv = a->csv ? results_table_csv(&r, a->csv) : 0;
    int json = a->json ? results_table_json(&r, a->json) : 0;
    results_free(&r);
    if (!csv && !json)
        return STATUS_DONE;
    fprintf(stderr, "mkernel results: %s could not be written: %s\n", csv ? a->csv : a->json,
            strerror(csv ? -csv : -json));
    return STATUS_FAILED;
}

int command_results(int argc, char **argv)
{
    static const char *const views[] = {"table", "export"};
    struct arguments a = {.only = NULL};
    struct options_found found;
    char error[1024];
    if (options_parse(&table, argc, argv, &a, &found, error, sizeof error))
        return results_usage(error);
    if (found.help) {
        options_help(&table, stdout);
        return STATUS_DONE;
    }
    if (!found.word_count)
        return results_usage("a FILE is missing");
    const char *view = found.word_count > 1 ? found.words[1] : "table";
    if (found.word_count > 2) {
        snprintf(error, sizeof error, "%s is one argument too many", found.words[2]);
        return results_usage(error);
    }
    if (!strcmp(view, "table"))
        return results_table(found.words[0], a.only, a.ranks);
    if (!strcmp(view, "export"))
        return results_export(found.words[0], &a);
    const char *near = nearest_word(view, views, sizeof views / sizeof *views);
    snprintf(error, sizeof error, "there is no `results %s`%s%s%s", view,
             near ? " (did you mean " : "", near ? near : "", near ? "?)" : "");
    return results_usage(error);
}

/* `mkernel calibrate`: a machine file that agrees with what was measured. */
#include "core/model.h"
#include "experiments/common/commands.h"
#include "experiments/common/options.h"
#include "experiments/common/output_file.h"
#include "experiments/sim/fit.h"
#include "experiments/sim/validate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct arguments {
    const char *from, *half_of, *machine, *output, *keep;
    uint64_t rounds;
    int print;
};

#define AT(field) .offset = offsetof(struct arguments, field)

static const struct option_spec specs[] = {
    {"from", OPTION_TEXT, AT(from), "FILE,...",
     "tables of measured plans, as `mkernel tune --csv` writes them", .max = 4095},
    {"half-of", OPTION_TEXT, AT(half_of), "FILE,...",
     "the same, but every other shape of each table only (the 1st, 3rd ...): the rest tells how "
     "good it is (`mkernel sim --validate FILE --half rest`)",
     .max = 4095},
    {"machine", OPTION_TEXT, AT(machine), "NAME|FILE",
     "the machine to begin with; its other numbers stay. Default 8xH200-cx7", .max = 4095},
    {"keep", OPTION_TEXT, AT(keep), "NAME,...",
     "numbers that stay as they are. watts, watts_idle, clock and clock_low always do, as a data "
     "sheet says "
     "them",
     .max = 4000},
    {"rounds", OPTION_NUMBERS, AT(rounds), "N", "of the fit, at most. Default 60", 1, 10000},
    {"output", OPTION_TEXT, AT(output), "FILE",
     "where the machine file goes. Default: standard "
     "output",
     .max = 4095},
    {"print", OPTION_FLAG, AT(print), NULL, "write --machine as it is, with all its numbers"},
};

static const struct option_table table = {
    "calibrate [OPTIONS]",
    "Fits a machine file to measured plans: the numbers that predictions depend on "
    "(core/machine.h)\n"
    "are moved until predicted and measured times differ least. One core, a minute for 2,000 "
    "plans.\n",
    specs, sizeof specs / sizeof *specs,
    "  mkernel calibrate --from tiles.csv,gather.csv --half-of tune_ag_gemm.csv --output "
    "m.machine\n"
    "  mkernel sim --validate tune_ag_gemm.csv --half rest --machine ./m.machine\n"
    "  mkernel calibrate --print --machine 8xH200-efa\n"};

static int calibrate_says(const char *sentence, int status)
{
    fprintf(stderr, "mkernel calibrate: %s\n", sentence);
    return status;
}

static void calibrate_progress(uint32_t round, double error)
{
    fprintf(stderr, "round %u: %.2f %%\n", round + 1, 100 * error);
}

/* The rows of both lists; weights[] of the first are less, as they are parts and not the whole. */
#define PARTS_WEIGH 0.4

static int calibrate_read(const struct arguments *a, const struct mk_machine *m,
                          struct measured *rows, double **weights, char *error, size_t size)
{
    uint32_t sms = (uint32_t)m->sms;
    if (a->from && measured_read_list(rows, a->from, MEASURED_ALL, sms, error, size))
        return STATUS_USAGE;
    uint32_t parts = rows->count;
    if (a->half_of && measured_read_list(rows, a->half_of, MEASURED_ODD, sms, error, size))
        return STATUS_USAGE;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < rows->count; i++)
        kept += model_knows(rows->rows[i].plan.problem.op) != 0;
    if (!kept || kept != rows->count) {
        snprintf(error, size, "%s",
                 rows->count ? "a table has an operator that the model does not know: it knows "
                               "ag_gemm, gemm_rs and gemm_ar"
                             : "there is no plan to fit to");
        return STATUS_USAGE;
    }
    *weights = malloc(rows->count * sizeof **weights);
    if (!*weights) {
        snprintf(error, size, "no memory for %u plans", rows->count);
        return STATUS_FAILED;
    }
    fit_weights(rows, *weights);
    for (uint32_t i = 0; i < parts && parts < rows->count; i++)
        (*weights)[i] *= PARTS_WEIGH;
    return STATUS_DONE;
}

static int calibrate_write(const char *path, const struct mk_machine *m, const char *how,
                           char *error, size_t size)
{
    char text[8192];
    FILE *out = path ? output_open(path) : stdout;
    machine_write(m, text, sizeof text);
    if (!out || fprintf(out, "%s%s", how, text) < 0 || (path && output_close(out, path))) {
        snprintf(error, size, "%s could not be written", path ? path : "standard output");
        return STATUS_FAILED;
    }
    return STATUS_DONE;
}

static int calibrate_fit(const struct arguments *a, struct mk_machine *m, char *error, size_t size)
{
    struct measured rows = {.rows = NULL};
    double *weights = NULL;
    char how[512];
    int status = calibrate_read(a, m, &rows, &weights, error, size);
    if (status == STATUS_DONE) {
        char keep[4096];
        snprintf(keep, sizeof keep, "watts,watts_idle,clock,clock_low,%s", a->keep ? a->keep : "");
        struct fit fit = {.machine = m,
                          .measured = &rows,
                          .weights = weights,
                          .keep = keep,
                          .rounds = (uint32_t)a->rounds,
                          .pull = 0.01,
                          .progress = calibrate_progress};
        if (fit_machine(&fit)) {
            snprintf(error, size, "no memory for a fit to %u plans", rows.count);
            status = STATUS_FAILED;
        } else {
            snprintf(how, sizeof how,
                     "# Fitted by `mkernel calibrate` to %u plans of %u shapes, %u numbers: "
                     "weighted mean error %.2f %% (%.2f before).\n",
                     rows.count, rows.shapes, fit.moved, 100 * fit.after, 100 * fit.before);
            status = calibrate_write(a->output, m, how, error, size);
        }
    }
    free(weights);
    measured_free(&rows);
    return status;
}

int command_calibrate(int argc, char **argv)
{
    struct arguments a = {.machine = "8xH200-cx7", .rounds = 60};
    struct options_found found;
    struct mk_machine m = {.sms = 0};
    char error[1024];
    if (options_parse(&table, argc, argv, &a, &found, error, sizeof error))
        return calibrate_says(error, STATUS_USAGE);
    if (found.help) {
        options_help(&table, stdout);
        return STATUS_DONE;
    }
    if (found.word_count || (!a.print && !a.from && !a.half_of) ||
        (a.print && (a.from || a.half_of)))
        return calibrate_says("it takes --from or --half-of with tables, or --print; `mkernel "
                              "calibrate --help` tells more",
                              STATUS_USAGE);
    if (machine_find(&m, a.machine, error, sizeof error) ||
        output_check("--output", a.output, OUTPUT_WRITTEN, error, sizeof error))
        return calibrate_says(error, STATUS_USAGE);
    int status = a.print ? calibrate_write(a.output, &m, "", error, sizeof error)
                         : calibrate_fit(&a, &m, error, sizeof error);
    return status == STATUS_DONE ? status : calibrate_says(error, status);
}

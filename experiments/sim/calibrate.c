/* `mkernel calibrate`: a machine file that agrees with what was measured. */
#include "core/model/model.h"
#include "core/ops/op.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "experiments/common/command_says.h"
#include "experiments/common/commands.h"
#include "experiments/common/gpu.h"
#include "experiments/common/options.h"
#include "experiments/common/output_file.h"
#include "experiments/common/result_file.h"
#include "experiments/sim/calibrate_measure.h"
#include "experiments/sim/fit.h"
#include "experiments/sim/validate.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct arguments {
    const char *from, *half_of, *machine, *output, *keep, *tables, *program, *of;
    uint64_t rounds, gpus, budget_ns;
    int print, exec, fp8;
    /* What few and short measurements tell apart badly: see calibrate_here. */
    double pull;
    const char *unseen;
};

static const char *const executors[] = {"cuda", "sim"};

#define AT(field) .offset = offsetof(struct arguments, field)

static const struct option_spec specs[] = {
    {"from", OPTION_TEXT, AT(from), "FILE,...",
     "tables of measured plans, as `mkernel tune`, `bench` and `run` write them with --csv, and "
     "traces",
     .max = 4095},
    {"half-of", OPTION_TEXT, AT(half_of), "FILE,...",
     "the same, but every other shape of each table only (the 1st, 3rd ...): the rest tells how "
     "good it is (`mkernel sim --validate FILE --half rest`)",
     .max = 4095},
    {"machine", OPTION_TEXT, AT(machine), "NAME|FILE",
     "the machine to begin with; its other numbers stay. Default 8xH200-cx7", .max = 4095},
    {"exec", OPTION_WORD, AT(exec), "cuda|sim",
     "measure, by some runs of `mkernel tune`, and fit to that. cuda: this host's GPUs; sim: the "
     "machine --of, event by event, which shows what such measurements can find",
     .words = executors, .word_count = 2},
    {"of", OPTION_TEXT, AT(of), "NAME|FILE", "with --exec sim: the machine that is measured",
     .max = 4095},
    {"budget", OPTION_SECONDS, AT(budget_ns), "SECONDS",
     "with --exec: for all measurements; what is not through by then is ended and left out. "
     "Default 55",
     1000000000, 3600000000000ull},
    {"gpus", OPTION_NUMBERS, AT(gpus), "G", "with --exec: ranks of the node. Default 2", 1,
     MK_MAX_LOCAL},
    {"fp8", OPTION_FLAG, AT(fp8), NULL,
     "with --exec: measures products of e4m3, too, and fits what they take"},
    {"tables", OPTION_TEXT, AT(tables), "FOLDER",
     "with --exec: where the tables stay. Default: a temporary folder, which is removed",
     .max = 200},
    {"program", OPTION_TEXT, AT(program), "FILE",
     "with --exec: what is run as mkernel, such as a script that sets it up. Default: this program",
     .max = 4095},
    {"keep", OPTION_TEXT, AT(keep), "NAME,...",
     "numbers that stay as they are. watts, watts_idle, clock, clock_low, l2 and joule_hbm always "
     "do, as a data sheet says them; with --exec, whose launches are over before a GPU is hot, the "
     "other joule_... and heat... do, too",
     .max = 4000},
    {"rounds", OPTION_NUMBERS, AT(rounds), "N", "of the fit, at most. Default 60", 1, 10000},
    {"output", OPTION_TEXT, AT(output), "FILE",
     "where the machine file goes. Default: standard output", .max = 4095},
    {"print", OPTION_FLAG, AT(print), NULL, "write --machine as it is, with all its numbers"},
};

static const struct option_table table = {
    "calibrate [OPTIONS]",
    "Fits a machine file to measured plans, of tables or of this host's GPUs: the numbers that "
    "predictions depend on (core/model/machine.h)\n"
    "are moved until predicted and measured times differ least. One core, a minute for 2,000 "
    "plans.\n",
    specs, sizeof specs / sizeof *specs,
    "  mkernel calibrate --from tiles.csv,gather.csv --half-of tune_ag_gemm.csv --output "
    "m.machine\n"
    "  mkernel sim --validate tune_ag_gemm.csv --half rest --machine ./m.machine\n"
    "  mkernel calibrate --exec cuda --gpus 8 --output here.machine\n"
    "  mkernel calibrate --exec sim --of ./here.machine --output again.machine\n"
    "  mkernel calibrate --print --machine 8xH200-efa\n"};

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
        char known[OP_LIST_TEXT];
        if (rows->count)
            snprintf(error, size,
                     "a table has an operator that the model does not know: it knows %s",
                     op_list(known, sizeof known, model_knows, ", ", " and "));
        else
            snprintf(error, size, "there is no plan to fit to%s%s",
                     rows->left_out ? "; the first was left out: " : "", rows->left_out_why);
        return STATUS_USAGE;
    }
    *weights = malloc(rows->count * sizeof **weights);
    if (!*weights)
        return mk_fail(STATUS_FAILED, error, size, "no memory for %u plans", rows->count);
    fit_weights(rows, *weights);
    for (uint32_t i = 0; i < parts && parts < rows->count; i++)
        (*weights)[i] *= PARTS_WEIGH;
    return STATUS_DONE;
}

static int calibrate_write(const char *path, const struct mk_machine *m, const char *how,
                           char *error, size_t size)
{
    char text[8192];
    struct result_file file;
    int rc = result_open(&file);
    machine_write(m, text, sizeof text);
    if (!rc) {
        fprintf(file.out, "%s%s", how, text);
        rc = result_close(&file, path);
    }
    return !rc ? STATUS_DONE
               : mk_fail(STATUS_FAILED, error, size, "%s could not be written",
                         path ? path : "standard output");
}

static int calibrate_fit(const struct arguments *a, struct mk_machine *m, char *error, size_t size)
{
    struct measured rows = {.rows = NULL};
    MK_FREED double *weights = NULL;
    char how[512];
    int status = calibrate_read(a, m, &rows, &weights, error, size);
    if (status == STATUS_DONE) {
        char keep[4352];
        snprintf(keep, sizeof keep, "watts,watts_idle,clock,clock_low,l2,joule_hbm,%s%s", a->unseen,
                 a->keep ? a->keep : "");
        struct fit fit = {.machine = m,
                          .measured = &rows,
                          .weights = weights,
                          .keep = keep,
                          .rounds = (uint32_t)a->rounds,
                          .pull = a->pull,
                          .progress = calibrate_progress};
        double in = m->nvlink_out > 0 ? m->nvlink_in / m->nvlink_out : 1;
        int fitted = fit_machine(&fit);
        m->nvlink_in = m->nvlink_out * in; /* the quick form looks at one of both */
        if (fitted) {
            status =
                mk_fail(STATUS_FAILED, error, size, "no memory for a fit to %u plans", rows.count);
        } else {
            snprintf(how, sizeof how,
                     "# Fitted by `mkernel calibrate` to %u plans of %u shapes, %u numbers: "
                     "weighted mean error %.2f %% (%.2f before).\n",
                     rows.count, rows.shapes, fit.moved, 100 * fit.after, 100 * fit.before);
            status = calibrate_write(a->output, m, how, error, size);
        }
    }
    measured_free(&rows);
    return status;
}

/* A folder of this program's own, and the files in it. */
static void calibrate_remove(const char *folder)
{
    DIR *d = opendir(folder);
    struct dirent *entry;
    while (d && (entry = readdir(d)))
        if (entry->d_name[0] != '.')
            unlinkat(dirfd(d), entry->d_name, 0);
    if (d)
        closedir(d);
    rmdir(folder);
}

/* What the driver says of this host's GPUs, where it is there: what measurements do not. */
static void calibrate_device(struct mk_machine *m)
{
    struct gpu_list gpus;
    gpu_probe(&gpus);
    if (!gpu_hoppers(&gpus))
        return;
    m->sms = gpus.devices[0].sms;
    snprintf(m->device, sizeof m->device, "%s", gpus.devices[0].name);
    for (char *c = m->device; *c; c++)
        *c = *c == ' ' ? '_' : *c;
    if (gpus.devices[0].clock)
        m->clock = (double)gpus.devices[0].clock / 1e6;
    snprintf(m->name, sizeof m->name, "%.50s, calibrated", gpus.devices[0].name);
}

/* Measures, then fits to that. */
static int calibrate_here(struct arguments *a, struct mk_machine *m, char *error, size_t size)
{
    char temporary[] = "/tmp/mkernel-calibrate-XXXXXX";
    const char *folder = a->tables ? a->tables : mkdtemp(temporary);
    int status = STATUS_FAILED;
    /* On a 2xH200 host 150 plans put 9 times the joules on a byte of NVLink, and tiles at 0.93 of
     * their time to make up for it: other times were predicted 9 % too short, and 0 to 1 % so. */
    a->unseen = "joule_flop,joule_byte,joule_link,heat,heat_rested,";
    a->pull = 0.1;
    if (!a->of)
        calibrate_device(m);
    struct calibrate_measure measure = {.program = a->program,
                                        .simulated = a->of,
                                        .gpus = (uint32_t)a->gpus,
                                        .sms = (uint32_t)m->sms,
                                        .fp8 = a->fp8,
                                        .folder = folder,
                                        .budget_ns = a->budget_ns};
    if (!folder || (a->tables && mkdir(folder, 0777) && errno != EEXIST))
        snprintf(error, size, "the folder %s cannot be made: %s", folder ? folder : temporary,
                 strerror(errno));
    else if (!calibrate_measure(&measure, error, size)) {
        if (measure.left_out)
            command_say("calibrate", 0, "no time was left for %u of the measurements",
                        measure.left_out);
        a->from = measure.list;
        status = calibrate_fit(a, m, error, size);
    }
    if (folder && !a->tables)
        calibrate_remove(folder);
    return status;
}

int command_calibrate(int argc, char **argv)
{
    struct arguments a = {.machine = "8xH200-cx7",
                          .rounds = 60,
                          .gpus = 2,
                          .budget_ns = 55000000000ull,
                          .pull = 0.01,
                          .unseen = ""};
    struct options_found found;
    struct mk_machine m = {.sms = 0};
    char error[1024];
    int ends = command_options("calibrate", &table, 8, argc, argv, &a, &found);
    if (ends >= 0)
        return ends;
    int here = options_given(&table, &found, "exec");
    if (found.word_count || (a.print != 0) + (a.from || a.half_of) + here != 1)
        return command_refuse("calibrate",
                              "it takes one of tables (--from, --half-of), --exec and --print");
    if (a.fp8 && !here)
        return command_refuse("calibrate", "--fp8 is for --exec: tables say what they are of");
    if ((a.exec == 1) != (a.of != NULL))
        return command_refuse("calibrate",
                              "--exec sim and --of, the machine that is measured, go together");
    struct mk_machine of;
    if (a.of && machine_find(&of, a.of, error, sizeof error))
        return command_say("calibrate", STATUS_USAGE, "%s", error);
    if (machine_find(&m, a.machine, error, sizeof error) ||
        output_check("--output", a.output, OUTPUT_WRITTEN, error, sizeof error))
        return command_say("calibrate", STATUS_USAGE, "%s", error);
    int status = a.print ? calibrate_write(a.output, &m, "", error, sizeof error)
                 : here  ? calibrate_here(&a, &m, error, sizeof error)
                         : calibrate_fit(&a, &m, error, sizeof error);
    return status == STATUS_DONE ? status : command_say("calibrate", status, "%s", error);
}

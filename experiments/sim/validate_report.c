/* What `mkernel sim --validate` prints, writes and draws. */
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "experiments/common/command_says.h"
#include "experiments/common/commands.h"
#include "experiments/common/csv_table.h"
#include "experiments/common/options.h"
#include "experiments/common/output_file.h"
#include "experiments/common/picture.h"
#include "experiments/common/problem.h"
#include "experiments/common/result_file.h"
#include "experiments/sim/validate.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int validate_write_csv(const char *path, const struct measured *m, const double *predicted)
{
    struct csv_table csv = {.count = 0};
    if (!m->count)
        return 0;
    for (uint32_t i = 0; i < m->count; i++) {
        const struct measured_row *r = &m->rows[i];
        const struct mk_problem *q = &r->plan.problem;
        csv_row(&csv);
        csv_text(&csv, "op", plan_op_name(q->op));
        csv_whole(&csv, "m", q->m);
        csv_whole(&csv, "n", q->n);
        csv_whole(&csv, "k", q->k);
        csv_whole(&csv, "nodes", q->topo.nodes);
        csv_whole(&csv, "gpus", q->topo.gpus);
        csv_number(&csv, "measured_ms", "%.6f", r->ms);
        csv_number(&csv, "predicted_ms", "%.6f", predicted[i]);
        csv_whole(&csv, "default", r->is_default != 0);
        csv_text(&csv, "made", r->words);
    }
    return csv_end(&csv, path, 0);
}

struct validate_picture {
    const struct measured *measured;
    const double *predicted;
};

extern const char validate_plot[];
__asm__(".section .rodata\n.global validate_plot\nvalidate_plot:\n"
        ".incbin \"experiments/sim/validate_plot.py\"\n.byte 0\n"
        ".size validate_plot, . - validate_plot\n.type validate_plot, @object\n.previous\n");

static int validate_picture(FILE *out, void *context, char *error, size_t size)
{
    const struct validate_picture *p = context;
    (void)error, (void)size;
    fprintf(out, "{\"kind\": \"scatter\", \"plans\": [");
    for (uint32_t i = 0; i < p->measured->count; i++)
        fprintf(out, "%s[\"%s\", %.9g, %.9g]", i ? ",\n" : "",
                plan_op_name(p->measured->rows[i].plan.problem.op), p->measured->rows[i].ms,
                p->predicted[i]);
    fprintf(out, "]}\n");
    return 0;
}

static int validate_draw(const char *path, const struct measured *m, const double *predicted,
                         char *error, size_t size)
{
    struct validate_picture p = {m, predicted};
    return picture_draw(&(struct picture){validate_plot, validate_picture, &p}, path, error, size);
}

static int validate_all(const struct mk_machine *machine, const char *list, enum measured_half half,
                        enum validate_by by, const char *plot, const char *csv, char *error,
                        size_t size)
{
    struct measured m = {.rows = NULL};
    MK_FREED double *predicted = NULL;
    int status = STATUS_USAGE;
    if ((plot && picture_check_path("--plot", plot, error, size)) ||
        output_check("--plot", plot, OUTPUT_WRITTEN, error, size) ||
        output_check("--csv", csv, OUTPUT_REPLACED, error, size) ||
        measured_read_list(&m, list, half, (uint32_t)machine->sms, error, size))
        goto out;
    if (!m.count) {
        snprintf(error, size, "%s: no plan that this build makes%s%s", list,
                 m.left_out ? "; the first was left out: " : "", m.left_out_why);
        goto out;
    }
    status = STATUS_FAILED;
    predicted = malloc(m.count * sizeof *predicted);
    if (!predicted) {
        snprintf(error, size, "no memory for %u plans", m.count);
        goto out;
    }
    if (validate_predict(machine, &m, by, predicted, error, size))
        goto out;
    printf("machine    %s, %s\n", machine->name,
           by == VALIDATE_EVENTS ? "event by event" : "the quick form, else event by event");
    if (m.left_out)
        printf("left out   %u rows: %s\n", m.left_out, m.left_out_why);
    if (validate_report(&m, predicted, stdout, NULL)) {
        snprintf(error, size, "no memory for the figures of %u plans", m.count);
        goto out;
    }
    int written = csv ? validate_write_csv(csv, &m, predicted) : 0;
    if (written)
        snprintf(error, size, "%s could not be written: %s", csv, strerror(-written));
    else if (!plot || !validate_draw(plot, &m, predicted, error, size))
        status = STATUS_DONE;
out:
    measured_free(&m);
    return status;
}

/* ---- the command ---- */

struct arguments {
    const char *validate, *machine, *plot, *csv;
    int half, by;
};

#define AT(field) .offset = offsetof(struct arguments, field)

static const char *const halves[] = {"all", "first", "rest"}; /* enum measured_half */
static const char *const ways[] = {"model", "events"};        /* enum validate_by */

static const struct option_spec specs[] = {
    {"validate", OPTION_TEXT, AT(validate), "FILE,...",
     "tables of measured plans, as `mkernel tune`, `bench` and `run` write them with --csv, and "
     "traces",
     .max = 4095},
    {"half", OPTION_WORD, AT(half), "all|first|rest",
     "which of each table's shapes: first: every other one from the 1st on, which `mkernel "
     "calibrate --half-of` fits to; rest: those between. Default all",
     .words = halves, .word_count = 3},
    {"by", OPTION_WORD, AT(by), "model|events",
     "model: the quick form that plans are chosen by, where an operator has one; events: the "
     "simulator, event by event. Default model",
     .words = ways, .word_count = 2},
    {"machine", OPTION_TEXT, AT(machine), "NAME|FILE", "Default 8xH200-cx7", .max = 4095},
    {"plot", OPTION_TEXT, AT(plot), "FILE", "draw predicted against measured, .png or .svg",
     .max = 4095},
    {"csv", OPTION_TEXT, AT(csv), "FILE", "a row for each plan", .max = 4095},
};

static const struct option_table table = {
    "sim --validate FILE [OPTIONS]",
    "Predicted beside measured times: errors of each shape, the rank correlation of its plans, "
    "and\n"
    "what the plan would cost that is predicted to be best.\n",
    specs, sizeof specs / sizeof *specs,
    "  mkernel sim --validate tune_gemm_rs.csv --plot scatter.png\n"
    "  mkernel sim --validate tune_ag_gemm.csv,tune_gemm_rs.csv --half rest --machine "
    "./m.machine\n"};

int sim_validate(int argc, char **argv)
{
    struct arguments a = {.machine = "8xH200-cx7"};
    struct options_found found;
    struct mk_machine m = {.sms = 0};
    char error[1024] = "";
    int ends = command_options("sim", &table, 8, argc, argv, &a, &found), status = STATUS_USAGE;
    if (ends >= 0)
        return ends;
    if (found.word_count || !a.validate)
        snprintf(error, sizeof error, "--validate takes tables, and no operator");
    else if (!machine_find(&m, a.machine, error, sizeof error))
        status = validate_all(&m, a.validate, (enum measured_half)a.half, (enum validate_by)a.by,
                              a.plot, a.csv, error, sizeof error);
    return status ? command_say("sim", status, "%s", error) : status;
}

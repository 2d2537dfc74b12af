#include "experiments/sim/sim_sweep.h"
#include "experiments/common/commands.h"
#include "experiments/common/gnuplot.h"
#include "experiments/common/output_file.h"
#include "experiments/common/pulse.h"
#include "experiments/common/result_file.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { AXES = 12, VALUES = 64, POINTS = 4096, WORD = 96 };

struct sweep_axis {
    char name[24];
    uint32_t count;
    char values[VALUES][WORD];
};

/* One combination, and what came of it. */
struct sweep_point {
    int refused; /* it cannot be: `why` */
    char why[200];
    struct mk_plan *plan;
    struct timed_result result;
    double ideal, tflops;
};

struct sweep {
    const struct sim_timed *shared;
    const struct sim_arguments *arguments;
    struct sweep_axis axes[AXES];
    uint32_t axis_count, points;
    struct sweep_point *of;
    uint32_t next; /* atomic: the next point that no thread has taken */
    uint64_t done; /* atomic, for the progress line */
};

/* ---- what is swept ---- */

static int sweep_known(enum mk_op op, const char *name)
{
    static const char *const always[] = {"nodes", "gpus", "machine", "network"};
    if (!strcmp(name, op_of(op)->shape->option))
        return 1;
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (!strcmp(name, always[i]))
            return 1;
    for (uint32_t i = 0; i < TUNING_KNOBS; i++)
        if (!strcmp(name, tuning_knobs[i].name) && op_of(op)->knobs >> i & 1)
            return 1;
    return 0;
}

static void sweep_names(enum mk_op op, char *text, size_t size)
{
    size_t used =
        (size_t)snprintf(text, size, "nodes, gpus, %s, machine, network", op_of(op)->shape->option);
    for (uint32_t i = 0; i < TUNING_KNOBS && used < size; i++)
        if (op_of(op)->knobs >> i & 1)
            used += (size_t)snprintf(text + used, size - used, ", %s", tuning_knobs[i].name);
}

static int sweep_read_axis(struct sweep *s, enum mk_op op, const char *text, size_t length,
                           char *error, size_t size)
{
    struct sweep_axis *axis = &s->axes[s->axis_count];
    size_t name = strcspn(text, "="), at;
    char names[300];
    if (name >= length || !name || name >= sizeof axis->name) {
        snprintf(error, size, "--sweep %.*s: it is written nodes=1,2,4", (int)length, text);
        return -EINVAL;
    }
    snprintf(axis->name, sizeof axis->name, "%.*s", (int)name, text);
    if (!sweep_known(op, axis->name)) {
        sweep_names(op, names, sizeof names);
        snprintf(error, size, "--sweep %s: of %s these can be swept: %s", axis->name,
                 plan_op_name(op), names);
        return -EINVAL;
    }
    for (uint32_t i = 0; i < s->axis_count; i++)
        if (!strcmp(s->axes[i].name, axis->name)) {
            snprintf(error, size, "--sweep has %s twice", axis->name);
            return -EINVAL;
        }
    for (at = name + 1, axis->count = 0; at <= length; axis->count++) {
        size_t word = strcspn(text + at, ",:");
        if (at + word > length)
            word = length - at;
        if (!word || word >= WORD || axis->count == VALUES) {
            snprintf(error, size, "--sweep %s: 1 to %d values of at most %d characters", axis->name,
                     VALUES, WORD - 1);
            return -EINVAL;
        }
        snprintf(axis->values[axis->count], WORD, "%.*s", (int)word, text + at);
        at += word + 1;
    }
    s->axis_count++;
    return 0;
}

static int sweep_read(struct sweep *s, enum mk_op op, const char *text, char *error, size_t size)
{
    uint64_t points = 1;
    for (;;) {
        size_t length = strcspn(text, ":");
        if (s->axis_count == AXES) {
            snprintf(error, size, "--sweep has more than %d names", AXES);
            return -EINVAL;
        }
        if (sweep_read_axis(s, op, text, length, error, size))
            return -EINVAL;
        points *= s->axes[s->axis_count - 1].count;
        if (points > POINTS) {
            snprintf(error, size, "--sweep has more than %d combinations", POINTS);
            return -EINVAL;
        }
        if (!text[length])
            break;
        text += length + 1;
    }
    s->points = (uint32_t)points;
    return 0;
}

/* ---- one combination ---- */

static const char *sweep_value(const struct sweep *s, uint32_t point, uint32_t axis)
{
    for (uint32_t i = s->axis_count - 1; i > axis; i--)
        point /= s->axes[i].count;
    return s->axes[axis].values[point % s->axes[axis].count];
}

static int sweep_number(const char *name, const char *text, uint64_t most, uint64_t *out,
                        char *error, size_t size)
{
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    if (*text >= '0' && *text <= '9' && !*end && !errno && *out && *out <= most)
        return 0;
    snprintf(error, size, "--sweep %s=%s: it is a number from 1 to %llu", name, text,
             (unsigned long long)most);
    return -EINVAL;
}

static int sweep_shape(enum mk_op op, const char *text, uint64_t *numbers, char *error, size_t size)
{
    const struct op_shape *shape = op_of(op)->shape;
    uint32_t count = op_dimensions(shape), read = 0;
    char copy[WORD], *at = copy, *word;
    snprintf(copy, sizeof copy, "%s", text);
    while ((word = strsep(&at, "x")) && read < count)
        if (sweep_number(shape->option, word, UINT32_MAX, &numbers[read++], error, size))
            break;
    if (!word && read == count && !at)
        return 0;
    snprintf(error, size, "--sweep %s=%s: of %s it is %s with x between its numbers", shape->option,
             text, plan_op_name(op), shape->letters);
    return -EINVAL;
}

/* What point `i` is made of. 0, or -EINVAL with a sentence about the command line. */
static int sweep_make(const struct sweep *s, uint32_t point, struct sim_case *of,
                      struct mk_problem *q, char *error, size_t size)
{
    struct problem_options ask = s->arguments->ask;
    enum mk_op op = s->shared->problem.op;
    struct mk_tuning tuning = {0};
    char word[2 * WORD];
    int rc = 0, tuned = 0;
    *of = *s->shared->of;
    *q = s->shared->problem;
    for (uint32_t i = 0; i < s->axis_count && !rc; i++) {
        const char *name = s->axes[i].name, *value = sweep_value(s, point, i);
        uint64_t number = 0;
        if (!strcmp(name, "nodes")) {
            rc = sweep_number(name, value, MK_MAX_RANKS, &number, error, size);
            q->topo.nodes = (uint32_t)number;
        } else if (!strcmp(name, "gpus")) {
            rc = sweep_number(name, value, MK_MAX_LOCAL, &number, error, size);
            q->topo.gpus = (uint32_t)number;
        } else if (!strcmp(name, "machine")) {
            double rate = of->machine.nic_rate;
            rc = machine_find(&of->machine, value, error, size);
            if (of->options.network)
                of->machine.nic_rate = rate;
            sim_case_differs(of);
        } else if (!strcmp(name, "network")) {
            of->options.network = value;
            rc = sim_case_network(of, error, size);
        } else if (!strcmp(name, op_of(op)->shape->option)) {
            rc = sweep_shape(op, value, ask.numbers, error, size);
        } else {
            snprintf(word, sizeof word, "%s=%s", name, value);
            rc = tuning_read_word(word, op, &tuning, error, size);
            tuned = 1;
        }
    }
    if (rc)
        return rc;
    problem_fill(&ask, s->arguments->plan ? OP_SIZE_HOST : OP_SIZE_GPU, q);
    for (uint32_t i = 0; tuned && i < TUNING_KNOBS; i++)
        for (uint32_t part = 0; part < tuning_knobs[i].parts; part++)
            if (tuning_value(&tuning, i)[part])
                tuning_value(&q->tuning, i)[part] = tuning_value(&tuning, i)[part];
    return 0;
}

static void sweep_run(struct sweep *s, uint32_t point)
{
    struct sweep_point *p = &s->of[point];
    struct sim_case of;
    struct mk_problem q;
    struct timed_config config = {.launches = s->shared->launches,
                                  .seed = s->shared->seed,
                                  .ring = s->shared->ring,
                                  .in_flight = s->shared->in_flight};
    double flop;
    uint64_t nvlink, network;
    p->plan = calloc(1, sizeof *p->plan);
    p->refused = !p->plan || sweep_make(s, point, &of, &q, p->why, sizeof p->why) ||
                 sim_case_plan(&of, p->plan, &q, p->why, sizeof p->why) ||
                 sim_case_config(&of, p->plan, &config, p->why, sizeof p->why);
    if (p->refused)
        return;
    if (timed_run(&config, &p->result)) {
        p->refused = 1;
        snprintf(p->why, sizeof p->why, "%.199s", p->result.sentence);
    }
    free((void *)(uintptr_t)config.slow);
    sim_case_work(&of, p->plan, &flop, &nvlink, &network);
    p->ideal = timed_ideal(&of.machine, p->plan);
    p->tflops = flop * s->shared->launches / (double)p->result.ns / 1e3;
}

static void *sweep_work(void *argument)
{
    struct sweep *s = argument;
    uint32_t point;
    while ((point = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED)) < s->points) {
        sweep_run(s, point);
        __atomic_fetch_add(&s->done, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void sweep_run_all(struct sweep *s)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t jobs = s->arguments->jobs ? s->arguments->jobs : cores > 0 ? (uint64_t)cores : 1;
    pthread_t threads[1024];
    uint64_t started = 0;
    jobs = jobs < s->points ? jobs : s->points;
    pulse_says("%u simulations, %llu at once", s->points, (unsigned long long)jobs);
    pulse_counts(&s->done, s->points);
    while (started + 1 < jobs && !pthread_create(&threads[started], NULL, sweep_work, s))
        started++;
    sweep_work(s);
    while (started)
        pthread_join(threads[--started], NULL);
    pulse_counts(NULL, 0);
    pulse_hide();
}

/* ---- what it came to ---- */

/* The largest part of the longest chain. */
static int sweep_largest(const double *of, int count)
{
    int best = 0;
    for (int i = 1; i < count; i++)
        best = of[i] > of[best] ? i : best;
    return best;
}

static double sweep_ms(const struct sweep *s, const struct sweep_point *p)
{
    return (double)p->result.ns / s->shared->launches / 1e6;
}

static void sweep_print(FILE *out, const struct sweep *s)
{
    int widths[AXES];
    for (uint32_t i = 0; i < s->axis_count; i++) {
        widths[i] = (int)strlen(s->axes[i].name);
        for (uint32_t v = 0; v < s->axes[i].count; v++)
            if ((int)strlen(s->axes[i].values[v]) > widths[i])
                widths[i] = (int)strlen(s->axes[i].values[v]);
        fprintf(out, "%-*s  ", widths[i], s->axes[i].name);
    }
    fprintf(out, "%10s %10s %6s %7s  %s\n", "ms", "ideal", "eff.", "TFLOP/s",
            "longest chain: most of it");
    for (uint32_t point = 0; point < s->points; point++) {
        const struct sweep_point *p = &s->of[point];
        for (uint32_t i = 0; i < s->axis_count; i++)
            fprintf(out, "%-*s  ", widths[i], sweep_value(s, point, i));
        if (p->refused) {
            fprintf(out, "%10s  %s\n", "-", p->why);
            continue;
        }
        int part = sweep_largest(p->result.parts, TIMED_PARTS),
            role = sweep_largest(p->result.roles, MK_ROLES);
        double launch = sweep_ms(s, p) * 1e6;
        fprintf(out, "%10.4f %10.4f %6.3f %7.1f  %s %.0f %%, %s %.0f %%\n", launch / 1e6,
                p->ideal / 1e6, p->ideal / launch, p->tflops, timed_part_names[part],
                100 * p->result.parts[part] / launch, plan_role_name((enum mk_role)role),
                100 * p->result.roles[role] / launch);
    }
}

/* A field of CSV (RFC 4180). */
static void sweep_field(FILE *f, const char *text)
{
    fputc('"', f);
    for (; *text; text++)
        fprintf(f, *text == '"' ? "\"\"" : "%c", *text);
    fputc('"', f);
}

static int sweep_write_csv(const struct sweep *s, const char *path)
{
    struct result_file file;
    char words[256];
    int rc = result_open(&file);
    FILE *f = file.out;
    if (rc)
        return rc;
    fprintf(f, "op");
    for (uint32_t i = 0; i < s->axis_count; i++)
        fprintf(f, ",%s", s->axes[i].name);
    fprintf(f, ",ms,ideal_ms,efficiency,tflops,busy,made,tuned,chain,events,seconds");
    for (int i = 0; i < TIMED_PARTS; i++)
        fprintf(f, ",%s_ms", timed_part_names[i]);
    fprintf(f, ",refused\n");
    for (uint32_t point = 0; point < s->points; point++) {
        const struct sweep_point *p = &s->of[point];
        fprintf(f, "%s", plan_op_name(s->shared->problem.op));
        for (uint32_t i = 0; i < s->axis_count; i++) {
            fputc(',', f);
            sweep_field(f, sweep_value(s, point, i));
        }
        if (p->refused) {
            for (int i = 0; i < 10 + TIMED_PARTS; i++)
                fputc(',', f);
            fputc(',', f);
            sweep_field(f, p->why);
            fputc('\n', f);
            continue;
        }
        double ms = sweep_ms(s, p);
        fprintf(f, ",%.6g,%.6g,%.4f,%.5g,%.4f,", ms, p->ideal / 1e6, p->ideal / 1e6 / ms, p->tflops,
                p->result.busy);
        sweep_field(f, tuning_words(&p->plan->problem.tuning, words, sizeof words));
        fputc(',', f);
        sweep_field(f, p->plan->tuned);
        fprintf(f, ",%s,%llu,%.4g", timed_part_names[sweep_largest(p->result.parts, TIMED_PARTS)],
                (unsigned long long)p->result.events, p->result.seconds);
        for (int i = 0; i < TIMED_PARTS; i++)
            fprintf(f, ",%.6g", p->result.parts[i] / 1e6);
        fprintf(f, ",\n");
    }
    return result_close(&file, path);
}

/* Times over the values of the first name, a line for each combination of the others. */
static int sweep_plot(const struct sweep *s, const char *path, char *error, size_t size)
{
    const struct sweep_axis *first = &s->axes[0];
    uint32_t lines = s->points / first->count;
    char *script = NULL;
    size_t length;
    FILE *f = open_memstream(&script, &length);
    if (!f)
        return -ENOMEM;
    fprintf(f, "set terminal %s size 1000,600%s\nset title ",
            gnuplot_is_svg(path) ? "svg" : "pngcairo",
            gnuplot_is_svg(path) ? " background '#ffffff'" : "");
    gnuplot_quoted(f, plan_op_name(s->shared->problem.op));
    fprintf(f, " noenhanced\nset ylabel 'ms a launch'\nset yrange [0:*]\nset grid y\n"
               "set key below noenhanced\nset offsets 0.2, 0.2, 0, 0\nset xtics noenhanced\nset "
               "xlabel ");
    gnuplot_quoted(f, first->name);
    fprintf(f, " noenhanced\n$data << END\n");
    for (uint32_t v = 0; v < first->count; v++) {
        fprintf(f, "%s", first->values[v]);
        for (uint32_t line = 0; line < lines; line++) {
            const struct sweep_point *p = &s->of[v * lines + line];
            if (p->refused)
                fprintf(f, " NaN");
            else
                fprintf(f, " %.6g", sweep_ms(s, p));
        }
        fputc('\n', f);
    }
    fprintf(f, "END\nplot ");
    for (uint32_t line = 0; line < lines; line++) {
        char title[AXES * (WORD + 24)] = "";
        for (uint32_t i = 1, used = 0; i < s->axis_count; i++)
            used += (uint32_t)snprintf(title + used, sizeof title - used, "%s%s=%s",
                                       i > 1 ? " " : "", s->axes[i].name, sweep_value(s, line, i));
        fprintf(f, "%s$data using 0:%u:xtic(1) with linespoints lw 2 title ", line ? ", " : "",
                line + 2);
        gnuplot_quoted(f, *title ? title : "simulated");
    }
    fputc('\n', f);
    int rc = fclose(f) ? -ENOMEM : gnuplot_picture(script, path, error, size);
    free(script);
    return rc;
}

static int sweep_tell(const struct sweep *s, char *error, size_t size)
{
    const struct sim_arguments *a = s->arguments;
    uint32_t refused = 0;
    for (uint32_t i = 0; i < s->points; i++)
        refused += (uint32_t)s->of[i].refused;
    if (refused == s->points) {
        snprintf(error, size, "no combination can be simulated; the first: %s", s->of[0].why);
        return STATUS_USAGE;
    }
    FILE *out = output_table(a->quiet, a->csv, a->plot);
    if (out)
        sweep_print(out, s);
    int rc = out ? output_table_end(out) : 0;
    if (!rc && a->csv && (rc = sweep_write_csv(s, a->csv)))
        snprintf(error, size, "%s could not be written: %s", a->csv, strerror(-rc));
    if (!rc && a->plot)
        rc = sweep_plot(s, a->plot, error, size);
    if (rc && !*error)
        snprintf(error, size, "the table could not be written: %s", strerror(-rc));
    return rc ? STATUS_FAILED : STATUS_DONE;
}

int sim_sweep(const struct sim_timed *shared, const struct sim_arguments *a, char *error,
              size_t size)
{
    struct sweep *s = calloc(1, sizeof *s);
    struct sim_case of;
    struct mk_problem q;
    int status = s ? 0 : STATUS_FAILED;
    if (s) {
        s->shared = shared;
        s->arguments = a;
    }
    if (!status && sweep_read(s, shared->problem.op, a->sweep, error, size))
        status = STATUS_USAGE;
    /* Every value is read once before anything starts. */
    for (uint32_t i = 0; !status && i < s->points; i++)
        status = sweep_make(s, i, &of, &q, error, size) ? STATUS_USAGE : 0;
    if (!status && !a->dry_run) {
        s->of = calloc(s->points, sizeof *s->of);
        status = s->of ? 0 : STATUS_FAILED;
    }
    if (!status && !a->dry_run) {
        sweep_run_all(s);
        status = sweep_tell(s, error, size);
    }
    if (status == STATUS_FAILED && !*error)
        snprintf(error, size, "out of memory");
    for (uint32_t i = 0; s && s->of && i < s->points; i++)
        free(s->of[i].plan);
    if (s)
        free(s->of);
    free(s);
    return status;
}

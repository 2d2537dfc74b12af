/* Proves that each field of core/plan/plan_fields.h is found wherever its row says that it is read: no
 * reader has a list of its own. */
#include "tests/helpers/test.h"
#include "tests/helpers/trace_parts.h"

#include "core/comm/comm_parts.h"
#include "core/ops/op.h"
#include "core/plan/plan_fields.h"
#include "core/plan/tuning.h"
#include "experiments/common/json_write.h"
#include "experiments/common/plan_row.h"
#include "experiments/common/problem.h"

#define EACH(f)                                                                                    \
    const struct plan_field *f = plan_fields;                                                      \
    f < plan_fields + PLAN_FIELDS;                                                                 \
    f++

/* A value that a plan without the option does not have. */
static uint64_t other(const struct plan_field *f)
{
    float real = 0.5f;
    uint32_t bits;
    memcpy(&bits, &real, sizeof bits);
    return f->kind == PLAN_REAL ? bits : f->first + 1 > f->least ? f->first + 1 : f->least;
}

static struct mk_problem problem_with(const struct plan_field *f, uint64_t value)
{
    struct mk_problem q = {.op = 0};
    while (!plan_field_of(f, (enum mk_op)q.op))
        q.op++;
    op_of((enum mk_op)q.op)->choose_shape(OP_SIZE_HOST, 2, (uint64_t[OP_DIMENSIONS]){0});
    plan_field_set(f, &q, value);
    assert_int_equal(plan_field_get(f, &q), value);
    return q;
}

CASE(names_are_there_once)
{
    for (EACH(f))
        for (const struct plan_field *g = plan_fields; g < f; g++)
            assert_string_not_equal(f->name, g->name);
}

CASE(ranks_agree_on_each)
{
    static struct mk_comm comm;
    for (EACH(f)) {
        struct mk_problem q = problem_with(f, other(f)), none = {.op = q.op};
        const char *told = comm_fields_difference(&comm, &q, &none);
        if (!told || strcmp(told, plan_field_told(f)) != 0)
            fail_msg("ranks that differ in %s are told of %s", f->name, told ? told : "nothing");
    }
}

/* What a plan says of itself is what a spec reads. */
CASE(specs_read_what_plans_say)
{
    char options[256], name[48], error[256];
    for (const struct plan_field *f = NULL;
         (f = plan_field_next(f, PLAN_IN_SPEC | PLAN_IN_WORDS));) {
        struct mk_plan p = {.problem = problem_with(f, other(f))};
        struct mk_spec spec = {.op = p.problem.op, .options = options};
        struct mk_problem back;
        if (f->knob == OP_TILE)
            p.problem.tuning.tile_n = 16;
        spec_options(&p, options, sizeof options);
        snprintf(name, sizeof name, "%s=", plan_field_option(f));
        assert_int_equal(strncmp(options, name, strlen(name)), 0);
        op_numbers(&p.problem, spec.shape);
        if (spec_to_problem(&back, &spec, error, sizeof error))
            fail_msg("%s: %s", options, error);
        for (uint32_t part = 0; part < f->parts || !part; part++)
            assert_int_equal(plan_field_get(f + part, &back), plan_field_get(f + part, &p.problem));
    }
}

/* The cell of a table with one row, none of them quoted. */
static const char *cell_of(const void *row, const char *name)
{
    static char cell[64];
    const struct csv_table *t = row;
    const char *header = t->header, *cells = t->rows;
    const size_t length = strlen(name);
    while (*header && (strcspn(header, ",") != length || strncmp(header, name, length))) {
        header += strcspn(header, ",") + 1;
        cells += strcspn(cells, ",") + 1;
        if (header > t->header + t->header_bytes)
            return "";
    }
    snprintf(cell, sizeof cell, "%.*s", (int)strcspn(cells, ","), cells);
    return cell;
}

/* `mkernel run OP --dtype fp16`: the option's value is the problem's. */
CASE(options_ask_for_each)
{
    static struct problem_table table;
    static const struct option_table own = {.usage = "run OP", .about = "."};
    problem_table(&table, &own, PROBLEM_RUN, 0, "the plan");
    for (const struct plan_field *f = NULL;
         (f = plan_field_next(f, PLAN_IN_COMMAND | PLAN_IN_COMMAND_PLAN));) {
        struct mk_problem q = problem_with(f, other(f)),
                          made = {.op = q.op, .topo = {.nodes = 1, .gpus = 2}};
        struct problem_options asked = {.replicas = 0};
        struct options_found found;
        char option[PROBLEM_FIELD_TEXT], value[PLAN_FIELD_TEXT], words[PLAN_FIELD_TEXT], name[48],
            error[256] = "";
        enum mk_op op;
        snprintf(value, sizeof value, "%s%s%s", f->knob == OP_ROLES ? "compute=" : "",
                 f->none ? f->none : plan_field_text(f, other(f), words),
                 f->knob == OP_TILE ? ",16" : "");
        snprintf(name, sizeof name, "%s", plan_op_name(q.op));
        const int flag = f->kind == PLAN_FLAG || f->kind == PLAN_SUMS;
        problem_field_option(f, 0, option)[2 + strlen(plan_field_option(f))] = '\0';
        char *line[] = {NULL, name, option, value};
        if (options_parse(&table.table, flag ? 3 : 4, line, &asked, &found, error, sizeof error) ||
            problem_check(&table, &found, &asked, &op, error, sizeof error))
            fail_msg("%s: %s", f->name, error);
        problem_fill(&asked, OP_SIZE_HOST, &made);
        assert_int_equal(plan_field_get(f, &made), other(f));
    }
}

CASE(rows_say_each_and_read_it_back)
{
    for (const struct plan_field *f = NULL; (f = plan_field_next(f, PLAN_IN_ROW | PLAN_IN_PLAN));) {
        struct mk_problem q = problem_with(f, other(f)), back = {.op = q.op};
        struct csv_table row = {.count = 0};
        if (f->in & PLAN_OF_FP8)
            q.fp8 = 1;
        csv_row(&row);
        plan_row_problem(&row, &q);
        plan_row_options(&row, &q);
        fflush(row.names);
        fflush(row.cells);
        const char *wrong = plan_row_read(&back, cell_of, &row);
        if (wrong)
            fail_msg("%s of a row with %s is not read", wrong, f->name);
        if (plan_field_get(f, &back) != other(f))
            fail_msg("a row does not keep %s", f->name);
        csv_free(&row);
    }
}

/* What tables, tuned plans and command lines had before it had words. */
CASE(numbers_of_shots_are_read)
{
    static struct problem_table table;
    static const struct option_table own = {.usage = "run OP", .about = "."};
    const struct plan_field *shots = plan_field_named("shots");
    problem_table(&table, &own, PROBLEM_RUN, 0, "the plan");
    for (uint32_t number = MK_ONE_SHOT; number <= MK_SHOTS; number++) {
        struct mk_problem q = {.op = MK_OP_GEMM_AR};
        struct mk_tuning t = {.shots = 0};
        struct problem_options asked = {.replicas = 0};
        struct options_found found;
        char digit[] = {(char)('0' + number), '\0'}, word[16], option[] = "--shots", error[256],
             name[] = "gemm_ar", *line[] = {NULL, name, option, digit};
        struct csv_table row = {.count = 0};
        csv_row(&row);
        csv_text(&row, "shots", digit);
        fflush(row.names);
        fflush(row.cells);
        assert_null(plan_row_read(&q, cell_of, &row));
        csv_free(&row);
        snprintf(word, sizeof word, "shots=%s", digit);
        assert_int_equal(tuning_read_word(word, MK_OP_GEMM_AR, &t, error, sizeof error), 0);
        assert_int_equal(options_parse(&table.table, 4, line, &asked, &found, error, sizeof error),
                         0);
        assert_int_equal(q.tuning.shots, number);
        assert_int_equal(t.shots, number);
        assert_int_equal(problem_field(&asked, "shots")->word, number);
        assert_int_equal(plan_field_word(shots, plan_shots[number - 1]), number);
    }
}

CASE(json_says_each)
{
    for (const struct plan_field *f = NULL;
         (f = plan_field_next(f, PLAN_IN_JSON | PLAN_IN_JSON_SET));) {
        struct mk_problem q = problem_with(f, other(f));
        char *text, name[48];
        size_t bytes;
        FILE *out = open_memstream(&text, &bytes);
        json_problem(out, &q);
        fclose(out);
        snprintf(name, sizeof name, "\"%s\": ", f->name);
        if (!strstr(text, name))
            fail_msg("JSON lacks %s: %s", f->name, text);
        free(text);
    }
}

CASE(traces_say_each)
{
    static struct parts p;
    for (const struct plan_field *f = NULL;
         (f = plan_field_next(f, PLAN_IN_TRACE | PLAN_IN_TRACE_SET));) {
        char ask[96], value[24];
        sqlite3 *db;
        parts_make(&p);
        p.plan[0].problem = problem_with(f, other(f));
        parts_store(&p, db);
        snprintf(ask, sizeof ask,
                 "SELECT CAST(value AS INTEGER) FROM metric WHERE name = 'plan 1: %s'",
                 plan_field_told(f));
        snprintf(value, sizeof value, "%lu", other(f));
        parts_ask(db, ask, value);
        sqlite3_close(db);
    }
}

/* Python reads options out of descriptions (mkernel/_shapes.py). */
CASE(descriptions_name_each)
{
    for (const struct plan_field *f = NULL;
         (f = plan_field_next(f, PLAN_IN_SPEC | PLAN_IN_WORDS));) {
        char text[8192], name[48];
        assert_in_range(mk_op_describe(problem_with(f, other(f)).op, text, sizeof text), 1,
                        sizeof text - 1);
        snprintf(name, sizeof name, "\"%s\"", plan_field_option(f));
        if (!strstr(strstr(text, "\"options\":["), name))
            fail_msg("no %s among the options of %s", f->name, text);
    }
}

/* A tuned plan of a problem with the field is kept in a line that says it, and is no other's. */
CASE(tuned_lines_keep_each)
{
    for (const struct plan_field *f = NULL; (f = plan_field_next(f, PLAN_IN_TUNED));) {
        const struct mk_problem q = problem_with(f, other(f)), plain = {.op = q.op};
        struct tuning_entry kept, others;
        struct tuning_table t;
        char path[128], error[256] = "";
        snprintf(path, sizeof path, "%s", parts_path(f->name));
        tuning_key(&kept, &q, "G");
        tuning_key(&others, &plain, "G");
        for (uint32_t i = 0; i < MK_OWN_NUMBERS; i++)
            kept.numbers[i] = others.numbers[i] = i < op_dimensions(op_of(q.op)->shape) ? 64 : 0;
        kept.nodes = kept.gpus = others.nodes = others.gpus = 1;
        assert_false(tuning_same(&kept, &others));
        if (tuning_store(path, &kept, error, sizeof error) ||
            tuning_open(&t, path, 0, error, sizeof error))
            fail_msg("%s: %s", f->name, error);
        assert_true(tuning_same(&t.entries[0], &kept));
        tuning_close(&t);
    }
}

CASE(problem_texts_say_each_and_read_it_back)
{
    for (const struct plan_field *f = NULL;
         (f = plan_field_next(f, PLAN_IN_TEXT | PLAN_IN_TEXT_NAMED));) {
        struct mk_problem q = problem_with(f, other(f)), back = {.op = q.op};
        char text[OP_PROBLEM_TEXT];
        op_set_numbers(&q, (uint64_t[OP_DIMENSIONS]){64, 64, 64, 64, 64});
        if (op_read_problem(&back, op_problem_text(&q, text)))
            fail_msg("'%s' is not read", text);
        assert_int_equal(plan_field_get(f, &back), other(f));
    }
}

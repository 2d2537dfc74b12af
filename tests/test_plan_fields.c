/* Proves that each field of core/plan/plan_fields.h is found wherever its row says that it is read: no
 * reader has a list of its own. */
#include "tests/helpers/test.h"

#include "core/comm/comm_parts.h"
#include "core/ops/op.h"
#include "core/plan/plan_fields.h"

#include <string.h>

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
    return f->kind == PLAN_REAL ? bits : f->first + 1;
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

static void names_are_there_once(void **state)
{
    for (EACH(f))
        for (const struct plan_field *g = plan_fields; g < f; g++)
            assert_string_not_equal(f->name, g->name);
}

static void ranks_agree_on_each(void **state)
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
static void specs_read_what_plans_say(void **state)
{
    char options[256], name[48], error[256];
    for (EACH(f)) {
        struct mk_plan p = {.problem = problem_with(f, other(f))};
        struct mk_spec spec = {.op = p.problem.op, .options = options};
        struct mk_problem back;
        spec_options(&p, options, sizeof options);
        snprintf(name, sizeof name, "%s=", f->name);
        if (!(f->in & PLAN_IN_SPEC))
            continue;
        assert_int_equal(strncmp(options, name, strlen(name)), 0);
        op_numbers(&p.problem, spec.shape);
        if (spec_to_problem(&back, &spec, error, sizeof error))
            fail_msg("%s: %s", options, error);
        assert_int_equal(plan_field_get(f, &back), other(f));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_there_once),
        cmocka_unit_test(ranks_agree_on_each),
        cmocka_unit_test(specs_read_what_plans_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

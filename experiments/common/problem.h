/* The options of the problem and the plan: one table for `run`, `bench`, `tune` and `sim`, made
 * from the operators' descriptors (core/ops/op.h). */
#pragma once

#include "core/ops/op.h"
#include "core/plan/plan_fields.h"
#include "core/plan/tuning.h"
#include "experiments/common/options.h"

struct problem_options {
    uint64_t numbers[OP_DIMENSIONS]; /* of the operator's shape; 0: choose */
    union problem_value {
        int word; /* or flag */
        uint64_t number;
        const char *text;  /* until problem_check: an epilogue's words; NULL or "none": none */
    } fields[PLAN_FIELDS]; /* of fields with an option, but roles; 0: choose */
    struct mk_role_split roles;
    uint64_t replicas; /* of a MoE's experts, that are copies of others */
};

/* Which of these options a command has. TUNE: the problem alone, of operators with tuned plans;
 * SIM: also the words that the explorer takes. */
enum problem_command { PROBLEM_RUN, PROBLEM_TUNE, PROBLEM_SIM };

#define PROBLEM_GROUP "the problem"
#define PROBLEM_FIELD_TEXT 48

/* A table of options: those of the problem and the plan, then the command's own. */
struct problem_table {
    struct option_table table;
    struct option_spec specs[OPTIONS_MOST];
    char about[1500];
};

/* Makes the table of a command from its own, whose `about` ends where operators are listed.
 * `at`: where struct problem_options lies in the values; `plan`: the heading of the plan's
 * options. */
void problem_table(struct problem_table *t, const struct option_table *own,
                   enum problem_command command, size_t at, const char *plan);

/* Restricts option `name` to the operators for which `wanted` is true. */
void problem_restrict(struct problem_table *t, const char *name, int (*wanted)(enum mk_op op));

/* Prints the help; if an operator was named, its own help and the options that it takes. */
void problem_help(const struct problem_table *t, const struct options_found *found, FILE *out);

/* What was asked for a field, "dtype": its word's number, its number, or an epilogue's bits. */
uint64_t problem_asked(const struct problem_options *o, const char *field);

/* Where that is; of an option with several parts theirs follow. */
union problem_value *problem_field(struct problem_options *o, const char *field);

/* The option for a field, "--b-layout"; of one with several parts one of them, "--tile N".
 * Returns `text`. */
char *problem_field_option(const struct plan_field *field, uint32_t part,
                           char text[PROBLEM_FIELD_TEXT]);

/* Finds the operator that was named, and checks that it takes all options that were given, and as
 * many numbers. 0, or -EINVAL with a sentence. */
int problem_check(const struct problem_table *t, const struct options_found *found,
                  struct problem_options *o, enum mk_op *op, char *error, size_t size);

/* The problem's numbers, flags and tuning, of q->op on q->topo: what was given, else the operator's
 * default of this size; o->numbers too. */
void problem_fill(struct problem_options *o, enum op_size size, struct mk_problem *q);

/* Whether --replicas is possible for this problem. 0, or -EINVAL with a sentence. */
int problem_check_replicas(const struct problem_options *o, const struct mk_problem *q, char *error,
                           size_t size);

/* What a plan's line says of its slices, "4 slices, "; of fewer than were asked for, that it has no
 * more; nothing of one where nobody asked for more. Returns `text`. */
#define PROBLEM_SLICES_TEXT 64
char *problem_slices(const struct mk_tuning *plan, const struct mk_tuning *asked,
                     char text[PROBLEM_SLICES_TEXT]);

/* The memory that a plan needs besides its arguments: "1.25 GB of each rank's heap (capacity
 * 4096)". Returns `text`. */
#define PROBLEM_HEAP_TEXT 96
const char *problem_heap_text(const struct mk_plan *plan, char text[PROBLEM_HEAP_TEXT]);

/* Whether a number of `q` is one of its operator's shape: &q->m, say. */
int problem_has(const struct mk_problem *q, const uint64_t *number);

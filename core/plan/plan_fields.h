/* The fields of a problem and of its plan that a user can say beside the problem's numbers, each
 * written once: its name, what its values look like, where it lies in struct mk_problem, which
 * operators have it, and who reads it. Options of a spec and of the command, tuned plans, rows of
 * tables, JSON and traces walk this table; ranks agree on all of it. Kernels do not see it. */
#pragma once

#include "core/ops/registry.h"
#include "core/plan/plan.h"

enum plan_field_kind {
    PLAN_NUMBER,
    PLAN_FLAG,     /* 0 or 1 */
    PLAN_WORD,     /* the number of one of `words` */
    PLAN_SUMS,     /* enum mk_deterministic: in JSON the first two of its words are no text */
    PLAN_EPILOGUE, /* bits of enum mk_epilogue */
    PLAN_REAL      /* the bits of a float */
};

/* Who reads a field. */
enum {
    PLAN_IN_SPEC = 1,         /* the options of a spec (mk_spec.options) and of a plan */
    PLAN_IN_ROW = 2,          /* rows of tables, of all operators: empty where one has it not */
    PLAN_IN_JSON = 4,         /* JSON of operators that have it */
    PLAN_IN_JSON_SET = 8,     /* ... where it is not 0 */
    PLAN_IN_TRACE = 16,       /* a metric of a trace, "plan 1: pace" (tracer/store_run.c) */
    PLAN_IN_TRACE_SET = 32,   /* ... where it is not 0 */
    PLAN_IN_PLAN = 64,        /* rows, among the columns of the plan */
    PLAN_IN_TUNED = 128,      /* the key of a tuned plan (core/plan/tuning.h) */
    PLAN_IN_TEXT = 256,       /* a problem's text, "64,64,64 fp8" (op_problem_text), where not 0 */
    PLAN_IN_TEXT_NAMED = 512, /* ... as "back fp8" */
    PLAN_OF_FP8 = 1024,       /* a row has it of FP8 alone, and of all operators with a B */
    PLAN_IN_COMMAND = 2048,   /* an option of the command, "--b-layout" */
    PLAN_IN_COMMAND_PLAN = 4096, /* ... under the plan's heading */
    PLAN_IN_WORDS = 8192 /* the words of a plan, "tile=256,128": specs, tuned lines, --space */
};

struct plan_field {
    const char *name;          /* in specs, rows and JSON */
    const char *told;          /* where ranks differ, and in traces; NULL: its name */
    int (*has)(enum mk_op op); /* NULL: every operator */
    uint32_t knob; /* of a plan's own: its bit of enum op_knob; operators without: none */
    uint32_t in;   /* who reads it */
    enum plan_field_kind kind;
    const char *const *words;
    uint32_t count; /* words; of a number the most that it is, 0: any */
    uint32_t least; /* the value that words[0] is; of a number in an option 0 stands for 1 */
    /* the last value that a plan without the option may have: of words the one that a sentence names
     * first; rows say it in place of less */
    uint32_t first;
    const char *form; /* of a number in a spec, and of an epilogue: what it looks like */
    const char *unit; /* of a number in a trace */
    const char
        *lacks; /* what an operator without it does: "splits no sequence". NULL: a plan says */
    const char *help;  /* of the command's option for it */
    const char *value; /* what help calls the value; NULL: the words, the form or N */
    /* an option's name where it is another; one of several parts is of as many fields, from this
     * one on */
    const char *option;
    uint32_t parts;
    const char *none; /* in an option: stands for `least`, which is not written as a number */
    uint32_t bytes;   /* 4 or 8 at `offset` in struct mk_problem; 0: the dtype */
    size_t offset;
};

enum { PLAN_FIELDS = 36, PLAN_KNOBS = 9 };
extern const struct plan_field plan_fields[PLAN_FIELDS];

/* A field's value. Of one with `lacks` that an operator has not: 0, and setting it does nothing. */
uint64_t plan_field_get(const struct plan_field *field, const struct mk_problem *problem);
void plan_field_set(const struct plan_field *field, struct mk_problem *problem, uint64_t value);

/* Its value as a word or number, "fp8". Returns a word, or text. */
#define PLAN_FIELD_TEXT 96
const char *plan_field_text(const struct plan_field *field, uint64_t value,
                            char text[PLAN_FIELD_TEXT]);

/* The number that a word stands for, "two_shot"; -1: none. Of a plan's own also the number itself,
 * as older files have it. */
int plan_field_word(const struct plan_field *field, const char *word);

/* What an option says, "fp8", "256,128", to values[0], and of two parts to both. 0, or -EINVAL with
 * a sentence that quotes it, "'dtype=fp9' is not valid; ...". Not for roles. */
int plan_field_read(const struct plan_field *field, const char *text, uint64_t values[2],
                    char *error, size_t size);

/* All its words, "kn|nk". Returns text. */
#define PLAN_FIELD_WORDS 64
char *plan_field_words(const struct plan_field *field, char text[PLAN_FIELD_WORDS]);

/* Whether the operator has it. */
int plan_field_of(const struct plan_field *field, enum mk_op op);

/* The one of this name, which there is. */
const struct plan_field *plan_field_named(const char *name);

/* An option's name, "chunk-rows", "b_layout"; and the number of its knob, from 0. */
static inline const char *plan_field_option(const struct plan_field *field)
{
    return field->option ? field->option : field->name;
}

static inline uint32_t plan_field_knob(const struct plan_field *field)
{
    return (uint32_t)__builtin_ctz(field->knob);
}

/* What stands behind `f` in the table and has one of the bits `in`; NULL: nothing. NULL: from the
 * first on. */
static inline const struct plan_field *plan_field_next(const struct plan_field *f, uint32_t in)
{
    f = f ? f + 1 : plan_fields;
    while (f < plan_fields + PLAN_FIELDS && !(f->in & in))
        f++;
    return f < plan_fields + PLAN_FIELDS ? f : NULL;
}

static inline const char *plan_field_told(const struct plan_field *field)
{
    return field->told ? field->told : field->name;
}

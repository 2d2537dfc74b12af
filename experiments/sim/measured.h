/* Measured plans: the rows of tables of `mkernel tune` and `mkernel bench`, and traces, with the
 * plan that each says. */
#pragma once

#include "core/model/machine.h"
#include "core/mkernel.h"
#include "core/plan/plan.h"

#include <stdio.h>

struct measured_row {
    struct mk_plan plan;
    double ms;
    double of_best;  /* over the shape's best, drift taken out (tune's own column); 0: not said */
    int is_default;  /* the formula's plan of when it was measured */
    int inside;      /* from a trace: the time begins at the launch's first record */
    int rested;      /* by `mkernel bench` or in bursts of `run`, which leave GPUs time to cool */
    int early;       /* in a CUDA graph of several launches, without events between them */
    uint32_t shape;  /* index of its shape in struct measured */
    char words[256]; /* the plan, as the table has it */
};

struct measured {
    struct measured_row *rows;
    uint32_t count, shapes;
    uint32_t left_out; /* rows of plans that this build does not make, or with wrong results */
    char left_out_why[256];
};

/* Which of a table's shapes, in the order in which they come. */
enum measured_half { MEASURED_ALL, MEASURED_ODD /* the 1st, 3rd ... */, MEASURED_EVEN };

/* Adds the rows of a table or the plans of a trace, for GPUs of `sms` SMs. 0, or -errno with one
 * sentence; call measured_free in every case. A trace gives for each plan the median of its
 * launches that directly followed another (if none did: of all but the first). A launch's time is
 * from the begin of the last rank to the end of the last, so that it does not depend on how far
 * apart ranks were launched. Options that neither the trace nor its command has are those of the
 * closed formula. */
int measured_read(struct measured *m, const char *path, enum measured_half half, uint32_t sms,
                  char *error, size_t size);

/* The same of each of the files in `list`, with commas between them. */
int measured_read_list(struct measured *m, const char *list, enum measured_half half, uint32_t sms,
                       char *error, size_t size);

void measured_free(struct measured *m);

/* ---- for its own files ---- */

int measured_is_trace(FILE *f); /* from its begin; goes back there */
int measured_read_trace(struct measured *m, const char *path, enum measured_half half, uint32_t sms,
                        char *error, size_t size);
int measured_wanted(enum measured_half half, uint32_t shape);
/* Room for a row more, all zero, which counts once m->count does. 0 or -ENOMEM. */
int measured_next(struct measured *m, struct measured_row **row);
void measured_leave_out(struct measured *m, const char *why);
/* Measurements from before the option shots had 2. */
void measured_old(struct mk_problem *q);

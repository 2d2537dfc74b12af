/* Measured plans: the rows of `mkernel tune --csv`'s tables, with the plan that each row says. */
#ifndef MK_SIM_MEASURED_H
#define MK_SIM_MEASURED_H

#include "core/machine.h"
#include "core/plan.h"

struct measured_row {
    struct mk_plan plan;
    double ms;
    double of_best;  /* over the shape's best, drift taken out (tune's own column); 0: not said */
    int is_default;  /* the formula's plan of when it was measured */
    uint32_t shape;  /* index of its shape in struct measured */
    char words[160]; /* the plan, as the table has it */
};

struct measured {
    struct measured_row *rows;
    uint32_t count, shapes;
    uint32_t left_out; /* rows of plans that this build does not make, or with wrong results */
    char left_out_why[256];
};

/* Which of a table's shapes, in the order in which they come. */
enum measured_half { MEASURED_ALL, MEASURED_ODD /* the 1st, 3rd ... */, MEASURED_EVEN };

/* Adds the rows of a table, for GPUs of `sms` SMs. 0, or -errno with one sentence; measured_free in
 * every case. */
int measured_read(struct measured *m, const char *path, enum measured_half half, uint32_t sms,
                  char *error, size_t error_size);

/* The same of each of the files in `list`, with commas between them. */
int measured_read_list(struct measured *m, const char *list, enum measured_half half, uint32_t sms,
                       char *error, size_t error_size);

void measured_free(struct measured *m);

#endif

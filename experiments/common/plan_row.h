/* The columns of a CSV table that say a problem and its plan: those who write a row of a measurement
 * and those who simulate its plan share them. */
#pragma once

#include "core/plan/plan.h"
#include "experiments/common/csv_table.h"

/* The problem's columns, b_layout to launch. */
void plan_row_problem(struct csv_table *r, const struct mk_problem *q);

/* The columns of the plan, compute to the last. `q` as a plan was made for it. */
void plan_row_options(struct csv_table *r, const struct mk_problem *q);

/* The inverse of both; of a column that a table lacks,
 * `cell(row, NAME)` is "", which leaves *q as it is. q->op and its numbers are set. Returns the name
 * of a column whose cell is none that they write; NULL: all are. */
const char *plan_row_read(struct mk_problem *q,
                          const char *(*cell)(const void *row, const char *name), const void *row);

/* A column's whole number, from 0 to 2^32 - 1. 0 or -EINVAL. */
int plan_row_whole(const char *cell, uint32_t *out);

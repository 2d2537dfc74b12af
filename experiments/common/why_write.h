/* Where a launch's time goes (tracer/why.h), written: for programs, and in a few lines for
 * people. */
#pragma once

#include "experiments/common/csv_table.h"
#include "tracer/why.h"

#include <stdio.h>

/* Members of a JSON object, "launch" to "whole_ns"; the last has no comma behind it. */
void why_json(FILE *out, const struct trace_why *w);

/* A cell for each part, "why_..._ns", then the whole, the rank and the launch. NULL: empty
 * cells. */
void why_csv(struct csv_table *row, const struct trace_why *w);

/* "launch 3 on rank 1, 421.00 us: products at full rate 88.1 %, ...": the parts of a thousandth or
 * more, in lines of at most WHY_WIDTH columns, all but the first behind `indent` spaces. `used`:
 * columns that stand in the first already. */
#define WHY_WIDTH 110
void why_print(FILE *out, const struct trace_why *w, int used, int indent);

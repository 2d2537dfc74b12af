/* Tables of results, for people (results_table_print) and for programs. */
#pragma once

#include "experiments/results/results_points.h"

#include <stdio.h>

/* One row for each point; with `ranks` also the median of every rank. Below the table: failed jobs
 * with their sentences, outliers, and notes. */
void results_table_print(const struct results *r, int ranks, FILE *out);

/* The same as CSV, all settings in columns; and as JSON, with the samples of every job. 0 or
 * -errno. */
int results_table_csv(const struct results *r, const char *path);
int results_table_json(const struct results *r, const char *path);

/* The members of that object, for a picture. */
void results_table_members(FILE *f, const struct results *r);

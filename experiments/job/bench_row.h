/* The context of a measurement, as CSV columns and as JSON: without it a row could not be told from
 * that of another plan or another day. */
#pragma once

#include "experiments/common/csv_table.h"
#include "experiments/common/plan_row.h"
#include "experiments/job/run.h"

/* Now, as ISO 8601 in UTC, and this host's name. */
struct bench_when {
    char date[32], host[128];
};
void bench_when(struct bench_when *w);

/* The columns b_layout to mkernel: problem, machine, whole plan, launches, date and versions. `q`
 * as a plan was made for it, `tuned` as the plan says, `fabric`: "verbs over soft0", empty on one
 * node. */
void bench_row_context(struct csv_table *r, const struct run_job *job, const struct mk_problem *q,
                       const char *tuned, const char *fabric);

/* The same as members of a JSON object, each with a comma behind it (json_write.h). What of it all
 * rows of a job share, and what a plan has of its own. */
void bench_json_job(FILE *f, const struct run_job *job, const char *fabric);
void bench_json_plan(FILE *f, const struct mk_problem *q, const char *tuned);

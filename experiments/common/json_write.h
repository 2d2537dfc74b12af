/* Members of a JSON object (RFC 8259), one a line, each with a comma behind it: the caller ends the
 * object with one that has none. Nothing here checks the file; ferror tells in the end. */
#pragma once

#include "core/plan.h"

#include <stdio.h>

/* Nine digits; null where the value is not finite, since JSON has no infinity. */
void json_number(FILE *f, const char *name, double value);

/* Escaped. Bytes that are no UTF-8 (a file's name may be anything) become '?'. */
void json_text(FILE *f, const char *name, const char *text);

/* What was multiplied, on what and by which plan: "op" to "pieces". */
/* Whether its sums are deterministic, in a table's or a file's words: "false", "true" or
 * "everywhere". */
const char *json_sums(const struct mk_problem *q);
void json_problem(FILE *f, const struct mk_problem *q);

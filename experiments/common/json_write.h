/* Members of a JSON object (RFC 8259), one a line, each followed by a comma: the caller writes the
 * last member, which has none. Nothing here checks for errors of writing; see ferror in the end. */
#pragma once

#include "core/plan/plan.h"

#include <stdio.h>

/* Nine digits; null where the value is not finite, since JSON has no infinity. */
void json_number(FILE *f, const char *name, double value);

/* A text in quotes, escaped. Bytes that are no UTF-8 (a file's name may be anything) become '?'. */
void json_string(FILE *f, const char *text);

/* Both escaped. */
void json_text(FILE *f, const char *name, const char *text);

/* The problem, the machine and the plan: members "op" to "pieces". */
void json_problem(FILE *f, const struct mk_problem *q);

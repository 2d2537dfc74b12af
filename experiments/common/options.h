/* Command-line options from a table: parsed, checked and explained by it. Pure: nothing here prints
 * but options_help, and nothing exits.
 *
 * Values: --name VALUE or --name=VALUE, each option at most once. Units: seconds are 10, 0.5, 10s,
 * 500ms or 20us; sizes are 4096, 256KB, 1GB with 1 KB = 1024 bytes. Numbers are decimal, whole,
 * without sign. */
#pragma once

#include "core/plan/plan.h"

#include <stdio.h>

enum option_type {
    /* int: where it was given `max`, 1 where that is 0, but no less than another flag has made it;
     * takes no value */
    OPTION_FLAG,
    OPTION_NUMBERS, /* uint64_t[parts], separated by commas, each min .. max */
    OPTION_SECONDS, /* uint64_t, ns, min .. max */
    OPTION_BYTES,   /* uint64_t, min .. max */
    OPTION_TEXT,    /* const char *, into argv; at most max characters (0: no limit), not empty */
    OPTION_WORD,  /* int: index in `words`, plus min; up to max (0: none) a number stands for it */
    OPTION_ROLES, /* struct mk_role_split; roles that are not named get 0 CTAs */
};

struct option_spec {
    const char *name; /* without the dashes */
    enum option_type type;
    size_t offset;     /* of the value in the caller's struct */
    const char *value; /* what help calls the value: "M,N,K" */
    const char *help;
    uint64_t min, max;
    unsigned parts; /* OPTION_NUMBERS: 0 stands for 1 */
    /* OPTION_NUMBERS: as few as this may be given, the rest are 0; 0: all are */
    unsigned least;
    /* OPTION_WORD; OPTION_NUMBERS: words[0] stands for `min`, which is not written as a number */
    const char *const *words;
    unsigned word_count;
    /* OPTION_WORD: --name alone is words[0], and a value comes after =, never as the next
     * argument */
    int bare;
    uint32_t contexts; /* what takes it: bits of the caller's choice; 0: everything */
    /* the heading in the help under which it stands with others; NULL: that of the option before it
     * in the table, of the first none */
    const char *group;
};

/* What --quiet says where a result may take standard output. */
#define OPTION_QUIET                                                                               \
    "prints no table. By default the table goes to standard output, or to standard error if a "    \
    "result goes there"

#define OPTIONS_MOST 64u /* of a table */

struct option_table {
    const char *usage; /* "run OP [OPTIONS]" */
    const char *about;
    const struct option_spec *specs;
    size_t count;
    const char *examples; /* lines */
};

struct options_found {
    uint64_t given;       /* bit i: option i of the table was there */
    const char *words[8]; /* what is not an option, in order */
    int word_count;
    int help; /* --help or -h was there: the caller prints the help and ends */
};

/* Aborts where a table has more options than OPTIONS_MOST, a fault of the source that every call of
 * the command shows. */
void options_fit(size_t count);

/* Parses argv[1..argc-1] into `values` (left as they are where an option is not given: fill in
 * defaults first). Returns 0, or -EINVAL with one sentence in `error`, without a full stop. */
int options_parse(const struct option_table *table, int argc, char **argv, void *values,
                  struct options_found *found, char *error, size_t size);

/* Puts the long names in the place of short ones that other programs' users know ("-b" for
 * "--min"): pairs of both, ended by NULL. */
void options_expand(int argc, char **argv, const char *const *pairs);

/* What was given and is not for `context` (a bit), which is called `name`, with a sentence; or NULL.
 */
const struct option_spec *options_check(const struct option_table *table,
                                        const struct options_found *found, uint32_t context,
                                        const char *name, char *error, size_t size);

/* Whether option `name` was given. The name must be in the table. */
int options_given(const struct option_table *table, const struct options_found *found,
                  const char *name);

/* The heading of option `i`; NULL: none. */
const char *options_group(const struct option_table *table, size_t i);

void options_help(const struct option_table *table, FILE *out);

/* The parsers of single values, for other files that read them. 0, or -EINVAL (not one) or -ERANGE
 * (outside min .. max). */
int options_whole(const char *text, uint64_t min, uint64_t max, uint64_t *out);
int options_seconds(const char *text, uint64_t min, uint64_t max, uint64_t *ns);
int options_bytes(const char *text, uint64_t min, uint64_t max, uint64_t *bytes);

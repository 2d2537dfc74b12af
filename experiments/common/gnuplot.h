/* Pictures by gnuplot, which has to be installed. A file appears whole or not at all. */
#pragma once

#include <stddef.h>
#include <stdio.h>

/* Prints a text in single quotes, in which gnuplot expands nothing. Control bytes become `?`: an
 * end of line would end the string, and `!` on the next line would run a shell command. */
void gnuplot_quoted(FILE *out, const char *text);

/* Whether a picture at `path` is to be SVG; else PNG. */
int gnuplot_is_svg(const char *path);

/* 0, or -EINVAL with a sentence: `path`, which `option` has given, ends in neither .png nor .svg.
 */
int gnuplot_check_path(const char *option, const char *path, char *error, size_t size);

/* Runs the script in the open file `script`, which sets its terminal but no output, and writes the
 * picture to `out`, which becomes `path`. 0, or -errno with a sentence: -ENOENT: no gnuplot. */
int gnuplot_run(int script, FILE *out, const char *path, char *error, size_t size);

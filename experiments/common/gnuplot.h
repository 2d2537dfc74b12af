/* Pictures by gnuplot, which has to be installed. A file appears whole or not at all. */
#pragma once

#include <stddef.h>
#include <stdio.h>

/* A text in a script, between single quotes, where gnuplot looks for no commands. Control bytes
 * become `?`: a line's end would end the string, and after it `!` runs what follows in a shell. */
void gnuplot_quoted(FILE *out, const char *text);

/* Whether a picture at `path` is to be SVG; else PNG. */
int gnuplot_is_svg(const char *path);

/* 0, or -EINVAL with a sentence: `path`, which `option` has given, ends in neither .png nor .svg.
 */
int gnuplot_check_path(const char *option, const char *path, char *error, size_t error_size);

/* The picture of a script that sets its terminal but no output, of an open file, into `out`, which
 * becomes `path`. 0, or -errno with a sentence: -ENOENT where gnuplot is not installed. */
int gnuplot_run(int script, FILE *out, const char *path, char *error, size_t error_size);

/* Pictures of results: one style for all of them, drawn by gnuplot. */
#pragma once

#include <stddef.h>
#include <stdio.h>

/* Colours that colour-blind people can tell apart (Okabe and Ito, Color Universal Design, 2008), in
 * the order in which a picture uses them. */
#define PICTURE_COLOURS 7
extern const char *const picture_colours[PICTURE_COLOURS];

/* Terminal, size and title; `named`: the script says where its picture goes, too (it is for people
 * to keep). */
void picture_head(FILE *out, const char *path, int named, const char *title, int width, int height);

/* Draws what `script` writes into `path`, which appears whole or not at all. `script` returns 0, or
 * -errno having said why in `error`. 0, or -errno with a sentence: -ENOENT where gnuplot is not
 * installed. */
int picture_draw(const char *path,
                 int (*script)(FILE *out, void *context, char *error, size_t size), void *context,
                 char *error, size_t size);

/* Pictures: Python draws them with matplotlib, which has to be installed. */
#pragma once

#include <stddef.h>
#include <stdio.h>

struct picture {
    const char *script; /* Python that stands behind experiments/common/picture.py */
    /* Writes what is asked for, with its numbers, as JSON. 0, or -errno with a sentence. */
    int (*write)(FILE *out, void *context, char *error, size_t size);
    void *context;
};

/* 0, or -EINVAL with a sentence: `path`, which `option` has given, ends in neither .png nor .svg.
 */
int picture_check_path(const char *option, const char *path, char *error, size_t size);

/* Draws into `path`, which appears whole or not at all; NULL: prints what it would draw, as JSON.
 * 0, or -errno with a sentence: also what `write` returns; -EINVAL: that cannot be drawn; -EIO: no
 * matplotlib, or it failed. */
int picture_draw(const struct picture *p, const char *path, char *error, size_t size);

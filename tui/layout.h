/* From state and picture to cells. Pure: no terminal, no source. */
#pragma once

#include "tui/cells.h"
#include "tui/picture.h"

/* Draws the whole screen of m->width × m->height. 0 or -ENOMEM. */
int layout_draw(struct cells *c, const struct model *m, const struct picture *p);

/* Parts of the screen. */
void layout_ruler(struct cells *c, const struct model *m, const struct geometry *g);
void layout_rows(struct cells *c, const struct model *m, const struct picture *p,
                 const struct geometry *g);
int layout_help(struct cells *c, const struct model *m, int top,
                int height); /* returns its number of lines */

/* The column of the screen at which a time lies; -1 where that is out of view. */
int layout_column(const struct model *m, const struct geometry *g, double time);

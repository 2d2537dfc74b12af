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

/* Parts of both viewers' screens. layout_fill: a line of one glyph; layout_title: the bar at the
 * top; layout_spans: the legend of span classes, returns the column after it; layout_too_small: the
 * text for a screen that is too small; layout_help: the list of keys, returns its number of
 * lines. */
void layout_fill(struct cells *c, int y, int from, int to, uint32_t glyph, int colour, int attr);
void layout_title(struct cells *c, int width, const char *left, const char *right, int colour,
                  int attr);
int layout_spans(struct cells *c, int x, int y, int width);
void layout_too_small(struct cells *c);
enum help { HELP_TRACE, HELP_LIVE };
int layout_help(struct cells *c, enum help which, int width, int scroll, int top, int height);

/* The column of the screen at which a time lies; -1 where that is out of view. */
int layout_column(const struct model *m, const struct geometry *g, double time);

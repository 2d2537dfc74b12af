/* The data that the screen shows, read from the sources for the window in view: shares per row and
 * column, and the lines of the panel. The layout needs nothing else of the sources. */
#pragma once

#include "tui/model.h"

struct picture_row {
    struct row row;
    /* columns × classes: span classes, overlap classes of rank rows, 1 for bytes in flight */
    float *value;
    float peak; /* of bytes in flight */
};

/* A line of a panel: UTF-8 text in which byte 1 and a letter ('A' + colour) change the colour, byte
 * 2 and a letter ('A' + attributes) the attributes. */
#define PANEL_WIDTH 640
#define PANEL_LINES 400
struct panel_text {
    int count;
    char (*line)[PANEL_WIDTH];
    int follow; /* a line that should be in view; -1: none */
};

struct picture {
    double t0, step, end; /* of the run: other cuts, another end */
    int columns, count;   /* of rows: m->rows[m->top] and on */
    struct picture_row *rows;
    struct panel_text panel;
    int panel_of; /* which panel it holds, -1: none; and for which rank and files */
    int panel_rank, panel_width;
    int failed; /* -errno of a question that the file did not answer; 0 */
};

/* Reads what the model's window needs; what an earlier call read for the same window is kept. 0 or
 * -ENOMEM. */
int picture_fetch(struct picture *p, struct model *m);
void picture_free(struct picture *p);

/* Fills the panel's lines: panel.c for figures of the whole run, panel_cursor.c for what depends on
 * the cursor, panel_why.c for where the time of the launch there goes. */
void panel_fetch(struct panel_text *t, struct model *m);
void panel_detail(struct panel_text *t, struct model *m);
void panel_range(struct panel_text *t, struct model *m);
void panel_why(struct panel_text *t, struct model *m, int file);
/* Of two files, which one it is about. */
void panel_of_file(struct panel_text *t, const struct model *m, int file);
void panel_add(struct panel_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Marks for panel_add's text. */
#define FAINT "\001B"
#define PLAIN "\001A\002A"
#define STRONG "\002B"
#define ALARM "\001Q"

/* A bar of `width` columns, split by shares in the order of classes, drawn with the classes' own
 * glyphs and colours. */
const char *panel_bar(char *out, int size, int width, const struct class_look *look,
                      const double *share, int classes);

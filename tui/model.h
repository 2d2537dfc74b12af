/* The viewer's state, and what keys do to it. Apart from queries to the sources it is pure: no
 * terminal, no clock. */
#pragma once

#include "tui/chain.h"
#include "tui/source.h"
#include "tui/words.h"

enum row_kind { ROW_RANK, ROW_ROLE, ROW_CTA, ROW_NVLINK, ROW_NIC };

struct row {
    enum row_kind kind;
    int file; /* 0, or 1 when two files are compared */
    int rank, role, cta, warp;
    int track; /* of ROW_CTA: index in its source */
    int ctas;  /* of ROW_RANK and ROW_ROLE */
    int open;
};

enum panel {
    PANEL_DETAIL,
    PANEL_OVERLAP,
    PANEL_ROLES,
    PANEL_STALLS,
    PANEL_SLOWEST,
    PANEL_CRITICAL,
    PANEL_RANGE,
    PANEL_WHY,
    PANEL_DIFFERENCE,
    PANELS
};

enum prompt { PROMPT_NONE, PROMPT_SEARCH, PROMPT_FILTER, PROMPT_GOTO, PROMPT_MARK, PROMPT_JUMP };

/* Keys beyond ASCII. A character is its own code. */
enum key_code {
    TUI_UP = 0x100,
    TUI_DOWN,
    TUI_LEFT,
    TUI_RIGHT,
    TUI_PAGE_UP,
    TUI_PAGE_DOWN,
    TUI_HOME,
    TUI_END,
    TUI_ENTER,
    TUI_BACKSPACE,
    TUI_TAB,
    TUI_BACKTAB,
    TUI_ESCAPE,
    TUI_CLICK,
    TUI_WHEEL_UP,
    TUI_WHEEL_DOWN,
    TUI_RESIZE, /* x, y: the new size */
};

struct key {
    int code;
    int x, y;
};

/* A place in the trace to which the user can return. */
struct place {
    struct row row;
    double cursor, t0, t1;
    unsigned serial; /* of the chain that was shown, and the step on it */
    int step;
    int pair[2];
    int set;
};

/* A time between launches that is cut out: all of them are drawn `gap` of struct model wide. */
struct model_cut {
    double from, to; /* of the file */
    double at;       /* where `from` is on the screen */
};
#define MODEL_CUTS 65 /* before the first launch, between launches, and after the last */

#define MODEL_BACK 64
#define MODEL_TEXT 64

struct model {
    struct source *source[2];
    int files;
    double shift[2];                  /* screen time minus file time */
    int pair[2];                      /* two files: launches that begin at the same column */
    int held;                         /* 1: the pair stays when the cursor moves */
    double begin, end;                /* of everything, screen time */
    struct model_cut cut[MODEL_CUTS]; /* of one file, in order */
    int cuts;
    double gap; /* width of each cut on the screen, ns */

    int width, height;
    int ascii; /* 1: the layout writes ASCII alone */

    unsigned char *rank_open, *role_open; /* by rank; by rank * roles + role */
    unsigned ranks;
    struct row *rows;
    int row_count, row_capacity;
    int top, row; /* first on the screen; under the cursor */

    double t0, t1; /* the window in view */
    double cursor;

    enum panel panel;
    int scroll, large, help;

    enum prompt prompt;
    char text[MODEL_TEXT];
    int length;
    char message[160];
    int failed; /* the message is about something that did not work */

    struct query search, filter;
    int searching, filtering;
    int worst;       /* which of the longest waits was shown last; -1: none */
    double range[2]; /* NAN: not set */
    struct place mark[26];
    struct place back[MODEL_BACK];
    int back_count;

    /* What is under the cursor, looked up after every key. */
    struct source_event event;
    int have_event;
    struct source_event pin; /* the event that a jump led to: several may begin at the same ns */
    double pin_cursor;       /* NAN: none */
    struct chain chain;
    unsigned serial; /* of the chain */
    int step;        /* the step at which the cursor is */
    int on_chain;    /* the chain stays while Enter walks along it */

    int redraw, suspend, quit; /* requests to the loop */
};

/* Starts with one or two open sources (not owned) on a screen of the given size. 0 or -ENOMEM. */
int model_open(struct model *m, struct source *a, struct source *b, int width, int height);
void model_close(struct model *m);

/* Does what a key means. Never fails: what cannot be done is said in m->message. */
void model_key(struct model *m, struct key key);

/* Parts of the model, for its own files. */
void model_fit(struct model *m);
void model_zoom(struct model *m, double factor, double about);
/* cursor to a time; scrolls where that is out of view */
void model_go(struct model *m, double time);
void model_scroll(struct model *m, double columns);
void model_settle(struct model *m); /* cursor inside, rows inside, event and chain under it */
/* Moves `row` into 0 .. count - 1, and `top`, the first of `height` rows on the screen, to show
 * it. */
void model_keep_row_in_view(int *row, int *top, int count, int height);
/* lists the rows anew, the cursor stays on its row; 0 or -ENOMEM */
int model_rows(struct model *m);
void model_go_row(struct model *m, const struct row *row); /* unfolds what hides it */
void model_fold(struct model *m);
void model_fold_all(struct model *m);
void model_say(struct model *m, int failed, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void model_prompt_key(struct model *m, int code);
void model_search(struct model *m, int direction);
void model_next_event(struct model *m, int direction);
/* Two files: this launch of `file` begins at the same column as the other file's of its number. */
void model_align(struct model *m, int file, int launch);
/* ... the launch under the cursor, unless held; 1: another than before */
int model_align_follow(struct model *m);
void model_align_key(struct model *m);
void model_push(struct model *m);
void model_pop(struct model *m);
void model_bookmark(struct model *m, int letter, int set);
void model_enter(struct model *m);
void model_worst(struct model *m, int direction); /* through the longest waits of the run */
double model_least(const struct model *m);        /* the shortest span: one ns per column */
double model_column(const struct model *m);       /* ns of one column */
/* under the cursor; NULL where there are no rows */
const struct row *model_row(const struct model *m);
struct source_group row_group(const struct row *row);

/* From the screen's time to a file's, and back. */
double model_file_time(const struct model *m, int file, double time);
double model_screen_time(const struct model *m, int file, double time);
/* the time that is printed for a screen time: the first file's */
double model_clock(const struct model *m, double time);
/* ns of the file in the column that begins at screen time `time` */
double model_column_of(const struct model *m, int file, double time);
/* Whether the column of `step` ns from `time` on lies in a cut. */
int model_is_cut(const struct model *m, double time, double step);
/* The next begin or end of a cut after `time`, at most `end`: up to there screen and file time run
 * at the same rate. */
double model_next_cut(const struct model *m, double time, double end);
/* Sets or removes cuts, and begin and end. For one file. */
void model_cut(struct model *m, int cut);
void model_cut_key(struct model *m);

/* Where things lie on a screen of the model's size. Pure. */
struct geometry {
    int too_small;
    int label;                 /* columns of the row labels; the timeline begins there */
    int columns;               /* of the timeline */
    int ruler, ruler_rows;     /* first line, lines */
    int rows_top, rows_height; /* the timeline's */
    int legend, legend_rows;
    int panel, panel_height; /* first line (its bar), lines with the bar */
    int status;              /* the last line */
};
#define MIN_WIDTH 40
#define MIN_HEIGHT 10
struct geometry model_geometry(const struct model *m);

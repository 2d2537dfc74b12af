/* The loop of a viewer: passes keys from a script and the terminal to its model, and its cells to
 * the terminal or to standard output. */
#pragma once

#include "tui/cells.h"
#include "tui/model.h"
#include "tui/script.h"
#include "tui/show.h"

struct loop {
    const struct tui_options *options;
    struct script script;
    struct cells cells;
    void *viewer; /* what follows is called with it */
    int (*open)(void *, int width, int height, int ascii);
    int (*draw)(void *);             /* into `cells` */
    void (*key)(void *, struct key); /* one key to the model */
    int (*idle)(void *); /* after each key, and where none came for PERIOD_MS; NULL: no need */
    int *redraw, *suspend, *quit; /* the model's requests to the loop */
    int no_colour;                /* filled in by loop_run: the user wants none */
};

/* Takes the terminal (not with --dump-screen), runs until the user quits, and restores it. opened:
 * 0, or -errno of what the viewer could not open, with one sentence in `error`: nothing is shown
 * then. Returns an exit status; on an error its sentence is on stderr. Frees the script and the
 * cells. */
int loop_run(struct loop *l, int opened, const char *error);

enum { LOOP_DONE = 0, LOOP_USAGE = 2, LOOP_FAILED = 3 }; /* exit statuses of the command line */

/* The thin drawing: cells to a terminal by ncurses, keys and the mouse back from it. One screen at
 * a time. Whatever ends the process, the terminal is put back first. */
#pragma once

#include "tui/cells.h"
#include "tui/model.h"

struct screen_options {
    int mouse, colour; /* 0: none even where the terminal has it */
};

/* Whether the locale's character set is UTF-8. Calls setlocale for LC_CTYPE alone. */
int screen_utf8(void);

/* Takes the terminal. 0, or -ENOTTY, -ENODEV (it cannot place the cursor) with one sentence in
 * `error`. */
int screen_open(const struct screen_options *options, char *error, int size);

/* Restores the terminal. Does nothing if it is not taken. */
void screen_close(void);

void screen_size(int *width, int *height);

/* Shows the grid; `whole` draws every cell anew. */
void screen_draw(const struct cells *c, int whole);

/* The next key; waits at most timeout_ms (-1: without end). 1: *key; 0: none in that time; -EINTR:
 * a signal asks to end, see screen_signal; -EIO: the terminal is gone. */
int screen_key(struct key *key, int timeout_ms);

/* The signal that asked to end, or 0. The caller closes the screen and raises it again. */
int screen_signal(void);

/* Closes the screen; raises the signal again that asked to end, so that the shell sees why. Says on
 * stderr that the screen failed where `rc` is not 0, and returns rc. */
int screen_finish(int rc);

/* Stops the process as Ctrl-Z does, the terminal given back meanwhile. */
void screen_suspend(void);

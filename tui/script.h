/* Keys from a file, so that a session can be played without hands: `mkernel tui --script FILE`.
 *
 * A line is a list of keys: names (Up Down Left Right PageUp PageDown Home End Enter Backspace Tab
 * BackTab Escape Space Ctrl-L), or single characters; NAME*5 repeats. Lines that begin with one of
 * these words are more: "type TEXT" types the rest of the line, "click X Y", "wheel-up X Y",
 * "wheel-down X Y" (columns and lines from 0), "resize W H", "dump" (with --dump-screen: prints the
 * screen here). # begins a comment line. */
#pragma once

#include "tui/model.h"

#define SCRIPT_DUMP 0x200 /* a key code of its own: print the screen */

struct script {
    struct key *keys;
    int count;
};

/* Reads a script. 0, or -errno with one sentence in `error`. Freed by script_free, also after an
 * error. */
int script_read(struct script *s, const char *path, char *error, int size);
void script_free(struct script *s);

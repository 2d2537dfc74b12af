/* What `mkernel tui` is asked for (experiments/tui.c parses it), and the whole of the viewer behind
 * it. */
#pragma once

struct tui_options {
    /* traces; with `attach` file[0] is the job, NULL: the only one that runs */
    const char *file[2];
    int files;
    const char *script; /* keys to play first; NULL: none */
    int width, height;  /* of the printed screen, 1 to 1000 each; a terminal has its own */
    /* the screen is printed: 1 text, 2 with colours and attributes; 0: in a terminal */
    int dump;
    int ascii, no_mouse, key_times;
    int attach, until_end;
};

/* Shows traces or a running job until the user quits. One thread, from which nothing else uses
 * SQLite or the terminal meanwhile. Returns an exit status of the command line (0, 2: unusable
 * files or terminal, 3: something failed later), with one sentence on stderr where it is not 0. */
int tui_show(const struct tui_options *o);

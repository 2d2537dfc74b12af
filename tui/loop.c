#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/base/clock.h"
#include "tui/loop.h"
#include "tui/screen.h"

#define PERIOD_MS 100

static void loop_print_screen(struct loop *l)
{
    cells_dump_text(&l->cells, stdout);
    if (l->options->dump == 2)
        (l->no_colour ? cells_dump_monochrome : cells_dump_attributes)(&l->cells, stdout);
}

/* The screen after the script, on stdout. */
static int loop_without_terminal(struct loop *l)
{
    int rc = l->draw(l->viewer);
    for (int i = 0; i < l->script.count && !rc && !*l->quit; i++) {
        uint64_t start = mk_now_ns(), cpu = mk_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
        if (l->script.keys[i].code == SCRIPT_DUMP) {
            loop_print_screen(l);
            continue;
        }
        l->key(l->viewer, l->script.keys[i]);
        rc = l->draw(l->viewer);
        if (l->options->key_times)
            fprintf(stderr, "key %d ms %.2f cpu %.2f\n", l->script.keys[i].code,
                    (double)(mk_now_ns() - start) / 1e6,
                    (double)(mk_clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu) / 1e6);
    }
    if (!rc)
        loop_print_screen(l);
    return rc;
}

static int loop_in_terminal(struct loop *l)
{
    struct key key;
    int rc = 0, next = 0;
    while (!rc && !*l->quit) {
        rc = l->draw(l->viewer);
        if (rc)
            break;
        screen_draw(&l->cells, *l->redraw);
        *l->redraw = 0;
        int got = 1;
        if (next < l->script.count) {
            key = l->script.keys[next++];
            /* the terminal has its own size */
            if (key.code == SCRIPT_DUMP || key.code == TUI_RESIZE)
                continue;
        } else {
            got = screen_key(&key, l->idle ? PERIOD_MS : -1);
        }
        /* Keys that are waiting already are taken together: holding one down does not queue up
         * screens. */
        for (; got == 1 && !*l->quit; got = next < l->script.count ? 0 : screen_key(&key, 0)) {
            l->key(l->viewer, key);
            if (*l->suspend) {
                *l->suspend = 0;
                screen_suspend();
            }
        }
        rc = got < 0 ? got : l->idle ? l->idle(l->viewer) : 0;
    }
    return rc;
}

int loop_run(struct loop *l, int opened, const char *error)
{
    const struct tui_options *o = l->options;
    char refused[256];
    const char *no_color = getenv("NO_COLOR");
    int utf8 = screen_utf8(), width = o->width, height = o->height, status = LOOP_DONE;
    l->no_colour = no_color && *no_color;
    if (opened) {
        fprintf(stderr, "mkernel tui: %s\n", error);
        status = opened == -ENOMEM || opened == -EIO ? LOOP_FAILED : LOOP_USAGE;
    } else if (!o->dump) {
        struct screen_options s = {!o->no_mouse, !l->no_colour};
        if (screen_open(&s, refused, sizeof refused)) {
            fprintf(stderr, "mkernel tui: %s\n", refused);
            status = LOOP_USAGE;
        } else {
            screen_size(&width, &height);
        }
    }
    if (!status) {
        int rc = l->open(l->viewer, width, height, o->ascii || !utf8);
        rc = rc ? rc : o->dump ? loop_without_terminal(l) : loop_in_terminal(l);
        status = screen_finish(rc) ? LOOP_FAILED : LOOP_DONE;
    }
    script_free(&l->script);
    cells_free(&l->cells);
    return status;
}

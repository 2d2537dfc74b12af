/* Opens traces and runs the loop of keys, model, picture, layout and drawing. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/clock.h"
#include "tracer/reader.h"
#include "tui/layout.h"
#include "tui/live.h"
#include "tui/screen.h"
#include "tui/script.h"
#include "tui/show.h"

enum { DONE = 0, USAGE = 2, FAILED = 3 }; /* exit statuses of the command line */

struct viewer {
    struct tui_options options;
    int no_colour;
    struct source *source[2];
    struct script script;
    struct model model;
    struct picture picture;
    struct cells cells;
    int damage_told;
};

/* Reads what the state needs and lays it out. */
static int main_draw(struct viewer *v)
{
    for (int i = 0; i < 2 && v->source[i]; i++)
        source_allow(v->source[i]);
    int rc = picture_fetch(&v->picture, &v->model);
    if (trace_damage() && !v->damage_told) {
        v->damage_told = 1;
        model_say(&v->model, 1, "the trace is damaged, and the screen shows only a part of it");
    }
    return rc ? rc : layout_draw(&v->cells, &v->model, &v->picture);
}

static void main_print_screen(struct viewer *v)
{
    cells_dump_text(&v->cells, stdout);
    if (v->options.dump == 2)
        (v->no_colour ? cells_dump_monochrome : cells_dump_attributes)(&v->cells, stdout);
}

/* The screen after the script, on stdout. */
static int main_run_without_terminal(struct viewer *v)
{
    int rc = main_draw(v);
    for (int i = 0; i < v->script.count && !rc && !v->model.quit; i++) {
        uint64_t start = mk_now_ns(), cpu = mk_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
        if (v->script.keys[i].code == SCRIPT_DUMP) {
            main_print_screen(v);
            continue;
        }
        model_key(&v->model, v->script.keys[i]);
        rc = main_draw(v);
        if (v->options.key_times)
            fprintf(stderr, "key %d ms %.2f cpu %.2f\n", v->script.keys[i].code,
                    (double)(mk_now_ns() - start) / 1e6,
                    (double)(mk_clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu) / 1e6);
    }
    if (!rc)
        main_print_screen(v);
    return rc;
}

static int main_run_in_terminal(struct viewer *v)
{
    struct model *m = &v->model;
    struct key key;
    int rc = 0, next = 0;
    while (!rc && !m->quit) {
        rc = main_draw(v);
        if (rc)
            break;
        screen_draw(&v->cells, m->redraw);
        m->redraw = 0;
        int got = 1;
        if (next < v->script.count) {
            key = v->script.keys[next++];
            /* the terminal has its own size */
            if (key.code == SCRIPT_DUMP || key.code == TUI_RESIZE)
                continue;
        } else {
            got = screen_key(&key, -1);
        }
        /* Keys that are waiting already are taken together: holding one down does not queue up
         * screens. */
        for (; got == 1 && !m->quit; got = next < v->script.count ? 0 : screen_key(&key, 0)) {
            model_key(m, key);
            if (m->suspend) {
                m->suspend = 0;
                screen_suspend();
            }
        }
        rc = got < 0 ? got : 0;
    }
    return rc;
}

static int main_show(struct viewer *v)
{
    struct tui_options *o = &v->options;
    char error[256];
    const char *no_color = getenv("NO_COLOR");
    int utf8 = screen_utf8(), rc;
    v->no_colour = no_color && *no_color;
    if (!o->dump) {
        struct screen_options s = {!o->no_mouse, !v->no_colour};
        if (screen_open(&s, error, sizeof error)) {
            fprintf(stderr, "mkernel tui: %s\n", error);
            return USAGE;
        }
        screen_size(&o->width, &o->height);
    }
    rc = model_open(&v->model, v->source[0], v->source[1], o->width, o->height);
    v->model.ascii = o->ascii || !utf8;
    if (!rc)
        rc = o->dump ? main_run_without_terminal(v) : main_run_in_terminal(v);
    if (screen_finish(rc))
        return FAILED;
    if (trace_damage()) {
        fprintf(stderr, "mkernel tui: the trace is damaged, and only a part of it was shown: %s\n",
                trace_damage());
        return FAILED;
    }
    return DONE;
}

int tui_show(const struct tui_options *o)
{
    struct viewer v = {.options = *o};
    char error[512];
    int status = DONE, rc = 0;
    trace_watch_damage();
    if (o->attach)
        return live_show(&(struct live_options){o->file[0], o->script, o->width, o->height, o->dump,
                                                o->ascii, o->no_mouse, o->until_end});
    if (v.options.script)
        rc = script_read(&v.script, v.options.script, error, sizeof error);
    for (int i = 0; i < v.options.files && !rc; i++)
        rc = source_open(&v.source[i], v.options.file[i], error, sizeof error);
    if (rc) {
        fprintf(stderr, "mkernel tui: %s\n", error);
        status = rc == -ENOMEM || rc == -EIO ? FAILED : USAGE;
    } else {
        status = main_show(&v);
    }
    cells_free(&v.cells);
    picture_free(&v.picture);
    model_close(&v.model);
    script_free(&v.script);
    source_close(v.source[0]);
    source_close(v.source[1]);
    return status;
}

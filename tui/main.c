/* The viewer of traces: opens them and reads what each screen needs. */
#include <stdio.h>

#include "tracer/reader.h"
#include "tui/layout.h"
#include "tui/live.h"
#include "tui/loop.h"

struct viewer {
    struct source *source[2];
    struct model model;
    struct picture picture;
    struct loop loop;
    int damage_told;
};

static int main_open(void *viewer, int width, int height, int ascii)
{
    struct viewer *v = viewer;
    int rc = model_open(&v->model, v->source[0], v->source[1], width, height);
    v->model.ascii = ascii;
    return rc;
}

/* Reads what the state needs and lays it out. */
static int main_draw(void *viewer)
{
    struct viewer *v = viewer;
    for (int i = 0; i < 2 && v->source[i]; i++)
        trace_allow(v->source[i]->db);
    int rc = picture_fetch(&v->picture, &v->model);
    if (trace_damage() && !v->damage_told) {
        v->damage_told = 1;
        model_say(&v->model, 1, "the trace is damaged, and the screen shows only a part of it");
    }
    return rc ? rc : layout_draw(&v->loop.cells, &v->model, &v->picture);
}

static void main_key(void *viewer, struct key key)
{
    model_key(&((struct viewer *)viewer)->model, key);
}

int tui_show(const struct tui_options *o)
{
    struct viewer v = {.loop = {.options = o,
                                .viewer = &v,
                                .open = main_open,
                                .draw = main_draw,
                                .key = main_key,
                                .redraw = &v.model.redraw,
                                .suspend = &v.model.suspend,
                                .quit = &v.model.quit}};
    char error[512];
    trace_watch_damage();
    if (o->attach)
        return live_show(o);
    int rc = o->script ? script_read(&v.loop.script, o->script, error, sizeof error) : 0;
    for (int i = 0; i < o->files && !rc; i++)
        rc = source_open(&v.source[i], o->file[i], error, sizeof error);
    int status = loop_run(&v.loop, rc, error);
    if (!status && trace_damage()) {
        fprintf(stderr, "mkernel tui: the trace is damaged, and only a part of it was shown: %s\n",
                trace_damage());
        status = LOOP_FAILED;
    }
    picture_free(&v.picture);
    model_close(&v.model);
    source_close(v.source[0]);
    source_close(v.source[1]);
    return status;
}

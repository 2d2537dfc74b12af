/* The viewer without a terminal: a trace, a model, and the screen after keys. For tests, by
 * #include. */
#pragma once

#include <unistd.h>
#include "tests/helpers/test.h"
#include "tests/helpers/screen.h"
#include "tests/helpers/tui_trace.h"
#include "tui/layout.h"

struct stage {
    struct source *source[2];
    struct model m;
    struct picture picture;
    struct cells cells;
};

static char stage_folder[64];

/* The fixtures, written once: trace 0 is the plain one, 1 has slower puts of rank 2, 2 recorded
 * nothing, 3 has 50 ms between the launches' starts. */
static inline const char *stage_trace(int which)
{
    static char path[4][96];
    if (!stage_folder[0]) {
        snprintf(stage_folder, sizeof stage_folder, "/tmp/mk_tui_XXXXXX");
        assert_non_null(mkdtemp(stage_folder));
    }
    if (!path[which][0]) {
        snprintf(path[which], sizeof path[which], "%s/%d.db", stage_folder, which);
        tt_apart = which == 3 ? 50000000 : 120000;
        assert_int_equal(tui_trace_write(path[which], which == 1 ? 12000 : 0, which != 2), 0);
    }
    return path[which];
}

/* For a group's teardown: takes the fixtures away. */
static inline int stage_clean(void **state)
{
    char path[96];
    (void)state;
    for (int i = 0; i < 4 && stage_folder[0]; i++) {
        snprintf(path, sizeof path, "%s/%d.db", stage_folder, i);
        unlink(path);
    }
    if (stage_folder[0])
        rmdir(stage_folder);
    return 0;
}

static inline void stage_draw(struct stage *s)
{
    assert_int_equal(picture_fetch(&s->picture, &s->m), 0);
    assert_int_equal(layout_draw(&s->cells, &s->m, &s->picture), 0);
}

/* second -1: one file. */
static inline void stage_open(struct stage *s, int first, int second, int width, int height,
                              int ascii)
{
    char error[256];
    memset(s, 0, sizeof *s);
    assert_int_equal(source_open(&s->source[0], stage_trace(first), error, sizeof error), 0);
    if (second >= 0)
        assert_int_equal(source_open(&s->source[1], stage_trace(second), error, sizeof error), 0);
    assert_int_equal(model_open(&s->m, s->source[0], s->source[1], width, height), 0);
    s->m.ascii = ascii;
    stage_draw(s);
}

static inline void stage_close(struct stage *s)
{
    cells_free(&s->cells);
    picture_free(&s->picture);
    model_close(&s->m);
    source_close(s->source[0]);
    source_close(s->source[1]);
}

/* Plays a script (tui/script.h), drawing after every key as the viewer does. */
static inline void stage_play(struct stage *s, const char *text)
{
    struct script script;
    screen_script(&script, text);
    for (int i = 0; i < script.count; i++) {
        model_key(&s->m, script.keys[i]);
        stage_draw(s);
    }
    script_free(&script);
}

/* Whether the screen has `what` somewhere. */
static inline int stage_shows(const struct stage *s, const char *what)
{
    char *text = screen_text(&s->cells, 0);
    int found = strstr(text, what) != NULL;
    if (!found)
        fprintf(stderr, "\"%s\" is not on this screen:\n%s", what, text);
    free(text);
    return found;
}

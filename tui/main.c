/* `mkernel tui FILE [FILE]`: opens traces and runs the loop of keys, model, picture, layout and drawing. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tracer/reader.h"
#include "tui/layout.h"
#include "tui/live.h"
#include "tui/screen.h"
#include "tui/script.h"

int command_tui(int argc, char **argv);

enum { DONE = 0, USAGE = 2, FAILED = 3 }; /* exit statuses of the command line */

struct options {
    const char *file[2];
    int files;
    const char *script;
    int width, height;
    int dump; /* 1 text, 2 with colours and attributes */
    int ascii, no_mouse, no_colour, key_times;
    int attach, until_end;
};

struct viewer {
    struct options options;
    struct source *source[2];
    struct script script;
    struct model model;
    struct picture picture;
    struct cells cells;
    int damage_told;
};

static void print_help(void)
{
    printf("usage: mkernel tui FILE [FILE] [OPTIONS]\n"
           "       mkernel tui --attach [JOB] [OPTIONS]\n\n"
           "Shows a trace as timelines of CTA roles; two files are compared. ? lists the keys, q quits.\n\n"
           "  --attach [JOB]            shows a running `mkernel run` instead: what every CTA does now, and which\n"
           "                            rank it waits for. JOB is its process; not needed where one job runs\n"
           "  --until-end               with --attach: waits for the job to begin, ends with it\n"
           "  --script FILE             plays keys from a file first (docs/VIEWER.md)\n"
           "  --dump-screen             prints the screen as text instead of taking the terminal\n"
           "  --dump-screen=attributes  ... and then its colours and attributes, a letter per cell\n"
           "  --size WxH                size of the printed screen (default 80x24)\n"
           "  --key-times               with --dump-screen: ms (wall and CPU) that each key took, on stderr\n"
           "  --ascii                   no characters beyond ASCII (default where the locale is not UTF-8)\n"
           "  --no-mouse                leaves the mouse to the terminal\n"
           "  NO_COLOR=1                no colours\n\n"
           "examples:\n"
           "  mkernel tui run.db\n"
           "  mkernel tui measured.db simulated.db\n"
           "  mkernel tui --attach\n"
           "  mkernel tui run.db --dump-screen --size 120x40\n");
}

static int usage(const char *sentence, const char *what)
{
    fprintf(stderr, "mkernel tui: ");
    fprintf(stderr, sentence, what);
    fprintf(stderr, "; `mkernel tui --help` tells more\n");
    return USAGE;
}

static int parse_size(struct options *o, const char *text)
{
    char more;
    return sscanf(text, "%dx%d%c", &o->width, &o->height, &more) == 2 && o->width >= 1 && o->height >= 1 &&
                   o->width <= 1000 && o->height <= 1000
               ? DONE
               : usage("--size takes WIDTHxHEIGHT, at most 1000x1000, such as 120x40, but it was given %s", text);
}

/* DONE to go on, -1 when help was printed, or USAGE. */
static int parse(struct options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(a, "--help") || !strcmp(a, "-h")) {
            print_help();
            return -1;
        }
        size_t name = strcspn(a, "="); /* --size 120x40, or --size=120x40 */
        if ((name == 8 && !strncmp(a, "--script", name)) || (name == 6 && !strncmp(a, "--size", name))) {
            if (a[name])
                value = a + name + 1;
            else if (!value)
                return usage("%s needs a value", a);
            else
                i++;
            if (name == 8)
                o->script = value;
            else if (parse_size(o, value))
                return USAGE;
        } else if (!strcmp(a, "--dump-screen")) {
            o->dump = 1;
        } else if (!strcmp(a, "--dump-screen=attributes")) {
            o->dump = 2;
        } else if (!strcmp(a, "--ascii")) {
            o->ascii = 1;
        } else if (!strcmp(a, "--no-mouse")) {
            o->no_mouse = 1;
        } else if (!strcmp(a, "--key-times")) {
            o->key_times = 1;
        } else if (!strcmp(a, "--attach")) {
            o->attach = 1;
        } else if (!strcmp(a, "--until-end")) {
            o->until_end = 1;
        } else if (a[0] == '-' && a[1]) {
            return usage("there is no option %s", a);
        } else if (o->files == 2) {
            return usage("it takes two files at most, and %s is one too many", a);
        } else {
            o->file[o->files++] = a;
        }
    }
    if (o->attach && o->files > 1)
        return usage("--attach takes one job, and %s is one too many", o->file[1]);
    if (o->until_end && !o->attach)
        return usage("--until-end goes with --attach%s", "");
    if (o->files == 0 && !o->attach)
        return usage("a trace file is missing%s", "");
    if (o->width && !o->dump)
        return usage("--size goes with --dump-screen%s", "");
    if (o->key_times && (o->attach || !(o->dump && o->script)))
        return usage("--key-times goes with --dump-screen and --script%s", "");
    if (!o->width) {
        o->width = 80;
        o->height = 24;
    }
    return DONE;
}

/* Reads what the state needs and lays it out. */
static int draw(struct viewer *v)
{
    int rc = picture_fetch(&v->picture, &v->model);
    if (trace_damage() && !v->damage_told) {
        v->damage_told = 1;
        model_say(&v->model, 1, "the trace is damaged, and the screen shows only a part of it");
    }
    return rc ? rc : layout_draw(&v->cells, &v->model, &v->picture);
}

static void print_screen(struct viewer *v)
{
    cells_dump_text(&v->cells, stdout);
    if (v->options.dump == 2)
        (v->options.no_colour ? cells_dump_monochrome : cells_dump_attributes)(&v->cells, stdout);
}

static double now_ms(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* The screen after the script, on stdout. */
static int run_without_terminal(struct viewer *v)
{
    int rc = draw(v);
    for (int i = 0; i < v->script.count && !rc && !v->model.quit; i++) {
        double start = now_ms(CLOCK_MONOTONIC), cpu = now_ms(CLOCK_PROCESS_CPUTIME_ID);
        if (v->script.keys[i].code == SCRIPT_DUMP) {
            print_screen(v);
            continue;
        }
        model_key(&v->model, v->script.keys[i]);
        rc = draw(v);
        if (v->options.key_times)
            fprintf(stderr, "key %d ms %.2f cpu %.2f\n", v->script.keys[i].code,
                    now_ms(CLOCK_MONOTONIC) - start, now_ms(CLOCK_PROCESS_CPUTIME_ID) - cpu);
    }
    if (!rc)
        print_screen(v);
    return rc;
}

static int run_in_terminal(struct viewer *v)
{
    struct model *m = &v->model;
    struct key key;
    int rc = 0, next = 0;
    while (!rc && !m->quit) {
        rc = draw(v);
        if (rc)
            break;
        screen_draw(&v->cells, m->redraw);
        m->redraw = 0;
        int got = 1;
        if (next < v->script.count) {
            key = v->script.keys[next++];
            if (key.code == SCRIPT_DUMP || key.code == TUI_RESIZE) /* the terminal has its own size */
                continue;
        } else {
            got = screen_key(&key, -1);
        }
        /* Keys that are waiting already are taken together: holding one down does not queue up screens. */
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

static int show(struct viewer *v)
{
    struct options *o = &v->options;
    char error[256];
    const char *no_color = getenv("NO_COLOR");
    int utf8 = screen_utf8(), rc;
    o->no_colour = no_color && *no_color;
    if (!o->dump) {
        struct screen_options s = {!o->no_mouse, !o->no_colour};
        if (screen_open(&s, error, sizeof error)) {
            fprintf(stderr, "mkernel tui: %s\n", error);
            return USAGE;
        }
        screen_size(&o->width, &o->height);
    }
    rc = model_open(&v->model, v->source[0], v->source[1], o->width, o->height);
    v->model.ascii = o->ascii || !utf8;
    if (!rc)
        rc = o->dump ? run_without_terminal(v) : run_in_terminal(v);
    int ended = screen_signal();
    screen_close();
    if (ended) { /* as the signal would have without us: the shell sees why */
        signal(ended, SIG_DFL);
        raise(ended);
    }
    if (rc) {
        fprintf(stderr, "mkernel tui: %s\n",
                rc == -ENOMEM ? "no memory for the screen" : "the terminal is gone");
        return FAILED;
    }
    if (trace_damage()) {
        fprintf(stderr, "mkernel tui: the trace is damaged, and only a part of it was shown: %s\n", trace_damage());
        return FAILED;
    }
    return DONE;
}

int command_tui(int argc, char **argv)
{
    struct viewer v = {0};
    char error[512];
    int status = parse(&v.options, argc, argv), rc = 0;
    if (status)
        return status < 0 ? DONE : status;
    trace_watch_damage();
    if (v.options.attach) {
        const struct options *o = &v.options;
        return live_show(&(struct live_options){o->file[0], o->script, o->width, o->height, o->dump, o->ascii,
                                                o->no_mouse, o->until_end});
    }
    if (v.options.script)
        rc = script_read(&v.script, v.options.script, error, sizeof error);
    for (int i = 0; i < v.options.files && !rc; i++)
        rc = source_open(&v.source[i], v.options.file[i], error, sizeof error);
    if (rc) {
        fprintf(stderr, "mkernel tui: %s\n", error);
        status = rc == -ENOMEM || rc == -EIO ? FAILED : USAGE;
    } else {
        status = show(&v);
    }
    cells_free(&v.cells);
    picture_free(&v.picture);
    model_close(&v.model);
    script_free(&v.script);
    source_close(v.source[0]);
    source_close(v.source[1]);
    return status;
}

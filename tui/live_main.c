/* The loop of the live viewer: a snapshot every tenth of a second, and keys. */
#include "tui/live.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tui/screen.h"
#include "tui/script.h"

#define PERIOD_MS 100
#define WAIT_FOR_JOB_MS 15000 /* with --until-end: the job is just being started */

enum { DONE = 0, USAGE = 2, FAILED = 3 };

static void live_main_print_screen(const struct live_options *o, const struct cells *c)
{
    cells_dump_text(c, stdout);
    if (o->dump == 2)
        cells_dump_attributes(c, stdout);
}

/* One snapshot, the script's keys on it, the screen. */
static int live_main_dump(const struct live_options *o, struct live_model *m,
                          const struct script *script, struct cells *c)
{
    int rc = live_draw(c, m);
    for (int i = 0; i < script->count && !rc && !m->quit; i++) {
        if (script->keys[i].code == SCRIPT_DUMP) {
            live_main_print_screen(o, c);
            continue;
        }
        live_model_key(m, script->keys[i]);
        rc = live_draw(c, m);
    }
    if (!rc)
        live_main_print_screen(o, c);
    return rc;
}

static int live_main_run(const struct live_options *o, struct live_model *m, struct live_job *job,
                         const struct script *script, struct cells *c)
{
    struct key key;
    int rc = 0, next = 0;
    while (!rc && !m->quit && !(o->until_end && job->ended)) {
        rc = live_draw(c, m);
        if (rc)
            break;
        screen_draw(c, m->redraw);
        m->redraw = 0;
        int got = 1;
        if (next < script->count)
            key = script->keys[next++];
        else
            got = screen_key(&key, PERIOD_MS);
        if (got < 0) {
            rc = got;
        } else if (got > 0 && key.code != SCRIPT_DUMP) {
            live_model_key(m, key);
            if (m->suspend) {
                m->suspend = 0;
                screen_suspend();
            }
        }
        if (!rc && !m->frozen && !job->ended) {
            live_read(job);
            rc = live_model_take(m, job);
        }
    }
    return rc;
}

static int live_main_show(const struct live_options *given, struct live_job *job,
                          const struct script *script)
{
    struct live_options o = *given;
    struct live_model m = {0};
    struct cells c = {0};
    char error[256];
    const char *no_color = getenv("NO_COLOR");
    int utf8 = screen_utf8();
    if (!o.dump) {
        struct screen_options s = {!o.no_mouse, !(no_color && *no_color)};
        if (screen_open(&s, error, sizeof error)) {
            fprintf(stderr, "mkernel tui: %s\n", error);
            return USAGE;
        }
        screen_size(&o.width, &o.height);
    }
    int rc = live_model_open(&m, job, o.width, o.height);
    m.ascii = o.ascii || !utf8;
    if (!rc)
        rc = o.dump ? live_main_dump(&o, &m, script, &c) : live_main_run(&o, &m, job, script, &c);
    rc = screen_finish(rc);
    live_model_close(&m);
    cells_free(&c);
    return rc ? FAILED : DONE;
}

/* The job's first file may come a moment after the viewer. */
static int live_main_open_job(const struct live_options *o, struct live_job *job, char *error,
                              size_t size)
{
    const struct timespec moment = {0, 50000000};
    char folder[512];
    int rc = -ENOENT;
    for (int ms = 0; ms == 0 || (o->until_end && ms < WAIT_FOR_JOB_MS && rc == -ENOENT); ms += 50) {
        if (ms)
            nanosleep(&moment, NULL);
        rc = live_find(folder, sizeof folder, o->attach, error, size);
        if (!rc)
            rc = live_open(job, folder, error, size);
    }
    return rc;
}

int live_show(const struct live_options *o)
{
    struct script script = {0};
    struct live_job job = {0};
    char error[512];
    int rc = o->script ? script_read(&script, o->script, error, sizeof error) : 0;
    if (!rc)
        rc = live_main_open_job(o, &job, error, sizeof error);
    int status = rc == -ENOMEM || rc == -EIO ? FAILED : USAGE;
    if (rc)
        fprintf(stderr, "mkernel tui: %s\n", error);
    else
        status = live_main_show(o, &job, &script);
    live_close(&job);
    script_free(&script);
    return status;
}

/* The viewer of a running job: a snapshot every tenth of a second. */
#include <errno.h>
#include <time.h>

#include "tui/live.h"
#include "tui/loop.h"

#define WAIT_FOR_JOB_MS 15000 /* with --until-end: the job is just being started */

struct viewer {
    struct live_job job;
    struct live_model model;
    struct loop loop;
};

static int live_main_open(void *viewer, int width, int height, int ascii)
{
    struct viewer *v = viewer;
    int rc = live_model_open(&v->model, &v->job, width, height);
    v->model.ascii = ascii;
    return rc;
}

static int live_main_draw(void *viewer)
{
    struct viewer *v = viewer;
    return live_draw(&v->loop.cells, &v->model);
}

static void live_main_key(void *viewer, struct key key)
{
    live_model_key(&((struct viewer *)viewer)->model, key);
}

static int live_main_look(void *viewer)
{
    struct viewer *v = viewer;
    int rc = 0;
    if (!v->model.frozen && !v->job.ended) {
        live_read(&v->job);
        rc = live_model_take(&v->model, &v->job);
    }
    v->model.quit |= v->loop.options->until_end && v->job.ended;
    return rc;
}

/* The job's first file may come a moment after the viewer. */
static int live_main_open_job(const struct tui_options *o, struct live_job *job, char *error,
                              size_t size)
{
    const struct timespec moment = {0, 50000000};
    char folder[512];
    int rc = -ENOENT;
    for (int ms = 0; ms == 0 || (o->until_end && ms < WAIT_FOR_JOB_MS && rc == -ENOENT); ms += 50) {
        if (ms)
            nanosleep(&moment, NULL);
        rc = live_find(folder, sizeof folder, o->file[0], error, size);
        rc = rc ? rc : live_open(job, folder, error, size);
    }
    return rc;
}

int live_show(const struct tui_options *o)
{
    struct viewer v = {.loop = {.options = o,
                                .viewer = &v,
                                .open = live_main_open,
                                .draw = live_main_draw,
                                .key = live_main_key,
                                .idle = live_main_look,
                                .redraw = &v.model.redraw,
                                .suspend = &v.model.suspend,
                                .quit = &v.model.quit}};
    char error[512];
    int rc = o->script ? script_read(&v.loop.script, o->script, error, sizeof error) : 0;
    rc = rc ? rc : live_main_open_job(o, &v.job, error, sizeof error);
    int status = loop_run(&v.loop, rc, error);
    live_model_close(&v.model);
    live_close(&v.job);
    return status;
}

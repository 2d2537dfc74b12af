/* `mkernel tui FILE [FILE]`: what the viewer is asked for. */
#include "experiments/common/command_says.h"
#include "experiments/common/commands.h"
#include "experiments/common/options.h"
#include "tui/show.h"

#include <stddef.h>
#include <stdio.h>

struct arguments {
    struct tui_options o;
    const char *size;
    int as; /* index in dumps */
};

static const char *const dumps[] = {"text", "attributes"};

#define AT(field) .offset = offsetof(struct arguments, field)
static const struct option_spec specs[] = {
    {"attach", OPTION_FLAG, AT(o.attach), NULL,
     "shows a running `mkernel run` instead: what every CTA does now, and which rank it waits "
     "for. JOB is its process; not needed where one job runs"},
    {"until-end", OPTION_FLAG, AT(o.until_end), NULL,
     "with --attach: waits for the job to begin, ends with it"},
    {"script", OPTION_TEXT, AT(o.script), "FILE", "plays keys from a file first (docs/VIEWER.md)"},
    {"dump-screen", OPTION_WORD, AT(as), "attributes",
     "prints the screen as text instead of taking the terminal; =attributes adds its colours and "
     "attributes, a letter per cell",
     .words = dumps, .word_count = 2, .bare = 1},
    {"size", OPTION_TEXT, AT(size), "WIDTHxHEIGHT", "size of the printed screen (default 80x24)"},
    {"key-times", OPTION_FLAG, AT(o.key_times), NULL,
     "with --dump-screen: ms (wall and CPU) that each key took, on stderr"},
    {"ascii", OPTION_FLAG, AT(o.ascii), NULL,
     "no characters beyond ASCII (default where the locale is not UTF-8)"},
    {"no-mouse", OPTION_FLAG, AT(o.no_mouse), NULL, "leaves the mouse to the terminal"},
};
static const struct option_table table = {
    "tui FILE [FILE] [OPTIONS]\n       mkernel tui --attach [JOB] [OPTIONS]",
    "Shows a trace as timelines of CTA roles; two files are compared. ? lists the keys, q quits.\n"
    "NO_COLOR=1 in the environment: no colours.",
    specs, sizeof specs / sizeof *specs,
    "  mkernel tui run.db\n"
    "  mkernel tui measured.db simulated.db\n"
    "  mkernel tui --attach\n"
    "  mkernel tui run.db --dump-screen --size 120x40\n"};

static int tui_read_size(const char *text, struct tui_options *o)
{
    char more;
    return sscanf(text, "%4dx%4d%c", &o->width, &o->height, &more) == 2 && o->width >= 1 &&
           o->height >= 1 && o->width <= 1000 && o->height <= 1000;
}

/* What is wrong with the whole of it, in `error`; 0: nothing. */
static int tui_check(struct arguments *a, const struct options_found *found, char *error,
                     size_t size)
{
    struct tui_options *o = &a->o;
    o->files = found->word_count;
    for (int i = 0; i < o->files; i++)
        o->file[i] = found->words[i];
    if (options_given(&table, found, "dump-screen"))
        o->dump = 1 + a->as;
    if (o->attach && o->files > 1)
        return snprintf(error, size, "--attach takes one job, and %s is one too many", o->file[1]);
    if (o->until_end && !o->attach)
        return snprintf(error, size, "--until-end goes with --attach");
    if (!o->files && !o->attach)
        return snprintf(error, size, "a trace file is missing");
    if (a->size && !o->dump)
        return snprintf(error, size, "--size goes with --dump-screen");
    if (a->size && !tui_read_size(a->size, o))
        return snprintf(
            error, size,
            "--size takes WIDTHxHEIGHT, at most 1000x1000, such as 120x40, but it was given %s",
            a->size);
    if (o->key_times && (o->attach || !(o->dump && o->script)))
        return snprintf(error, size, "--key-times goes with --dump-screen and --script");
    return 0;
}

int command_tui(int argc, char **argv)
{
    struct arguments a = {.o = {.width = 80, .height = 24}};
    struct options_found found;
    char error[512];
    int ends = command_options("tui", &table, 2, argc, argv, &a, &found);
    if (ends >= 0)
        return ends;
    if (tui_check(&a, &found, error, sizeof error))
        return command_refuse("tui", "%s", error);
    return tui_show(&a.o);
}

/* Two files: which launch of one lies beside which of the other, and that both begin at the same
 * column. Launches go in pairs by their number; where one file has fewer, its last lies beside the
 * others, so that one simulated launch can be held against each measured one. */
#include "tui/model.h"

static int align_launches(const struct model *m, int file)
{
    return m->source[file]->info.launches;
}

/* The launch that goes on at a file's own time; the first, before any. */
static int align_launch_at(const struct model *m, int file, double time)
{
    const struct source_launch *l = m->source[file]->launches;
    int launch = 0;
    for (int i = 0; i < align_launches(m, file); i++)
        if (l[i].start <= time)
            launch = i;
    return launch;
}

void model_align(struct model *m, int file, int launch)
{
    m->begin = 0;
    m->end = 0;
    if (m->files == 2 && align_launches(m, 0) && align_launches(m, 1)) {
        int last = align_launches(m, !file) - 1;
        m->pair[file] = launch;
        m->pair[!file] = launch < last ? launch : last;
        m->shift[1] =
            m->source[0]->launches[m->pair[0]].start - m->source[1]->launches[m->pair[1]].start;
    }
    for (int i = 0; i < m->files; i++) {
        double end = m->source[i]->info.end + m->shift[i];
        m->begin = m->shift[i] < m->begin ? m->shift[i] : m->begin;
        m->end = end > m->end ? end : m->end;
    }
    if (m->end <= m->begin)
        m->end = m->begin + 1;
}

/* The file under the cursor stays where it is on the screen. */
int model_align_follow(struct model *m)
{
    const struct row *row = model_row(m);
    if (m->files < 2 || m->held || !row || !align_launches(m, 0) || !align_launches(m, 1))
        return 0;
    int launch = align_launch_at(m, row->file, model_file_time(m, row->file, m->cursor));
    if (launch == m->pair[row->file])
        return 0;
    double was = m->shift[1];
    model_align(m, row->file, launch);
    double moved = row->file ? m->shift[1] - was : 0;
    m->cursor += moved;
    m->t0 += moved;
    m->t1 += moved;
    m->pin_cursor += moved; /* NAN stays one */
    return 1;
}

void model_align_key(struct model *m)
{
    if (m->files < 2) {
        model_say(m, 1, "a holds two files side by side; this is one");
        return;
    }
    m->held = !m->held;
    model_align_follow(m);
    if (!m->held) {
        model_say(m, 0, "the launch at the cursor begins in both files at the same column");
        return;
    }
    model_say(m, 0, "launch %d of A is held beside launch %d of B; a goes on with the cursor's",
              m->pair[0] + 1, m->pair[1] + 1);
}

/* The screen's time and the files'. Of one file whose launches are the smaller part of the run,
 * what lies between them is cut out, as `mkernel trace plot` does; of two files one is shifted, so
 * that their launches lie under each other. */

#include "tui/model.h"

double model_screen_time(const struct model *m, int file, double time)
{
    double shown = time + m->shift[file];
    for (int i = 0; i < m->cuts && time > m->cut[i].from; i++) {
        const struct model_cut *c = &m->cut[i];
        shown = time < c->to ? c->at + (time - c->from) * m->gap / (c->to - c->from)
                             : c->at + m->gap + (time - c->to);
    }
    return shown;
}

double model_file_time(const struct model *m, int file, double time)
{
    double found = time - m->shift[file];
    for (int i = 0; i < m->cuts && time > m->cut[i].at; i++) {
        const struct model_cut *c = &m->cut[i];
        found = time < c->at + m->gap ? c->from + (time - c->at) * (c->to - c->from) / m->gap
                                      : c->to + (time - c->at - m->gap);
    }
    return found;
}

double model_clock(const struct model *m, double time)
{
    return model_file_time(m, 0, time);
}

int model_is_cut(const struct model *m, double time, double step)
{
    for (int i = 0; i < m->cuts; i++) {
        double middle = m->cut[i].at + m->gap / 2;
        if ((time <= middle && middle < time + step) ||
            (m->cut[i].at <= time + step / 2 && time + step / 2 < m->cut[i].at + m->gap))
            return 1;
    }
    return 0;
}

double model_next_cut(const struct model *m, double time, double end)
{
    for (int i = 0; i < m->cuts; i++) {
        if (m->cut[i].at > time)
            return m->cut[i].at < end ? m->cut[i].at : end;
        if (m->cut[i].at + m->gap > time)
            return m->cut[i].at + m->gap < end ? m->cut[i].at + m->gap : end;
    }
    return end;
}

/* Cuts between the launches of the one file; none where the launches are most of the run, or too
 * many to have columns of their own. */
static void cut_find(struct model *m)
{
    const struct source_launch *l = m->source[0]->launches;
    int count = m->source[0]->info.launches;
    double run = m->source[0]->info.end, sum = 0, covered = 0;
    m->cuts = 0;
    if (m->files == 2 || count < 1 || count > MODEL_CUTS - 1)
        return;
    for (int i = 0; i < count; i++) {
        double from = l[i].start > covered ? l[i].start : covered;
        sum += l[i].end > from ? l[i].end - from : 0;
        covered = l[i].end > covered ? l[i].end : covered;
    }
    if (sum <= 0 || sum > run / 2)
        return;
    m->gap = count > 10 ? 0.1 * sum / count : 0.01 * sum;
    double from = 0, shown = 0; /* the end of what is shown so far: in the file, on the screen */
    for (int i = 0; i <= count; i++) {
        double to = i < count ? l[i].start : run;
        if (to - from > m->gap) {
            m->cut[m->cuts++] = (struct model_cut){from, to, shown};
            shown += m->gap;
        } else if (to > from) {
            shown += to - from;
        }
        from = to > from ? to : from;
        if (i < count && l[i].end > from) {
            shown += l[i].end - from;
            from = l[i].end;
        }
    }
}

void model_cut(struct model *m, int cut)
{
    m->cuts = 0;
    if (cut)
        cut_find(m);
    m->begin = 0;
    m->end = model_screen_time(m, 0, m->source[0]->info.end);
}

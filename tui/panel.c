/* The panels whose figures belong to the whole run. They ask the views that `mkernel trace summary`
 * asks. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tui/cells.h"
#include "core/base/sentence.h"
#include "tui/picture.h"

enum { MOST_FIGURES = 256 };

void panel_add(struct panel_text *t, const char *format, ...)
{
    va_list args;
    if (t->count >= PANEL_LINES)
        return;
    va_start(args, format);
    vsnprintf(t->line[t->count++], PANEL_WIDTH, format, args);
    va_end(args);
}

const char *panel_bar(char *out, int size, int width, const struct class_look *look,
                      const double *share, int classes)
{
    int columns[16] = {0}, used = 0, n = 0;
    double sum = 0, rest[16];
    for (int i = 0; i < classes; i++)
        sum += share[i] > 0 ? share[i] : 0;
    for (int i = 0; i < classes; i++) {
        double exact = sum > 0 && share[i] > 0 ? share[i] / sum * width : 0;
        columns[i] = (int)exact;
        rest[i] = exact - columns[i];
        used += columns[i];
    }
    while (used < width && sum > 0) { /* columns left over go to the largest remainders */
        int best = 0;
        for (int i = 1; i < classes; i++)
            if (rest[i] > rest[best])
                best = i;
        columns[best]++;
        rest[best] = -1;
        used++;
    }
    out[0] = 0;
    for (int k = 1; k <= classes; k++) {
        int i = k % classes; /* state 0 is idle: last */
        if (columns[i] && n + columns[i] * 3 + 4 < size) {
            out[n++] = 1;
            out[n++] = (char)('A' + look[i].colour);
            for (int c = 0; c < columns[i]; c++)
                n += cells_encode(look[i].glyph, out + n);
        }
    }
    snprintf(out + n, (size_t)(size - n), "\001A");
    return out;
}

/* Text of a file, made fit for a terminal. */
static const char *panel_clean(const char *text, char out[96])
{
    snprintf(out, 96, "%s", text);
    cells_clean(out);
    return out;
}

/* Of two files, which one it is about. */
void panel_of_file(struct panel_text *t, const struct model *m, int file)
{
    if (m->files == 2)
        panel_add(t, STRONG "%c  %.120s" PLAIN, 'A' + file, m->source[file]->info.title);
}

static void panel_no_figures(struct panel_text *t, int before, const char *what)
{
    if (t->count == before)
        panel_add(t, FAINT "no %s in this trace", what);
}

static void panel_overlap(struct panel_text *t, struct model *m, int file)
{
    struct source *s = m->source[file];
    const struct row *row = model_row(m);
    int width = m->width - 74 > 60 ? 60 : m->width - 74, before; /* what the figures leave */
    char bar[512], ns[3][32];
    panel_of_file(t, m, file);
    panel_add(t, FAINT "rank   compute only  both  comm only  idle   exposed comm  of all comm");
    before = t->count;
    QUERY q = query_ask(
        s->db,
        "SELECT o.rank, o.compute_only, o.both, o.comm_only, o.idle, x.exposed_ns, x.exposed "
        "FROM overlap o JOIN exposed x USING (rank) ORDER BY o.rank",
        "");
    double share[OVERLAP_CLASSES], exposed_ns, exposed;
    int rank;
    while (query_row(q, "ndddddd", &rank, &share[OVERLAP_COMPUTE], &share[OVERLAP_BOTH],
                     &share[OVERLAP_COMMUNICATION], &share[OVERLAP_IDLE], &exposed_ns, &exposed)) {
        int here = row && row->rank == rank;
        if (here && row->file == file)
            t->follow = t->count;
        panel_add(
            t, "%s%4d %12.1f %% %5.1f %% %7.1f %% %5.1f %%  %s %9.1f %%  %s", here ? STRONG : PLAIN,
            rank, share[OVERLAP_COMPUTE], share[OVERLAP_BOTH], share[OVERLAP_COMMUNICATION],
            share[OVERLAP_IDLE], words_length_in(ns[0], 10, isnan(exposed_ns) ? 0 : exposed_ns),
            isnan(exposed) ? 0 : exposed,
            width >= 8 ? panel_bar(bar, sizeof bar, width, overlap_look, share, OVERLAP_CLASSES)
                       : "");
    }
    panel_no_figures(t, before, "launches");
    long long epoch;
    double all, slowest, fastest, efficiency;
    const char *basis;
    int first = 1;
    QUERY launches =
        query_ask(s->db,
                  "SELECT epoch, ns, slowest_ns, fastest_ns, coalesce(efficiency, 0), basis FROM "
                  "launches ORDER BY launch",
                  "");
    for (; query_row(launches, "iddddt", &epoch, &all, &slowest, &fastest, &efficiency, &basis);
         first = 0) {
        if (first)
            panel_add(t,
                      FAINT "epoch      launch  slowest rank  fastest rank  ideal / slowest rank");
        panel_add(t, PLAIN "%5lld  %s  %s  %s  %.1f %% (ideal: %s)", epoch,
                  words_length_in(ns[0], 10, all), words_length_in(ns[1], 12, slowest),
                  words_length_in(ns[2], 12, fastest), efficiency,
                  !strcmp(basis, "peak") ? "peak rates" : "its tiles or its transfers alone");
    }
}

/* One line per role: what its CTAs' time was; rank -1: that of all ranks together. */
static void panel_roles_of(struct panel_text *t, struct model *m, int file, int rank)
{
    const double *all = source_role_shares(m->source[file]); /* rank, role, state */
    int ranks = m->source[file]->info.ranks, width = m->width < 100 ? m->width / 4 : m->width / 3;
    for (int role = 0; all && role < MK_ROLES; role++) {
        char bar[512], parts[256] = "";
        const double *share = all + ((rank < 0 ? ranks : rank) * MK_ROLES + role) * SPAN_CLASSES;
        if (share[SPAN_IDLE] < 0)
            continue;
        for (int state = 0; state < SPAN_CLASSES; state++)
            if (state != SPAN_IDLE && share[state] >= 0.05)
                mk_append(parts, sizeof parts, "  %s %.1f %%", span_look[state].name, share[state]);
        panel_add(t, "%-12s %s%s", source_role_name(role),
                  panel_bar(bar, sizeof bar, width, span_look, share, SPAN_CLASSES), parts);
    }
}

static void panel_roles(struct panel_text *t, struct model *m, int file)
{
    const struct row *row = model_row(m);
    panel_of_file(t, m, file);
    if (row && row->file == file) {
        panel_add(t, STRONG "rank %d" PLAIN FAINT " (of its CTAs' time in launches)", row->rank);
        int before = t->count;
        panel_roles_of(t, m, file, row->rank);
        panel_no_figures(t, before, "role's time");
    }
    panel_add(t, STRONG "all ranks");
    panel_roles_of(t, m, file, -1);
}

static void panel_stalls(struct panel_text *t, struct model *m, int file)
{
    struct source *s = m->source[file];
    char ns[2][32], text[3][96];
    const struct row *row = model_row(m);
    int before;
    panel_of_file(t, m, file);
    panel_add(t, FAINT
              "rank  role          cause              waits       total     longest  of its time");
    before = t->count;
    const char *role, *cause, *what;
    long long count;
    double all, longest, share, start;
    int rank, cta;
    QUERY q =
        query_ask(s->db,
                  "SELECT rank, role, cause, count, ns, longest_ns, share FROM stalls WHERE ns > 0 "
                  "ORDER BY rank = ? DESC, rank, ns DESC LIMIT 64",
                  "i", (int64_t)(row ? row->rank : 0));
    while (query_row(q, "nttiddd", &rank, &role, &cause, &count, &all, &longest, &share))
        panel_add(t, "%s%4d  %-12s  %-15s %8lld  %s  %s   %5.1f %%",
                  row && rank == row->rank ? PLAIN : FAINT, rank, panel_clean(role, text[0]),
                  panel_clean(cause, text[1]), count, words_length_in(ns[0], 10, all),
                  words_length_in(ns[1], 10, longest), share);
    panel_no_figures(t, before, "wait that took time");
    panel_add(t, STRONG "longest waits" PLAIN FAINT "  (w goes through them)");
    QUERY worst =
        query_ask(s->db,
                  "SELECT rank, role, cta, start, ns, cause, waited_for FROM worst_stalls "
                  "WHERE ns > 0 LIMIT 40",
                  "");
    while (query_row(worst, "ntnddtt", &rank, &role, &cta, &start, &all, &cause, &what))
        panel_add(t, PLAIN "%s  rank %d %s CTA %d at %s: %s, %s", words_length_in(ns[0], 10, all),
                  rank, panel_clean(role, text[0]), cta, words_time(ns[1], start, 1000),
                  panel_clean(cause, text[1]), panel_clean(what, text[2]));
}

static void panel_slowest(struct panel_text *t, struct model *m, int file)
{
    struct source *s = m->source[file];
    char ns[5][32], text[96];
    int before;
    panel_of_file(t, m, file);
    panel_add(t, STRONG "messages" PLAIN FAINT
                        "  (its parts in the same unit; done: until it was completed)");
    before = t->count;
    /* `arrived` counts where a CTA waited for it: else it came earlier than somebody looked */
    double whole, bytes, start, part[4];
    const char *carries;
    int rank, peer, cta, slab;
    QUERY q = query_ask(
        s->db,
        "SELECT rank, peer, ns, bytes, carries, commanded, command_seen, seen_posted, CASE WHEN "
        "waited THEN posted_arrived END, CASE WHEN waited THEN max(0, posted_completed - "
        "posted_arrived) ELSE posted_completed END FROM slowest_messages LIMIT 20",
        "");
    while (query_row(q, "nnddtddddd", &rank, &peer, &whole, &bytes, &carries, &start, &part[0],
                     &part[1], &part[2], &part[3])) {
        static const char *const names[] = {"ring", "proxy", "network", "done"};
        char parts[160] = "";
        for (int i = 0; i < 4; i++)
            if (!isnan(part[i]))
                mk_append(parts, sizeof parts, " %s %s %s", *parts ? "+" : "=",
                          words_part(ns[3], part[i], whole), names[i]);
        panel_add(t, PLAIN "%s  rank %d → %d  %s  %s at %s%s", words_length_in(ns[0], 10, whole),
                  rank, peer, words_bytes(ns[1], bytes), panel_clean(carries, text),
                  words_time(ns[2], isnan(start) ? 0 : start, 1000), parts);
    }
    panel_no_figures(t, before, "messages");
    panel_add(t, STRONG "tiles");
    before = t->count;
    long long epoch, tile, first, col;
    QUERY tiles = query_ask(
        s->db,
        "SELECT rank, cta, epoch, start, ns, tile, slab, row, col FROM slowest_tiles LIMIT 20", "");
    while (query_row(tiles, "nniddinii", &rank, &cta, &epoch, &start, &whole, &tile, &slab, &first,
                     &col))
        panel_add(
            t,
            PLAIN
            "%s  rank %d CTA %d at %s  tile %lld: shard %d, row %lld, column %lld  epoch %lld",
            words_length_in(ns[0], 10, whole), rank, cta, words_time(ns[1], start, 1000), tile,
            slab, first, col, epoch);
    panel_no_figures(t, before, "tiles");
}

static void panel_critical(struct panel_text *t, struct model *m, int file)
{
    struct source *s = m->source[file];
    char ns[2][32], text[3][96];
    double now = model_file_time(m, file, m->cursor);
    int launch = source_launch_at(s, now);
    if (!s->info.launches) {
        panel_add(t, FAINT "no launches in this trace");
        return;
    }
    panel_add(t,
              STRONG "What fixed the end of the launch of epoch %ld" PLAIN FAINT
                     "  (the step at the cursor is marked)",
              s->launches[launch].epoch);
    const char *what, *role, *about;
    double share, start, length;
    long long cta;
    int step, rank;
    QUERY q = query_ask(s->db, "SELECT what, role, share FROM critical_share LIMIT 5", "");
    char sums[512] = "";
    while (query_row(q, "ttd", &what, &role, &share))
        mk_append(sums, sizeof sums, "%s%s%s%s %.1f %%", *sums ? ", " : "",
                  panel_clean(what, text[0]), *role ? " of " : "", panel_clean(role, text[1]),
                  share);
    panel_add(t, "all launches: %s", *sums ? sums : "not computed");
    int before = t->count;
    QUERY path = query_ask(s->db,
                           "SELECT step, rank, role, cta, what, start, ns, text FROM critical_path "
                           "WHERE launch = ? ORDER BY step LIMIT 380",
                           "i", s->launch_id[launch]);
    while (query_row(path, "nntotddt", &step, &rank, &role, &cta, &what, &start, &length, &about)) {
        int here = start <= now && now < start + length;
        if (here)
            t->follow = t->count;
        char name[32] = "";
        if (cta != QUERY_NONE)
            snprintf(name, sizeof name, "CTA %lld", cta);
        panel_add(t, "%s%s%4d  %s %s  rank %d %s %s  %-8s %s", here ? STRONG : PLAIN,
                  here ? "▶" : " ", step, words_time_in(ns[0], 12, start, 10),
                  words_length_in(ns[1], 10, length), rank, panel_clean(role, text[0]), name,
                  panel_clean(what, text[1]), panel_clean(about, text[2]));
    }
    panel_no_figures(t, before, "critical path of this launch");
}

static void difference(struct panel_text *t, const struct trace_figure *f)
{
    double a = f->value[0], b = f->value[1];
    int length = strcmp(f->unit, "%") != 0;
    char text[3][32];
    for (int i = 0; i < 3; i++) {
        double v = i == 0 ? a : i == 1 ? b : b - a;
        if (isnan(v))
            snprintf(text[i], sizeof text[i], i < 2 ? "%12s" : "%s", "-");
        else if (length)
            words_length_in(text[i], i < 2 ? 12 : 0, v);
        else
            snprintf(text[i], sizeof text[i], i < 2 ? "%10.1f %%" : "%.1f pp", v);
    }
    char ratio[32] = "";
    if (length && a > 0 && b > 0)
        snprintf(ratio, sizeof ratio, "×%.3f", b / a);
    panel_add(t, PLAIN "%-38s %s %s   %s%s%s" PLAIN "  %s", f->name, text[0], text[1],
              b == a ? FAINT : STRONG, b > a ? "+" : "", text[2], ratio);
}

/* What `mkernel trace diff` prints, but for the shares of roles, which have a panel. */
static void panel_difference(struct panel_text *t, struct model *m)
{
    static const struct {
        const char *section, *title;
    } titles[] = {{"overlap", "of all ranks' time in launches"},
                  {"wait", "waiting per launch and rank, its CTAs together"},
                  {"work", "one tile, wait, copy, reduction"},
                  {"message", "messages by stage"}};
    struct trace_figure f[MOST_FIGURES];
    int count = trace_figures(m->source[0]->db, m->source[1]->db, f, MOST_FIGURES);
    const struct source_info *a = &m->source[0]->info, *b = &m->source[1]->info;
    if (strcmp(a->title, b->title))
        panel_add(t, ALARM "These are different problems:" PLAIN " A %s, B %s", a->title, b->title);
    panel_add(t, FAINT "%-38s %12s %12s   B - A  B / A", "", "A", "B");
    for (int i = 0; i < count; i++) {
        if (!strcmp(f[i].section, "role"))
            continue;
        for (size_t k = 0; k < sizeof titles / sizeof *titles; k++)
            if (!strcmp(titles[k].section, f[i].section) &&
                (!i || strcmp(f[i].section, f[i - 1].section)))
                panel_add(t, FAINT "%s", titles[k].title);
        difference(t, &f[i]);
    }
}

void panel_fetch(struct panel_text *t, struct model *m)
{
    const struct row *row = model_row(m);
    int file = row ? row->file : 0;
    switch (m->panel) {
    case PANEL_DETAIL:
        panel_detail(t, m);
        break;
    case PANEL_OVERLAP:
    case PANEL_ROLES:
        for (int i = 0; i < m->files; i++)
            m->panel == PANEL_OVERLAP ? panel_overlap(t, m, i) : panel_roles(t, m, i);
        break;
    case PANEL_STALLS:
        panel_stalls(t, m, file);
        break;
    case PANEL_SLOWEST:
        panel_slowest(t, m, file);
        break;
    case PANEL_CRITICAL:
        panel_critical(t, m, file);
        break;
    case PANEL_RANGE:
        panel_range(t, m);
        break;
    case PANEL_WHY:
        for (int i = 0; i < m->files; i++)
            panel_why(t, m, i);
        break;
    default:
        panel_difference(t, m);
    }
}

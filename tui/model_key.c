/* What each key does. */
#include <math.h>
#include <string.h>

#include "tui/model.h"

/* Keys of the panel: 1 to 9 choose it, p and P turn through them, z enlarges, J and K scroll. 1
 * where it was one. */
static int model_key_panel_key(struct model *m, int code)
{
    int panels = m->files == 2 ? PANELS : PANEL_DIFFERENCE;
    int chosen = code >= '1' && code < '1' + panels ? code - '1'
                 : code == 'p'                      ? ((int)m->panel + 1) % panels
                 : code == 'P'                      ? ((int)m->panel + panels - 1) % panels
                                                    : -1;
    if (chosen >= 0) {
        m->panel = (enum panel)chosen;
        m->scroll = 0;
        m->help = 0;
        return 1;
    }
    switch (code) {
    case 'z':
        m->large = !m->large;
        return 1;
    case 'J':
        /* picture_fetch ends it at the last page of a panel */
        m->scroll += !m->help || m->scroll < 27;
        return 1;
    case 'K':
        m->scroll -= m->scroll > 0;
        return 1;
    case '?':
        m->help = !m->help;
        m->scroll = 0;
        return 1;
    default:
        return 0;
    }
}

/* To the start of the next or previous launch of the row's file. */
static void model_key_go_launch(struct model *m, int direction)
{
    const struct row *row = model_row(m);
    int file = row ? row->file : 0;
    const struct source_launch *l = m->source[file]->launches;
    int count = m->source[file]->info.launches, best = -1;
    double now = model_file_time(m, file, m->cursor);
    for (int i = 0; i < count; i++)
        if (direction > 0 ? l[i].start > now + 0.5 && best < 0 : l[i].start < now - 0.5)
            best = i;
    if (best < 0) {
        model_say(m, 0,
                  direction > 0 ? "no launch begins after this" : "no launch begins before this");
        return;
    }
    model_push(m);
    model_go(m, model_screen_time(m, file, l[best].start));
    model_say(m, 0, "launch %d of %d, epoch %ld", best + 1, count, l[best].epoch);
}

static void model_key_fit_here(struct model *m)
{
    const struct row *row = model_row(m);
    double a, b;
    if (!isnan(m->range[0]) && !isnan(m->range[1])) {
        a = m->range[0];
        b = m->range[1];
    } else if (row && m->have_event && !m->on_chain) {
        a = model_screen_time(m, row->file, m->event.start);
        b = model_screen_time(m, row->file, m->event.end);
        double around = b - a > 1 ? b - a : 1;
        a -= around;
        b += around;
    } else if (row && m->source[row->file]->info.launches) {
        const struct source_launch *l = m->source[row->file]->launches;
        int last = m->source[row->file]->info.launches - 1, i = 0;
        while (i < last && l[i + 1].start <= model_file_time(m, row->file, m->cursor))
            i++;
        a = model_screen_time(m, row->file, l[i].start);
        b = model_screen_time(m, row->file, l[i].end);
    } else {
        model_fit(m);
        return;
    }
    double least = model_least(m);
    if (b - a < least) { /* one ns per column is the closest */
        double middle = (a + b) / 2;
        a = middle - least / 2;
        b = middle + least / 2;
    }
    m->t0 = a;
    m->t1 = b;
    if (m->cursor < a || m->cursor >= b)
        m->cursor = a < m->begin ? m->begin : a;
}

static void model_key_set_range(struct model *m, int end)
{
    m->range[end] = m->cursor;
    if (!isnan(m->range[0]) && !isnan(m->range[1])) {
        if (m->range[0] > m->range[1]) {
            double t = m->range[0];
            m->range[0] = m->range[1];
            m->range[1] = t;
        }
        m->panel = PANEL_RANGE;
        m->scroll = 0;
    }
    model_say(m, 0,
              isnan(m->range[!end]) ? (end ? "range ends here; [ sets its start"
                                           : "range starts here; ] sets its end")
                                    : "range set; panel 7 has its figures, Escape clears it");
}

/* Keys that move. 1 where it was one. */
static int model_key_move_key(struct model *m, int code)
{
    struct geometry g = model_geometry(m);
    switch (code) {
    case TUI_UP:
    case 'k':
        m->row--;
        return 1;
    case TUI_DOWN:
    case 'j':
        m->row++;
        return 1;
    case TUI_LEFT:
    case 'h':
        m->cursor -= model_column(m);
        return 1;
    case TUI_RIGHT:
    case 'l':
        m->cursor += model_column(m);
        return 1;
    case TUI_PAGE_UP:
        m->row -= g.rows_height;
        m->top -= g.rows_height;
        return 1;
    case TUI_PAGE_DOWN:
        m->row += g.rows_height;
        m->top += g.rows_height;
        return 1;
    case 'H':
        model_scroll(m, -g.columns);
        return 1;
    case 'L':
        model_scroll(m, g.columns);
        return 1;
    case 'g':
        m->row = 0;
        return 1;
    case 'G':
        m->row = m->row_count - 1;
        return 1;
    case TUI_HOME:
    case '^':
        m->cursor = m->begin;
        return 1;
    case TUI_END:
    case '$':
        m->cursor = m->end;
        return 1;
    default:
        return 0;
    }
}

/* Keys that zoom, fold, jump and ask. */
static void model_key_command_key(struct model *m, int code)
{
    switch (code) {
    case '+':
    case '=':
        model_zoom(m, 0.5, m->cursor);
        break;
    case '-':
    case '_':
        model_zoom(m, 2, m->cursor);
        break;
    case '0':
        model_fit(m);
        break;
    case 'f':
        model_key_fit_here(m);
        break;
    case ' ':
        model_fold(m);
        break;
    case 'Z':
        model_fold_all(m);
        break;
    case 'e':
    case 'E':
        model_key_go_launch(m, code == 'e' ? 1 : -1);
        break;
    case TUI_TAB:
    case TUI_BACKTAB:
        model_next_event(m, code == TUI_TAB ? 1 : -1);
        break;
    case 'w':
    case 'W':
        model_worst(m, code == 'w' ? 1 : -1);
        break;
    case 'a':
        model_align_key(m);
        break;
    case 'c':
        model_cut_key(m);
        break;
    case 'n':
    case 'N':
        model_search(m, code == 'n' ? 1 : -1);
        break;
    case '[':
    case ']':
        model_key_set_range(m, code == ']');
        break;
    case '/':
    case '\\':
    case ':':
    case 'm':
    case '\'':
        m->prompt = code == '/'    ? PROMPT_SEARCH
                    : code == '\\' ? PROMPT_FILTER
                    : code == ':'  ? PROMPT_GOTO
                    : code == 'm'  ? PROMPT_MARK
                                   : PROMPT_JUMP;
        m->length = 0;
        m->text[0] = 0;
        break;
    case 'q':
        m->quit = 1;
        break;
    case 'r':
    case 'L' & 31:
        m->redraw = 1;
        break;
    case 'Z' & 31:
        m->suspend = 1;
        break;
    default:
        if (code > ' ' && code < 127)
            model_say(m, 1, "%c does nothing here; ? lists the keys", code);
    }
}

static void model_key_mouse_key(struct model *m, struct key key)
{
    struct geometry g = model_geometry(m);
    int row = m->top + key.y - g.rows_top;
    int inside = key.y >= g.rows_top && key.y < g.rows_top + g.rows_height && row < m->row_count;
    int timeline = key.x >= g.label && key.x < m->width && key.y >= g.ruler &&
                   key.y < g.rows_top + g.rows_height;
    if (timeline)
        model_go(m, m->t0 + (key.x - g.label) * model_column(m));
    if (key.code == TUI_CLICK) {
        if (inside)
            m->row = row;
        if (inside && key.x < g.label)
            model_fold(m);
        if (key.y == g.panel) { /* the bar: a click turns to the next panel */
            model_key_panel_key(m, 'p');
        }
    } else if (key.y >= g.panel) {
        model_key_panel_key(m, key.code == TUI_WHEEL_UP ? 'K' : 'J');
    } else if (timeline) {
        model_zoom(m, key.code == TUI_WHEEL_UP ? 0.5 : 2, m->cursor);
    } else {
        m->row += key.code == TUI_WHEEL_UP ? -3 : 3;
    }
}

static void model_key_escape_key(struct model *m)
{
    if (m->help || m->large) {
        m->help = m->large = 0;
    } else if (!isnan(m->range[0]) || !isnan(m->range[1])) {
        m->range[0] = m->range[1] = NAN;
        model_say(m, 0, "range cleared");
    }
}

void model_key(struct model *m, struct key key)
{
    if (key.code == TUI_RESIZE) {
        m->width = key.x;
        m->height = key.y;
        m->redraw = 1;
        model_settle(m);
        return;
    }
    m->message[0] = 0;
    m->failed = 0;
    if (m->prompt != PROMPT_NONE) {
        m->on_chain = 0;
        model_prompt_key(m, key.code);
    } else if (model_key_panel_key(m, key.code)) {
        /* looks elsewhere, goes nowhere */
    } else if (key.code == TUI_ENTER) {
        model_enter(m);
    } else if (key.code == TUI_BACKSPACE) {
        model_pop(m);
    } else if (key.code == TUI_ESCAPE) {
        model_key_escape_key(m);
    } else {
        /* looking closer is not going away */
        if (!strchr("+=-_0fr?[]m", key.code < 128 ? key.code : 1))
            m->on_chain = 0;
        if (key.code == TUI_CLICK || key.code == TUI_WHEEL_UP || key.code == TUI_WHEEL_DOWN)
            model_key_mouse_key(m, key);
        else if (!model_key_move_key(m, key.code))
            model_key_command_key(m, key.code);
    }
    model_settle(m);
}

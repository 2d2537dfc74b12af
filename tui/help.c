/* The lists of keys. */
#include "tui/layout.h"

struct help_key {
    const char *keys, *what;
};

static const struct help_key trace_keys[] = {
    {"h j k l, arrows", "move by a column, by a row"},
    {"H L", "a page left, right"},
    {"PgUp PgDn", "a page of rows up, down"},
    {"g G", "first, last row"},
    {"Home End", "begin, end of the run"},
    {"e E", "next, previous launch"},
    {"+ = -", "zoom in, out, about the cursor"},
    {"0", "the whole run"},
    {"f", "fit: the range, else the event, else the launch"},
    {"Space", "fold or unfold the row"},
    {"Z", "fold or unfold everything"},
    {"Tab S-Tab", "next, previous event of the row"},
    {"w W", "through the longest waits of the run"},
    {"Enter", "follow the cause; on a folded row to its longest wait"},
    {"Backspace", "back to where one was"},
    {"/ n N", "search: wait network rank 2 cta 7 tile 12 >10us"},
    {"\\", "filter: rank 0-3 role compute wait; empty clears"},
    {":", "go to a time (1.5ms, +20us) or epoch 2"},
    {"[ ]", "range from, to the cursor; Escape clears it"},
    {"m '", "set a bookmark, go to it (a letter follows)"},
    {"1–9 p P", "panels; J K scroll, z enlarges"},
    {"a", "two files: hold these launches side by side, or not"},
    {"c", "cut out what lies between launches, or not"},
    {"wheel, click", "zoom at the pointer; go there; a label folds"},
    {"r Ctrl-L", "draw the screen anew"},
    {"Ctrl-Z", "suspend"},
    {"? Escape", "this list; leave it"},
    {"q", "quit"},
};

static const struct help_key live_keys[] = {
    {"j k, arrows", "move by a row; g G first, last; PgUp PgDn a page"},
    {"Space, Z", "fold or unfold the row; every rank"},
    {"w", "the longest wait"},
    {"Enter", "to the next step of the chain: what this one waits for"},
    {"Backspace", "back to where one was"},
    {"p", "freeze the picture, go on"},
    {"wheel, click", "move; go there; a click on a label folds"},
    {"r Ctrl-L Ctrl-Z", "draw anew; suspend"},
    {"? q", "these keys; quit: the job goes on"},
};

#define KEYS(list)                                                                                 \
    {                                                                                              \
        list, sizeof list / sizeof *list                                                           \
    }
static const struct {
    const struct help_key *keys;
    int count;
} lists[] = {[HELP_TRACE] = KEYS(trace_keys), [HELP_LIVE] = KEYS(live_keys)};

int layout_help(struct cells *c, enum help which, int width, int scroll, int top, int height)
{
    const struct help_key *help = lists[which].keys;
    int count = lists[which].count, column = 74;
    int columns = width >= 2 * column ? 2 : 1, lines = (count + columns - 1) / columns;
    int first = scroll > lines - height ? lines - height : scroll;
    first = first < 0 ? 0 : first;
    for (int i = 0; i < count; i++) {
        int line = i % lines - first, x = i / lines * column;
        if (line < 0 || line >= height)
            continue;
        cells_text(c, x + 2, top + line, x + column, COLOUR_TEXT, ATTR_BOLD, help[i].keys);
        cells_text(c, x + 19, top + line, x + column < width ? x + column : width, COLOUR_TEXT, 0,
                   help[i].what);
    }
    return lines;
}

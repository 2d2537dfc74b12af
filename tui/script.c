#include "tui/script.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_KEYS 1000000 /* a script of more is a mistake */

static const struct {
    const char *name;
    int code;
} names[] = {
    {"Up", TUI_UP},          {"Down", TUI_DOWN},
    {"Left", TUI_LEFT},      {"Right", TUI_RIGHT},
    {"PageUp", TUI_PAGE_UP}, {"PageDown", TUI_PAGE_DOWN},
    {"Home", TUI_HOME},      {"End", TUI_END},
    {"Enter", TUI_ENTER},    {"Backspace", TUI_BACKSPACE},
    {"Tab", TUI_TAB},        {"BackTab", TUI_BACKTAB},
    {"Escape", TUI_ESCAPE},  {"Space", ' '},
    {"Ctrl-L", 'L' & 31},
};

static int script_add(struct script *s, struct key key)
{
    if (s->count >= MAX_KEYS)
        return -E2BIG;
    if ((s->count & (s->count - 1)) == 0) { /* full at every power of two */
        struct key *keys = realloc(s->keys, (size_t)(s->count ? 2 * s->count : 1) * sizeof *keys);
        if (!keys)
            return -ENOMEM;
        s->keys = keys;
    }
    s->keys[s->count++] = key;
    return 0;
}

static int script_add_token(struct script *s, char *token)
{
    long times = 1;
    char *star = strlen(token) > 2 ? strrchr(token, '*') : NULL, *end;
    if (star && star[1]) {
        times = strtol(star + 1, &end, 10);
        if (*end || times < 1 || times > MAX_KEYS)
            return -EINVAL;
        *star = 0;
    }
    int code = strlen(token) == 1 ? (unsigned char)token[0] : 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && !code; i++)
        if (!strcmp(token, names[i].name))
            code = names[i].code;
    int rc = code ? 0 : -EINVAL;
    while (times-- > 0 && !rc)
        rc = script_add(s, (struct key){code, 0, 0});
    return rc;
}

static int script_add_line(struct script *s, char *line)
{
    static const struct {
        const char *word;
        int code;
    } placed[] = {{"click %d %d%c", TUI_CLICK},
                  {"wheel-up %d %d%c", TUI_WHEEL_UP},
                  {"wheel-down %d %d%c", TUI_WHEEL_DOWN},
                  {"resize %d %d%c", TUI_RESIZE}};
    int x, y, rc = 0;
    char more;
    if (line[0] == '#')
        return 0;
    if (!strncmp(line, "type ", 5)) {
        for (const char *c = line + 5; *c && !rc; c++)
            rc = script_add(s, (struct key){(unsigned char)*c, 0, 0});
        return rc;
    }
    if (!strcmp(line, "dump"))
        return script_add(s, (struct key){SCRIPT_DUMP, 0, 0});
    for (size_t i = 0; i < sizeof placed / sizeof *placed; i++)
        if (sscanf(line, placed[i].word, &x, &y, &more) == 2)
            return x < 0 || y < 0 || x > 10000 || y > 10000
                       ? -EINVAL
                       : script_add(s, (struct key){placed[i].code, x, y});
    char *rest, *token = strtok_r(line, " \t", &rest);
    for (; token && !rc; token = strtok_r(NULL, " \t", &rest))
        rc = script_add_token(s, token);
    return rc;
}

int script_read(struct script *s, const char *path, char *error, int size)
{
    char line[512];
    int number = 0, rc = 0;
    *s = (struct script){0};
    MK_CLOSED FILE *f = fopen(path, "r");
    if (!f)
        return mk_fail(-errno, error, (size_t)size, "cannot read script '%s': %s", path,
                       strerror(errno));
    while (!rc && fgets(line, sizeof line, f)) {
        number++;
        line[strcspn(line, "\r\n")] = 0;
        rc = script_add_line(s, line);
    }
    if (!rc && ferror(f))
        rc = errno == EISDIR ? -EISDIR : -EIO;
    if (rc == -EINVAL)
        snprintf(error, (size_t)size,
                 "line %d of script '%s' has a key that is not known; docs/VIEWER.md lists them",
                 number, path);
    else if (rc)
        snprintf(error, (size_t)size, "cannot read script '%s': %s", path, strerror(-rc));
    return rc;
}

void script_free(struct script *s)
{
    free(s->keys);
    *s = (struct script){0};
}

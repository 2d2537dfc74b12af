#include "tui/cells.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>

const char cells_colour_letters[COLOURS + 1] = ".,TCPSRdbnBiLNME";

/* Glyphs in use and what stands for them in ASCII. The list is also what cells_clean lets through
 * from a file. */
static const struct {
    uint32_t glyph;
    char ascii;
} neighbours[] = {
    {0x00b1, '~'},  {0x00b5, 'u'}, {0x00b7, '.'}, {0x00d7, 'x'}, {0x2013, '-'}, {0x2018, '\''},
    {0x2019, '\''}, {0x2026, '.'}, {0x2190, '<'}, {0x2191, '^'}, {0x2192, '>'}, {0x2193, 'v'},
    {0x0394, 'd'},  {0x2248, '~'}, {0x2260, '!'}, {0x2264, '<'}, {0x2265, '>'}, {0x2500, '-'},
    {0x2502, '|'},  {0x2514, '`'}, {0x251c, '|'}, {0x2524, '|'}, {0x252c, '+'}, {0x2534, '+'},
    {0x253c, '+'},  {0x2550, '='}, {0x2581, '1'}, {0x2582, '2'}, {0x2583, '3'}, {0x2584, '4'},
    {0x2585, '5'},  {0x2586, '6'}, {0x2587, '7'}, {0x2588, '#'}, {0x2591, ':'}, {0x2592, '%'},
    {0x2593, '@'},  {0x25b2, '^'}, {0x25b4, '^'}, {0x25b6, '>'}, {0x25b8, '+'}, {0x25bc, 'v'},
    {0x25be, '-'},  {0x25c6, '+'}, {0x25cb, 'o'}, {0x00bb, '>'},
};

uint32_t cells_ascii(uint32_t glyph)
{
    if (glyph < 0x80)
        return glyph;
    for (size_t i = 0; i < sizeof neighbours / sizeof *neighbours; i++)
        if (neighbours[i].glyph == glyph)
            return (unsigned char)neighbours[i].ascii;
    return '?';
}

int cells_reset(struct cells *c, int width, int height, int ascii)
{
    size_t count = (size_t)width * (size_t)height;
    struct cell *cell = realloc(c->cell, (count ? count : 1) * sizeof *cell);
    if (!cell) {
        c->width = c->height = 0;
        return -ENOMEM;
    }
    for (size_t i = 0; i < count; i++)
        cell[i] = (struct cell){' ', COLOUR_TEXT, 0};
    *c = (struct cells){width, height, ascii, cell};
    return 0;
}

void cells_free(struct cells *c)
{
    free(c->cell);
    *c = (struct cells){0};
}

void cells_put(struct cells *c, int x, int y, uint32_t glyph, int colour, int attr)
{
    if (x < 0 || y < 0 || x >= c->width || y >= c->height)
        return;
    c->cell[(size_t)y * c->width + x] =
        (struct cell){c->ascii ? cells_ascii(glyph) : glyph, (uint8_t)colour, (uint8_t)attr};
}

/* Takes one character off *text: its code point, or '?' for what must not reach a terminal. */
static uint32_t cells_next_glyph(const char **text)
{
    const unsigned char *s = (const unsigned char *)*text;
    uint32_t g = *s;
    int more = g < 0x80                ? 0
               : g >= 0xc2 && g < 0xe0 ? 1
               : g >= 0xe0 && g < 0xf0 ? 2
               : g >= 0xf0 && g < 0xf5 ? 3
                                       : -1;
    if (more <= 0) {
        *text += 1;
        return more < 0 || g < 0x20 || g == 0x7f ? '?' : g;
    }
    g &= 0x3fu >> more;
    int i = 1;
    for (; i <= more && (s[i] & 0xc0) == 0x80; i++)
        g = g << 6 | (s[i] & 0x3f);
    *text += i;
    return i <= more || cells_ascii(g) == '?' ? '?' : g;
}

int cells_text(struct cells *c, int x, int y, int end, int colour, int attr, const char *text)
{
    while (*text) {
        uint32_t g = cells_next_glyph(&text);
        if (x < end)
            cells_put(c, x, y, g, colour, attr);
        x++;
    }
    return x;
}

int cells_print(struct cells *c, int x, int y, int end, int colour, int attr, const char *format,
                ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return cells_text(c, x, y, end, colour, attr, text);
}

int cells_columns(const char *text)
{
    int n = 0;
    for (; *text; n++)
        cells_next_glyph(&text);
    return n;
}

int cells_encode(uint32_t g, char out[4])
{
    if (g < 0x80) {
        out[0] = (char)g;
        return 1;
    }
    if (g < 0x800) {
        out[0] = (char)(0xc0 | g >> 6);
        out[1] = (char)(0x80 | (g & 0x3f));
        return 2;
    }
    out[0] = (char)(0xe0 | g >> 12);
    out[1] = (char)(0x80 | (g >> 6 & 0x3f));
    out[2] = (char)(0x80 | (g & 0x3f));
    return 3;
}

void cells_clean(char *text)
{
    const char *from = text;
    char *to = text;
    while (*from) {
        uint32_t g = cells_next_glyph(&from); /* never longer than what it came from */
        to += cells_encode(g, to);
    }
    *to = 0;
}

void cells_dump_text(const struct cells *c, FILE *out)
{
    for (int y = 0; y < c->height; y++) {
        const struct cell *row = &c->cell[(size_t)y * c->width];
        int end = c->width;
        while (end && row[end - 1].glyph == ' ')
            end--;
        for (int x = 0; x < end; x++) {
            char bytes[4];
            fwrite(bytes, 1, (size_t)cells_encode(row[x].glyph, bytes), out);
        }
        putc('\n', out);
    }
}

static void cells_dump_plane(const struct cells *c, int attributes, FILE *out)
{
    fprintf(out, attributes ? "--- attributes (1 bold, 2 reverse, 4 underline, 8 dim)\n"
                            : "--- colours\n");
    for (int y = 0; y < c->height; y++) {
        for (int x = 0; x < c->width; x++) {
            const struct cell *cell = &c->cell[(size_t)y * c->width + x];
            putc(attributes ? "0123456789abcdef"[cell->attr & 15]
                            : cells_colour_letters[cell->colour],
                 out);
        }
        putc('\n', out);
    }
}

void cells_dump_attributes(const struct cells *c, FILE *out)
{
    cells_dump_plane(c, 0, out);
    cells_dump_plane(c, 1, out);
}

void cells_dump_monochrome(const struct cells *c, FILE *out)
{
    cells_dump_plane(c, 1, out);
}

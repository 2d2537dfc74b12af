/* A screen as data: a grid of cells, each one glyph with a colour class and attributes. The layout
 * fills it, the drawing and the tests read it. Every glyph is one column wide; a write outside the
 * grid or the clip is dropped. */
#pragma once

#include <stdint.h>
#include <stdio.h>

/* What a cell means; the drawing gives each meaning a colour, or none. */
enum colour {
    COLOUR_TEXT,
    COLOUR_FAINT,   /* rulers, hints */
    COLOUR_TITLE,   /* bars at the top and the bottom */
    COLOUR_COMPUTE, /* also: compute alone */
    COLOUR_COPY,    /* also: communication alone, which nothing hides */
    COLOUR_SEND,
    COLOUR_REDUCE,
    COLOUR_WAIT_DATA,
    COLOUR_WAIT_ROOM, /* back-pressure */
    COLOUR_WAIT_NETWORK,
    COLOUR_BOTH, /* compute and communication at once */
    COLOUR_IDLE,
    COLOUR_NVLINK,
    COLOUR_NIC,
    COLOUR_MARK, /* epoch markers, bookmarks, range ends */
    COLOUR_ERROR,
    COLOURS
};

enum {
    ATTR_BOLD = 1,
    ATTR_REVERSE = 2,
    ATTR_UNDERLINE = 4,
    ATTR_DIM = 8,
};

struct cell {
    uint32_t glyph; /* a Unicode code point */
    uint8_t colour;
    uint8_t attr;
};

struct cells {
    int width, height;
    /* 1: glyphs beyond ASCII are replaced by their ASCII neighbours as they are written */
    int ascii;
    struct cell *cell; /* height rows of width */
};

/* Makes `c` a blank grid; an earlier one's memory is reused. 0 or -ENOMEM (the grid is then 0 × 0).
 * Both sizes >= 0. */
int cells_reset(struct cells *c, int width, int height, int ascii);
void cells_free(struct cells *c);

/* Writes one glyph; dropped outside the grid. */
void cells_put(struct cells *c, int x, int y, uint32_t glyph, int colour, int attr);

/* Writes UTF-8 text from (x, y) up to but not including column `end`. Bytes that are no printable
 * character become '?'. Returns the column after the last one written, or where it would be. */
int cells_text(struct cells *c, int x, int y, int end, int colour, int attr, const char *text);
int cells_print(struct cells *c, int x, int y, int end, int colour, int attr, const char *format,
                ...) __attribute__((format(printf, 7, 8)));

/* Columns that text takes. */
int cells_columns(const char *text);

/* Makes text of a file fit for a terminal: control bytes, bad UTF-8 and every character that may
 * not be one column wide become '?'. In place. */
void cells_clean(char *text);

/* The ASCII neighbour of a glyph that this program writes. */
uint32_t cells_ascii(uint32_t glyph);

/* Encodes a code point; returns the bytes written, at most 4. */
int cells_encode(uint32_t glyph, char out[4]);

/* Prints the grid, one line per row without trailing blanks. */
void cells_dump_text(const struct cells *c, FILE *out);

/* Prints the colour classes (a letter each, see cells_colour_letters) and then the attributes (a
 * hexadecimal digit each). */
void cells_dump_attributes(const struct cells *c, FILE *out);
/* The same for a terminal without colours: attributes alone. */
void cells_dump_monochrome(const struct cells *c, FILE *out);
extern const char cells_colour_letters[COLOURS + 1];

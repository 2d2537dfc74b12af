/* The viewer's words: what an interval was, as a class with a name, a glyph and a colour; times and
 * sizes as people write them; and the small language of search and filter. Pure: no I/O, no
 * state. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* What an interval of a track was. The order is the order of legends, and of what source.c selects
 * from table level. */
enum span_class {
    SPAN_IDLE,
    SPAN_COMPUTE,
    SPAN_COPY,
    SPAN_SEND,
    SPAN_REDUCE,
    SPAN_WAIT_DATA,
    SPAN_WAIT_ROOM,
    SPAN_WAIT_NETWORK,
    SPAN_CLASSES
};

/* What a rank was doing as a whole. */
enum overlap_class {
    OVERLAP_IDLE,
    OVERLAP_COMPUTE,
    OVERLAP_COMMUNICATION,
    OVERLAP_BOTH,
    OVERLAP_CLASSES
};

struct class_look {
    const char *name;  /* "wait network" */
    const char *brief; /* for narrow legends */
    uint32_t glyph;
    int colour;
};
extern const struct class_look span_look[SPAN_CLASSES];
extern const struct class_look overlap_look[OVERLAP_CLASSES];
/* Glyphs of a cell that was mostly idle, yet computed or copied for an eighth or more. */
#define SPAN_LITTLE_COMPUTE 0x2592u
#define SPAN_LITTLE_COPY 0x2500u

/* The class of an event by kind and cause (enum mk_event_kind, enum mk_cause); SPAN_IDLE for kinds
 * that last 0 ns. */
int span_class_of(int kind, int cause);

/* A length with 3 to 4 significant digits and its unit: "38.2 µs". A time point as ns resolves it
 * for steps of `step` ns: "1.204 310 ms" is written "1.20431 ms". Sizes in bytes: "256 KiB".
 * Returns `out`. */
const char *words_length(char out[32], double ns);
const char *words_time(char out[32], double ns, double step);
const char *words_bytes(char out[32], double bytes);
/* A part of a length, as a number in the unit in which words_length writes the whole, and with as
 * many digits: parts that stand beside each other can be added up. Returns `out`. */
const char *words_part(char out[32], double ns, double whole);
/* words_length and words_time in `width` columns, right-aligned: printf counts bytes, and µ has
 * two. */
const char *words_length_in(char out[32], int width, double ns);
const char *words_time_in(char out[32], int width, double ns, double step);

/* Parses "1.5ms", "300 us", "+20 ns", "-1 s". *relative is set where a sign stands before it.
 * Returns 0, or -EINVAL with a sentence in `error`: a time needs a unit. */
int words_parse_time(const char *text, double *ns, int *relative, char error[96]);

/* What is searched or filtered for; every part must hold. Ranges are inclusive; -1 in `lo` means
 * any. */
struct query {
    uint32_t classes; /* bit per span_class; 0: any */
    uint32_t roles;   /* bit per role; 0: any */
    uint32_t kinds;   /* bit per event kind, for the kinds of 0 ns: signal; 0: any */
    int64_t rank_lo, rank_hi, cta_lo, cta_hi;
    int64_t epoch;             /* -1: any */
    int64_t tile, chunk, flag; /* -1: any */
    double shortest, longest;  /* ns */
    char text[64];             /* as it was typed */
};

/* Parses words such as "wait network rank 0-3 cta 7 tile 12 >10us". Returns 0, or -EINVAL with a
 * sentence in `error`. An empty text gives a query that everything matches. */
int words_parse_query(const char *text, struct query *out, char error[96]);

/* Whether the query asks for more than rank, CTA, role and class, so that single events must be
 * read to answer it. */
int query_needs_events(const struct query *q);
int query_takes_track(const struct query *q, int rank, int role, int cta);

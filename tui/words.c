#include "tui/words.h"
#include "core/base/sentence.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tracer/live.h"
#include "tui/cells.h"

const struct class_look span_look[SPAN_CLASSES] = {
    [SPAN_IDLE] = {"idle", "idle", 0x00b7, COLOUR_IDLE},
    [SPAN_COMPUTE] = {"compute", "comp", 0x2588, COLOUR_COMPUTE},
    [SPAN_COPY] = {"copy", "copy", 0x2550, COLOUR_COPY},
    [SPAN_SEND] = {"send", "send", 0x00bb, COLOUR_SEND},
    [SPAN_REDUCE] = {"reduce", "red", 0x25c6, COLOUR_REDUCE},
    [SPAN_WAIT_DATA] = {"wait data", "data", 0x2591, COLOUR_WAIT_DATA},
    [SPAN_WAIT_ROOM] = {"wait room", "room", '!', COLOUR_WAIT_ROOM},
    [SPAN_WAIT_NETWORK] = {"wait network", "net", 0x2248, COLOUR_WAIT_NETWORK},
};

const struct class_look overlap_look[OVERLAP_CLASSES] = {
    [OVERLAP_IDLE] = {"neither", "none", 0x00b7, COLOUR_IDLE},
    [OVERLAP_COMPUTE] = {"compute only", "comp", 0x2588, COLOUR_COMPUTE},
    [OVERLAP_COMMUNICATION] = {"communication only (exposed)", "comm", 0x2550, COLOUR_COPY},
    [OVERLAP_BOTH] = {"both (overlap)", "both", 0x2593, COLOUR_BOTH},
};

int span_class_of(int kind, int cause)
{
    switch (kind) {
    case MK_EV_TILE:
        return SPAN_COMPUTE;
    case MK_EV_COPY:
        return SPAN_COPY;
    case MK_EV_COMMAND:
        return SPAN_SEND;
    case MK_EV_REDUCE:
        return SPAN_REDUCE;
    case MK_EV_WAIT:
        return cause == MK_CAUSE_BACKPRESSURE ? SPAN_WAIT_ROOM
               : cause == MK_CAUSE_NETWORK    ? SPAN_WAIT_NETWORK
                                              : SPAN_WAIT_DATA;
    default:
        return SPAN_IDLE;
    }
}

static const struct {
    const char *name;
    double ns;
} units[] = {{"ns", 1}, {"us", 1e3}, {"µs", 1e3}, {"ms", 1e6}, {"s", 1e9}};

/* The unit in which a number of ns is written. */
static int words_unit_for(double ns)
{
    ns = fabs(ns);
    return ns < 1e3 ? 0 : ns < 1e6 ? 2 : ns < 1e9 ? 3 : 4;
}

static int words_digits_of(int unit, double value)
{
    return unit == 0 || fabs(value) >= 999.95 ? 0 : fabs(value) >= 99.995 ? 1 : 2;
}

const char *words_length(char out[32], double ns)
{
    int unit = words_unit_for(ns);
    double value = ns / units[unit].ns;
    snprintf(out, 32, "%.*f %s", words_digits_of(unit, value), value, units[unit].name);
    return out;
}

const char *words_part(char out[32], double ns, double whole)
{
    int unit = words_unit_for(whole);
    snprintf(out, 32, "%.*f", words_digits_of(unit, whole / units[unit].ns), ns / units[unit].ns);
    return out;
}

const char *words_time(char out[32], double ns, double step)
{
    int unit = words_unit_for(ns);
    int digits = 0;
    for (double shown = units[unit].ns; shown > step * 1.0001 && shown > 1.5 && digits < 9;
         shown /= 10)
        digits++;
    snprintf(out, 32, "%.*f %s", digits, ns / units[unit].ns, units[unit].name);
    return out;
}

const char *words_bytes(char out[32], double bytes)
{
    static const char *const name[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    while (bytes >= 1023.95 && unit < 4) {
        bytes /= 1024;
        unit++;
    }
    int digits = unit == 0 || bytes >= 99.95 || bytes == floor(bytes) ? 0 : 1;
    snprintf(out, 32, "%.*f %s", digits, bytes, name[unit]);
    return out;
}

static const char *words_align_right(char out[32], int width)
{
    int columns = cells_columns(out), bytes = (int)strlen(out), blanks = width - columns;
    if (blanks > 0 && bytes + blanks < 32) {
        memmove(out + blanks, out, (size_t)bytes + 1);
        memset(out, ' ', (size_t)blanks);
    }
    return out;
}

const char *words_length_in(char out[32], int width, double ns)
{
    words_length(out, ns);
    return words_align_right(out, width);
}

const char *words_time_in(char out[32], int width, double ns, double step)
{
    words_time(out, ns, step);
    return words_align_right(out, width);
}

int words_parse_time(const char *text, double *ns, int *relative, char error[96])
{
    while (isspace((unsigned char)*text))
        text++;
    *relative = *text == '+' || *text == '-';
    char *end;
    double value = strtod(text, &end);
    if (end == text || !isfinite(value))
        return mk_fail(-EINVAL, error, 96,
                       "\"%.24s\" is not a time; write 1.5ms, 300us, +20ns or epoch 2", text);
    while (isspace((unsigned char)*end))
        end++;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (!strcmp(end, units[i].name)) {
            *ns = value * units[i].ns;
            return 0;
        }
    return mk_fail(-EINVAL, error, 96, "\"%.24s\" needs a unit after the number: ns, us, ms or s",
                   text);
}

#define ALL_WAITS (1u << SPAN_WAIT_DATA | 1u << SPAN_WAIT_ROOM | 1u << SPAN_WAIT_NETWORK)

static const struct {
    const char *word;
    uint32_t bits;
} class_words[] = {
    {"compute", 1u << SPAN_COMPUTE},
    {"copy", 1u << SPAN_COPY},
    {"send", 1u << SPAN_SEND},
    {"command", 1u << SPAN_SEND},
    {"reduce", 1u << SPAN_REDUCE},
    {"wait", ALL_WAITS},
    {"data", 1u << SPAN_WAIT_DATA},
    {"room", 1u << SPAN_WAIT_ROOM},
    {"backpressure", 1u << SPAN_WAIT_ROOM},
    {"network", 1u << SPAN_WAIT_NETWORK},
};

static uint32_t words_class_bits(const char *word)
{
    for (size_t i = 0; i < sizeof class_words / sizeof *class_words; i++)
        if (!strcmp(class_words[i].word, word))
            return class_words[i].bits;
    return 0;
}

static uint32_t words_role_bits(const char *word)
{
    for (int role = 0; role < MK_ROLES; role++)
        if (!strcmp(plan_role_name(role), word))
            return 1u << role;
    return 0;
}

/* The next word of *text, of at most 31 bytes; 0 at the end. */
static int words_next_word(const char **text, char word[32])
{
    size_t n = 0;
    while (isspace((unsigned char)**text))
        (*text)++;
    while (**text && !isspace((unsigned char)**text)) {
        if (n < 31)
            word[n++] = **text;
        (*text)++;
    }
    word[n] = 0;
    return n != 0;
}

/* "3" or "0-3". */
static int words_parse_range(const char *word, int64_t *lo, int64_t *hi)
{
    char *end;
    if (!isdigit((unsigned char)*word))
        return -EINVAL;
    *lo = *hi = strtoll(word, &end, 10);
    if (*end == '-' && isdigit((unsigned char)end[1]))
        *hi = strtoll(end + 1, &end, 10);
    return *end || *hi < *lo ? -EINVAL : 0;
}

/* The number or range that follows "rank", "tile" and their like. Returns 1 where `word` is none of
 * these. */
static int words_parse_numbered(struct query *q, const char *word, const char **text,
                                char error[96])
{
    int64_t lo, hi;
    int64_t *single = !strcmp(word, "tile")    ? &q->tile
                      : !strcmp(word, "chunk") ? &q->chunk
                      : !strcmp(word, "flag")  ? &q->flag
                      : !strcmp(word, "epoch") ? &q->epoch
                                               : NULL;
    int rank = !strcmp(word, "rank"), cta = !strcmp(word, "cta");
    if (!single && !rank && !cta)
        return 1;
    char number[32];
    if (!words_next_word(text, number) || words_parse_range(number, &lo, &hi) ||
        (single && lo != hi))
        return mk_fail(-EINVAL, error, 96, "after \"%s\" comes %s", word,
                       single ? "a number" : "a number or a range such as 0-3");
    if (single)
        *single = lo;
    else if (rank)
        q->rank_lo = lo, q->rank_hi = hi;
    else
        q->cta_lo = lo, q->cta_hi = hi;
    return 0;
}

int words_parse_query(const char *text, struct query *q, char error[96])
{
    *q = (struct query){.rank_lo = -1,
                        .cta_lo = -1,
                        .epoch = -1,
                        .tile = -1,
                        .chunk = -1,
                        .flag = -1,
                        .longest = INFINITY};
    snprintf(q->text, sizeof q->text, "%s", text);
    char word[32];
    uint32_t bits;
    int ignored;
    while (words_next_word(&text, word)) {
        int rc = words_parse_numbered(q, word, &text, error);
        if (rc < 0)
            return rc;
        if (rc == 0)
            continue;
        if (word[0] == '>' || word[0] == '<') {
            double *limit = word[0] == '>' ? &q->shortest : &q->longest;
            if (words_parse_time(word + 1, limit, &ignored, error))
                return -EINVAL;
        } else if (!strcmp(word, "signal")) {
            q->kinds |= 1u << MK_EV_SIGNAL;
        } else if (!strcmp(word, "role")) {
            if (!words_next_word(&text, word) || !(bits = words_role_bits(word)))
                return mk_fail(
                    -EINVAL, error, 96,
                    "after \"role\" comes compute, intra_comm, inter_send or inter_reduce");
            q->roles |= bits;
        } else if ((bits = words_class_bits(word))) {
            /* "wait network" narrows what "wait" allowed */
            q->classes = (q->classes & ALL_WAITS) == ALL_WAITS && (bits & ALL_WAITS)
                             ? (q->classes & ~ALL_WAITS) | bits
                             : q->classes | bits;
        } else if ((bits = words_role_bits(word))) {
            q->roles |= bits;
        } else {
            return mk_fail(
                -EINVAL, error, 96,
                "\"%.20s\" is not known; try wait, network, copy, rank 2, role compute, >10us",
                word);
        }
    }
    return 0;
}

int query_needs_events(const struct query *q)
{
    return q->kinds || q->epoch >= 0 || q->tile >= 0 || q->chunk >= 0 || q->flag >= 0 ||
           q->shortest > 0 || q->longest < INFINITY;
}

int query_takes_track(const struct query *q, int rank, int role, int cta)
{
    return (q->rank_lo < 0 || (rank >= q->rank_lo && rank <= q->rank_hi)) &&
           (!q->roles || (role >= 0 && q->roles >> role & 1)) &&
           (q->cta_lo < 0 || (cta >= q->cta_lo && cta <= q->cta_hi));
}

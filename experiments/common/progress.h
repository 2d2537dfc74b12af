/* The line of progress: when it is due, and its text. Pure: the caller gives the time. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct progress {
    int terminal;         /* one line that is written over; else whole lines */
    uint64_t start, next; /* ns */
    uint64_t step;        /* 0: never */
    int shown;            /* a line stands on the terminal */
};

/* `setting`: what MKERNEL_PROGRESS says, NULL for nothing. */
void progress_begin(struct progress *p, int terminal, const char *setting, uint64_t now);

/* Whether to show a line now; then the next is due later. */
int progress_due(struct progress *p, uint64_t now);

/* The line, with what moves the cursor: "mkernel run ag_gemm: launch 3 of 20: checks, 45 %, 12 s".
 * `all` 0: no per cent. Returns `text`. */
const char *progress_line(const struct progress *p, const char *name, const char *says,
                          uint64_t done, uint64_t all, uint64_t now, char *text, size_t size);

/* Inside core: do all ranks ask for the same? A difference is named, with the ranks, before
 * anything hangs on it. */
#pragma once

#include "core/comm/bootstrap.h"

#define AGREE_FIELDS 80u

enum agree_kind {
    AGREE_NUMBER,
    AGREE_OPAQUE, /* a hash, or a word's number: say only that it differs */
    AGREE_GIVEN,  /* 1 or 0: was it given? */
    AGREE_MADE    /* as OPAQUE, of what a rank made of it all: looked at where no rank refused */
};

struct agree_field {
    const char *name;
    uint64_t value;
    enum agree_kind kind;
};

/* Every rank calls with the same `count` of fields (at most AGREE_FIELDS) and with what it came to
 * on its own: 0, or -errno and its sentence in `error`. Returns 0 where all ranks came to 0 with
 * the same values; otherwise, on every rank, an -errno with a sentence in `error`: -EINVAL (values
 * differ; `verb` says what a rank does with them: "plans"), the first failed rank's own, or the
 * bootstrap's (`error` is left alone then: ask bootstrap_settle). Collective. */
int agree(struct bootstrap *b, uint32_t rank, uint32_t world, const char *verb,
          const struct agree_field *fields, uint32_t count, int result, char *error, size_t size);

/* A string as a value that agree can compare. */
uint64_t agree_hash(const char *text);

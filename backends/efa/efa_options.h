/* The options of the efa fabric: one struct, read from a string, e.g.
 * MK_EFA="stripe=131072,window=64". */
#pragma once

#include "backends/option_keys.h"

/* clang-format off */
/* X(key, default, least, greatest) */
#define EFA_OPTIONS(X)                                                                             \
    X(depth, 1024, 8, 32768)      /* send queue entries of a device, which may lower it */         \
    X(window, 256, 8, 256)        /* messages of one peer that may be in flight or not counted     \
                                   * yet */                                                        \
    X(stripe, 65536, 128, 1 << 30)/* bytes of a put that one device takes before another takes     \
                                   * part */                                                       \
    X(max_rdma, 0, 0, 1 << 30)    /* longest write, bytes, at least 4096 (longer ones are          \
                                   * split); 0: the device's */                                    \
    X(unsolicited, 1, 0, 1)       /* writes with immediate take no receive, if all devices of      \
                                   * the rail can do that; 0: never */                             \
    X(relaxed_ordering, 1, 0, 1)  /* 0: the data region is registered without it */
/* clang-format on */

struct efa_options {
    EFA_OPTIONS(OPTION_FIELD)
};

void efa_options_default(struct efa_options *o);

/* Applies `text` on top of *o. 0, or -EINVAL with one sentence in `error` and *o untouched. NULL
 * and "" change nothing. */
int efa_options_parse(struct efa_options *o, const char *text, char *error, size_t size);

/* The options of the verbs fabric: one struct, read from a string, e.g.
 * MK_VERBS="qps=4,timeout=16". */
#pragma once

#include "backends/option_keys.h"

/* clang-format off */
/* X(key, default, least, greatest) */
#define VERBS_OPTIONS(X)                                                                           \
    X(port, 0, 0, 255)            /* port of the device; 0: the first that is active */            \
    X(gid_index, -1, -1, 255)     /* RoCE: entry of the GID table; -1: v2 before v1, IPv4          \
                                   * before IPv6 */                                                \
    X(qps, 2, 1, 16)              /* QPs to each peer on each device; each flag has its own */     \
    X(depth, 256, 8, 32768)       /* send queue entries of a QP; lowered to what the device        \
                                   * holds */                                                      \
    X(signal_every, 16, 1, 32768) /* puts to a completion; the last put of a batch always has      \
                                   * one */                                                        \
    X(max_message, 0, 0, 1 << 30) /* longest write, bytes, at least 4096 (longer puts are          \
                                   * split); 0: the port's */                                      \
    X(mtu, 0, 0, 4096)            /* path MTU, 256 to 4096 bytes; 0: the smaller active MTU of     \
                                   * both ends */                                                  \
    X(timeout, 0, 0, 31)          /* local ACK timeout, 4.096 us * 2^timeout; 0: by the            \
                                   * device's ACK delay */                                         \
    X(retry, 6, 0, 7)             /* retries after it; 7 is for ever on rxe (its completer does    \
                                   * not count it down) */                                         \
    X(rnr_retry, 7, 0, 7)         /* retries after a receiver-not-ready; 7: no limit */            \
    X(traffic_class, 0, 0, 255)   /* of the GRH */                                                 \
    X(service_level, 0, 0, 15)                                                                     \
    X(hop_limit, 64, 1, 255)                                                                       \
    X(relaxed_ordering, 1, 0, 1)  /* 0: the data region is registered without it, too */           \
    X(recover, 1, 0, 1)           /* 0: a QP that its own device has failed (a link down) stays    \
                                   * broken */
/* clang-format on */

struct verbs_options {
    VERBS_OPTIONS(OPTION_FIELD)
};

void verbs_options_default(struct verbs_options *o);

/* Applies `text` on top of *o. 0, or -EINVAL with one sentence in `error` and *o untouched. NULL
 * and "" change nothing. */
int verbs_options_parse(struct verbs_options *o, const char *text, char *error, size_t size);

/* The options of the verbs fabric: one struct, read from one string, e.g.
 * MK_VERBS="qps=4,timeout=16".
 *
 *   key              default  meaning
 *   port             0        port of the device; 0: the first that is active
 *   gid_index        -1       RoCE: entry of the GID table; -1: v2 before v1, IPv4 before IPv6
 *   qps              2        QPs to each peer on each device, 1 .. 16; each flag has its own
 *   depth            256      send queue entries of a QP, 8 .. 32768; lowered to what the device
 *                             holds
 *   signal_every     16       puts behind which a completion is asked for; a batch's last always has
 *                             one
 *   max_message      0        longest write, bytes, at least 4096 (longer puts are split); 0: the
 *                             port's
 *   mtu              0        path MTU 256 .. 4096, bytes; 0: the smaller active MTU of both ends
 *   timeout          0        local ACK timeout, 4.096 us * 2^timeout, 1 .. 31; 0: by the device's
 *                             ACK delay
 *   retry            6        retries after it, 0 .. 7; 7 is for ever on rxe (its completer does not
 *                             count it down)
 *   rnr_retry        7        retries after a receiver-not-ready, 0 .. 7 (7: no limit)
 *   traffic_class    0        of the GRH, 0 .. 255
 *   service_level    0        0 .. 15
 *   hop_limit        64       1 .. 255
 *   relaxed_ordering 1        0: the data region is registered without it too
 *   recover          1        0: a QP that its own device has failed (Ethernet: the link was down)
 *                             stays broken */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct verbs_options {
    int64_t port, gid_index, qps, depth, signal_every, max_message, mtu, timeout, retry, rnr_retry,
        traffic_class, service_level, hop_limit, relaxed_ordering, recover;
};

void verbs_options_default(struct verbs_options *o);

/* Applies `text` on top of *o. 0, or -EINVAL with one sentence in `error` and *o untouched. NULL
 * and "" change nothing. */
int verbs_options_parse(struct verbs_options *o, const char *text, char *error, size_t error_size);

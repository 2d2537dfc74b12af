/* The options of the efa fabric: one struct, read from one string, e.g.
 * MK_EFA="stripe=131072,window=64".
 *
 *   key               default  meaning
 *   depth             1024     send queue entries of a device, 8 .. 32768; the device may lower it
 *   window            256      messages of one peer that may be on their way here or not counted
 *                              yet, 8 .. 256
 *   stripe            65536    bytes of a put that one device takes before another takes part,
 *                              128 .. 1073741824
 *   max_rdma          0        longest write in bytes, at least 4096; longer ones are split. 0: the
 *                              device's own limit
 *   unsolicited       1        writes with immediate take no receive, if all devices of the rail
 *                              can do that; 0: never
 *   relaxed_ordering  1        0: the data region is registered without it */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct efa_options {
    int64_t depth, window, stripe, max_rdma, unsolicited, relaxed_ordering;
};

void efa_options_default(struct efa_options *o);

/* Applies `text` on top of *o. 0, or -EINVAL with one sentence in `error` and *o untouched. NULL
 * and "" change nothing. */
int efa_options_parse(struct efa_options *o, const char *text, char *error, size_t error_size);

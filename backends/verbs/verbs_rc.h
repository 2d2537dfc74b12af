/* The verbs fabric: RC queue pairs, RDMA writes, host-posted, over one or several devices (rails).
 *
 * A put is one or more writes of data, then an inline write of the flag, all on one QP: an RC QP
 * places them in order, and the flag's region has no relaxed ordering, so the flag follows its data
 * (InfiniBand specification vol. 1, o9-20 and the ordering rules of 9.5).
 *
 * Each peer has several QPs on each device, and QPs keep no order between them. So a flag has one
 * QP for good, by its number: its values land in the order of their puts (backends/fabric.h), each
 * behind its own data, and neither a counter nor a word from the receiver is needed. Chunks of a
 * plan have neighbouring flags, so neighbouring chunks go over different devices. The alternatives:
 * QPs in turn let a flag's next value overtake the last one; parts of a chunk on all devices would
 * need a count at the receiver, which on RC has no proxy in its way. The price: a chunk is as fast
 * as one device, and a slow device is not relieved by the others.
 *
 * QP i of a peer joins device i modulo their number at both ends: with the same number of devices
 * everywhere rail i meets rail i. Numbers may differ.
 *
 * Completions are put back in the peer's order. Writes are unsignaled but for every n-th put and
 * the last of each flush, so no put is left without a completion on its way. A QP or device that
 * fails fails its peers: there is no moving of flags to another. Only a QP that its own Ethernet
 * device could not send for is recovered (rc_recover.c), for which both ends must poll. */
#pragma once

#include "backends/nic_end.h"
#include "backends/verbs/verbs_options.h"

struct verbs_rc_config {
    struct nic_end end;
    const struct verbs_api *api; /* NULL: its NICs', loaded here; else must outlive the fabric */
    struct verbs_options options;
};

/* Opens the devices, registers the heap with each and makes the QPs. Blocks as long as the driver
 * does. 0 or -errno with one sentence in `error`; see verbs_device_open and mr_register, and
 * -ENOSPC (the device has too few QPs, or the peers' QP numbers do not fit an address). The
 * fabric's close frees everything. */
int verbs_rc_open(struct fabric **out, const struct verbs_rc_config *config, char *error,
                  size_t size);

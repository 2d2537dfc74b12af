/* The efa fabric: SRD queue pairs of one or more EFA devices, writes with immediate, host-posted.
 *
 * SRD delivers each message once, in no order, and completes each by itself. So a put becomes k
 * writes with immediate, spread over the devices; the receiving fabric counts immediates in its
 * poll (backends/efa/efa_imm.h says what they carry), and when all k of a put are in, raises the
 * flag itself with a release store: nothing assumes an order, neither of messages, nor of the bytes
 * in one, nor of completions of two devices. Where flags lie in a GPU's memory, the memory's owner
 * copies them there (backends/memory.h).
 *
 * A put to a flag waits (-EAGAIN) until the last one to the same flag of the same peer is
 * acknowledged. No more messages of a peer than `window` are uncounted at the other side: a
 * receiver tells its senders how many it has counted (credits), so that receives and completion
 * queues never run out, however long a proxy is away.
 *
 * EFA's rules: rdma-core's efadv manual pages (efadv_create_qp_ex, efadv_query_device). */
#pragma once

#include "backends/efa/efa_api.h"
#include "backends/efa/efa_options.h"
#include "backends/nic_end.h"

struct efa_config {
    struct nic_end end;
    const struct efa_api *api; /* NULL: its NICs', loaded here */
    struct efa_options options;
};

/* Opens the devices, registers the heap with each and makes the QPs. Between every rank's connect
 * and the first put of any there must be a barrier: both sides make address handles, and a device
 * refuses writes of one that it has none for. Blocks as long as the drivers do. 0 or -errno with
 * one sentence in `error`: see verbs_device_open and mr_register; -EOPNOTSUPP (memory that these
 * devices do not reach or this process cannot copy to, a device without RDMA write), -ERANGE (more
 * flags than an immediate names), -ENOSPC (queues too short for so many peers). The fabric's close
 * frees everything. */
int efa_open(struct fabric **out, const struct efa_config *config, char *error, size_t size);

/* The verbs fabric: RC queue pairs, RDMA writes, host-posted.
 *
 * A put is one or more writes of data, then an inline write of the flag, all on one QP: an RC QP places them
 * in order, and the flag's region has no relaxed ordering, so the flag follows its data (InfiniBand
 * specification vol. 1, o9-20 and the ordering rules of 9.5). Each peer has several QPs and puts take turns
 * on them; completions are put back in the peer's order. Writes are unsignaled but for every n-th put and the
 * last of each flush, so no put is left without a completion on its way. */
#ifndef MK_VERBS_RC_H
#define MK_VERBS_RC_H

#include "backends/fabric.h"
#include "backends/verbs/mr.h"
#include "backends/verbs/verbs_api.h"
#include "backends/verbs/verbs_options.h"

struct verbs_rc_config {
    const struct verbs_api *api; /* must outlive the fabric */
    const char *device;
    struct mr_heap heap;
    uint32_t rank, world;
    const uint32_t *peers; /* ascending; everybody in this group lists everybody else of it */
    uint32_t peer_count;
    struct verbs_options options;
};

/* Opens the device, registers the heap and makes the QPs. Blocks as long as the driver does. 0 or -errno with
 * one sentence in `error`; see verbs_device_open and mr_register, and -ENOSPC (the device has too few QPs, or
 * the peers' QP numbers do not fit an address). The fabric's close frees everything. */
int verbs_rc_open(struct fabric **out, const struct verbs_rc_config *config, char *error, size_t error_size);

/* What was found and chosen, for people: "mlx5_0 port 1, RoCE v2 GID 3, MTU 4096, 2 QPs of 256". */
void verbs_rc_describe(const struct fabric *fabric, char *text, size_t size);

#endif

/* One end of a fabric over NICs: what the verbs and the efa fabric are opened with alike. */
#pragma once

#include "backends/fabric.h"
#include "backends/nic.h"
#include "backends/verbs/mr.h"

#include <errno.h>
#include <string.h>

#define NIC_NO_PEER UINT32_MAX

struct nic_end {
    struct nic_choice nics; /* the first of one rank talks with the first of the other, and so on */
    struct mr_heap heap;
    uint32_t rank, world;
    const uint32_t *peers; /* ascending; each rank of the group lists all others of it */
    uint32_t peer_count;
};

/* Opens verbs_rc.h's or efa.h's, with options as in MK_VERBS or MK_EFA (NULL: none). 0 or -errno
 * with a sentence in `error`; -ENODEV: efa is not in this build. */
int nic_end_open(struct fabric **out, const struct nic_end *end, int efa, const char *options,
                 char *error, size_t size);

/* Fills [world], of each rank its place in `peers`, or NIC_NO_PEER. 0, or -EINVAL: they are no
 * group. */
static inline int nic_end_places(const struct nic_end *e, uint32_t *places)
{
    memset(places, 0xff, e->world * sizeof *places);
    for (uint32_t i = 0; i < e->peer_count; i++) {
        uint32_t rank = e->peers[i];
        if (rank >= e->world || rank == e->rank || (i && rank <= e->peers[i - 1]))
            return -EINVAL;
        places[rank] = i;
    }
    return 0;
}

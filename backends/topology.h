/* Where GPUs and NICs sit in a machine's PCI trees, how far apart they are, and which NICs each
 * rank of a node takes.
 *
 * Reads sysfs below a root that the caller names ("/sys", or a copy), nothing else, and keeps
 * nothing: the same tree gives the same answer to every process. Any thread; does not block. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* From near to far, named as `nvidia-smi topo -m` names them. Traffic between two devices
 * crosses: */
enum topology_distance {
    TOPOLOGY_PIX,  /* one PCIe switch at most */
    TOPOLOGY_PXB,  /* several switches, below one root port */
    TOPOLOGY_PHB,  /* the host bridge that both are under */
    TOPOLOGY_NODE, /* the bridges of one NUMA node */
    TOPOLOGY_SYS,  /* the link between sockets */
    /* one of them has no place: a software device, a rank without a GPU on no one NUMA node */
    TOPOLOGY_UNKNOWN,
};

enum { TOPOLOGY_RAILS_MAX = 16 }; /* NICs of one rank */

/* A place: of a PCI device, or of a rank without one (chain "", its CPUs' NUMA node). */
struct topology_place {
    /* from the host bridge down: "pci0000:15/0000:15:01.0/0000:16:00.0/..."; "": not a PCI
     * device */
    char chain[256];
    int numa; /* -1: unknown */
};

/* An unknown place: equally far from everything. */
#define TOPOLOGY_NOWHERE ((struct topology_place){.chain = "", .numa = -1})

/* The place of PCI function `bus_id`, as CUDA, NVML or sysfs write it ("0000:1B:00.0",
 * "00000000:1b:00.0"), and of RDMA device `name` (class/infiniband). 0, -EINVAL (no bus id) or
 * -ENODEV (not there, or no PCI device: soft-RoCE), and then *out is nowhere. */
int topology_pci(const char *root, const char *bus_id, struct topology_place *out);
int topology_rdma(const char *root, const char *name, struct topology_place *out);

/* The NUMA node that all of this process's CPUs are on, -1 where they are on several, or sysfs does
 * not say. */
int topology_own_numa(const char *root);

enum topology_distance topology_distance(const struct topology_place *a,
                                         const struct topology_place *b);

/* "PIX" ... "SYS", "unknown". */
const char *topology_name(enum topology_distance distance);

struct topology_nic {
    struct topology_place place;
    double gbit; /* speed; 0: unknown */
};

/* The NICs of one rank, the nearest first; indices into topology_choose's `nics`. */
struct topology_choice {
    uint32_t count;
    uint32_t nics[TOPOLOGY_RAILS_MAX];
};

/* Deals `nic_count` NICs out to `rank_count` ranks of a node, `rails` to each (at most as many as
 * there are).
 *
 * A nearer NIC is preferred, then a faster one. NICs that are equal for a rank are dealt out as
 * evenly as possible: if GPUs share NICs, each NIC gets its share of ranks, and a rank leaves a NIC
 * to another rank that has no other choice. If no place is known, rank r gets NIC r modulo their
 * number.
 *
 * rails 0: as many as each rank has for itself. These are the NICs below its own root port (PIX,
 * PXB) that are as fast as the fastest of the nearest, shared evenly with the ranks to which they
 * are as near; one if there are none. Two EFA devices behind each GPU's switch: 2. A NIC that eight
 * GPUs share: 1.
 *
 * out[rank_count]. 0, -EINVAL (no ranks, no NICs) or -ENOMEM. */
int topology_choose(const struct topology_place *ranks, uint32_t rank_count,
                    const struct topology_nic *nics, uint32_t nic_count, uint32_t rails,
                    struct topology_choice *out);

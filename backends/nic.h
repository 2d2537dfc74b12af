/* The NICs of this machine, those that a rank uses, and reasons why there are none. */
#pragma once

#include "backends/topology.h"

enum { NIC_MAX = 64, NIC_RAILS_MAX = TOPOLOGY_RAILS_MAX };

struct nic_info {
    char name[64];
    int soft;   /* of softnic, not of the kernel */
    int active; /* port 1 .. n: the first active one, else port 1 */
    uint32_t port;
    char state[24];      /* "active", "down", ... as libibverbs says */
    char link_layer[16]; /* "Ethernet", "InfiniBand" */
    char driver[32];     /* kernel driver: "mlx5_core", "rdma_rxe", "efa"; "" where unknown */
    /* offers RC queue pairs: usable by the verbs fabric (EFA's devices are not) */
    int reliable;
    int efa;              /* an EFA device: SRD queue pairs, which the verbs fabric cannot use */
    uint32_t mtu;         /* active, bytes */
    double gbit;          /* active speed, Gbit/s; 0: unknown */
    uint64_t max_message; /* bytes */
    int max_sge, max_wr;  /* of a work request, of a queue */
    uint32_t lid;
    int gid_index;     /* RoCE: the one that would be used; -1: none */
    char gid[48];      /* as text, "" for none */
    char gid_type[12]; /* "RoCE v2", "RoCE v1", "IB" */
    char network[16];  /* network interface of the GID, "" where unknown */
    int numa_node;     /* -1: unknown */
    char problem[256]; /* why it cannot be used, with what to do; "": it can */
};

struct nic_survey {
    struct nic_info nics[NIC_MAX];
    uint32_t count;
    int verbs_in_build; /* built with <infiniband/verbs.h> */
    char library[256];  /* libibverbs as loaded; "": see library_problem */
    char library_problem[160];
    char soft_problem[320]; /* why softnic is not there; "": it is */
    uint64_t memlock;       /* bytes that this process may lock; UINT64_MAX: no limit */
    int uverbs_module;      /* 2 loaded, 1 on disk, 0 not found */
    int rxe_module;
};

/* Fills *out. Opens each device for a moment; blocks as long as drivers do. Never fails: it says
 * what is missing. Any thread. */
void nic_survey(struct nic_survey *out);

/* Appends one library's devices only: softnic's, or the kernel's. */
void nic_survey_add(struct nic_survey *s, int soft);

/* The place of a rank; plain bytes, which ranks exchange. */
struct nic_place {
    char gpu[32]; /* PCI bus id of its GPU; "": it has none */
    int32_t numa; /* NUMA node of its CPUs; -1: several, or unknown */
};

/* Where sysfs is: "/sys", or the folder in MK_SYSFS (a copy of another machine's, to see the choice
 * there). */
const char *nic_sysfs(void);

/* This process's, given its GPU's bus id ("" for none). */
void nic_own_place(struct nic_place *out, const char *gpu);

struct nic_request {
    const char *names; /* see nic_choose */
    int efa;           /* 0: devices with RC queue pairs; 1: EFA devices */
    /* how many; 0: as many as each rank has for itself (backends/topology.h) */
    uint32_t rails;
    uint32_t local_rank;            /* of the rank that asks */
    uint32_t local_ranks;           /* ranks of its node, at least 1 */
    const struct nic_place *places; /* [local_ranks]; NULL: unknown */
    const char *sysfs;              /* NULL: nic_sysfs() */
};

/* The NICs of a rank: rail i is its device i, on every node. */
struct nic_choice {
    int soft; /* the library is softnic */
    uint32_t count;
    char devices[NIC_RAILS_MAX][64];
    enum topology_distance distances[NIC_RAILS_MAX]; /* from the rank's GPU, or NUMA node */
    /* of all of them together, as their ports say */
    double gbit;
};

/* Chooses among the devices that `names` allows: "soft" (softnic's), names separated by commas (of
 * one library), or "" (kernel devices that are up; if there is none, softnic's). It chooses by
 * distance from the rank's GPU, else from the NUMA node to which its process is bound, else in turn
 * by local rank (topology_choose). With the same places all ranks of a node get choices that fit
 * together. Opens devices for a moment. 0, -ENODEV (none, or not this one), -EINVAL (names of two
 * libraries, or the same name twice; more rails than devices) or -ENOMEM, with one sentence in
 * `error`. */
int nic_choose(struct nic_choice *out, const struct nic_request *request, char *error, size_t size);

/* "mlx5_0+mlx5_1"; of softnic with what makes its network: "soft0 (SOFTNIC=bw=5GB/s)". A text that
 * does not fit is cut. */
void nic_choice_words(const struct nic_choice *choice, char *text, size_t size);

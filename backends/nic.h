/* Which NICs this machine has, which one a rank takes, and what is in the way where there is none. */
#ifndef MK_NIC_H
#define MK_NIC_H

#include <stddef.h>
#include <stdint.h>

enum { NIC_MAX = 64 };

struct nic_info {
    char name[64];
    int soft;   /* of softnic, not of the kernel */
    int active; /* port 1 .. n: the first active one, else port 1 */
    uint32_t port;
    char state[24];      /* "active", "down", ... as libibverbs says */
    char link_layer[16]; /* "Ethernet", "InfiniBand" */
    char driver[32];     /* kernel driver: "mlx5_core", "rdma_rxe", "efa"; "" where unknown */
    int reliable;        /* offers RC queue pairs: usable by the verbs fabric (EFA's devices are not) */
    int efa;             /* an EFA device: SRD queue pairs, nothing is wrong with it, but the verbs fabric has no use for it */
    uint32_t mtu;        /* active, bytes */
    double gbit;         /* active speed, Gbit/s; 0: unknown */
    uint32_t lid;
    int gid_index;     /* RoCE: the one that would be used; -1: none */
    char gid[48];      /* as text, "" for none */
    char gid_type[12]; /* "RoCE v2", "RoCE v1", "IB" */
    char network[16];  /* network interface of the GID, "" where unknown */
    int numa_node;     /* -1: unknown */
    char problem[160]; /* why it cannot be used, with what to do; "": it can */
};

struct nic_survey {
    struct nic_info nics[NIC_MAX];
    uint32_t count;
    int verbs_in_build; /* built with <infiniband/verbs.h> */
    char library[256];  /* libibverbs as loaded; "": see library_problem */
    char library_problem[160];
    char soft_problem[160]; /* why softnic is not there; "": it is */
    uint64_t memlock;       /* bytes that this process may lock; UINT64_MAX: no limit */
    int uverbs_module;      /* 2 loaded, 1 on disk, 0 not found */
    int rxe_module;
};

/* Fills *out. Opens each device for a moment; blocks as long as drivers do. Never fails: what is missing is
 * in it. Any thread. */
void nic_survey(struct nic_survey *out);

/* What a rank uses. */
struct nic_choice {
    int soft;
    char device[64];
};

/* Chooses for `name`: "soft" (softnic; local ranks take turns on its devices), the name of a softnic or
 * kernel device, or "" (kernel devices with an active port and RC, local ranks take turns; where there is
 * none, softnic). 0, or -ENODEV with one sentence in `error`. */
int nic_choose(struct nic_choice *out, const char *name, uint32_t local_rank, char *error, size_t error_size);

#endif

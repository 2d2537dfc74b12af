/* The option string of a softnic device, parsed. docs/SOFTNIC.md is the manual. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum {
    SOFTNIC_MAX_DEVICES = 64,                /* of each kind */
    SOFTNIC_EFA_FIRST = SOFTNIC_MAX_DEVICES, /* number of softefa0 */
    SOFTNIC_ALL_DEVICES = 2 * SOFTNIC_MAX_DEVICES,
};

#define SOFTNIC_NOT_GIVEN UINT64_MAX

enum softnic_copy {
    /* out of the peer's memory where the kernel permits it, else through the socket */
    SOFTNIC_COPY_AUTO,
    SOFTNIC_COPY_DIRECT, /* as auto, and this process lets its peers read it (PR_SET_PTRACER) */
    SOFTNIC_COPY_STREAM, /* always through the socket */
};

enum softnic_efa_caps { SOFTNIC_EFA_READ, SOFTNIC_EFA_WRITE, SOFTNIC_EFA_UNSOLICITED };

struct softnic_options {
    unsigned devices, efa;
    unsigned roce; /* 1: Ethernet port with RoCE v2 GIDs; 0: an InfiniBand port with LIDs */
    enum softnic_copy copy;
    double bytes_per_ns; /* 0: unshaped; below 0: so, but of GPU memory a default */
    uint64_t latency_ns; /* one way; SOFTNIC_NOT_GIVEN: 0, but of GPU memory a default */
    unsigned gpu_refuse; /* 1: GPU memory cannot be registered */
    /* SRD: a message is held back for up to this; 0: sent in posting order */
    uint64_t reorder_ns;
    uint32_t efa_depth;      /* SRD: the longest send and receive queue */
    uint32_t efa_rdma_bytes; /* SRD: the longest RDMA request */
    enum softnic_efa_caps efa_caps;
    int drop_device;     /* the peer device that is unreachable; -1: none */
    uint64_t drop_after; /* messages sent by the context before the drop */
    uint64_t delay_ns;   /* added to messages ... */
    uint64_t delay_nth;  /* ... this one only (1 is the first); 0: all of them ... */
    double delay_chance; /* ... with this probability */
    uint64_t fail_nth;   /* the work request that fails (1 is the first); 0: none */
    int fail_status;     /* enum ibv_wc_status */
    uint64_t seed;
    int only_device; /* the device that speed, delays and failing requests are for; -1: all */
    char count[112]; /* a file with the traffic of each QP to each peer; empty: none */
};

void softnic_options_default(struct softnic_options *options);

/* What is left of the options for one device: `only` may leave it without speed, delays and
 * failures. */
void softnic_options_narrow(struct softnic_options *options, int device);

/* Applies `text` on top of *options. Returns 0, or -EINVAL with one sentence in `error` and
 * *options untouched. */
int softnic_options_parse(const char *text, struct softnic_options *options, char *error,
                          size_t size);

/* An open device: its capabilities as it reports them, its port, and the address that peers reach
 * it by. */
#pragma once

#include "backends/verbs/verbs_api.h"
#include "backends/verbs/verbs_options.h"

struct verbs_device {
    const struct verbs_api *api;
    char name[64];
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_device_attr attr;
    struct ibv_port_attr port_attr;
    uint8_t port;
    int gid_index; /* RoCE: the entry used; InfiniBand: 0, for peers of other subnets */
    union ibv_gid gid;
    uint32_t max_message; /* largest write, bytes */
    char event[80];       /* the last bad news that the device sent, "" for none */
};

/* Opens `name` on the port that the options ask for (or its first active one) and makes a PD. 0,
 * -ENODEV (no such device, or it cannot be opened), -ENETDOWN (the port is down), -EADDRNOTAVAIL
 * (RoCE without a GID), or the provider's error; one sentence in `error`. verbs_device_close is
 * allowed after an error. */
int verbs_device_open(struct verbs_device *d, const struct verbs_api *api, const char *name,
                      const struct verbs_options *options, char *error, size_t size);

/* Reads the events that the device has sent since, without blocking, and keeps the last bad one in
 * d->event. Returns 1 where the device is of no more use (fatal error, CQ overrun), else 0. */
int verbs_device_events(struct verbs_device *d);

void verbs_device_close(struct verbs_device *d);

/* How good a GID is for RoCE traffic between nodes: 0 is unusable. */
int verbs_gid_rank(const union ibv_gid *gid, uint32_t type);

/* Local ACK timeout of a QP, 4.096 us * 2^n, where none is asked for: 14, or four times the
 * device's own bound for an acknowledgement. An early one costs retransmissions, and rxe of Linux
 * 6.1 breaks the QP on them. */
uint8_t verbs_device_timeout(const struct verbs_device *d);

/* MTU as bytes and as the verbs' enumeration. */
uint32_t verbs_mtu_bytes(enum ibv_mtu mtu);
enum ibv_mtu verbs_mtu_of(uint32_t bytes);

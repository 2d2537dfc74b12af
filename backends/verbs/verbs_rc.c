#include "backends/verbs/rc_state.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static struct rc *verbs_rc_of(struct fabric *fabric)
{
    return (struct rc *)fabric;
}

static size_t verbs_rc_numbers_bytes(uint32_t peers, uint32_t qps)
{
    return sizeof(struct rc_address) + (size_t)peers * (qps + 1) * sizeof(uint32_t);
}

/* The same on every rank, however many QPs its options or its device gave it. */
static size_t verbs_rc_address_bytes(struct fabric *fabric)
{
    size_t most = verbs_rc_numbers_bytes(verbs_rc_of(fabric)->peer_count, RC_MAX_QPS);
    return most < RC_ADDRESS_MAX ? most : RC_ADDRESS_MAX;
}

static struct rc_port verbs_rc_describe_port(const struct rc_rail *rail)
{
    const struct ibv_port_attr *port = &rail->device.port_attr;
    struct rc_port p = {.data_rkey = rail->mr.data ? rail->mr.data->rkey : 0,
                        .flag_rkey = rail->mr.flags->rkey,
                        .lid = port->lid,
                        .link_layer = port->link_layer,
                        .mtu = (uint8_t)port->active_mtu};
    memcpy(p.gid, rail->device.gid.raw, sizeof p.gid);
    return p;
}

static void verbs_rc_address(struct fabric *fabric, void *out)
{
    struct rc *rc = verbs_rc_of(fabric);
    struct rc_address a = {.magic = RC_MAGIC,
                           .heap_base = (uintptr_t)rc->heap.base,
                           .heap_bytes = rc->heap.bytes,
                           .flag_bytes = rc->heap.flag_bytes,
                           .rank = rc->rank,
                           .peer_count = rc->peer_count,
                           .qps = rc->qps_per_peer,
                           .psn = rc->psn,
                           .provider = rc->api->provider,
                           .rails = rc->rail_count,
                           .control_base = rc->options.recover ? (uintptr_t)rc->control : 0,
                           .control_rkey = rc->control_mr ? rc->control_mr->rkey : 0};
    for (uint32_t i = 0; i < rc->rail_count; i++)
        a.ports[i] = verbs_rc_describe_port(&rc->rails[i]);
    memset(out, 0, verbs_rc_address_bytes(fabric));
    memcpy(out, &a, sizeof a);
    char *numbers = (char *)out + sizeof a;
    uint32_t qps = rc->peer_count * rc->qps_per_peer;
    for (uint32_t i = 0; i < qps + rc->peer_count; i++) {
        uint32_t number = (i < qps ? rc->qps[i].qp : rc->peers[i - qps].control.qp)->qp_num;
        memcpy(numbers + i * sizeof number, &number, sizeof number);
    }
}

/* Checks a peer's address; foreign bytes. NULL where it can be reached, else why not. */
static const char *verbs_rc_complaint(const struct rc *rc, const struct rc_address *a,
                                      uint32_t rank)
{
    if (a->magic != RC_MAGIC)
        return "it does not speak this version of the verbs fabric";
    if (a->provider != rc->api->provider)
        return "one end uses softnic and the other does not";
    if (a->rank != rank || a->peer_count != rc->peer_count)
        return "it has other peers";
    if (!a->qps || a->qps > RC_MAX_QPS ||
        verbs_rc_numbers_bytes(a->peer_count, a->qps) > RC_ADDRESS_MAX)
        return "its number of QPs is out of range";
    if (!a->rails || a->rails > NIC_RAILS_MAX || a->rails > a->qps)
        return "its number of devices is out of range";
    for (uint32_t i = 0; i < a->qps && i < rc->qps_per_peer; i++) {
        const struct rc_port *port = &a->ports[i % a->rails];
        if (port->link_layer != rc->rails[i % rc->rail_count].device.port_attr.link_layer)
            return "one end is InfiniBand and the other is Ethernet";
        if (!verbs_mtu_bytes((enum ibv_mtu)port->mtu))
            return "its MTU is invalid";
    }
    return NULL;
}

static int verbs_rc_connect_peer(struct rc *rc, struct rc_peer *peer, const struct rc_address *a,
                                 const char *numbers, uint32_t at, char *error, size_t size)
{
    peer->heap_base = a->heap_base;
    peer->heap_bytes = a->heap_bytes;
    peer->flag_bytes = a->flag_bytes;
    peer->control_to = a->control_base ? a->control_base + (uint64_t)at * a->qps *
                                                               RC_CONTROL_WORDS * sizeof(uint64_t)
                                       : 0;
    peer->control_rkey = a->control_rkey;
    uint32_t control;
    memcpy(&control, numbers + ((size_t)a->peer_count * a->qps + at) * sizeof control,
           sizeof control);
    int control_failed = rc_qp_connect(rc, &peer->control, a, &a->ports[0], control, error, size);
    if (control_failed)
        return control_failed;
    for (uint32_t i = 0; i < peer->qps_in_use; i++) {
        uint32_t number;
        memcpy(&number, numbers + ((size_t)at * a->qps + i) * sizeof number, sizeof number);
        int failed =
            rc_qp_connect(rc, &peer->qps[i], a, &a->ports[i % a->rails], number, error, size);
        if (failed)
            return failed;
    }
    return 0;
}

/* Checks all peers before it connects the first. */
static int verbs_rc_connect(struct fabric *fabric, const void *addresses, const uint32_t *peers,
                            uint32_t count, char *error, size_t size)
{
    struct rc *rc = verbs_rc_of(fabric);
    size_t stride = verbs_rc_address_bytes(fabric);
    uint32_t below = 0;
    if (count != rc->peer_count)
        return mk_fail(-EINVAL, error, size, "the fabric was opened for %u peers, not %u",
                       rc->peer_count, count);
    for (uint32_t i = 0; i < count; i++) {
        struct rc_address a;
        memcpy(&a, (const char *)addresses + peers[i] * stride, sizeof a);
        const char *wrong = rc->peers[i].rank != peers[i] ? "the fabric was opened for another rank"
                                                          : verbs_rc_complaint(rc, &a, peers[i]);
        if (wrong)
            return mk_fail(-EPROTO, error, size, "cannot connect to rank %u: %s", peers[i], wrong);
        below += peers[i] < rc->rank;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct rc_peer *peer = &rc->peers[i];
        const char *bytes = (const char *)addresses + peer->rank * stride;
        struct rc_address a;
        memcpy(&a, bytes, sizeof a);
        peer->qps_in_use = a.qps < rc->qps_per_peer ? a.qps : rc->qps_per_peer;
        /* Where this rank stands in the peer's list: the group in order, less the peer itself. */
        uint32_t at = below - (peer->rank < rc->rank);
        int failed = verbs_rc_connect_peer(rc, peer, &a, bytes + sizeof a, at, error, size);
        if (failed)
            return failed;
    }
    return 0;
}

static void verbs_rc_close(struct fabric *fabric)
{
    struct rc *rc = verbs_rc_of(fabric);
    for (uint32_t i = 0; rc->peers && i < rc->peer_count; i++)
        free(rc->peers[i].flights);
    rc_recover_destroy(rc);
    rc_qps_destroy(rc);
    for (uint32_t i = 0; i < rc->rail_count; i++) {
        mr_deregister(rc->api, &rc->rails[i].mr);
        if (rc->rails[i].device.api)
            verbs_device_close(&rc->rails[i].device);
    }
    free(rc->peers);
    free(rc->peer_of_rank);
    free(rc->ready);
    free(rc->dirty);
    free(rc);
}

/* "mlx5_0 port 1, RoCE v2 GID 3, MTU 4096, 2 QPs of 256"; of several devices their names, and the
 * port of the first. */
static void verbs_rc_describe(const struct fabric *fabric, char *text, size_t size)
{
    const struct rc *rc = (const struct rc *)fabric;
    const struct rc_rail *first = &rc->rails[0];
    const struct verbs_device *d = &first->device;
    int ethernet = d->port_attr.link_layer == IBV_LINK_LAYER_ETHERNET;
    uint8_t timeout = rc_timeout(rc, d);
    *text = '\0';
    for (uint32_t i = 0; i < rc->rail_count; i++)
        mk_append(text, size, i ? "+%s" : "%s", rc->rails[i].device.name);
    mk_append(text, size,
              " port %u (%s, %s %d), MTU %u, %u QP%s of %u entries to each of %u peer%s, writes to "
              "%u KiB, ACK timeout %.0f ms and %d retries, %s memory%s%s",
              d->port, ethernet ? "Ethernet" : "InfiniBand", ethernet ? "GID" : "LID",
              ethernet ? d->gid_index : d->port_attr.lid,
              rc->mtu ? rc->mtu : verbs_mtu_bytes(d->port_attr.active_mtu), rc->qps_per_peer,
              rc->qps_per_peer == 1 ? "" : "s", rc->depth, rc->peer_count,
              rc->peer_count == 1 ? "" : "s", d->max_message >> 10,
              (double)(4096ull << timeout) / 1e6, (int)rc->options.retry, first->mr.how,
              first->mr.relaxed ? ", relaxed ordering" : "",
              first->max_inline ? "" : ", no inline data");
}

static const struct fabric_ops rc_ops = {.name = "verbs",
                                         .address_bytes = verbs_rc_address_bytes,
                                         .address = verbs_rc_address,
                                         .connect = verbs_rc_connect,
                                         .put = rc_put,
                                         .flush = rc_flush,
                                         .poll = rc_poll,
                                         .close = verbs_rc_close,
                                         .describe = verbs_rc_describe};

/* As many on each device. The numbers of all must fit the address; with hundreds of nodes that
 * leaves fewer QPs per peer. */
static int verbs_rc_choose_qps(struct rc *rc, char *error, size_t size)
{
    for (uint32_t each = (uint32_t)rc->options.qps; each; each--) {
        rc->qps_per_peer = each * rc->rail_count;
        if (rc->qps_per_peer <= RC_MAX_QPS &&
            verbs_rc_numbers_bytes(rc->peer_count, rc->qps_per_peer) <= RC_ADDRESS_MAX)
            return 0;
    }
    return mk_fail(-ENOSPC, error, size,
                   "%u peers are too many for the verbs fabric over %u devices", rc->peer_count,
                   rc->rail_count);
}

static int verbs_rc_allocate(struct rc *rc, const struct nic_end *end)
{
    rc->peers = calloc(rc->peer_count ? rc->peer_count : 1, sizeof *rc->peers);
    rc->peer_of_rank = malloc((rc->world ? rc->world : 1) * sizeof *rc->peer_of_rank);
    rc->ready = calloc(rc->peer_count ? rc->peer_count : 1, sizeof *rc->ready);
    rc->dirty = calloc((size_t)rc->peer_count * rc->qps_per_peer + 1, sizeof *rc->dirty);
    if (!rc->peers || !rc->peer_of_rank || !rc->ready || !rc->dirty)
        return -ENOMEM;
    for (uint32_t i = 0; i < rc->peer_count; i++)
        rc->peers[i].rank = end->peers[i];
    return nic_end_places(end, rc->peer_of_rank);
}

static int verbs_rc_open_rail(struct rc *rc, struct rc_rail *rail, const char *device, char *error,
                              size_t size)
{
    int failed = verbs_device_open(&rail->device, rc->api, device, &rc->options, error, size);
    if (!failed)
        failed = mr_register(rc->api, rail->device.pd, &rc->heap, (int)rc->options.relaxed_ordering,
                             &rail->mr, error, size);
    if (!rc->max_message || rail->device.max_message < rc->max_message)
        rc->max_message = rail->device.max_message;
    return failed;
}

int verbs_rc_open(struct fabric **out, const struct verbs_rc_config *config, char *error,
                  size_t size)
{
    const struct nic_end *end = &config->end;
    *out = NULL;
    error[0] = '\0';
    struct rc *rc = calloc(1, sizeof *rc);
    int failed = rc ? 0 : -ENOMEM;
    if (!failed) {
        rc->fabric.ops = &rc_ops;
        rc->alarm = NIC_NO_PEER;
        rc->api = config->api ? config->api : &rc->loaded;
        rc->rail_count = end->nics.count <= NIC_RAILS_MAX ? end->nics.count : 0;
        rc->heap = end->heap;
        rc->options = config->options;
        rc->rank = end->rank;
        rc->world = end->world;
        rc->peer_count = end->peer_count;
        failed = rc->rail_count ? verbs_rc_choose_qps(rc, error, size) : -EINVAL;
    }
    if (!failed && !config->api)
        failed =
            verbs_api_open(&rc->loaded, end->nics.soft ? VERBS_SOFT : VERBS_SYSTEM, error, size);
    failed = failed ? failed : verbs_rc_allocate(rc, end);
    for (uint32_t i = 0; !failed && i < rc->rail_count; i++)
        failed = verbs_rc_open_rail(rc, &rc->rails[i], end->nics.devices[i], error, size);
    uint32_t random = 0;
    if (!failed && getrandom(&random, sizeof random, 0) != sizeof random)
        failed = -EIO;
    if (!failed) {
        /* a QP of an earlier job at the same number is not taken for this one */
        rc->psn = random & 0xffffff;
        if (rc->peer_count)
            failed = rc_qps_create(rc, error, size);
        if (rc->peer_count && !failed)
            failed = rc_recover_create(rc, error, size);
    }
    if (!failed) {
        *out = &rc->fabric;
        return 0;
    }
    if (!error[0])
        snprintf(error, size, "cannot open %s: %s",
                 end->nics.count ? end->nics.devices[0] : "no device", strerror(-failed));
    if (rc)
        verbs_rc_close(&rc->fabric);
    return failed;
}

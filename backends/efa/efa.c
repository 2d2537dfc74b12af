#include "backends/efa/efa_state.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static size_t efa_address_bytes(struct fabric *fabric)
{
    return sizeof(struct efa_address);
}

static void efa_address(struct fabric *fabric, void *out)
{
    struct efa *e = efa_of(fabric);
    struct efa_address a = {.magic = EFA_MAGIC,
                            .heap_base = (uintptr_t)e->heap.base,
                            .heap_bytes = e->heap.bytes,
                            .flag_bytes = e->heap.flag_bytes,
                            .landing = (uintptr_t)e->control,
                            .rank = e->rank,
                            .peer_count = e->peer_count,
                            .device_count = e->device_count,
                            .window = e->window,
                            .provider = e->api.verbs.provider,
                            .unsolicited = (uint32_t)e->unsolicited};
    for (uint32_t i = 0; i < e->device_count; i++) {
        const struct efa_device *d = &e->devices[i];
        struct efa_address_device *to = &a.devices[i];
        memcpy(to->gid, d->verbs.gid.raw, sizeof to->gid);
        for (int k = 0; k < 2; k++)
            to->qpn[k] = d->qps[k] ? d->qps[k]->qp_num : 0;
        to->qkey = d->qkey;
        to->data_rkey = d->mr.data ? d->mr.data->rkey : 0;
        to->control_rkey = d->control->rkey;
        to->max_rdma = d->max_rdma;
    }
    memcpy(out, &a, sizeof a);
}

/* ---- connecting ---- */

/* Checks a peer's address; foreign bytes. NULL where it can be reached, else why not. */
static const char *efa_complaint(const struct efa *e, const struct efa_address *a, uint32_t rank)
{
    if (a->magic != EFA_MAGIC)
        return "it does not speak this version of the efa fabric";
    if (a->provider != e->api.verbs.provider)
        return "one end uses softnic and the other does not";
    if (a->rank != rank || a->peer_count != e->peer_count)
        return "it has other peers";
    if (!a->device_count || a->device_count > NIC_RAILS_MAX)
        return "its number of devices is out of range";
    if (a->window < 8 || a->window > EFA_WINDOW)
        return "its window is out of range";
    for (uint32_t i = 0; i < a->device_count; i++)
        if (a->devices[i].max_rdma < 4096 || (a->unsolicited && !a->devices[i].qpn[1]))
            return "the devices that it describes are impossible";
    return NULL;
}

/* Last values put to the peer's flags, or come from it: pages are touched where flags are used. */
static uint64_t *efa_values_of_flags(uint64_t flags)
{
    void *p = mmap(NULL, flags * 8, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static int efa_connect_lanes(struct efa *e, uint32_t index, const struct efa_address *a,
                             char *error, size_t size)
{
    struct efa_peer *peer = &e->peers[index];
    peer->lane_count = a->device_count < e->device_count ? a->device_count : e->device_count;
    for (uint32_t i = 0; i < e->device_count; i++) {
        struct efa_device *d = &e->devices[i];
        struct efa_handle handle = {.ahn = UINT32_MAX};
        struct efa_lane *lane = &peer->lanes[i];
        if (i < peer->lane_count) {
            const struct efa_address_device *to = &a->devices[i];
            int rc = efa_device_handle(e, d, to->gid, &handle, error, size);
            if (rc)
                return rc;
            *lane = (struct efa_lane){.ah = handle.ah,
                                      .qpn = to->qpn[e->unsolicited],
                                      .qkey = to->qkey,
                                      .data_rkey = to->data_rkey,
                                      .control_rkey = to->control_rkey,
                                      .max_rdma =
                                          to->max_rdma < d->max_rdma ? to->max_rdma : d->max_rdma};
        }
        d->sources[index] = (struct efa_source){.ahn = handle.ahn, .qpn = lane->qpn, .peer = index};
    }
    return 0;
}

/* `place`: where this rank stands in the peer's list. */
static int efa_connect_peer(struct efa *e, uint32_t index, const struct efa_address *a,
                            uint32_t place, char *error, size_t size)
{
    struct efa_peer *peer = &e->peers[index];
    peer->heap_base = a->heap_base;
    peer->heap_bytes = a->heap_bytes;
    peer->flag_bytes = a->flag_bytes;
    peer->landing = a->landing + (uint64_t)place * EFA_PLACES * 8;
    peer->window = a->window;
    if (a->flag_bytes / 8 > EFA_MAX_FLAGS)
        return -ERANGE;
    peer->sent = efa_values_of_flags(a->flag_bytes / 8);
    peer->arrivals.values = efa_values_of_flags(e->flags);
    peer->arrivals.flags = e->flags;
    peer->arrivals.landing = e->control + (uint64_t)index * EFA_PLACES;
    if (!peer->sent || !peer->arrivals.values)
        return -ENOMEM;
    return efa_connect_lanes(e, index, a, error, size);
}

/* Checks all peers before it connects the first. */
static int efa_connect(struct fabric *fabric, const void *addresses, const uint32_t *peers,
                       uint32_t count, char *error, size_t size)
{
    struct efa *e = efa_of(fabric);
    uint32_t below = 0;
    if (count != e->peer_count)
        return mk_fail(-EINVAL, error, size, "the fabric was opened for %u peers, not %u",
                       e->peer_count, count);
    for (uint32_t i = 0; i < count; i++) {
        struct efa_address a;
        memcpy(&a, (const char *)addresses + peers[i] * sizeof a, sizeof a);
        const char *wrong = e->peers[i].rank != peers[i] ? "the fabric was opened for another rank"
                                                         : efa_complaint(e, &a, peers[i]);
        if (wrong)
            return mk_fail(-EPROTO, error, size, "cannot connect to rank %u: %s", peers[i], wrong);
        /* all or none: every rank of the rail finds the same */
        e->unsolicited &= (int)a.unsolicited;
        below += peers[i] < e->rank;
    }
    int rc = 0;
    for (uint32_t i = 0; i < count && !rc; i++) {
        struct efa_address a;
        memcpy(&a, (const char *)addresses + peers[i] * sizeof a, sizeof a);
        /* Where this rank stands in the peer's list: the group in order, less the peer itself. */
        rc = efa_connect_peer(e, i, &a, below - (peers[i] < e->rank), error, size);
    }
    for (uint32_t i = 0; i < e->device_count && !rc; i++)
        rc = efa_device_connect(e, &e->devices[i], error, size);
    e->connected = !rc;
    return rc;
}

/* ---- life ---- */

static void efa_close(struct fabric *fabric)
{
    struct efa *e = efa_of(fabric);
    for (uint32_t i = 0; i < e->device_count; i++)
        efa_device_close(e, &e->devices[i]);
    efa_raise_close(e);
    for (uint32_t i = 0; e->peers && i < e->peer_count; i++) {
        if (e->peers[i].sent)
            munmap(e->peers[i].sent, e->peers[i].flag_bytes / 8 * 8);
        if (e->peers[i].arrivals.values)
            munmap(e->peers[i].arrivals.values, e->flags * 8);
    }
    if (e->control)
        munmap(e->control, e->control_bytes);
    free(e->peers);
    free(e->peer_of_rank);
    free(e);
}

/* "softefa0+softefa1, SRD, window 256, receives posted" */
static void efa_describe(const struct fabric *fabric, char *text, size_t size)
{
    const struct efa *e = (const struct efa *)(const void *)fabric;
    *text = '\0';
    for (uint32_t i = 0; i < e->device_count; i++)
        mk_append(text, size, "%s%s", i ? "+" : "", e->devices[i].verbs.name);
    mk_append(text, size, ", SRD, %u messages of each of %u peer%s, writes up to %u bytes, %s",
              e->window, e->peer_count, e->peer_count == 1 ? "" : "s", e->devices[0].max_rdma,
              e->unsolicited ? "unsolicited" : "receives posted");
}

static const struct fabric_ops efa_ops = {.name = "efa",
                                          .address_bytes = efa_address_bytes,
                                          .address = efa_address,
                                          .connect = efa_connect,
                                          .warm_up = efa_warm_up,
                                          .put = efa_put,
                                          .flush = efa_flush,
                                          .poll = efa_poll,
                                          .close = efa_close,
                                          .describe = efa_describe};

static int efa_allocate(struct efa *e, const struct nic_end *end)
{
    if (!e->peer_count || !end->nics.count || end->nics.count > NIC_RAILS_MAX)
        return -EINVAL;
    e->peers = calloc(e->peer_count, sizeof *e->peers);
    e->peer_of_rank = malloc(e->world * sizeof *e->peer_of_rank);
    /* A word more than the places: receives need a buffer, which no write with immediate
     * touches. */
    e->control_bytes = mk_round_up(((uint64_t)2 * e->peer_count * EFA_PLACES + 1) * 8, 4096);
    e->control =
        mmap(NULL, e->control_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (e->control == MAP_FAILED)
        e->control = NULL;
    if (!e->peers || !e->peer_of_rank || !e->control)
        return -ENOMEM;
    for (uint32_t i = 0; i < e->peer_count; i++)
        e->peers[i].rank = end->peers[i];
    return nic_end_places(end, e->peer_of_rank);
}

/* Checks that need no open device. */
static int efa_check_memory(const struct efa *e, char *error, size_t size)
{
    if (e->flags > EFA_MAX_FLAGS)
        return mk_fail(-ERANGE, error, size,
                       "%" PRIu64 " flags are more than the %u that the efa fabric can name",
                       e->flags, EFA_MAX_FLAGS);
    return 0;
}

/* The window that every device has receives and completions for, with all peers at once. */
static int efa_choose_window(struct efa *e, char *error, size_t size)
{
    uint32_t window = (uint32_t)e->options.window;
    e->unsolicited = (int)e->options.unsolicited;
    for (uint32_t i = 0; i < e->device_count; i++) {
        const struct efa_device *d = &e->devices[i];
        uint32_t room = d->max_rq;
        if (d->verbs.attr.max_cqe > 0 && room > (uint32_t)d->verbs.attr.max_cqe)
            room = (uint32_t)d->verbs.attr.max_cqe;
        uint32_t each = room / e->peer_count;
        if (each < EFA_CREDITS + 8 || d->max_sq < 8)
            return mk_fail(-ENOSPC, error, size,
                           "%s holds %u sends and %u receives, too few for %u peers", d->verbs.name,
                           d->max_sq, room, e->peer_count);
        if (each - EFA_CREDITS < window)
            window = each - EFA_CREDITS;
        e->unsolicited &= (d->caps & EFA_CAP_UNSOLICITED_WRITE) != 0;
    }
    e->window = window;
    return 0;
}

int efa_open(struct fabric **out, const struct efa_config *config, char *error, size_t size)
{
    const struct nic_end *end = &config->end;
    *out = NULL;
    error[0] = '\0';
    struct efa *e = calloc(1, sizeof *e);
    int rc = e ? 0 : -ENOMEM;
    if (!rc) {
        e->fabric.ops = &efa_ops;
        e->heap = end->heap;
        e->flags = end->heap.flag_bytes / 8;
        e->options = config->options;
        e->rank = end->rank;
        e->world = end->world;
        e->peer_count = end->peer_count;
        e->alarm = NIC_NO_PEER;
        rc = efa_check_memory(e, error, size);
    }
    rc = rc ? rc : efa_allocate(e, end);
    rc = rc ? rc : efa_raise_open(e, error, size);
    if (!rc && config->api)
        e->api = *config->api;
    else if (!rc)
        rc = efa_api_open(&e->api, end->nics.soft ? VERBS_SOFT : VERBS_SYSTEM, error, size);
    for (uint32_t i = 0; !rc && i < end->nics.count; i++) {
        e->device_count++;
        rc = efa_device_open(e, &e->devices[i], end->nics.devices[i], error, size);
    }
    rc = rc ? rc : efa_choose_window(e, error, size);
    for (uint32_t i = 0; !rc && i < e->device_count; i++)
        rc = efa_device_queues(e, &e->devices[i], error, size);
    if (!rc) {
        *out = &e->fabric;
        return 0;
    }
    if (!error[0])
        snprintf(error, size, "cannot open %s: %s", end->nics.devices[0], strerror(-rc));
    if (e)
        efa_close(&e->fabric);
    return rc;
}

#include "backends/verbs/verbs_device.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

uint32_t verbs_mtu_bytes(enum ibv_mtu mtu)
{
    return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << mtu : 0;
}

enum ibv_mtu verbs_mtu_of(uint32_t bytes)
{
    enum ibv_mtu mtu = IBV_MTU_256;
    while (mtu < IBV_MTU_4096 && verbs_mtu_bytes(mtu) < bytes)
        mtu++;
    return mtu;
}

int verbs_gid_rank(const union ibv_gid *gid, uint32_t type)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff}; /* ::ffff:a.b.c.d */
    int ipv4 = !memcmp(gid->raw, mapped, sizeof mapped);
    int link_local = gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
    int reach = ipv4 ? 3 : link_local ? 1 : 2;
    if (type == IBV_GID_TYPE_ROCE_V2)
        return 3 + reach;
    return type == IBV_GID_TYPE_ROCE_V1 ? reach : 0;
}

uint8_t verbs_device_timeout(const struct verbs_device *d)
{
    uint8_t n = (uint8_t)(d->attr.local_ca_ack_delay + 2);
    return n < 14 ? 14 : n > 20 ? 20 : n;
}

static int verbs_device_choose_port(struct verbs_device *d, int64_t wanted, char *error,
                                    size_t size)
{
    uint8_t first = wanted ? (uint8_t)wanted : 1,
            last = wanted ? (uint8_t)wanted : d->attr.phys_port_cnt;
    for (uint8_t port = first; port && port <= last && port <= d->attr.phys_port_cnt; port++)
        if (!verbs_query_port(d->api, d->context, port, &d->port_attr) &&
            d->port_attr.state == IBV_PORT_ACTIVE) {
            d->port = port;
            return 0;
        }
    if (wanted > d->attr.phys_port_cnt)
        snprintf(error, size, "%s has %u ports, not %d", d->name, d->attr.phys_port_cnt,
                 (int)wanted);
    else if (wanted)
        snprintf(error, size, "port %d of %s is not active", (int)wanted, d->name);
    else
        snprintf(error, size, "no port of %s is active", d->name);
    return -ENETDOWN;
}

static int verbs_device_choose_gid(struct verbs_device *d, int64_t wanted, char *error, size_t size)
{
    if (d->port_attr.link_layer != IBV_LINK_LAYER_ETHERNET) {
        d->gid_index = 0;
        return d->api->query_gid(d->context, d->port, 0, &d->gid) ? -EADDRNOTAVAIL : 0;
    }
    int best = 0;
    for (int i = 0; i < d->port_attr.gid_tbl_len; i++) {
        union ibv_gid gid;
        uint32_t type;
        if ((wanted >= 0 && i != wanted) ||
            verbs_query_gid(d->api, d->context, d->port, (uint32_t)i, &gid, &type))
            continue;
        if (verbs_gid_rank(&gid, type) > best) {
            best = verbs_gid_rank(&gid, type);
            d->gid_index = i;
            d->gid = gid;
        }
    }
    if (best)
        return 0;
    if (wanted >= 0)
        snprintf(error, size, "entry %d of the GID table of %s port %u is empty", (int)wanted,
                 d->name, d->port);
    else
        snprintf(error, size, "%s port %u has no GID: give its network interface an address",
                 d->name, d->port);
    return -EADDRNOTAVAIL;
}

static int verbs_device_open_by_name(struct verbs_device *d, char *error, size_t size)
{
    int count = 0;
    struct ibv_device **list = d->api->get_device_list(&count);
    if (!list)
        return mk_fail(-ENODEV, error, size, "cannot list the RDMA devices: %s", strerror(errno));
    struct ibv_device *device = NULL;
    for (int i = 0; i < count && !device; i++)
        if (!strcmp(list[i]->name, d->name))
            device = list[i];
    errno = 0;
    if (device)
        d->context = d->api->open_device(device);
    if (!device)
        snprintf(error, size, "there is no RDMA device %s; `mkernel info` lists them", d->name);
    else if (!d->context)
        snprintf(error, size, "cannot open %s: %s", d->name, strerror(errno));
    d->api->free_device_list(list);
    return d->context ? 0 : -ENODEV;
}

int verbs_device_open(struct verbs_device *d, const struct verbs_api *api, const char *name,
                      const struct verbs_options *options, char *error, size_t size)
{
    memset(d, 0, sizeof *d);
    d->api = api;
    snprintf(d->name, sizeof d->name, "%s", name);
    int rc = verbs_device_open_by_name(d, error, size);
    if (rc)
        return rc;
    if ((rc = api->query_device(d->context, &d->attr)))
        return mk_fail(rc > 0 ? -rc : -EIO, error, size, "cannot query %s: %s", name, strerror(rc));
    if ((rc = verbs_device_choose_port(d, options->port, error, size)) ||
        (rc = verbs_device_choose_gid(d, options->gid_index, error, size)))
        return rc;
    uint64_t max = d->port_attr.max_msg_sz ? d->port_attr.max_msg_sz : 1u << 20;
    if (options->max_message && (uint64_t)options->max_message < max)
        max = (uint64_t)options->max_message;
    d->max_message = (uint32_t)(max > (1u << 30) ? 1u << 30 : max) & ~127u;
    /* Events are looked at between polls, never waited for. */
    int flags = fcntl(d->context->async_fd, F_GETFL);
    if (flags >= 0)
        fcntl(d->context->async_fd, F_SETFL, flags | O_NONBLOCK);
    errno = 0;
    d->pd = api->alloc_pd(d->context);
    if (!d->pd)
        return mk_fail(errno ? -errno : -ENOMEM, error, size,
                       "cannot make a protection domain on %s: %s", name, strerror(errno));
    return 0;
}

int verbs_device_events(struct verbs_device *d)
{
    struct ibv_async_event event;
    int useless = 0;
    while (!d->api->get_async_event(d->context, &event)) {
        switch (event.event_type) {
        case IBV_EVENT_DEVICE_FATAL:
        case IBV_EVENT_CQ_ERR:
            useless = 1; /* fall through */
        case IBV_EVENT_QP_FATAL:
        case IBV_EVENT_QP_REQ_ERR:
        case IBV_EVENT_QP_ACCESS_ERR:
        case IBV_EVENT_PORT_ERR:
            snprintf(d->event, sizeof d->event, "%s: %s", d->name,
                     d->api->event_type_str(event.event_type));
            break;
        case IBV_EVENT_PORT_ACTIVE:
            d->event[0] = '\0';
            break;
        default:
            break;
        }
        d->api->ack_async_event(&event);
    }
    return useless;
}

void verbs_device_close(struct verbs_device *d)
{
    if (d->pd)
        d->api->dealloc_pd(d->pd);
    if (d->context)
        d->api->close_device(d->context);
    d->pd = NULL;
    d->context = NULL;
}

/* What a device and its port say about themselves, and its addresses.
 *
 * soft<K> has LID K + 1 and two GIDs on every host: link-local from its GUID, and the IPv4-mapped
 * 10.83.K/256.K%256. Nothing has to be exchanged to find a device on the same host: an address is
 * its number.
 */
#include "srd.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <string.h>

enum { GUID_PREFIX = 0x02505a, GID_IPV4 = 10 << 8 | 83 };

static uint64_t query_device_guid(int index)
{
    return (uint64_t)GUID_PREFIX << 40 | (uint64_t)0xfffe << 24 | (uint64_t)(index + 1);
}

__be64 ibv_get_device_guid(struct ibv_device *device)
{
    return htobe64(query_device_guid(((struct softnic_device *)device)->index));
}

void softnic_device_gid(int device, union ibv_gid *gid)
{
    memset(gid, 0, sizeof(*gid));
    gid->global.subnet_prefix = htobe64(0xfe80000000000000u);
    gid->global.interface_id = htobe64(query_device_guid(device));
}

static void query_gid_of(const struct softnic_context *ctx, int index, union ibv_gid *gid)
{
    int device = ctx->device->index;
    memset(gid, 0, sizeof(*gid));
    if (index == 0) {
        softnic_device_gid(device, gid);
    } else {
        gid->global.interface_id =
            htobe64((uint64_t)0xffff << 32 | (uint64_t)GID_IPV4 << 16 | (uint64_t)(device + 1));
    }
}

int softnic_gid_device(const union ibv_gid *gid)
{
    uint64_t prefix = be64toh(gid->global.subnet_prefix), id = be64toh(gid->global.interface_id),
             number;
    if (prefix == 0xfe80000000000000u)
        number = id - query_device_guid(-1);
    else if (!prefix)
        number = id - ((uint64_t)0xffff << 32 | (uint64_t)GID_IPV4 << 16);
    else
        return -1;
    return number >= 1 && number <= SOFTNIC_ALL_DEVICES ? (int)number - 1 : -1;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    const struct softnic_context *ctx = softnic_context_of(context);
    int index = ctx->device->index;
    *attr = (struct ibv_device_attr){
        .fw_ver = "softnic 1",
        .node_guid = htobe64(query_device_guid(index)),
        .sys_image_guid = htobe64(query_device_guid(index)),
        .max_mr_size = UINT64_MAX,
        .page_size_cap = 4096,
        .max_qp = SOFTNIC_MAX_QP,
        .max_qp_wr = SOFTNIC_MAX_WR,
        .device_cap_flags = IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_RC_RNR_NAK_GEN,
        .max_sge = SOFTNIC_MAX_SGE,
        .max_sge_rd = SOFTNIC_MAX_SGE,
        .max_cq = 1 << 16,
        .max_cqe = SOFTNIC_MAX_CQE,
        .max_mr = SOFTNIC_MAX_MR,
        .max_pd = 1 << 16,
        .max_qp_rd_atom = SOFTNIC_MAX_RD_ATOMIC,
        .max_res_rd_atom = SOFTNIC_MAX_RD_ATOMIC * SOFTNIC_MAX_QP,
        .max_qp_init_rd_atom = SOFTNIC_MAX_RD_ATOMIC,
        .atomic_cap = IBV_ATOMIC_GLOB,
        .max_pkeys = 1,
        .local_ca_ack_delay = 12,
        .phys_port_cnt = 1,
    };
    if (ctx->device->efa) {
        attr->vendor_id = 0x1d0f; /* what programs know EFA by */
        attr->vendor_part_id = 0xefa1;
        attr->device_cap_flags = 0;
        attr->max_qp_wr = (int)ctx->options.efa_depth;
        attr->max_sge = attr->max_sge_rd = SRD_MAX_SGE;
        attr->max_qp_rd_atom = attr->max_res_rd_atom = attr->max_qp_init_rd_atom = 0;
        attr->atomic_cap = IBV_ATOMIC_NONE;
        attr->max_ah = SRD_NO_AHN;
    }
    return 0;
}

int softnic_query_device_ex(struct ibv_context *context,
                            const struct ibv_query_device_ex_input *input,
                            struct ibv_device_attr_ex *attr, size_t size)
{
    struct ibv_device_attr_ex whole = {
        .completion_timestamp_mask = UINT64_MAX, .hca_core_clock = 1000000, .phys_port_cnt_ex = 1};
    if (input && input->comp_mask)
        return EINVAL;
    ibv_query_device(context, &whole.orig_attr);
    /* programs built against an older header have a shorter structure */
    memset(attr, 0, size);
    memcpy(attr, &whole, size < sizeof(whole) ? size : sizeof(whole));
    return 0;
}

int softnic_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr,
                       size_t size)
{
    struct softnic_context *ctx = softnic_context_of(context);
    bool efa = ctx->device->efa, roce = ctx->options.roce && !efa;
    struct ibv_port_attr whole = {
        .state = IBV_PORT_ACTIVE,
        .max_mtu = IBV_MTU_4096,
        .active_mtu = IBV_MTU_4096,
        .gid_tbl_len = efa ? 1 : SOFTNIC_GIDS,
        .port_cap_flags = efa ? 0 : IBV_PORT_CM_SUP | (roce ? IBV_PORT_IP_BASED_GIDS : 0),
        .max_msg_sz = efa ? SRD_MAX_SEND : SOFTNIC_MAX_MESSAGE,
        .pkey_tbl_len = 1,
        .lid = (uint16_t)(roce || efa ? 0 : ctx->device->index + 1),
        .sm_lid = (uint16_t)(roce || efa ? 0 : 1),
        .max_vl_num = 1,
        .active_width = 2,   /* 4x */
        .active_speed = 128, /* NDR: 400 Gb/s, the rate that GPU memory moves at by default */
        .phys_state = 5,     /* link up */
        .link_layer = efa    ? IBV_LINK_LAYER_UNSPECIFIED
                      : roce ? IBV_LINK_LAYER_ETHERNET
                             : IBV_LINK_LAYER_INFINIBAND,
        .flags = roce ? IBV_QPF_GRH_REQUIRED : 0,
    };
    if (port != 1)
        return EINVAL;
    memset(attr, 0, size);
    memcpy(attr, &whole, size < sizeof(whole) ? size : sizeof(whole));
    return 0;
}

/* The call of programs that were built before query_port moved into the context: the structure
 * ended at `flags`. */
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
    return softnic_query_port(context, port, (struct ibv_port_attr *)attr,
                              offsetof(struct ibv_port_attr, port_cap_flags2));
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    if (port != 1 || index < 0 || index >= SOFTNIC_GIDS) {
        errno = EINVAL;
        return -1;
    }
    query_gid_of(softnic_context_of(context), index, gid);
    return 0;
}

static void query_gid_entry(struct softnic_context *ctx, unsigned index,
                            struct ibv_gid_entry *entry)
{
    memset(entry, 0, sizeof(*entry));
    query_gid_of(ctx, (int)index, &entry->gid);
    entry->gid_index = index;
    entry->port_num = 1;
    entry->gid_type =
        ctx->options.roce && !ctx->device->efa ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_IB;
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
                      struct ibv_gid_entry *entry, uint32_t flags, size_t size)
{
    struct ibv_gid_entry whole;
    if (port != 1 || flags)
        return EINVAL;
    if (index >= SOFTNIC_GIDS)
        return ENODATA;
    query_gid_entry(softnic_context_of(context), index, &whole);
    memcpy(entry, &whole, size < sizeof(whole) ? size : sizeof(whole));
    return 0;
}

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max,
                             uint32_t flags, size_t size)
{
    if (flags || size != sizeof(*entries) || max < SOFTNIC_GIDS)
        return -EINVAL;
    for (unsigned i = 0; i < SOFTNIC_GIDS; i++)
        query_gid_entry(softnic_context_of(context), i, &entries[i]);
    return SOFTNIC_GIDS;
}

int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
    if (port != 1 || index) {
        errno = EINVAL;
        return -1;
    }
    *pkey = htons(0xffff);
    return 0;
}

int ibv_get_pkey_index(struct ibv_context *context, uint8_t port, __be16 pkey)
{
    return port == 1 && pkey == htons(0xffff) ? 0 : -1;
}

/* The calls that a softnic device does not have. Each answers EOPNOTSUPP in the way its manual page
 * gives errors, so that a program never falls through to the system's libibverbs with a context
 * that is not its own. docs/SOFTNIC.md lists them. */
#include "nic.h"

#include <errno.h>

#define NONE(type, name, ...)                                                                      \
    type *name(__VA_ARGS__)                                                                        \
    {                                                                                              \
        errno = EOPNOTSUPP;                                                                        \
        return NULL;                                                                               \
    }
#define REFUSED(name, ...)                                                                         \
    int name(__VA_ARGS__)                                                                          \
    {                                                                                              \
        return EOPNOTSUPP;                                                                         \
    }

/* shared receive queues */
NONE(struct ibv_srq, ibv_create_srq, struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
REFUSED(ibv_modify_srq, struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask)
REFUSED(ibv_query_srq, struct ibv_srq *srq, struct ibv_srq_attr *attr)
REFUSED(ibv_destroy_srq, struct ibv_srq *srq)

/* datagrams: address handles from completions, and multicast */
NONE(struct ibv_ah, ibv_create_ah_from_wc, struct ibv_pd *pd, struct ibv_wc *wc,
     struct ibv_grh *grh, uint8_t port)
REFUSED(ibv_init_ah_from_wc, struct ibv_context *context, uint8_t port, struct ibv_wc *wc,
        struct ibv_grh *grh, struct ibv_ah_attr *attr)
REFUSED(ibv_attach_mcast, struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
REFUSED(ibv_detach_mcast, struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
REFUSED(ibv_resolve_eth_l2_from_gid, struct ibv_context *context, struct ibv_ah_attr *attr,
        uint8_t mac[ETHERNET_LL_SIZE], uint16_t *vid)

/* memory: DMA-BUF, changing a region, sharing objects between processes */
NONE(struct ibv_mr, ibv_reg_dmabuf_mr, struct ibv_pd *pd, uint64_t offset, size_t length,
     uint64_t iova, int fd, int access)
NONE(struct ibv_context, ibv_import_device, int cmd_fd)
NONE(struct ibv_pd, ibv_import_pd, struct ibv_context *context, uint32_t handle)
NONE(struct ibv_mr, ibv_import_mr, struct ibv_pd *pd, uint32_t handle)
NONE(struct ibv_dm, ibv_import_dm, struct ibv_context *context, uint32_t handle)

int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *address, size_t length,
                 int access)
{
    errno = EOPNOTSUPP;
    return IBV_REREG_MR_ERR_INPUT; /* the region is as it was */
}

void ibv_unimport_pd(struct ibv_pd *pd)
{
}

void ibv_unimport_mr(struct ibv_mr *mr)
{
}

void ibv_unimport_dm(struct ibv_dm *dm)
{
}

/* enhanced connection establishment */
REFUSED(ibv_set_ece, struct ibv_qp *qp, struct ibv_ece *ece)
REFUSED(ibv_query_ece, struct ibv_qp *qp, struct ibv_ece *ece)

/* No: a message's bytes may become visible in any order before its completion or its successor. */
int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
    return 0;
}

/* fork: nothing here is registered with hardware, so a child's memory needs no protection */
int ibv_fork_init(void)
{
    return 0;
}

enum ibv_fork_status ibv_is_fork_initialized(void)
{
    return IBV_FORK_UNNEEDED;
}

/* libibverbs exports these without a public declaration, and stock programs use them */
int ibv_read_sysfs_file(const char *dir, const char *file, char *buffer, size_t size);
int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned index, unsigned *type);

int ibv_read_sysfs_file(const char *dir, const char *file, char *buffer, size_t size)
{
    errno = ENOENT; /* softnic has no sysfs */
    return -1;
}

int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned index, unsigned *type)
{
    struct ibv_gid_entry entry;
    int error = _ibv_query_gid_ex(context, port, index, &entry, 0, sizeof(entry));
    if (error) {
        errno = error;
        return -1;
    }
    /* this older call knows two types: 0 is InfiniBand and RoCE v1, 1 is RoCE v2 */
    *type = entry.gid_type == IBV_GID_TYPE_ROCE_V2;
    return 0;
}

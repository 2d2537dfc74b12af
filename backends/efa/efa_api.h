/* The calls that the efa fabric makes beside those of the verbs table: address handles, extended
 * QPs, and efadv's own. Found when the program runs, in libibverbs and libefa or in libsoftnic;
 * nothing links against them. */
#pragma once

#include "backends/verbs/verbs_api.h"

#include <infiniband/efadv.h>

/* Younger than some of the headers in use (rdma-core 44 knows the first three capabilities). */
enum {
    EFA_CAP_RNR_RETRY = 1 << 1,
    EFA_CAP_RDMA_WRITE = 1 << 3,
    EFA_CAP_UNSOLICITED_WRITE = 1 << 4,
    EFA_QP_UNSOLICITED_WRITE = 1 << 0, /* flag of a QP */
};

/* struct efadv_qp_init_attr as it is now: a field that older headers call reserved holds the
 * flags. */
struct efa_qp_attr {
    uint64_t comp_mask;
    uint32_t driver_qp_type;
    uint16_t flags;
    uint8_t service_level;
    uint8_t reserved;
};

struct efa_api {
    struct verbs_api verbs;
    __typeof__(ibv_create_ah) *create_ah;
    __typeof__(ibv_destroy_ah) *destroy_ah;
    __typeof__(ibv_qp_to_qp_ex) *qp_to_qp_ex;
    __typeof__(efadv_query_device) *query_device;
    __typeof__(efadv_query_ah) *query_ah;
    struct ibv_qp *(*create_qp_ex)(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr,
                                   struct efa_qp_attr *efa_attr, uint32_t bytes);
};

/* As verbs_api_open; -ENOENT too where libefa is not installed. */
int efa_api_open(struct efa_api *api, enum verbs_provider provider, char *error, size_t size);

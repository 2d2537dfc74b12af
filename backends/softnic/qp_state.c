/* Which transitions a reliable connected QP may make, and with which attributes: the InfiniBand
 * specification's tables (volume 1, 11.2.5.2), in the form that the kernel applies for real
 * devices. */
#include "nic.h"

enum {
    ACCESS = IBV_QP_ACCESS_FLAGS,
    ALTERNATE = IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE,
    RUNNING = IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER |
              IBV_QP_PATH_MIG_STATE,
};

static const struct {
    bool valid;
    int required, optional;
} transitions[IBV_QPS_UNKNOWN][IBV_QPS_UNKNOWN] = {
    [IBV_QPS_RESET][IBV_QPS_RESET] = {true, 0, 0},
    [IBV_QPS_RESET][IBV_QPS_INIT] = {true, IBV_QP_PKEY_INDEX | IBV_QP_PORT | ACCESS, 0},
    [IBV_QPS_INIT][IBV_QPS_RESET] = {true, 0, 0},
    [IBV_QPS_INIT][IBV_QPS_INIT] = {true, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | ACCESS},
    [IBV_QPS_INIT][IBV_QPS_RTR] = {true,
                                   IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                                   IBV_QP_ALT_PATH | ACCESS | IBV_QP_PKEY_INDEX},
    [IBV_QPS_RTR][IBV_QPS_RESET] = {true, 0, 0},
    [IBV_QPS_RTR][IBV_QPS_RTS] = {true,
                                  IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                                  RUNNING},
    [IBV_QPS_RTS][IBV_QPS_RESET] = {true, 0, 0},
    [IBV_QPS_RTS][IBV_QPS_RTS] = {true, 0, RUNNING},
    [IBV_QPS_RTS][IBV_QPS_SQD] = {true, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    [IBV_QPS_SQD][IBV_QPS_RESET] = {true, 0, 0},
    [IBV_QPS_SQD][IBV_QPS_RTS] = {true, 0, RUNNING},
    [IBV_QPS_SQD][IBV_QPS_SQD] = {true, 0,
                                  IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                      IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC |
                                      IBV_QP_MAX_DEST_RD_ATOMIC | ACCESS | IBV_QP_PKEY_INDEX |
                                      IBV_QP_MIN_RNR_TIMER | ALTERNATE},
    [IBV_QPS_ERR][IBV_QPS_RESET] = {true, 0, 0},
};

bool softnic_qp_transition_valid(enum ibv_qp_state from, enum ibv_qp_state to, int mask)
{
    if (from >= IBV_QPS_UNKNOWN || to >= IBV_QPS_UNKNOWN)
        return false;
    if (to == IBV_QPS_ERR) /* from anywhere, alone */
        return !(mask & ~(IBV_QP_STATE | IBV_QP_CUR_STATE));
    if (!transitions[from][to].valid)
        return false;
    int required = transitions[from][to].required, optional = transitions[from][to].optional;
    return (mask & required) == required && !(mask & ~(required | optional | IBV_QP_STATE));
}

static bool qp_state_path_valid(struct softnic_context *ctx, const struct ibv_ah_attr *path)
{
    if (path->port_num != 1)
        return false;
    if (path->is_global)
        return path->grh.sgid_index < SOFTNIC_GIDS && softnic_gid_device(&path->grh.dgid) >= 0;
    return !ctx->options.roce; /* Ethernet has no LIDs: a global route is required */
}

bool softnic_qp_values_valid(struct softnic_context *ctx, const struct ibv_qp_attr *attr, int mask)
{
    const unsigned remote =
        IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    if (mask &
        (IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE | IBV_QP_CAP | IBV_QP_RATE_LIMIT | IBV_QP_QKEY))
        return false; /* path migration, resizing and pacing are not there */
    return (!(mask & IBV_QP_PORT) || attr->port_num == 1) &&
           (!(mask & IBV_QP_PKEY_INDEX) || attr->pkey_index == 0) &&
           (!(mask & ACCESS) || !(attr->qp_access_flags & ~(remote | IBV_ACCESS_LOCAL_WRITE |
                                                            IBV_ACCESS_RELAXED_ORDERING))) &&
           (!(mask & IBV_QP_PATH_MTU) ||
            (attr->path_mtu >= IBV_MTU_256 && attr->path_mtu <= IBV_MTU_4096)) &&
           (!(mask & IBV_QP_AV) || qp_state_path_valid(ctx, &attr->ah_attr)) &&
           (!(mask & IBV_QP_DEST_QPN) || !(attr->dest_qp_num >> 24)) &&
           (!(mask & IBV_QP_MAX_DEST_RD_ATOMIC) ||
            attr->max_dest_rd_atomic <= SOFTNIC_MAX_RD_ATOMIC) &&
           (!(mask & IBV_QP_MAX_QP_RD_ATOMIC) || attr->max_rd_atomic <= SOFTNIC_MAX_RD_ATOMIC) &&
           (!(mask & IBV_QP_MIN_RNR_TIMER) || attr->min_rnr_timer <= 31) &&
           (!(mask & IBV_QP_TIMEOUT) || attr->timeout <= 31) &&
           (!(mask & IBV_QP_RETRY_CNT) || attr->retry_cnt <= 7) &&
           (!(mask & IBV_QP_RNR_RETRY) || attr->rnr_retry <= 7);
}

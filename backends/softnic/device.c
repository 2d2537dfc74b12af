/* Devices soft0 .. soft<N-1> and softefa0 .. softefa<M-1>, and opening one. */
#include "nic.h"
#include "core/base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct softnic_device devices[SOFTNIC_ALL_DEVICES];
static pthread_once_t devices_once = PTHREAD_ONCE_INIT;

static void device_make_devices(void)
{
    for (int i = 0; i < SOFTNIC_ALL_DEVICES; i++) {
        struct ibv_device *ibv = &devices[i].ibv;
        bool efa = i >= SOFTNIC_EFA_FIRST;
        devices[i].index = i;
        devices[i].efa = efa;
        ibv->node_type = efa ? IBV_NODE_UNSPECIFIED : IBV_NODE_CA;
        ibv->transport_type = efa ? IBV_TRANSPORT_UNSPECIFIED : IBV_TRANSPORT_IB;
        snprintf(ibv->name, sizeof(ibv->name), efa ? "softefa%d" : "soft%d",
                 efa ? i - SOFTNIC_EFA_FIRST : i);
        snprintf(ibv->dev_name, sizeof(ibv->dev_name), "u%.32s", ibv->name);
        /* no sysfs behind them; programs that look there find nothing, as in a container */
        snprintf(ibv->dev_path, sizeof(ibv->dev_path), "/sys/class/infiniband_verbs/u%.32s",
                 ibv->name);
        snprintf(ibv->ibdev_path, sizeof(ibv->ibdev_path), "/sys/class/infiniband/%.32s",
                 ibv->name);
    }
}

struct ibv_device **ibv_get_device_list(int *count)
{
    struct softnic_options options;
    int error = softnic_options_current(&options);
    struct ibv_device **list =
        error ? NULL : calloc(options.devices + options.efa + 1, sizeof(*list));
    if (!list) {
        errno = error ? -error : ENOMEM;
        if (count)
            *count = 0;
        return NULL;
    }
    pthread_once(&devices_once, device_make_devices);
    for (unsigned i = 0; i < options.devices; i++)
        list[i] = &devices[i].ibv;
    for (unsigned i = 0; i < options.efa; i++)
        list[options.devices + i] = &devices[SOFTNIC_EFA_FIRST + i].ibv;
    if (count)
        *count = (int)(options.devices + options.efa);
    return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
    return device->name;
}

int ibv_get_device_index(struct ibv_device *device)
{
    return ((struct softnic_device *)device)->index;
}

static int device_set_up(struct softnic_context *ctx, struct softnic_device *device)
{
    struct ibv_context *ibv = &ctx->verbs.context;
    int events[2], error = softnic_options_current(&ctx->options);
    if (!error)
        error = softnic_event_pipe(events);
    if (error)
        return error;
    ctx->device = device;
    softnic_options_narrow(&ctx->options, device->index);
    ctx->random = ctx->options.seed;
    ctx->event_write_fd = events[1];
    pthread_mutex_init(&ctx->lock, NULL);
    mk_cond_init(&ctx->idle);
    pthread_mutex_init(&ibv->mutex, NULL);
    ibv->device = &device->ibv;
    ibv->cmd_fd = -1;
    ibv->async_fd = events[0];
    ibv->num_comp_vectors = 1;
    ibv->abi_compat = __VERBS_ABI_IS_EXTENDED;
    ibv->ops.poll_cq = softnic_poll_cq;
    ibv->ops.req_notify_cq = softnic_req_notify_cq;
    ibv->ops.post_send = softnic_post_send;
    ibv->ops.post_recv = softnic_post_recv;
    /* the calls that stay NULL answer EOPNOTSUPP: verbs.h's inline functions see to it */
    ctx->verbs.sz = sizeof(ctx->verbs);
    ctx->verbs.query_port = softnic_query_port;
    ctx->verbs.query_device_ex = softnic_query_device_ex;
    ctx->verbs.create_cq_ex = softnic_create_cq_ex;
    ctx->verbs.create_qp_ex = softnic_create_qp_ex;
    error = softnic_progress_start(ctx);
    if (error) {
        close(events[0]);
        close(events[1]);
    }
    return error;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    struct softnic_context *ctx = calloc(1, sizeof(*ctx));
    int error = ctx ? device_set_up(ctx, (struct softnic_device *)device) : -ENOMEM;
    if (error) {
        free(ctx);
        return softnic_none(-error);
    }
    softnic_context_register(ctx);
    return &ctx->verbs.context;
}

int ibv_close_device(struct ibv_context *context)
{
    struct softnic_context *ctx = softnic_context_of(context);
    softnic_context_unregister(ctx);
    softnic_progress_stop(ctx);
    close(context->async_fd);
    close(ctx->event_write_fd);
    pthread_mutex_destroy(&ctx->lock);
    pthread_cond_destroy(&ctx->idle);
    pthread_mutex_destroy(&context->mutex);
    free(ctx->mr);
    free(ctx);
    return 0;
}

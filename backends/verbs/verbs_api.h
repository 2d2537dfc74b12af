/* The verbs functions that mkernel calls, as a table that is filled when the program runs: from the
 * system's libibverbs, or from libsoftnic. Nothing links against either, so the program starts on a
 * machine that has neither.
 *
 * Functions that verbs.h defines inline over a context's own operations (ibv_post_send,
 * ibv_poll_cq) are called directly: they reach the provider through the object, whichever library
 * made it. */
#pragma once

#include <infiniband/verbs.h>

#include <stddef.h>

enum verbs_provider { VERBS_SYSTEM, VERBS_SOFT };

struct verbs_api {
    enum verbs_provider provider;
    char path[256]; /* the library that was loaded */

    struct ibv_device **(*get_device_list)(int *count);
    __typeof__(ibv_free_device_list) *free_device_list;
    __typeof__(ibv_open_device) *open_device;
    __typeof__(ibv_close_device) *close_device;
    __typeof__(ibv_query_device) *query_device;
    int (*query_port)(struct ibv_context *context, uint8_t port,
                      struct _compat_ibv_port_attr *attr);
    __typeof__(ibv_query_gid) *query_gid;
    __typeof__(ibv_get_async_event) *get_async_event;
    __typeof__(ibv_ack_async_event) *ack_async_event;
    __typeof__(ibv_alloc_pd) *alloc_pd;
    __typeof__(ibv_dealloc_pd) *dealloc_pd;
    struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *address, size_t length, int access);
    __typeof__(ibv_dereg_mr) *dereg_mr;
    __typeof__(ibv_create_cq) *create_cq;
    __typeof__(ibv_destroy_cq) *destroy_cq;
    __typeof__(ibv_create_qp) *create_qp;
    __typeof__(ibv_modify_qp) *modify_qp;
    __typeof__(ibv_query_qp) *query_qp;
    __typeof__(ibv_destroy_qp) *destroy_qp;
    __typeof__(ibv_wc_status_str) *wc_status_str;
    __typeof__(ibv_event_type_str) *event_type_str;

    /* Younger than some libraries in use: NULL where absent. */
    __typeof__(ibv_reg_mr_iova2) *reg_mr_iova2;
    __typeof__(ibv_reg_dmabuf_mr) *reg_dmabuf_mr;
    __typeof__(_ibv_query_gid_ex) *query_gid_ex;

    /* softnic's own: why it refused its options; "": it did not. NULL in other libraries. */
    const char *(*soft_error)(void);
};

/* Loads the library and fills *api. The library stays loaded for the life of the process (providers
 * keep threads and handlers). libsoftnic.so is looked for beside the executable, in the folder
 * above it and in its lib, beside the library that holds this function, then on the loader's path.
 * Any thread. 0, -ENOENT (no such library) or -ENOSYS (it lacks a function), with one sentence in
 * `error`. */
int verbs_api_open(struct verbs_api *api, enum verbs_provider provider, char *error, size_t size);

/* ibv_query_port as verbs.h has it: the provider's own where it has one, so that the newer fields
 * are filled too. 0 or an errno. */
int verbs_query_port(const struct verbs_api *api, struct ibv_context *context, uint8_t port,
                     struct ibv_port_attr *attr);

/* How GID `index` is spoken: "IB", "RoCE v1" or "RoCE v2"; the table's entry in *gid. -ENODATA: the
 * entry is empty. */
int verbs_query_gid(const struct verbs_api *api, struct ibv_context *context, uint8_t port,
                    uint32_t index, union ibv_gid *gid, uint32_t *type /* enum ibv_gid_type */);

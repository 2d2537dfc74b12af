#define _GNU_SOURCE
#include "backends/verbs/verbs_api.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* dlerror names the path already. */
static void *verbs_api_load(struct verbs_api *api, const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library)
        snprintf(api->path, sizeof api->path, "%.*s", (int)sizeof api->path - 1, path);
    return library;
}

/* Tries `folder`/`below`/libsoftnic.so, where folder is that of the file `of`. */
static void *verbs_api_load_beside(struct verbs_api *api, const char *of, const char *below)
{
    char path[PATH_MAX + 64];
    const char *slash = strrchr(of, '/');
    if (!slash)
        return NULL;
    snprintf(path, sizeof path, "%.*s/%slibsoftnic.so", (int)(slash - of), of, below);
    return access(path, R_OK) ? NULL : verbs_api_load(api, path);
}

static void *verbs_api_load_soft(struct verbs_api *api)
{
    /* build/mkernel; build/tests/test_x; /usr/local/bin/mkernel */
    static const char *const places[] = {"", "../", "../lib/"};
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    void *library = NULL;
    self[n > 0 ? n : 0] = '\0';
    for (size_t i = 0; !library && i < sizeof places / sizeof *places; i++)
        library = verbs_api_load_beside(api, self, places[i]);
    Dl_info here;
    if (!library && dladdr((void *)(uintptr_t)verbs_api_open, &here) && here.dli_fname)
        library = verbs_api_load_beside(api, here.dli_fname, "");
    return library ? library : verbs_api_load(api, "libsoftnic.so");
}

int verbs_api_open(struct verbs_api *api, enum verbs_provider provider, char *error,
                   size_t error_size)
{
    memset(api, 0, sizeof *api);
    api->provider = provider;
    void *library =
        provider == VERBS_SOFT ? verbs_api_load_soft(api) : verbs_api_load(api, "libibverbs.so.1");
    if (!library) {
        snprintf(error, error_size, "cannot load %s: %s",
                 provider == VERBS_SOFT ? "softnic" : "libibverbs", dlerror());
        return -ENOENT;
    }
    const struct {
        const char *name;
        void *place;
        int optional;
    } functions[] = {
        {"ibv_get_device_list", &api->get_device_list, 0},
        {"ibv_free_device_list", &api->free_device_list, 0},
        {"ibv_open_device", &api->open_device, 0},
        {"ibv_close_device", &api->close_device, 0},
        {"ibv_query_device", &api->query_device, 0},
        {"ibv_query_port", &api->query_port, 0},
        {"ibv_query_gid", &api->query_gid, 0},
        {"ibv_get_async_event", &api->get_async_event, 0},
        {"ibv_ack_async_event", &api->ack_async_event, 0},
        {"ibv_alloc_pd", &api->alloc_pd, 0},
        {"ibv_dealloc_pd", &api->dealloc_pd, 0},
        {"ibv_reg_mr", &api->reg_mr, 0},
        {"ibv_dereg_mr", &api->dereg_mr, 0},
        {"ibv_create_cq", &api->create_cq, 0},
        {"ibv_destroy_cq", &api->destroy_cq, 0},
        {"ibv_create_qp", &api->create_qp, 0},
        {"ibv_modify_qp", &api->modify_qp, 0},
        {"ibv_query_qp", &api->query_qp, 0},
        {"ibv_destroy_qp", &api->destroy_qp, 0},
        {"ibv_wc_status_str", &api->wc_status_str, 0},
        {"ibv_event_type_str", &api->event_type_str, 0},
        {"ibv_reg_mr_iova2", &api->reg_mr_iova2, 1},
        {"ibv_reg_dmabuf_mr", &api->reg_dmabuf_mr, 1},
        {"_ibv_query_gid_ex", &api->query_gid_ex, 1},
        {"softnic_error", &api->soft_error, 1},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = dlsym(library, functions[i].name);
        if (!function && !functions[i].optional) {
            snprintf(error, error_size, "%s has no %s", api->path, functions[i].name);
            return -ENOSYS;
        }
        memcpy(functions[i].place, &function, sizeof function);
    }
    /* the caller prints softnic_error's sentence itself */
    void *found = dlsym(library, "softnic_silent");
    void (*silent)(void);
    memcpy(&silent, &found, sizeof silent);
    if (silent)
        silent();
    return 0;
}

int verbs_query_port(const struct verbs_api *api, struct ibv_context *context, uint8_t port,
                     struct ibv_port_attr *attr)
{
    struct verbs_context *own = verbs_get_ctx_op(context, query_port);
    memset(attr, 0, sizeof *attr);
    if (own)
        return own->query_port(context, port, attr, sizeof *attr);
    return api->query_port(context, port, (struct _compat_ibv_port_attr *)attr);
}

/* Where the library is too old to say: the kernel's own table. */
static uint32_t verbs_api_gid_type_of_sysfs(struct ibv_context *context, uint8_t port,
                                            uint32_t index)
{
    char path[PATH_MAX], text[32] = "";
    snprintf(path, sizeof path, "%s/ports/%u/gid_attrs/types/%u", context->device->ibdev_path, port,
             index);
    FILE *f = fopen(path, "re");
    if (f) {
        if (!fgets(text, sizeof text, f))
            text[0] = '\0';
        fclose(f);
    }
    return !strncmp(text, "RoCE v2", 7) ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1;
}

int verbs_query_gid(const struct verbs_api *api, struct ibv_context *context, uint8_t port,
                    uint32_t index, union ibv_gid *gid, uint32_t *type)
{
    static const union ibv_gid zero;
    struct ibv_gid_entry entry = {0};
    if (api->query_gid_ex && !api->query_gid_ex(context, port, index, &entry, 0, sizeof entry)) {
        *gid = entry.gid;
        *type = entry.gid_type;
    } else {
        struct ibv_port_attr attr;
        if (api->query_gid(context, port, (int)index, gid) ||
            verbs_query_port(api, context, port, &attr))
            return -ENODATA;
        *type = attr.link_layer == IBV_LINK_LAYER_ETHERNET
                    ? verbs_api_gid_type_of_sysfs(context, port, index)
                    : IBV_GID_TYPE_IB;
    }
    return memcmp(gid, &zero, sizeof zero) ? 0 : -ENODATA;
}

#include "backends/verbs/verbs_api.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* dlerror names the path already. */
static void *verbs_api_load(struct verbs_api *api, const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library)
        snprintf(api->path, sizeof api->path, "%.*s", (int)sizeof api->path - 1, path);
    return library;
}

/* Whether nobody can have put this there, or can change it, who could not have changed the program
 * itself. A folder in which only the owner of a file may replace it (sticky) is as good as one's
 * own. */
static int verbs_api_is_safe(const struct stat *s, const struct stat *program)
{
    int own = !s->st_uid || s->st_uid == geteuid() || s->st_uid == program->st_uid;
    int group = !s->st_gid || s->st_gid == getegid() || s->st_gid == program->st_gid;
    if (S_ISDIR(s->st_mode) && s->st_mode & S_ISVTX)
        return own;
    return own && !(s->st_mode & S_IWOTH) && (group || !(s->st_mode & S_IWGRP));
}

/* Tries `folder`/`below`/libsoftnic.so, where folder is that of the program or library `of`. 0: it
 * is not there; -EPERM with a sentence: it is not safe; -ENOENT with one: it cannot be loaded. */
static int verbs_api_load_beside(struct verbs_api *api, const char *of, const char *below,
                                 void **library, char *error, size_t size)
{
    char path[PATH_MAX + 64], folder[PATH_MAX + 64];
    struct stat program, file, around;
    const char *slash = strrchr(of, '/');
    if (!slash)
        return 0;
    snprintf(folder, sizeof folder, "%.*s/%s", (int)(slash - of), of, below);
    snprintf(path, sizeof path, "%.*slibsoftnic.so", (int)sizeof path - 16, folder);
    if (access(path, R_OK) || stat(of, &program) || stat(path, &file) || stat(folder, &around))
        return 0;
    if (!verbs_api_is_safe(&file, &program) || !verbs_api_is_safe(&around, &program))
        return mk_fail(-EPERM, error, size,
                       "%s is not loaded: somebody else owns it or its folder, or may write there",
                       path);
    *library = verbs_api_load(api, path);
    if (!*library)
        snprintf(error, size, "cannot load softnic: %s", dlerror());
    return *library ? 0 : -ENOENT;
}

static int verbs_api_load_soft(struct verbs_api *api, void **library, char *error, size_t size)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    const char *slash = strrchr(self, '/');
    int test = slash && slash - self >= 6 && !strncmp(slash - 6, "/tests", 6);
    /* build/tests/test_x; build/mkernel; /usr/local/bin/mkernel */
    const char *const places[] = {test ? "../" : "", "../lib/"};
    int rc = 0;
    for (size_t i = 0; !*library && !rc && i < sizeof places / sizeof *places; i++)
        rc = verbs_api_load_beside(api, self, places[i], library, error, size);
    Dl_info here;
    if (!*library && !rc && dladdr((void *)(uintptr_t)verbs_api_open, &here) && here.dli_fname)
        rc = verbs_api_load_beside(api, here.dli_fname, "", library, error, size);
    if (!*library && !rc) { /* the loader's own places */
        *library = verbs_api_load(api, "libsoftnic.so");
        if (!*library)
            snprintf(error, size, "cannot load softnic: %s", dlerror());
        rc = *library ? 0 : -ENOENT;
    }
    return rc;
}

int verbs_api_open(struct verbs_api *api, enum verbs_provider provider, char *error, size_t size)
{
    memset(api, 0, sizeof *api);
    api->provider = provider;
    void *library = NULL;
    int rc = 0;
    if (provider == VERBS_SOFT) {
        rc = verbs_api_load_soft(api, &library, error, size);
    } else if (!(library = verbs_api_load(api, "libibverbs.so.1")))
        rc = mk_fail(-ENOENT, error, size, "cannot load libibverbs: %s", dlerror());
    if (rc)
        return rc;
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
        if (!function && !functions[i].optional)
            return mk_fail(-ENOSYS, error, size, "%s has no %s", api->path, functions[i].name);
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
    MK_CLOSED FILE *f = fopen(path, "re");
    if (f && !fgets(text, sizeof text, f))
        text[0] = '\0';
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

#include "backends/efa/efa_api.h"
#include "core/base/sentence.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

int efa_api_open(struct efa_api *api, enum verbs_provider provider, char *error, size_t size)
{
    memset(api, 0, sizeof *api);
    int rc = verbs_api_open(&api->verbs, provider, error, size);
    if (rc)
        return rc;
    /* softnic is both libraries in one. */
    const char *efa = provider == VERBS_SOFT ? api->verbs.path : "libefa.so.1";
    void *verbs_library = dlopen(api->verbs.path, RTLD_NOW | RTLD_LOCAL);
    void *efa_library = dlopen(efa, RTLD_NOW | RTLD_LOCAL);
    if (!verbs_library || !efa_library)
        return mk_fail(-ENOENT, error, size, "cannot load %s: %s", efa, dlerror());
    const struct {
        const char *name;
        void *library, *place;
    } functions[] = {
        {"ibv_create_ah", verbs_library, &api->create_ah},
        {"ibv_destroy_ah", verbs_library, &api->destroy_ah},
        {"ibv_qp_to_qp_ex", verbs_library, &api->qp_to_qp_ex},
        {"efadv_query_device", efa_library, &api->query_device},
        {"efadv_query_ah", efa_library, &api->query_ah},
        {"efadv_create_qp_ex", efa_library, &api->create_qp_ex},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = dlsym(functions[i].library, functions[i].name);
        if (!function)
            return mk_fail(-ENOSYS, error, size, "%s has no %s: it is too old",
                           functions[i].library == efa_library ? efa : api->verbs.path,
                           functions[i].name);
        memcpy(functions[i].place, &function, sizeof function);
    }
    return 0;
}

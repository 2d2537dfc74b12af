#include "experiments/info/version.h"
#include "core/mkernel.h"

#include <sqlite3.h>
#ifdef MK_HAVE_YAML
#include <yaml.h>
#endif
#ifdef MK_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

#ifndef MK_COMMIT
#define MK_COMMIT ""
#endif

const char *openblas_get_config(void) __attribute__((weak)); /* not in every cblas */

const char *version_commit(void)
{
    return *MK_COMMIT ? MK_COMMIT : "unknown";
}

const char *version_build(char text[VERSION_TEXT])
{
    snprintf(text, VERSION_TEXT,
#ifdef __clang__
             "clang %d.%d"
#else
             "gcc %d.%d"
#endif
#ifdef MK_HAVE_CUDA
             "; CUDA %d.%d"
#else
             "; no CUDA"
#endif
             "; %s; %s; %s; %s",
#ifdef __clang__
             __clang_major__, __clang_minor__,
#else
             __GNUC__, __GNUC_MINOR__,
#endif
#ifdef MK_HAVE_CUDA
             CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10,
#endif
#ifdef MK_HAVE_VERBS
             "verbs",
#else
             "no verbs",
#endif
#ifdef MK_HAVE_EFA
             "EFA",
#else
             "no EFA",
#endif
#ifdef MK_HAVE_EMULATION
             "emulated Hopper",
#else
             "no emulated Hopper",
#endif
#ifdef MK_HAVE_YAML
             "sweep files"
#else
             "no sweep files (libyaml)"
#endif
    );
    return text;
}

int version_cuda(void)
{
#ifdef MK_HAVE_CUDA
    return CUDART_VERSION;
#else
    return 0;
#endif
}

void version_print(FILE *out)
{
    char text[VERSION_TEXT];
    fprintf(out, "mkernel %s\n", MK_VERSION);
    fprintf(out, "commit    %s\n", version_commit());
    fprintf(out, "built by  %s\n", version_build(text));
    fprintf(out, "libraries SQLite %s; %s", sqlite3_libversion(),
            openblas_get_config ? openblas_get_config() : "another cblas than OpenBLAS");
#ifdef MK_HAVE_YAML
    fprintf(out, "; libyaml %s", yaml_get_version_string());
#endif
    fprintf(out, "\n");
}

/* What a sweep is measured with: this machine, its GPUs and NICs, driver and libraries, as JSON. */
#include "experiments/sweep/sweep.h"
#include "backends/nic.h"
#include "core/mkernel.h"
#include "core/base/scoped.h"
#include "experiments/common/gpu.h"
#include "experiments/common/json_write.h"
#include "experiments/info/version.h"

#include <dlfcn.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

const char *openblas_get_config(void) __attribute__((weak));

/* What follows `key` in a file of lines; "" where there is none. */
static const char *sweep_machine_line(const char *path, const char *key, char *out, size_t size)
{
    char line[512];
    MK_CLOSED FILE *f = fopen(path, "re");
    out[0] = '\0';
    while (f && !*out && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, strlen(key)))
            continue;
        const char *from = line + strlen(key);
        from += strspn(from, " \t:=\"");
        snprintf(out, size, "%.*s", (int)strcspn(from, "\"\n"), from);
    }
    return out;
}

static void sweep_machine_gpus(FILE *f)
{
    static struct gpu_list gpus;
    char text[512];
    gpu_probe(&gpus);
    gpu_probe_links(&gpus);
    fprintf(f, "  \"gpus\": [");
    for (uint32_t i = 0; i < gpus.count; i++) {
        const struct gpu_device *g = &gpus.devices[i];
        fprintf(f,
                "%s{\"name\": \"%s\", \"bus\": \"%s\", \"sms\": %u, \"memory_bytes\": %lu, "
                "\"clock_mhz\": %.0f, \"flop_per_s\": %.6g, \"nvlink_bytes_per_s\": %.6g}",
                i ? ", " : "", g->name, g->bus, g->sms, g->memory, (double)g->clock / 1e6,
                gpu_peak_flops(g), gpu_peak_nvlink(g));
    }
    fprintf(f, "],\n");
    snprintf(text, sizeof text, "%d.%d", gpus.driver / 1000, gpus.driver % 1000 / 10);
    json_text(f, "cuda_driver", gpus.driver ? text : "");
    json_text(f, "nvidia_driver",
              sweep_machine_line("/proc/driver/nvidia/version", "NVRM version", text, sizeof text));
}

static void sweep_machine_nics(FILE *f)
{
    static struct nic_survey nics;
    nic_survey(&nics);
    fprintf(f, "  \"nics\": [");
    for (uint32_t i = 0; i < nics.count; i++) {
        const struct nic_info *n = &nics.nics[i];
        fprintf(f, "%s{\"name\": \"%s\", \"state\": \"%s\", \"driver\": \"%s\", \"gbit\": %.9g}",
                i ? ", " : "", n->name, n->state, n->soft ? "softnic" : n->driver, n->gbit);
    }
    fprintf(f, "],\n");
    json_text(f, "libibverbs", nics.library);
}

static void sweep_machine_nccl(FILE *f)
{
    char text[32] = "";
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    int (*version)(int *) = library ? (int (*)(int *))dlsym(library, "ncclGetVersion") : NULL;
    int number = 0;
    if (version && !version(&number) && number > 10000)
        snprintf(text, sizeof text, "%d.%d.%d", number / 10000, number / 100 % 100, number % 100);
    if (library)
        dlclose(library);
    json_text(f, "nccl", text);
}

char *sweep_machine(void)
{
    char *text = NULL, line[512], host[128] = "";
    size_t bytes;
    struct utsname u;
    FILE *f = open_memstream(&text, &bytes);
    if (!f)
        return NULL;
    gethostname(host, sizeof host - 1);
    uname(&u);
    fprintf(f, "{\n");
    json_text(f, "host", host);
    json_text(f, "mkernel", MK_VERSION);
    json_text(f, "commit", version_commit());
    json_text(f, "build", version_build(line));
    snprintf(line, sizeof line, "%s %s", u.sysname, u.release);
    json_text(f, "kernel", line);
    json_text(f, "system", sweep_machine_line("/etc/os-release", "PRETTY_NAME", line, sizeof line));
    json_text(f, "cpu", sweep_machine_line("/proc/cpuinfo", "model name", line, sizeof line));
    json_text(f, "governor",
              sweep_machine_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "", line,
                                 sizeof line));
    fprintf(f, "  \"cores\": %ld,\n  \"memory_bytes\": %.0f,\n", sysconf(_SC_NPROCESSORS_ONLN),
            (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE));
    sweep_machine_gpus(f);
    sweep_machine_nics(f);
    sweep_machine_nccl(f);
    json_text(f, "openblas", openblas_get_config ? openblas_get_config() : "");
    fprintf(f, "  \"sqlite\": \"%s\"\n}\n", sqlite3_libversion());
    if (fclose(f)) {
        free(text);
        return NULL;
    }
    return text;
}

/* `mkernel info`: what this machine has for mkernel, what is missing, and the command that would help. Never fails. */
#include "experiments/commands.h"
#include "experiments/gpu.h"
#include "experiments/options.h"

#include <dirent.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

const char *openblas_get_config(void) __attribute__((weak)); /* not in every cblas */

/* What is missing, told at the end. */
struct advice {
    char lines[16][200];
    int count;
};

static void advise(struct advice *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void advise(struct advice *a, const char *format, ...)
{
    va_list args;
    if (a->count == sizeof a->lines / sizeof *a->lines)
        return;
    va_start(args, format);
    vsnprintf(a->lines[a->count++], sizeof a->lines[0], format, args);
    va_end(args);
}

/* First line of a file, without its newline; empty where there is none. */
static void read_line(const char *path, char *out, size_t size)
{
    FILE *f = fopen(path, "r");
    out[0] = 0;
    if (!f)
        return;
    if (!fgets(out, (int)size, f))
        out[0] = 0;
    out[strcspn(out, "\n")] = 0;
    fclose(f);
}

static void show_machine(void)
{
    struct utsname u;
    char model[128] = "unknown CPU", line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "model name", 10) || !strchr(line, ':'))
            continue;
        snprintf(model, sizeof model, "%s", strchr(line, ':') + 2);
        model[strcspn(model, "\n")] = 0;
        break;
    }
    if (f)
        fclose(f);
    uname(&u);
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    printf("machine   %ld cores (%s), %.1f GB, %s %s\n", sysconf(_SC_NPROCESSORS_ONLN), model,
           (double)pages * (double)page / 1e9, u.sysname, u.release);
}

static void show_gpus(struct advice *a)
{
    static struct gpu_list list;
    gpu_probe(&list);
    if (!list.count) {
        printf("GPU       none: %s; --exec host needs none\n", list.missing);
        return;
    }
    for (uint32_t i = 0; i < list.count; i++) {
        const struct gpu_device *g = &list.devices[i];
        printf("GPU %-2u    %s, sm_%d%d, %u SMs, %.0f GB, DMA-BUF %s\n", i, g->name, g->major, g->minor, g->sms,
               (double)g->memory / 1e9, g->dma_buf ? "yes" : "no");
    }
    printf("driver    CUDA %d.%d\n", list.driver / 1000, list.driver % 1000 / 10);
    if (!gpu_hoppers(&list))
        advise(a, "(no Hopper GPU: --exec cuda needs sm_90; --exec host runs)");
#ifndef MK_HAVE_CUDA
    else
        advise(a, "make CUDA_HOME=/usr/local/cuda       # this build is without CUDA");
#endif
}

/* RDMA devices as the kernel knows them; works without libibverbs. Returns how many are up. */
static int show_nics(struct advice *a, int *rxe)
{
    DIR *d = opendir("/sys/class/infiniband");
    int devices = 0, up = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[600], state[64], rate[64], firmware[64], link[64];
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/state", e->d_name);
        read_line(path, state, sizeof state);
        snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/rate", e->d_name);
        read_line(path, rate, sizeof rate);
        snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/link_layer", e->d_name);
        read_line(path, link, sizeof link);
        snprintf(path, sizeof path, "/sys/class/infiniband/%s/fw_ver", e->d_name);
        read_line(path, firmware, sizeof firmware);
        int soft = !strncmp(e->d_name, "rxe", 3);
        printf("NIC       %s: %s, %s, %s%s%s%s\n", e->d_name, *state ? state : "no port", *rate ? rate : "no rate",
               *link ? link : "no link layer", *firmware ? ", firmware " : "", firmware, soft ? " (soft-RoCE)" : "");
        devices++;
        up += strstr(state, "ACTIVE") != NULL;
        *rxe += soft;
    }
    if (d)
        closedir(d);
    if (!devices)
        printf("NIC       no RDMA device; --nic soft needs none\n");
    else if (!up)
        advise(a, "ip link set dev NETDEV up            # no RDMA port is active");
    return up;
}

/* Whether the running kernel has module `name`: 2 loaded (or built in), 1 on disk, 0 not. */
static int module_state(const char *name)
{
    char path[600], line[512];
    struct utsname u;
    snprintf(path, sizeof path, "/sys/module/%s", name);
    if (access(path, F_OK) == 0)
        return 2;
    uname(&u);
    const char *const lists[] = {"modules.dep", "modules.builtin"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "/lib/modules/%s/%s", u.release, lists[i]);
        FILE *f = fopen(path, "r");
        int found = 0;
        snprintf(path, sizeof path, "/%s.ko", name);
        while (f && !found && fgets(line, sizeof line, f))
            found = strstr(line, path) != NULL;
        if (f)
            fclose(f);
        if (found)
            return i + 1;
    }
    return 0;
}

static void show_soft_roce(struct advice *a, int rxe)
{
    static const char *const words[] = {"not on this machine", "on disk, not loaded", "loaded"};
    int module = module_state("rdma_rxe");
    struct rlimit limit = {0, 0};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    printf("soft-RoCE module rdma_rxe %s, %d rxe device%s; ", words[module], rxe, rxe == 1 ? "" : "s");
    if (limit.rlim_cur == RLIM_INFINITY)
        printf("memlock unlimited\n");
    else
        printf("memlock %.1f MB\n", (double)limit.rlim_cur / 1e6);
    struct utsname u;
    uname(&u);
    if (module == 0)
        advise(a, "apt-get install linux-modules-extra-%s   # rdma_rxe, for soft-RoCE", u.release);
    if (module == 1)
        advise(a, "modprobe crc32_generic; modprobe rdma_rxe   # soft-RoCE");
    if (!rxe)
        advise(a, "rdma link add rxe0 type rxe netdev DEV   # a soft-RoCE device on network device DEV");
    if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < (rlim_t)1 << 30)
        advise(a, "ulimit -l unlimited                  # registered memory is locked: %.1f MB are too little for a real or rxe "
                  "NIC", (double)limit.rlim_cur / 1e6);
}

static void show_libraries(void)
{
    printf("libraries SQLite %s, OpenBLAS %s, built %s CUDA\n", sqlite3_libversion(),
           openblas_get_config ? openblas_get_config() : "(another cblas)",
#ifdef MK_HAVE_CUDA
           "with"
#else
           "without"
#endif
    );
}

int command_info(int argc, char **argv)
{
    static const struct option_table table = {"info", "What this machine has: GPUs, NICs, soft-RoCE, libraries, and what is "
                                                      "missing. Takes no options.", NULL, 0, "  mkernel info\n"};
    struct options_found found;
    struct advice advice = {.count = 0};
    char error[256];
    int rxe = 0;
    int result = options_parse(&table, argc, argv, NULL, &found, error, sizeof error);
    if (!result && found.word_count) {
        snprintf(error, sizeof error, "%s is one argument too many", found.words[0]);
        result = -1;
    }
    if (result) {
        fprintf(stderr, "mkernel info: %s; `mkernel info --help` tells more\n", error);
        return STATUS_USAGE;
    }
    if (found.help) {
        options_help(&table, stdout);
        return STATUS_DONE;
    }
    show_machine();
    show_gpus(&advice);
    show_nics(&advice, &rxe);
    show_soft_roce(&advice, rxe);
    show_libraries();
    printf("\nruns here `mkernel run ag_gemm --exec host --nic soft --check`\n");
    if (advice.count)
        printf("would help (as root where it must be):\n");
    for (int i = 0; i < advice.count; i++)
        printf("  %s\n", advice.lines[i]);
    return STATUS_DONE;
}

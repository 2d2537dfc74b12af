/* `mkernel info`: what this machine has for mkernel, what is missing, and the command that would
 * help. Never fails. */
#include "experiments/common/command_says.h"
#include "experiments/common/commands.h"
#include "experiments/common/gpu.h"
#include "experiments/info/info_driver.h"
#include "experiments/info/info_rails.h"
#include "experiments/info/version.h"
#include "experiments/common/options.h"
#include "backends/nic.h"
#include "core/comm/gpus.h"
#include "core/base/scoped.h"

#include <dirent.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

const char *openblas_get_config(void) __attribute__((weak)); /* not in every cblas */

/* What is missing, told at the end. */
struct advice {
    char lines[16][340];
    int count;
};

static void info_advise(struct advice *a, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void info_advise(struct advice *a, const char *format, ...)
{
    va_list args;
    if (a->count == sizeof a->lines / sizeof *a->lines)
        return;
    va_start(args, format);
    vsnprintf(a->lines[a->count++], sizeof a->lines[0], format, args);
    va_end(args);
}

static void info_show_machine(void)
{
    struct utsname u;
    char model[128] = "unknown CPU", line[256];
    MK_CLOSED FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "model name", 10) || !strchr(line, ':'))
            continue;
        snprintf(model, sizeof model, "%s", strchr(line, ':') + 2);
        model[strcspn(model, "\n")] = 0;
        break;
    }
    uname(&u);
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    printf("machine   %ld cores (%s), %.1f GB, %s %s\n", sysconf(_SC_NPROCESSORS_ONLN), model,
           (double)pages * (double)page / 1e9, u.sysname, u.release);
}

static void info_show_gpus(struct gpu_list *list, struct advice *a)
{
    gpu_probe(list);
    if (!list->count) {
        printf("GPU       none: %s; --exec host and --exec emulated need none\n", list->missing);
        return;
    }
    for (uint32_t i = 0; i < list->count; i++) {
        const struct gpu_device *g = &list->devices[i];
        char shared[48] = "";
        if (g->shared)
            snprintf(shared, sizeof shared, ", %u KB of shared memory a block", g->shared / 1024);
        printf("GPU %-2u    %s, sm_%d%d, %u SMs%s, %.0f GB, DMA-BUF %s, engine %s\n", i, g->name,
               g->major, g->minor, g->sms, shared, (double)g->memory / 1e9,
               g->dma_buf ? "yes" : "no",
               gpu_is_hopper(g) ? "wgmma or mma"
               : gpu_has_mma(g) ? "mma"
                                : "none");
    }
    for (uint32_t i = 0; i < list->count; i++)
        if (list->devices[i].mps) {
            printf("MPS       serves GPU %u: ranks that share it run at once\n", i);
            break;
        }
    for (uint32_t i = 0; i < list->count; i++)
        if (list->devices[i].watched)
            printf(
                "display   on GPU %u, whose driver ends launches of several seconds: waits there "
                "end after %llu s at most\n",
                i, GPUS_WATCHED_NS / 1000000000);
    char p2p[128];
    int wanted = gpus_peers_wanted(p2p, sizeof p2p);
    if (wanted < 0)
        info_advise(a, "unset MKERNEL_P2P       # %s", p2p);
    if (list->count > 1)
        printf("P2P       %s\n",
               !wanted ? "off (MKERNEL_P2P): each GPU is a node of its own"
               : list->peers
                   ? "GPUs reach each other's memory, with atomics"
                   : "not with atomics: each GPU is a node of its own, --nodes N --gpus 1");
    printf("driver    CUDA %d.%d\n", list->driver / 1000, list->driver % 1000 / 10);
    char lacks[300];
    for (uint32_t i = 0; i < list->count; i++)
        if (info_driver_lacks(&list->devices[i], i, list->driver, version_cuda(), lacks,
                              sizeof lacks)) {
            info_advise(a, "(%s)", lacks);
            break;
        }
    if (!gpu_with_mma(list))
        info_advise(a, "(no GPU of compute capability 8.0 or up: --exec cuda needs it; --exec host "
                       "runs)");
    else if (!gpu_hoppers(list))
        info_advise(a, "(no Hopper GPU: --exec cuda multiplies on engine mma; FP8 from compute "
                       "capability 8.9 on)");
#ifndef MK_HAVE_CUDA
    if (gpu_with_mma(list))
        info_advise(a, "make CUDA_HOME=/usr/local/cuda       # this build is without CUDA");
#endif
}

static void info_show_nic(const struct nic_info *n)
{
    printf("NIC       %s: %s", n->name,
           n->soft     ? "softnic, always there"
           : *n->state ? n->state
                       : "not to be used");
    if (!n->soft && *n->driver)
        printf(", %s", n->driver);
    if (*n->link_layer)
        printf(", %s, MTU %u", n->link_layer, n->mtu);
    if (n->gbit > 0)
        printf(", %.0f Gbit/s", n->gbit);
    if (*n->network)
        printf(", on %s", n->network);
    if (n->numa_node >= 0)
        printf(", NUMA node %d", n->numa_node);
    if (n->gid_index >= 0 && n->max_message && !n->soft)
        printf(", GID %d (%s %s), queues of %d, %d SGE, messages to %.0f MiB", n->gid_index,
               n->gid_type, n->gid, n->max_wr, n->max_sge, (double)n->max_message / 1048576);
    if (n->efa)
        printf(", EFA's SRD");
    else if (!n->reliable && !n->soft)
        printf(", no RC");
    printf("\n");
}

static void info_show_rails(const struct nic_survey *s, const struct gpu_list *gpus)
{
    const char *buses[GPU_MAX];
    for (uint32_t i = 0; i < gpus->count; i++)
        buses[i] = gpus->devices[i].bus;
    info_rails(stdout, nic_sysfs(), s, buses, gpus->count);
}

static void info_show_nics(const struct nic_survey *s, struct advice *a)
{
    uint32_t real = 0, soft = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        info_show_nic(&s->nics[i]);
        real += !s->nics[i].soft;
        soft += s->nics[i].soft;
        if (*s->nics[i].problem)
            info_advise(a, "(%s: %s)", s->nics[i].name, s->nics[i].problem);
    }
    if (!real)
        printf("NIC       no RDMA device of the kernel%s\n", soft ? "; --nic soft needs none" : "");
    printf("verbs     %s\n", *s->library           ? s->library
                             : *s->library_problem ? s->library_problem
                                                   : "not in this build");
    if (!s->verbs_in_build)
        info_advise(a, "apt-get install libibverbs-dev && make   # this build is without verbs");
    if (*s->soft_problem)
        info_advise(a, "(softnic: %s)", s->soft_problem);
}

/* Its cloud kernels leave rdma_rxe to a package of its own. */
static int info_is_ubuntu(void)
{
    char line[128];
    int found = 0;
    MK_CLOSED FILE *f = fopen("/etc/os-release", "r");
    while (f && fgets(line, sizeof line, f))
        found |= !strcmp(line, "ID=ubuntu\n");
    return found;
}

/* A number out of sysfs, decimal or 0x, 0 where it cannot be read. */
static unsigned info_net_fact(const char *device, const char *file)
{
    char path[320], text[32] = "";
    snprintf(path, sizeof path, "/sys/class/net/%s/%s", device, file);
    MK_CLOSED FILE *f = fopen(path, "r");
    if (f && !fgets(text, sizeof text, f))
        text[0] = 0;
    return (unsigned)strtoul(text, NULL, 0);
}

/* A network device that soft-RoCE can stand on: an Ethernet that is up, one with hardware behind it
 * before others. "DEV" where there is none, for the reader to fill in. */
static void info_choose_netdev(char *name, size_t size)
{
    int best = 0;
    snprintf(name, size, "DEV");
    MK_CLOSED_DIR DIR *d = opendir("/sys/class/net");
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[300];
        unsigned type = info_net_fact(e->d_name, "type"), flags = info_net_fact(e->d_name, "flags");
        snprintf(path, sizeof path, "/sys/class/net/%s/device", e->d_name);
        int rank = type != ARPHRD_ETHER || !(flags & IFF_UP) ? 0 : access(path, F_OK) ? 1 : 2;
        if (rank > best) {
            best = rank;
            snprintf(name, size, "%.*s", (int)size - 1, e->d_name);
        }
    }
}

static void info_show_soft_roce(const struct nic_survey *s, struct advice *a)
{
    static const char *const words[] = {"not on this machine", "on disk, not loaded", "loaded"};
    char netdev[256];
    int rxe = 0;
    info_choose_netdev(netdev, sizeof netdev);
    for (uint32_t i = 0; i < s->count; i++)
        rxe += !strcmp(s->nics[i].driver, "rdma_rxe");
    printf("soft-RoCE module rdma_rxe %s, %d rxe device%s; ", words[s->rxe_module], rxe,
           rxe == 1 ? "" : "s");
    if (s->memlock == UINT64_MAX)
        printf("memlock unlimited\n");
    else
        printf("memlock %.1f MB\n", (double)s->memlock / 1e6);
    struct utsname u;
    uname(&u);
    if (s->rxe_module == 0 && info_is_ubuntu())
        info_advise(a, "apt-get install linux-modules-extra-%s   # rdma_rxe, for soft-RoCE",
                    u.release);
    else if (s->rxe_module == 0)
        info_advise(a, "(kernel %s has no module rdma_rxe: soft-RoCE needs another kernel)",
                    u.release);
    if (s->rxe_module == 1)
        info_advise(a, "modprobe crc32_generic; modprobe rdma_rxe   # soft-RoCE");
    if (!rxe && s->rxe_module)
        info_advise(
            a, "rdma link add rxe0 type rxe netdev %s   # a soft-RoCE device; `rdma` is iproute2's",
            netdev);
    if (s->memlock < (uint64_t)1 << 30)
        info_advise(a,
                    "ulimit -l unlimited                  # registered memory is locked: %.1f MB "
                    "are too little for a real or rxe NIC",
                    (double)s->memlock / 1e6);
}

static void info_show_libraries(void)
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
    static const struct option_table table = {
        "info",
        "What this machine has: GPUs, NICs, soft-RoCE, libraries, and what is "
        "missing. Takes no options.",
        NULL, 0, "  mkernel info\n"};
    static struct nic_survey survey;
    static struct gpu_list gpus;
    struct options_found found;
    struct advice advice = {.count = 0};
    int ends = command_options("info", &table, 0, argc, argv, NULL, &found);
    if (ends >= 0)
        return ends;
    info_show_machine();
    info_show_gpus(&gpus, &advice);
    nic_survey(&survey);
    info_show_nics(&survey, &advice);
    info_show_rails(&survey, &gpus);
    info_show_soft_roce(&survey, &advice);
    info_show_libraries();
    char command[128], lacks[300];
    unsigned usable = 0;
    for (uint32_t i = 0; i < gpus.count; i++)
        usable += gpu_has_mma(&gpus.devices[i]) &&
                  !info_driver_lacks(&gpus.devices[i], i, gpus.driver, version_cuda(), lacks,
                                     sizeof lacks);
    info_command(usable, version_cuda(), !*survey.soft_problem, command, sizeof command);
    printf("\nruns here `%s`\n", command);
    if (advice.count)
        printf("would help (as root where it must be):\n");
    for (int i = 0; i < advice.count; i++)
        printf("  %s\n", advice.lines[i]);
    return STATUS_DONE;
}

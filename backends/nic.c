#include "backends/nic.h"
#include "core/base/scoped.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#ifdef MK_HAVE_VERBS
#include "backends/verbs/verbs_device.h"

#include <arpa/inet.h>

static void nic_read_line(const char *path, char *out, size_t size)
{
    MK_CLOSED FILE *f = fopen(path, "re");
    out[0] = '\0';
    if (f && !fgets(out, (int)size, f))
        out[0] = '\0';
    out[strcspn(out, "\n")] = '\0';
}

static const char *nic_state_name(enum ibv_port_state state)
{
    static const char *const names[] = {"no state", "down",   "initialising",
                                        "armed",    "active", "active, deferred"};
    return (unsigned)state < sizeof names / sizeof *names ? names[state] : "unknown";
}

/* Gbit/s of data at the verbs' speed and width codes (InfiniBand specification, PortInfo), without
 * the line coding. */
static double nic_port_gbit(const struct ibv_port_attr *p)
{
    static const double speeds[] = {2, 4, 8, 10, 13.64, 25, 50, 100}; /* by bit: SDR .. NDR */
    int width = p->active_width == 1    ? 1
                : p->active_width == 2  ? 4
                : p->active_width == 4  ? 8
                : p->active_width == 8  ? 12
                : p->active_width == 16 ? 2
                                        : 0;
    for (unsigned bit = 0; bit < sizeof speeds / sizeof *speeds; bit++)
        if (p->active_speed == 1u << bit)
            return speeds[bit] * width;
    return 0;
}

static void nic_describe_gid(struct nic_info *n, const struct verbs_api *api,
                             struct ibv_context *context, const struct ibv_port_attr *port)
{
    int best = 0, ethernet = port->link_layer == IBV_LINK_LAYER_ETHERNET;
    n->gid_index = -1;
    for (int i = 0; i < port->gid_tbl_len && (ethernet || i == 0); i++) {
        union ibv_gid gid;
        uint32_t type;
        if (verbs_query_gid(api, context, (uint8_t)n->port, (uint32_t)i, &gid, &type))
            continue;
        int rank = ethernet ? verbs_gid_rank(&gid, type) : 1;
        if (rank <= best)
            continue;
        best = rank;
        n->gid_index = i;
        inet_ntop(AF_INET6, gid.raw, n->gid, sizeof n->gid);
        snprintf(n->gid_type, sizeof n->gid_type, "%s",
                 type == IBV_GID_TYPE_ROCE_V2   ? "RoCE v2"
                 : type == IBV_GID_TYPE_ROCE_V1 ? "RoCE v1"
                                                : "IB");
    }
    char path[600];
    snprintf(path, sizeof path, "%s/ports/%u/gid_attrs/ndevs/%d", context->device->ibdev_path,
             n->port, n->gid_index);
    if (n->gid_index >= 0)
        nic_read_line(path, n->network, sizeof n->network);
}

static void nic_describe_sysfs(struct nic_info *n, const struct ibv_device *device)
{
    char path[600], text[256];
    snprintf(path, sizeof path, "%s/device/numa_node", device->ibdev_path);
    nic_read_line(path, text, sizeof text);
    n->numa_node = text[0] ? atoi(text) : -1;
    snprintf(path, sizeof path, "%s/device/driver", device->ibdev_path);
    ssize_t length = readlink(path, text, sizeof text - 1);
    text[length > 0 ? length : 0] = '\0';
    const char *slash = strrchr(text, '/');
    if (slash)
        snprintf(n->driver, sizeof n->driver, "%.*s", (int)sizeof n->driver - 1, slash + 1);
    if (!n->driver[0] && !strncmp(device->name, "rxe", 3))
        snprintf(n->driver, sizeof n->driver, "rdma_rxe"); /* it has no parent device */
}

static void nic_describe_ports(struct nic_info *n, const struct verbs_api *api,
                               struct ibv_context *context)
{
    struct ibv_device_attr attr;
    struct ibv_port_attr port;
    if (api->query_device(context, &attr)) {
        snprintf(n->problem, sizeof n->problem, "cannot be queried");
        return;
    }
    n->port = 1;
    for (uint32_t p = 1; p <= attr.phys_port_cnt; p++)
        if (!verbs_query_port(api, context, (uint8_t)p, &port) && port.state == IBV_PORT_ACTIVE) {
            n->port = p;
            n->active = 1;
            break;
        }
    if (verbs_query_port(api, context, (uint8_t)n->port, &port)) {
        snprintf(n->problem, sizeof n->problem, "port %u cannot be queried", n->port);
        return;
    }
    snprintf(n->state, sizeof n->state, "%s", nic_state_name(port.state));
    snprintf(n->link_layer, sizeof n->link_layer, "%s",
             port.link_layer == IBV_LINK_LAYER_ETHERNET     ? "Ethernet"
             : port.link_layer == IBV_LINK_LAYER_INFINIBAND ? "InfiniBand"
                                                            : "other");
    n->mtu = verbs_mtu_bytes(port.active_mtu);
    n->gbit = nic_port_gbit(&port);
    n->lid = port.lid;
    n->max_message = port.max_msg_sz;
    n->max_sge = attr.max_sge;
    n->max_wr = attr.max_qp_wr;
    nic_describe_gid(n, api, context, &port);
    if (!n->active)
        snprintf(n->problem, sizeof n->problem,
                 "no port is active: bring its link or network interface up");
    else if (!n->reliable && !n->efa)
        snprintf(n->problem, sizeof n->problem,
                 "has no RC queue pairs: the verbs fabric cannot use it");
    else if (port.link_layer == IBV_LINK_LAYER_ETHERNET && n->gid_index < 0)
        snprintf(n->problem, sizeof n->problem,
                 "has no GID: give its network interface an address");
}

static void nic_explain_rights(struct nic_info *n, const char *path)
{
    struct stat file;
    const struct group *group = stat(path, &file) ? NULL : getgrgid(file.st_gid);
    const struct passwd *user = getpwuid(geteuid());
    if (group && file.st_gid && (file.st_mode & 060) == 060)
        snprintf(n->problem, sizeof n->problem,
                 "no right to open %s: `usermod -aG %.32s %.32s`, then log in again", path,
                 group->gr_name, user ? user->pw_name : "USER");
    else
        snprintf(n->problem, sizeof n->problem, "no right to open it: `chmod 666 %s`", path);
}

static void nic_explain_open(struct nic_info *n, const struct ibv_device *device, int why)
{
    char path[IBV_SYSFS_NAME_MAX + 32];
    snprintf(path, sizeof path, "/dev/infiniband/%s", device->dev_name);
    if (n->soft) /* no file stands behind it */
        snprintf(n->problem, sizeof n->problem, "cannot be opened: %s", strerror(why));
    else if (access(path, F_OK))
        snprintf(n->problem, sizeof n->problem,
                 "%s is missing: load ib_uverbs, or pass it into the container", path);
    else if (access(path, R_OK | W_OK))
        nic_explain_rights(n, path);
    else
        snprintf(n->problem, sizeof n->problem, "cannot be opened: %s", strerror(why));
}

static void nic_describe(struct nic_info *n, const struct verbs_api *api, struct ibv_device *device,
                         int soft)
{
    memset(n, 0, sizeof *n);
    snprintf(n->name, sizeof n->name, "%.*s", (int)sizeof n->name - 1, device->name);
    n->soft = soft;
    n->gid_index = n->numa_node = -1;
    n->reliable = device->transport_type == IBV_TRANSPORT_IB; /* EFA and usNIC say something else */
    if (!soft)
        nic_describe_sysfs(n, device);
    n->efa = soft ? !n->reliable : !strcmp(n->driver, "efa");
    errno = 0;
    struct ibv_context *context = api->open_device(device);
    if (!context) {
        nic_explain_open(n, device, errno);
        return;
    }
    nic_describe_ports(n, api, context);
    api->close_device(context);
}

/* Appends one library's devices to the survey. Returns 0 or an errno of the listing. */
static int nic_list_devices(struct nic_survey *s, const struct verbs_api *api, int soft)
{
    int count = 0;
    errno = 0;
    struct ibv_device **list = api->get_device_list(&count);
    int why = errno;
    for (int i = 0; list && i < count && s->count < NIC_MAX; i++)
        nic_describe(&s->nics[s->count++], api, list[i], soft);
    if (list)
        api->free_device_list(list);
    return list ? 0 : why;
}

static void nic_survey_system(struct nic_survey *s)
{
    struct verbs_api api;
    s->verbs_in_build = 1;
    if (verbs_api_open(&api, VERBS_SYSTEM, s->library_problem, sizeof s->library_problem))
        return;
    memcpy(s->library, api.path, sizeof s->library);
    int why = nic_list_devices(s, &api, 0);
    if (why && why != ENOSYS && why != ENOENT) /* those two: the kernel has no RDMA at all */
        snprintf(s->library_problem, sizeof s->library_problem, "cannot list devices: %s",
                 strerror(why));
}

static void nic_survey_soft(struct nic_survey *s)
{
    struct verbs_api api;
    if (verbs_api_open(&api, VERBS_SOFT, s->soft_problem, sizeof s->soft_problem))
        return;
    int why = nic_list_devices(s, &api, 1);
    const char *options = why == EINVAL && api.soft_error ? api.soft_error() : "";
    if (*options)
        snprintf(s->soft_problem, sizeof s->soft_problem, "%s", options);
    else if (why)
        snprintf(s->soft_problem, sizeof s->soft_problem, "cannot list devices: %s", strerror(why));
}
#else
static const char without[] = "this build is without verbs: install libibverbs-dev, build again";

static void nic_survey_system(struct nic_survey *s)
{
    memcpy(s->library_problem, without, sizeof without);
}

static void nic_survey_soft(struct nic_survey *s)
{
    memcpy(s->soft_problem, without, sizeof without);
}
#endif

/* 2: loaded or built in and running; 1: on disk; 0: not found. */
static int nic_module_state(const char *name)
{
    char path[600], line[512], file[64];
    struct utsname u;
    snprintf(path, sizeof path, "/sys/module/%s", name);
    if (!access(path, F_OK))
        return 2;
    if (uname(&u))
        return 0;
    snprintf(path, sizeof path, "/lib/modules/%s/modules.dep", u.release);
    snprintf(file, sizeof file, "/%s.ko", name);
    MK_CLOSED FILE *f = fopen(path, "re");
    int found = 0;
    while (f && !found && fgets(line, sizeof line, f)) {
        line[strcspn(line, ":")] = '\0'; /* the module itself; its dependencies follow */
        found = strstr(line, file) != NULL;
    }
    return found;
}

void nic_survey_add(struct nic_survey *s, int soft)
{
    if (soft)
        nic_survey_soft(s);
    else
        nic_survey_system(s);
}

void nic_survey(struct nic_survey *out)
{
    struct rlimit limit;
    memset(out, 0, sizeof *out);
    nic_survey_system(out);
    nic_survey_soft(out);
    out->memlock = getrlimit(RLIMIT_MEMLOCK, &limit) ? 0
                   : limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX
                                                     : limit.rlim_cur;
    out->uverbs_module = nic_module_state("ib_uverbs");
    out->rxe_module = nic_module_state("rdma_rxe");
}

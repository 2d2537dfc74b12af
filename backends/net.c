/* The network of one rank: chooses the NIC, opens the fabric to the other ranks of its rail, and
 * starts the proxy. */
#include "backends/nic.h"
#include "core/scoped.h"
#include "core/sentence.h"
#include "backends/proxy.h"
#include "backends/stage.h"
#include "backends/wall_clock.h"

#ifdef MK_HAVE_VERBS
#include "backends/verbs/verbs_rc.h"
#endif
#ifdef MK_HAVE_EFA
#include "backends/efa/efa.h"
#endif

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef MK_HAVE_VERBS
_Static_assert((int)VERBS_RAILS_MAX == NIC_RAILS_MAX, "what is chosen can be opened");
#endif

#define MAX_MESSAGES ((uint64_t)1 << 20) /* of one rank's log */

struct net {
    struct fabric *fabric;
    struct proxy *proxy;
#ifdef MK_HAVE_VERBS
    struct verbs_api api;
#endif
};

static int net_job_failed(void *context)
{
    return comm_failed(context);
}

static void net_fail_job(void *context, const struct mk_failure *failure)
{
    comm_fail(context, failure);
}

static void net_describe(void *context, uint32_t plan, struct mk_failure *f)
{
    comm_describe(context, plan, f);
}

/* The same local rank of every other node, ascending. */
static uint32_t net_rail_peers(const struct mk_topo *t, uint32_t *peers)
{
    uint32_t count = 0;
    for (uint32_t node = 0; node < t->nodes; node++)
        if (node != mk_node_of(t, t->rank))
            peers[count++] = mk_rank_at(t, node, mk_local_of(t, t->rank));
    return count;
}

#ifdef MK_HAVE_VERBS
typedef int open_fabric_over(void *config, struct fabric **out, const struct stage_memory *memory,
                             char *error, size_t size);

static struct mr_heap net_memory_for(const struct mr_heap *own, const struct stage_memory *memory)
{
    return memory
               ? (struct mr_heap){MK_MEMORY_HOST, memory->base, memory->flag_bytes, memory->bytes}
               : *own;
}

/* Over the heap itself, or over the host memory of a staged fabric. */
static int net_open_verbs(void *context, struct fabric **out, const struct stage_memory *memory,
                          char *error, size_t size)
{
    struct verbs_rc_config c = *(const struct verbs_rc_config *)context;
    c.heap = net_memory_for(&c.heap, memory);
    return verbs_rc_open(out, &c, error, size);
}

/* If the NIC of any rank cannot reach its GPU memory, all ranks stage: both ends of a put must. */
static int net_agree_to_stage(struct mk_comm *comm, int result, int *staged)
{
    uint32_t world = mk_world(&comm->topo);
    int32_t mine = result == -EOPNOTSUPP;
    MK_FREED int32_t *all = calloc(world, sizeof *all);
    if (!all)
        return -ENOMEM;
    int rc = bootstrap_allgather(comm->bootstrap, &mine, all, sizeof mine);
    *staged = 0;
    for (uint32_t i = 0; i < world && !rc; i++)
        *staged |= all[i];
    return rc;
}

static int net_open_any(struct mk_comm *comm, struct net *net, open_fabric_over *open, void *config,
                        const uint32_t *peers, uint32_t count)
{
    char *error = comm->error;
    size_t size = sizeof comm->error;
    int staged = 0, rc = open(config, &net->fabric, NULL, error, size);
    if (comm->heap.memory == MK_MEMORY_HOST)
        return rc;
    int agreed = net_agree_to_stage(comm, rc, &staged);
    if (agreed || !staged)
        return agreed ? agreed : rc;
    if (rc && rc != -EOPNOTSUPP)
        return rc;
    if (net->fabric)
        net->fabric->ops->close(net->fabric);
    net->fabric = NULL;
    struct stage_config stage = {.ops = mr_provider(comm->heap.memory),
                                 .heap = comm->heap,
                                 .rank = comm->topo.rank,
                                 .world = mk_world(&comm->topo),
                                 .peers = peers,
                                 .peer_count = count,
                                 .open_inner = open,
                                 .context = config};
    return stage_open(&net->fabric, &stage, error, size);
}
#endif

#ifdef MK_HAVE_VERBS
/* The NICs of this rank. The choice depends on the places of all ranks of the node, so ranks
 * exchange them. */
static int net_choose_nics(struct mk_comm *comm, int efa, uint32_t rails, struct nic_choice *out)
{
    const struct mk_topo *t = &comm->topo;
    const struct mr_memory_ops *owner = mr_provider(comm->heap.memory);
    struct nic_place mine;
    MK_FREED struct nic_place *all = calloc(mk_world(t), sizeof *all);
    char gpu[sizeof mine.gpu] = "";
    if (!all)
        return -ENOMEM;
    if (owner && owner->bus_id && owner->bus_id(gpu, sizeof gpu))
        gpu[0] = '\0';
    nic_own_place(&mine, gpu);
    int rc = bootstrap_allgather(comm->bootstrap, &mine, all, sizeof mine);
    struct nic_request request = {.names = comm->config.nic,
                                  .efa = efa,
                                  .rails = rails,
                                  .local_rank = mk_local_of(t, t->rank),
                                  .local_ranks = t->gpus,
                                  .places = all + mk_rank_at(t, mk_node_of(t, t->rank), 0)};
    rc = rc ? rc : nic_choose(out, &request, comm->error, sizeof comm->error);
    return rc;
}
#endif

#ifdef MK_HAVE_EFA
static int net_open_srd(void *context, struct fabric **out, const struct stage_memory *memory,
                        char *error, size_t size)
{
    struct efa_config c = *(const struct efa_config *)context;
    c.heap = net_memory_for(&c.heap, memory);
    return efa_open(out, &c, error, size);
}

static int net_open_efa(struct mk_comm *comm, struct net *net, const uint32_t *peers,
                        uint32_t count)
{
    struct nic_choice nic;
    struct efa_config c = {.rank = comm->topo.rank,
                           .world = mk_world(&comm->topo),
                           .peers = peers,
                           .peer_count = count};
    c.heap = (struct mr_heap){comm->heap.memory, comm->heap.base, comm->heap.flag_bytes,
                              comm->heap.bytes};
    efa_options_default(&c.options);
    int rc = efa_options_parse(&c.options, getenv("MK_EFA"), comm->error, sizeof comm->error);
    rc = rc ? rc : net_choose_nics(comm, 1, comm->config.rails, &nic);
    if (rc)
        return rc;
    c.provider = nic.soft ? VERBS_SOFT : VERBS_SYSTEM;
    c.device_count = nic.count;
    memcpy(c.devices, nic.devices, sizeof nic.devices);
    return net_open_any(comm, net, net_open_srd, &c, peers, count);
}
#endif

static int net_open_fabric(struct mk_comm *comm, struct net *net, const uint32_t *peers,
                           uint32_t count)
{
    char *error = comm->error;
    size_t size = sizeof comm->error;
#ifdef MK_HAVE_EFA
    if (!strcmp(comm->config.fabric, "efa"))
        return net_open_efa(comm, net, peers, count);
#endif
    if (strcmp(comm->config.fabric, "verbs"))
        return mk_fail(-ENODEV, error, size,
                       "this build has no fabric %s: verbs, and efa where <infiniband/efadv.h> is",
                       comm->config.fabric);
#ifdef MK_HAVE_VERBS
    struct nic_choice nic;
    struct verbs_rc_config c = {.api = &net->api,
                                .rank = comm->topo.rank,
                                .world = mk_world(&comm->topo),
                                .peers = peers,
                                .peer_count = count};
    c.heap = (struct mr_heap){comm->heap.memory, comm->heap.base, comm->heap.flag_bytes,
                              comm->heap.bytes};
    verbs_options_default(&c.options);
    int rc = verbs_options_parse(&c.options, getenv("MK_VERBS"), error, size);
    rc = rc ? rc : net_choose_nics(comm, 0, comm->config.rails, &nic);
    rc = rc ? rc : verbs_api_open(&net->api, nic.soft ? VERBS_SOFT : VERBS_SYSTEM, error, size);
    if (rc)
        return rc;
    c.device_count = nic.count;
    for (uint32_t i = 0; i < nic.count; i++)
        c.devices[i] = nic.devices[i];
    return net_open_any(comm, net, net_open_verbs, &c, peers, count);
#else
    return mk_fail(-ENODEV, error, size,
                   "this build is without verbs: install libibverbs-dev and build again");
#endif
}

/* A GPU's driver may make a NIC's first message wait for the kernel that waits for that message. So
 * no rank starts one before every rank has reached every other. */
static int net_warm_up(struct mk_comm *comm, struct fabric *f)
{
    uint64_t deadline = wall_clock(NULL) + comm->config.timeout_ns;
    int rc;
    while ((rc = f->ops->warm_up(f, comm->error, sizeof comm->error)) == -EAGAIN) {
        if (comm_failed(comm))
            return -ECANCELED;
        if (wall_clock(NULL) > deadline)
            return mk_fail(-ETIMEDOUT, comm->error, sizeof comm->error,
                           "not all ranks of the rail can be reached: no answer in %.1f s",
                           (double)comm->config.timeout_ns / 1e9);
        sched_yield();
    }
    return rc ? rc : bootstrap_barrier(comm->bootstrap);
}

static int net_connect_rail(struct mk_comm *comm, struct net *net, const uint32_t *peers,
                            uint32_t count)
{
    struct fabric *f = net->fabric;
    size_t bytes = f->ops->address_bytes(f);
    MK_FREED char *mine = calloc(1, bytes), *all = calloc(mk_world(&comm->topo), bytes);
    int rc = mine && all ? 0 : -ENOMEM;
    if (!rc) {
        f->ops->address(f, mine);
        rc = bootstrap_allgather(comm->bootstrap, mine, all, bytes);
    }
    rc = rc ? rc : f->ops->connect(f, all, peers, count, comm->error, sizeof comm->error);
    if (!rc) /* an EFA device refuses writes of a sender that it has no address handle for yet */
        rc = bootstrap_barrier(comm->bootstrap);
    if (!rc && f->ops->warm_up && comm->heap.memory != MK_MEMORY_HOST)
        rc = net_warm_up(comm, f);
    return rc;
}

static int net_start_proxy(struct mk_comm *comm, struct net *net)
{
    if (comm->config.trace_events) {
        uint64_t capacity =
            (uint64_t)comm->config.trace_events * (comm->ring_count ? comm->ring_count : 1);
        if (capacity > MAX_MESSAGES)
            capacity = MAX_MESSAGES;
        comm->messages = (struct mk_message_log){
            .messages = calloc(capacity, sizeof(struct mk_message)), .capacity = capacity};
        if (!comm->messages.messages)
            return -ENOMEM;
    }
    struct proxy_config config = {.fabric = net->fabric,
                                  .rings = comm->rings,
                                  .ring_count = comm->ring_count,
                                  .timeout_ns = comm->config.timeout_ns,
                                  .topo = comm->topo,
                                  .heap_bytes = comm->heap.bytes,
                                  .heap_flags = comm->heap.flag_bytes / 8,
                                  .messages = comm->messages.messages ? &comm->messages : NULL,
                                  .now = wall_clock,
                                  .failed = net_job_failed,
                                  .fail = net_fail_job,
                                  .describe = net_describe,
                                  .context = comm};
    int rc = proxy_create(&net->proxy, &config);
    return rc ? rc : proxy_start(net->proxy);
}

static int net_open(struct mk_comm *comm)
{
    struct net *net = calloc(1, sizeof *net);
    uint32_t *peers = calloc(comm->topo.nodes, sizeof *peers);
    int rc = net && peers ? 0 : -ENOMEM;
    comm->net_state = net;
    comm->error[0] = '\0';
    if (!rc) {
        uint32_t count = net_rail_peers(&comm->topo, peers);
        rc = net_open_fabric(comm, net, peers, count);
        rc = rc ? rc : net_connect_rail(comm, net, peers, count);
    }
    rc = rc ? rc : net_start_proxy(comm, net);
    if (rc && !comm->error[0] && !comm_failed(comm))
        snprintf(comm->error, sizeof comm->error, "cannot start the network: %s", strerror(-rc));
    free(peers);
    return rc; /* net_close undoes the steps before */
}

static void net_close(struct mk_comm *comm)
{
    struct net *net = comm->net_state;
    if (!net)
        return;
    if (net->proxy) {
        proxy_stop(net->proxy);
        if (!comm_failed(comm))
            bootstrap_barrier(
                comm->bootstrap); /* the peers' last puts still want this NIC's acknowledgement */
    }
    if (net->fabric)
        net->fabric->ops->close(net->fabric);
    /* A GPU's memory must not be freed while another process still has it mapped (softnic's way to
     * read it). */
    if (net->proxy && comm->heap.memory != MK_MEMORY_HOST && !comm_failed(comm))
        bootstrap_barrier(comm->bootstrap);
    proxy_destroy(net->proxy);
    free(comm->messages.messages);
    memset(&comm->messages, 0, sizeof comm->messages);
    free(net);
    comm->net_state = NULL;
}

const struct mk_net_ops net_fabric = {.open = net_open, .close = net_close};

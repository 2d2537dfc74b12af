/* The network of one rank: chooses the NIC, opens the fabric to the other ranks of its rail, and
 * starts the proxy. */
#include "backends/nic.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "backends/proxy.h"
#include "backends/stage.h"
#include "backends/wall_clock.h"

#ifdef MK_HAVE_VERBS
#include "backends/nic_end.h"
#endif

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_MESSAGES ((uint64_t)1 << 20) /* of one rank's log */

struct net {
    struct fabric *fabric;
    struct proxy *proxy;
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
struct net_opening {
    struct nic_end end;
    int efa;
};

/* Over the heap itself, or over the host memory of a staged fabric. */
static int net_open_over(void *context, struct fabric **out, const struct stage_memory *memory,
                         char *error, size_t size)
{
    const struct net_opening *o = context;
    struct nic_end end = o->end;
    if (memory)
        end.heap =
            (struct mr_heap){MK_MEMORY_HOST, memory->base, memory->flag_bytes, memory->bytes};
    return nic_end_open(out, &end, o->efa, getenv(o->efa ? "MK_EFA" : "MK_VERBS"), error, size);
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

static int net_open_any(struct mk_comm *comm, struct net *net, struct net_opening *opening)
{
    char *error = comm->error;
    size_t size = sizeof comm->error;
    int staged = 0, rc = net_open_over(opening, &net->fabric, NULL, error, size);
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
                                 .peers = opening->end.peers,
                                 .peer_count = opening->end.peer_count,
                                 .open_inner = net_open_over,
                                 .context = opening};
    return stage_open(&net->fabric, &stage, error, size);
}

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

static int net_open_fabric(struct mk_comm *comm, struct net *net, const uint32_t *peers,
                           uint32_t count)
{
    int known = !strcmp(comm->config.fabric, "verbs");
#ifdef MK_HAVE_EFA
    known |= !strcmp(comm->config.fabric, "efa");
#endif
    if (!known)
        return mk_fail(-ENODEV, comm->error, sizeof comm->error,
                       "this build has no fabric %s: verbs, and efa where <infiniband/efadv.h> is",
                       comm->config.fabric);
#ifdef MK_HAVE_VERBS
    struct net_opening o = {.end = {.heap = {comm->heap.memory, comm->heap.base,
                                             comm->heap.flag_bytes, comm->heap.bytes},
                                    .rank = comm->topo.rank,
                                    .world = mk_world(&comm->topo),
                                    .peers = peers,
                                    .peer_count = count},
                            .efa = !strcmp(comm->config.fabric, "efa")};
    int rc = net_choose_nics(comm, o.efa, comm->config.rails, &o.end.nics);
    return rc ? rc : net_open_any(comm, net, &o);
#else
    return mk_fail(-ENODEV, comm->error, sizeof comm->error,
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
    MK_FREED uint32_t *peers = calloc(comm->topo.nodes, sizeof *peers);
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

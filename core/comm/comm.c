/* The communicator: opens its parts in order, closes them in reverse, and gives every failure one
 * sentence. */
#include "core/base/c_numbers.h"
#include "core/comm/agree.h"
#include "core/comm/comm_parts.h"
#include "core/base/interrupt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A build without a part (a test of core alone) still links; opening names the missing part. */
#pragma weak exec_host
#pragma weak net_fabric
#ifdef MK_HAVE_EMULATION
#pragma weak exec_emulated
#endif
#ifdef MK_HAVE_CUDA
#pragma weak exec_cuda
#endif

/* ---- failures ---- */

void comm_fail(struct mk_comm *comm, const struct mk_failure *failure)
{
    struct mk_failure f = *failure;
    f.relay = f.kind == MK_FAIL_TIMEOUT && f.op < MK_OPS && f.producer < mk_world(&comm->topo)
                  ? mk_relay_of(&comm->topo, f.producer)
                  : UINT32_MAX;
    bootstrap_fail(comm->bootstrap, &f);
}

int comm_failed(struct mk_comm *comm)
{
    return comm->bootstrap && bootstrap_failure(comm->bootstrap, NULL);
}

int comm_tell_failure(struct mk_comm *comm)
{
    if (!comm->bootstrap || !bootstrap_settle(comm->bootstrap, &comm->failure))
        return 0;
    failure_sentence(&comm->failure, comm->error, sizeof comm->error);
    return -EIO;
}

void mk_comm_abort(struct mk_comm *comm, const char *why)
{
    if (!comm->bootstrap)
        return;
    struct mk_failure f;
    memset(&f, 0, sizeof f);
    f.kind = MK_FAIL_SETUP;
    f.rank = f.producer = comm->topo.rank;
    f.op = f.cta = f.role = f.flag = f.chunk = UINT32_MAX;
    snprintf(f.detail, sizeof f.detail, "%s", why);
    comm_fail(comm, &f);
}

int comm_give_up(struct mk_comm *comm, int result)
{
    if (comm_failed(comm)) {
        comm_tell_failure(comm);
        return result;
    }
    mk_comm_abort(comm, comm->error[0] ? comm->error : strerror(-result));
    if (!comm->error[0])
        comm_tell_failure(comm);
    return result;
}

int comm_interrupted(struct mk_comm *comm)
{
    if (comm_failed(comm) || !mk_interrupted())
        return 0;
    mk_comm_abort(comm, "it was interrupted");
    return 1;
}

/* ---- open and close ---- */

static int comm_fill_config(struct mk_comm *comm, const struct mk_config *config)
{
    struct mk_config *c = &comm->config;
    *c = *config;
    c->host[sizeof c->host - 1] = c->token[sizeof c->token - 1] = '\0';
    c->fabric[sizeof c->fabric - 1] = c->nic[sizeof c->nic - 1] = '\0';
    c->tuning[sizeof c->tuning - 1] = '\0';
    uint64_t world = (uint64_t)c->nodes * c->gpus;
    if (!c->nodes || !c->gpus || c->gpus > MK_MAX_LOCAL || world > MK_MAX_RANKS || c->rank >= world)
        return comm_refuse(
            comm, -EINVAL,
            "rank %u on %u nodes of %u ranks: 1 to %u ranks a node and at most %u in all", c->rank,
            c->nodes, c->gpus, MK_MAX_LOCAL, MK_MAX_RANKS);
    if ((unsigned)c->exec >= MK_EXECS)
        return comm_refuse(comm, -EINVAL, "there is no executor number %d", (int)c->exec);
    if (c->device && c->exec != MK_EXEC_CUDA)
        return comm_refuse(comm, -EINVAL, "device says which GPU a rank takes: it is of exec=cuda");
    if (!c->token[0] && world > 1)
        return comm_refuse(comm, -EINVAL, "a job of %lu ranks needs a token", world);
    if (!c->token[0])
        snprintf(c->token, sizeof c->token, "alone-%ld-%ld", (long)getpid(), time(NULL));
    int cuda = c->exec == MK_EXEC_CUDA;
    if (!c->fabric[0])
        snprintf(c->fabric, sizeof c->fabric, "verbs");
    if (!c->heap_bytes)
        c->heap_bytes = cuda ? (uint64_t)1 << 30 : (uint64_t)256 << 20;
    if (!c->flag_bytes)
        /* the efa fabric names no more */
        c->flag_bytes = cuda ? (uint64_t)8 << 20 : (uint64_t)1 << 20;
    if (!c->timeout_ns)
        c->timeout_ns = MK_TIMEOUT_NS;
    if (c->timeout_ns > COMM_LONGEST_NS)
        c->timeout_ns = COMM_LONGEST_NS;
    if (c->flag_bytes / 8 > MK_CMD_MAX_FLAG + 1ull ||
        c->heap_bytes > MK_CMD_MAX_OFFSET - c->flag_bytes - 2 * COMM_PAGE)
        return comm_refuse(
            comm, -EINVAL,
            "%lu bytes of flags and %lu of heap: commands reach %u flags and %lu bytes",
            c->flag_bytes, c->heap_bytes, MK_CMD_MAX_FLAG, MK_CMD_MAX_OFFSET);
    c->heap_bytes = mk_round_up(c->heap_bytes, COMM_PAGE);
    c->flag_bytes = mk_round_up(c->flag_bytes, COMM_PAGE);
    comm->topo = (struct mk_topo){c->nodes, c->gpus, c->rank};
    comm->heap.memory = cuda ? MK_MEMORY_CUDA : MK_MEMORY_HOST;
    comm->heap.flag_bytes = c->flag_bytes;
    comm->heap.bytes = c->flag_bytes + c->heap_bytes;
    if (ranges_open(&comm->free_bytes, c->flag_bytes, c->heap_bytes) ||
        ranges_open(&comm->free_flags, 0, c->flag_bytes / 8))
        return comm_refuse(comm, -ENOMEM, "out of memory");
    return tuning_open(&comm->tuning, c->tuning, 0, comm->error, sizeof comm->error);
}

/* Fields that must be the same on all ranks: the caller's, then the configuration's. */
struct alike {
    const struct agree_field *fields;
    uint32_t count;
};

static int comm_join(struct mk_comm *comm, const struct alike *alike)
{
    const struct mk_config *c = &comm->config;
    struct bootstrap_config b = {.rank = c->rank,
                                 .world = mk_world(&comm->topo),
                                 .port = c->port,
                                 .listen_fd = c->listen_fd,
                                 .timeout_ns = c->timeout_ns};
    memcpy(b.host, c->host, sizeof b.host);
    memcpy(b.token, c->token, sizeof b.token);
    int result = bootstrap_join(&comm->bootstrap, &b, comm->error, sizeof comm->error);
    if (result)
        return result;
    comm->stage = STAGE_JOINED;
    const struct agree_field own[] = {
        {"executor", (uint64_t)c->exec, 0},
        {"nodes", c->nodes, 0},
        {"ranks per node", c->gpus, 0},
        {"set of tuned plans", tuning_hash(&comm->tuning, c->nodes, c->gpus), 1},
        {"heap bytes", c->heap_bytes, 0},
        {"flag bytes", c->flag_bytes, 0},
        {"timeout in ns", c->timeout_ns, 0},
        {"fabric", agree_hash(c->fabric), 1},
    };
    struct agree_field fields[AGREE_FIELDS];
    uint32_t count = alike->count < COMM_FIELDS ? alike->count : COMM_FIELDS;
    _Static_assert(COMM_FIELDS + sizeof own / sizeof *own <= AGREE_FIELDS,
                   "a ballot holds them all");
    if (count)
        memcpy(fields, alike->fields, count * sizeof *fields);
    memcpy(fields + count, own, sizeof own);
    result = agree(comm->bootstrap, c->rank, b.world, "was started with", fields,
                   count + sizeof own / sizeof *own, 0, comm->error, sizeof comm->error);
    if (comm_failed(comm))
        /* a difference is known to all ranks; a failure has a sentence of its own */
        comm_tell_failure(comm);
    return result;
}

static int comm_open_parts(struct mk_comm *comm, const struct mk_exec_ops *exec,
                           const struct mk_net_ops *net)
{
    comm->exec = exec;
    comm->stage = STAGE_EXEC;
    int result = exec->open(comm);
    if (result)
        return comm_give_up(comm, result);
    if (comm->topo.nodes > 1) {
        comm->net = net;
        comm->stage = STAGE_NET;
        result = net->open(comm);
        if (result)
            return comm_give_up(comm, result);
    }
    /* From here any rank may be written to by any other. */
    result = bootstrap_barrier(comm->bootstrap);
    result = result ? result : comm_watch_start(comm);
    if (result)
        return comm_give_up(comm, result);
    comm->stage = STAGE_OPEN;
    comm->error[0] = '\0';
    return 0;
}

static int open_alike(struct mk_comm **out, const struct mk_config *config,
                      const struct mk_exec_ops *exec, const struct mk_net_ops *net,
                      const struct alike *alike)
{
    MK_C_NUMBERS;
    struct mk_comm *comm = *out = calloc(1, sizeof *comm);
    if (!comm)
        return -ENOMEM;
    pthread_mutex_init(&comm->plans_lock, NULL);
    int result = comm_fill_config(comm, config);
    if (result)
        return result;
    if (!exec)
        return comm_refuse(comm, -ENODEV, "this build has no %s executor",
                           plan_execs[comm->config.exec]);
    if (!net && comm->topo.nodes > 1)
        return comm_refuse(comm, -ENODEV, "this build has no network, which %u nodes need",
                           comm->topo.nodes);
    result = comm_join(comm, alike);
    return result ? result : comm_open_parts(comm, exec, net);
}

int comm_open_with(struct mk_comm **out, const struct mk_config *config,
                   const struct mk_exec_ops *exec, const struct mk_net_ops *net)
{
    return open_alike(out, config, exec, net, &(struct alike){NULL, 0});
}

static const struct mk_exec_ops *comm_choose_exec(const struct mk_config *config)
{
    if (config->exec == MK_EXEC_HOST)
        return &exec_host;
#ifdef MK_HAVE_EMULATION
    if (config->exec == MK_EXEC_EMULATED)
        return &exec_emulated;
#endif
#ifdef MK_HAVE_CUDA
    if (config->exec == MK_EXEC_CUDA)
        return &exec_cuda;
#endif
    return NULL;
}

/* A program that was compiled with another header may have a config of another shape: nothing of it
 * is read but its version. */
static int comm_refuse_version(struct mk_comm **out, uint32_t version)
{
    struct mk_comm *comm = *out = calloc(1, sizeof *comm);
    if (!comm)
        return -ENOMEM;
    if (version < 100 || version >= 1000000)
        return comm_refuse(comm, -EINVAL, "config.version is %u: set it to MK_VERSION_NUMBER",
                           version);
    return comm_refuse(comm, -EINVAL,
                       "this program was compiled with mkernel.h %u.%u and runs with libmkernel "
                       "%s: compile it with this library's header",
                       version / 10000, version / 100 % 100, MK_VERSION);
}

int mk_comm_open(struct mk_comm **out, const struct mk_config *config)
{
    if (config->version / 100 != MK_VERSION_NUMBER / 100) /* patches change no declaration */
        return comm_refuse_version(out, config->version);
    struct mk_config c = *config;
    if (c.listen_fd == 0)
        c.listen_fd = -1; /* standard input is no listener */
    if (!c.host[0])
        snprintf(c.host, sizeof c.host, "127.0.0.1");
    return comm_open_with(out, &c, comm_choose_exec(&c), &net_fabric);
}

int comm_open_alike(struct mk_comm **out, const struct mk_config *config,
                    const struct agree_field *fields, uint32_t count)
{
    return open_alike(out, config, comm_choose_exec(config), &net_fabric,
                      &(struct alike){fields, count});
}

void mk_comm_close(struct mk_comm *comm)
{
    if (!comm)
        return;
    comm_calls(comm, COMM_CALL_CLOSE, MK_OPS);
    if (comm->stage == STAGE_OPEN && !comm_failed(comm))
        /* peers may still read this heap; a failure ends the wait, and so do we */
        bootstrap_barrier(comm->bootstrap);
    comm_watch_stop(comm);
    if (comm->stage >= STAGE_NET && comm->net)
        comm->net->close(comm);
    if (comm->stage >= STAGE_EXEC)
        comm->exec->close(comm);
    bootstrap_leave(comm->bootstrap);
    for (uint32_t i = 0; i < comm->plan_count; i++)
        free(comm->plans[i]); /* the handle's first member */
    ranges_close(&comm->free_bytes);
    ranges_close(&comm->free_flags);
    tuning_close(&comm->tuning);
    free(comm->trace_state);
    free(comm);
}

const char *mk_error(const struct mk_comm *comm)
{
    return comm ? comm->error : "out of memory";
}

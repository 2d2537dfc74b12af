/* The communicator: opens its parts in order, closes them in reverse, and gives every failure one sentence.
 */
#include "core/comm.h"
#include "core/agree.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A build without a part (a test of core alone) still links; opening says what is missing. */
#pragma weak exec_host
#pragma weak net_fabric
#ifdef MK_HAVE_CUDA
#pragma weak exec_cuda
#endif

#define PAGE 4096u

/* How far comm_open came: what close has to undo. */
enum stage { STAGE_NONE, STAGE_JOINED, STAGE_EXEC, STAGE_NET, STAGE_OPEN };

/* What the public handle of a plan is. */
struct plan_handle {
    struct mk_plan plan; /* first */
    struct mk_comm *comm;
};

__attribute__((format(printf, 3, 4))) static int refuse(struct mk_comm *comm, int error, const char *format,
                                                        ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(comm->error, sizeof comm->error, format, args);
    va_end(args);
    return error;
}

/* ---- failures ---- */

void comm_fail(struct mk_comm *comm, const struct mk_failure *failure)
{
    bootstrap_fail(comm->bootstrap, failure);
}

int comm_failed(struct mk_comm *comm)
{
    return comm->bootstrap && bootstrap_failure(comm->bootstrap, NULL);
}

/* The job has failed: takes the sentence that every rank says. */
static int tell_failure(struct mk_comm *comm)
{
    if (!comm->bootstrap || !bootstrap_settle(comm->bootstrap, &comm->failure))
        return 0;
    failure_sentence(&comm->failure, comm->error, sizeof comm->error);
    return -EIO;
}

/* A part of this rank said no, in comm->error. The others must not wait for it. */
static int give_up(struct mk_comm *comm, int result)
{
    if (comm_failed(comm)) {
        tell_failure(comm);
        return result;
    }
    struct mk_failure f;
    memset(&f, 0, sizeof f);
    f.kind = MK_FAIL_SETUP;
    f.rank = f.producer = comm->topo.rank;
    f.op = f.cta = f.role = f.flag = f.chunk = UINT32_MAX;
    snprintf(f.detail, sizeof f.detail, "%.*s", (int)sizeof f.detail - 1,
             comm->error[0] ? comm->error : strerror(-result));
    comm_fail(comm, &f);
    if (!comm->error[0])
        tell_failure(comm);
    return result;
}

/* ---- open and close ---- */

static int fill_config(struct mk_comm *comm, const struct mk_config *config)
{
    struct mk_config *c = &comm->config;
    *c = *config;
    c->host[sizeof c->host - 1] = c->token[sizeof c->token - 1] = '\0';
    c->fabric[sizeof c->fabric - 1] = c->nic[sizeof c->nic - 1] = '\0';
    c->tuning[sizeof c->tuning - 1] = '\0';
    uint64_t world = (uint64_t)c->nodes * c->gpus;
    if (!c->nodes || !c->gpus || c->gpus > MK_MAX_LOCAL || world > MK_MAX_RANKS || c->rank >= world)
        return refuse(comm, -EINVAL,
                      "rank %u on %u nodes of %u ranks: 1 to %u ranks a node and at most %u in all", c->rank,
                      c->nodes, c->gpus, MK_MAX_LOCAL, MK_MAX_RANKS);
    if ((unsigned)c->exec >= MK_EXECS)
        return refuse(comm, -EINVAL, "there is no executor number %d", (int)c->exec);
    if (!c->token[0] && world > 1)
        return refuse(comm, -EINVAL, "a job of %llu ranks needs a token", (unsigned long long)world);
    if (!c->token[0])
        snprintf(c->token, sizeof c->token, "alone-%ld-%lld", (long)getpid(), (long long)time(NULL));
    int cuda = c->exec == MK_EXEC_CUDA;
    if (!c->fabric[0])
        snprintf(c->fabric, sizeof c->fabric, "verbs");
    if (!c->heap_bytes)
        c->heap_bytes = cuda ? (uint64_t)1 << 30 : (uint64_t)256 << 20;
    if (!c->flag_bytes)
        c->flag_bytes = cuda ? (uint64_t)16 << 20 : (uint64_t)1 << 20;
    if (!c->timeout_ns)
        c->timeout_ns = MK_TIMEOUT_NS;
    if (c->flag_bytes / 8 > MK_CMD_MAX_FLAG + 1ull ||
        c->heap_bytes > MK_CMD_MAX_OFFSET - c->flag_bytes - 2 * PAGE)
        return refuse(comm, -EINVAL,
                      "%llu bytes of flags and %llu of heap: commands reach %u flags and %llu bytes",
                      (unsigned long long)c->flag_bytes, (unsigned long long)c->heap_bytes, MK_CMD_MAX_FLAG,
                      (unsigned long long)MK_CMD_MAX_OFFSET);
    c->heap_bytes = mk_round_up(c->heap_bytes, PAGE);
    c->flag_bytes = mk_round_up(c->flag_bytes, PAGE);
    comm->topo = (struct mk_topo){c->nodes, c->gpus, c->rank};
    comm->heap.memory = cuda ? MK_MEMORY_CUDA : MK_MEMORY_HOST;
    comm->heap.flag_bytes = comm->heap.next_data = c->flag_bytes;
    comm->heap.bytes = c->flag_bytes + c->heap_bytes;
    return tuning_open(&comm->tuning, c->tuning, 0, comm->error, sizeof comm->error);
}

static int join(struct mk_comm *comm)
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
    const struct agree_field fields[] = {
        {"executor", (uint64_t)c->exec, 0},   {"nodes", c->nodes, 0},
        {"ranks per node", c->gpus, 0},       {"set of tuned plans", tuning_hash(&comm->tuning, c->nodes, c->gpus), 1},
        {"heap bytes", c->heap_bytes, 0},
        {"flag bytes", c->flag_bytes, 0},     {"timeout in ns", c->timeout_ns, 0},
        {"fabric", agree_hash(c->fabric), 1},
    };
    result = agree(comm->bootstrap, c->rank, b.world, "was started with", fields,
                   sizeof fields / sizeof *fields, 0, comm->error, sizeof comm->error);
    if (comm_failed(comm))
        tell_failure(comm); /* what differs is known to all; a failure has a sentence of its own */
    return result;
}

static int open_parts(struct mk_comm *comm, const struct mk_exec_ops *exec, const struct mk_net_ops *net)
{
    comm->exec = exec;
    comm->stage = STAGE_EXEC;
    int result = exec->open(comm);
    if (result)
        return give_up(comm, result);
    if (comm->topo.nodes > 1) {
        comm->net = net;
        comm->stage = STAGE_NET;
        result = net->open(comm);
        if (result)
            return give_up(comm, result);
    }
    /* From here any rank may be written to by any other. */
    result = bootstrap_barrier(comm->bootstrap);
    if (result)
        return give_up(comm, result);
    comm->stage = STAGE_OPEN;
    comm->error[0] = '\0';
    return 0;
}

int comm_open_with(struct mk_comm **out, const struct mk_config *config, const struct mk_exec_ops *exec,
                   const struct mk_net_ops *net)
{
    struct mk_comm *comm = *out = calloc(1, sizeof *comm);
    if (!comm)
        return -ENOMEM;
    int result = fill_config(comm, config);
    if (result)
        return result;
    if (!exec)
        return refuse(comm, -ENODEV, "this build has no %s executor",
                      comm->config.exec == MK_EXEC_CUDA ? "cuda" : "host");
    if (!net && comm->topo.nodes > 1)
        return refuse(comm, -ENODEV, "this build has no network, which %u nodes need", comm->topo.nodes);
    result = join(comm);
    return result ? result : open_parts(comm, exec, net);
}

static const struct mk_exec_ops *choose_exec(const struct mk_config *config)
{
    if (config->exec == MK_EXEC_HOST)
        return &exec_host;
#ifdef MK_HAVE_CUDA
    if (config->exec == MK_EXEC_CUDA)
        return &exec_cuda;
#endif
    return NULL;
}

int mk_comm_open(struct mk_comm **out, const struct mk_config *config)
{
    return comm_open_with(out, config, choose_exec(config), &net_fabric);
}

void mk_comm_close(struct mk_comm *comm)
{
    if (!comm)
        return;
    if (comm->stage == STAGE_OPEN && !comm_failed(comm))
        bootstrap_barrier(
            comm->bootstrap); /* peers may still read this heap; a failure ends the wait, and so do we */
    if (comm->stage >= STAGE_NET && comm->net)
        comm->net->close(comm);
    if (comm->stage >= STAGE_EXEC)
        comm->exec->close(comm);
    bootstrap_leave(comm->bootstrap);
    for (uint32_t i = 0; i < comm->plan_count; i++)
        free(comm->plans[i]); /* the handle's first member */
    tuning_close(&comm->tuning);
    free(comm);
}

const char *mk_error(const struct mk_comm *comm)
{
    return comm ? comm->error : "out of memory";
}

/* ---- heap and plans ---- */

void *mk_heap_alloc(struct mk_comm *comm, uint64_t bytes, uint64_t *offset)
{
    struct mk_heap *h = &comm->heap;
    uint64_t first = mk_round_up(h->next_data, MK_HEAP_UNIT);
    if (comm->stage != STAGE_OPEN || first > h->bytes || bytes > h->bytes - first) {
        refuse(comm, -ENOSPC,
               "%llu bytes of the symmetric heap: %llu of %llu are free; open it with more heap_bytes",
               (unsigned long long)bytes, (unsigned long long)(first < h->bytes ? h->bytes - first : 0),
               (unsigned long long)(h->bytes - h->flag_bytes));
        return NULL;
    }
    h->next_data = first + bytes;
    *offset = first;
    return (uint8_t *)h->base + first;
}

static int check_room(struct mk_comm *comm, const struct mk_plan *p)
{
    const struct mk_heap *h = &comm->heap;
    const struct mk_problem *q = &p->problem;
    uint64_t flags = h->flag_bytes / 8;
    if (p->flag_base + (uint64_t)p->flags > flags)
        return refuse(comm, -ENOSPC,
                      "%s needs %u flags and %llu of %llu are free: open the communicator with flag_bytes of "
                      "at least %llu",
                      plan_op_name(q->op), p->flags, (unsigned long long)(flags - p->flag_base),
                      (unsigned long long)flags,
                      (unsigned long long)mk_round_up((p->flag_base + (uint64_t)p->flags) * 8, PAGE));
    if (p->heap_base > h->bytes || p->heap_bytes > h->bytes - p->heap_base)
        return refuse(
            comm, -ENOSPC,
            "%s needs %llu bytes of the symmetric heap and %llu of %llu are free: open the communicator with "
            "heap_bytes of at least %llu",
            plan_op_name(q->op), (unsigned long long)p->heap_bytes,
            (unsigned long long)(p->heap_base < h->bytes ? h->bytes - p->heap_base : 0),
            (unsigned long long)(h->bytes - h->flag_bytes),
            (unsigned long long)mk_round_up(p->heap_base + p->heap_bytes - h->flag_bytes, PAGE));
    if (q->a_in_heap &&
        (q->a_offset % MK_HEAP_UNIT || q->a_offset < h->flag_bytes || q->a_offset >= h->next_data))
        return refuse(comm, -EINVAL, "A at offset %llu of the heap: not a place that mk_heap_alloc gave",
                      (unsigned long long)q->a_offset);
    return 0;
}

/* Its own part of making a plan: no other rank is asked. */
static int build(struct mk_comm *comm, struct mk_plan *p, const struct mk_problem *problem)
{
    if (comm->plan_count == sizeof comm->plans / sizeof *comm->plans)
        return refuse(comm, -ENOSPC, "a communicator has at most %u plans", comm->plan_count);
    int result = tuning_build(p, &comm->tuning, problem, comm->device, comm->heap.next_flag, comm->heap.next_data, comm->error,
                              sizeof comm->error);
    return result ? result : check_room(comm, p);
}

static int agree_on(struct mk_comm *comm, const struct mk_problem *q, int result)
{
    const struct mk_tuning *t = &q->tuning;
    const struct agree_field fields[] = {
        {"op", (uint64_t)q->op, 0},
        {"M", q->m, 0},
        {"N", q->n, 0},
        {"K", q->k, 0},
        {"batch", q->attention.batch, 0},
        {"sequence", q->attention.sequence, 0},
        {"heads", q->attention.heads, 0},
        {"kv_heads", q->attention.kv_heads, 0},
        {"head_dim", q->attention.head_dim, 0},
        {"tokens", q->moe.tokens, 0},
        {"hidden", q->moe.hidden, 0},
        {"inner", q->moe.inner, 0},
        {"experts", q->moe.experts, 0},
        {"experts of a token", q->moe.k, 0},
        {"causal", q->attention.causal != 0, 0},
        {"b_transposed", q->b_transposed != 0, 0},
        {"deterministic", q->deterministic != 0, 0},
        {"a_in_heap", q->a_in_heap != 0, 0},
        {"a_offset", q->a_in_heap ? q->a_offset : 0, 0},
        {"kind of device (its tuned plans are others)", comm->tuning.count ? agree_hash(comm->device) : 0, 1},
        {"compute CTAs", t->split.ctas[MK_COMPUTE], 0},
        {"intra_comm CTAs", t->split.ctas[MK_INTRA_COMM], 0},
        {"inter_send CTAs", t->split.ctas[MK_INTER_SEND], 0},
        {"inter_reduce CTAs", t->split.ctas[MK_INTER_REDUCE], 0},
        {"tile_m", t->tile_m, 0},
        {"tile_n", t->tile_n, 0},
        {"cluster", t->cluster, 0},
        {"chunk_rows", t->chunk_rows, 0},
        {"width", t->width, 0},
        {"slices", t->slices, 0},
        {"pieces", t->pieces, 0},
        {"pace", t->pace, 0},
        {"timeout in ns", q->timeout_ns, 0},
        {"first flag (plans must be made in the same order)", comm->heap.next_flag, 0},
        {"first heap byte (allocations must be made in the same order)", comm->heap.next_data, 0},
    };
    return agree(comm->bootstrap, comm->topo.rank, mk_world(&comm->topo), "plans", fields,
                 sizeof fields / sizeof *fields, result, comm->error, sizeof comm->error);
}

int mk_plan_create(struct mk_plan **out, struct mk_comm *comm, const struct mk_problem *problem)
{
    *out = NULL;
    if (comm->stage != STAGE_OPEN)
        return refuse(comm, -EINVAL, "the communicator is not open");
    if (tell_failure(comm))
        return -EIO;
    struct mk_problem q = *problem;
    q.topo = comm->topo;
    q.exec = comm->config.exec;
    q.sms = comm->exec->sms(comm);
    if (!q.timeout_ns)
        q.timeout_ns = comm->config.timeout_ns;
    struct plan_handle *handle = calloc(1, sizeof *handle);
    int result = handle ? build(comm, &handle->plan, &q) : refuse(comm, -ENOMEM, "out of memory");
    result = agree_on(comm, &q, result);
    if (comm_failed(comm)) {
        free(handle);
        return tell_failure(comm);
    }
    if (result) {
        free(handle);
        return result;
    }
    struct mk_plan *p = &handle->plan;
    handle->comm = comm;
    p->id = comm->plan_count + 1;
    result = comm->exec->plan(comm, p);
    if (result) {
        free(handle);
        return give_up(comm, result); /* the others have the plan and would launch it */
    }
    comm->heap.next_flag = p->flag_base + p->flags;
    comm->heap.next_data = p->heap_base + p->heap_bytes;
    comm->plans[comm->plan_count] = p;
    __atomic_store_n(&comm->plan_count, p->id, __ATOMIC_RELEASE); /* the proxy's thread asks comm_plan */
    *out = p;
    return 0;
}

struct mk_plan *comm_plan(struct mk_comm *comm, uint32_t id)
{
    uint32_t count = __atomic_load_n(&comm->plan_count, __ATOMIC_ACQUIRE);
    return id && id <= count ? comm->plans[id - 1] : NULL;
}

/* ---- launches ---- */

/* Checks what every launch has in common, then launches. `name` is the caller's, `letters` its arguments',
 * for sentences. */
static int launch(struct mk_plan *plan, enum mk_op op, const char *name, const char *const *letters,
                  void *const arguments[MK_SPACES - 1], void *stream)
{
    struct mk_comm *comm = ((struct plan_handle *)(void *)plan)->comm;
    const struct mk_problem *q = &plan->problem;
    if (comm_failed(comm))
        return tell_failure(comm);
    if (q->op != op)
        return refuse(comm, -EINVAL, "%s got a plan of %s", name, plan_op_name(q->op));
    for (uint32_t i = 0; i < MK_SPACES - 1 && letters[i]; i++)
        if (!arguments[i] || (uintptr_t)arguments[i] % 16)
            return refuse(comm, -EINVAL, "%s at %p: each argument of %s must be 16-byte aligned memory",
                          letters[i], arguments[i], name);
    if (q->a_in_heap && arguments[0] != (uint8_t *)comm->heap.base + q->a_offset)
        return refuse(comm, -EINVAL, "A at %p: the plan has it at offset %llu of the symmetric heap, %p",
                      arguments[0], (unsigned long long)q->a_offset,
                      (void *)((uint8_t *)comm->heap.base + q->a_offset));
    return comm->exec->launch(comm, plan, arguments, stream);
}

static int launch_gemm(struct mk_plan *plan, enum mk_op op, const char *name, const void *a, const void *b,
                       void *c, void *stream)
{
    static const char *const letters[MK_SPACES - 1] = {"A", "B", "C"};
    void *const arguments[MK_SPACES - 1] = {(void *)(uintptr_t)a, (void *)(uintptr_t)b, c};
    return launch(plan, op, name, letters, arguments, stream);
}

int mk_ag_gemm(struct mk_plan *plan, const void *a, const void *b, void *c, void *stream)
{
    return launch_gemm(plan, MK_OP_AG_GEMM, "mk_ag_gemm", a, b, c, stream);
}

int mk_gemm_ar(struct mk_plan *plan, const void *a, const void *b, void *c, void *stream)
{
    return launch_gemm(plan, MK_OP_GEMM_AR, "mk_gemm_ar", a, b, c, stream);
}

int mk_gemm_rs(struct mk_plan *plan, const void *a, const void *b, void *c, void *stream)
{
    return launch_gemm(plan, MK_OP_GEMM_RS, "mk_gemm_rs", a, b, c, stream);
}

int mk_ring_attention(struct mk_plan *plan, const void *q, const void *k, const void *v, void *o, float *lse,
                      void *stream)
{
    static const char *const letters[MK_SPACES - 1] = {"Q", "K", "V", "O", "lse"};
    void *const arguments[MK_SPACES - 1] = {(void *)(uintptr_t)q, (void *)(uintptr_t)k, (void *)(uintptr_t)v,
                                            o, lse};
    return launch(plan, MK_OP_RING_ATTENTION, "mk_ring_attention", letters, arguments, stream);
}

int mk_moe_dispatch_gemm(struct mk_plan *plan, const void *x, const void *b, const uint32_t *ids, void *c,
                         uint32_t *rows, void *stream)
{
    static const char *const letters[MK_SPACES - 1] = {"X", "B", "ids", "C", "rows"};
    void *const arguments[MK_SPACES - 1] = {(void *)(uintptr_t)x, (void *)(uintptr_t)b,
                                            (void *)(uintptr_t)ids, c, rows};
    return launch(plan, MK_OP_MOE_DISPATCH_GEMM, "mk_moe_dispatch_gemm", letters, arguments, stream);
}

int mk_moe_ffn(struct mk_plan *plan, const void *x, const uint32_t *ids, const float *weights, const void *b1,
               const void *b2, void *y, void *stream)
{
    static const char *const letters[MK_SPACES - 1] = {"X", "B1", "ids", "weights", "B2", "Y"};
    void *const arguments[MK_SPACES - 1] = {
        (void *)(uintptr_t)x,       (void *)(uintptr_t)b1, (void *)(uintptr_t)ids,
        (void *)(uintptr_t)weights, (void *)(uintptr_t)b2, y};
    return launch(plan, MK_OP_MOE_FFN, "mk_moe_ffn", letters, arguments, stream);
}

int mk_wait(struct mk_comm *comm)
{
    if (comm->stage != STAGE_OPEN)
        return refuse(comm, -EINVAL, "the communicator is not open");
    comm->error[0] = '\0';
    int result = comm->exec->wait(comm);
    if (comm_failed(comm))
        return tell_failure(comm);
    if (!result)
        return 0;
    give_up(comm, result); /* this rank alone knows so far */
    return tell_failure(comm);
}

#include "core/comm/launcher.h"
#include "core/base/digest.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One reading: where from, and where the sentence goes. The first refusal stays. */
struct reading {
    const char *const *environment;
    char *error;
    size_t size;
    int refused;
};

__attribute__((format(printf, 2, 3))) static int refuse(struct reading *r, const char *format, ...)
{
    if (r->refused)
        return -EINVAL;
    va_list args;
    va_start(args, format);
    vsnprintf(r->error, r->size, format, args);
    va_end(args);
    r->refused = 1;
    return -EINVAL;
}

/* The variable's value; NULL where it is not set or empty. */
static const char *launcher_value(const struct reading *r, const char *name)
{
    size_t n = strlen(name);
    for (const char *const *e = r->environment; *e; e++)
        if (!strncmp(*e, name, n) && (*e)[n] == '=')
            return (*e)[n + 1] ? *e + n + 1 : NULL;
    return NULL;
}

static const char *launcher_either(const struct reading *r, const char *first, const char *second)
{
    const char *v = launcher_value(r, first);
    return v ? v : launcher_value(r, second);
}

/* A number that must be there, at most `most`. */
static uint32_t launcher_number(struct reading *r, const char *launcher, const char *name,
                                uint32_t most)
{
    const char *v = launcher_value(r, name);
    uint64_t n = 0;
    if (!v) {
        refuse(r, "the environment looks like %s's, but %s is not set", launcher, name);
        return 0;
    }
    for (const char *c = v; *c; c++) {
        n = n * 10 + (uint64_t)(*c - '0');
        if (*c < '0' || *c > '9' || n > most) {
            refuse(r, "%s=%.40s in the environment is not a number of 0 to %u", name, v, most);
            return 0;
        }
    }
    return (uint32_t)n;
}

/* The first host of Slurm's list: "rack[1-2,7]n[03-04]-ib,login1" gives rack1n03-ib. */
static int launcher_first_host(struct reading *r, const char *list, char *host, size_t size)
{
    size_t n = 0;
    for (const char *c = list; *c && *c != ','; c++) {
        if (*c == '[') {
            for (c++; *c >= '0' && *c <= '9' && n + 1 < size; c++)
                host[n++] = *c;
            while (*c && *c != ']')
                c++;
            if (!*c)
                return refuse(r, "Slurm's node list %.80s has a [ without a ]", list);
            continue;
        }
        if (n + 1 == size)
            return refuse(r, "the name of the first node in Slurm's list %.80s is too long", list);
        host[n++] = *c;
    }
    host[n] = '\0';
    return n ? 0 : refuse(r, "Slurm's node list '%.80s' names no host", list);
}

/* Separators are included, so that "ab","c" is not "a","bc". */
static uint64_t launcher_hash(uint64_t h, const char *text)
{
    return mk_digest(mk_digest(h, text, text ? strlen(text) : 0), "\xff", 1);
}

/* A hash of values that all ranks of this job share and other jobs do not. */
static uint64_t launcher_job_hash(const struct reading *r, const struct launcher *l, uint64_t seed)
{
    static const char *const torch[] = {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                                        "MASTER_ADDR", "MASTER_PORT", NULL};
    static const char *const mpi[] = {
        "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "SLURM_JOB_ID", "USER", NULL};
    static const char *const slurm[] = {"SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID",
                                        NULL};
    const char *const *names = !strcmp(l->name, "torchrun") ? torch
                               : !strcmp(l->name, "mpirun") ? mpi
                                                            : slurm;
    uint64_t h = launcher_hash(seed, l->name);
    for (; *names; names++)
        h = launcher_hash(h, launcher_value(r, *names));
    return h;
}

static void launcher_find_port(struct reading *r, struct launcher *l)
{
    if (launcher_value(r, "MKERNEL_PORT")) {
        l->port = (uint16_t)launcher_number(r, l->name, "MKERNEL_PORT", 65535);
        if (!l->port)
            refuse(r, "MKERNEL_PORT is 0: name a port of 1 to 65535");
    } else if (launcher_value(r, "MASTER_PORT")) {
        uint32_t p = launcher_number(r, l->name, "MASTER_PORT", 65535);
        l->port = (uint16_t)(p == 65535 ? p - 1 : p + 1);
    } else {
        l->port = (uint16_t)(20000 + launcher_job_hash(r, l, 0x9ae16a3b2f90404full) % 10000);
    }
}

static void launcher_find_host(struct reading *r, struct launcher *l)
{
    /* ranks of one node meet there, whatever MASTER_ADDR is: another host's, or left over */
    int here = l->nodes == 1 && !l->assumed;
    const char *host = here ? launcher_value(r, "MKERNEL_HOST")
                            : launcher_either(r, "MKERNEL_HOST", "MASTER_ADDR");
    /* in a job of Slurm's, mpirun starts the ranks of other nodes by a step of those nodes alone */
    const char *nodes = strcmp(l->name, "mpirun")
                            ? launcher_either(r, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
                            : launcher_either(r, "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST");
    if (!host && l->nodes == 1)
        host = "127.0.0.1";
    if (host && strlen(host) >= sizeof l->host)
        refuse(r, "the name of rank 0's host is too long: %.40s...", host);
    else if (host)
        snprintf(l->host, sizeof l->host, "%s", host);
    else if (nodes)
        launcher_first_host(r, nodes, l->host, sizeof l->host);
    else
        refuse(r, "%s does not say where rank 0 is: set MKERNEL_HOST to its host on every rank",
               l->name);
}

static void launcher_find_token(struct reading *r, struct launcher *l)
{
    const char *token = launcher_value(r, "MKERNEL_TOKEN");
    if (token && strlen(token) >= sizeof l->token)
        refuse(r, "MKERNEL_TOKEN has %zu characters, at most %zu fit", strlen(token),
               sizeof l->token - 1);
    else if (token)
        snprintf(l->token, sizeof l->token, "%s", token);
    else
        l->guessable = snprintf(l->token, sizeof l->token, "%s-%016lx%016lx", l->name,
                                launcher_job_hash(r, l, MK_DIGEST),
                                launcher_job_hash(r, l, 0x2545f4914f6cdd1dull)) > 0;
}

/* Rank = node * ranks per node + local rank, everywhere. `option` makes the launcher number them
 * so. */
static int launcher_finish(struct reading *r, struct launcher *l, const char *option)
{
    if (r->refused)
        return -EINVAL;
    if (!l->world || l->rank >= l->world)
        return refuse(r, "%s says that this is rank %u of %u", l->name, l->rank, l->world);
    if (!l->local_world || l->local_rank >= l->local_world || l->local_world > l->world)
        return refuse(r, "%s says that this is local rank %u of %u, of %u ranks in all", l->name,
                      l->local_rank, l->local_world, l->world);
    if (l->world % l->local_world)
        return refuse(
            r, "%s has %u ranks with %u on this node: every node must have the same number (%s)",
            l->name, l->world, l->local_world, option);
    if (l->rank % l->local_world != l->local_rank)
        return refuse(
            r, "%s made rank %u local rank %u of %u: ranks must be numbered node by node (%s)",
            l->name, l->rank, l->local_rank, l->local_world, option);
    l->nodes = l->world / l->local_world;
    launcher_find_host(r, l);
    launcher_find_port(r, l);
    launcher_find_token(r, l);
    return r->refused ? -EINVAL : 1;
}

static int launcher_read_torchrun(struct reading *r, struct launcher *l)
{
    l->name = "torchrun";
    l->rank = launcher_number(r, l->name, "RANK", MK_MAX_RANKS - 1);
    l->world = launcher_number(r, l->name, "WORLD_SIZE", MK_MAX_RANKS);
    l->assumed = !launcher_value(r, "LOCAL_RANK") && !launcher_value(r, "LOCAL_WORLD_SIZE");
    l->local_rank =
        l->assumed ? l->rank : launcher_number(r, l->name, "LOCAL_RANK", MK_MAX_RANKS - 1);
    l->local_world =
        l->assumed ? l->world : launcher_number(r, l->name, "LOCAL_WORLD_SIZE", MK_MAX_RANKS);
    if (l->rank < l->world && !launcher_value(r, "MKERNEL_HOST") &&
        !launcher_value(r, "MASTER_ADDR"))
        refuse(r, "the environment looks like torchrun's, but MASTER_ADDR is not set");
    /* torchrun under mpirun has ranks of its own; variables set by hand must agree with
     * mpirun's. */
    const char *mpi = launcher_value(r, "OMPI_COMM_WORLD_RANK");
    if (mpi && !launcher_value(r, "TORCHELASTIC_RUN_ID") && !r->refused &&
        (launcher_number(r, "mpirun", "OMPI_COMM_WORLD_RANK", MK_MAX_RANKS - 1) != l->rank ||
         launcher_number(r, "mpirun", "OMPI_COMM_WORLD_SIZE", MK_MAX_RANKS) != l->world))
        refuse(r, "RANK=%u and WORLD_SIZE=%u, but mpirun says rank %s of %s: unset one of them",
               l->rank, l->world, mpi,
               launcher_value(r, "OMPI_COMM_WORLD_SIZE") ? launcher_value(r, "OMPI_COMM_WORLD_SIZE")
                                                         : "?");
    return launcher_finish(r, l, "torchrun --nproc-per-node with the same number on every node");
}

static int launcher_read_mpirun(struct reading *r, struct launcher *l)
{
    int open =
        launcher_value(r, "OMPI_COMM_WORLD_SIZE") || launcher_value(r, "OMPI_COMM_WORLD_RANK");
    l->name = "mpirun";
    l->rank =
        launcher_number(r, l->name, open ? "OMPI_COMM_WORLD_RANK" : "PMI_RANK", MK_MAX_RANKS - 1);
    l->world =
        launcher_number(r, l->name, open ? "OMPI_COMM_WORLD_SIZE" : "PMI_SIZE", MK_MAX_RANKS);
    l->local_rank = launcher_number(
        r, l->name, open ? "OMPI_COMM_WORLD_LOCAL_RANK" : "MPI_LOCALRANKID", MK_MAX_RANKS - 1);
    l->local_world = launcher_number(
        r, l->name, open ? "OMPI_COMM_WORLD_LOCAL_SIZE" : "MPI_LOCALNRANKS", MK_MAX_RANKS);
    return launcher_finish(r, l, open ? "mpirun --map-by ppr:N:node" : "mpirun -ppn N");
}

/* Slurm's "4(x3)": as many tasks on every node. */
static uint32_t launcher_tasks_per_node(struct reading *r)
{
    const char *text = launcher_either(r, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");
    uint32_t tasks = 0;
    if (!text) {
        refuse(r, "the environment looks like srun's, but SLURM_STEP_TASKS_PER_NODE is not set");
        return 0;
    }
    const char *c = text;
    for (; *c >= '0' && *c <= '9' && tasks <= MK_MAX_RANKS; c++)
        tasks = tasks * 10 + (uint32_t)(*c - '0');
    if (strchr(text, ','))
        refuse(r,
               "srun has %.60s tasks on its nodes: every node must have the same number (srun "
               "--ntasks-per-node)",
               text);
    else if (c == text || tasks > MK_MAX_RANKS || (*c && *c != '('))
        refuse(r, "SLURM_STEP_TASKS_PER_NODE=%.60s in the environment is not a number of tasks",
               text);
    return tasks;
}

/* Whether the ranks of this node, as Slurm lists them ("4,5,6,7"; NULL: it does not), are numbered
 * node by node. Each rank sees its own node's: of those that are dealt out in turn all know it,
 * also those whose own number fits. */
static int launcher_is_block(const char *ranks, uint32_t first, uint32_t count)
{
    for (uint32_t i = 0; ranks && i < count; i++) {
        char *end;
        if (strtoul(ranks, &end, 10) != first + i || end == ranks)
            return 0;
        ranks = *end == ',' ? end + 1 : end;
    }
    return 1;
}

static int launcher_read_srun(struct reading *r, struct launcher *l)
{
    l->name = "srun";
    l->world = launcher_number(r, l->name, "SLURM_STEP_NUM_TASKS", MK_MAX_RANKS);
    if (!r->refused && l->world == 1)
        return 0;
    l->rank = launcher_number(r, l->name, "SLURM_PROCID", MK_MAX_RANKS - 1);
    l->local_rank = launcher_number(r, l->name, "SLURM_LOCALID", MK_MAX_RANKS - 1);
    uint32_t node = launcher_number(r, l->name, "SLURM_NODEID", MK_MAX_RANKS - 1);
    l->local_world = launcher_tasks_per_node(r);
    if (!r->refused && l->local_world &&
        (l->rank != node * l->local_world + l->local_rank ||
         !launcher_is_block(launcher_value(r, "SLURM_GTIDS"), node * l->local_world,
                            l->local_world)))
        return refuse(
            r,
            "srun made rank %u task %u of node %u: ranks must be numbered node by node (srun "
            "--distribution=block)",
            l->rank, l->local_rank, node);
    return launcher_finish(r, l, "srun --ntasks-per-node");
}

int launcher_read(struct launcher *out, const char *const *environment, char *error, size_t size)
{
    struct reading r = {environment, error, size, 0};
    int result = 0;
    memset(out, 0, sizeof *out);
    if (size)
        error[0] = '\0';
    /* PMI_RANK alone may be Slurm's: srun --mpi=pmi2 sets it beside its own, MPICH's mpirun says
     * the local rank too. */
    /* a batch script has a rank too, but no step */
    int step = launcher_value(&r, "SLURM_STEP_NUM_TASKS") != NULL;
    if (launcher_value(&r, "RANK") || launcher_value(&r, "WORLD_SIZE"))
        result = launcher_read_torchrun(&r, out);
    else if (launcher_value(&r, "OMPI_COMM_WORLD_SIZE") ||
             launcher_value(&r, "OMPI_COMM_WORLD_RANK") ||
             (launcher_value(&r, "PMI_RANK") && (launcher_value(&r, "MPI_LOCALRANKID") || !step)))
        result = launcher_read_mpirun(&r, out);
    else if (step && launcher_value(&r, "SLURM_PROCID"))
        result = launcher_read_srun(&r, out);
    if (result <= 0)
        memset(out, 0, sizeof *out);
    return result;
}

/* A process knows its rank from what torchrun, srun and mpirun leave in the environment; what is
 * incomplete or contradictory is refused in one sentence. */
#include "core/comm/launcher.h"
#include "tests/helpers/test.h"

#define ENV(...) ((const char *const[]){__VA_ARGS__, NULL})

static void is(const struct launcher *l, const char *name, uint32_t rank, uint32_t world,
               uint32_t local, uint32_t local_world, const char *host)
{
    assert_string_equal(l->name, name);
    assert_int_equal(l->rank, rank);
    assert_int_equal(l->world, world);
    assert_int_equal(l->local_rank, local);
    assert_int_equal(l->local_world, local_world);
    assert_int_equal(l->nodes, world / local_world);
    assert_string_equal(l->host, host);
    assert_true(l->port > 0 && l->token[0]);
}

static struct launcher reads(const char *const *environment)
{
    struct launcher l;
    char error[300];
    int result = launcher_read(&l, environment, error, sizeof error);
    if (result != 1)
        print_message("%s\n", error);
    assert_int_equal(result, 1);
    return l;
}

static void refuses(const char *const *environment, const char *says)
{
    struct launcher l;
    char error[300];
    assert_int_equal(launcher_read(&l, environment, error, sizeof error), -EINVAL);
    if (!strstr(error, says))
        print_message("%s\n", error);
    assert_non_null(strstr(error, says));
}

static void nothing(const char *const *environment)
{
    struct launcher l;
    char error[300];
    assert_int_equal(launcher_read(&l, environment, error, sizeof error), 0);
    assert_null(l.name);
}

#define TORCH(rank, local)                                                                         \
    "RANK=" rank, "LOCAL_RANK=" local, "WORLD_SIZE=8", "LOCAL_WORLD_SIZE=4", "GROUP_RANK=1",       \
        "MASTER_ADDR=10.1.2.3", "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=abc",                    \
        "TORCHELASTIC_RESTART_COUNT=0"

CASE(torchrun)
{
    struct launcher l = reads(ENV("PATH=/bin", TORCH("6", "2"))), m = reads(ENV(TORCH("1", "1")));
    is(&l, "torchrun", 6, 8, 2, 4, "10.1.2.3");
    assert_int_equal(l.port, 29501); /* torchrun's store has 29500 */
    assert_string_equal(l.token, m.token);
    struct launcher other =
        reads(ENV("RANK=0", "LOCAL_RANK=0", "WORLD_SIZE=1", "LOCAL_WORLD_SIZE=1", "MASTER_ADDR=h",
                  "MASTER_PORT=65535", "TORCHELASTIC_RUN_ID=xyz"));
    assert_string_not_equal(l.token, other.token);
    assert_int_equal(other.port, 65534);
    assert_string_equal(other.host, "127.0.0.1"); /* one node: MASTER_ADDR may be another's */
    /* Kubernetes: nothing says which ranks share a node */
    struct launcher pod = reads(ENV("RANK=1", "WORLD_SIZE=4", "MASTER_ADDR=h"));
    is(&pod, "torchrun", 1, 4, 1, 4, "h");
    assert_true(pod.assumed && !l.assumed);
    refuses(ENV("RANK=1", "WORLD_SIZE=4", "LOCAL_RANK=0", "MASTER_ADDR=h"),
            "LOCAL_WORLD_SIZE is not set");
    refuses(ENV("RANK=1", "LOCAL_RANK=0"), "WORLD_SIZE is not set");
    refuses(ENV("WORLD_SIZE=4"), "RANK is not set");
    refuses(ENV("RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2"),
            "MASTER_ADDR is not set");
    refuses(ENV("RANK=two", "WORLD_SIZE=2"), "RANK=two in the environment is not a number");
    refuses(ENV("RANK=-1", "WORLD_SIZE=2"), "RANK=-1");
    refuses(ENV("RANK=99999999999999999999", "WORLD_SIZE=2"), "is not a number of 0 to 4095");
    refuses(ENV("RANK=8", "LOCAL_RANK=0", "WORLD_SIZE=8", "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=h"),
            "rank 8 of 8");
    refuses(ENV("RANK=5", "LOCAL_RANK=2", "WORLD_SIZE=8", "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=h"),
            "node by node");
    refuses(ENV("RANK=2", "LOCAL_RANK=2", "WORLD_SIZE=7", "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=h"),
            "the same number");
    refuses(ENV("RANK=2", "LOCAL_RANK=5", "WORLD_SIZE=8", "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=h"),
            "local rank 5 of 4");
}

#define SLURM(rank, local, node)                                                                   \
    "SLURM_JOB_ID=4711", "SLURM_STEP_ID=0", "SLURM_PROCID=" rank, "SLURM_LOCALID=" local,          \
        "SLURM_NODEID=" node, "SLURM_NTASKS=12", "SLURM_STEP_NUM_TASKS=12", "SLURM_NNODES=3"

CASE(srun)
{
    struct launcher l =
        reads(ENV(SLURM("6", "2", "1"), "SLURM_STEP_TASKS_PER_NODE=4(x3)",
                  "SLURM_STEP_NODELIST=gpu[007-009]", "SLURM_JOB_NODELIST=login,gpu[007-009]"));
    is(&l, "srun", 6, 12, 2, 4, "gpu007");
    assert_true(l.port >= 20000 && l.port < 30000);
    struct launcher m =
        reads(ENV(SLURM("11", "3", "2"), "SLURM_STEP_TASKS_PER_NODE=4(x3)",
                  "SLURM_STEP_NODELIST=gpu[007-009]", "PMI_RANK=11", "PMI_SIZE=12"));
    is(&m, "srun", 11, 12, 3, 4, "gpu007"); /* srun --mpi=pmi2 */
    assert_int_equal(l.port, m.port);
    assert_string_equal(l.token, m.token);
    /* dealt out in turn, ranks 0 and 3 have the numbers that they should have: they know it, too */
    refuses(ENV("SLURM_STEP_NUM_TASKS=4", "SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_NODEID=0",
                "SLURM_STEP_TASKS_PER_NODE=2(x2)", "SLURM_STEP_NODELIST=a", "SLURM_GTIDS=0,2"),
            "ranks must be numbered node by node");
    l = reads(ENV("SLURM_STEP_NUM_TASKS=4", "SLURM_PROCID=3", "SLURM_LOCALID=1", "SLURM_NODEID=1",
                  "SLURM_STEP_TASKS_PER_NODE=2(x2)", "SLURM_STEP_NODELIST=a", "SLURM_GTIDS=2,3"));
    is(&l, "srun", 3, 4, 1, 2, "a");
    refuses(ENV(SLURM("1", "0", "1"), "SLURM_STEP_TASKS_PER_NODE=4(x3)", "SLURM_STEP_NODELIST=a"),
            "--distribution=block");
    refuses(ENV(SLURM("1", "1", "0"), "SLURM_STEP_TASKS_PER_NODE=5(x2),2", "SLURM_STEP_NODELIST=a"),
            "--ntasks-per-node");
    refuses(ENV(SLURM("1", "1", "0"), "SLURM_STEP_TASKS_PER_NODE=x", "SLURM_STEP_NODELIST=a"),
            "not a number of tasks");
    refuses(ENV(SLURM("1", "1", "0"), "SLURM_STEP_NODELIST=a"),
            "SLURM_STEP_TASKS_PER_NODE is not set");
    refuses(ENV(SLURM("1", "1", "0"), "SLURM_STEP_TASKS_PER_NODE=4(x3)"),
            "does not say where rank 0 is");
    refuses(ENV("SLURM_STEP_ID=0", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2"),
            "SLURM_LOCALID is not set");
}

CASE(slurm_lists)
{
    static const char *const lists[][2] = {
        {"n1", "n1"},
        {"n1,n2", "n1"},
        {"gpu[3]", "gpu3"},
        {"gpu[08,10-12],x", "gpu08"},
        {"rack[1-2,7]n[03-04]-ib,login", "rack1n03-ib"},
        {"a-b-[001-128]", "a-b-001"},
        {"node7-ib.example.org,node[8-9]", "node7-ib.example.org"},
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        char variable[100];
        snprintf(variable, sizeof variable, "SLURM_STEP_NODELIST=%s", lists[i][0]);
        struct launcher l =
            reads(ENV(SLURM("0", "0", "0"), "SLURM_STEP_TASKS_PER_NODE=4(x3)", variable));
        assert_string_equal(l.host, lists[i][1]);
    }
    refuses(
        ENV(SLURM("0", "0", "0"), "SLURM_STEP_TASKS_PER_NODE=4(x3)", "SLURM_STEP_NODELIST=gpu[1-"),
        "has a [ without a ]");
    refuses(ENV(SLURM("0", "0", "0"), "SLURM_STEP_TASKS_PER_NODE=4(x3)", "SLURM_STEP_NODELIST=,b"),
            "names no host");
    char longest[400] = "SLURM_STEP_NODELIST=";
    memset(longest + 20, 'n', 379);
    longest[399] = '\0';
    refuses(ENV(SLURM("0", "0", "0"), "SLURM_STEP_TASKS_PER_NODE=4(x3)", longest), "too long");
}

CASE(mpirun)
{
    struct launcher l = reads(ENV("OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4",
                                  "OMPI_COMM_WORLD_LOCAL_RANK=3", "OMPI_COMM_WORLD_LOCAL_SIZE=4",
                                  "PMIX_NAMESPACE=prterun-a-1@1"));
    is(&l, "mpirun", 3, 4, 3, 4, "127.0.0.1");
    l = reads(ENV("PMI_RANK=5", "PMI_SIZE=6", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2",
                  "MKERNEL_HOST=node1"));
    is(&l, "mpirun", 5, 6, 1, 2, "node1");
    /* mpirun inside a Slurm job: its daemons were started by srun on the other nodes, and their
     * variables are still there. */
    l = reads(ENV(SLURM("1", "0", "1"), "OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4",
                  "OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE=2",
                  "SLURM_JOB_NODELIST=h[1-2]", "SLURM_STEP_NODELIST=h2"));
    is(&l, "mpirun", 2, 4, 0, 2, "h1");
    refuses(ENV("OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=0",
                "OMPI_COMM_WORLD_LOCAL_SIZE=2"),
            "set MKERNEL_HOST");
    refuses(ENV("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=0",
                "OMPI_COMM_WORLD_LOCAL_SIZE=2", "MKERNEL_HOST=h"),
            "--map-by ppr");
    refuses(ENV("PMI_RANK=1", "PMI_SIZE=2"), "MPI_LOCALRANKID is not set");
}

CASE(one_launcher_inside_another)
{
    struct launcher l = reads(ENV(SLURM("1", "0", "1"), TORCH("6", "2"))); /* srun torchrun */
    is(&l, "torchrun", 6, 8, 2, 4, "10.1.2.3");
    /* mpirun torchrun */
    l = reads(ENV("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", TORCH("6", "2")));
    is(&l, "torchrun", 6, 8, 2, 4, "10.1.2.3");
    refuses(ENV("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "RANK=0", "LOCAL_RANK=0",
                "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=h"),
            "RANK=0 and WORLD_SIZE=2, but mpirun says rank 1 of 2");
}

CASE(no_launcher)
{
    nothing(ENV("PATH=/bin", "HOME=/root", "RANK=", "OLDRANK=1", "RANKS=3"));
    /* A batch script, an allocation, and an interactive shell in it are no launchers. */
    nothing(ENV("SLURM_JOB_ID=1", "SLURM_PROCID=0", "SLURM_NTASKS=8", "SLURM_LOCALID=0",
                "SLURM_NODEID=0"));
    nothing(ENV("SLURM_JOB_ID=1", "SLURM_NTASKS=8", "SLURM_JOB_NODELIST=a"));
    nothing(ENV("SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1",
                "SLURM_NTASKS=8"));
    nothing(ENV("MKERNEL_PORT=1", "MKERNEL_TOKEN=t"));
}

CASE(what_the_user_says_holds)
{
    struct launcher l = reads(ENV(TORCH("6", "2"), "MKERNEL_PORT=4000", "MKERNEL_TOKEN=my secret",
                                  "MKERNEL_HOST=elsewhere"));
    is(&l, "torchrun", 6, 8, 2, 4, "elsewhere");
    assert_int_equal(l.port, 4000);
    assert_string_equal(l.token, "my secret");
    refuses(ENV(TORCH("6", "2"), "MKERNEL_PORT=70000"), "MKERNEL_PORT=70000");
    refuses(ENV(TORCH("6", "2"), "MKERNEL_PORT=0"), "MKERNEL_PORT is 0");
    char token[100] = "MKERNEL_TOKEN=";
    memset(token + 14, 't', 64);
    token[78] = '\0';
    refuses(ENV(TORCH("6", "2"), token), "64 characters, at most 63 fit");
}

/* Ranks of a job tell each other where they are, and each opens the NIC nearest to its own GPU, or
 * to the NUMA node that it is bound to: over real processes on a DGX H100's tree, whose NICs are
 * softnic's devices here. */
#include "backends/memory.h"
#include "tests/helpers/job.h"
#include "tests/helpers/sysfs_tree.h"

#include "tests/helpers/test.h"

enum { NODES = 2, GPUS = 2, WORLD = NODES * GPUS };

/* Rank r, on node r / 2. */
static const char *const gpus[WORLD] = {"0000:9D:00.0", "0000:43:00.0", "0000:1B:00.0",
                                        "0000:DF:00.0"};
static const char *const nearest[WORLD] = {"soft6", "soft3", "soft0", "soft11"};

static struct sysfs_tree tree;
static uint32_t own_rank;
static int with_gpus, rails;

static int bus_id(char *out, size_t size)
{
    snprintf(out, size, "%s", gpus[own_rank]);
    return 0;
}

/* The host executor's heap, said to be a GPU's that this NIC can reach. */
static int open_as_gpu(struct mk_comm *comm)
{
    static const struct mr_memory_ops ops = {.bus_id = bus_id};
    int result = exec_host.open(comm);
    if (with_gpus) {
        comm->heap.memory = MK_MEMORY_CUDA;
        mr_provide(MK_MEMORY_CUDA, &ops);
    }
    return result;
}

static void count_path(char path[96], uint32_t rank)
{
    snprintf(path, 96, "%s/count_%u", tree.root, rank);
}

static int run(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    struct mk_exec_ops exec = exec_host;
    struct mk_config config = {.exec = MK_EXEC_HOST,
                               .rank = c->rank,
                               .nodes = NODES,
                               .gpus = GPUS,
                               .port = c->port,
                               .listen_fd = c->listen_fd,
                               .heap_bytes = 1 << 20,
                               .rails = (uint32_t)rails,
                               .timeout_ns = c->timeout_ns};
    struct mk_comm *comm;
    struct mk_plan *plan;
    struct mk_problem q = {.op = MK_OP_AG_GEMM, .m = 128, .n = 24, .k = 32};
    char path[96], softnic[160];
    void *a = calloc(1, 128 * 32 * 2), *b = calloc(1, 24 * 32 * 2), *out = calloc(1, 128 * 24 * 2);
    own_rank = c->rank;
    count_path(path, c->rank);
    snprintf(softnic, sizeof softnic, "devices=12,count=%s", path);
    setenv("SOFTNIC", softnic, 1);
    setenv("MK_SYSFS", tree.root, 1);
    exec.open = open_as_gpu;
    q.tuning.tile_m = q.tuning.tile_n = q.tuning.chunk_rows = 8;
    memcpy(config.host, c->host, sizeof config.host);
    memcpy(config.token, c->token, sizeof config.token);
    snprintf(config.nic, sizeof config.nic, "soft");
    int result = comm_open_with(&comm, &config, &exec, &net_fabric);
    if (!result)
        result = comm_make_plan(&plan, comm, &q);
    if (!result)
        result = mk_ag_gemm(plan, a, b, out, NULL);
    if (!result)
        result = mk_wait(comm);
    if (result)
        snprintf(text, size, "%s", mk_error(comm));
    mk_comm_close(comm);
    free(a);
    free(b);
    free(out);
    return result;
}

/* Whether a rank has sent over `device`, and how many devices it has sent over. */
static int used(uint32_t rank, const char *device, uint32_t *devices)
{
    char path[96], line[256], name[24];
    int found = 0;
    unsigned number, seen = 0;
    count_path(path, rank);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) && sscanf(line, "%23s", name) == 1) {
        assert_int_equal(sscanf(name, "soft%u", &number), 1);
        seen |= 1u << number;
        found |= !strcmp(name, device);
    }
    fclose(f);
    *devices = (uint32_t)__builtin_popcount(seen);
    return found;
}

static void run_job(void)
{
    struct job j;
    assert_int_equal(tree_unpack_as(&tree, "dgx_h100", "mlx5_", "soft"), 0);
    job_init(&j, WORLD, 30);
    job_start_all(&j, run, NULL);
    job_finish(&j);
    for (uint32_t r = 0; r < WORLD; r++) {
        assert_string_equal(j.reports[r].text, "");
        assert_true(j.reports[r].came);
        assert_int_equal(j.reports[r].result, 0);
    }
}

CASE(test_gpus)
{
    uint32_t devices;
    with_gpus = 1;
    for (rails = 0; rails <= 2; rails += 2) {
        run_job();
        for (uint32_t r = 0; r < WORLD; r++) {
            if (!used(r, nearest[r], &devices))
                fail_msg("rank %u has not sent over %s", r, nearest[r]);
            assert_int_equal(devices, rails ? rails : 1);
        }
        tree_close(&tree);
    }
}

/* Without GPUs: the node that has all CPUs of the process. One has none of them, so all ranks are
 * bound to the other. */
CASE(test_numa)
{
    uint32_t devices;
    char line[128], path[128];
    with_gpus = rails = 0;
    for (int node = 0; node < 2; node++) {
        struct job j;
        assert_int_equal(tree_unpack_as(&tree, "dgx_h100", "mlx5_", "soft"), 0);
        for (int n = 0; n < 2; n++) {
            snprintf(path, sizeof path, "%s/devices/system/node/node%d/cpulist", tree.root, n);
            unlink(path);
            snprintf(line, sizeof line, "devices/system/node/node%d/cpulist = %s", n,
                     n == node ? "0-1023" : "2000-2001");
            assert_int_equal(tree_add(&tree, line), 0);
        }
        job_init(&j, WORLD, 30);
        job_start_all(&j, run, NULL);
        job_finish(&j);
        for (uint32_t r = 0; r < WORLD; r++) { /* its node's first two, in turn by local rank */
            static const char *const first[2][GPUS] = {{"soft0", "soft1"}, {"soft6", "soft7"}};
            assert_string_equal(j.reports[r].text, "");
            assert_int_equal(j.reports[r].result, 0);
            if (!used(r, first[node][r % GPUS], &devices) || devices != 1)
                fail_msg("rank %u on NUMA node %d has not sent over %s alone", r, node,
                         first[node][r % GPUS]);
        }
        tree_close(&tree);
    }
}

/* `mkernel bench ring`: commands per second from one producer thread through a command ring to the
 * proxy, over a fabric that takes every put and completes it at once. */
#include "experiments/bench/bench.h"
#include "core/cta/ring_host.h"
#include "core/base/scoped.h"
#include "core/base/sorted.h"
#include "experiments/common/launched.h"
#include "experiments/common/command_says.h"
#include "experiments/common/options.h"
#include "experiments/common/output_file.h"
#include "experiments/common/result_file.h"
#include "backends/proxy.h"
#include "backends/wall_clock.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PENDING = 4096, ROUNDS_MAX = 100, SPINS = 2000 };

/* Completes puts in the order in which they came. */
struct null_fabric {
    struct fabric fabric;
    uint64_t cookies[PENDING];
    uint64_t posted, completed;
};

static int bench_ring_null_put(struct fabric *fabric, const struct fabric_put *put)
{
    struct null_fabric *f = (struct null_fabric *)fabric;
    if (f->posted - f->completed == PENDING)
        return -EAGAIN;
    f->cookies[f->posted++ % PENDING] = put->cookie;
    return 0;
}

static int bench_ring_null_flush(struct fabric *fabric)
{
    return 0;
}

static int bench_ring_null_poll(struct fabric *fabric, struct fabric_completion *out, int max)
{
    struct null_fabric *f = (struct null_fabric *)fabric;
    int n = 0;
    for (; n < max && f->completed < f->posted; n++) {
        out[n].cookie = f->cookies[f->completed++ % PENDING];
        out[n].status = 0;
    }
    return n;
}

static const struct fabric_ops null_ops = {.name = "null",
                                           .put = bench_ring_null_put,
                                           .flush = bench_ring_null_flush,
                                           .poll = bench_ring_null_poll};

static int bench_ring_failed(void *context)
{
    return __atomic_load_n((int *)context, __ATOMIC_RELAXED);
}

static void bench_ring_fail(void *context, const struct mk_failure *failure)
{
    __atomic_store_n((int *)context, 1, __ATOMIC_RELAXED);
}

static void bench_ring_wait_a_little(uint32_t *spins)
{
    if (++*spins % SPINS == 0)
        sched_yield();
}

/* Posts `commands` and waits until the proxy has completed them. Returns ns, 0 where the proxy
 * failed. */
static uint64_t bench_ring_round_ns(struct mk_ring *ring, uint64_t commands, uint64_t epoch,
                                    int *job_failed)
{
    uint64_t start = wall_clock(NULL);
    uint32_t spins = 0;
    while (mk_ring_post(ring,
                        mk_command_begin(1, epoch, mk_ring_parity(ring->capacity, ring->posted))))
        bench_ring_wait_a_little(&spins);
    for (uint64_t i = 1; i < commands; i++) {
        struct mk_command c =
            mk_command_put(1, 128 * (i & 1023), 8192 + 128 * (i & 1023), 4096, (uint32_t)i & 511,
                           mk_ring_parity(ring->capacity, ring->posted));
        while (mk_ring_post(ring, c)) {
            if (bench_ring_failed(job_failed))
                return 0;
            bench_ring_wait_a_little(&spins);
        }
    }
    while (__atomic_load_n(&ring->completed, __ATOMIC_ACQUIRE) != ring->posted) {
        if (bench_ring_failed(job_failed))
            return 0;
        bench_ring_wait_a_little(&spins);
    }
    return wall_clock(NULL) - start;
}

static int bench_ring_measure(uint64_t commands, uint32_t rounds, uint64_t capacity,
                              const char *json, int quiet)
{
    FILE *table_out = output_table(quiet, json, NULL);
    int status = STATUS_FAILED, job_failed = 0;
    double rates[ROUNDS_MAX];
    MK_FREED struct null_fabric *fabric = calloc(1, sizeof *fabric);
    MK_FREED struct mk_ring *ring =
        aligned_alloc(MK_CACHE_LINE, mk_round_up(mk_ring_bytes(capacity), MK_CACHE_LINE));
    struct proxy *proxy = NULL;
    struct result_file file = {.out = NULL};
    if (!fabric || !ring) {
        fprintf(stderr, "mkernel bench ring: no memory for a ring of %lu commands\n", capacity);
        goto done;
    }
    memset(ring, 0, mk_ring_bytes(capacity));
    ring->capacity = capacity;
    fabric->fabric.ops = &null_ops;
    struct proxy_config config = {.fabric = &fabric->fabric,
                                  .rings = &ring,
                                  .ring_count = 1,
                                  .timeout_ns = MK_TIMEOUT_NS,
                                  .topo = {.nodes = 2, .gpus = 1},
                                  .heap_bytes = 1 << 20,
                                  .heap_flags = 512,
                                  .now = wall_clock,
                                  .failed = bench_ring_failed,
                                  .fail = bench_ring_fail,
                                  .context = &job_failed};
    int rc = proxy_create(&proxy, &config);
    rc = rc ? rc : proxy_start(proxy);
    if (rc) {
        fprintf(stderr, "mkernel bench ring: cannot start the proxy: %s\n", strerror(-rc));
        goto done;
    }
    for (uint32_t i = 0; i <= rounds; i++) {
        uint64_t ns = bench_ring_round_ns(ring, commands, i + 1, &job_failed);
        if (!ns) {
            fprintf(stderr, "mkernel bench ring: the proxy refused a command\n");
            goto done;
        }
        if (i) /* the first warms up */
            rates[i - 1] = (double)commands * 1e3 / (double)ns;
    }
    mk_sort(rates, rounds);
    if (table_out) {
        fprintf(table_out, "%12s %10s %14s %14s %14s\n", "commands", "capacity", "median[M/s]",
                "min[M/s]", "max[M/s]");
        fprintf(table_out, "%12lu %10lu %14.2f %14.2f %14.2f\n", commands, capacity,
                rates[rounds / 2], rates[0], rates[rounds - 1]);
    }
    if (json && result_open(&file)) {
        fprintf(stderr, "mkernel bench ring: no memory for the result\n");
        goto done;
    }
    if (json)
        fprintf(file.out,
                "{\"bench\":\"ring\",\"commands\":%lu,\"capacity\":%lu,\"rounds\":%u,\"median_"
                "mps\":%.3f,"
                "\"min_mps\":%.3f,\"max_mps\":%.3f}\n",
                commands, capacity, rounds, rates[rounds / 2], rates[0], rates[rounds - 1]);
    status = STATUS_DONE;
done:
    proxy_destroy(proxy);
    int written = file.out ? result_close(&file, json) : 0;
    if (written) {
        fprintf(stderr, "mkernel bench ring: cannot write %s: %s\n", json, strerror(-written));
        status = STATUS_FAILED;
    }
    return status;
}

struct arguments {
    uint64_t commands, rounds, capacity;
    const char *json;
    int quiet;
};

#define AT(field) .offset = offsetof(struct arguments, field)
static const struct option_spec specs[] = {
    {"commands", OPTION_NUMBERS, AT(commands), "N", "commands of a round. Default 5000000", 1000,
     1u << 30},
    {"rounds", OPTION_NUMBERS, AT(rounds), "N", "rounds behind one that warms up. Default 7", 1,
     ROUNDS_MAX},
    {"capacity", OPTION_NUMBERS, AT(capacity), "N",
     "places in the ring, a power of two. Default 1024", 2, 1u << 24},
    {"json", OPTION_TEXT, AT(json), "FILE", "also write JSON", .max = 4095},
    {"quiet", OPTION_FLAG, AT(quiet), NULL, OPTION_QUIET},
};

static const struct option_table table = {
    "bench ring [OPTIONS]",
    "Commands per second from one producer thread to the proxy, which "
    "hands them to a fabric that completes each at\n"
    "once: the cost of the ring and of the proxy alone.",
    specs, sizeof specs / sizeof *specs, "  mkernel bench ring --rounds 20\n"};

int bench_ring(int argc, char **argv)
{
    struct arguments a = {5000000, 7, 1024, NULL, 0};
    struct options_found found;
    char error[256];
    int ends = command_options("bench ring", &table, 0, argc, argv, &a, &found);
    if (ends >= 0)
        return ends;
    if (a.capacity & (a.capacity - 1))
        return command_refuse("bench ring", "--capacity takes a power of two, not %lu", a.capacity);
    if (launched_leaves("bench ring"))
        return STATUS_DONE;
    if (output_check("--json", a.json, OUTPUT_WRITTEN, error, sizeof error))
        return command_refuse("bench ring", "%s", error);
    return bench_ring_measure(a.commands, (uint32_t)a.rounds, a.capacity, a.json, a.quiet);
}

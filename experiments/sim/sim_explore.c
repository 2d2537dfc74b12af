/* `mkernel sim OP --explore`: draws random orders of every step until one of them breaks the
 * schedule, and prints the command that replays it. */
#include "experiments/sim/sim.h"
#include "experiments/common/command_says.h"
#include "experiments/common/commands.h"
#include "experiments/common/pulse.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define FAILURES_SHOWN 10

struct sim_world_config sim_configure(const struct sim_arguments *a, enum mk_op op, uint64_t seed)
{
    struct problem_options ask = a->ask;
    enum op_size size = a->explore ? OP_SIZE_EXPLORE : OP_SIZE_HOST;
    struct sim_world_config c;
    memset(&c, 0, sizeof c);
    c.problem.op = op;
    c.problem.exec = MK_EXEC_HOST;
    c.problem.topo = (struct mk_topo){.nodes = (uint32_t)a->nodes, .gpus = (uint32_t)a->gpus};
    problem_fill(&ask, size, &c.problem);
    c.problem.timeout_ns = a->timeout_ns;
    c.launches = (uint32_t)a->launches;
    c.seed = seed;
    c.order = a->order ? SIM_ORDER_SRD : SIM_ORDER_RC;
    c.ring_capacity = (uint32_t)a->ring;
    c.in_flight = (uint32_t)a->in_flight;
    c.fabric_depth = (uint32_t)a->depth;
    c.delay_ns = a->delay_ns;
    c.fault =
        (struct sim_fault){(enum sim_fault_kind)a->fault, (uint32_t)a->fault_rank, a->fault_number};
    if (a->vary)
        sim_world_vary(&c);
    if (a->random)
        sim_world_draw(&c);
    if (a->exec)
        sim_world_emulate(&c, a->vary || a->random);
    return c;
}

/* The command line that was given, with one seed. */
static void sim_print_replay(int argc, char **argv, uint64_t seed)
{
    printf("  mkernel");
    for (int i = 0; i < argc; i++) {
        const char *const names[] = {"--seed", "--runs"};
        int skip = 0;
        for (size_t j = 0; j < 2; j++) {
            size_t length = strlen(names[j]);
            if (!strncmp(argv[i], names[j], length) &&
                (argv[i][length] == '=' || !argv[i][length])) {
                skip = 1;
                i += !argv[i][length]; /* its value is the next word */
                break;
            }
        }
        if (!skip)
            printf(" %s", argv[i]);
    }
    printf(" --seed %lu --runs 1\n", seed);
}

int sim_explore(const struct sim_arguments *a, enum mk_op op, int argc, char **argv)
{
    struct coroutine_pool *pool = NULL;
    struct sim_world_result result;
    uint64_t done = 0, steps = 0, hash = 0, failures = 0, incomplete = 0;
    int status = STATUS_DONE;
    coroutine_pool_create(&pool, 0); /* without one each run makes its own */
    for (; done < a->runs && failures < FAILURES_SHOWN; done++) {
        struct sim_world_config c = sim_configure(a, op, a->seed + done);
        c.pool = pool;
        pulse_says("order %lu of %lu", done + 1, a->runs);
        int rc = sim_world_run(&c, &result);
        if (a->random)
            rc = sim_world_promised(&c, rc, &result);
        if (rc == -EINVAL || rc == -ENOMEM) {
            pulse_hide();
            coroutine_pool_destroy(pool);
            if (rc == -EINVAL)
                return command_refuse("sim", "%s", result.sentence);
            fprintf(stderr, "mkernel sim: %s\n", result.sentence);
            return STATUS_FAILED;
        }
        steps += result.steps;
        hash = hash * 31 + result.hash;
        if (rc) {
            failures++;
            incomplete += rc == -ETIMEDOUT;
            status = rc == -EBADMSG && status != STATUS_FAILED ? STATUS_WRONG : STATUS_FAILED;
            pulse_hide();
            printf("seed %lu: %s\n", c.seed, result.sentence);
            sim_print_replay(argc, argv, c.seed);
            fflush(stdout);
        }
    }
    pulse_hide();
    coroutine_pool_destroy(pool);
    char what[96] = "random cases";
    if (!a->random)
        snprintf(what, sizeof what, "order%s of %lu launch%s on %lu x %lu ranks",
                 done > 1 ? "s" : "", a->launches, a->launches > 1 ? "es" : "", a->nodes, a->gpus);
    char open[64] = "";
    if (incomplete) /* neither right nor wrong */
        snprintf(open, sizeof open, ", %lu of them incomplete", incomplete);
    printf("%s: %lu %s, %lu failed%s; %lu steps each; events %016lx\n", plan_op_name(op), done,
           what, failures, open, steps / done, hash);
    if (status)
        fprintf(stderr, "mkernel sim: %lu of %lu order%s failed%s\n", failures, done,
                done > 1 ? "s" : "",
                failures == FAILURES_SHOWN && done < a->runs ? ", and there it stopped" : "");
    return status;
}

/* `mkernel sim`: an op's schedule on a machine that is not there. */
#include "experiments/sim/sim.h"
#include "core/base/sentence.h"
#include "experiments/common/command_says.h"
#include "experiments/common/commands.h"
#include "experiments/common/pulse.h"
#include "experiments/sim/sim_timed.h"
#include "experiments/sim/validate.h"

#include <string.h>

static int sim_alone(struct sim_arguments *a, enum mk_op op, const char *command, char *error,
                     size_t size)
{
    struct sim_case of;
    struct sim_timed s = {
        .of = &of,
        .problem = {.op = op,
                    .topo = {.nodes = (uint32_t)a->nodes, .gpus = (uint32_t)a->gpus},
                    .timeout_ns = a->timeout_ns},
        .launches = (uint32_t)a->launches,
        .ring = (uint32_t)a->ring,
        .in_flight = (uint32_t)a->in_flight,
        .seed = a->seed,
        .trace = a->trace,
        .json = a->json,
        .quiet = a->quiet,
        .dry_run = a->dry_run,
        .command = command};
    int status = sim_case_open(&of, &a->of, error, size) ? STATUS_USAGE : 0;
    if (!status) {
        problem_fill(&a->ask, a->plan ? OP_SIZE_HOST : OP_SIZE_GPU, &s.problem);
        status = problem_check_replicas(&a->ask, &s.problem, error, size)
                     ? STATUS_USAGE
                     : sim_timed(&s, error, size);
    }
    sim_case_close(&of);
    return status;
}

int command_sim(int argc, char **argv)
{
    struct sim_arguments a;
    char error[512] = "", command[512] = "mkernel";
    enum mk_op op;
    if (argc > 1 && !strncmp(argv[1], "--validate", 10))
        return sim_validate(argc, argv);
    int status = sim_options(argc, argv, &a, &op, error, sizeof error);
    if (status)
        return status < 0 ? STATUS_DONE : command_refuse("sim", "%s", error);
    for (int i = 0; i < argc; i++) {
        mk_append(command, sizeof command, " %s", argv[i]);
    }
    snprintf(error, sizeof error, "mkernel sim %s", plan_op_name(op));
    pulse_begin(a.quiet ? NULL : error);
    error[0] = '\0';
    status = a.explore && a.dry_run ? STATUS_DONE
             : a.explore            ? sim_explore(&a, op, argc, argv)
                                    : sim_alone(&a, op, command, error, sizeof error);
    pulse_end();
    if (a.dry_run && a.explore && !status)
        command_say("sim", 0, "%lu x %lu ranks would run; nothing was started", a.nodes, a.gpus);
    if (status == STATUS_USAGE && *error)
        return command_refuse("sim", "%s", error);
    return status && *error ? command_say("sim", status, "%s", error) : status;
}

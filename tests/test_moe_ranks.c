/* MoE on many ranks, proven without them: random routing on 16 ranks in orders that are drawn, by
 * coroutines and by the kernels' own code; 64 ranks of one machine, whose results are checked; and
 * 256 and 1024 simulated ranks, in bounded time and memory. */
#include "tests/helpers/ops.h"

#include "tests/helpers/shell.h"

static const uint32_t forms[][2] = {{2, 8}, {4, 4}};
static const enum mk_op operators[] = {MK_OP_MOE_DISPATCH, MK_OP_MOE_COMBINE,
                                       MK_OP_MOE_DISPATCH_GEMM, MK_OP_MOE_FFN};

CASE(test_orders)
{
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        for (size_t form = 0; form < 2; form++)
            for (uint64_t seed = 1; seed <= 16 / OPS_PART + 1; seed++) {
                struct sim_world_config c = ops_config(operators[i], forms[form], ops_shapes[1]);
                c.seed = seed;
                c.order = seed % 2 ? SIM_ORDER_SRD : SIM_ORDER_RC;
                c.problem.deterministic = operators[i] == MK_OP_MOE_FFN && seed % 4 == 1;
                c.problem.moe.experts = 16 * (1 + seed % 3);
                world_right(&c);
            }
}

/* Returns what the command says, which ends with `status`. */
static const char *run(const char *command)
{
    static char out[8192];
    int status = shell(command, out, sizeof out);
    if (status)
        fail_msg("%s: %d, %s", command, status, out);
    return out;
}

CASE(test_kernels)
{
    run("mkernel sim moe_dispatch --explore --exec emulated --runs 1 --launches 2 --nodes 2 "
        "--gpus 8 2>&1");
    run("mkernel sim moe_ffn --explore --exec emulated --runs 1 --launches 1 --nodes 4 "
        "--gpus 4 --engine mma --roles compute=2,intra_comm=1,inter_send=1,inter_reduce=1 2>&1");
}

/* Each a process, over softnic. */
CASE(test_host)
{
    const char *out = run("mkernel run moe_ffn --exec host --nic soft --nodes 8 --gpus 8 --moe "
                          "16,64,32,128,4 --iters 2 --check 2>&1");
    assert_non_null(strstr(out, "2 launches on 64 ranks done, all right"));
}

/* The simulator's own account of a run: "13.89 million events in 18.29 s of one core (65.90 s):
 * 0.76 million/s; 2173 MiB". */
static void simulated(const char *command, double seconds, double megabytes)
{
    double events, core, wall, rate, used;
    const char *speed = strstr(run(command), "speed ");
    assert_non_null(speed);
    int found = sscanf(speed,
                       "speed %lf million events in %lf s of one core (%lf s): %lf million/s; "
                       "%lf MiB",
                       &events, &core, &wall, &rate, &used);
    assert_int_equal(found, 5);
    print_message("%s: %.1f s of one core, %.0f MiB\n", command, core, used);
    assert_true(core < seconds && used < megabytes);
}

CASE(test_simulated)
{
    simulated("mkernel sim moe_ffn --nodes 32 --gpus 8 --moe 128,7168,2048,256,8 --skew 0.3 "
              "--capacity 20000 2>&1",
              30, 1000);
    simulated("mkernel sim moe_dispatch --nodes 128 --gpus 8 --moe 128,7168,1024,8 --skew 0.3 "
              "--capacity 20000 2>&1",
              60, 4000);
}

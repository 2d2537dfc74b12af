/* `mkernel run OP`. */
#include "experiments/common/commands.h"
#include "experiments/job/run_options.h"
#include "experiments/run/run_rank.h"

/* A table reads by rows. */
#define AT(field) .offset = offsetof(struct run_options, field)
static const struct option_spec specs[] = {
    {"check", OPTION_FLAG, AT(check), NULL,
     "checks every launch against OpenBLAS; wrong results end with exit status 1",
     .group = LAUNCHES},
    {"trace", OPTION_TEXT, AT(trace), "FILE",
     "records tiles, waits and messages into a SQLite file", .max = 4095, .group = RESULTS},
    {"live", OPTION_FLAG, AT(live), NULL,
     "shows while the job runs what every CTA does and which rank it waits for. From another "
     "terminal: `mkernel tui --attach`"},
};

static const struct option_table table = {
    "run OP [OPTIONS]",
    "Runs an op on all ranks of a job. Without a launcher it starts the ranks itself, on this "
    "host; under torchrun, srun or\nmpirun this process is one of them.",
    specs, sizeof specs / sizeof *specs,
    "  mkernel run ag_gemm --nodes 2 --gpus 2 --check\n"
    "  mkernel run ag_gemm --shape 390,200,328 --nodes 3 --gpus 2 --iters 50 --check\n"
    "  mkernel run ring_attention --nodes 2 --gpus 2 --causal --check\n"
    "  mkernel run moe_dispatch_gemm --nodes 2 --gpus 2 --routing few --check\n"
    "  mkernel run moe_ffn --nodes 2 --gpus 2 --deterministic --check\n"
    "  mkernel run gemm_rs --nodes 2 --gpus 2 --deterministic --check\n"
    "  mkernel run gemm_ar --nodes 2 --gpus 2 --exec host --fabric efa --rails 2 --check\n"
    "  mkernel run gemm_rs --gpus 3 --exec emulated --check\n"
    "  mkernel run ag_gemm --gpus 4 --roles compute=3,intra_comm=2 --trace run.db\n"
    "  torchrun --nproc-per-node 8 --no-python mkernel run ag_gemm --exec cuda\n"};

int command_run(int argc, char **argv)
{
    static const struct run_subcommand run = {.mode = RUN_RUN,
                                              .name = "run",
                                              .table = &table,
                                              .takes_launches = 1,
                                              .iters = 10,
                                              .warmup = 1,
                                              .rank = run_rank};
    return run_start(argc, argv, &run);
}

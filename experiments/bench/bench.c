/* `mkernel bench`: ops are bench_op.c; what lies below an op has a bench of its own. */
#include "experiments/common/command_says.h"
#include "experiments/bench/bench.h"
#include "experiments/common/nearest.h"
#include "core/plan/plan.h"

#include <string.h>

int command_bench(int argc, char **argv)
{
    const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } below[] = {{"fabric", bench_fabric},
                 {"ring", bench_ring},
                 {"trace", bench_trace},
                 {"collective", bench_collective}};
    enum { BELOW = sizeof below / sizeof *below };
    const char *names[BELOW + MK_OPS];
    for (int i = 0; i < BELOW; i++) {
        names[i] = below[i].name;
        if (argc < 2 || strcmp(argv[1], below[i].name))
            continue;
        if (!below[i].run)
            return command_say("bench", STATUS_USAGE,
                               "%s is not in this build; `mkernel bench --help` lists what is",
                               argv[1]);
        return below[i].run(argc - 1, argv + 1);
    }
    if (argc < 2)
        return command_refuse("bench", "what to bench is missing (ag_gemm, fabric, ring, trace, "
                                       "collective)");
    if (argv[1][0] == '-' || plan_op_by_name(argv[1]) >= 0)
        return bench_op(argc, argv);
    for (int i = 0; i < MK_OPS; i++)
        names[BELOW + i] = plan_op_name(i);
    char near[NEAREST_TEXT];
    return command_say("bench", STATUS_USAGE,
                       "there is no bench %s%s; `mkernel bench --help` lists them", argv[1],
                       nearest_hint(near, argv[1], "", names, BELOW + MK_OPS));
}

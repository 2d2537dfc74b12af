#include "experiments/results/results_takes.h"

#include <string.h>

/* What only one of `bench` and `sim` takes. */
static const char *const only_bench[] = {"iters",  "warmup",  "burst",   "nic",    "fabric",
                                         "rails",  "verbs",   "vs",      "traced", "pace",
                                         "tuning", "timeout", "routing", NULL};
static const char *const only_sim[] = {"launches", "cluster",   "machine", "network", "slow",
                                       "jitter",   "skew",      "ids",     "plan",    "data",
                                       "ring",     "in-flight", "depth",   NULL};
/* What `bench` alone takes, where an emulated GPU is run: it has no speed. */
static const char *const only_timed[] = {"vs", "traced", NULL};

static int results_takes_among(const char *const *list, const char *name)
{
    for (; *list; list++)
        if (!strcmp(*list, name))
            return 1;
    return 0;
}

int result_exec_takes(const char *exec, const char *name)
{
    int simulated = !strcmp(exec, "sim");
    if (!strcmp(exec, "emulated") && results_takes_among(only_timed, name))
        return 0;
    if (!strncmp(name, "env.", 4) || results_takes_among(only_bench, name))
        return !simulated;
    return simulated || !results_takes_among(only_sim, name);
}

/* The order of the jobs of a sweep. */
#include "experiments/sweep/sweep.h"
#include "sim/clock.h"

void sweep_order(const struct sweep *s, struct sweep_job *jobs)
{
    for (uint32_t repeat = 0; repeat < s->repeats; repeat++) {
        struct sweep_job *round = jobs + (size_t)repeat * s->point_count;
        struct sim_random random = {sim_mix(s->seed) + repeat};
        for (uint32_t i = 0; i < s->point_count; i++)
            round[i] = (struct sweep_job){i, repeat};
        for (uint32_t i = s->point_count; i > 1; i--) { /* Fisher and Yates */
            uint32_t j = sim_random_below(&random, i);
            struct sweep_job other = round[i - 1];
            round[i - 1] = round[j];
            round[j] = other;
        }
    }
}

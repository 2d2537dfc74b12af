/* Under a launcher every rank has a command line of its own. What all must be alike in is compared
 * when they meet, under the options' names: what follows from a difference (the size of a heap, a
 * launch that no other rank makes, inputs of another seed) would be told in other words, or end as
 * wrong results. What is this rank's own business (NICs, result files) is not compared. */
#include "experiments/job/run.h"
#include "experiments/common/pulse.h"
#include "core/comm/agree.h"
#include "core/comm/comm.h"

#include <stdio.h>

int run_open(struct mk_comm **out, const struct mk_config *config, const struct run_job *job)
{
    const struct run_options *o = &job->options;
    const struct op_shape *shape = op_of(o->op)->shape;
    char names[PLAN_FIELDS + OP_DIMENSIONS][PROBLEM_FIELD_TEXT]; /* "--dtype", "--shape M" */
    uint32_t count = 0;
    struct agree_field fields[COMM_FIELDS] = {
        {"command (run, bench, tune)", o->mode, AGREE_OPAQUE},
        {"operator", (uint64_t)o->op, AGREE_OPAQUE},
        {"--exec", (uint64_t)o->exec, AGREE_OPAQUE},
        {"--nodes", o->nodes, AGREE_NUMBER},
        {"--gpus", o->gpus, AGREE_NUMBER},
        {"--fabric", (uint64_t)o->fabric, AGREE_OPAQUE},
        {"--shapes", agree_hash(o->shapes ? o->shapes : ""), AGREE_OPAQUE},
        {"--replicas", o->ask.replicas, AGREE_NUMBER},
        {"--tokens-now", agree_hash(o->tokens_now ? o->tokens_now : ""), AGREE_OPAQUE},
        {"--routing", (uint64_t)o->routing, AGREE_OPAQUE},
        {"--skew", agree_hash(o->skew ? o->skew : ""), AGREE_OPAQUE},
        {"--same-bits", job->problem.deterministic == MK_EVERYWHERE, AGREE_GIVEN},
        {"--iters", o->iters, AGREE_NUMBER},
        {"--warmup", o->warmup, AGREE_NUMBER},
        {"--burst", job->burst, AGREE_NUMBER},
        {"--seed", o->seed, AGREE_NUMBER},
        {"--check", o->check != 0, AGREE_GIVEN},
        {"--trace", o->trace != NULL, AGREE_GIVEN},
        {"--traced", o->traced != 0, AGREE_GIVEN},
        {"--why", o->why != 0, AGREE_GIVEN},
        {"--c-elsewhere", o->c_elsewhere != 0, AGREE_GIVEN},
        {"--samples", o->samples != 0, AGREE_GIVEN},
        {"--vs", (uint64_t)o->vs, AGREE_OPAQUE},
        {"--space", agree_hash(o->space ? o->space : ""), AGREE_OPAQUE},
        {"--rounds", o->rounds, AGREE_NUMBER},
        {"--verify", o->verify != 0, AGREE_GIVEN},
    };
    while (fields[count].name)
        count++;
    uint32_t first = count;
    const uint32_t asked = PLAN_IN_COMMAND | PLAN_IN_COMMAND_PLAN;
    for (const struct plan_field *f = NULL; (f = plan_field_next(f, asked));)
        for (uint32_t part = 0; part < f->parts || !part; part++) {
            const uint64_t value = plan_field_get(f + part, &job->problem);
            const int flag = f->kind == PLAN_FLAG || f->kind == PLAN_SUMS;
            problem_field_option(f, part, names[count - first]);
            fields[count] = (struct agree_field){names[count - first], flag ? value == 1 : value,
                                                 flag                     ? AGREE_GIVEN
                                                 : f->kind == PLAN_NUMBER ? AGREE_NUMBER
                                                                          : AGREE_OPAQUE};
            count++;
        }
    for (uint32_t i = 0; i < OP_DIMENSIONS; i++) { /* those behind its last are 0 */
        snprintf(names[count - first], sizeof names[0], "--%s %s", shape->option,
                 shape->dimensions[i].name ? shape->dimensions[i].name : "");
        fields[count] = (struct agree_field){names[count - first], o->ask.numbers[i], AGREE_NUMBER};
        count++;
    }
    int result = comm_open_alike(out, config, fields, count);
    if (!result)
        pulse_follow(*out);
    return result;
}

void run_close(struct mk_comm *comm)
{
    pulse_follow(NULL);
    mk_comm_close(comm);
}

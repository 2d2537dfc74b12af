/* Under a launcher every rank has a command line of its own. What all must be alike in is compared when they meet, under the
 * options' names: what follows from a difference (the size of a heap, a launch that nobody else makes, inputs of another seed)
 * would be told in other words, or end as wrong results. What is this rank's own business (NICs, result files) is not compared. */
#include "experiments/run.h"
#include "experiments/pulse.h"
#include "core/agree.h"
#include "core/comm.h"

int run_open(struct mk_comm **out, const struct mk_config *config, const struct run_job *job)
{
    const struct run_options *o = &job->options;
    const struct agree_field fields[] = {
        {"command (run, bench, tune)", o->mode, AGREE_OPAQUE},
        {"operator", (uint64_t)o->op, AGREE_OPAQUE},
        {"--exec", (uint64_t)o->exec, AGREE_OPAQUE},
        {"--nodes", o->nodes, AGREE_NUMBER},
        {"--gpus", o->gpus, AGREE_NUMBER},
        {"--fabric", (uint64_t)o->fabric, AGREE_OPAQUE},
        {"--shapes", agree_hash(o->shapes ? o->shapes : ""), AGREE_OPAQUE},
        {"--shape M", o->shape[0], AGREE_NUMBER},
        {"--shape N", o->shape[1], AGREE_NUMBER},
        {"--shape K", o->shape[2], AGREE_NUMBER},
        {"--attention batch", o->attention[0], AGREE_NUMBER},
        {"--attention sequence", o->attention[1], AGREE_NUMBER},
        {"--attention heads", o->attention[2], AGREE_NUMBER},
        {"--attention kv_heads", o->attention[3], AGREE_NUMBER},
        {"--attention head_dim", o->attention[4], AGREE_NUMBER},
        {"--causal", o->causal != 0, AGREE_GIVEN},
        {"--moe tokens", o->moe[0], AGREE_NUMBER},
        {"--moe hidden", o->moe[1], AGREE_NUMBER},
        {"--moe inner", o->moe[2], AGREE_NUMBER},
        {"--moe experts", o->moe[3], AGREE_NUMBER},
        {"--moe experts of a token", o->moe[4], AGREE_NUMBER},
        {"--routing", (uint64_t)o->routing, AGREE_OPAQUE},
        {"--b-layout", o->b_transposed != 0, AGREE_OPAQUE},
        {"--deterministic", o->deterministic != 0, AGREE_GIVEN},
        {"--roles compute", o->roles.ctas[MK_COMPUTE], AGREE_NUMBER},
        {"--roles intra_comm", o->roles.ctas[MK_INTRA_COMM], AGREE_NUMBER},
        {"--roles inter_send", o->roles.ctas[MK_INTER_SEND], AGREE_NUMBER},
        {"--roles inter_reduce", o->roles.ctas[MK_INTER_REDUCE], AGREE_NUMBER},
        {"--tile M", o->tile[0], AGREE_NUMBER},
        {"--tile N", o->tile[1], AGREE_NUMBER},
        {"--chunk-rows", o->chunk_rows, AGREE_NUMBER},
        {"--slices", o->slices, AGREE_NUMBER},
        {"--pieces", o->pieces, AGREE_NUMBER},
        {"--pace", o->pace, AGREE_NUMBER},
        {"--width", o->width, AGREE_NUMBER},
        {"--iters", o->iters, AGREE_NUMBER},
        {"--warmup", o->warmup, AGREE_NUMBER},
        {"--burst", job->burst, AGREE_NUMBER},
        {"--seed", o->seed, AGREE_NUMBER},
        {"--check", o->check != 0, AGREE_GIVEN},
        {"--trace", o->trace != NULL, AGREE_GIVEN},
        {"--traced", o->traced != 0, AGREE_GIVEN},
        {"--vs", agree_hash(o->vs ? o->vs : ""), AGREE_OPAQUE},
        {"--space", agree_hash(o->space ? o->space : ""), AGREE_OPAQUE},
        {"--rounds", o->rounds, AGREE_NUMBER},
        {"--verify", o->verify != 0, AGREE_GIVEN},
    };
    _Static_assert(sizeof fields / sizeof *fields <= COMM_FIELDS, "comm_open_alike takes them all");
    int result = comm_open_alike(out, config, fields, sizeof fields / sizeof *fields);
    if (!result)
        pulse_follow(*out);
    return result;
}

void run_close(struct mk_comm *comm)
{
    pulse_follow(NULL);
    mk_comm_close(comm);
}

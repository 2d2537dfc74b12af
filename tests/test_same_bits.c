/* A row of C has the bits that core/cta/sum_tree.h says, and no others, whatever M, the row's place,
 * the tile, one shot or two or blocks of columns, the roles, and 1, 2, 4 or 8 ranks on one node
 * or two: gemm_rs, gemm_ar, ag_gemm, moe_ffn and ring_attention, whose keys may lie in zigzag or
 * not, on the host's executor. Problems that cannot are refused. */
#include "core/ops/moe.h"
#include "tests/helpers/same_bits_attention.h"
#include "tests/helpers/same_bits_moe.h"

/* Whatever a host's plan may be. */
static void draw_plan(struct sim_random *r, struct mk_problem *q)
{
    static const uint32_t heights[] = {8, 16, 40, 64, 128};
    struct mk_tuning *t = &q->tuning;
    t->tile_m = heights[sim_random_below(r, 5)];
    t->tile_n = 8 * (1 + sim_random_below(r, 12));
    t->split.ctas[MK_COMPUTE] = 1 + sim_random_below(r, 4);
    for (int role = MK_INTRA_COMM; role < MK_ROLES; role++)
        t->split.ctas[role] =
            op_needs(q->op, &q->topo, (enum mk_role)role) ? 1 + sim_random_below(r, 2) : 0;
    t->shots = same_shots(r, q);
    q->b_transposed = (int)sim_random_below(r, 2);
}

static void sums(enum mk_op op)
{
    same_cases(op, 0, 100, draw_plan, NULL);
}

/* The norm of a row, too. */
CASE(test_norms)
{
    const uint32_t norm = MK_EPILOGUE_RESIDUAL | MK_EPILOGUE_RMSNORM;
    same_cases(MK_OP_GEMM_AR, norm, 60, draw_plan, NULL);
    same_cases(MK_OP_GEMM_RS, norm, 30, draw_plan, NULL);
}

CASE(test_sums)
{
    sums(MK_OP_GEMM_RS);
    sums(MK_OP_GEMM_AR);
    sums(MK_OP_AG_GEMM);
}

static void draw_layer_plan(struct sim_random *r, struct sim_world_config *c)
{
    struct mk_tuning *t = &c->problem.tuning;
    t->tile_m = 8 * (1 + sim_random_below(r, 8));
    t->tile_n = 16 * (1 + sim_random_below(r, 6));
    t->chunk_rows = 8 * (1 + sim_random_below(r, 4));
    for (int role = 0; role < MK_ROLES; role++)
        t->split.ctas[role] = op_needs(c->problem.op, &c->problem.topo, (enum mk_role)role)
                                  ? 1 + sim_random_below(r, 3)
                                  : 0;
}

CASE(test_moe_ffn)
{
    same_token_cases(60, 0, draw_layer_plan);
}

static void draw_attention_plan(struct sim_random *r, struct sim_world_config *c)
{
    struct mk_tuning *t = &c->problem.tuning;
    t->tile_m = 8 * (1 + sim_random_below(r, 10));
    t->chunk_rows = t->tile_m * (1 + sim_random_below(r, 4));
    for (int role = 0; role < MK_ROLES; role++)
        t->split.ctas[role] = op_needs(c->problem.op, &c->problem.topo, (enum mk_role)role)
                                  ? 1 + sim_random_below(r, 3)
                                  : 0;
}

CASE(test_ring_attention)
{
    same_attention_cases(16, 64, 1, 16, 8, draw_attention_plan);
    same_attention_cases(8, 128, 0, 8, 8, draw_attention_plan);
}

/* The numbers tell the tree from others: sums in the order of K, of blocks in their order, and without the cut differ. */
CASE(test_numbers_tell)
{
    const struct same_family *f = &same_families[0];
    uint32_t in_order = 0, uncut = 0, of_all = 0;
    for (uint32_t id = 0; id < SAME_IDS; id++)
        for (uint32_t col = 0; col < f->n; col++, of_all++) {
            float block[MK_SUM_BLOCKS], all = 0, plain;
            for (uint32_t i = 0; i < MK_SUM_BLOCKS; i++) {
                block[i] = same_block(f, id, col, i);
                all += block[i];
            }
            plain = ((block[0] + block[1]) + (block[2] + block[3])) +
                    ((block[4] + block[5]) + (block[6] + block[7]));
            const uint16_t right = mk_bf16_from_float(mk_sum_root(block, MK_SUM_BLOCKS));
            in_order += mk_bf16_from_float(all) != right;
            uncut += mk_bf16_from_float(plain) != right;
        }
    print_message("of %u numbers %u differ where blocks are added in their order, %u uncut\n",
                  of_all, in_order, uncut);
    assert_true(in_order > of_all / 4 && uncut > of_all / 4);
}

static void refused(struct mk_problem q, const char *says)
{
    struct mk_plan p;
    char error[512] = "";
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), -EINVAL);
    if (!strstr(error, says))
        fail_msg("'%s' does not say '%s'", error, says);
}

CASE(test_refused)
{
    struct mk_problem q = {.op = MK_OP_GEMM_RS, .topo = {1, 2, 0}, .m = 64, .n = 64, .k = 264};
    q.deterministic = MK_EVERYWHERE;
    refused(q, "K of a rank is a multiple of 64, and of all at least 512: 320");
    q.k = 64;
    refused(q, "256");
    q.k = 512;
    q.topo.gpus = 3;
    q.m = 63;
    refused(q, "on 3 ranks");
    q.topo = (struct mk_topo){4, 4, 0};
    q.m = 64;
    refused(q, "for 1, 2, 4 or 8 ranks");
    q.topo = (struct mk_topo){1, 2, 0};
    q.fp8 = q.b_transposed = 1;
    refused(q, "for bf16");
    q = (struct mk_problem){.op = MK_OP_MOE_FFN, .topo = {1, 3, 0}, .moe = {8, 64, 64, 6, 2}};
    q.deterministic = MK_EVERYWHERE;
    refused(q, "on 3 ranks: a token's experts are added in 8 runs");
    q.topo.gpus = 2;
    q.own[MOE_DROPS] = 1;
    refused(q, "follows from the other tokens");
    q.own[MOE_DROPS] = 0;
    q.fp8 = q.b_transposed = 1;
    refused(q, "for bf16");
    q = (struct mk_problem){.op = MK_OP_RING_ATTENTION, .topo = {1, 2, 0}};
    q.attention = (struct mk_attention){1, 1000, 2, 1, 64, .causal = 1};
    q.deterministic = MK_EVERYWHERE;
    refused(q, "in 4 parts of 250 rows: parts are multiples of 128 rows; the next sequence that "
               "works is 1021");
    q.tuning.tile_n = 64;
    refused(q, "with tiles of 64 keys: keys come in blocks of 128");
    q = (struct mk_problem){
        .op = MK_OP_REDUCE_SCATTER, .topo = {1, 2, 0}, .m = 16, .n = 64, .k = 64};
    q.deterministic = MK_EVERYWHERE;
    refused(q, "rank order");
    q = (struct mk_problem){
        .op = MK_OP_AG_GEMM, .exec = MK_EXEC_CUDA, .engine = MK_ENGINE_WGMMA, .sms = 132};
    q.topo = (struct mk_topo){1, 2, 0};
    q.m = 64;
    q.n = q.k = 1024;
    q.tuning = (struct mk_tuning){.tile_m = 64, .tile_n = 64, .cluster = 1, .shots = 1};
    q.deterministic = MK_EVERYWHERE;
    refused(q, "tiles of 64x64 on 1 CTAs with the same bits everywhere");
    q.op = MK_OP_GEMM_AR; /* of a rank's one block there are no two halves */
    q.topo.gpus = 8;
    refused(q, "tiles of 64x64 on 1 CTAs with the same bits everywhere");
}

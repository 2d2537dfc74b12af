/* MoE combine: what experts have made of tokens goes back, summed by weight. It is the last part of
 * the layer (core/roles/moe_ffn.h), for those who compute on dispatched rows by themselves.
 *
 * Operands
 *   rows_r [rows, H]            what the rank's experts have made, row by row where
 *                               core/roles/moe_dispatch.h says that rows_r of dispatch are
 *   ids_r [T, k] uint32_t       as dispatch had them
 *   weights_r [T, k] float      what each expert counts for
 *   Y_r [T, H]                  the sum over the k experts of weight * row; zeros for a token that
 *                               names no expert
 *
 * Roles
 *   intra_comm    makes the tables, as in dispatch
 *   inter_send    puts what there is to say to other nodes along the rail
 *   inter_reduce  adds rows and gives sums to where they are wanted, as in the layer; its rows are
 *                 the argument, complete when the launch begins, and only the rank itself reads
 *                 them
 *
 * Tables are made from the ids again, and nothing is kept between launches. What that costs: the
 * records of tokens, which bring the weights, that have to cross in any case, and the time to make
 * tables anew. Were dispatch's kept, one plan could not have a second batch under way before the first
 * has come back, and the order of launches would be part of what a sum means.
 *
 * Numbers: those of the layer in fast mode: sums are fp32 in one order, so every run gives the same
 * bits; sums of ranks and nodes are rounded to bf16 on their way.
 * Bytes moved, buffer reuse, deadlock freedom and flags: those of the layer; tokens do not move, and
 * nobody waits for rows. */
#ifndef MK_ROLES_MOE_COMBINE_H
#define MK_ROLES_MOE_COMBINE_H

#include "core/roles/moe_combine_plan.h"
#include "core/roles/moe_ffn.h"

MK_ROLE int moe_combine_inter_send(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    return moe_say(p, cta) || mk_cta_drain(cta);
}

MK_ROLES_OF(moe_combine, moe_make_tables(&p->layer.dispatch, cta),
            moe_combine_inter_send(&p->layer.dispatch, cta), moe_ffn_inter_reduce(&p->layer, cta));

#endif

/* MoE combine: the experts' rows of each token go back to its rank and are summed by weight. It is
 * the last part of the layer (core/roles/moe_ffn.h), for programs that compute on dispatched rows
 * themselves.
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
 *   inter_send    puts counts and records to other nodes along the rail
 *   inter_reduce  adds rows and sends sums as in the layer. Its rows are the argument: they are
 *                 complete when the launch begins, and only the rank itself reads them.
 *
 * Tables are made from the ids again, and nothing is kept between launches. That costs the time to
 * make them; the records of tokens, which bring the weights, cross in any case. If dispatch's
 * tables were kept, a plan could not have a second batch in flight before the first has come back,
 * and the order of launches would be part of what a sum means.
 *
 * Numbers
 *   Those of the layer in fast mode: sums are fp32 in one order, so every run gives the same bits;
 *   sums of ranks and nodes are rounded to bf16 when they are sent.
 *
 * Bytes moved, buffer reuse, deadlock freedom and flags
 *   Those of the layer, but tokens do not move and no role waits for rows. */
#pragma once

#include "core/roles/moe_combine_plan.h"
#include "core/roles/moe_ffn.h"

MK_ROLE int moe_combine_inter_send(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    return moe_say(p, cta) || mk_cta_drain(cta);
}

MK_ROLES_OF(moe_combine, moe_make_tables(&p->layer.dispatch, cta),
            moe_combine_inter_send(&p->layer.dispatch, cta), moe_ffn_inter_reduce(&p->layer, cta));

/* Sums whose bits depend neither on a plan nor on the number of ranks (MK_EVERYWHERE). One rule for
 * every executor.
 *
 *   K of all ranks lies in stages of MK_SUM_STAGE, and these in MK_SUM_BLOCKS blocks, the b-th from
 *   stage mk_sum_border(stages, b) on. A block is summed for itself, from zero, in the order of K.
 *   The blocks are the leaves of ((0+1)+(2+3))+((4+5)+(6+7)), in fp32; the root is rounded to bf16.
 *
 *   Every number that is added there is cut to its upper 3 bytes first (mk_sum_cut), wherever it is
 *   added. So what crosses a link takes 3 bytes and loses nothing by it: 2^-15 of a number at most,
 *   where rounding the root costs 2^-9.
 *
 *   A token's experts are added in such a tree, too (mk_sum_leaf): theirs are cut in as many runs
 *   by their numbers.
 *
 *   Of 1, 2, 4 or 8 ranks each has the blocks of one node of the tree: it sends one number, and
 *   what is left to add are the levels above. GPUs and host agree in all of it but the sums of a
 *   block, which on a GPU are the tensor
 * core's. */
#pragma once

#include "core/base.h"

#include <string.h>

#define MK_SUM_BLOCKS 8u
#define MK_SUM_STAGE 64u /* elements of K: a stage of the GEMM engines */

/* The stage that block `block` begins with; of MK_SUM_BLOCKS, where the last one ends. */
MK_PURE uint32_t mk_sum_border(uint32_t stages, uint32_t block)
{
    return (uint32_t)((uint64_t)stages * block / MK_SUM_BLOCKS);
}

MK_PURE float mk_sum_cut(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0xffffff00;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

MK_PURE float mk_sum_node(float left, float right)
{
    return mk_sum_cut(left) + mk_sum_cut(right);
}

/* The root over 1, 2, 4 or 8 nodes of one level, left to right. */
MK_PURE float mk_sum_root(float *node, uint32_t count)
{
    for (; count > 1; count /= 2)
        for (uint32_t i = 0; i < count / 2; i++)
            node[i] = mk_sum_node(node[2 * i], node[2 * i + 1]);
    return node[0];
}

/* The leaf that an expert's rows are added in, of `experts` of all ranks: of a token's leaf the
 * rows by weight, each product rounded to fp32, from zero in the order of experts. No rank of 1, 2,
 * 4 or 8 has a part of a leaf; one without rows is zero, as any node without is. */
MK_PURE uint32_t mk_sum_leaf(uint32_t experts, uint32_t expert)
{
    return (MK_SUM_BLOCKS * (expert + 1) - 1) / experts;
}

/* The root over all leaves, of numbers that travel whole: nothing is cut. */
MK_PURE float mk_sum_leaves(const float *leaf)
{
    return ((leaf[0] + leaf[1]) + (leaf[2] + leaf[3])) +
           ((leaf[4] + leaf[5]) + (leaf[6] + leaf[7]));
}

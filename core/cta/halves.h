/* A launch in two halves (mk_launch_begin, mk_launch_end), of operators whose plans can be made for
 * it (op_halves). The first half has the CTAs of all roles but inter_reduce: they send, and nothing
 * that they wait for comes from a second half. The second has those of inter_reduce, which take
 * what has come. Both are of one launch: of one epoch, with the same arguments, and CTAs keep their
 * numbers. On a GPU each is a kernel of its own, so SMs are free between them. */
#pragma once

#include "core/base.h"

enum mk_half { MK_WHOLE, MK_BEGIN, MK_END };

/* What a GPU reports in place of a wait's cause where a half is out of turn: graphs that hold
 * halves were not replayed in turn, which no call sees. */
#define GPU_CAUSE_OUT_OF_TURN 255u

/* The CTAs of a half, which are those from its first number on, up to its end. */
MK_PURE struct mk_role_split mk_half_split(const struct mk_role_split *s, enum mk_half half)
{
    struct mk_role_split of = *s;
    for (uint32_t role = 0; role < MK_ROLES; role++)
        if (half != MK_WHOLE && (half == MK_END) != (role == MK_INTER_REDUCE))
            of.ctas[role] = 0;
    return of;
}

MK_PURE uint32_t mk_half_first(const struct mk_role_split *s, enum mk_half half)
{
    return half == MK_END ? mk_total_ctas(s) - s->ctas[MK_INTER_REDUCE] : 0;
}

MK_PURE uint32_t mk_half_end(const struct mk_role_split *s, enum mk_half half)
{
    return mk_total_ctas(s) - (half == MK_BEGIN ? s->ctas[MK_INTER_REDUCE] : 0);
}

/* Of such a launch's split: which half it is. */
MK_PURE enum mk_half mk_half_of(const struct mk_role_split *s)
{
    return s->ctas[MK_INTER_REDUCE] ? MK_END : MK_BEGIN;
}

/* One list of an operator's roles, from which every executor's calls of them are made. */
#pragma once

#include "core/cta/cta.h"

/* Which of an operator's functions runs each role, as calls on its plan `p` and `cta`; 0: it has no
 * such role. Makes OP_run, what an executor calls for a CTA that does not compute. */
#define MK_ROLES_OF(op, intra_comm, inter_send, inter_reduce)                                      \
    MK_ROLE int op##_run(const struct op##_plan *p, struct mk_cta *cta)                            \
    {                                                                                              \
        return cta->role == MK_INTER_SEND     ? (inter_send)                                       \
               : cta->role == MK_INTER_REDUCE ? (inter_reduce)                                     \
                                              : (intra_comm);                                      \
    }                                                                                              \
    struct op##_plan /* so that a semicolon follows */

/* Counts the arrivals from one sender: which puts are whole, the values of their flags, how many to
 * tell the sender about. Arithmetic on memory; no NIC is called. */
#pragma once

#include "backends/efa/efa_imm.h"

struct efa_arriving {
    uint32_t flag;
    uint16_t parts, got; /* messages of the put (0: not known yet), and that have come */
    uint8_t growth, head, whole;
};

struct efa_counter {
    uint64_t flags;          /* that the heap has */
    uint64_t *values;        /* [flags]: of this sender's puts; all 0 at first */
    const uint64_t *landing; /* [EFA_WINDOW]: where the sender writes growths that do not fit */
    uint64_t counted;        /* puts that are whole, from the first, without a gap */
    uint32_t untold;         /* messages of those that no credit has told about yet */
    struct efa_arriving puts[EFA_WINDOW];
};

/* A flag that may be raised. */
struct efa_raise {
    uint32_t flag;
    uint64_t value;
};

/* Takes one immediate (no CREDIT). 1: its put is whole, all of its bytes are here, *raise says
 * which flag it raises; 0: more is to come; -EPROTO: no sender of this fabric sends that. The
 * sender starts a put to a flag after its last one to it was acknowledged, so that a message of the
 * second proves that the first is here. */
int efa_count_take(struct efa_counter *c, const struct efa_imm *imm, struct efa_raise *raise);

/* The 32 bits that go with every write of the efa fabric. SRD keeps no order, so each of them says
 * by itself which put it belongs to and how many messages make that put whole.
 *
 *   WHOLE, HEAD   kind 2 | number 8 | flag 20 | growth 2
 *   TAIL          kind 2 | number 8 | 0 10 | parts 12
 *   CREDIT        kind 2 | count 30
 *
 * number: the put's number in the order of this sender's puts to this receiver, modulo EFA_WINDOW.
 * A sender has fewer than that many on their way that the receiver has not acknowledged as whole,
 * so no two share a number. growth: the flag's new value less that of the sender's last put to it;
 * 0: it stands in the landing place of the number, as 64 bits. A WHOLE is a put of one message; a
 * HEAD is the first of several, each other one is a TAIL and says how many there are. Growths add
 * up in any order: the second of two puts to one flag may be whole first. A CREDIT goes the other
 * way: so many puts, from the first, are whole here (modulo 2^30). */
#pragma once

#include <stdint.h>

#define EFA_WINDOW 256u
#define EFA_MAX_FLAGS (1u << 20)
#define EFA_MAX_PARTS ((1u << 12) - 1)
#define EFA_MAX_GROWTH 3u
#define EFA_COUNT_MASK ((1u << 30) - 1)

enum efa_kind { EFA_WHOLE, EFA_HEAD, EFA_TAIL, EFA_CREDIT };

struct efa_imm {
    enum efa_kind kind;
    uint32_t number, flag, growth, parts, count;
};

static inline uint32_t efa_imm_head(int whole, uint64_t number, uint32_t flag, uint64_t growth)
{
    uint32_t small = growth <= EFA_MAX_GROWTH ? (uint32_t)growth : 0;
    return (whole ? EFA_WHOLE : (uint32_t)EFA_HEAD << 30) | (uint32_t)(number % EFA_WINDOW) << 22 |
           flag << 2 | small;
}

static inline uint32_t efa_imm_tail(uint64_t number, uint32_t parts)
{
    return (uint32_t)EFA_TAIL << 30 | (uint32_t)(number % EFA_WINDOW) << 22 | parts;
}

static inline uint32_t efa_imm_credit(uint64_t count)
{
    return (uint32_t)EFA_CREDIT << 30 | ((uint32_t)count & EFA_COUNT_MASK);
}

static inline struct efa_imm efa_imm_decode(uint32_t imm)
{
    struct efa_imm i = {.kind = (enum efa_kind)(imm >> 30)};
    if (i.kind == EFA_CREDIT) {
        i.count = imm & EFA_COUNT_MASK;
        return i;
    }
    i.number = imm >> 22 & (EFA_WINDOW - 1);
    if (i.kind == EFA_TAIL) {
        i.parts = imm & EFA_MAX_PARTS;
        return i;
    }
    i.flag = imm >> 2 & (EFA_MAX_FLAGS - 1);
    i.growth = imm & 3;
    return i;
}

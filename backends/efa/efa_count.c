#include "backends/efa/efa_count.h"

#include <errno.h>
#include <string.h>

static int efa_count_take_head(struct efa_counter *c, struct efa_arriving *put,
                               const struct efa_imm *imm)
{
    if (put->head || imm->flag >= c->flags || (imm->kind == EFA_WHOLE && put->parts))
        return -EPROTO;
    put->head = 1;
    put->flag = imm->flag;
    put->growth = (uint8_t)imm->growth;
    if (imm->kind == EFA_WHOLE)
        put->parts = 1;
    return 0;
}

static int efa_count_take_tail(struct efa_arriving *put, const struct efa_imm *imm)
{
    if (imm->parts < 2 || (put->parts && put->parts != imm->parts))
        return -EPROTO;
    put->parts = (uint16_t)imm->parts;
    return 0;
}

int efa_count_take(struct efa_counter *c, const struct efa_imm *imm, struct efa_raise *raise)
{
    struct efa_arriving *put = &c->puts[imm->number];
    if (put->whole)
        return -EPROTO;
    int wrong =
        imm->kind == EFA_TAIL ? efa_count_take_tail(put, imm) : efa_count_take_head(c, put, imm);
    if (wrong || (put->parts && put->got == put->parts))
        return -EPROTO;
    put->got++;
    if (!put->head || put->got != put->parts)
        return 0;
    put->whole = 1;
    raise->flag = put->flag;
    raise->value = c->values[put->flag] += put->growth ? put->growth : c->landing[imm->number];
    while (c->puts[c->counted % EFA_WINDOW].whole) {
        struct efa_arriving *first = &c->puts[c->counted++ % EFA_WINDOW];
        c->untold += first->parts;
        memset(first, 0, sizeof *first);
    }
    return 1;
}

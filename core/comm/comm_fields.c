/* What of a problem all ranks must ask for alike. */
#include "core/comm/comm_parts.h"
#include "core/ops/op.h"
#include "core/plan/plan_fields.h"

uint32_t comm_fields(const struct mk_comm *comm, const struct mk_problem *q,
                     struct agree_field out[AGREE_FIELDS])
{
    const struct op_descriptor *op = op_of(q->op);
    uint64_t numbers[OP_DIMENSIONS] = {0};
    uint32_t count = 0;
    _Static_assert(2 + OP_DIMENSIONS + PLAN_FIELDS + 4 <= AGREE_FIELDS, "a ballot holds them all");
    if (op)
        op_numbers(q, numbers);
    out[count++] = (struct agree_field){"op", q->op, AGREE_NUMBER};
    for (uint32_t i = 0; i < OP_DIMENSIONS; i++) { /* where operators differ, that is told */
        const char *name = op ? op->shape->dimensions[i].name : NULL;
        out[count++] = (struct agree_field){name ? name : "shape", numbers[i], AGREE_NUMBER};
    }
    for (const struct plan_field *f = plan_fields; f < plan_fields + PLAN_FIELDS; f++) {
        const int plain = f->kind == PLAN_NUMBER || f->kind == PLAN_FLAG || f->kind == PLAN_SUMS;
        out[count++] = (struct agree_field){plan_field_told(f), plan_field_get(f, q),
                                            plain ? AGREE_NUMBER : AGREE_OPAQUE};
    }
    out[count++] =
        (struct agree_field){"kind of device (its tuned plans are others)",
                             comm->tuning.count ? agree_hash(comm->device) : 0, AGREE_OPAQUE};
    return count;
}

const char *comm_fields_difference(const struct mk_comm *comm, const struct mk_problem *a,
                                   const struct mk_problem *b)
{
    struct agree_field of_a[AGREE_FIELDS], of_b[AGREE_FIELDS];
    uint32_t count = comm_fields(comm, a, of_a);
    comm_fields(comm, b, of_b);
    for (uint32_t i = 0; i < count; i++)
        if (of_a[i].value != of_b[i].value)
            return of_a[i].name;
    return NULL;
}

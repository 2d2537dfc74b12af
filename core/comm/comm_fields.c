/* What of a problem all ranks must ask for alike. */
#include "core/comm/comm_parts.h"
#include "core/ops/op.h"

uint32_t comm_fields(const struct mk_comm *comm, const struct mk_problem *q,
                     struct agree_field out[AGREE_FIELDS])
{
    const struct mk_tuning *t = &q->tuning;
    const struct op_descriptor *op = op_of(q->op);
    uint32_t eps_bits;
    memcpy(&eps_bits, &q->eps, sizeof eps_bits);
    uint64_t numbers[OP_DIMENSIONS] = {0};
    const char *names[OP_DIMENSIONS]; /* where operators differ, that is told */
    for (uint32_t i = 0; i < OP_DIMENSIONS; i++)
        names[i] = op && op->shape->dimensions[i].name ? op->shape->dimensions[i].name : "shape";
    if (op)
        op_numbers(q, numbers);
    const struct agree_field fields[] = {
        {"op", (uint64_t)q->op, 0},
        {names[0], numbers[0], 0},
        {names[1], numbers[1], 0},
        {names[2], numbers[2], 0},
        {names[3], numbers[3], 0},
        {names[4], numbers[4], 0},
        {names[5], numbers[5], 0},
        {"causal", q->attention.causal != 0, 0},
        {"split", q->attention.contiguous != 0, AGREE_OPAQUE},
        {op && op->limit ? op->limit->name : "limit", op_limit_of(q), 0},
        {"logical", op_logical(q), 0},
        {"overflow", (uint64_t)op_drops(q), AGREE_OPAQUE},
        {"tokens", (uint64_t)op_counted(q), AGREE_OPAQUE},
        {"launch", (uint64_t)op_halves(q), AGREE_OPAQUE},
        {"b_transposed", q->b_transposed != 0, 0},
        {"dtype", plan_dtype(q), AGREE_OPAQUE},
        {"b_scales", (uint64_t)q->b_columns, AGREE_OPAQUE},
        {"back", (uint64_t)q->back_fp8, AGREE_OPAQUE},
        {"epilogue", q->epilogue, AGREE_OPAQUE},
        {"eps", eps_bits, AGREE_OPAQUE},
        {"deterministic", (uint64_t)q->deterministic, 0},
        {"a_in_heap", q->a_in_heap != 0, 0},
        {"a_offset", q->a_in_heap ? q->a_offset : 0, 0},
        {"c_in_heap", q->c_in_heap != 0, 0},
        {"c_offset", q->c_in_heap ? q->c_offset : 0, 0},
        {"kind of device (its tuned plans are others)",
         comm->tuning.count ? agree_hash(comm->device) : 0, 1},
        {"compute CTAs", t->split.ctas[MK_COMPUTE], 0},
        {"intra_comm CTAs", t->split.ctas[MK_INTRA_COMM], 0},
        {"intra_comm warps of a compute block", t->split.intra_comm_warps, 0},
        {"inter_send CTAs", t->split.ctas[MK_INTER_SEND], 0},
        {"inter_reduce CTAs", t->split.ctas[MK_INTER_REDUCE], 0},
        {"tile_m", t->tile_m, 0},
        {"tile_n", t->tile_n, 0},
        {"cluster", t->cluster, 0},
        {"split_k", t->split_k, 0},
        {"chunk_rows", t->chunk_rows, 0},
        {"fanout", t->fanout, 0},
        {"slices", t->slices, 0},
        {"pieces", t->pieces, 0},
        {"pace", t->pace, 0},
        {"shots", t->shots, 0},
        {"timeout in ns", q->timeout_ns, 0},
        {"most SMs", q->sms_most, 0},
        {"engine", (uint64_t)q->engine, AGREE_OPAQUE},
    };
    _Static_assert(sizeof fields / sizeof *fields + 4 <= AGREE_FIELDS, "a ballot holds them all");
    memcpy(out, fields, sizeof fields);
    return sizeof fields / sizeof *fields;
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

/* The plans of operators that only move rows: their defaults, their checks and where everything
 * lies. */
#include "core/ops/move.h"

static const struct move_plan *move_plan_of(const struct mk_plan *p)
{
    return (const struct move_plan *)(const void *)p->own;
}

static struct move_plan *move_plan_in(struct mk_plan *p)
{
    return (struct move_plan *)(void *)p->own;
}

static void move_choose_shape(enum op_size size, uint64_t world, uint64_t unit, uint64_t *numbers)
{
    static const uint64_t rows[] = {[OP_SIZE_HOST] = 256, [OP_SIZE_EXPLORE] = 33};
    static const uint64_t columns[] = {
        [OP_SIZE_HOST] = 512, [OP_SIZE_GPU] = 8192, [OP_SIZE_EXPLORE] = 72};
    numbers[0] = mk_round_up(size == OP_SIZE_GPU ? 8192 : rows[size] * world, unit);
    numbers[1] = columns[size];
}

void op_choose_move(enum op_size size, uint64_t world, uint64_t *numbers)
{
    move_choose_shape(size, world, world, numbers);
}

void op_choose_move_square(enum op_size size, uint64_t world, uint64_t *numbers)
{
    move_choose_shape(size, world, world * world, numbers);
}

/* On a GPU all SMs move, half of them into the heaps, half out of this rank's. What takes from the
 * heap could post, and a rank has so many rings. */
static void move_choose_roles(const struct op_descriptor *op, struct mk_problem *q)
{
    uint32_t *ctas = q->tuning.split.ctas;
    for (int role = 0; role < MK_ROLES; role++)
        ctas[role] = op_needs_of(op, &q->topo, role) ? 1 : 0;
    if (q->exec != MK_EXEC_CUDA || q->sms < 8)
        return;
    ctas[MK_INTER_SEND] = q->topo.nodes > 1 ? 2 : 0;
    uint32_t rest = q->sms - ctas[MK_INTER_SEND], rings = MK_MAX_RINGS - ctas[MK_INTER_SEND];
    ctas[MK_INTER_REDUCE] = q->topo.nodes > 1 && rest / 2 > rings ? rings : rest / 2;
    ctas[MK_INTRA_COMM] = rest - ctas[MK_INTER_REDUCE];
}

/* On a GPU a chunk has 16 to 256 KB, and each CTA several of them where there is enough. */
static uint32_t move_choose_chunk(const struct op_descriptor *op, const struct mk_problem *q)
{
    uint64_t rows = q->m / op_unit_of(op, q, 0), row_bytes = q->k * op_factor_bytes(q);
    if (q->exec != MK_EXEC_CUDA)
        return 64;
    uint64_t fair = rows * row_bytes * q->topo.gpus / (4 * q->tuning.split.ctas[MK_INTRA_COMM]);
    fair = fair < 16384 ? 16384 : fair > 262144 ? 262144 : fair;
    uint64_t chunk = fair / row_bytes / 8 * 8;
    return chunk ? (uint32_t)chunk : 8;
}

static void move_choose(const struct op_descriptor *op, struct mk_problem *q)
{
    struct mk_tuning *t = &q->tuning;
    t->tile_m = t->tile_n = 0; /* there are none */
    t->cluster = t->pieces = 1;
    if (!mk_total_ctas(&t->split))
        move_choose_roles(op, q);
    if (!t->chunk_rows)
        t->chunk_rows = t->split.ctas[MK_INTRA_COMM] ? move_choose_chunk(op, q) : 64;
}

static int move_check_chunks(const struct mk_problem *q, char *error, size_t size)
{
    uint64_t rows = q->tuning.chunk_rows;
    if (rows % 8)
        return plan_refuse(error, size,
                           "chunks of %lu rows: a multiple of 8; the next that works is %lu", rows,
                           mk_round_up(rows, 8));
    if (rows * q->k > UINT32_MAX)
        return plan_refuse(error, size, "chunks of %lu rows: at most %lu of %lu elements", rows,
                           UINT32_MAX / q->k / 8 * 8, q->k);
    return plan_check_tuning(q, error, size);
}

int plan_fill_move(const struct op_descriptor *op, struct mk_plan *p, char *error, size_t size)
{
    struct mk_problem *q = &p->problem;
    struct move_plan *m = move_plan_in(p);
    move_choose(op, q);
    int result = move_check_chunks(q, error, size);
    if (result)
        return result;
    m->topo = q->topo;
    m->block_rows = (uint32_t)(q->m / op_unit_of(op, q, 0));
    m->chunk_rows = q->tuning.chunk_rows;
    m->chunks = (uint32_t)mk_ceil_div(m->block_rows, m->chunk_rows);
    m->row_bytes = q->k * op_factor_bytes(q);
    m->block_pitch = mk_round_up(m->block_rows * m->row_bytes, MK_HEAP_UNIT);
    return 0;
}

int plan_build_move(const struct op_descriptor *op, struct mk_plan *p, char *error, size_t size)
{
    const struct move_plan *m = move_plan_of(p);
    int result = plan_fill_move(op, p, error, size);
    result = result ? result : plan_lay_out(op, p, 0, m->chunk_rows * m->row_bytes, error, size);
    if (!result)
        p->chunks = mk_world(&m->topo) * m->chunks;
    return result;
}

void plan_move_tables(struct mk_plan *p, struct op_tables *t)
{
    struct move_plan *m = move_plan_in(p);
    uint32_t world = mk_world(&m->topo);
    OP_BUFFERS(t, {"come", m->come, 2, world, m->block_pitch});
    OP_FLAGS(t, {"arrival",
                 &m->flag_arrival,
                 {{'r', world, 1}, {'c', m->chunks, 1}},
                 "chunk %c of rank %r's A",
                 .producer = 'r'});
}

void plan_describe_move_chunk(const struct mk_plan *p, uint32_t id, uint32_t *rank,
                              uint32_t *number, uint64_t *bytes)
{
    const struct move_plan *m = move_plan_of(p);
    *rank = id / m->chunks;
    *number = id % m->chunks;
    *bytes = move_rows(m, *number) * m->row_bytes;
}

void plan_move_work(const struct mk_plan *p, uint32_t network_blocks, double *flop,
                    uint64_t *nvlink_bytes, uint64_t *network_bytes)
{
    const struct move_plan *m = move_plan_of(p);
    uint64_t block = m->block_rows * m->row_bytes;
    *flop = 0;
    *network_bytes = network_blocks * block;
    *nvlink_bytes = (uint64_t)m->topo.nodes * (m->topo.gpus - 1) * block;
}

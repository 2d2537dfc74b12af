/* AllGather, C = A of all ranks: what it is, which shapes it takes, and where everything lies. */
#include "core/roles/all_gather_plan.h"
#include "core/ops/op.h"

static const struct op_shape shape = {
    .option = "shape",
    .letters = "M,K",
    .heading = "M,K",
    .about = "all_gather: the ranks hold rows of A [M,K]",
    .defaults = "on the host 256 rows per rank,512; on GPUs 8192,8192",
    .explored = "33 rows per rank,72",
    .dimensions = {{"M", "M", offsetof(struct mk_problem, m), OP_MOST, .divides = "W"},
                   {"K", "K", offsetof(struct mk_problem, k), OP_MOST, .multiple = 8,
                    .why = "rows must be 16-byte multiples"}},
};

static void all_gather_choose_shape(enum op_size size, uint64_t world, uint64_t *numbers)
{
    static const uint64_t rows[] = {[OP_SIZE_HOST] = 256, [OP_SIZE_EXPLORE] = 33};
    static const uint64_t columns[] = {
        [OP_SIZE_HOST] = 512, [OP_SIZE_GPU] = 8192, [OP_SIZE_EXPLORE] = 72};
    numbers[0] = size == OP_SIZE_GPU ? mk_round_up(8192, world) : rows[size] * world;
    numbers[1] = columns[size];
}

/* On a GPU all SMs move, half of them into the heaps, half out of this rank's. What takes from the
 * heap could post, and a rank has so many rings. */
static void all_gather_choose_roles(struct mk_problem *q)
{
    uint32_t *ctas = q->tuning.split.ctas;
    for (int role = 0; role < MK_ROLES; role++)
        ctas[role] = op_needs(q->op, &q->topo, (enum mk_role)role) ? 1 : 0;
    if (q->exec != MK_EXEC_CUDA || q->sms < 8)
        return;
    ctas[MK_INTER_SEND] = q->topo.nodes > 1 ? 2 : 0;
    uint32_t rest = q->sms - ctas[MK_INTER_SEND], rings = MK_MAX_RINGS - ctas[MK_INTER_SEND];
    ctas[MK_INTER_REDUCE] = q->topo.nodes > 1 && rest / 2 > rings ? rings : rest / 2;
    ctas[MK_INTRA_COMM] = rest - ctas[MK_INTER_REDUCE];
}

/* On a GPU a chunk has 16 to 256 KB, and each CTA several of them where there is enough. */
static uint32_t all_gather_choose_chunk(const struct mk_problem *q)
{
    uint64_t rows = q->m / mk_world(&q->topo), row_bytes = q->k * 2;
    if (q->exec != MK_EXEC_CUDA)
        return 64;
    uint64_t fair = rows * row_bytes * q->topo.gpus / (4 * q->tuning.split.ctas[MK_INTRA_COMM]);
    fair = fair < 16384 ? 16384 : fair > 262144 ? 262144 : fair;
    uint64_t chunk = fair / row_bytes / 8 * 8;
    return chunk ? (uint32_t)chunk : 8;
}

static void all_gather_choose(struct mk_problem *q)
{
    struct mk_tuning *t = &q->tuning;
    t->tile_m = t->tile_n = 0; /* there are none */
    t->cluster = t->pieces = 1;
    if (!mk_total_ctas(&t->split))
        all_gather_choose_roles(q);
    if (!t->chunk_rows)
        t->chunk_rows = t->split.ctas[MK_INTRA_COMM] ? all_gather_choose_chunk(q) : 64;
}

static int all_gather_check_chunks(const struct mk_problem *q, char *error, size_t size)
{
    uint64_t rows = q->tuning.chunk_rows;
    if (rows % 8)
        return plan_refuse(error, size,
                           "chunks of %llu rows: a multiple of 8; the next that works is %llu",
                           (unsigned long long)rows, (unsigned long long)mk_round_up(rows, 8));
    if (rows * q->k > UINT32_MAX)
        return plan_refuse(error, size, "chunks of %llu rows: at most %llu of %llu elements",
                           (unsigned long long)rows,
                           (unsigned long long)(UINT32_MAX / q->k / 8 * 8),
                           (unsigned long long)q->k);
    return plan_check_tuning(q, error, size);
}

static int all_gather_build(struct mk_plan *p, char *error, size_t size)
{
    struct mk_problem *q = &p->problem;
    struct all_gather_plan *a = all_gather_plan_in(p);
    all_gather_choose(q);
    int result = all_gather_check_chunks(q, error, size);
    if (result)
        return result;
    uint32_t world = mk_world(&q->topo);
    a->topo = q->topo;
    a->k = (uint32_t)q->k;
    a->shard_rows = (uint32_t)(q->m / world);
    a->chunk_rows = q->tuning.chunk_rows;
    a->chunks = (uint32_t)mk_ceil_div(a->shard_rows, a->chunk_rows);
    a->row_bytes = (uint64_t)a->k * 2;
    a->shard_pitch = mk_round_up(a->shard_rows * a->row_bytes, MK_HEAP_UNIT);
    result = plan_lay_out(p, 0, a->chunk_rows * a->row_bytes, error, size);
    if (result)
        return result;
    p->chunks = world * a->chunks;
    return 0;
}

static void all_gather_tables(struct mk_plan *p, struct op_tables *t)
{
    struct all_gather_plan *a = all_gather_plan_in(p);
    uint32_t world = mk_world(&a->topo);
    OP_BUFFERS(t, {"gathered", a->gathered, 2, world, a->shard_pitch});
    OP_FLAGS(t, {"arrival",
                 &a->flag_arrival,
                 {{'r', world, 1}, {'c', a->chunks, 1}},
                 "chunk %c of rank %r's A",
                 .producer = 'r'});
}

static void all_gather_describe_tile(const struct mk_plan *p, uint32_t id, struct mk_tile *out)
{
}

static void all_gather_describe_chunk(const struct mk_plan *p, uint32_t id, uint32_t *rank,
                                      uint32_t *number, uint64_t *bytes)
{
    const struct all_gather_plan *a = all_gather_plan_of(p);
    *rank = id / a->chunks;
    *number = id % a->chunks;
    *bytes = all_gather_rows(a, *number) * a->row_bytes;
}

static void all_gather_work(const struct mk_plan *p, double *flop, uint64_t *nvlink_bytes,
                            uint64_t *network_bytes)
{
    const struct all_gather_plan *a = all_gather_plan_of(p);
    uint64_t shard = a->shard_rows * a->row_bytes;
    *flop = 0;
    *network_bytes = (a->topo.nodes - 1) * shard;
    *nvlink_bytes = (uint64_t)a->topo.nodes * (a->topo.gpus - 1) * shard;
}

const struct op_descriptor op_all_gather = {
    .help = "gathers A from all ranks",
    .shape = &shape,
    .choose_shape = all_gather_choose_shape,
    .arguments = {{"A", OP_BF16, "M/W,K"}, {"C", OP_BF16, "M,K", .output = 1}},
    .needs =
        {[MK_INTRA_COMM] = OP_ALWAYS, [MK_INTER_SEND] = OP_IF_NODES, [MK_INTER_REDUCE] = OP_ALWAYS},
    .knobs = OP_ROLES | OP_CHUNK_ROWS,
    .loose_chunks = 1,
    .build = all_gather_build,
    .tables = all_gather_tables,
    .describe_tile = all_gather_describe_tile,
    .describe_chunk = all_gather_describe_chunk,
    .work = all_gather_work,
};

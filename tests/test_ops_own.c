/* An operator whose numbers are its own needs no line outside its files and the registry: its
 * descriptor says where they lie in the problem, and what is shared reads them there. The table of
 * operators is compiled here once more, over a registry of two lines. */
#define MK_OPS_REGISTRY_H /* in place of core/ops/registry.h */
#define MK_OPERATORS(X)                                                                            \
    X(stencil, STENCIL, HOST)                                                                      \
    X(sort, SORT, GPU)
enum mk_op { MK_OP_STENCIL, MK_OP_SORT, MK_OPS };

/* The library's own table is linked, too. */
#define op_of own_of
#define op_on_gpu own_on_gpu
#define op_on_mma own_on_mma
#define op_is_tuned own_is_tuned
#define op_gpu_tile own_gpu_tile
#define op_list own_list
#define op_numbers own_numbers
#define op_problem_text own_problem_text
#define op_read_problem own_read_problem
#define op_set_numbers own_set_numbers
#define op_pieces own_pieces
#define op_needs own_needs
#define op_extents own_extents
#define op_arguments own_arguments
#define op_argument_type own_argument_type
#define op_has_fp8 own_has_fp8
#define op_has_fp16 own_has_fp16
#define op_counts own_counts
#define op_counted own_counted
#define op_has_back own_has_back
#define op_has_b_columns own_has_b_columns
#define op_has_bytes own_has_bytes
#define op_argument own_argument
#define op_bias_argument own_bias_argument
#define op_residual_argument own_residual_argument
#define op_new_residual_argument own_new_residual_argument
#define op_has_epilogue own_has_epilogue
#define op_has_fp8_on_mma own_has_fp8_on_mma
#define op_has_limit own_has_limit
#define op_limit_of own_limit_of
#define op_overflows own_overflows
#define op_drops own_drops
#define op_logical own_logical
#define op_launches own_launches
#define op_halves own_halves
#define op_has_halves own_has_halves
#define op_fit own_fit
#define op_unit own_unit
#define op_heap_offset own_heap_offset
#define plan_op_name own_op_name

#include "tests/helpers/test.h"
#include "core/ops/names.c"
#include "core/ops/op.c"

#define AT(i) offsetof(struct mk_problem, own[i])

static const struct op_shape grid = {
    .option = "grid",
    .letters = "X,Y,Z,H",
    .dimensions = {{"X", "width", AT(0), OP_MOST, .divides = NULL},
                   {"Y", "height", AT(1), OP_MOST, .divides = NULL},
                   {"Z", "depth", AT(2), OP_MOST, .divides = NULL},
                   {"H", "halo", AT(3), OP_MOST, .divides = NULL}}};

const struct op_descriptor op_stencil = {
    .shape = &grid,
    .arguments = {{"G", OP_FP32, "X,Y,Z/W", 0}, {"O", OP_BF16, "X,Y,2*H", 1}},
    .needs = {[MK_COMPUTE] = OP_ALWAYS, [MK_INTRA_COMM] = OP_IF_GPUS}};

/* All the numbers that there is room for. */
static const struct op_shape keys = {.option = "keys",
                                     .letters = "A,B,C,D,E,F",
                                     .dimensions = {{"A", "a", AT(0), OP_MOST, .divides = NULL},
                                                    {"B", "b", AT(1), OP_MOST, .divides = NULL},
                                                    {"C", "c", AT(2), OP_MOST, .divides = NULL},
                                                    {"D", "d", AT(3), OP_MOST, .divides = NULL},
                                                    {"E", "e", AT(4), OP_MOST, .divides = NULL},
                                                    {"F", "f", AT(5), OP_MOST, .divides = NULL}}};

const struct op_descriptor op_sort = {.shape = &keys, .arguments = {{"K", OP_UINT32, "F,A", 1}}};

CASE(numbers_lie_where_the_descriptor_says)
{
    struct mk_problem q = {.op = MK_OP_STENCIL, .topo = {.nodes = 1, .gpus = 2}};
    const uint64_t given[OP_DIMENSIONS] = {100, 20, 8, 3, 77, 77};
    uint64_t back[OP_DIMENSIONS] = {0};
    op_set_numbers(&q, given);
    assert_int_equal(op_numbers(&q, back), 4);
    assert_memory_equal(back, given, 4 * sizeof *given);
    assert_int_equal(q.own[3], 3);
    assert_int_equal(q.own[4], 0); /* behind its last */
    assert_int_equal(q.m | q.n | q.k | q.moe.tokens | q.attention.batch, 0);

    q.op = MK_OP_SORT;
    op_set_numbers(&q, given);
    assert_int_equal(op_numbers(&q, back), 6);
    assert_memory_equal(back, given, sizeof given);
}

CASE(formulas_of_arguments_know_them)
{
    struct mk_problem q = {.op = MK_OP_STENCIL, .topo = {.nodes = 1, .gpus = 2}};
    uint64_t bytes[MK_SPACES - 1];
    op_set_numbers(&q, (const uint64_t[OP_DIMENSIONS]){100, 20, 8, 3});
    assert_int_equal(op_extents(&q, bytes), 1 << 1);
    assert_int_equal(bytes[0], 100 * 20 * 4 * 4);
    assert_int_equal(bytes[1], 100 * 20 * 6 * 2);
    assert_int_equal(bytes[2], 0);
}

CASE(the_line_of_the_registry_is_all_that_names_it)
{
    char list[OP_LIST_TEXT];
    assert_string_equal(plan_op_name(MK_OP_STENCIL), "stencil");
    assert_string_equal(op_list(list, sizeof list, NULL, ", ", " and "), "stencil and sort");
    assert_int_equal(op_on_gpu(MK_OP_STENCIL), 0);
    assert_int_equal(op_on_gpu(MK_OP_SORT), 1);
    assert_null(op_of(MK_OPS));
}

/* How a plan lies: heap offsets, numbers of flags and what is said of them, from the operator's
 * tables of buffers and flags (struct op_tables). */
#include "core/ops/op.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

void op_add_buffers(struct op_tables *t, const struct op_buffer *buffers, size_t bytes)
{
    uint32_t count = t->buffer_count;
    t->buffer_count += (uint32_t)(bytes / sizeof *buffers);
    if (t->buffer_count <= OP_MOST_BUFFERS) /* else plan_lay_out refuses the plan */
        memcpy(t->buffers + count, buffers, bytes);
}

void op_add_flags(struct op_tables *t, const struct op_flags *flags, size_t bytes)
{
    uint32_t count = t->flag_count;
    t->flag_count += (uint32_t)(bytes / sizeof *flags);
    if (t->flag_count <= OP_MOST_FLAGS)
        memcpy(t->flags + count, flags, bytes);
}

/* UINT64_MAX: too many. */
static uint64_t layout_times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t layout_plus(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* Bytes of one copy. */
static uint64_t layout_bytes(const struct op_buffer *b)
{
    uint64_t bytes = layout_times(b->count, b->each);
    return bytes > UINT64_MAX - MK_HEAP_UNIT ? UINT64_MAX : mk_round_up(bytes, MK_HEAP_UNIT);
}

uint64_t plan_flag_count(const struct op_flags *f)
{
    uint64_t count = 1;
    for (const struct op_extent *e = f->extents; e->letter; e++)
        count = layout_times(count, e->count);
    return count;
}

int plan_lay_out(const struct op_descriptor *op, struct mk_plan *p, uint64_t tiles,
                 uint64_t put_bytes, char *error, size_t size)
{
    struct op_tables t = {.flag_count = 0};
    uint64_t flags = 0, bytes = 0, at = p->heap_base;
    uint32_t first = p->flag_base;
    op->tables(p, &t);
    if (t.buffer_count > OP_MOST_BUFFERS || t.flag_count > OP_MOST_FLAGS)
        return plan_refuse(error, size,
                           "%s lists %u buffers and %u arrays of flags: at most %u and %u",
                           plan_op_name(p->problem.op), t.buffer_count, t.flag_count,
                           OP_MOST_BUFFERS, OP_MOST_FLAGS);
    for (uint32_t i = 0; i < t.flag_count; i++)
        flags = layout_plus(flags, plan_flag_count(&t.flags[i]));
    for (uint32_t i = 0; i < t.buffer_count; i++)
        bytes = layout_plus(bytes, layout_times(t.buffers[i].copies, layout_bytes(&t.buffers[i])));
    int result = plan_take(p, tiles, flags, bytes, put_bytes, error, size);
    for (uint32_t i = 0; i < t.flag_count && !result; i++) {
        *t.flags[i].first = first;
        first += (uint32_t)plan_flag_count(&t.flags[i]);
    }
    for (uint32_t i = 0; i < t.buffer_count && !result; i++) {
        for (uint32_t copy = 0; copy < t.buffers[i].copies; copy++) {
            t.buffers[i].at[copy] = at;
            at += layout_bytes(&t.buffers[i]);
        }
        if (i < t.zero_buffers)
            p->zero_bytes = at - p->heap_base;
    }
    return result;
}

/* ---- what a flag announces ---- */

struct layout_index {
    const struct mk_topo *topo;
    uint32_t chunk; /* UINT32_MAX: none */
    uint32_t of[128], each[128];
};

static void layout_find(const struct op_flags *f, uint32_t index, struct layout_index *x)
{
    uint32_t count = 0, rest = index;
    while (f->extents[count].letter)
        count++;
    while (count--) {
        const struct op_extent *e = &f->extents[count];
        x->of[(unsigned char)e->letter] = rest % (uint32_t)e->count * e->each;
        x->each[(unsigned char)e->letter] = e->each;
        rest /= (uint32_t)e->count;
    }
    x->chunk = f->chunks ? index % f->chunks : x->each['c'] ? x->of['c'] : UINT32_MAX;
}

/* 1: the letter is a rank's. */
static int layout_rank(const struct layout_index *x, char letter, uint32_t *rank)
{
    const struct mk_topo *t = x->topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank);
    *rank = letter == 'r'                                        ? x->of['r']
            : letter == 'l'                                      ? mk_rank_at(t, node, x->of['l'])
            : letter == 'R'                                      ? mk_rank_at(t, x->of['n'], local)
            : letter == 'q' && mk_node_of(t, x->of['r']) == node ? x->of['r']
            : letter == 'q' ? mk_rank_at(t, mk_node_of(t, x->of['r']), local)
            : letter == 'p' ? mk_rank_at(t, node, mk_local_of(t, x->of['r']))
                            : t->rank;
    return strchr("rlRpqm", letter) != NULL;
}

static uint32_t layout_number(const struct layout_index *x, char letter)
{
    uint32_t rank, small = (unsigned char)tolower(letter);
    if (layout_rank(x, letter, &rank))
        return rank;
    return letter == 'c' ? x->chunk : x->of[small] + (isupper(letter) ? x->each[small] - 1 : 0);
}

void plan_describe_flag_of(const struct mk_topo *topo, const struct op_flags *f, uint32_t index,
                           struct mk_flag_meaning *out)
{
    struct layout_index x = {.topo = topo};
    size_t used = 0, most = sizeof out->text;
    layout_find(f, index, &x);
    for (const char *at = f->text; *at && used < most; at++) {
        if (*at != '%') {
            used += (size_t)snprintf(out->text + used, most - used, "%c", *at);
            continue;
        }
        uint32_t number = layout_number(&x, *++at);
        if (at[1] == '{') {
            used += (size_t)snprintf(out->text + used, most - used, "%c", at[2 + number]);
            at = strchr(at, '}');
        } else {
            used += (size_t)snprintf(out->text + used, most - used, "%u", number);
        }
    }
    out->chunk = x.chunk == UINT32_MAX ? UINT32_MAX : x.chunk + f->chunk_base;
    layout_rank(&x, f->producer, &out->producer);
}

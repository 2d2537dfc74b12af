/* Tables that say what the run was: run, rank, plan and the meaning of its ids, clocks, drops,
 * metrics. */
#include "core/plan/plan_fields.h"
#include "tracer/store.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tracer/reader.h"

/* 0 and what is no number: not known */
static void store_run_insert_known(struct insert *in, double value)
{
    if (isfinite(value) && value > 0)
        insert_real(in, value);
    else
        insert_integer(in, INSERT_NULL);
}

static void store_run_insert_word(struct insert *in, const char *text) /* "": not known */
{
    insert_text(in, text && *text ? text : NULL);
}

static const char *store_run_shape_of(const struct trace_plan *p, char *text, size_t size)
{
    if (*p->shape)
        return p->shape;
    snprintf(text, size, "%lu,%lu,%lu", p->problem.m, p->problem.n, p->problem.k);
    return text;
}

/* Numbers without a name are not in use. Kinds and states have theirs in schema.sql. */
static void store_list(struct insert *in, const char *table, const char *const *names, int count)
{
    insert_table(in, table, 2);
    for (int i = 0; i < count; i++) {
        if (!names[i])
            continue;
        insert_integer(in, i);
        insert_text(in, names[i]);
    }
}

static void store_names(struct insert *in)
{
    const char *roles[MK_ROLES], *causes[MK_CAUSES];
    for (int i = 0; i < MK_ROLES; i++)
        roles[i] = plan_role_name(i);
    for (int i = 0; i < MK_CAUSES; i++)
        causes[i] = plan_cause_name(i);
    store_list(in, "role", roles, MK_ROLES);
    store_list(in, "cause", causes, MK_CAUSES);
}

/* Options of a plan that its table has no column for: "plan 1: pace". A word is its unit. */
static void store_run_options(struct insert *in, const struct trace_plan *p)
{
    char name[48], words[PLAN_FIELD_TEXT];
    for (const struct plan_field *f = NULL;
         (f = plan_field_next(f, PLAN_IN_TRACE | PLAN_IN_TRACE_SET));) {
        const uint64_t value = plan_field_get(f, &p->problem);
        const int said = f->kind == PLAN_WORD || f->kind == PLAN_EPILOGUE;
        if (!value && !(f->in & PLAN_IN_TRACE))
            continue;
        snprintf(name, sizeof name, "plan %u: %s", p->id, plan_field_told(f));
        insert_text(in, name);
        insert_integer(in, INSERT_NULL);
        insert_real(in, (double)value);
        insert_text(in, said ? plan_field_text(f, value, words) : f->unit ? f->unit : "");
    }
}

/* The plan that the run is called after: that of the first launch, else the first; NULL: none. */
static const struct trace_plan *store_run_plan(const struct trace_data *d)
{
    const struct trace_plan *plan = d->launch_count ? data_launch_plan(d, 0, 1) : NULL;
    return plan ? plan : d->parts[0].plan_count ? &d->parts[0].plans[0] : NULL;
}

static void store_one_run(struct insert *in, const struct trace_data *d)
{
    const struct trace_run *u = d->run;
    const struct trace_part *p = &d->parts[0];
    const struct trace_plan *plan = store_run_plan(d);
    char shape[96] = "", started[32] = "";
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc))
        strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%SZ", &utc);
    insert_table(in, "run", 23);
    insert_integer(in, 1);
    insert_text(in, u->source ? u->source : "measured");
    insert_text(in, u->executor ? u->executor : "host");
    insert_text(in, plan ? plan_op_name(plan->problem.op) : "none");
    insert_text(in, u->shape ? u->shape
                    : plan   ? store_run_shape_of(plan, shape, sizeof shape)
                             : "");
    store_run_insert_word(in, u->fabric);
    store_run_insert_word(in, u->nic);
    INSERT_INTEGERS(in, p->topo.nodes, p->topo.gpus, u->seed ? *u->seed : INSERT_NULL);
    store_run_insert_word(in, u->command);
    store_run_insert_word(in, u->version);
    insert_text(in, started);
    INSERT_INTEGERS(in, d->origin, d->duration, d->events, d->put_count, d->dropped, d->residual);
    store_run_insert_known(in, u->peak_flops);
    store_run_insert_known(in, u->nvlink_bytes_per_s);
    store_run_insert_known(in, u->network_bytes_per_s);
    store_run_insert_known(in, u->memory_bytes_per_s);
}

static void store_ranks(struct insert *in, const struct trace_data *d)
{
    insert_table(in, "rank", 5);
    for (uint32_t r = 0; r < d->ranks; r++) {
        const struct trace_part *p = &d->parts[r];
        INSERT_INTEGERS(in, r, mk_node_of(&p->topo, r), mk_local_of(&p->topo, r));
        store_run_insert_word(in, p->host);
        store_run_insert_word(in, p->device);
    }
}

static void store_plans(struct insert *in, const struct trace_data *d)
{
    const struct trace_part *p = &d->parts[0];
    char shape[96];
    insert_table(in, "plan", 19);
    for (uint32_t i = 0; i < p->plan_count; i++) {
        const struct trace_plan *plan = &p->plans[i];
        const struct mk_problem *q = &plan->problem;
        const struct mk_tuning *t = &q->tuning;
        insert_integer(in, plan->id);
        insert_text(in, plan_op_name(q->op));
        insert_text(in, store_run_shape_of(plan, shape, sizeof shape));
        INSERT_INTEGERS(in, q->m, q->n, q->k, t->tile_m, t->tile_n, t->chunk_rows, t->pieces);
        for (int role = 0; role < MK_ROLES; role++)
            insert_integer(in, t->split.ctas[role]);
        INSERT_INTEGERS(in, q->deterministic, plan->tile_count, plan->chunk_count, plan->flag_base,
                        plan->flag_count);
    }
    insert_table(in, "work", 6);
    for (uint32_t r = 0; r < d->ranks; r++)
        for (uint32_t i = 0; i < d->parts[r].plan_count; i++) {
            const struct trace_plan *q = &d->parts[r].plans[i];
            if (!data_plan(d, 0, q->id) || data_plan(d, r, q->id) != q)
                continue; /* not a plan of the job */
            INSERT_INTEGERS(in, q->id, r);
            store_run_insert_known(in, q->flop);
            INSERT_INTEGERS(in, q->nvlink_bytes, q->network_bytes);
            double beyond = q->memory_bytes - d->run->cache_bytes;
            insert_real(in, beyond > 0 ? beyond : 0);
        }
}

static void store_tiles(struct insert *in, const struct trace_plan *p)
{
    insert_table(in, "tile", 7);
    for (uint32_t i = 0; p->tiles && i < p->tile_count; i++) {
        const struct mk_tile *t = &p->tiles[i];
        INSERT_INTEGERS(in, p->id, i, t->slab, t->row, t->col, t->rows, t->cols);
    }
    insert_table(in, "chunk", 5);
    for (uint32_t i = 0; p->chunks && i < p->chunk_count; i++)
        INSERT_INTEGERS(in, p->id, i, p->chunks[i].rank, p->chunks[i].number, p->chunks[i].bytes);
}

static int store_run_same_meaning(const struct mk_flag_meaning *a, const struct mk_flag_meaning *b)
{
    return a->producer == b->producer && a->chunk == b->chunk && !strcmp(a->text, b->text);
}

/* Rank 0's meaning goes for all (rank -1); another rank's is stored where it differs. */
static void store_flags(struct insert *in, const struct trace_data *d, const struct trace_plan *p)
{
    insert_table(in, "flag", 6);
    for (uint32_t i = 0; i < p->flag_count; i++)
        for (uint32_t r = 0; r < d->ranks; r++) {
            const struct trace_plan *q = data_plan(d, r, p->id);
            if (!q || q->flag_count != p->flag_count ||
                (r && store_run_same_meaning(&q->flags[i], &p->flags[i])))
                continue;
            INSERT_INTEGERS(in, p->id, (int64_t)p->flag_base + i, r ? (int64_t)r : -1,
                            q->flags[i].producer);
            uint32_t chunk = data_flag_chunk(d, q, &q->flags[i]);
            insert_integer(in, chunk == UINT32_MAX ? INSERT_NULL : chunk);
            insert_text(in, q->flags[i].text);
        }
}

static void store_run_insert_clock(struct insert *in, uint32_t rank, const char *domain,
                                   const struct trace_clock *c)
{
    insert_integer(in, rank);
    insert_text(in, domain);
    INSERT_INTEGERS(in, c->reference, c->offset);
    insert_real(in, c->drift);
    INSERT_INTEGERS(in, c->residual, c->samples, c->used);
}

static void store_run_insert_samples(struct insert *in, uint32_t rank, const char *domain,
                                     const struct trace_clock_sample *s, uint32_t count,
                                     const uint8_t *used)
{
    for (uint32_t i = 0; i < count; i++) {
        insert_integer(in, rank);
        insert_text(in, domain);
        INSERT_INTEGERS(in, i, s[i].local, s[i].remote, s[i].bracket, used[i]);
    }
}

static void store_clocks(struct insert *in, const struct trace_data *d)
{
    insert_table(in, "clock", 8);
    for (uint32_t r = 0; r < d->ranks; r++) {
        store_run_insert_clock(in, r, "host", &d->clocks[r].host);
        struct trace_clock gpu = d->clocks[r].gpu;
        gpu.residual += d->parts[r].gpu_residual;
        if (d->parts[r].gpu_samples || d->parts[r].gpu_residual)
            store_run_insert_clock(in, r, "gpu", &gpu);
    }
    insert_table(in, "clock_sample", 7);
    for (uint32_t r = 0; r < d->ranks; r++) {
        const struct trace_part *p = &d->parts[r];
        store_run_insert_samples(in, r, "host", p->host_clock, p->host_samples,
                                 d->clocks[r].host_used);
        store_run_insert_samples(in, r, "gpu", p->gpu_clock, p->gpu_samples, d->clocks[r].gpu_used);
    }
}

static void store_drops(struct insert *in, const struct trace_data *d)
{
    insert_table(in, "\"drop\"", 3);
    for (uint32_t r = 0; r < d->ranks; r++) {
        for (uint32_t i = d->rank_node[r]; i < d->rank_node[r + 1]; i++)
            if (d->nodes[i].leaf && d->nodes[i].dropped)
                INSERT_INTEGERS(in, r, d->nodes[i].id, d->nodes[i].dropped);
        if (d->parts[r].messages_dropped) {
            INSERT_INTEGERS(in, r, INSERT_NULL, d->parts[r].messages_dropped);
        }
    }
    insert_table(in, "metric", 4);
    for (uint32_t i = 0; i < d->parts[0].plan_count; i++)
        store_run_options(in, &d->parts[0].plans[i]);
    for (uint32_t i = 0; i < d->run->metric_count; i++) {
        const struct trace_metric *m = &d->run->metrics[i];
        if (!isfinite(m->value))
            continue;
        insert_text(in, m->name);
        insert_integer(in, INSERT_NULL);
        insert_real(in, m->value);
        insert_text(in, m->unit);
    }
}

void store_run(struct insert *in, const struct trace_data *d)
{
    store_names(in);
    store_one_run(in, d);
    store_ranks(in, d);
    store_plans(in, d);
    for (uint32_t i = 0; i < d->parts[0].plan_count; i++) {
        store_tiles(in, &d->parts[0].plans[i]);
        store_flags(in, d, &d->parts[0].plans[i]);
    }
    store_clocks(in, d);
    store_drops(in, d);
}

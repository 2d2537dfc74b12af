#include "sim/hopper/known.h"

#include <stdlib.h>
#include <string.h>

enum { MEMO = 512 };

struct memo {
    uint64_t a, b;
    struct known *result;
};

struct known_table {
    uint32_t sms, slots;
    uint64_t next_id;
    struct known *free, *made; /* made: all that there are, in use or not */
    struct known_chunk *free_chunks, *made_chunks;
    struct memo memo[MEMO];
};

static struct known_chunk *chunk_make(struct known_table *t, const struct known_chunk *from)
{
    struct known_chunk *c = t->free_chunks;
    if (c)
        memcpy(&t->free_chunks, c->clock, sizeof c);
    else if (!(c = malloc(sizeof *c)))
        abort();
    else {
        c->made_before = t->made_chunks;
        t->made_chunks = c;
    }
    if (from)
        memcpy(c->clock, from->clock, sizeof c->clock);
    else
        memset(c->clock, 0, sizeof c->clock);
    c->references = 1;
    return c;
}

static void chunk_drop(struct known_table *t, struct known_chunk *c)
{
    if (!c || --c->references)
        return;
    memcpy(c->clock, &t->free_chunks, sizeof c);
    t->free_chunks = c;
}

static struct known_chunk *chunk_keep(struct known_chunk *c)
{
    if (c)
        c->references++;
    return c;
}

struct known_table *known_table_create(uint32_t sms)
{
    struct known_table *t = calloc(1, sizeof *t);
    if (t) {
        t->sms = sms;
        t->slots = KNOWN_VIEWS * sms;
        t->next_id = 1;
    }
    return t;
}

static struct known *make(struct known_table *t)
{
    struct known *k = t->free;
    if (k)
        memcpy(&t->free, k->chunks, sizeof k);
    else if (!(k = malloc(sizeof *k + t->slots * sizeof *k->chunks)))
        abort();
    else {
        k->made_before = t->made;
        t->made = k;
    }
    k->id = t->next_id++;
    k->references = 1;
    return k;
}

struct known *known_keep(struct known *k)
{
    if (k)
        k->references++;
    return k;
}

void known_drop(struct known_table *t, struct known *k)
{
    if (!k || --k->references)
        return;
    for (uint32_t i = 0; i < t->slots; i++)
        chunk_drop(t, k->chunks[i]);
    memcpy(k->chunks, &t->free, sizeof k);
    t->free = k;
}

void known_table_destroy(struct known_table *t)
{
    if (!t)
        return;
    while (t->made) {
        struct known *k = t->made;
        t->made = k->made_before;
        free(k);
    }
    while (t->made_chunks) {
        struct known_chunk *c = t->made_chunks;
        t->made_chunks = c->made_before;
        free(c);
    }
    free(t);
}

static struct memo *memo_of(struct known_table *t, uint64_t a, uint64_t b)
{
    return &t->memo[(a * 0x9e3779b97f4a7c15ull ^ b * 0xc2b2ae3d27d4eb4full) >> 32 & (MEMO - 1)];
}

static struct known *remember(struct known_table *t, uint64_t a, uint64_t b, struct known *result)
{
    struct memo *m = memo_of(t, a, b);
    known_drop(t, m->result);
    *m = (struct memo){a, b, known_keep(result)};
    return result;
}

/* 1: a has all of b; 2: b has all of a; 0: neither. */
static int compare(const struct known_chunk *a, const struct known_chunk *b)
{
    uint32_t less = 0, more = 0;
    for (uint32_t i = 0; i < KNOWN_ENTRIES; i++) {
        less |= a->clock[i] < b->clock[i];
        more |= a->clock[i] > b->clock[i];
    }
    return !less ? 1 : !more ? 2 : 0;
}

static struct known_chunk *chunk_join(struct known_table *t, struct known_chunk *a,
                                      struct known_chunk *b)
{
    if (a == b || !b)
        return chunk_keep(a);
    if (!a)
        return chunk_keep(b);
    int order = compare(a, b);
    if (order)
        return chunk_keep(order == 1 ? a : b);
    struct known_chunk *c = chunk_make(t, a);
    for (uint32_t i = 0; i < KNOWN_ENTRIES; i++)
        c->clock[i] = c->clock[i] > b->clock[i] ? c->clock[i] : b->clock[i];
    return c;
}

struct known *known_join(struct known_table *t, struct known *a, struct known *b)
{
    if (!b || a == b)
        return known_keep(a);
    if (!a)
        return known_keep(b);
    struct memo *m = memo_of(t, a->id, b->id);
    if (m->a == a->id && m->b == b->id)
        return known_keep(m->result);
    uint64_t ida = a->id, idb = b->id;
    struct known *k = make(t);
    int is_a = 1, is_b = 1;
    for (uint32_t i = 0; i < t->slots; i++) {
        k->chunks[i] = chunk_join(t, a->chunks[i], b->chunks[i]);
        is_a &= k->chunks[i] == a->chunks[i];
        is_b &= k->chunks[i] == b->chunks[i];
    }
    if (is_a || is_b) {
        known_drop(t, k);
        k = known_keep(is_a ? a : b);
    }
    return remember(t, ida, idb, k);
}

struct known *known_bridge(struct known_table *t, struct known *k, int shared, int global)
{
    if (!k)
        return NULL;
    uint64_t what = UINT64_MAX - (uint64_t)(shared * 2 + global), id = k->id;
    struct memo *m = memo_of(t, id, what);
    if (m->a == id && m->b == what)
        return known_keep(m->result);
    struct known *made = make(t);
    for (uint32_t i = 0; i < t->slots; i++) {
        uint32_t view = i / t->sms;
        if ((view == KNOWN_ASYNC_SHARED && shared) || (view == KNOWN_ASYNC_GLOBAL && global))
            made->chunks[i] = chunk_join(t, k->chunks[i], k->chunks[i % t->sms]);
        else
            made->chunks[i] = chunk_keep(k->chunks[i]);
    }
    return remember(t, id, what, made);
}

struct known *known_reads(struct known_table *t, struct known *k)
{
    if (!k)
        return NULL;
    struct known *made = make(t);
    for (uint32_t i = 0; i < t->slots; i++) {
        made->chunks[i] = NULL;
        if (i >= t->sms || !k->chunks[i])
            continue;
        made->chunks[i] = chunk_make(t, NULL);
        memcpy(made->chunks[i]->clock + KNOWN_WGMMA, k->chunks[i]->clock + KNOWN_WGMMA,
               (KNOWN_STORE_WRITE - KNOWN_WGMMA) * sizeof(uint32_t));
        memcpy(made->chunks[i]->clock + KNOWN_LOAD, k->chunks[i]->clock + KNOWN_LOAD,
               KNOWN_MBARRIERS * sizeof(uint32_t));
    }
    return made;
}

struct known *known_raise(struct known_table *t, struct known *k, enum known_view view, uint32_t sm,
                          uint32_t entry, uint32_t clock)
{
    uint32_t place = (uint32_t)view * t->sms + sm;
    if (k && k->chunks[place] && k->chunks[place]->clock[entry] >= clock)
        return k;
    struct known *made = k;
    if (!k || k->references > 1) {
        made = make(t);
        for (uint32_t i = 0; i < t->slots; i++)
            made->chunks[i] = k ? chunk_keep(k->chunks[i]) : NULL;
        known_drop(t, k);
    } else {
        made->id = t->next_id++; /* it is another one now */
    }
    struct known_chunk *c = made->chunks[place];
    if (!c || c->references > 1) {
        made->chunks[place] = chunk_make(t, c);
        chunk_drop(t, c);
        c = made->chunks[place];
    }
    c->clock[entry] = clock;
    return made;
}

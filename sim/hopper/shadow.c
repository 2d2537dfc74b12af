#include "sim/hopper/shadow.h"
#include "sim/large.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_NODES = 1 << 26,
    MORE_NODES = 1 << 20, /* of one access */
    FEW_NODES = 1 << 16,  /* not worth a sweep */
    SHORT_CHAIN = 8,
    GAP = 4096
};

/* A state is the index of its last node: the last read since the last write; through `before` the
 * reads before it, down to the write. So one more reader is one more node, however many there are.
 * Whoever accesses again takes the place of what it did before; of a long chain of reads that is
 * made good when it has doubled, so that the next of many readers does not look at all of them. */
struct shadow_node {
    struct shadow_event event;
    uint32_t before; /* a smaller index; 0: the first */
    uint32_t depth;  /* how many are before */
    uint32_t first;  /* of the chain; that node itself: 0 */
    uint32_t writes; /* of those behind the first */
};

/* Of the table that finds states. The hash stands beside the number, so that others' histories,
 * which lie anywhere in memory, are not looked at. */
struct shadow_slot {
    uint32_t hash, id; /* id 0: empty */
};

#define NODE_BYTES ((MOST_NODES + MORE_NODES) * sizeof(struct shadow_node))

int shadow_open(struct shadow *s, size_t bytes, uint32_t sms)
{
    memset(s, 0, sizeof *s);
    s->bytes = bytes;
    s->sms = sms;
    s->node_most = MOST_NODES;
    s->sweep_at = FEW_NODES;
    s->entries = sms * KNOWN_ENTRIES;
    s->path = malloc(4 * ((size_t)s->entries + SHORT_CHAIN) * sizeof *s->path);
    s->read_by = calloc(s->entries, sizeof *s->read_by);
    s->node_count = SHADOW_SPECIALS;
    s->memo_turn = 1;
    s->table_size = 1 << 12;
    s->nodes = large_map(NODE_BYTES);
    s->table = large_map(s->table_size * sizeof *s->table);
    s->memory = large_map(bytes);
    s->states = large_map(bytes);
    if (!s->nodes || !s->table || !s->path || !s->read_by || !s->memory || !s->states) {
        shadow_close(s);
        return -ENOMEM;
    }
    return 0;
}

void shadow_close(struct shadow *s)
{
    large_unmap(s->memory, s->bytes);
    large_unmap(s->states, s->bytes);
    large_unmap(s->nodes, NODE_BYTES);
    large_unmap(s->table, s->table_size * sizeof *s->table);
    free(s->path);
    free(s->read_by);
    memset(s, 0, sizeof *s);
}

void shadow_set(struct shadow *s, const void *address, size_t bytes, uint32_t state)
{
    size_t first = (size_t)((const uint8_t *)address - s->memory) / 4, count = (bytes + 3) / 4;
    for (size_t i = 0; i < count; i++)
        s->states[first + i] = state;
}

void *shadow_allocate(struct shadow *s, size_t bytes, uint32_t state)
{
    size_t at = (s->used + GAP + 1023) & ~(size_t)1023;
    if (bytes > s->bytes || at + GAP > s->bytes - bytes)
        return NULL;
    s->used = at + bytes;
    shadow_set(s, s->memory + at, bytes, state);
    return s->memory + at;
}

/* ---- states ---- */

static uint32_t hash_of(uint32_t before, const struct shadow_event *event)
{
    uint64_t h = before, word[2];
    memcpy(word, event, sizeof word);
    h = (h ^ word[0]) * 0x9e3779b97f4a7c15ull;
    h = (h ^ h >> 29 ^ word[1]) * 0xbf58476d1ce4e5b9ull;
    return (uint32_t)(h >> 32);
}

static void enter(struct shadow_slot *table, uint32_t size, struct shadow_slot slot)
{
    uint32_t at = slot.hash & (size - 1);
    while (table[at].id)
        at = (at + 1) & (size - 1);
    table[at] = slot;
}

/* History is forgotten: what happened before now is taken to be known to all. Nothing false is
 * reported for it. */
static void forget(struct shadow *s)
{
    for (size_t i = 0; i < s->used / 4; i++)
        if (s->states[i] >= SHADOW_SPECIALS)
            s->states[i] = SHADOW_INITIAL;
    memset(s->table, 0, s->table_size * sizeof *s->table);
    s->cut++;
    s->table_used = 0;
    s->node_count = SHADOW_SPECIALS;
    s->memo_turn++;
}

static void grow_table(struct shadow *s)
{
    uint32_t size = s->table_size * 2;
    struct shadow_slot *table = large_map(size * sizeof *table);
    if (!table)
        abort();
    for (uint32_t i = 0; i < s->table_size; i++)
        if (s->table[i].id)
            enter(table, size, s->table[i]);
    large_unmap(s->table, s->table_size * sizeof *table);
    s->table = table;
    s->table_size = size;
}

/* Most nodes are soon of no word any more. Those that are move together, in their order, so that
 * what an access looks at stays in the caches. */
static void sweep(struct shadow *s)
{
    const size_t words = s->used / 4;
    uint32_t *moved = &s->table->hash, count = SHADOW_SPECIALS; /* where a node goes; 0: nowhere */
    memset(s->table, 0, s->table_size * sizeof *s->table); /* more than twice the nodes' number */
    for (size_t i = 0; i < words; i++)
        for (uint32_t id = s->states[i]; id >= SHADOW_SPECIALS && !moved[id];
             id = s->nodes[id].before)
            moved[id] = 1;
    for (uint32_t id = SHADOW_SPECIALS; id < s->node_count; id++) {
        if (!moved[id])
            continue;
        s->nodes[count] = s->nodes[id];
        s->nodes[count].before = moved[s->nodes[id].before];
        s->nodes[count].first = moved[s->nodes[id].first];
        moved[id] = count++;
    }
    for (size_t i = 0; i < words; i++)
        if (s->states[i] >= SHADOW_SPECIALS)
            s->states[i] = moved[s->states[i]];
    memset(s->table, 0, s->table_size * sizeof *s->table);
    for (uint32_t id = SHADOW_SPECIALS; id < count; id++)
        enter(s->table, s->table_size,
              (struct shadow_slot){hash_of(s->nodes[id].before, &s->nodes[id].event), id});
    s->node_count = count;
    s->table_used = count - SHADOW_SPECIALS;
    s->memo_turn++;
    /* as long again as this took */
    s->sweep_at = count + FEW_NODES + (count > words / 8 ? count : (uint32_t)(words / 8));
    if (count > s->node_most / 2)
        forget(s);
}

/* The state in which `event` follows those of state `before` (0: it is the first). */
static uint32_t intern(struct shadow *s, uint32_t before, const struct shadow_event *event)
{
    uint32_t hash = hash_of(before, event), at = hash & (s->table_size - 1);
    for (; s->table[at].id; at = (at + 1) & (s->table_size - 1)) {
        const struct shadow_node *n = &s->nodes[s->table[at].id];
        if (s->table[at].hash == hash && n->before == before &&
            !memcmp(&n->event, event, sizeof *event))
            return s->table[at].id;
    }
    uint32_t id = s->node_count++;
    s->nodes[id] = (struct shadow_node){.event = *event, .before = before};
    if (before) {
        const struct shadow_node *last = &s->nodes[before];
        s->nodes[id].depth = last->depth + 1;
        s->nodes[id].first = last->first ? last->first : before;
        s->nodes[id].writes = last->writes + (event->kind & ACCESS_WRITE);
    }
    s->table[at] = (struct shadow_slot){hash, id};
    if (++s->table_used * 2 > s->table_size)
        grow_table(s);
    return id;
}

/* ---- checks ---- */

static int knows(const struct shadow *s, const struct shadow_actor *a, enum known_view view,
                 const struct shadow_event *e)
{
    if (e->entry == a->entry && e->clock >= a->began)
        return view == KNOWN_GENERIC || e->clock <= a->bridged[view];
    return known_clock(a->known, s->sms, view, e->entry) >= e->clock;
}

/* Through which view the access must know of `past`. Where an asynchronous write follows ordinary
 * reads of shared memory, no proxy fence is asked for: they have returned before the barrier that
 * lets the write begin (and CUTLASS's pipelines do so). */
static enum known_view view_for(const struct shadow_event *e, const struct shadow_event *past,
                                enum known_view async)
{
    if (!(e->kind & ACCESS_ASYNC) || (past->kind & ACCESS_ASYNC))
        return KNOWN_GENERIC;
    return !(past->kind & ACCESS_WRITE) && async == KNOWN_ASYNC_SHARED ? KNOWN_GENERIC : async;
}

static int wrong(struct shadow *s, const struct shadow_actor *a, const struct shadow_event *e,
                 const struct shadow_event *past, enum known_view async, const void *address)
{
    if ((e->kind & past->kind & ACCESS_STRONG))
        return 0;
    enum known_view view = view_for(e, past, async);
    if (knows(s, a, view, past))
        return 0;
    enum shadow_fault fault = view != KNOWN_GENERIC && knows(s, a, KNOWN_GENERIC, past)
                                  ? SHADOW_NO_PROXY
                              : past->kind & ACCESS_WRITE ? SHADOW_RACE_WRITE
                                                          : SHADOW_RACE_READ;
    s->fault(s->context, fault, e, past, address);
    return 1;
}

/* The state in which the last event of `id` follows those of `before`. */
static uint32_t again(struct shadow *s, uint32_t before, uint32_t id)
{
    const struct shadow_event event = s->nodes[id].event;
    return s->nodes[id].before == before ? id : intern(s, before, &event);
}

/* The reader next to many that read the same: 1, and *after is the state behind it, or there is
 * something wrong (*bad). 0: all of the chain has to be looked at. */
static int one_more_reader(struct shadow *s, const struct shadow_actor *a,
                           const struct shadow_event *e, enum known_view async, uint32_t state,
                           const void *address, uint32_t *after, int *bad)
{
    const struct shadow_node *last = &s->nodes[state];
    if (state < SHADOW_SPECIALS || (e->kind & (ACCESS_WRITE | ACCESS_STRONG)) || last->writes ||
        last->depth < SHORT_CHAIN || !(last->depth & (last->depth - 1)))
        return 0;
    *bad |= wrong(s, a, e, &s->nodes[last->first].event, async, address);
    *after = *bad ? state : intern(s, last->event.entry == e->entry ? last->before : state, e);
    return 1;
}

/* Leaves the last read of each entry in the path, and all writes; how many. */
static uint32_t without_repeats(struct shadow *s, uint32_t count)
{
    uint32_t *path = s->path, kept = count;
    if (count <= SHORT_CHAIN)
        return count;
    if (!++s->read_turn) {
        memset(s->read_by, 0, s->entries * sizeof *s->read_by);
        s->read_turn = 1;
    }
    for (uint32_t i = count; i-- > 1;) {
        const struct shadow_event *past = &s->nodes[path[i]].event;
        if (!(past->kind & ACCESS_WRITE)) {
            if (s->read_by[past->entry] == s->read_turn)
                continue;
            s->read_by[past->entry] = s->read_turn;
        }
        path[--kept] = path[i];
    }
    memmove(path + 1, path + kept, (count - kept) * sizeof *path);
    return 1 + count - kept;
}

/* The state behind the access; *bad where there was something wrong. */
static uint32_t step(struct shadow *s, const struct shadow_actor *a, const struct shadow_event *e,
                     enum known_view async, uint32_t state, const void *address, int *bad)
{
    uint32_t *path = s->path, count = 0, kept = 0, after;
    int write = e->kind & ACCESS_WRITE;
    if (state == SHADOW_OUTSIDE || state == SHADOW_MBARRIER ||
        (state == SHADOW_UNWRITTEN && !write)) {
        s->fault(s->context,
                 state == SHADOW_OUTSIDE    ? SHADOW_IS_OUTSIDE
                 : state == SHADOW_MBARRIER ? SHADOW_IS_MBARRIER
                                            : SHADOW_IS_UNWRITTEN,
                 e, NULL, address);
        *bad = 1;
        return state;
    }
    if (one_more_reader(s, a, e, async, state, address, &after, bad))
        return after;
    if (state >= SHADOW_SPECIALS) { /* the events, oldest first */
        count = s->nodes[state].depth + 1;
        for (uint32_t i = count, id = state; i-- > 0; id = s->nodes[id].before)
            path[i] = id;
        count = without_repeats(s, count);
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct shadow_event *past = &s->nodes[path[i]].event;
        if (i == 0 || write || (past->kind & ACCESS_WRITE))
            *bad |= wrong(s, a, e, past, async, address);
        if (*bad)
            return state;
        if (i == 0)
            continue;
        /* who comes next has to know of it, and does where they know of this access */
        if ((!write || (e->kind & past->kind & ACCESS_STRONG)) && past->entry != e->entry &&
            !knows(s, a, KNOWN_GENERIC, past))
            path[++kept] = path[i];
    }
    if ((e->kind & ACCESS_STRONG) && !write)
        return state;
    if (write) {
        after = intern(s, 0, e);
        /* atomic writes that nothing orders: whoever comes next has to know of each */
        if (!(e->kind & ACCESS_STRONG) || !count)
            return after;
        for (uint32_t i = 1; i <= kept; i++)
            after = again(s, after, path[i]);
        const struct shadow_event last = s->nodes[path[0]].event;
        if ((last.kind & ACCESS_STRONG) && !knows(s, a, KNOWN_GENERIC, &last))
            after = intern(s, after, &last);
        return after;
    }
    static const struct shadow_event nobody; /* known to all */
    after = count ? path[0] : intern(s, 0, &nobody);
    for (uint32_t i = 1; i <= kept; i++)
        after = again(s, after, path[i]);
    return intern(s, after, e);
}

int shadow_access(struct shadow *s, const struct shadow_actor *actor,
                  const struct shadow_event *event, const void *address, size_t bytes)
{
    size_t at = (size_t)((const uint8_t *)address - s->memory);
    if (at >= s->bytes || !bytes)
        return 0;
    if (s->node_count > s->sweep_at || s->node_count > s->node_most)
        sweep(s);
    size_t first = at / 4, last = (at + bytes - 1) / 4;
    enum known_view async = KNOWN_ASYNC_GLOBAL;
    if (event->kind & ACCESS_SHARED)
        async = KNOWN_ASYNC_SHARED;
    struct shadow_event e = *event;
    e.kind &= ~ACCESS_SHARED;
    if (memcmp(&e, &s->memo_event, sizeof e) || actor->known != s->memo_known ||
        actor->entry != s->memo_entry) {
        s->memo_event = e;
        s->memo_known = actor->known;
        s->memo_entry = actor->entry;
        s->memo_turn++;
    }
    for (size_t i = first; i <= last; i++) {
        uint32_t state = s->states[i], slot = state % 64;
        int bad = 0;
        if (s->memo[slot].turn == s->memo_turn && s->memo[slot].before == state) {
            uint64_t two[2], both = (uint64_t)state << 32 | state,
                             now = (uint64_t)s->memo[slot].after << 32 | s->memo[slot].after;
            while (i + 3 <= last) { /* four words of one history at a time */
                memcpy(two, &s->states[i], sizeof two);
                if (two[0] != both || two[1] != both)
                    break;
                two[0] = two[1] = now;
                memcpy(&s->states[i], two, sizeof two);
                i += 4;
            }
            if (i > last || s->states[i] != state) {
                i--;
                continue;
            }
        }
        if (s->memo[slot].turn != s->memo_turn || s->memo[slot].before != state) {
            uint32_t after = step(s, actor, &e, async, state, s->memory + i * 4, &bad);
            if (bad)
                return 1;
            s->memo[slot].turn = s->memo_turn;
            s->memo[slot].before = state;
            s->memo[slot].after = after;
        }
        s->states[i] = s->memo[slot].after;
    }
    return 0;
}

/* A hash table from 64-bit keys to 32-bit numbers, for joins in memory. Key UINT64_MAX is not
 * allowed. */
#pragma once

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct map_slot {
    uint64_t key;
    uint32_t value;
};

struct map {
    struct map_slot *slots;
    uint64_t capacity, count; /* capacity: a power of two, 0 to begin with */
};

static inline struct map_slot *map_slot(const struct map *m, uint64_t key)
{
    uint64_t h = key * 0x9e3779b97f4a7c15ull;
    for (uint64_t i = h ^ h >> 32;; i++) {
        struct map_slot *s = &m->slots[i & (m->capacity - 1)];
        if (s->key == key || s->key == UINT64_MAX)
            return s;
    }
}

/* The number of a key, `missing` where it has none. */
static inline uint32_t map_get(const struct map *m, uint64_t key, uint32_t missing)
{
    if (!m->capacity)
        return missing;
    const struct map_slot *s = map_slot(m, key);
    return s->key == key ? s->value : missing;
}

/* Makes room for `count` keys in all. 0 or -ENOMEM. */
static inline int map_reserve(struct map *m, uint64_t count)
{
    uint64_t capacity = m->capacity ? m->capacity : 64;
    while (capacity < 2 * count)
        capacity *= 2;
    if (capacity == m->capacity)
        return 0;
    struct map bigger = {malloc(capacity * sizeof *bigger.slots), capacity, m->count};
    if (!bigger.slots)
        return -ENOMEM;
    memset(bigger.slots, 0xff, capacity * sizeof *bigger.slots);
    for (uint64_t i = 0; i < m->capacity; i++)
        if (m->slots[i].key != UINT64_MAX)
            *map_slot(&bigger, m->slots[i].key) = m->slots[i];
    free(m->slots);
    *m = bigger;
    return 0;
}

/* Sets a key's number. 0 or -ENOMEM. */
static inline int map_set(struct map *m, uint64_t key, uint32_t value)
{
    if (map_reserve(m, m->count + 1))
        return -ENOMEM;
    struct map_slot *s = map_slot(m, key);
    m->count += s->key == UINT64_MAX;
    *s = (struct map_slot){key, value};
    return 0;
}

static inline void map_free(struct map *m)
{
    free(m->slots);
    *m = (struct map){0};
}

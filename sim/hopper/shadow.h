/* Who wrote and who has read each 4 bytes of the machine's memory, and whether whoever comes next
 * may know of it. All memory that kernels share lies in one arena, shadowed by one state a word;
 * states are interned, so that a box of 16 KB that has one history costs 4096 comparisons of
 * numbers and one check. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "sim/hopper/known.h"

enum { SHADOW_OUTSIDE, SHADOW_INITIAL, SHADOW_UNWRITTEN, SHADOW_MBARRIER, SHADOW_SPECIALS };

/* What an access is. Not strong: an ordinary load or store. */
/* the last: to shared memory */
enum { ACCESS_WRITE = 1, ACCESS_ASYNC = 2, ACCESS_STRONG = 4, ACCESS_SHARED = 8 };

/* An access, or a past one: where it stands on its clock, and the line of source or the program
 * counter. */
struct shadow_event {
    uint32_t entry, clock;
    uint64_t where : 60, kind : 4;
};

/* Who accesses. Of an asynchronous operation: the thread that issues it, whose knowledge counts. */
struct shadow_actor {
    const struct known *known;
    uint32_t entry, clock; /* of the thread */
    /* its own writes up to here are behind a fence, by view */
    uint32_t bridged[KNOWN_VIEWS];
    uint32_t began; /* what the entry did before is not its own */
};

enum shadow_fault {
    SHADOW_RACE_WRITE, /* with an earlier write */
    SHADOW_RACE_READ,  /* with an earlier read */
    SHADOW_NO_PROXY,   /* ordered, but no proxy fence lies between */
    SHADOW_IS_OUTSIDE,
    SHADOW_IS_UNWRITTEN,
    SHADOW_IS_MBARRIER
};

struct shadow {
    uint8_t *memory; /* the arena */
    size_t bytes, used;
    uint32_t *states;
    uint32_t sms;
    struct shadow_node *nodes; /* the interned states: each is the last of a chain */
    uint32_t node_count;
    uint32_t sweep_at;  /* so many, and those that no word has any more go */
    uint32_t node_most; /* where half as many are words', what has happened is forgotten */
    uint32_t *path;     /* an access's: the chain that it comes to, oldest first */
    uint32_t *read_by;  /* by entry: read_turn, where a later read of it was met */
    uint32_t read_turn, entries;
    struct shadow_slot *table;
    uint32_t table_size, table_used;
    /* What the last access made of states: boxes and tiles have few. */
    struct shadow_event memo_event;
    const struct known *memo_known;
    uint32_t memo_entry, memo_turn;
    uint64_t
        cut; /* accesses that have been forgotten for want of room: races with them are missed */
    struct {
        uint32_t turn, before, after;
    } memo[64];
    void (*fault)(void *context, enum shadow_fault fault, const struct shadow_event *access,
                  const struct shadow_event *with, const void *address);
    void *context;
};

/* 0 or -ENOMEM. `bytes` of address space; memory is taken as it is used. */
int shadow_open(struct shadow *s, size_t bytes, uint32_t sms);
void shadow_close(struct shadow *s);

/* Memory of `bytes` in the arena, aligned to 1024, with nothing next to it that is allocated. NULL:
 * full. */
void *shadow_allocate(struct shadow *s, size_t bytes, uint32_t state);

/* Sets the state of allocated words: SHADOW_UNWRITTEN where a block begins, say. */
void shadow_set(struct shadow *s, const void *address, size_t bytes, uint32_t state);

static inline int shadow_has(const struct shadow *s, const void *address)
{
    return (size_t)((const uint8_t *)address - s->memory) < s->bytes;
}

/* Checks and notes one access of `bytes`, recorded as `event`. What is wrong goes to `fault`, once.
 * Memory outside the arena is nobody's business. 0, or 1 where something is wrong. */
int shadow_access(struct shadow *s, const struct shadow_actor *actor,
                  const struct shadow_event *event, const void *address, size_t bytes);

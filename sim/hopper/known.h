/* What is known to have happened before: vector clocks, one entry for each thread of each SM and
 * for each asynchronous unit of it. An object is immutable once shared, and made of chunks, one an
 * SM, that objects have in common: 256 threads that waited for the same barriers hold the same
 * object. After Flanagan, Freund: FastTrack, PLDI 2009; with three views, because what the generic
 * proxy has written is not seen by the asynchronous one (TMA, wgmma) before a proxy fence (PTX ISA,
 * memory consistency model, proxy-preserved base causality order). */
#pragma once

#include <stdint.h>

/* Entries of an SM. A unit's entry counts what completes in order: products of a warp, bulk groups
 * of a thread (their reads of shared memory, their writes), phases of an mbarrier that loads
 * complete. */
enum {
    KNOWN_THREADS = 512,
    KNOWN_WARPS = KNOWN_THREADS / 32,
    KNOWN_ISSUERS = 16,   /* threads of a block that issue bulk stores */
    KNOWN_MBARRIERS = 96, /* of a block */
    KNOWN_WGMMA = KNOWN_THREADS,
    KNOWN_STORE_READ = KNOWN_WGMMA + KNOWN_WARPS,
    KNOWN_STORE_WRITE = KNOWN_STORE_READ + KNOWN_ISSUERS,
    KNOWN_LOAD = KNOWN_STORE_WRITE + KNOWN_ISSUERS,
    KNOWN_ENTRIES = KNOWN_LOAD + KNOWN_MBARRIERS
};

enum known_view { KNOWN_GENERIC, KNOWN_ASYNC_SHARED, KNOWN_ASYNC_GLOBAL, KNOWN_VIEWS };

struct known_chunk {
    struct known_chunk *made_before; /* the table's, to free all */
    uint32_t references;
    uint32_t clock[KNOWN_ENTRIES];
};

struct known {
    struct known *made_before; /* the table's, to free all */
    uint64_t id;
    uint32_t references;
    struct known_chunk *chunks[]; /* [views][sms]; NULL: nothing */
};

struct known_table; /* all objects of one machine */

/* `sms`: of all ranks together. NULL: no memory. (Later shortage of memory ends the process:
 * abort.) */
struct known_table *known_table_create(uint32_t sms);
void known_table_destroy(struct known_table *t);

/* one more reference; NULL is nothing known, and allowed everywhere */
struct known *known_keep(struct known *k);
void known_drop(struct known_table *t, struct known *k);

/* New references, of objects that are made if they have to be. */
struct known *known_join(struct known_table *t, struct known *a, struct known *b);
/* a proxy fence */
struct known *known_bridge(struct known_table *t, struct known *k, int shared, int global);
/* only that loads, products and the reads of bulk stores are over */
struct known *known_reads(struct known_table *t, struct known *k);

/* The same with an entry raised. Takes the reference to `k`. */
struct known *known_raise(struct known_table *t, struct known *k, enum known_view view, uint32_t sm,
                          uint32_t entry, uint32_t clock);

/* An entry is sm * KNOWN_ENTRIES + its number. */
static inline uint32_t known_clock(const struct known *k, uint32_t sms, enum known_view view,
                                   uint32_t entry)
{
    const struct known_chunk *c =
        k ? k->chunks[(uint32_t)view * sms + entry / KNOWN_ENTRIES] : (struct known_chunk *)0;
    return c ? c->clock[entry % KNOWN_ENTRIES] : 0;
}

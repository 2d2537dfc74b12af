/* Behind the roles that broken_cta.h or broken_ops.h was put before: calls go to the CTA interface
 * again. */
#undef mk_cta_wait
#undef mk_cta_wait_all
#undef mk_cta_copy
#undef mk_cta_copy_rows
#undef mk_cta_copy_packed
#undef mk_cta_deliver
#undef mk_cta_combine
#undef mk_cta_wait_others
#undef mk_cta_add_each
#undef mk_cta_route
#undef mk_cta_settle
#undef mk_cta_signal
#undef mk_cta_add
#undef mk_cta_put
#undef mk_cta_drain

#include "sim/cta.h"

#include <string.h>

static inline const struct mk_plan *mutant_plan(const struct mk_cta *cta)
{
    return ((const struct sim_cta *)(const void *)cta)->rank->plan;
}

/* Copies that a mutant holds back until after the flag or the put that should have followed them. */
static struct mutant_held {
    struct mk_cta *cta; /* NULL: none */
    uint32_t local, rows;
    int packed;
    struct mk_chunk chunk;
    uint64_t pitch, destination_pitch;
} mutant_held[1024];

static inline void mutant_hold(struct mutant_held copy)
{
    struct mutant_held *h = mutant_held;
    while (h->cta && h < mutant_held + sizeof mutant_held / sizeof *mutant_held - 1)
        h++;
    *h = copy;
}

static inline void mutant_release(struct mk_cta *cta)
{
    for (size_t i = 0; i < sizeof mutant_held / sizeof *mutant_held; i++) {
        const struct mutant_held h = mutant_held[i];
        if (h.cta != cta)
            continue;
        mutant_held[i].cta = NULL;
        if (h.packed)
            mk_cta_copy_packed(cta, h.local, &h.chunk, h.rows, h.pitch);
        else
            mk_cta_copy_rows(cta, h.local, &h.chunk, h.rows, h.pitch, h.destination_pitch);
    }
}

/* The test's `mutation` is looked for in orders of `config`, config_for. */
#define MUTANT_OF(config, name, expected) (mutation = name, ops_hunt(config, #name, expected))
#define MUTANT(name, expected) MUTANT_OF(config_for, name, expected)

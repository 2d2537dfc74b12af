/* Mutants of device code, without compiling it again: a place in the source is a line and a kind of
 * instruction. */
#include "sim/hopper/machine.h"

#include <string.h>

enum { MOST_VARIANTS = 4 };

static const char *const variants[HOPPER_PRIMITIVES][MOST_VARIANTS + 1] = {
    [HOPPER_P_FENCE] = {"fence dropped", "fence at CTA scope"},
    [HOPPER_P_FENCE_ASYNC] = {"proxy fence dropped"},
    [HOPPER_P_SYNCWARP] = {"__syncwarp dropped"},
    [HOPPER_P_BARRIER] = {"barrier dropped"},
    [HOPPER_P_CLUSTER] = {"cluster barrier dropped"},
    [HOPPER_P_INIT] = {"mbarrier for one arrival more", "mbarrier for one arrival less"},
    [HOPPER_P_INIT_ONE] = {"mbarrier for two arrivals"},
    [HOPPER_P_INIT_FENCE] = {"mbarrier_init fence dropped"},
    [HOPPER_P_ARRIVE] = {"arrival dropped", "arrives twice"},
    [HOPPER_P_EXPECT] = {"expects 16 bytes less", "expects 16 bytes more"},
    [HOPPER_P_MBAR_WAIT] = {"wait dropped", "wait for the other parity"},
    [HOPPER_P_LOAD] = {"load dropped", "load of the next row or run",
                       "load to 128 bytes further on"},
    [HOPPER_P_STORE] = {"store dropped", "store of the next row or run",
                        "store from 128 bytes further on"},
    [HOPPER_P_COMMIT] = {"commit of stores dropped"},
    [HOPPER_P_BULK_WAIT] = {"wait for stores dropped",
                            ".read for completion, or one group more left open"},
    [HOPPER_P_WGMMA] = {"B's swizzle code of 64 bytes",
                        "A from 16 bytes further on, or its registers 1 and 2 swapped",
                        "B's leading and stride swapped", "B of the other major"},
    [HOPPER_P_WGMMA_FENCE] = {"wgmma.fence dropped"},
    [HOPPER_P_WGMMA_COMMIT] = {"commit of products dropped"},
    [HOPPER_P_WGMMA_WAIT] = {"wait for products dropped", "one group of products more left open"},
    [HOPPER_P_ACQUIRE] = {"acquire relaxed", "acquire at CTA scope"},
    [HOPPER_P_RELEASE] = {"release relaxed", "release at CTA scope", "release at GPU scope"},
    [HOPPER_P_STMATRIX] = {"stmatrix with another row's swizzle"},
    [HOPPER_P_REGISTERS] = {"setmaxnreg dropped"},
    [HOPPER_P_LAUNCH_WAIT] = {"wait for the launch before dropped"},
    [HOPPER_P_WORD] = {"word dropped"},
};

const char *hopper_variant(enum hopper_primitive what, uint32_t variant)
{
    return variant && variant <= MOST_VARIANTS && what < HOPPER_PRIMITIVES
               ? variants[what][variant - 1]
               : NULL;
}

const struct hopper_site *hopper_sites(const struct hopper *h, uint32_t *count)
{
    *count = h->site_count;
    return h->sites;
}

static int same(const struct hopper_site *s, enum hopper_primitive what)
{
    const struct hopper_place *p = hopper_self;
    return s->what == what && s->line == p->line && s->file && p->file &&
           (s->file == p->file || !strcmp(s->file, p->file));
}

uint32_t mutated(enum hopper_primitive what)
{
    struct hopper *h = hopper_thread()->block->machine;
    if (!hopper_self->file)
        return 0;
    for (uint32_t i = 0; i < h->config.mutation_count; i++)
        if (same(&h->config.mutations[i].at, what))
            return h->config.mutations[i].variant;
    if (h->config.mutation_count)
        return 0;
    for (uint32_t i = 0; i < h->site_count; i++)
        if (h->sites[i].what == what && h->sites[i].line == hopper_self->line &&
            h->sites[i].file == hopper_self->file)
            return 0;
    if (h->site_count < sizeof h->sites / sizeof *h->sites)
        h->sites[h->site_count++] =
            (struct hopper_site){hopper_self->file, hopper_self->line, what};
    return 0;
}

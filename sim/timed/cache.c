/* What is in a GPU's L2 of the operands of tiles by tickets. B of an expert is read once for each
 * of its runs in the order of computation, if what lies between two of them is more than L2 holds;
 * rows of A are read again for columns that come as late. The least recently used leaves first. */
#include "sim/timed/state.h"

#include <errno.h>
#include <stdlib.h>

static double *cache_new(uint64_t count)
{
    double *read = malloc(count * sizeof *read);
    for (uint64_t i = 0; read && i < count; i++)
        read[i] = -1e300;
    return read;
}

int timed_cache_open(struct timed_rank *r, const struct mk_route *route)
{
    struct timed_cache *c = &r->cache;
    const uint64_t columns = route->columns + route->down;
    if (c->b || !columns)
        return 0;
    *c = (struct timed_cache){.columns = (uint32_t)columns,
                              .up = route->columns,
                              .b = cache_new(route->rank_experts * columns),
                              .a = cache_new(r->plan.tiles / columns * 2)};
    return c->b && c->a ? 0 : -ENOMEM;
}

void timed_cache_close(struct timed_rank *r)
{
    free(r->cache.a);
    free(r->cache.b);
}

/* Whether `bytes` that were last read at *read come from HBM. */
static int cache_misses(struct timed_rank *r, double *read, double bytes)
{
    struct timed_cache *c = &r->cache;
    const int misses = c->fetched - *read > r->world->machine->l2;
    *read = c->fetched;
    return misses;
}

double timed_cache_fetch(struct timed_rank *r, const struct mk_tile *tile,
                         const struct sim_operands *o)
{
    const struct timed_cache *c = &r->cache;
    const uint32_t column = tile->id % c->columns, row = tile->id / c->columns;
    const double deep = (double)o->k * op_factor_bytes(&r->plan.problem),
                 cols = r->world->tile->tile_n;
    double *a = &c->a[row * 2 + (column >= c->up)], *b = &c->b[tile->slab * c->columns + column];
    return MACHINE_STAGE_BYTES * (cache_misses(r, b, cols * deep) * cols +
                                  cache_misses(r, a, o->rows * deep) * (double)o->rows);
}

/* Between the CTA interface and the roles: every call of the roles that follow goes to mutant_*,
 * which may break it. */
#include "tests/helpers/broken_cta.h"

/* One by one, so that a mutant of one is one of these. */
static inline int mutant_wait_others(struct mk_cta *cta, uint32_t flag, uint32_t count,
                                     uint32_t own, uint64_t target, enum mk_cause cause)
{
    for (uint32_t i = 0; i < count; i++)
        if (i != own && mk_cta_wait(cta, flag + i, target, cause))
            return 1;
    return 0;
}

static inline int mutant_wait_all(struct mk_cta *cta, uint32_t flag, uint32_t count,
                                  uint64_t target, enum mk_cause cause)
{
    return mutant_wait_others(cta, flag, count, count, target, cause);
}

static inline void mutant_add_each(struct mk_cta *cta, uint32_t ranks, uint32_t flag,
                                   uint64_t count)
{
    for (uint32_t local = 0; ranks >> local; local++)
        if (ranks >> local & 1)
            mk_cta_add(cta, local, flag, count);
}

__attribute__((weak)) void mutant_combine(struct mk_cta *cta, const struct mk_combine *combine);
__attribute__((weak)) void mutant_route(struct mk_cta *cta, const struct mk_route *route);
__attribute__((weak)) int mutant_settle(struct mk_cta *cta);
__attribute__((weak)) void mutant_signal(struct mk_cta *cta, uint32_t local, uint32_t flag,
                                         uint64_t value);

#define mk_cta_wait_all mutant_wait_all
#define mk_cta_wait_others mutant_wait_others
#define mk_cta_add_each mutant_add_each
#define mk_cta_combine(...)                                                                        \
    (mutant_combine ? mutant_combine(__VA_ARGS__) : mk_cta_combine(__VA_ARGS__))
#define mk_cta_route(...) (mutant_route ? mutant_route(__VA_ARGS__) : mk_cta_route(__VA_ARGS__))
#define mk_cta_settle(...) (mutant_settle ? mutant_settle(__VA_ARGS__) : mk_cta_settle(__VA_ARGS__))
#define mk_cta_signal(...) (mutant_signal ? mutant_signal(__VA_ARGS__) : mk_cta_signal(__VA_ARGS__))

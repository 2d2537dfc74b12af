/* Between the CTA interface and the roles: every call of the roles that follow goes to mutant_*,
 * which may break it. */
#include "tests/helpers/broken_cta.h"

int mutant_wait_all(struct mk_cta *cta, uint32_t flag, uint32_t count, uint64_t target,
                    enum mk_cause cause);
void mutant_combine(struct mk_cta *cta, const struct mk_combine *combine);
void mutant_route(struct mk_cta *cta, const struct mk_route *route);
int mutant_settle(struct mk_cta *cta);
void mutant_signal(struct mk_cta *cta, uint32_t local, uint32_t flag, uint64_t value);

#define mk_cta_wait_all mutant_wait_all
#define mk_cta_combine mutant_combine
#define mk_cta_route mutant_route
#define mk_cta_settle mutant_settle
#define mk_cta_signal mutant_signal

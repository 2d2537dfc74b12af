/* Telling the CTAs of one's own rank alone: beside core/cta/cta.h, of roles that do. */
#pragma once

#include "core/cta/cta.h"

#ifndef __CUDACC__
/* mk_cta_add of 1 to a flag of this rank, local rank `own`, that this rank alone waits for: a GPU
 * need not wait until others see it. */
static inline void mk_cta_made(struct mk_cta *cta, uint32_t own, uint32_t flag)
{
    mk_cta_add(cta, own, flag, 1);
}
#endif

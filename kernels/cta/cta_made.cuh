/* mk_cta_made (core/cta/cta.h) on a GPU: at the GPU's scope. At the system's, the CTA would wait for what it has
 * stored at peers, or in host memory. What it has acquired from these its readers acquire with the
 * flag: causality has no scope. */
#pragma once

#include "kernels/cta/cta.cuh"

MK_ROLE_CALL void mk_cta_made(struct mk_cta *cta, uint32_t own, uint32_t flag)
{
    cta_settle(cta);
    if (cta_leads(cta))
        ptx_add_release_here(cta_flag(cta->launch->heap, flag), 1);
    cta_record_signal(cta, own, flag);
}

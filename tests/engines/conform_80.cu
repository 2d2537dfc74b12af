/* The conformance cases of compute capability 8.0 once more: the Makefile gives this file no GPU's
 * code, only PTX of compute_80, so tests/gpu_conform.cu runs here what the driver makes of it. */
#include "tests/helpers/conform_80.cuh"

/* Case `number` of CASES_80. */
extern "C" int conform_80_launch(uint32_t number, const uint32_t *in, uint32_t *out)
{
    uint32_t i = 0;
    CASES_80(CONFORM_TRY)
    return 1;
}

/* gcc 12 vectorises a loop only when asked. Sums keep their order. */
#ifndef MK_SIM_VECTORISED_H
#define MK_SIM_VECTORISED_H

#if defined(__GNUC__) && !defined(__clang__)
#define VECTORISED __attribute__((optimize("O3")))
#else
#define VECTORISED
#endif

#endif

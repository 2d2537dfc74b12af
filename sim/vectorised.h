/* gcc 12 vectorises a loop only when asked. Sums keep their order. */
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
#define VECTORISED __attribute__((optimize("O3")))
#else
#define VECTORISED
#endif

/* Between the CTA interface and the roles: calls of the roles that follow go to mutant_*, which may
 * break them. A call that a test has no mutant_* for goes on as it is. */
#include "core/cta/cta.h"

__attribute__((weak)) int mutant_wait(struct mk_cta *cta, uint32_t flag, uint64_t target,
                                      enum mk_cause cause);
__attribute__((weak)) void mutant_copy(struct mk_cta *cta, uint32_t local,
                                       const struct mk_chunk *chunk);
__attribute__((weak)) void mutant_copy_rows(struct mk_cta *cta, uint32_t local,
                                            const struct mk_chunk *chunk, uint32_t rows,
                                            uint64_t source_pitch, uint64_t destination_pitch);
__attribute__((weak)) void mutant_copy_packed(struct mk_cta *cta, uint32_t local,
                                              const struct mk_chunk *chunk, uint32_t rows,
                                              uint64_t pitch);
__attribute__((weak)) void mutant_deliver(struct mk_cta *cta, enum mk_space space,
                                          const struct mk_chunk *chunk, uint32_t rows,
                                          uint64_t pitch);
__attribute__((weak)) void mutant_add(struct mk_cta *cta, uint32_t local, uint32_t flag,
                                      uint64_t count);
__attribute__((weak)) int mutant_put(struct mk_cta *cta, uint32_t rank,
                                     const struct mk_chunk *chunk, uint32_t flag);
__attribute__((weak)) int mutant_drain(struct mk_cta *cta);

#define mk_cta_wait(...) (mutant_wait ? mutant_wait(__VA_ARGS__) : mk_cta_wait(__VA_ARGS__))
#define mk_cta_copy(...) (mutant_copy ? mutant_copy(__VA_ARGS__) : mk_cta_copy(__VA_ARGS__))
#define mk_cta_copy_rows(...)                                                                      \
    (mutant_copy_rows ? mutant_copy_rows(__VA_ARGS__) : mk_cta_copy_rows(__VA_ARGS__))
#define mk_cta_copy_packed(...)                                                                    \
    (mutant_copy_packed ? mutant_copy_packed(__VA_ARGS__) : mk_cta_copy_packed(__VA_ARGS__))
#define mk_cta_deliver(...)                                                                        \
    (mutant_deliver ? mutant_deliver(__VA_ARGS__) : mk_cta_deliver(__VA_ARGS__))
#define mk_cta_add(...) (mutant_add ? mutant_add(__VA_ARGS__) : mk_cta_add(__VA_ARGS__))
#define mk_cta_put(...) (mutant_put ? mutant_put(__VA_ARGS__) : mk_cta_put(__VA_ARGS__))
#define mk_cta_drain(...) (mutant_drain ? mutant_drain(__VA_ARGS__) : mk_cta_drain(__VA_ARGS__))

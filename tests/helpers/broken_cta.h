/* Between the CTA interface and the roles: calls of the roles that follow go to mutant_*, which may
 * break them. */
#include "core/cta.h"

int mutant_wait(struct mk_cta *cta, uint32_t flag, uint64_t target, enum mk_cause cause);
void mutant_copy(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk);
void mutant_copy_rows(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk,
                      uint32_t rows, uint64_t source_pitch, uint64_t destination_pitch);
void mutant_copy_packed(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk,
                        uint32_t rows, uint64_t pitch);
void mutant_deliver(struct mk_cta *cta, enum mk_space space, const struct mk_chunk *chunk,
                    uint32_t rows, uint64_t pitch);
void mutant_add(struct mk_cta *cta, uint32_t local, uint32_t flag, uint64_t count);
int mutant_put(struct mk_cta *cta, uint32_t rank, const struct mk_chunk *chunk, uint32_t flag);
int mutant_drain(struct mk_cta *cta);

#define mk_cta_wait mutant_wait
#define mk_cta_copy mutant_copy
#define mk_cta_copy_rows mutant_copy_rows
#define mk_cta_copy_packed mutant_copy_packed
#define mk_cta_deliver mutant_deliver
#define mk_cta_add mutant_add
#define mk_cta_put mutant_put
#define mk_cta_drain mutant_drain

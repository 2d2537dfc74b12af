/* Between the CTA interface and the roles: every call of the roles that follow goes to mutant_*, which may
 * break it. */
int mutant_wait(struct mk_cta *cta, uint32_t flag, uint64_t target, enum mk_cause cause);
int mutant_wait_all(struct mk_cta *cta, uint32_t flag, uint32_t count, uint64_t target, enum mk_cause cause);
void mutant_copy(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk);
void mutant_copy_rows(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk, uint32_t rows, uint64_t pitch);
void mutant_reduce(struct mk_cta *cta, const struct mk_sum *sum);
void mutant_combine(struct mk_cta *cta, const struct mk_combine *combine);
void mutant_route(struct mk_cta *cta, const struct mk_route *route);
void mutant_signal(struct mk_cta *cta, uint32_t local, uint32_t flag, uint64_t value);
void mutant_add(struct mk_cta *cta, uint32_t local, uint32_t flag, uint64_t count);
int mutant_put(struct mk_cta *cta, uint32_t rank, const struct mk_chunk *chunk, uint32_t flag);
int mutant_drain(struct mk_cta *cta);

#define mk_cta_wait mutant_wait
#define mk_cta_wait_all mutant_wait_all
#define mk_cta_copy mutant_copy
#define mk_cta_copy_rows mutant_copy_rows
#define mk_cta_reduce mutant_reduce
#define mk_cta_combine mutant_combine
#define mk_cta_route mutant_route
#define mk_cta_signal mutant_signal
#define mk_cta_add mutant_add
#define mk_cta_put mutant_put
#define mk_cta_drain mutant_drain

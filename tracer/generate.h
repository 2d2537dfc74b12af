/* Large traces for tests and benches, made up: run.source says 'synthetic'. */
#ifndef MK_TRACER_GENERATE_H
#define MK_TRACER_GENERATE_H

#include <stddef.h>
#include <stdint.h>

struct generate_config {
    uint64_t events; /* at least so many: whole launches are made until there are */
    uint32_t nodes, gpus;
    uint32_t ctas; /* of a rank; 0: 132 */
    uint64_t seed;
    const char *command; /* stored with the run; NULL: not known */
};

struct trace_part;

/* What AllGather+GEMM's schedule would record with made-up durations: tiles of about 20 us, copies
 * at 44 GB/s a CTA, puts at 50 GB/s a rank, hosts whose clocks drift. The order of events, ids,
 * flags and peers are those of a real plan. The same config gives the same parts. *parts (one a
 * rank) is the caller's: generate_free. 0, -EINVAL with a sentence, -ENOMEM. */
int generate_parts(struct trace_part **parts, const struct generate_config *config, char *error,
                   size_t error_size);
void generate_free(struct trace_part *parts, const struct generate_config *config);

/* generate_parts, merged and stored at `path`. 0 or -errno with a sentence. */
int trace_generate(const struct generate_config *config, const char *path, char *error,
                   size_t error_size);

#endif

#include "backends/efa/efa_options.h"
#include "core/sentence.h"
#include "backends/option_keys.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

static const struct option_key keys[] = {
    {"depth", offsetof(struct efa_options, depth), 1024, 8, 32768},
    {"window", offsetof(struct efa_options, window), 256, 8, 256},
    {"stripe", offsetof(struct efa_options, stripe), 65536, 128, 1 << 30},
    {"max_rdma", offsetof(struct efa_options, max_rdma), 0, 0, 1 << 30},
    {"unsolicited", offsetof(struct efa_options, unsolicited), 1, 0, 1},
    {"relaxed_ordering", offsetof(struct efa_options, relaxed_ordering), 1, 0, 1},
};

enum { KEYS = sizeof keys / sizeof *keys };

void efa_options_default(struct efa_options *o)
{
    option_keys_default(o, keys, KEYS);
}

int efa_options_parse(struct efa_options *o, const char *text, char *error, size_t error_size)
{
    struct efa_options parsed = *o;
    int rc = option_keys_parse(&parsed, keys, KEYS, "efa", text, error, error_size);
    if (rc)
        return rc;
    if (parsed.max_rdma && parsed.max_rdma < 4096)
        return mk_fail(-EINVAL, error, error_size,
                       "the efa option max_rdma takes at least 4096, not %" PRId64,
                       parsed.max_rdma);
    *o = parsed;
    return 0;
}

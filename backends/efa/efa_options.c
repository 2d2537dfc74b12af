#include "backends/efa/efa_options.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <inttypes.h>

#define KEY(...) OPTION_KEY(struct efa_options, __VA_ARGS__)
static const struct option_key keys[] = {EFA_OPTIONS(KEY)};

enum { KEYS = sizeof keys / sizeof *keys };

void efa_options_default(struct efa_options *o)
{
    option_keys_default(o, keys, KEYS);
}

int efa_options_parse(struct efa_options *o, const char *text, char *error, size_t size)
{
    struct efa_options parsed = *o;
    int rc = option_keys_parse(&parsed, keys, KEYS, "efa", text, error, size);
    if (rc)
        return rc;
    if (parsed.max_rdma && parsed.max_rdma < 4096)
        return mk_fail(-EINVAL, error, size,
                       "the efa option max_rdma takes at least 4096, not %" PRId64,
                       parsed.max_rdma);
    *o = parsed;
    return 0;
}

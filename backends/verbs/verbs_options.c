#include "backends/verbs/verbs_options.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <inttypes.h>

#define KEY(...) OPTION_KEY(struct verbs_options, __VA_ARGS__)
static const struct option_key keys[] = {VERBS_OPTIONS(KEY)};

enum { KEYS = sizeof keys / sizeof *keys };

void verbs_options_default(struct verbs_options *o)
{
    option_keys_default(o, keys, KEYS);
}

int verbs_options_parse(struct verbs_options *o, const char *text, char *error, size_t size)
{
    struct verbs_options parsed = *o;
    int rc = option_keys_parse(&parsed, keys, KEYS, "verbs", text, error, size);
    if (rc)
        return rc;
    if (parsed.mtu && (parsed.mtu < 256 || parsed.mtu & (parsed.mtu - 1)))
        return mk_fail(-EINVAL, error, size,
                       "the verbs option mtu takes 256, 512, 1024, 2048 or 4096, not %" PRId64,
                       parsed.mtu);
    if (parsed.max_message && parsed.max_message < 4096)
        return mk_fail(-EINVAL, error, size,
                       "the verbs option max_message takes at least 4096, not %" PRId64,
                       parsed.max_message);
    *o = parsed;
    return 0;
}

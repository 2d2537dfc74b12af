#include "backends/verbs/verbs_options.h"
#include "core/sentence.h"
#include "backends/option_keys.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

static const struct option_key keys[] = {
    {"port", offsetof(struct verbs_options, port), 0, 0, 255},
    {"gid_index", offsetof(struct verbs_options, gid_index), -1, -1, 255},
    {"qps", offsetof(struct verbs_options, qps), 2, 1, 16},
    {"depth", offsetof(struct verbs_options, depth), 256, 8, 32768},
    {"signal_every", offsetof(struct verbs_options, signal_every), 16, 1, 32768},
    {"max_message", offsetof(struct verbs_options, max_message), 0, 0, 1 << 30},
    {"mtu", offsetof(struct verbs_options, mtu), 0, 0, 4096},
    {"timeout", offsetof(struct verbs_options, timeout), 0, 0, 31},
    {"retry", offsetof(struct verbs_options, retry), 6, 0, 7},
    {"rnr_retry", offsetof(struct verbs_options, rnr_retry), 7, 0, 7},
    {"traffic_class", offsetof(struct verbs_options, traffic_class), 0, 0, 255},
    {"service_level", offsetof(struct verbs_options, service_level), 0, 0, 15},
    {"hop_limit", offsetof(struct verbs_options, hop_limit), 64, 1, 255},
    {"relaxed_ordering", offsetof(struct verbs_options, relaxed_ordering), 1, 0, 1},
    {"recover", offsetof(struct verbs_options, recover), 1, 0, 1},
};

enum { KEYS = sizeof keys / sizeof *keys };

void verbs_options_default(struct verbs_options *o)
{
    option_keys_default(o, keys, KEYS);
}

int verbs_options_parse(struct verbs_options *o, const char *text, char *error, size_t error_size)
{
    struct verbs_options parsed = *o;
    int rc = option_keys_parse(&parsed, keys, KEYS, "verbs", text, error, error_size);
    if (rc)
        return rc;
    if (parsed.mtu && (parsed.mtu < 256 || parsed.mtu & (parsed.mtu - 1)))
        return mk_fail(-EINVAL, error, error_size,
                       "the verbs option mtu takes 256, 512, 1024, 2048 or 4096, not %" PRId64,
                       parsed.mtu);
    if (parsed.max_message && parsed.max_message < 4096)
        return mk_fail(-EINVAL, error, error_size,
                       "the verbs option max_message takes at least 4096, not %" PRId64,
                       parsed.max_message);
    *o = parsed;
    return 0;
}

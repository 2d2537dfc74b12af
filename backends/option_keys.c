#include "backends/option_keys.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int64_t *option_keys_field(void *options, const struct option_key *k)
{
    return (int64_t *)(void *)((char *)options + k->offset);
}

void option_keys_default(void *options, const struct option_key *keys, size_t count)
{
    for (size_t i = 0; i < count; i++)
        *option_keys_field(options, &keys[i]) = keys[i].standard;
}

static const struct option_key *option_keys_find(const struct option_key *keys, size_t count,
                                                 const char *name, size_t length)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(keys[i].name) == length && !memcmp(keys[i].name, name, length))
            return &keys[i];
    return NULL;
}

int option_keys_parse(void *options, const struct option_key *keys, size_t count,
                      const char *fabric, const char *text, char *error, size_t size)
{
    while (text && *text) {
        size_t length = strcspn(text, ","), name = strcspn(text, "=,");
        if (length) {
            const struct option_key *k = option_keys_find(keys, count, text, name);
            if (!k)
                return mk_fail(-EINVAL, error, size, "the %s options have no '%.*s'", fabric,
                               (int)name, text);
            const char *value = text + name + (name < length);
            char *end;
            errno = 0;
            long long v = strtoll(value, &end, 10);
            if (errno || end == value || end != text + length || v < k->min || v > k->max)
                return mk_fail(-EINVAL, error, size,
                               "the %s option %s takes %" PRId64 " to %" PRId64 ", not '%.*s'",
                               fabric, k->name, k->min, k->max, (int)(text + length - value),
                               value);
            *option_keys_field(options, k) = v;
        }
        text += length + (text[length] == ',');
    }
    return 0;
}

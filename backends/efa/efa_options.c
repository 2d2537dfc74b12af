#include "backends/efa/efa_options.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct key {
    const char *name;
    size_t offset;
    int64_t standard, min, max;
} keys[] = {
    {"depth", offsetof(struct efa_options, depth), 1024, 8, 32768},
    {"window", offsetof(struct efa_options, window), 256, 8, 256},
    {"stripe", offsetof(struct efa_options, stripe), 65536, 128, 1 << 30},
    {"max_rdma", offsetof(struct efa_options, max_rdma), 0, 0, 1 << 30},
    {"unsolicited", offsetof(struct efa_options, unsolicited), 1, 0, 1},
    {"relaxed_ordering", offsetof(struct efa_options, relaxed_ordering), 1, 0, 1},
};

enum { KEYS = sizeof keys / sizeof *keys };

static int64_t *field(struct efa_options *o, const struct key *k)
{
    return (int64_t *)(void *)((char *)o + k->offset);
}

void efa_options_default(struct efa_options *o)
{
    for (int i = 0; i < KEYS; i++)
        *field(o, &keys[i]) = keys[i].standard;
}

static int parse_one(struct efa_options *o, const char *text, size_t length, char *error, size_t error_size)
{
    size_t name = 0;
    while (name < length && text[name] != '=')
        name++;
    const struct key *k = NULL;
    for (int i = 0; i < KEYS && !k; i++)
        if (strlen(keys[i].name) == name && !memcmp(keys[i].name, text, name))
            k = &keys[i];
    if (!k) {
        snprintf(error, error_size, "the efa options have no '%.*s'", (int)name, text);
        return -EINVAL;
    }
    const char *value = text + name + (name < length);
    char *end;
    errno = 0;
    long long v = strtoll(value, &end, 10);
    if (errno || end == value || end != text + length || v < k->min || v > k->max) {
        snprintf(error, error_size, "the efa option %s takes %" PRId64 " to %" PRId64 ", not '%.*s'", k->name,
                 k->min, k->max, (int)(text + length - value), value);
        return -EINVAL;
    }
    *field(o, k) = v;
    return 0;
}

int efa_options_parse(struct efa_options *o, const char *text, char *error, size_t error_size)
{
    struct efa_options parsed = *o;
    while (text && *text) {
        size_t length = strcspn(text, ",");
        int rc = length ? parse_one(&parsed, text, length, error, error_size) : 0;
        if (rc)
            return rc;
        text += length + (text[length] == ',');
    }
    if (parsed.max_rdma && parsed.max_rdma < 4096) {
        snprintf(error, error_size, "the efa option max_rdma takes at least 4096, not %" PRId64,
                 parsed.max_rdma);
        return -EINVAL;
    }
    *o = parsed;
    return 0;
}

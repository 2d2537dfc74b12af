/* What a sweep is made of, in memory, and the short way to say it: --vary. */
#include "experiments/sweep/sweep.h"
#include "core/base/grow.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sweep_begin(struct sweep *s)
{
    memset(s, 0, sizeof *s);
    s->name = s->question = s->text = "";
    s->repeats = 3;
    s->jobs = 1;
    s->seed = 1;
    s->limit_ns = 600000000000ull;
}

void sweep_end(struct sweep *s)
{
    for (uint32_t i = 0; i < s->owned_count; i++)
        free(s->owned[i]);
    free(s->owned);
    memset(s, 0, sizeof *s);
}

void *sweep_take(struct sweep *s, size_t bytes)
{
    if (s->owned_count == SWEEP_OWNED || mk_grow(&s->owned, s->owned_count, sizeof *s->owned))
        return NULL;
    void *memory = calloc(1, bytes ? bytes : 1);
    if (memory)
        s->owned[s->owned_count++] = memory;
    return memory;
}

void *sweep_grow(struct sweep *s, void *array, uint32_t count, size_t bytes)
{
    if (count & (count - 1))
        return array;
    void *larger = sweep_take(s, (count ? 2 * count : 1) * bytes);
    if (larger && count)
        memcpy(larger, array, count * bytes);
    return larger;
}

const char *sweep_keep(struct sweep *s, const char *text, size_t length)
{
    char *copy = sweep_take(s, length + 1);
    if (copy)
        memcpy(copy, text, length);
    return copy;
}

struct sweep_block *sweep_add_block(struct sweep *s, struct sweep_blocks *to)
{
    struct sweep_block *list =
        to->count < SWEEP_POINTS ? sweep_grow(s, to->list, to->count, sizeof *list) : NULL;
    if (!list)
        return NULL;
    to->list = list;
    return &list[to->count++];
}

struct sweep_axis *sweep_add_axis(struct sweep_block *b, const char *name)
{
    if (b->count == SWEEP_SETTINGS)
        return NULL;
    b->axes[b->count] = (struct sweep_axis){.name = name};
    return &b->axes[b->count++];
}

static int sweep_vary_append(struct sweep *s, struct sweep_axis *a, const char *value)
{
    const char **values = sweep_grow(s, a->values, a->count, sizeof *values);
    if (!values)
        return -ENOMEM;
    a->values = values;
    a->values[a->count++] = value;
    return value ? 0 : -ENOMEM;
}

int sweep_add_value(struct sweep *s, struct sweep_axis *a, const char *value)
{
    static const char digits[] = "0123456789";
    size_t length = strspn(value, digits);
    if (!length || strncmp(value + length, "..", 2))
        return sweep_vary_append(s, a, value);
    char *end, text[24];
    uint64_t first = strtoull(value, NULL, 10), last = strtoull(value + length + 2, &end, 10);
    int factor = *end == '*';
    uint64_t step = 1;
    if (factor || !strncmp(end, "..", 2))
        step = strtoull(end + (factor ? 1 : 2), &end, 10);
    if (*end || first > last || last > UINT32_MAX || !step || step > UINT32_MAX)
        return -EINVAL;
    if (factor ? !first || step < 2 : (last - first) / step >= 1000)
        return -EINVAL;
    int rc = 0;
    for (uint64_t n = first; n <= last && !rc; n = factor ? n * step : n + step) {
        snprintf(text, sizeof text, "%lu", n);
        rc = sweep_vary_append(s, a, sweep_keep(s, text, strlen(text)));
    }
    return rc;
}

static struct sweep_axis *sweep_vary_find(struct sweep_block *b, const char *name)
{
    for (uint32_t i = 0; i < b->count; i++)
        if (!strcmp(b->axes[i].name, name))
            return &b->axes[i];
    return NULL;
}

/* Takes "name=value:value" apart into *a, whose memory is the sweep's. */
static int sweep_vary_axis(struct sweep *s, struct sweep_axis *a, const char *text, size_t length,
                           char *error, size_t size)
{
    const char *equal = memchr(text, '=', length), *end = text + length;
    if (!equal || equal == text || equal + 1 == end)
        return mk_fail(-EINVAL, error, size, "--vary: '%.*s' is not NAME=VALUE:VALUE", (int)length,
                       text);
    *a = (struct sweep_axis){.name = sweep_keep(s, text, (size_t)(equal - text))};
    for (const char *p = equal + 1; a->name && p <= end;) {
        const char *colon = memchr(p, ':', (size_t)(end - p));
        const char *stop = colon ? colon : end;
        if (stop == p)
            return mk_fail(-EINVAL, error, size, "--vary: '%.*s' has an empty value", (int)length,
                           text);
        const char *value = sweep_keep(s, p, (size_t)(stop - p));
        int rc = value ? sweep_add_value(s, a, value) : -ENOMEM;
        if (rc == -EINVAL)
            snprintf(error, size, "--vary: %s" SWEEP_RANGE, value);
        if (rc)
            return rc;
        p = stop + 1;
    }
    return a->name ? 0 : -ENOMEM;
}

int sweep_vary(struct sweep *s, const char *text, char *error, size_t size)
{
    if (!s->vary.count && !sweep_add_block(s, &s->vary))
        return -ENOMEM;
    struct sweep_block seen = {.count = 0};
    for (const char *p = text;;) {
        size_t length = strcspn(p, ";");
        struct sweep_axis axis;
        int rc = sweep_vary_axis(s, &axis, p, length, error, size);
        if (rc)
            return rc;
        if (sweep_vary_find(&seen, axis.name))
            return mk_fail(-EINVAL, error, size, "--vary: %s is there twice", axis.name);
        if (!sweep_add_axis(&seen, axis.name))
            return mk_fail(-EINVAL, error, size, "--vary: more than %u names", SWEEP_SETTINGS);
        int anywhere = 0; /* a block that has no such setting stays without, if another has */
        for (uint32_t i = 0; i < s->vary.count; i++)
            anywhere |= sweep_vary_find(&s->vary.list[i], axis.name) != NULL;
        struct sweep_axis *set = sweep_vary_find(&s->set, axis.name);
        if (set) /* what is varied is no longer fixed */
            *set = s->set.axes[--s->set.count];
        for (uint32_t i = 0; i < s->vary.count; i++) {
            struct sweep_axis *old = sweep_vary_find(&s->vary.list[i], axis.name);
            if (!old && anywhere)
                continue;
            old = old ? old : sweep_add_axis(&s->vary.list[i], axis.name);
            if (!old)
                return mk_fail(-EINVAL, error, size, "--vary: more than %u names", SWEEP_SETTINGS);
            *old = axis;
        }
        if (!p[length])
            return 0;
        p += length + 1;
    }
}

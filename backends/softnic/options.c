/* Parses "devices=2,bw=50GB/s,latency=3us,...". Every key has one form, units are required, and
 * nothing is guessed. */
#include "options.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>

struct unit {
    const char *name;
    double factor;
};

static const struct unit rate_units[] = {/* bytes per nanosecond */
                                         {"GB/s", 1.0},   {"MB/s", 1e-3},     {"KB/s", 1e-6},
                                         {"Gb/s", 0.125}, {"Mb/s", 0.125e-3}, {NULL, 0}};
static const struct unit time_units[] = {
    {"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {NULL, 0}};

/* The statuses that a request can fail with, by the names of enum ibv_wc_status. */
static const struct {
    const char *name;
    int status;
} statuses[] = {
    {"LOC_LEN_ERR", IBV_WC_LOC_LEN_ERR},
    {"LOC_QP_OP_ERR", IBV_WC_LOC_QP_OP_ERR},
    {"LOC_PROT_ERR", IBV_WC_LOC_PROT_ERR},
    {"WR_FLUSH_ERR", IBV_WC_WR_FLUSH_ERR},
    {"BAD_RESP_ERR", IBV_WC_BAD_RESP_ERR},
    {"LOC_ACCESS_ERR", IBV_WC_LOC_ACCESS_ERR},
    {"REM_INV_REQ_ERR", IBV_WC_REM_INV_REQ_ERR},
    {"REM_ACCESS_ERR", IBV_WC_REM_ACCESS_ERR},
    {"REM_OP_ERR", IBV_WC_REM_OP_ERR},
    {"RETRY_EXC_ERR", IBV_WC_RETRY_EXC_ERR},
    {"RNR_RETRY_EXC_ERR", IBV_WC_RNR_RETRY_EXC_ERR},
    {"REM_ABORT_ERR", IBV_WC_REM_ABORT_ERR},
    {"FATAL_ERR", IBV_WC_FATAL_ERR},
    {"GENERAL_ERR", IBV_WC_GENERAL_ERR},
};

void softnic_options_default(struct softnic_options *options)
{
    *options = (struct softnic_options){.devices = 2,
                                        .efa = 4,
                                        .bytes_per_ns = -1,
                                        .latency_ns = SOFTNIC_NOT_GIVEN,
                                        .reorder_ns = 20000,
                                        .efa_depth = 4096,
                                        .efa_rdma_bytes = 1u << 30,
                                        .efa_caps = SOFTNIC_EFA_UNSOLICITED,
                                        .drop_device = -1,
                                        .only_device = -1,
                                        .delay_chance = 1,
                                        .seed = 1};
}

/* Digits, and a point among them in whatever locale the program has; *rest points behind them. */
static bool options_read_number(const char *text, double *value, const char **rest)
{
    double number = 0, scale = 0;
    if (!isdigit((unsigned char)text[0]))
        return false;
    for (; isdigit((unsigned char)*text) || (*text == '.' && !scale); text++) {
        number = *text == '.' ? number : number * 10 + (*text - '0');
        scale = *text == '.' ? 1 : scale * 10;
    }
    *value = scale ? number / scale : number;
    *rest = text;
    return *value < 1e18;
}

static bool options_read_count(const char *text, uint64_t *value, const char **rest)
{
    char *end;
    if (!isdigit((unsigned char)text[0]))
        return false;
    errno = 0;
    *value = strtoull(text, &end, 10);
    *rest = end;
    return errno == 0;
}

static bool options_read_quantity(const char *text, const struct unit *units, double *value,
                                  const char **rest)
{
    if (!options_read_number(text, value, rest))
        return false;
    for (; units->name; units++) {
        size_t length = strlen(units->name);
        if (!strncmp(*rest, units->name, length) && !isalpha((unsigned char)(*rest)[length])) {
            *value *= units->factor;
            *rest += length;
            return true;
        }
    }
    return false;
}

static const char *options_set_bw(struct softnic_options *o, const char *v)
{
    if (!strcmp(v, "unlimited")) {
        o->bytes_per_ns = 0;
        return NULL;
    }
    if (!options_read_quantity(v, rate_units, &o->bytes_per_ns, &v) || *v || o->bytes_per_ns <= 0)
        return "unlimited, or a number with a unit: GB/s, MB/s, KB/s, Gb/s or Mb/s";
    return NULL;
}

/* softK or softefaK: its number goes to *device; *rest points behind it. */
static bool options_read_device(const char *text, int *device, const char **rest)
{
    uint64_t number;
    bool efa = !strncmp(text, "softefa", 7);
    if (strncmp(text, "soft", 4) || !options_read_count(text + (efa ? 7 : 4), &number, rest) ||
        number >= SOFTNIC_MAX_DEVICES)
        return false;
    *device = (int)number + (efa ? SOFTNIC_EFA_FIRST : 0);
    return true;
}

static const char *options_set_drop(struct softnic_options *o, const char *v)
{
    static const char want[] = "none, softK or softefaK, or one of them with @N (after N messages)";
    uint64_t after = 0;
    int device = -1;
    if (strcmp(v, "none")) {
        if (!options_read_device(v, &device, &v) ||
            (*v == '@' && !options_read_count(v + 1, &after, &v)) || *v)
            return want;
        o->drop_after = after;
    }
    o->drop_device = device;
    return NULL;
}

static const char *options_set_only(struct softnic_options *o, const char *v)
{
    int device = -1;
    if (strcmp(v, "all") && (!options_read_device(v, &device, &v) || *v))
        return "all, softK or softefaK";
    o->only_device = device;
    return NULL;
}

void softnic_options_narrow(struct softnic_options *options, int device)
{
    struct softnic_options standard;
    if (options->only_device < 0 || options->only_device == device)
        return;
    softnic_options_default(&standard);
    options->bytes_per_ns = standard.bytes_per_ns;
    options->latency_ns = standard.latency_ns;
    options->delay_ns = standard.delay_ns;
    options->fail_nth = standard.fail_nth;
}

static const char *options_set_delay(struct softnic_options *o, const char *v)
{
    static const char want[] = "TIME (up to 60s, with a unit), TIME@N (the N-th message only) or "
                               "TIME~P (with probability P)";
    double ns, chance = 1;
    uint64_t nth = 0;
    if (!options_read_quantity(v, time_units, &ns, &v) || ns > 60e9)
        return want;
    if (*v == '@') {
        if (!options_read_count(v + 1, &nth, &v) || !nth)
            return want;
    } else if (*v == '~') {
        if (!options_read_number(v + 1, &chance, &v) || chance > 1)
            return want;
    }
    if (*v)
        return want;
    o->delay_ns = (uint64_t)ns;
    o->delay_nth = nth;
    o->delay_chance = chance;
    return NULL;
}

static const char *options_set_fail(struct softnic_options *o, const char *v)
{
    uint64_t nth;
    if (!strcmp(v, "none")) {
        o->fail_nth = 0;
        return NULL;
    }
    size_t length = strcspn(v, "@");
    const char *end = v + length + 1;
    if (v[length] && options_read_count(end, &nth, &end) && nth && !*end)
        for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++)
            if (strlen(statuses[i].name) == length && !memcmp(v, statuses[i].name, length)) {
                o->fail_nth = nth;
                o->fail_status = statuses[i].status;
                return NULL;
            }
    return "none or STATUS@N, such as REM_ACCESS_ERR@10 (a name of enum ibv_wc_status without "
           "IBV_WC_)";
}

static const char *options_set_seed(struct softnic_options *o, const char *v)
{
    return options_read_count(v, &o->seed, &v) && !*v ? NULL : "a number";
}

static const char *options_set_count(struct softnic_options *o, const char *v)
{
    if (v[0] != '/' || strlen(v) >= sizeof(o->count))
        return "an absolute path of at most 111 bytes";
    strcpy(o->count, v);
    return NULL;
}

static const char time_want[] = "a time up to 60s with a unit: ns, us, ms or s";

#define TO(field) offsetof(struct softnic_options, field)
/* A value is a number between two, which goes to a uint32_t; one of some words, whose place goes
 * there; what a function of its own makes of it; or a time, in a uint64_t. */
static const struct options_key {
    const char *name, *want; /* what the value must be */
    size_t to;
    uint64_t least, most;
    const char *words[3];
    const char *(*set)(struct softnic_options *options, const char *value); /* NULL, or want */
} keys[] = {
    {"devices", "a number from 1 to 64", .to = TO(devices), .least = 1,
     .most = SOFTNIC_MAX_DEVICES},
    {"efa", "a number from 0 to 64", .to = TO(efa), .least = 0, .most = SOFTNIC_MAX_DEVICES},
    {"efa-depth", "a number of requests from 1 to 16384", .to = TO(efa_depth), .least = 1,
     .most = 16384},
    {"efa-rdma", "a number of bytes from 4096 to 1073741824", .to = TO(efa_rdma_bytes),
     .least = 4096, .most = 1 << 30},
    {"link", "ib or roce", .to = TO(roce), .words = {"ib", "roce"}},
    {"copy", "auto, direct or stream", .to = TO(copy), .words = {"auto", "direct", "stream"}},
    {"gpu", "copy or refuse", .to = TO(gpu_refuse), .words = {"copy", "refuse"}},
    {"efa-caps", "read, write or unsolicited", .to = TO(efa_caps),
     .words = {"read", "write", "unsolicited"}},
    {"reorder", time_want, .to = TO(reorder_ns)},
    {"latency", time_want, .to = TO(latency_ns)},
    {"bw", .set = options_set_bw},
    {"seed", .set = options_set_seed},
    {"drop-peer", .set = options_set_drop},
    {"delay", .set = options_set_delay},
    {"fail-wr", .set = options_set_fail},
    {"only", .set = options_set_only},
    {"count", .set = options_set_count},
};

/* NULL, or what the value must be. */
static const char *options_set(struct softnic_options *o, const struct options_key *k,
                               const char *v)
{
    uint64_t n = 0;
    double ns = 0;
    uint32_t *to = (uint32_t *)(void *)((char *)o + k->to);
    if (k->set)
        return k->set(o, v);
    for (uint32_t i = 0; i < 3 && k->words[i]; i++)
        if (!strcmp(v, k->words[i])) {
            *to = i;
            return NULL;
        }
    if (k->most && options_read_count(v, &n, &v) && !*v && n >= k->least && n <= k->most)
        *to = (uint32_t)n;
    else if (!k->most && !k->words[0] && options_read_quantity(v, time_units, &ns, &v) && !*v &&
             ns <= 60e9)
        *(uint64_t *)(void *)to = (uint64_t)ns;
    else
        return k->want;
    return NULL;
}

static bool options_has_device(const struct softnic_options *o, int device)
{
    return device < 0 || (device < SOFTNIC_EFA_FIRST ? device < (int)o->devices
                                                     : device - SOFTNIC_EFA_FIRST < (int)o->efa);
}

/* Says why, and is -EINVAL. */
#define REFUSE(...) (snprintf(error, size, "SOFTNIC: " __VA_ARGS__), -EINVAL)

int softnic_options_parse(const char *text, struct softnic_options *options, char *error,
                          size_t size)
{
    enum { KEYS = sizeof(keys) / sizeof(keys[0]) };
    struct softnic_options result = *options;
    bool seen[KEYS] = {false};
    char item[128];

    while (*text) {
        size_t length = strcspn(text, ",");
        if (length >= sizeof(item))
            return REFUSE("the item \"%.32s...\" is too long", text);
        memcpy(item, text, length);
        item[length] = 0;
        text += length;
        if (*text == ',' && !*++text)
            return REFUSE("a comma at the end of the options");
        char *value = strchr(item, '=');
        if (!value)
            return REFUSE("\"%.40s\" is not of the form key=value", item);
        *value++ = 0;
        int key = 0;
        while (key < KEYS && strcmp(keys[key].name, item))
            key++;
        if (key == KEYS)
            return REFUSE("unknown key \"%.40s\" (known: devices efa efa-depth efa-rdma "
                          "reorder link copy bw latency drop-peer delay fail-wr seed gpu only "
                          "count efa-caps)",
                          item);
        if (seen[key])
            return REFUSE("%s is given twice", item);
        seen[key] = true;
        const char *want = options_set(&result, &keys[key], value);
        if (want)
            return REFUSE("%s=%.40s: the value must be %s", item, value, want);
    }
    if (!options_has_device(&result, result.only_device) ||
        !options_has_device(&result, result.drop_device))
        return REFUSE("%s names a device that is not there: soft0 to soft%u and %u EFA devices are",
                      options_has_device(&result, result.only_device) ? "drop-peer" : "only",
                      result.devices - 1, result.efa);
    *options = result;
    return 0;
}

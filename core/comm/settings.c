/* The communicator and the plans from strings, for languages that do not read the public header:
 * what struct mk_config and struct mk_spec say, as "NAME=VALUE". */
#include "core/base/c_numbers.h"
#include "core/comm/comm_parts.h"
#include "core/comm/launcher.h"
#include "core/mkernel.h"
#include "core/ops/op.h"
#include "core/base/sentence.h"
#include "core/base/words.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum setting_kind { SETTING_U16, SETTING_INT, SETTING_U32, SETTING_U64, SETTING_TEXT };

struct setting {
    const char *name;
    enum setting_kind kind;
    size_t offset, size; /* of the field; text: its room */
};

#define FIELD(type, kind, name)                                                                    \
    {                                                                                              \
#name, kind, offsetof(struct type, name), sizeof(((struct type *)0)->name)                 \
    }

static const struct setting comm_settings[] = {
    FIELD(mk_config, SETTING_U32, rank),       FIELD(mk_config, SETTING_U32, nodes),
    FIELD(mk_config, SETTING_U32, gpus),       FIELD(mk_config, SETTING_TEXT, host),
    FIELD(mk_config, SETTING_U16, port),       FIELD(mk_config, SETTING_INT, listen_fd),
    FIELD(mk_config, SETTING_TEXT, token),     FIELD(mk_config, SETTING_TEXT, fabric),
    FIELD(mk_config, SETTING_TEXT, nic),       FIELD(mk_config, SETTING_U32, rails),
    FIELD(mk_config, SETTING_U64, heap_bytes), FIELD(mk_config, SETTING_U64, flag_bytes),
    FIELD(mk_config, SETTING_U64, timeout_ns), FIELD(mk_config, SETTING_U32, trace_events),
    FIELD(mk_config, SETTING_TEXT, tuning),    FIELD(mk_config, SETTING_U32, device),
};

static const struct setting plan_settings[] = {
    FIELD(mk_spec, SETTING_INT, causal),        FIELD(mk_spec, SETTING_INT, b_transposed),
    FIELD(mk_spec, SETTING_INT, deterministic), FIELD(mk_spec, SETTING_U64, a_offset),
    FIELD(mk_spec, SETTING_U64, c_offset),      FIELD(mk_spec, SETTING_U64, timeout_ns),
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- one string ---- */

/* A decimal number of at most `most`, up to `end`. 1 if it is one. */
static int setting_number(const char *value, const char *end, uint64_t most, uint64_t *out)
{
    *out = 0;
    if (value == end)
        return 0;
    for (; value < end; value++) {
        uint64_t digit = (uint64_t)(*value - '0');
        if (*value < '0' || *value > '9' || *out > (most - digit) / 10 || digit > most)
            return 0;
        *out = *out * 10 + digit;
    }
    return 1;
}

static int setting_read(const struct setting *s, const char *value, void *fields, char *error,
                        size_t size)
{
    static const uint64_t most[] = {[SETTING_U16] = UINT16_MAX,
                                    [SETTING_INT] = INT32_MAX,
                                    [SETTING_U32] = UINT32_MAX,
                                    [SETTING_U64] = UINT64_MAX};
    char *field = (char *)fields + s->offset;
    size_t length = strlen(value);
    uint64_t number;
    if (s->kind == SETTING_TEXT) {
        if (length >= s->size)
            return plan_refuse(error, size, "%s has %zu characters: at most %zu", s->name, length,
                               s->size - 1);
        memcpy(field, value, length + 1);
        return 0;
    }
    if (!setting_number(value, value + length, most[s->kind], &number))
        return plan_refuse(error, size, "%s=%.40s: a number of 0 to %lu", s->name, value,
                           most[s->kind]);
    switch (s->kind) {
    case SETTING_U16:
        *(uint16_t *)(void *)field = (uint16_t)number;
        break;
    case SETTING_INT:
        *(int *)(void *)field = (int)number;
        break;
    case SETTING_U32:
        *(uint32_t *)(void *)field = (uint32_t)number;
        break;
    default:
        *(uint64_t *)(void *)field = number;
    }
    return 0;
}

/* Finds the setting of `text` in the table and reads it. */
static int setting_take(const struct setting *table, size_t count, const char *others,
                        const char *text, void *fields, char *error, size_t size)
{
    char names[256] = "";
    for (size_t i = 0; i < count; i++) {
        const char *value = setting_value(text, table[i].name);
        if (value)
            return setting_read(&table[i], value, fields, error, size);
        mk_append(names, sizeof names, ", %s", table[i].name);
    }
    return plan_refuse(error, size, "there is no setting '%.*s'; these are: %s%s",
                       (int)strcspn(text, "=") < 40 ? (int)strcspn(text, "=") : 40, text, others,
                       names);
}

/* ---- the communicator ---- */

static int settings_read_comm(struct mk_config *c, const char *const *settings, char *error,
                              size_t size)
{
    for (int result; *settings; settings++) {
        const char *exec = setting_value(*settings, "exec");
        int number = exec ? mk_word(exec, plan_execs, MK_EXECS) : 0;
        if (number < 0)
            return plan_refuse(error, size, "exec=%.40s: host, cuda or emulated", exec);
        if (exec)
            c->exec = number;
        else if ((result = setting_take(comm_settings, COUNT(comm_settings), "exec", *settings, c,
                                        error, size)))
            return result;
    }
    return 0;
}

static int setting_is_given(const char *const *settings, const char *name)
{
    for (; *settings; settings++)
        if (setting_value(*settings, name))
            return 1;
    return 0;
}

/* What the settings leave open of who this rank is and where rank 0 is, from the launcher. */
static int settings_ask_launcher(struct mk_config *c, const char *const *settings, char *error,
                                 size_t size)
{
    struct launcher l;
    int found = launcher_read(&l, (const char *const *)environ, error, size);
    if (found < 0)
        return found;
    if (!found) {
        l = (struct launcher){.world = 1, .local_world = 1, .nodes = 1};
        if (setting_is_given(settings, "nodes") || setting_is_given(settings, "gpus"))
            return plan_refuse(error, size,
                               "nodes or gpus without rank, where no launcher says it: give all "
                               "three, or start it under torchrun, srun or mpirun");
    }
    if (!c->nodes && !c->gpus)
        c->nodes = l.nodes;
    if (!c->nodes)
        c->nodes = l.world / c->gpus;
    if (!c->gpus)
        c->gpus = l.world / c->nodes;
    if ((uint64_t)c->nodes * c->gpus != l.world)
        return plan_refuse(error, size, "%u nodes of %u ranks, but %s started %u ranks", c->nodes,
                           c->gpus, l.name, l.world);
    c->rank = l.rank;
    if (!c->host[0])
        memcpy(c->host, l.host, sizeof c->host);
    if (!c->port)
        c->port = l.port;
    if (!c->token[0])
        memcpy(c->token, l.token, sizeof c->token);
    return 0;
}

int mk_comm_open_settings(struct mk_comm **out, uint32_t version, const char *const *settings)
{
    MK_C_NUMBERS;
    struct mk_config c = {.version = version};
    char error[512];
    if (version / 100 != MK_VERSION_NUMBER / 100) /* whose settings may be others */
        return mk_comm_open(out, &c);
    int result = settings_read_comm(&c, settings, error, sizeof error);
    if (!result && !setting_is_given(settings, "rank"))
        result = settings_ask_launcher(&c, settings, error, sizeof error);
    if (!result)
        return mk_comm_open(out, &c);
    *out = calloc(1, sizeof **out);
    return *out ? comm_refuse(*out, result, "%s", error) : -ENOMEM;
}

uint32_t mk_comm_rank(const struct mk_comm *comm)
{
    return comm->topo.rank;
}

uint32_t mk_comm_nodes(const struct mk_comm *comm)
{
    return comm->topo.nodes;
}

uint32_t mk_comm_gpus(const struct mk_comm *comm)
{
    return comm->topo.gpus;
}

/* ---- plans ---- */

static int settings_read_shape(struct mk_spec *spec, const char *value, char *error, size_t size)
{
    uint32_t count = 0;
    for (const char *at = value;; at++) {
        const char *end = at + strcspn(at, ",");
        if (count == MK_SHAPE || !setting_number(at, end, UINT64_MAX, &spec->shape[count++]))
            return plan_refuse(error, size, "shape=%.80s: up to %d numbers between commas", value,
                               MK_SHAPE);
        at = end;
        if (!*at)
            return 0;
    }
}

static int settings_read_plan(struct mk_spec *spec, const char *const *settings, char *error,
                              size_t size)
{
    int op = -1;
    for (int result = 0; *settings; settings++) {
        const char *value;
        if ((value = setting_value(*settings, "op"))) {
            op = mk_op_by_name(value);
            if (op < 0)
                return plan_refuse(error, size, "there is no operator '%.40s'", value);
        } else if ((value = setting_value(*settings, "shape")))
            result = settings_read_shape(spec, value, error, size);
        else if ((value = setting_value(*settings, "options")))
            spec->options = value;
        else if ((value = setting_value(*settings, "deterministic")) &&
                 !strcmp(value, plan_sums[MK_EVERYWHERE]))
            spec->deterministic = MK_EVERYWHERE;
        else
            result = setting_take(plan_settings, COUNT(plan_settings), "op, shape, options",
                                  *settings, spec, error, size);
        if (result)
            return result;
    }
    spec->op = op;
    return op < 0 ? plan_refuse(error, size, "the settings of a plan name no op") : 0;
}

int mk_plan_create_settings(struct mk_plan **out, struct mk_comm *comm, const char *const *settings)
{
    MK_C_NUMBERS;
    struct mk_problem q;
    struct mk_spec spec;
    memset(&spec, 0, sizeof spec);
    memset(&q, 0, sizeof q);
    int result = settings_read_plan(&spec, settings, comm->error, sizeof comm->error);
    result = result ? result : spec_to_problem(&q, &spec, comm->error, sizeof comm->error);
    return comm_create_plan(out, comm, &q, result);
}

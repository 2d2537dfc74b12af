/* From axes to points, and from a point to the command that measures it. */
#include "core/mkernel.h"
#include "experiments/sweep/sweep.h"
#include "experiments/common/shell_word.h"
#include "core/plan/plan.h"
#include "core/base/sentence.h"
#include "core/base/words.h"
#include "experiments/common/nearest.h"
#include "experiments/results/results_takes.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const executors[] = {"cuda", "host", "emulated", "sim"};
enum { EXECUTORS = sizeof executors / sizeof *executors };

const char *sweep_value(const struct sweep_point *p, const char *name)
{
    for (uint32_t i = 0; i < p->count; i++)
        if (!strcmp(p->settings[i].name, name))
            return p->settings[i].value;
    return "default";
}

static int sweep_points_is_simulated(const struct sweep_point *p)
{
    return !strcmp(sweep_value(p, "exec"), "sim");
}

int sweep_is_measured(const struct sweep_point *p)
{
    return !sweep_points_is_simulated(p) && strcmp(sweep_value(p, "exec"), "emulated");
}

/* Whether the point's command takes the setting. "sim.cluster" is for points of that executor, and
 * is then called "cluster"; "env.NAME" is for those that have an environment to look at. */
static int sweep_points_takes(const struct sweep_point *p, const char **name)
{
    const char *exec = sweep_value(p, "exec");
    size_t length = strlen(exec);
    for (int i = 0; i < EXECUTORS; i++) {
        size_t prefix = strlen(executors[i]);
        if (strncmp(*name, executors[i], prefix) || (*name)[prefix] != '.')
            continue;
        if (prefix != length || strncmp(*name, exec, prefix))
            return 0;
        *name += prefix + 1;
        return 1;
    }
    return result_exec_takes(exec, *name);
}

static int sweep_points_by_name(const void *a, const void *b)
{
    const struct sweep_setting *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Whether a sweep may set a variable of the environment: one that mkernel, NCCL or a library of
 * numbers reads, and that names no library to be loaded, nor a file that may. */
static int sweep_points_may_set(const char *variable)
{
    static const char *const prefixes[] = {"MKERNEL_", "MK_",  "SOFTNIC",  "NCCL_",
                                           "CUDA_",    "OMP_", "OPENBLAS_"};
    static const char *const named[] = {"PATH", "PLUGIN", "LIBRAR", "CONF_FILE"};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (strstr(variable, named[i]))
            return 0;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (!strncmp(variable, prefixes[i], strlen(prefixes[i])))
            return 1;
    return 0;
}

/* Leaves out what the command does not take and what is "default", and names the point. */
static int sweep_points_finish(struct sweep *s, struct sweep_point *p, char *error, size_t size)
{
    struct sweep_setting kept[SWEEP_SETTINGS];
    char key[4096];
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        struct sweep_setting one = p->settings[i];
        if (!strcmp(one.value, "default") || !sweep_points_takes(p, &one.name))
            continue;
        if (!strncmp(one.name, "env.", 4) && !sweep_points_may_set(one.name + 4))
            return mk_fail(-EINVAL, error, size,
                           "%s: a sweep sets variables MKERNEL_..., MK_..., SOFTNIC..., NCCL_..., "
                           "CUDA_..., OMP_... and OPENBLAS_..., but none that names a library",
                           p->settings[i].name);
        kept[count++] = one;
    }
    memcpy(p->settings, kept, count * sizeof *kept);
    p->count = count;
    qsort(kept, count, sizeof *kept, sweep_points_by_name);
    key[0] = '\0';
    for (uint32_t i = 0; i < count; i++)
        mk_append(key, sizeof key, "%s%s=%s", i ? " " : "", kept[i].name, kept[i].value);
    p->key = sweep_keep(s, key, strlen(key));
    return p->key ? 0 : -ENOMEM;
}

/* Whether all that the block names is so. */
static int sweep_points_match(const struct sweep_point *p, const struct sweep_block *b)
{
    for (uint32_t i = 0; i < b->count; i++) {
        const struct sweep_axis *a = &b->axes[i];
        int any = 0;
        for (uint32_t v = 0; v < a->count; v++)
            any |= !strcmp(sweep_value(p, a->name), a->values[v]);
        if (!any)
            return 0;
    }
    return b->count > 0;
}

int sweep_is_published(const struct sweep_point *p, const struct sweep_block *b, const char **who,
                       double *flops)
{
    struct sweep_block rest = {.count = 0};
    for (uint32_t i = 0; i < b->count; i++) {
        if (!strcmp(b->axes[i].name, "who"))
            *who = b->axes[i].values[0];
        else if (!strcmp(b->axes[i].name, "tflops"))
            *flops = strtod(b->axes[i].values[0], NULL) * 1e12;
        else
            rest.axes[rest.count++] = b->axes[i];
    }
    return sweep_points_match(p, &rest);
}

static int sweep_points_match_any(const struct sweep_point *p, const struct sweep_blocks *rules)
{
    for (uint32_t i = 0; i < rules->count; i++)
        if (sweep_points_match(p, &rules->list[i]))
            return 1;
    return 0;
}

/* Says what is wrong with a value, if anything. */
static int sweep_points_check(const struct sweep_point *p, char *error, size_t size)
{
    const char *op = sweep_value(p, "op"), *exec = sweep_value(p, "exec"), *names[MK_OPS];
    if (!strcmp(op, "default"))
        return mk_fail(-EINVAL, error, size, "no operator is named: `op` is missing");
    for (int i = 0; i < MK_OPS; i++)
        names[i] = plan_op_name(i);
    if (plan_op_by_name(op) < 0) {
        char near[NEAREST_TEXT];
        return mk_fail(-EINVAL, error, size, "there is no operator %s%s", op,
                       nearest_hint(near, op, "", names, MK_OPS));
    }
    if (mk_word(exec, executors, EXECUTORS) >= 0 || !strcmp(exec, "default"))
        return 0;
    return mk_fail(-EINVAL, error, size, "there is no executor %s (cuda, host, emulated, sim)",
                   exec);
}

static int sweep_points_add(struct sweep *s, const struct sweep_point *p)
{
    struct sweep_point *points = sweep_grow(s, s->points, s->point_count, sizeof *points);
    if (!points)
        return -ENOMEM;
    s->points = points;
    s->points[s->point_count++] = *p;
    return 0;
}

static int sweep_points_is_new(const struct sweep *s, const struct sweep_point *p)
{
    for (uint32_t i = 0; i < s->point_count; i++)
        if (!strcmp(s->points[i].key, p->key))
            return 0;
    return 1;
}

/* Every combination of a block. *combined: of those before it, which count where they are left out,
 * too, since each takes time and memory. */
static int sweep_points_combine(struct sweep *s, const struct sweep_block *b, uint64_t *combined,
                                char *error, size_t size)
{
    uint32_t at[SWEEP_SETTINGS] = {0};
    uint64_t all = 1;
    for (uint32_t i = 0; i < b->count; i++) {
        all *= b->axes[i].count;
        if (all > SWEEP_POINTS)
            break;
    }
    *combined += all;
    if (*combined > SWEEP_POINTS)
        return mk_fail(-EINVAL, error, size, "these are more than %u points", SWEEP_POINTS);
    if (b->count + s->set.count > SWEEP_SETTINGS)
        return mk_fail(-EINVAL, error, size, "a point has more than %u settings", SWEEP_SETTINGS);
    for (uint64_t n = 0; n < all; n++) {
        struct sweep_point p = {.count = 0};
        for (uint32_t i = 0; i < s->set.count; i++)
            p.settings[p.count++] =
                (struct sweep_setting){s->set.axes[i].name, s->set.axes[i].values[0]};
        for (uint32_t i = 0; i < b->count; i++)
            p.settings[p.count++] =
                (struct sweep_setting){b->axes[i].name, b->axes[i].values[at[i]]};
        int rc = sweep_points_check(&p, error, size);
        rc = rc ? rc : sweep_points_finish(s, &p, error, size);
        if (!rc && !sweep_points_match_any(&p, &s->exclude) && sweep_points_is_new(s, &p)) {
            p.traced = sweep_points_match_any(&p, &s->trace);
            rc = sweep_points_add(s, &p);
        }
        if (rc)
            return rc;
        for (uint32_t i = b->count; i-- && ++at[i] == b->axes[i].count;)
            at[i] = 0;
    }
    return 0;
}

/* Whether several points differ in a setting. */
static int sweep_points_varies(const struct sweep *s, const char *name)
{
    for (uint32_t i = 1; i < s->point_count; i++)
        if (strcmp(sweep_value(&s->points[i], name), sweep_value(&s->points[0], name)))
            return 1;
    return 0;
}

/* What a line of progress calls a point. */
static int sweep_points_label(struct sweep *s)
{
    const char *names[SWEEP_SETTINGS];
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->point_count; i++)
        for (uint32_t k = 0; k < s->points[i].count; k++) {
            const char *name = s->points[i].settings[k].name;
            if (mk_word(name, names, count) < 0 && count < SWEEP_SETTINGS &&
                (!strcmp(name, "op") || sweep_points_varies(s, name)))
                names[count++] = name;
        }
    for (uint32_t i = 0; i < s->point_count; i++) {
        char text[2048] = "";
        for (uint32_t n = 0; n < count; n++) {
            const char *value = sweep_value(&s->points[i], names[n]);
            int plain =
                !strcmp(names[n], "op") || !strcmp(names[n], "shape") || !strcmp(names[n], "exec");
            if (strcmp(value, "default"))
                mk_append(text, sizeof text, "%s%s%s%s", *text ? " " : "", plain ? "" : names[n],
                          plain ? "" : "=", value);
        }
        s->points[i].label = sweep_keep(s, text, strlen(text));
        if (!s->points[i].label)
            return -ENOMEM;
    }
    return 0;
}

int sweep_make_points(struct sweep *s, char *error, size_t size)
{
    uint64_t combined = 0;
    struct sweep_block nothing = {.count = 0};
    snprintf(error, size, "no memory for the points");
    int rc = s->vary.count ? 0 : sweep_points_combine(s, &nothing, &combined, error, size);
    for (uint32_t i = 0; i < s->vary.count && !rc; i++)
        rc = sweep_points_combine(s, &s->vary.list[i], &combined, error, size);
    if (rc)
        return rc;
    if (!s->point_count)
        return mk_fail(-EINVAL, error, size, "there is no point to measure: `exclude` leaves none");
    return sweep_points_label(s);
}

__attribute__((format(printf, 2, 3))) static void sweep_points_word(struct sweep_command *c,
                                                                    const char *format, ...)
{
    va_list args;
    size_t room = sizeof c->text - c->used;
    va_start(args, format);
    int length = vsnprintf(c->text + c->used, room, format, args);
    va_end(args);
    if ((size_t)length >= room || c->count + 1 >= SWEEP_WORDS)
        c->used = sizeof c->text; /* told in the end */
    if (c->used == sizeof c->text)
        return;
    c->words[c->count++] = c->text + c->used;
    c->used += (size_t)length + 1;
}

static int sweep_points_is(const char *value, const char *yes, const char *is_true)
{
    return !strcmp(value, yes) || !strcmp(value, is_true);
}

int sweep_make_command(struct sweep_command *c, const struct sweep_point *p, enum sweep_mode mode,
                       uint64_t seed, const char *result)
{
    const char *exec = sweep_value(p, "exec");
    int emulated = !strcmp(exec, "emulated"), simulated = sweep_points_is_simulated(p);
    memset(c, 0, sizeof *c);
    sweep_points_word(c, "mkernel");
    sweep_points_word(c, simulated ? "sim" : mode == SWEEP_TRACE || emulated ? "run" : "bench");
    sweep_points_word(c, "%s", sweep_value(p, "op"));
    if (emulated)
        sweep_points_word(c, "--check");
    for (uint32_t i = 0; i < p->count; i++) {
        const char *name = p->settings[i].name, *value = p->settings[i].value;
        if (!strcmp(name, "op") || (!strcmp(name, "exec") && !strcmp(value, "sim")) ||
            sweep_points_is(value, "no", "false") ||
            (mode == SWEEP_TRACE && (!strcmp(name, "vs") || !strcmp(name, "traced"))))
            continue;
        if (!strncmp(name, "env.", 4)) {
            sweep_points_word(c, "%s=%s", name + 4, value);
            if (c->used < sizeof c->text) /* an entry of the environment, not a word */
                c->environment[c->entries++] = c->words[--c->count];
            continue;
        }
        sweep_points_word(c, "--%s", name);
        if (!sweep_points_is(value, "yes", "true"))
            sweep_points_word(c, "%s", value);
    }
    if (!strcmp(sweep_value(p, "seed"), "default")) {
        sweep_points_word(c, "--seed");
        sweep_points_word(c, "%lu", seed);
    }
    sweep_points_word(c, mode == SWEEP_ASK     ? "--dry-run"
                         : mode == SWEEP_TRACE ? "--trace"
                                               : "--json");
    if (mode != SWEEP_ASK)
        sweep_points_word(c, "%s", result);
    if (!simulated && !emulated && mode == SWEEP_MEASURE)
        sweep_points_word(c, "--samples");
    sweep_points_word(c, "--quiet");
    c->words[c->count] = NULL;
    return c->used < sizeof c->text ? 0 : -E2BIG;
}

void sweep_say_command(const struct sweep_command *c, char *text, size_t size)
{
    FILE *f = fmemopen(text, size, "w");
    memset(text, 0, size);
    for (uint32_t i = 0; f && i < c->entries + c->count; i++) {
        const char *word = i < c->entries ? c->environment[i] : c->words[i - c->entries];
        if (i)
            fputc(' ', f);
        if (i < c->entries) { /* a quoted name is none */
            size_t name = strcspn(word, "=") + 1;
            fprintf(f, "%.*s", (int)name, word);
            word += name;
        }
        shell_word(f, word);
    }
    if (f)
        fclose(f);
    text[size - 1] = '\0';
}

#include "experiments/common/options.h"
#include "core/base/sentence.h"
#include "core/plan/tuning.h"
#include "core/base/words.h"
#include "experiments/common/nearest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Reads digits; *end stands behind them. 0, -EINVAL (no digit) or -ERANGE, with the most in *out. */
static int options_read_digits(const char *text, const char **end, uint64_t *out)
{
    uint64_t value = 0;
    const char *c = text;
    int overflow = 0;
    for (; *c >= '0' && *c <= '9'; c++)
        overflow |= __builtin_mul_overflow(value, 10, &value) ||
                    __builtin_add_overflow(value, (uint64_t)(*c - '0'), &value);
    *end = c;
    *out = overflow ? UINT64_MAX : value;
    return c == text ? -EINVAL : overflow ? -ERANGE : 0;
}

static int options_in_range(uint64_t value, uint64_t min, uint64_t max)
{
    return value < min || value > max ? -ERANGE : 0;
}

int options_whole(const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
    const char *rest;
    int result = options_read_digits(text, &rest, out);
    return *rest ? -EINVAL : result ? result : options_in_range(*out, min, max);
}

int options_seconds(const char *text, uint64_t min, uint64_t max, uint64_t *ns)
{
    static const struct {
        const char *unit;
        uint64_t ns;
    } units[] = {{"", 1000000000}, {"s", 1000000000}, {"ms", 1000000}, {"us", 1000}};
    const char *rest;
    uint64_t whole, fraction = 0, digits = 1;
    int result = options_read_digits(text, &rest, &whole);
    if (result)
        return result;
    if (*rest == '.') {
        const char *c = ++rest;
        for (; *c >= '0' && *c <= '9'; c++) {
            if (digits < 1000000000) { /* what is below a nanosecond is dropped */
                fraction = fraction * 10 + (uint64_t)(*c - '0');
                digits *= 10;
            }
        }
        if (c == rest)
            return -EINVAL;
        rest = c;
    }
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        uint64_t value;
        if (strcmp(rest, units[i].unit))
            continue;
        if (__builtin_mul_overflow(whole, units[i].ns, &value))
            return -ERANGE;
        *ns = value + (uint64_t)((double)fraction / (double)digits * (double)units[i].ns + 0.5);
        return options_in_range(*ns, min, max);
    }
    return -EINVAL;
}

int options_bytes(const char *text, uint64_t min, uint64_t max, uint64_t *bytes)
{
    static const char letters[] = "KMGT";
    const char *rest;
    uint64_t value, unit = 1;
    int result = options_read_digits(text, &rest, &value);
    if (result)
        return result;
    for (int i = 0; *rest && letters[i]; i++) {
        if (strncasecmp(rest, &letters[i], 1))
            continue;
        unit = (uint64_t)1 << 10 * (i + 1);
        rest++;
        if (*rest == 'i' && (rest[1] == 'B' || rest[1] == 'b'))
            rest++;
        break;
    }
    if (*rest && strcasecmp(rest, "b"))
        return -EINVAL;
    if (__builtin_mul_overflow(value, unit, bytes))
        return -ERANGE;
    return options_in_range(*bytes, min, max);
}

static int options_parse_numbers(const struct option_spec *s, const char *text, uint64_t *out)
{
    unsigned parts = s->parts ? s->parts : 1, least = s->least ? s->least : parts;
    uint64_t values[8] = {0};
    const char *rest = text;
    if (s->words && !strcmp(text, s->words[0])) {
        *out = s->min;
        return 0;
    }
    for (unsigned i = 0; i < parts; i++) {
        int result = options_read_digits(rest, &rest, &values[i]);
        int last = i + 1 == parts || (i + 1 >= least && !*rest);
        if (!result && *rest != (last ? '\0' : ','))
            result = -EINVAL;
        result = result ? result : options_in_range(values[i], s->min + (s->words != NULL), s->max);
        if (result)
            return result;
        if (last)
            break;
        rest++;
    }
    memcpy(out, values, parts * sizeof *out);
    return 0;
}

static int options_parse_roles(const char *text, struct mk_role_split *out, char *error,
                               size_t size)
{
    const char *names[MK_ROLES];
    char why[160], name[32];
    if (!tuning_read_roles(text, out, why, sizeof why))
        return 0;
    for (int i = 0; i < MK_ROLES; i++)
        names[i] = plan_role_name(i);
    for (const char *c = text; c && *c; c = strchr(c, ',') ? strchr(c, ',') + 1 : NULL) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(c, "=,"), c);
        const char *near = nearest_word(name, names, MK_ROLES);
        if (near && strcmp(near, name) != 0)
            return mk_fail(-EINVAL, error, size, "--roles: there is no role %s (did you mean %s?)",
                           name, near);
    }
    return mk_fail(-EINVAL, error, size, "--roles %s: %s", text, why);
}

/* "1 to 5", with units. */
static void options_say_range(const struct option_spec *s, char *text, size_t size)
{
    unsigned long long min = s->min + (s->type == OPTION_NUMBERS && s->words), max = s->max;
    if (s->type == OPTION_SECONDS)
        snprintf(text, size, "%g to %g seconds", (double)s->min / 1e9, (double)s->max / 1e9);
    else
        snprintf(text, size, "%llu to %llu%s%s", min, max,
                 s->type == OPTION_BYTES ? " bytes"
                 : min > s->min          ? ", or "
                                         : "",
                 min > s->min ? s->words[0] : "");
}

static int options_parse_value(const struct option_spec *s, const char *text, char *base,
                               char *error, size_t size)
{
    void *out = base + s->offset;
    char range[64], near[NEAREST_TEXT];
    uint64_t number;
    int result = 0;
    switch (s->type) {
    case OPTION_FLAG:
        if (*(int *)out < (int)s->max || !*(int *)out)
            *(int *)out = s->max ? (int)s->max : 1;
        return 0;
    case OPTION_ROLES:
        return options_parse_roles(text, out, error, size);
    case OPTION_TEXT:
        if (!*text || (s->max && strlen(text) > s->max))
            return mk_fail(-EINVAL, error, size, "--%s takes 1 to %lu characters", s->name,
                           s->max ? s->max : 4096);
        *(const char **)out = text;
        return 0;
    case OPTION_WORD:
        result = mk_word(text, s->words, s->word_count);
        if (result < 0 && s->max && !options_whole(text, s->min, s->max, &number))
            result = (int)(number - s->min);
        if (result >= 0) {
            *(int *)out = result + (int)s->min;
            return 0;
        }
        return mk_fail(-EINVAL, error, size, "--%s %s: there is no such value%s (it takes %s)",
                       s->name, text, nearest_hint(near, text, "", s->words, s->word_count),
                       s->value);
    case OPTION_NUMBERS:
        result = options_parse_numbers(s, text, out);
        break;
    case OPTION_SECONDS:
        result = options_seconds(text, s->min, s->max, out);
        break;
    case OPTION_BYTES:
        result = options_bytes(text, s->min, s->max, out);
        break;
    }
    if (!result)
        return 0;
    options_say_range(s, range, sizeof range);
    if (result == -ERANGE)
        return mk_fail(-EINVAL, error, size, "--%s %s: out of range, it takes %s", s->name, text,
                       range);
    return mk_fail(-EINVAL, error, size, "--%s %s: not a valid value, it takes %s (%s)", s->name,
                   text, s->value, range);
}

static const struct option_spec *options_find(const struct option_table *table, const char *name,
                                              size_t length)
{
    for (size_t i = 0; i < table->count; i++)
        if (strlen(table->specs[i].name) == length && !strncmp(table->specs[i].name, name, length))
            return &table->specs[i];
    return NULL;
}

static int options_unknown(const struct option_table *table, const char *argument, char *error,
                           size_t size)
{
    const char *names[OPTIONS_MOST + 1];
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(argument, "="), argument);
    for (size_t i = 0; i < table->count; i++)
        names[i] = table->specs[i].name;
    names[table->count] = "help";
    char near[NEAREST_TEXT];
    return mk_fail(-EINVAL, error, size, "there is no option %s%s", name,
                   nearest_hint(near, name + strspn(name, "-"), "--", names, table->count + 1));
}

void options_fit(size_t count)
{
    if (count > OPTIONS_MOST)
        abort();
}

int options_parse(const struct option_table *table, int argc, char **argv, void *values,
                  struct options_found *found, char *error, size_t size)
{
    memset(found, 0, sizeof *found);
    options_fit(table->count);
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (!strcmp(a, "--help") || !strcmp(a, "-h")) {
            found->help = 1;
            continue;
        }
        if (a[0] != '-' || !a[1]) {
            if (found->word_count == (int)(sizeof found->words / sizeof *found->words))
                return mk_fail(-EINVAL, error, size, "%s is one argument too many", a);
            found->words[found->word_count++] = a;
            continue;
        }
        size_t length = strcspn(a, "=");
        const struct option_spec *s =
            length > 2 && a[1] == '-' ? options_find(table, a + 2, length - 2) : NULL;
        if (!s)
            return options_unknown(table, a, error, size);
        uint64_t bit = (uint64_t)1 << (s - table->specs);
        if (found->given & bit)
            return mk_fail(-EINVAL, error, size, "--%s is there twice", s->name);
        found->given |= bit;
        const char *value = a[length] ? a + length + 1 : NULL;
        if (s->type == OPTION_FLAG && value)
            return mk_fail(-EINVAL, error, size, "--%s takes no value", s->name);
        if (s->bare && !value)
            value = s->words[0];
        if (s->type != OPTION_FLAG && !value) {
            if (i + 1 == argc || !strncmp(argv[i + 1], "--", 2))
                return mk_fail(-EINVAL, error, size, "--%s needs a value (%s)", s->name, s->value);
            value = argv[++i];
        }
        int result = options_parse_value(s, value, values, error, size);
        if (result)
            return result;
    }
    return 0;
}

const struct option_spec *options_check(const struct option_table *table,
                                        const struct options_found *found, uint32_t context,
                                        const char *name, char *error, size_t size)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct option_spec *s = &table->specs[i];
        if (found->given >> i & 1 && s->contexts && !(s->contexts & context)) {
            snprintf(error, size, "%s does not take --%s", name, s->name);
            return s;
        }
    }
    return NULL;
}

int options_given(const struct option_table *table, const struct options_found *found,
                  const char *name)
{
    const struct option_spec *s = options_find(table, name, strlen(name));
    return s && found->given >> (s - table->specs) & 1;
}

/* Words of `text`, broken at `width` columns, later lines indented. */
static void options_print_wrapped(FILE *out, const char *text, int indent, int width)
{
    int column = indent;
    for (const char *c = text; *c;) {
        int length = (int)strcspn(c, " ");
        if (column + length > width && column > indent) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        }
        fprintf(out, "%.*s", length, c);
        column += length + 1;
        c += length;
        if (*c == ' ') {
            c++;
            if (column + (int)strcspn(c, " ") <= width)
                fputc(' ', out);
        }
    }
    fputc('\n', out);
}

static void options_print_option(FILE *out, const struct option_spec *s)
{
    char head[64];
    snprintf(head, sizeof head, "--%s%s%s%s", s->name,
             s->bare    ? "[="
             : s->value ? " "
                        : "",
             s->value ? s->value : "", s->bare ? "]" : "");
    int wide = strlen(head) > 22;
    fprintf(out, "  %-22s%s%*s", head, wide ? "\n" : "  ", wide ? 26 : 0, "");
    options_print_wrapped(out, s->help, 26, 104);
}

const char *options_group(const struct option_table *table, size_t i)
{
    while (i && !table->specs[i].group)
        i--;
    return table->specs[i].group;
}

static int options_are_one(const char *group, const char *other)
{
    return group && other ? !strcmp(group, other) : group == other;
}

void options_help(const struct option_table *table, FILE *out)
{
    uint64_t printed = 0;
    fprintf(out, "usage: mkernel %s\n\n%s\n\n", table->usage, table->about);
    for (size_t i = 0; i < table->count; i++) { /* groups in the order in which they first appear */
        const char *group = options_group(table, i);
        if (printed >> i & 1)
            continue;
        if (group)
            fprintf(out, "%s%s\n", i ? "\n" : "", group);
        for (size_t j = i; j < table->count; j++)
            if (options_are_one(group, options_group(table, j))) {
                options_print_option(out, &table->specs[j]);
                printed |= (uint64_t)1 << j;
            }
    }
    fprintf(out, "%s  %-22s  this text\n", table->count && table->specs[0].group ? "\n" : "",
            "--help");
    if (table->examples)
        fprintf(out, "\nexamples:\n%s", table->examples);
}

void options_expand(int argc, char **argv, const char *const *pairs)
{
    for (int i = 1; i < argc; i++)
        for (const char *const *p = pairs; *p; p += 2)
            if (!strcmp(argv[i], p[0]))
                argv[i] = (char *)(uintptr_t)p[1];
}

/* A sweep as a file: YAML, read by libyaml, whose nodes know their lines. What the keys mean
 * docs/EXPERIMENTS.md says. */
#include "experiments/sweep/sweep.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "experiments/common/nearest.h"
#include "experiments/common/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef MK_HAVE_YAML
#include <yaml.h>
#endif

#define FILE_MOST ((size_t)1 << 20)
#define DEPTH_MOST 100u

/* Its whole text; NULL with a sentence. */
static const char *sweep_file_load(struct sweep *s, const char *path, size_t *length, char *error,
                                   size_t size)
{
    MK_CLOSED FILE *f = fopen(path, "re");
    char *text = f ? sweep_take(s, FILE_MOST + 1) : NULL;
    *length = text ? fread(text, 1, FILE_MOST + 1, f) : 0;
    if (!f)
        snprintf(error, size, "%s cannot be read: %s", path, strerror(errno));
    else if (!text)
        snprintf(error, size, "no memory for %s", path);
    else if (ferror(f))
        snprintf(error, size, "%s cannot be read: %s", path, strerror(errno));
    else if (*length > FILE_MOST)
        snprintf(error, size, "%s is longer than 1 MB: that is no sweep", path);
    else if (strlen(text) != *length)
        snprintf(error, size, "%s is no text", path);
    else
        return text;
    return NULL;
}

#ifdef MK_HAVE_YAML

struct reading {
    struct sweep *sweep;
    yaml_document_t document;
    const char *path;
    char *error;
    size_t size;
};

/* "sweep.yaml, line 7: what". Returns -EINVAL. */
static int sweep_file_say(struct reading *r, const yaml_node_t *at, const char *what,
                          const char *word)
{
    return mk_fail(-EINVAL, r->error, r->size, "%s, line %zu: %s%s", r->path,
                   at->start_mark.line + 1, word, what);
}

static yaml_node_t *sweep_file_node(struct reading *r, int id)
{
    return yaml_document_get_node(&r->document, id);
}

static const char *sweep_file_text(struct reading *r, const yaml_node_t *n)
{
    return sweep_keep(r->sweep, (const char *)n->data.scalar.value, n->data.scalar.length);
}

/* One value: a word, or a list of numbers inside a list of values ([256, 128, 256] for
 * 256,128,256). */
static const char *sweep_file_value(struct reading *r, yaml_node_t *n)
{
    char text[1024] = "";
    size_t used = 0;
    if (n->type == YAML_SCALAR_NODE && n->data.scalar.length)
        return sweep_file_text(r, n);
    if (n->type != YAML_SEQUENCE_NODE) {
        sweep_file_say(r, n, "a value is missing", "");
        return NULL;
    }
    for (yaml_node_item_t *i = n->data.sequence.items.start; i < n->data.sequence.items.top; i++) {
        yaml_node_t *one = sweep_file_node(r, *i);
        if (one->type != YAML_SCALAR_NODE) {
            sweep_file_say(r, one, "a list of lists of lists is no value", "");
            return NULL;
        }
        if (used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", used ? "," : "",
                                     (const char *)one->data.scalar.value);
    }
    if (!used || used >= sizeof text) {
        sweep_file_say(r, n, used ? "a value is too long" : "a value is missing", "");
        return NULL;
    }
    return sweep_keep(r->sweep, text, used);
}

static int sweep_file_add(struct reading *r, struct sweep_axis *a, yaml_node_t *n)
{
    const char *value = sweep_file_value(r, n);
    int rc = value ? sweep_add_value(r->sweep, a, value) : -EINVAL;
    return value && rc == -EINVAL ? sweep_file_say(r, n, SWEEP_RANGE, value) : rc;
}

static int sweep_file_axis(struct reading *r, struct sweep_block *to, yaml_node_t *key,
                           yaml_node_t *values)
{
    if (key->type != YAML_SCALAR_NODE)
        return sweep_file_say(r, key, "a setting has a name", "");
    const char *name = sweep_file_text(r, key);
    for (uint32_t i = 0; i < to->count; i++)
        if (name && !strcmp(to->axes[i].name, name))
            return sweep_file_say(r, key, " is there twice", name);
    struct sweep_axis *a = name ? sweep_add_axis(to, name) : NULL;
    if (!a)
        return sweep_file_say(r, key, "too many settings", "");
    if (values->type == YAML_SCALAR_NODE)
        return sweep_file_add(r, a, values);
    if (values->type != YAML_SEQUENCE_NODE)
        return sweep_file_say(r, values, ": one value or a list of values is wanted", name);
    for (yaml_node_item_t *i = values->data.sequence.items.start;
         i < values->data.sequence.items.top; i++) {
        int rc = sweep_file_add(r, a, sweep_file_node(r, *i));
        if (rc)
            return rc;
    }
    return a->count ? 0 : sweep_file_say(r, values, " has no value", name);
}

static int sweep_file_block(struct reading *r, struct sweep_block *to, yaml_node_t *n)
{
    if (n->type != YAML_MAPPING_NODE)
        return sweep_file_say(r, n, "NAME: VALUES is wanted", "");
    for (yaml_node_pair_t *p = n->data.mapping.pairs.start; p < n->data.mapping.pairs.top; p++) {
        int rc = sweep_file_axis(r, to, sweep_file_node(r, p->key), sweep_file_node(r, p->value));
        if (rc)
            return rc;
    }
    return 0;
}

/* One block, or a list of them. */
static int sweep_file_blocks(struct reading *r, struct sweep_blocks *to, yaml_node_t *n)
{
    if (n->type == YAML_MAPPING_NODE) {
        struct sweep_block *b = sweep_add_block(r->sweep, to);
        return b ? sweep_file_block(r, b, n) : -ENOMEM;
    }
    if (n->type != YAML_SEQUENCE_NODE)
        return sweep_file_say(r, n, "NAME: VALUES, or a list of such, is wanted", "");
    for (yaml_node_item_t *i = n->data.sequence.items.start; i < n->data.sequence.items.top; i++) {
        if (to->count == SWEEP_POINTS)
            return sweep_file_say(r, n, "this list is too long", "");
        struct sweep_block *b = sweep_add_block(r->sweep, to);
        int rc = b ? sweep_file_block(r, b, sweep_file_node(r, *i)) : -ENOMEM;
        if (rc)
            return rc;
    }
    return 0;
}

static int sweep_file_number(struct reading *r, yaml_node_t *n, const char *name, uint64_t min,
                             uint64_t max, uint64_t *out)
{
    char what[80];
    uint64_t value;
    const char *text = n->type == YAML_SCALAR_NODE ? (const char *)n->data.scalar.value : "";
    snprintf(what, sizeof what, " is a number from %lu to %lu", min, max);
    if (options_whole(text, min, max, &value))
        return sweep_file_say(r, n, what, name);
    *out = value;
    return 0;
}

/* "90", "90 s" and "20 min". */
static int sweep_file_time(struct reading *r, yaml_node_t *n, const char *name, uint64_t *ns)
{
    char text[32] = "";
    uint64_t factor = 1;
    if (n->type == YAML_SCALAR_NODE)
        snprintf(text, sizeof text, "%s", (const char *)n->data.scalar.value);
    char *blank = strchr(text, ' ');
    if (blank)
        memmove(blank, blank + 1, strlen(blank));
    size_t length = strlen(text);
    if (length > 3 && !strcmp(text + length - 3, "min")) {
        text[length - 3] = '\0';
        factor = 60;
    }
    if (options_seconds(text, 1000000, 1000000000000000ull, ns))
        return sweep_file_say(r, n, " is a time, such as 90 s or 20 min", name);
    *ns *= factor;
    return 0;
}

/* Blocks with `who` and `tflops`, and settings that points must match. */
static int sweep_file_published(struct reading *r, yaml_node_t *n)
{
    struct sweep_blocks *to = &r->sweep->published;
    int rc = sweep_file_blocks(r, to, n);
    for (uint32_t i = 0; i < to->count && !rc; i++) {
        int who = 0, tflops = 0;
        for (uint32_t k = 0; k < to->list[i].count; k++) {
            const struct sweep_axis *a = &to->list[i].axes[k];
            char *end;
            who |= !strcmp(a->name, "who") && a->count == 1;
            tflops |= !strcmp(a->name, "tflops") && a->count == 1 &&
                      strtod(a->values[0], &end) > 0 && !*end;
        }
        if (!who || !tflops || to->list[i].count < 3)
            rc = sweep_file_say(r, n, "published: `who`, a number of `tflops`, and settings", "");
    }
    return rc;
}

static int sweep_file_top(struct reading *r, yaml_node_t *key, yaml_node_t *value)
{
    static const char *const names[] = {"name",    "question", "set",        "vary",
                                        "exclude", "trace",    "repeats",    "seed",
                                        "budget",  "limit",    "impossible", "published"};
    struct sweep *s = r->sweep;
    const char *name = key->type == YAML_SCALAR_NODE ? (const char *)key->data.scalar.value : "";
    if (!strcmp(name, "name") || !strcmp(name, "question")) {
        if (value->type != YAML_SCALAR_NODE)
            return sweep_file_say(r, value, " is a text", name);
        const char *text = sweep_file_text(r, value);
        *(*name == 'n' ? &s->name : &s->question) = text ? text : "";
        return 0;
    }
    if (!strcmp(name, "vary"))
        return sweep_file_blocks(r, &s->vary, value);
    if (!strcmp(name, "exclude"))
        return sweep_file_blocks(r, &s->exclude, value);
    if (!strcmp(name, "published"))
        return sweep_file_published(r, value);
    if (!strcmp(name, "trace"))
        return sweep_file_blocks(r, &s->trace, value);
    if (!strcmp(name, "set")) {
        int rc = sweep_file_block(r, &s->set, value);
        for (uint32_t i = 0; i < s->set.count && !rc; i++)
            if (s->set.axes[i].count > 1)
                rc = sweep_file_say(r, value, ": several values belong under `vary`",
                                    s->set.axes[i].name);
        return rc;
    }
    if (!strcmp(name, "repeats"))
        return sweep_file_number(r, value, name, 1, 1000, &s->repeats);
    if (!strcmp(name, "seed"))
        return sweep_file_number(r, value, name, 0, UINT64_MAX / 2, &s->seed);
    if (!strcmp(name, "budget"))
        return sweep_file_time(r, value, name, &s->budget_ns);
    if (!strcmp(name, "limit"))
        return sweep_file_time(r, value, name, &s->limit_ns);
    if (!strcmp(name, "impossible")) {
        const char *word =
            value->type == YAML_SCALAR_NODE ? (const char *)value->data.scalar.value : "";
        s->skip = !strcmp(word, "skip");
        return s->skip || !strcmp(word, "refuse")
                   ? 0
                   : sweep_file_say(r, value, "impossible is `refuse` or `skip`", "");
    }
    char what[128];
    char near[NEAREST_TEXT];
    snprintf(what, sizeof what, " is no key of a sweep%s",
             nearest_hint(near, name, "", names, sizeof names / sizeof *names));
    return sweep_file_say(r, key, what, name);
}

/* Keys that are there twice would hide one of them: YAML forbids it, libyaml lets it pass. */
static int sweep_file_once(struct reading *r, yaml_node_t *root)
{
    for (yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top;
         p++)
        for (yaml_node_pair_t *q = root->data.mapping.pairs.start; q < p; q++) {
            yaml_node_t *a = sweep_file_node(r, p->key), *b = sweep_file_node(r, q->key);
            if (a->type == YAML_SCALAR_NODE && b->type == YAML_SCALAR_NODE &&
                !strcmp((char *)a->data.scalar.value, (char *)b->data.scalar.value))
                return sweep_file_say(r, a, " is there twice", (char *)a->data.scalar.value);
        }
    return 0;
}

/* libyaml takes time with the square of how deep brackets lie in each other. Those of texts count,
 * too. */
static int sweep_file_depth(struct reading *r)
{
    unsigned depth = 0, line = 1;
    for (const char *c = r->sweep->text; *c; c++) {
        line += *c == '\n';
        if (*c == '[' || *c == '{')
            depth++;
        else if (depth && (*c == ']' || *c == '}'))
            depth--;
        if (depth > DEPTH_MOST)
            return mk_fail(-EINVAL, r->error, r->size,
                           "%s, line %u: %u brackets are open here: that is no sweep", r->path,
                           line, depth);
    }
    return 0;
}

static int sweep_file_parse(struct reading *r, size_t length)
{
    yaml_parser_t parser;
    if (sweep_file_depth(r))
        return -EINVAL;
    if (!yaml_parser_initialize(&parser))
        return -ENOMEM;
    yaml_parser_set_input_string(&parser, (const unsigned char *)r->sweep->text, length);
    if (!yaml_parser_load(&parser, &r->document)) {
        snprintf(r->error, r->size, "%s, line %zu: this is no YAML: %s", r->path,
                 parser.problem_mark.line + 1, parser.problem ? parser.problem : "not readable");
        yaml_parser_delete(&parser);
        return -EINVAL;
    }
    yaml_node_t *root = yaml_document_get_root_node(&r->document);
    int rc = 0;
    if (!root || root->type != YAML_MAPPING_NODE)
        rc = mk_fail(-EINVAL, r->error, r->size,
                     "%s: a sweep has keys such as `vary`, and there are none", r->path);
    rc = rc ? rc : sweep_file_once(r, root);
    for (yaml_node_pair_t *p = rc ? NULL : root->data.mapping.pairs.start;
         !rc && p < root->data.mapping.pairs.top; p++)
        rc = sweep_file_top(r, sweep_file_node(r, p->key), sweep_file_node(r, p->value));
    yaml_document_delete(&r->document);
    yaml_parser_delete(&parser);
    return rc;
}
#endif

int sweep_read(struct sweep *s, const char *path, char *error, size_t size)
{
    size_t length;
    s->text = sweep_file_load(s, path, &length, error, size);
    if (!s->text) {
        s->text = "";
        return -EINVAL;
    }
#ifdef MK_HAVE_YAML
    struct reading r = {.sweep = s, .path = path, .error = error, .size = size};
    snprintf(error, size, "no memory for %s", path);
    return sweep_file_parse(&r, length);
#else
    return mk_fail(
        -EINVAL, error, size,
        "this build reads no sweep files (libyaml-dev was not there); --vary says the same on "
        "the command line");
#endif
}

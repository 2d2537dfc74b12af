/* For tests: reads JSON (RFC 8259) into a tree, strictly. No dependencies, no mercy: anything odd
 * is NULL. */
#pragma once

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum json_type { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json {
    enum json_type type;
    double number; /* or 0, 1 of a bool */
    char *string;
    char *key; /* in its object */
    struct json *first, *next;
};

static void json_free(struct json *j)
{
    while (j) {
        struct json *next = j->next;
        json_free(j->first);
        free(j->string);
        free(j->key);
        free(j);
        j = next;
    }
}

static const char *json_blanks(const char *s)
{
    while (*s == ' ' || *s == '\t' || *s == '\n' || *s == '\r')
        s++;
    return s;
}

/* A string's text; *s moves behind it. \u escapes are checked, and kept as '?'. */
static char *json_text(const char **s)
{
    if (**s != '"')
        return NULL;
    const char *c = *s + 1;
    size_t length = 0; /* to the quote that ends it, or what is written so */
    while (c[length] && c[length] != '"')
        length += c[length] == '\\' && c[length + 1] ? 2 : 1;
    char *text = malloc(length + 1), *t = text;
    for (; *c != '"'; c++) {
        if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x80)
            goto bad; /* ends early, a raw control character, or not ASCII */
        if (*c != '\\') {
            *t++ = *c;
            continue;
        }
        c++;
        if (*c == 'u') {
            for (int i = 1; i <= 4; i++)
                if (!isxdigit((unsigned char)c[i]))
                    goto bad;
            c += 4;
            *t++ = '?';
        } else if (*c && strchr("\"\\/bfnrt", *c)) {
            *t++ = *c;
        } else {
            goto bad;
        }
    }
    *t = 0;
    *s = c + 1;
    return text;
bad:
    free(text);
    return NULL;
}

static int json_number(const char **s, double *out)
{
    const char *c = *s;
    char *end;
    c += *c == '-';
    if (!isdigit((unsigned char)*c) || (*c == '0' && isdigit((unsigned char)c[1])))
        return 0;
    *out = strtod(*s, &end);
    if (end[-1] == '.')
        return 0;
    *s = end;
    return 1;
}

static struct json *json_value(const char **s, int depth);

/* Members of an array or object until `close`. */
static int json_members(struct json *j, const char **s, char close, int depth)
{
    struct json **tail = &j->first;
    *s = json_blanks(*s + 1);
    if (**s == close) {
        (*s)++;
        return 1;
    }
    for (;;) {
        char *key = NULL;
        *s = json_blanks(*s);
        if (close == '}') {
            if (!(key = json_text(s)))
                return 0;
            *s = json_blanks(*s);
            if (**s != ':') {
                free(key);
                return 0;
            }
            (*s)++;
        }
        struct json *member = json_value(s, depth);
        if (!member) {
            free(key);
            return 0;
        }
        member->key = key;
        *tail = member;
        tail = &member->next;
        *s = json_blanks(*s);
        if (**s == close) {
            (*s)++;
            return 1;
        }
        if (*(*s)++ != ',')
            return 0;
    }
}

static struct json *json_value(const char **s, int depth)
{
    struct json *j = calloc(1, sizeof *j);
    int good = depth < 64;
    *s = json_blanks(*s);
    if (**s == '{' || **s == '[') {
        j->type = **s == '{' ? JSON_OBJECT : JSON_ARRAY;
        good = good && json_members(j, s, **s == '{' ? '}' : ']', depth + 1);
    } else if (**s == '"') {
        j->type = JSON_STRING;
        good = (j->string = json_text(s)) != NULL;
    } else if (!strncmp(*s, "true", 4) || !strncmp(*s, "null", 4) || !strncmp(*s, "false", 5)) {
        j->type = **s == 'n' ? JSON_NULL : JSON_BOOL;
        j->number = **s == 't';
        *s += **s == 'f' ? 5 : 4;
    } else {
        j->type = JSON_NUMBER;
        good = json_number(s, &j->number);
    }
    if (good)
        return j;
    json_free(j);
    return NULL;
}

/* A whole text; NULL where it is no JSON, or something follows. */
__attribute__((unused)) static struct json *json_read(const char *text)
{
    struct json *j = json_value(&text, 0);
    if (j && *json_blanks(text)) {
        json_free(j);
        j = NULL;
    }
    return j;
}

__attribute__((unused)) static const struct json *json_get(const struct json *object,
                                                           const char *key)
{
    for (const struct json *m = object ? object->first : NULL; m; m = m->next)
        if (m->key && !strcmp(m->key, key))
            return m;
    return NULL;
}

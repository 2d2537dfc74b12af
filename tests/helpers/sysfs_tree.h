/* A piece of sysfs out of tests/fixtures/topology, unpacked below a directory of its own. */
#pragma once

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct sysfs_tree {
    char root[64];
};

static inline void tree_parents(char *path)
{
    for (char *slash = path + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        mkdir(path, 0700);
    }
}

/* One line: "PATH = CONTENT" or "LINK -> TARGET". 0 or -1. */
static inline int tree_add(const struct sysfs_tree *t, const char *line)
{
    char path[PATH_MAX], name[1024], kind[3], value[1024];
    if (sscanf(line, "%1023s %2s %1023[^\n]", name, kind, value) != 3)
        return -1;
    snprintf(path, sizeof path, "%s/%s", t->root, name);
    tree_parents(path);
    if (!strcmp(kind, "->"))
        return symlink(value, path);
    FILE *f = fopen(path, "w");
    if (!f)
        return -1;
    fprintf(f, "%s\n", value);
    return fclose(f);
}

static inline int tree_open(struct sysfs_tree *t)
{
    snprintf(t->root, sizeof t->root, "/tmp/sysfs-XXXXXX");
    return mkdtemp(t->root) ? 0 : -1;
}

/* Puts `to` for every `from` of a line, NULL for none. */
static inline void tree_rename(char *line, size_t size, const char *from, const char *to)
{
    char old[4096];
    for (char *at = line; from && (at = strstr(at, from)); at += strlen(to)) {
        snprintf(old, sizeof old, "%s", at + strlen(from));
        snprintf(at, size - (size_t)(at - line), "%s%s", to, old);
    }
}

/* Unpacks a fixture by its name, its devices named otherwise where `from` is not NULL. 0, or -1
 * with what went wrong on stderr. */
static inline int tree_unpack_as(struct sysfs_tree *t, const char *fixture, const char *from,
                                 const char *to)
{
    char path[256], line[4096];
    snprintf(path, sizeof path, "tests/fixtures/topology/%s", fixture);
    FILE *f = fopen(path, "r");
    int rc = f ? tree_open(t) : -1;
    while (!rc && fgets(line, sizeof line, f)) {
        tree_rename(line, sizeof line, from, to);
        if (line[0] != '#' && (rc = tree_add(t, line)))
            fprintf(stderr, "%s: %s: %s", path, strerror(errno), line);
    }
    if (f)
        fclose(f);
    else
        fprintf(stderr, "%s is not here: tests run in the repository's root\n", path);
    return rc;
}

static inline int tree_unpack(struct sysfs_tree *t, const char *fixture)
{
    return tree_unpack_as(t, fixture, NULL, NULL);
}

static inline void tree_close(struct sysfs_tree *t)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", t->root);
    if (system(command))
        fprintf(stderr, "%s is left behind\n", t->root);
}

/* Tuned plans: the files that they lie in. */
#include "core/base/file_lock.h"
#include "core/base/new_file.h"
#include "core/plan/plan_fields.h"
#include "core/plan/tuning.h"
#include "core/ops/op.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MOST_BYTES (1u << 20)
#define LOCK_MS 10000

/* core/plan/tuning.plans, with a 0 behind it. */
extern const char tuning_shipped[];
__asm__(".section .rodata\n.global tuning_shipped\ntuning_shipped:\n.incbin "
        "\"core/plan/tuning.plans\"\n.byte 0\n"
        ".size tuning_shipped, . - tuning_shipped\n.type tuning_shipped, @object\n.previous\n");

/* Which file: its path in t->path. 1: it was asked for by name. */
static int tuning_file_choose_path(struct tuning_table *t, const char *asked)
{
    const char *environment = getenv("MKERNEL_TUNING"), *config = getenv("XDG_CONFIG_HOME"),
               *home = getenv("HOME");
    if (!*asked && environment)
        asked = environment;
    if (*asked)
        snprintf(t->path, sizeof t->path, "%s", asked);
    else if (config && *config == '/')
        snprintf(t->path, sizeof t->path, "%s/mkernel/tuning", config);
    else if (home && *home)
        snprintf(t->path, sizeof t->path, "%s/.config/mkernel/tuning", home);
    return *asked != 0;
}

/* The whole file, malloc'd, with a 0 behind it, in *text. 0 or -errno. */
static int tuning_file_read_file(const char *path, char **text)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return -errno;
    struct stat s;
    int result = fstat(fileno(f), &s) ? -errno : S_ISDIR(s.st_mode) ? -EISDIR : 0;
    char *out = result ? NULL : malloc(MOST_BYTES + 1);
    size_t used = out ? fread(out, 1, MOST_BYTES + 1, f) : 0;
    if (!result)
        result = !out ? -ENOMEM : ferror(f) ? -EIO : used > MOST_BYTES ? -EFBIG : 0;
    fclose(f);
    if (result) {
        free(out);
        return result;
    }
    out[used] = '\0';
    *text = out;
    return 0;
}

int tuning_open(struct tuning_table *t, const char *asked, int may_lack, char *error, size_t size)
{
    char *text = NULL;
    memset(t, 0, sizeof *t);
    int named = tuning_file_choose_path(t, asked);
    if (!strcmp(t->path, "none")) {
        t->path[0] = '\0';
        return 0;
    }
    int result = t->path[0] ? tuning_file_read_file(t->path, &text) : -ENOENT;
    if (!result)
        result = tuning_parse(t, text, t->path, 0, error, size);
    else if ((result == -ENOENT || result == -ENOTDIR) && (!named || may_lack))
        result = 0;
    else
        snprintf(error, size, "the tuned plans in %s cannot be read: %s; `none` takes no file",
                 t->path, strerror(-result));
    free(text);
    return result ? result
                  : tuning_parse(t, tuning_shipped, "core/plan/tuning.plans", 1, error, size);
}

void tuning_close(struct tuning_table *t)
{
    free(t->entries);
    memset(t, 0, sizeof *t);
}

/* Which product it is: how B lies, or the mask of attention. */
static const char *tuning_file_variant(const struct tuning_entry *e)
{
    return op_of(e->op)->causal ? tuning_masks[e->causal] : e->b_transposed ? "nk" : "kn";
}

static void tuning_file_write_entry(FILE *f, const struct tuning_entry *e)
{
    char words[256], word[PLAN_FIELD_TEXT], shape[TUNING_SHAPE_TEXT];
    tuning_words(&e->tuning, words, sizeof words);
    fprintf(f, "%s %s %s %s %ux%u %s", plan_op_name(e->op), tuning_shape(e, shape),
            tuning_file_variant(e), plan_sums[e->deterministic], e->nodes, e->gpus, e->device);
    for (const struct plan_field *i = NULL; (i = plan_field_next(i, PLAN_IN_TUNED));) {
        const uint64_t value = plan_field_get(i, &e->said);
        if (value)
            fprintf(f, " %s=%s", i->name, plan_field_text(i, value, word));
    }
    if (strcmp(words, "formula"))
        fprintf(f, " %s", words);
    if (e->ms > 0)
        fprintf(f, " ms=%.4f", e->ms);
    if (e->formula_ms > 0)
        fprintf(f, " formula_ms=%.4f", e->formula_ms);
    if (*e->date)
        fprintf(f, " date=%s", e->date);
    fprintf(f, "%s\n", e->simulated ? " by=simulation" : "");
}

/* The old lines without those that the new entry is for, then the new one. */
static int tuning_file_write_lines(FILE *f, const char *path, const char *old,
                                   const struct tuning_entry *entry, char *error, size_t size)
{
    struct tuning_table t = {0};
    int result = tuning_parse(&t, old, path, 0, error, size);
    for (uint32_t line = 1; *old && !result; line++) {
        size_t length = strcspn(old, "\n");
        int replaced = 0;
        for (uint32_t i = 0; i < t.count && !replaced; i++)
            replaced = t.entries[i].line == line && tuning_same(&t.entries[i], entry);
        if (!replaced)
            fprintf(f, "%.*s\n", (int)length, old);
        old += length + (old[length] == '\n');
    }
    if (!result)
        tuning_file_write_entry(f, entry);
    tuning_close(&t);
    return result;
}

void tuning_make_folders(const char *path)
{
    char folder[512];
    snprintf(folder, sizeof folder, "%s", path);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(folder, 0777);
        *slash = '/';
    }
}

/* With the lock held: the file with the new entry in place of the old one. An error without a
 * sentence leaves `error` empty. */
static int tuning_file_replace_file(const char *path, const char *old,
                                    const struct tuning_entry *entry, char *error, size_t size)
{
    struct mk_new_file file;
    int result = mk_new_file_open(&file, path, 0666);
    if (result)
        return result;
    FILE *f = mk_new_file_stream(&file);
    result = f ? tuning_file_write_lines(f, path, old, entry, error, size) : -errno;
    int lost = f && (fflush(f) || ferror(f)) ? -errno : 0;
    if (f && fclose(f) && !lost)
        lost = -errno;
    result = result ? result : lost ? lost : mk_new_file_keep(&file);
    mk_new_file_drop(&file);
    return result;
}

int tuning_store(const char *path, const struct tuning_entry *entry, char *error, size_t size)
{
    char *text = NULL;
    int held;
    error[0] = '\0';
    tuning_make_folders(path);
    int result = mk_file_lock(&held, path, LOCK_MS); /* of two `tune` neither loses lines */
    result = result ? result : tuning_file_read_file(path, &text);
    if (result == -ENOENT && held >= 0) {
        text = strdup("# Tuned plans of mkernel: `mkernel tune` writes them, the plan reads its "
                      "defaults from them "
                      "(docs/GUIDE.md).\n");
        result = text ? 0 : -ENOMEM;
    }
    result = result ? result : tuning_file_replace_file(path, text, entry, error, size);
    if (result && !error[0])
        snprintf(error, size, "the tuned plan cannot be kept in %s: %s", path,
                 result == -EBUSY && held < 0
                     ? "another `mkernel tune` has been writing to it for 10 s"
                     : strerror(-result));
    mk_file_unlock(held, path);
    free(text);
    return result;
}

/* What tests of either viewer share: scripts of keys, the screen as text, golden screens. Include
 * after cmocka.h. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tui/cells.h"
#include "tui/script.h"

/* A script (tui/script.h) from its text; script_free it. */
static inline void screen_script(struct script *script, const char *text)
{
    char path[] = "/tmp/mk_script_XXXXXX", error[256];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    int rc = script_read(script, path, error, sizeof error);
    unlink(path);
    assert_int_equal(rc, 0);
}

/* The caller frees it. */
static inline char *screen_text(const struct cells *cells, int attributes)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    assert_non_null(f);
    cells_dump_text(cells, f);
    if (attributes)
        cells_dump_attributes(cells, f);
    fclose(f);
    return text;
}

/* Whether the golden file says the same; MK_GOLDEN=write makes it anew. */
static inline int screen_golden(const char *path, const char *text)
{
    static char golden[1 << 18];
    const char *mode = getenv("MK_GOLDEN");
    int write_it = mode && !strcmp(mode, "write");
    FILE *f = fopen(path, write_it ? "w" : "r");
    if (write_it) {
        assert_non_null(f);
        fputs(text, f);
        fclose(f);
        return 1;
    }
    golden[f ? fread(golden, 1, sizeof golden - 1, f) : 0] = 0;
    if (f)
        fclose(f);
    if (strcmp(golden, text))
        fprintf(stderr, "%s differs; the screen is now:\n%s", path, text ? text : "");
    return !strcmp(golden, text);
}

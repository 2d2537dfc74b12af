#include "experiments/baselines/script.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int script_find(char *path, size_t size, const char *name)
{
    /* from the program's folder: in a wheel, under PREFIX/bin, in build/ of the sources */
    static const char *const places[] = {"baselines", "../share/mkernel/baselines",
                                         "../experiments/baselines"};
    char self[3072];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0)
        return -errno;
    self[n] = 0;
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, size, "%s/%s/%s", self, places[i], name);
        if (!access(path, R_OK))
            return 0;
    }
    return -ENOENT;
}

int script_said_open(void)
{
    char name[] = "/tmp/mkernel-said-XXXXXX";
    int said = mkostemp(name, O_CLOEXEC);
    if (said >= 0)
        unlink(name);
    return said;
}

void script_said(int said, char *line, size_t size)
{
    char text[65536], *rest, *found = NULL;
    off_t end = said < 0 ? 0 : lseek(said, 0, SEEK_END);
    size_t most = sizeof text - 1, n = end < 0 ? 0 : (size_t)end;
    int named = 0;
    n = n > most ? most : n;
    ssize_t got = n ? pread(said, text, n, end - (off_t)n) : 0;
    text[got > 0 ? got : 0] = 0;
    for (char *at = strtok_r(text, "\n", &rest); at; at = strtok_r(NULL, "\n", &rest)) {
        const char *error = strstr(at, "Error: "); /* torchrun's own has nothing behind it */
        int names = error && error[7] > ' ' && *at != ' ';
        if (at[strspn(at, " \t\r")] && (names || !named))
            found = at;
        named |= names;
    }
    snprintf(line, size, "%s", found ? found : "it said nothing");
}

/* Shell commands of tests. Include after cmocka.h. */
#pragma once

#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* `mkernel` in a command is the one of this test program's own build: the first time its folder,
 * in which that of the program is, becomes the first of PATH. */
static void shell_find_own(void)
{
    static int found;
    char program[512], path[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (found++ || length < 0)
        return;
    program[length] = '\0';
    snprintf(path, sizeof path, "%s:%s", dirname(dirname(program)), getenv("PATH"));
    setenv("PATH", path, 1);
}

/* Runs a shell command; what it says is in out, as much as there is room for. Returns its exit
 * status. */
static int shell(const char *command, char *out, size_t size)
{
    char rest[4096];
    shell_find_own();
    FILE *p = popen(command, "r");
    assert_non_null(p);
    out[fread(out, 1, size - 1, p)] = '\0';
    while (fread(rest, 1, sizeof rest, p) > 0)
        ;
    int status = pclose(p);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The command ends with that status, and says the text so many times. */
__attribute__((unused)) static void shell_says(const char *command, int status, const char *text,
                                               int times)
{
    char out[8192];
    int got = shell(command, out, sizeof out), found = 0;
    for (const char *at = out; (at = strstr(at, text)); at += strlen(text))
        found++;
    if (got != status || found != times)
        fail_msg("%s: %d, %s", command, got, out);
}

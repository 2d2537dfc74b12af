/* Shell commands of tests. Include after cmocka.h. */
#pragma once

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

/* Runs a shell command; what it says is in out, as much as there is room for. Returns its exit
 * status. */
static int shell(const char *command, char *out, size_t size)
{
    char rest[4096];
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

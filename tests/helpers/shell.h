/* Shell commands of tests. Include after cmocka.h. */
#ifndef TESTS_SHELL_H
#define TESTS_SHELL_H

#include <stdio.h>
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

#endif

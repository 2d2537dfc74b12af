/* For tests of `mkernel run --check`. */
#pragma once

#include "tests/helpers/command.h"
#include "tests/helpers/test.h"

#define SECONDS 60
#define COUNT(table) (sizeof(table) / sizeof *(table))

static struct command_run r;

/* Runs it with up to two entries more of the environment, and fails where it is not right or does not print `says`. */
static void right(const char *line, const char *one, const char *two, const char *says)
{
    command_start(&r, line, one, two, NULL);
    command_finish(&r, SECONDS);
    if (r.status || !strstr(r.out_text, "verdict   right") || !strstr(r.err_text, "all right") ||
        !strstr(r.out_text, says))
        fail_msg("mkernel %s: status %d signal %d after %.1f s, not \"%s\"\n%s%s", line, r.status,
                 r.signal, r.seconds, says, r.out_text, r.err_text);
    assert_int_equal(command_lines(r.err_text), 1);
    /* a right result comes up to its bounds, and nobody is to be alarmed */
    assert_null(strstr(r.out_text, "of its bound"));
}

/* A folder of a test program's own, for as long as its group of tests runs. Include after
 * cmocka.h. */
#pragma once

#include <stdio.h>
#include <stdlib.h>

static char folder[] = "/tmp/mkernel-test-XXXXXX";

/* For a group's setup and teardown. */
static int folder_make(void **state)
{
    return mkdtemp(folder) ? 0 : -1;
}

static int folder_remove(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

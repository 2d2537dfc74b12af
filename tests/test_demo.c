/* `make demo` runs on a GPU where the command would, one rank a node, and on CPU threads else: the
 * commands that experiments/demo.sh starts, with a command in place of mkernel that says so. */
#include <sys/stat.h>

#include "tests/helpers/test.h"
#include "tests/helpers/folder.h"
#include "tests/helpers/shell.h"

static char out[1 << 14];

static int make_command(void **state)
{
    char path[256];
    if (folder_make(state))
        return -1;
    snprintf(path, sizeof path, "%s/mkernel", folder);
    FILE *f = fopen(path, "w");
    if (!f ||
        fputs("#!/bin/sh\ncase \"$*\" in\n*--dry-run) echo \"mkernel run: 2 x 1 ranks ($WHERE) "
              "would run with ...; nothing was started\";;\nesac\n",
              f) < 0 ||
        fclose(f))
        return -1;
    return chmod(path, 0755);
}

static void demo(const char *where)
{
    char command[512];
    snprintf(command, sizeof command, "WHERE=%s sh experiments/demo.sh %s 2>&1", where, folder);
    assert_int_equal(shell(command, out, sizeof out), 0);
}

CASE(test_on_a_gpu)
{
    demo("cuda");
    assert_non_null(strstr(out, "run ag_gemm --nodes 2 --gpus 1 --exec cuda "));
    assert_non_null(strstr(out, "run ring_attention --nodes 2 --gpus 1 --exec cuda "));
    assert_null(strstr(out, "--exec host"));
}

CASE(test_without_one)
{
    demo("host");
    assert_non_null(strstr(out, "run ag_gemm --nodes 2 --gpus 2 --exec host "));
    assert_non_null(strstr(out, "run ring_attention --nodes 2 --gpus 2 --exec host "));
    assert_null(strstr(out, "--exec cuda"));
}

/* What make gives to the shell, of its own lines, and what of it says where the build is. */
static void lines(const char *variables, const char *says)
{
    char command[512];
    snprintf(command, sizeof command,
             "make -n demo MAKE=true BUILD=%s/none %s >%s/lines && sh -n %s/lines && "
             "grep 'no GPU here' %s/lines | sh",
             folder, variables, folder, folder, folder);
    assert_int_equal(shell(command, out, sizeof out), 0);
    assert_int_equal(!strncmp(out, says, strlen(says)) && (*says || !*out), 1);
}

CASE(test_lines_of_make)
{
    lines("CUDA_HOME= NVCC= HAVE_CUDA=", "");
    lines("HAVE_CUDA=yes HAVE_GPU=", "demo: no GPU here, so this build, in ");
    lines("HAVE_CUDA=yes HAVE_GPU=yes", "");
}

FIXTURE(make_command, folder_remove)

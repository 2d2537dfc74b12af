/* What stands around the command says what the command says: the man page, completion in bash, and
 * the list of environment variables, which has all that the sources look at and nothing else. */
#include <unistd.h>

#include "tests/helpers/test.h"
#include "tests/helpers/shell.h"

static char said[1 << 18], build[4096];

static int find_build(void **state)
{
    ssize_t length = readlink("/proc/self/exe", build, sizeof build - 1);
    build[length > 0 ? length : 0] = 0;
    for (int i = 0; i < 2 && strrchr(build, '/'); i++)
        *strrchr(build, '/') = 0;
    setenv("B", build, 1);
    return access("docs/ENVIRONMENT.md", R_OK);
}

/* Every name that is asked of the environment, in the sources. */
#define ASKED                                                                                      \
    "git grep -ohE '(getenv|setenv|launcher_value|launcher_number|launcher_either|"                \
    "run_burst_is_mine)\\([^;]*;|environ(\\.get\\(|\\[)\"[A-Z_]+\"' -- core backends sim tracer "  \
    "kernels tui experiments | grep -oE '\"[A-Z][A-Z0-9_]+\"' | tr -d '\"' | sort -u"

CASE(the_list_of_variables_is_the_sources)
{
    if (shell("git rev-parse HEAD 2>/dev/null", said, sizeof said))
        skip();
    assert_int_equal(shell(ASKED " | wc -l", said, sizeof said), 0);
    assert_true(atoi(said) > 30); /* the search does find */
    shell(ASKED " | while read v; do grep -q \"\\`$v\\`\" docs/ENVIRONMENT.md || echo \"$v\"; done",
          said, sizeof said);
    if (*said)
        print_message("docs/ENVIRONMENT.md lacks %s", said);
    assert_string_equal(said, "");
    shell("grep -oE '`[A-Z][A-Z0-9_]+`' docs/ENVIRONMENT.md | tr -d '`' | sort -u | while read v; "
          "do git grep -q \"\\\"$v\\\"\" -- core backends sim tracer kernels tui experiments tests "
          "|| "
          "echo \"$v\"; done",
          said, sizeof said);
    if (*said)
        print_message("docs/ENVIRONMENT.md has %s, which no source looks at", said);
    assert_string_equal(said, "");
}

CASE(the_man_page_has_every_command)
{
    char page[64];
    if (shell("command -v groff", page, sizeof page))
        skip();
    assert_int_equal(shell("sh experiments/shell/man.sh $B/mkernel 9.9 | groff -man -Tascii -ww "
                           "-P-c -P-b -P-u 2>&1",
                           said, sizeof said),
                     0);
    assert_null(strstr(said, "warning")); /* groff's */
    static const char *const wanted[] = {
        "mkernel 9.9",          "mkernel sweep",     "mkernel results",
        "mkernel bench fabric", "--chunk-rows ROWS", "--vary NAME",
        "MKERNEL_TOKEN",        "EXIT STATUS",       "OMPI_COMM_WORLD_RANK"};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if (!strstr(said, wanted[i]))
            print_message("the man page has no '%s'\n", wanted[i]);
        assert_non_null(strstr(said, wanted[i]));
    }
}

/* What bash offers where the words are `words`, the last of which is being typed. */
static void offers(const char *words, const char *these, const char *not_this)
{
    char line[1024];
    snprintf(line, sizeof line,
             "PATH=$B:$PATH bash -c '. experiments/shell/mkernel.bash; COMP_WORDS=(%s); "
             "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _mkernel; echo \" ${COMPREPLY[*]} \"'",
             words);
    assert_int_equal(shell(line, said, sizeof said), 0);
    char copy[512], *save;
    snprintf(copy, sizeof copy, "%s", these);
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        char whole[128];
        snprintf(whole, sizeof whole, " %s ", w);
        if (!strstr(said, whole))
            print_message("%s: no %s in %s", words, w, said);
        assert_non_null(strstr(said, whole));
    }
    if (not_this && strstr(said, not_this))
        print_message("%s: %s in %s", words, not_this, said);
    assert_true(!not_this || !strstr(said, not_this));
}

CASE(bash_completes_what_the_help_says)
{
    char version[64];
    if (shell("bash --version", version, sizeof version))
        skip();
    offers("mkernel \"\"", "run bench sweep results info --help", "ag_gemm");
    offers("mkernel re", "results", "run");
    offers("mkernel run \"\"", "ag_gemm ring_attention", "sweep");
    offers("mkernel bench f", "fabric", "ag_gemm");
    offers("mkernel run ag_gemm --n", "--nodes --nic", "--gpus");
    offers("mkernel run ag_gemm --exec \"\"", "host cuda", "--");
    offers("mkernel run ag_gemm --exec = c", "cuda", "host");
    offers("mkernel run ring_attention --ca", "--causal", NULL); /* what that operator takes */
    offers("mkernel run ag_gemm --ca", "", "--causal");
    offers("mkernel sim all_gather --t", "--trace --timeout", "--tile");
    offers("mkernel bench fabric --s", "--server", "--seed");
    offers("mkernel results x.db p", "plot", "table");
    offers("mkernel results x.db plot s", "speed stack simulated", "time");
    offers("mkernel sweep docs/experiments/r", "docs/experiments/role-split.yaml", NULL);
    offers("mkernel trace \"\"", "summary diff export sql plot", "Makefile");
    offers("mkernel trace e", "export", "summary");
    offers("mkernel trace export x.db --o", "--out", "--csv");
    offers("mkernel tune ag_gemm --exec \"\"", "host cuda sim", "--");
    offers("mkernel tune ag_gemm --exec sim --cl", "--cluster", NULL);
    offers("mkernel tune ag_gemm --exec host --cl", "", "--cluster");
    offers("mkernel run ag_gemm --nodes \"\"", "", "run"); /* a number is nobody's to guess */
}

/* It asks the mkernel of PATH, and runs none of the folder that the line names. */
CASE(completion_runs_no_program_of_the_line)
{
    assert_int_equal(
        shell("T=$(mktemp -d) && printf '#!/bin/sh\\ntouch '$T/ran >$T/mkernel && "
              "chmod +x $T/mkernel && PATH=$B:$PATH bash -c '. experiments/shell/mkernel.bash; "
              "COMP_WORDS=($0/mkernel run \"\"); COMP_CWORD=2; _mkernel; "
              "echo ${COMPREPLY[*]}' $T; [ ! -e $T/ran ]; s=$?; rm -r $T; exit $s",
              said, sizeof said),
        0);
    assert_non_null(strstr(said, "ag_gemm"));
}

/* JSON for a program does not flood a terminal. */
CASE(an_export_asks_where_to)
{
    if (shell("command -v script", said, sizeof said))
        skip();
    assert_int_equal(
        shell("script -qec \"$B/mkernel trace export nothing.db\" /dev/null </dev/null", said,
              sizeof said),
        2);
    assert_non_null(strstr(said, "standard output is a terminal: --out FILE, or a pipe"));
    shell("$B/mkernel trace export nothing.db 2>&1", said, sizeof said);
    assert_null(strstr(said, "terminal"));
}

FIXTURE(find_build, NULL)
